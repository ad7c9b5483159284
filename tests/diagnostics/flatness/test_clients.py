"""Sharpness on the pooled data and on each client's."""

import numpy as np
import pytest

import diagnostics
from diagnostics import subject
from diagnostics.landscape import Landscape
from feddual import api
from feddual._lazy import keras
from feddual.api import Run
from feddual.errors import UserError
from tests.helpers import tiny

RNG = np.random.default_rng(0)
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return api.run(tiny(), out=tmp_path_factory.mktemp("run") / "run", progress=False)


def test_a_quadratic_is_as_flat_on_the_pooled_data_as_the_clients_are_on_average():
    """With clients of equal size the Hessian of the pooled mean is the mean of theirs; a shift of y changes none."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    data = {
        k: ((k + 1) * RNG.normal(size=(30, 3)).astype(np.float32), RNG.normal(size=(30, 1)).astype(np.float32))
        for k in range(3)
    }
    measures = ["kappa_fn", "average_adaptive"]
    found = diagnostics.flatness_discrepancy(
        model, data, loss="mse", measures=measures, directions=3, images=None, **QUIET
    )
    rows = found.summary.set_index("measure")
    weights = model.get_weights()[0].astype(np.float64)
    traces = [np.trace(x.T.astype(np.float64) @ x) * 2 / 30 for x, _ in data.values()]
    assert rows.loc["kappa_fn", "number"] == 3
    for name in measures:
        row = rows.loc[name].iloc[0] if name == "average_adaptive" else rows.loc[name]
        assert abs(row["discrepancy"]) < 2e-3 * row["pooled"]
        assert row["low"] < 0 < row["high"]
        assert row["smallest"] < row["clients"] < row["largest"]
    # The third client's inputs are three times the first's: nine times the curvature, about.
    of_client = found.table.query("measure == 'kappa_fn' and at == 'global' and on == 'own'")["value"].to_numpy()
    np.testing.assert_allclose(of_client / of_client[0], np.array(traces) / traces[0], rtol=0.6)
    assert (np.linalg.norm(weights) > 0) == (rows.loc["kappa_fn", "pooled"] > 0)


def test_a_clients_landscape_is_its_own_data(run):
    landscape = Landscape(run, client=2, images=None)
    division = run_partition(run)
    held = np.unique(division.client(2))
    assert len(landscape.subject.y) == len(held)
    assert (landscape.subject.facts["client"], landscape.subject.facts["held"]) == (2, len(held))
    whole = Landscape(run, images=None)
    assert landscape.subject.facts["rows"] != whole.subject.facts["rows"]
    # The pooled loss is the mean over examples of the clients' (none is held twice here).
    sizes = [len(Landscape(run, client=k, images=None).subject.y) for k in subject.clients_of(run)]
    losses = [float(Landscape(run, client=k, images=None).measures().loss) for k in subject.clients_of(run)]
    np.testing.assert_allclose(np.average(losses, weights=sizes), float(whole.measures().loss), rtol=1e-5)
    for client, said in ((-1, "must be from 0 to 5, got -1"), (6, "must be from 0 to 5, got 6")):
        with pytest.raises(UserError, match=said):
            Landscape(run, client=client)
    with pytest.raises(UserError, match="client: clients hold training data"):
        Landscape(run, client=1, split="test")
    with pytest.raises(UserError, match="client: only a run has clients"):
        Landscape(run.model(), np.zeros((4, 6)), np.arange(4), client=1)


def run_partition(run):
    from feddual import setting
    from feddual.data import partition

    return partition.split(setting.of(run.config).images("train")[1], run.config.partition)


def test_weights_of_ones_own_stand_at_the_centre(run):
    plain = Landscape(run, images=40)
    weights = plain.weights * np.float32(1.5)
    moved = Landscape(run, images=40, weights=weights)
    np.testing.assert_array_equal(moved.weights, weights)
    step = diagnostics.Space(run.model()).between(plain.weights, weights)
    line = plain.lines(directions=[step], alphas=[0.0, 0.5, 1.0], **QUIET)
    np.testing.assert_allclose(float(moved.measures().loss), line.loss[0, 2], rtol=1e-5)
    with pytest.raises(UserError, match="they belong to another model"):
        Landscape(run, images=40, weights=weights[:-1])


def test_global_and_own_models_on_pooled_and_own_data(run, tmp_path):
    weights = {k: Landscape(run).weights * np.float32(1 + k / 10) for k in (0, 1)}
    asked = {"clients": [0, 1, 3], "weights": weights, "measures": ["sam"], "images": 60, **QUIET}
    found = diagnostics.flatness_discrepancy(run, out=tmp_path / "a", **asked)
    assert [key for key in found.measured if key[2] in (None, 0)] == [
        ("global", "pooled", None), ("global", "own", 0), ("own", "own", 0), ("own", "pooled", 0)
    ]  # fmt: skip
    row = found.summary.set_index("measure").loc["sam"]
    value = {key: one.value("sam") for key, one in found.measured.items()}
    local = [value["global", "own", k] for k in (0, 1, 3)]
    assert row["discrepancy"] == pytest.approx(value["global", "pooled", None] - np.mean(local))
    assert row["sd"] == pytest.approx(np.std(local, ddof=1))
    assert row["own_pooled"] == pytest.approx(np.mean([value["own", "pooled", k] for k in (0, 1)]))
    assert (tmp_path / "a" / "own-pooled-1" / "sharpness.json").is_file()
    assert (tmp_path / "a" / "summary.csv").is_file()
    for options, said in (
        ({"clients": [0]}, "at least two are needed"),
        ({"clients": [0, 77]}, "there is no client 77; there are 6"),
        ({"clients": [0, 1], "weights": {3: weights[0]}}, "weights: of client 3"),
    ):
        with pytest.raises(UserError, match=said):
            diagnostics.flatness_discrepancy(Run(run.path), **asked | options)

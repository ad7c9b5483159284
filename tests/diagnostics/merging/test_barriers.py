"""Barriers: hand values on linear networks, convex models, rounds of runs, files, several runs."""

import numpy as np
import pytest

import diagnostics
import feddual
from diagnostics.merging.measuring import balanced_pairs, barrier
from feddual._lazy import keras
from feddual.errors import UserError
from feddual.functional.layout import assign, read
from tests.helpers import tiny
from tests.reference import softmax


def softmax_regression(seed):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="output")])
    assign(model, np.random.default_rng(seed).normal(0, 3, 16).astype(np.float32))
    return model


def data(features=3, classes=4, count=60):
    rng = np.random.default_rng(5)
    return rng.normal(size=(count, features)).astype(np.float32), rng.integers(0, classes, count)


def test_a_barrier_by_hand():
    t = np.linspace(0, 1, 5)
    found = barrier(np.array([1.0, 3.0, 2.0, 1.0, 2.0]), t)  # the straight line: 1, 1.25, 1.5, 1.75, 2
    assert found == {"barrier": 1.75, "at": 0.25, "middle": 0.5}
    valley = barrier(np.array([4.0, 1.0, 0.0, 1.0, 4.0]), t)
    assert valley == {"barrier": 0.0, "at": 0.0, "middle": -4.0}
    assert np.isnan(barrier(np.array([1.0, np.inf, 2.0]), np.linspace(0, 1, 3))["barrier"])


def test_a_convex_model_has_no_barrier():
    x, y = data()
    models = {name: softmax_regression(seed) for seed, name in enumerate("abc")}
    found = diagnostics.barriers(models, x, y, grid=11, progress=False)
    assert len(found.values) == 3 * 3
    assert (found.values["barrier"] == 0).all()
    whole = found.values.query("layer == 'all'")
    assert (whole["middle"] < -0.1).all()
    # the layer is the whole model: its two lines are the same
    for row in found.values.query("layer == 'output'").itertuples():
        assert row.middle == pytest.approx(
            whole.query("first == @row.first and second == @row.second")["middle"].iloc[0]
        )


def test_lines_and_errors_equal_numpy():
    x, y = data()
    a, b = softmax_regression(0), softmax_regression(1)
    found = diagnostics.barriers({"a": a, "b": b}, x, y, grid=3, layers=False, progress=False)
    losses, errors = [], []
    for t in (0.0, 0.5, 1.0):
        vector = (1 - t) * read(a) + t * read(b)
        logits = x @ vector[:12].reshape(3, 4) + vector[12:]
        losses.append(-np.log(softmax(logits)[np.arange(60), y]).mean())
        errors.append((logits.argmax(1) != y).mean())
    np.testing.assert_allclose(found.lines["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(found.lines["error"], errors, rtol=1e-12)
    row = found.values.iloc[0]
    assert row["error_middle"] == pytest.approx(errors[1] - (errors[0] + errors[2]) / 2)
    assert row["apart"] == pytest.approx(np.linalg.norm(read(b) - read(a)) / np.linalg.norm(read(a)), rel=1e-6)


def two_layers(first, second):
    """y = second · first · x with single numbers: the loss of a line is a polynomial that is known by hand."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="in"),
         keras.layers.Dense(1, use_bias=False, name="out")]
    )  # fmt: skip
    model.compile(loss="mse")
    assign(model, np.array([first, second], np.float32))
    return model


def test_layer_by_layer_on_a_two_layer_linear_net_by_hand():
    """From (1, 2) to (3, -2): products (1 + 2t)(2 - 4t) in all, (1 + 2t) 2 or (1 + 2t) (-2) in the first layer."""
    x, y = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    models = {"a": two_layers(1, 2), "b": two_layers(3, -2)}
    found = diagnostics.barriers(models, x, y, grid=5, progress=False, split="train")
    t = np.linspace(0, 1, 5)
    squares = {
        ("all", ""): ((1 + 2 * t) * (2 - 4 * t)) ** 2,
        ("in", "first"): ((1 + 2 * t) * 2) ** 2,
        ("in", "second"): ((1 + 2 * t) * -2) ** 2,
        ("out", "first"): (2 - 4 * t) ** 2,
        ("out", "second"): (3 * (2 - 4 * t)) ** 2,
    }
    for (layer, end), losses in squares.items():
        lines = found.lines.query("layer == @layer and end == @end")
        np.testing.assert_allclose(lines["loss"], losses, rtol=1e-6, err_msg=f"{layer} {end}")
        row = found.values.query("layer == @layer and end == @end").iloc[0]
        above = losses - ((1 - t) * losses[0] + t * losses[-1])
        assert row["barrier"] == pytest.approx(max(above.max(), 0), abs=1e-5)
        kept = losses[-1] if end == "second" else losses[0]
        rise = losses[2] - (losses[[0, -1]].mean() if layer == "all" else kept)
        assert row["rise"] == pytest.approx(rise, rel=1e-5)


def test_pairs_are_balanced():
    assert balanced_pairs(4, 4) == [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert len(balanced_pairs(5, None)) == 10
    counts = np.bincount(np.ravel(balanced_pairs(10, 10)), minlength=10)
    assert (counts == 2).all()
    assert balanced_pairs(2, 10) == [(0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        for seed in (0, 1):
            experiment = tiny(name=name, partition__alpha=alpha, seed=seed, checkpoint__every=1, checkpoint__keep="all")
            made[name, seed] = feddual.run(experiment, out=folder / f"{name}-{seed}", progress=False)
    return made


@pytest.fixture(scope="module")
def measured(runs):
    settings = {"round": 2, "grid": 3, "images": None, "progress": False}
    return {key: diagnostics.barriers(run, **settings) for key, run in runs.items()}


def test_clients_of_a_round(runs, measured):
    found, clients = measured["skewed", 0], diagnostics.client_models(runs["skewed", 0], 2)
    assert found.models["model"].tolist() == [*clients.names, "global"]
    assert set(found.values["between"]) == {"clients", "client and global"}
    assert found.settings["exact"]
    assert found.layers == ["dense1", "output"]
    x, y = (value for value in feddual_data(runs["skewed", 0]))
    model = runs["skewed", 0].model(2)
    logits = model(x, training=False).numpy()
    row = found.models.set_index("model").loc["global"]
    assert row["error"] == pytest.approx((logits.argmax(1) != y).mean())


def feddual_data(run):
    from diagnostics import subject

    chosen = subject.of_run(run, 2, "train", None)
    return chosen.x, chosen.y


def test_exchanging_a_layer_by_hand(runs, measured):
    """The client's model with the global output layer, through Keras itself, on the client's own data."""
    run, found = runs["skewed", 0], measured["skewed", 0]
    clients = diagnostics.client_models(run, 2)
    model, whole = run.model(2), run._dir.read_checkpoint(2)
    rows = run.partition.client(int(clients.clients[0]))
    from feddual.data import datasets

    raw = datasets.load(run.config.dataset)
    x, y = datasets.preprocess(raw.x_train[rows], "unit"), raw.y_train[rows]

    def loss(vector):
        assign(model, vector)
        return -np.log(softmax(model(x, training=False).numpy())[np.arange(len(y)), y]).mean()

    mixed = clients.weights[0].copy()
    for entry in whole.layout.entries:
        if entry.layer == "output":
            mixed[entry.slice] = clients.after[entry.slice]
    row = found.exchanges.query(
        "client == @clients.names[0] and layer == 'output' and way == 'averaged' and data == 'own'"
    )
    assert row["loss"].iloc[0] == pytest.approx(loss(mixed) - loss(clients.weights[0]), rel=1e-3, abs=1e-6)
    model_row = found.models.set_index("model").loc[clients.names[0]]
    assert model_row["own_loss"] == pytest.approx(loss(clients.weights[0]), rel=1e-5)
    assert model_row["global_own_loss"] == pytest.approx(loss(clients.after), rel=1e-5)


def test_saved_and_loaded_they_are_equal_and_another_measurement_is_refused(runs, measured, tmp_path):
    run, asked = runs["skewed", 0], {"round": 2, "grid": 3, "images": None, "progress": False}
    found = measured["skewed", 0]
    found.save(tmp_path / "b")
    loaded = diagnostics.Barriers.load(tmp_path / "b")
    for name in ("models", "lines", "values", "exchanges"):
        assert getattr(loaded, name).equals(getattr(found, name)), name
    assert loaded.summary.equals(found.summary)
    before = (tmp_path / "b" / "barriers.json").stat().st_mtime_ns
    diagnostics.barriers(run, out=tmp_path / "b", **asked)
    assert (tmp_path / "b" / "barriers.json").stat().st_mtime_ns == before  # read, not measured again
    with pytest.raises(UserError, match=r"holds another measurement:\n  grid: it has 3, asked for 5"):
        diagnostics.barriers(run, out=tmp_path / "b", **asked | {"grid": 5})
    with pytest.raises(UserError, match="weights"):
        diagnostics.barriers(runs["skewed", 1], out=tmp_path / "b", **asked)
    with pytest.raises(UserError, match="no barriers here"):
        diagnostics.Barriers.load(tmp_path)


def test_several_runs_have_intervals_over_seeds_and_paired_differences(measured):
    groups = {name: [measured[name, 0], measured[name, 1]] for name in ("even", "skewed")}
    table = diagnostics.compare_barriers(groups)
    cell = table.query("quantity == 'barrier' and between == 'clients' and layer == 'all'").set_index("experiment")
    means = {
        key: one.values.query("between == 'clients' and layer == 'all'")["barrier"].mean()
        for key, one in measured.items()
    }
    assert cell.loc["even", "mean"] == pytest.approx((means["even", 0] + means["even", 1]) / 2)
    gaps = [means["skewed", seed] - means["even", seed] for seed in (0, 1)]
    assert cell.loc["skewed", "difference"] == pytest.approx(np.mean(gaps))
    half = 12.7062 * np.std(gaps, ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    assert cell.loc["skewed", "difference_high"] - cell.loc["skewed", "difference"] == pytest.approx(half, rel=1e-4)
    assert cell.loc["skewed", "pairs"] == 2
    assert np.isnan(cell.loc["even", "difference"])
    one = diagnostics.compare_barriers({"even": [measured["even", 0]]})
    assert one["low"].isna().all()


def test_global_models_of_seeds(runs):
    found = diagnostics.barriers({"a": runs["even", 0], "b": runs["even", 1]}, grid=5, align=True, progress=False)
    assert set(found.values["between"]) == {"models"}
    by_order = found.values.query("layer == 'all'").set_index("order")["apart"]
    assert by_order["aligned"] < by_order["as trained"]
    assert found.exchanges.empty


def test_what_cannot_be_measured_is_refused(runs):
    x, y = data()
    with pytest.raises(UserError, match="at least two models"):
        diagnostics.barriers({"a": softmax_regression(0)}, x, y)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    with pytest.raises(UserError, match="'b' has another architecture"):
        diagnostics.barriers({"a": softmax_regression(0), "b": other}, x, y)
    with pytest.raises(UserError, match="grid: an odd number"):
        diagnostics.barriers(runs["even", 0], grid=4)
    with pytest.raises(UserError, match="start of round 9 was not kept"):
        diagnostics.barriers(runs["even", 0], round=9)
    with pytest.raises(UserError, match="runs or Keras models, not both"):
        diagnostics.barriers({"a": runs["even", 0], "b": softmax_regression(0)}, x, y)
    with pytest.raises(UserError, match="bn: 'frozen'"):
        diagnostics.barriers(runs["even", 0], bn="frozen")


def test_merged_batch_normalisation_is_recalibrated():
    """Two nets whose inputs differ in scale: interpolated statistics fit neither's mixture, recalibrated ones do."""
    rng = np.random.default_rng(6)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.BatchNormalization(momentum=0.5),
         keras.layers.ReLU(), keras.layers.Dense(3)]
    )  # fmt: skip
    x, y = rng.normal(size=(100, 4)).astype(np.float32), rng.integers(0, 3, 100)
    model(x, training=True)
    other = keras.models.clone_model(model)
    assign(other, read(model))
    other.layers[0].kernel.assign(-model.layers[0].kernel)  # the mean of both has no variance at all
    other.layers[1].moving_mean.assign(-model.layers[1].moving_mean)
    lines = {
        bn: diagnostics.barriers({"a": model, "b": other}, x, y, bn=bn, grid=5, layers=False, progress=False).lines
        for bn in ("recalibrate", "interpolate")
    }
    ends = keras.losses.SparseCategoricalCrossentropy(True)(y, model(x, training=True)).numpy()
    # at t = 1/4 the layer is half as large: batch normalisation takes that back when its statistics are estimated anew
    assert lines["recalibrate"]["loss"][1] == pytest.approx(float(ends), rel=0.02)
    assert abs(lines["interpolate"]["loss"][1] - lines["recalibrate"]["loss"][1]) > 0.01

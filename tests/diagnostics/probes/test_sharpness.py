"""The probe `sharpness`: what it records, and that training is the same with it."""

import numpy as np
import pytest

from diagnostics.landscape import Landscape
from feddual import algorithms, api
from feddual.errors import UserError
from feddual.probes import create, parse
from tests.helpers import tiny

SMALL = {"name": "sharpness", "every": 2, "images": 40, "directions": 2, "lanczos": 4}
CHEAP = SMALL | {"measures": ["sam", "kappa_fn"]}
FILES = ("rounds", "profiles", "layers")


@pytest.mark.parametrize("name", algorithms.names())
def test_training_is_the_same_in_bits_with_the_probe_on(name, tmp_path):
    experiment = tiny(algorithm__name=name, training__rounds=2)
    plain = api.run(experiment, out=tmp_path / "plain", progress=False)
    probed = api.run(experiment, out=tmp_path / "probed", probes=[create(CHEAP)], progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00002.npz"):
        assert (plain.path / file).read_bytes() == (probed.path / file).read_bytes(), file
    assert set(probed.probe("sharpness")["measure"]) == {"gradient_norm", "sam", "kappa_fn"}


def test_it_records_what_a_landscape_of_the_run_measures(tmp_path):
    run = api.run(tiny(), out=tmp_path / "run", probes=[create(SMALL)], progress=False)
    frame = run.probe("sharpness")
    assert frame["round"].unique().tolist() == [2]
    again = Landscape(run, round=2, images=40).sharpness(
        ["kappa_fn", "profile", "lambda_fn"], directions=2, lanczos=4, progress=False
    )
    np.testing.assert_allclose(frame["value"], again.table["value"], rtol=1e-4)
    assert frame["measure"].tolist() == ["gradient_norm", "kappa_fn", "r_tau", "lambda_fn"]


def test_killed_and_resumed_the_files_are_the_same(tmp_path):
    settings = create(SMALL | {"every": 1})
    whole = api.run(tiny(), out=tmp_path / "whole", probes=[settings], progress=False)
    rounds = api.rounds(tiny(), out=tmp_path / "cut", probes=[settings])
    for _ in range(3):
        next(rounds)
    rounds.close()
    (tmp_path / "cut/checkpoints/round-00003.npz").unlink(missing_ok=True)
    cut = api.run(tiny(), out=tmp_path / "cut", probes=[settings], resume=True, progress=False)
    for name in FILES:
        file = f"probes/sharpness/{name}.jsonl"
        assert (cut.path / file).read_bytes() == (whole.path / file).read_bytes(), file


def test_a_budget_of_passes_is_kept(tmp_path):
    run = api.run(tiny(), out=tmp_path / "run", probes=[create(SMALL | {"budget": 20})], progress=False)
    frame = run.probe("sharpness")
    assert set(frame["measure"]) == {"gradient_norm", "kappa_fn"}  # 3 passes for each direction
    assert frame["passes"].sum() <= 20


def test_bad_settings_are_refused_before_training():
    assert parse("sharpness@every=30,measures=sam+kappa_fn") == {
        "name": "sharpness", "every": 30, "measures": ["sam", "kappa_fn"]
    }  # fmt: skip
    with pytest.raises(UserError, match="measures: sharp unknown"):
        create({"name": "sharpness", "measures": "sharp"})
    with pytest.raises(UserError, match="images, directions and lanczos must be at least 1, got images=0"):
        create({"name": "sharpness", "images": 0})
    with pytest.raises(UserError, match="budget: the loss and its gradient alone"):
        create({"name": "sharpness", "budget": 1})


def test_a_model_without_sharpness_is_passed_over(tmp_path, monkeypatch):
    def diverged(*args, **options):
        raise UserError("the model has weights that are not finite. Has training diverged?")

    monkeypatch.setattr(Landscape, "sharpness", diverged)
    with pytest.warns(UserWarning, match="probe sharpness, round 2: the model has weights that are not finite"):
        run = api.run(tiny(), out=tmp_path / "run", probes=[create(SMALL)], progress=False)
    assert run.summary()["rounds"] == 3

"""The record layer: what identifies an experiment, tables that give back what they were given, slim runs."""

import json

import numpy as np
import pytest

import feddual
import figures.report
from diagnostics.surfaces.export import export
from diagnostics.surfaces.results import Surface
from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.collect import collect
from feddual.records.identity import by_experiment, changes, differences, flat, identity
from feddual.records.run_dir import Checkpoint, RunDir, atomic_write
from feddual.records.slim import SlimRun, open_run, open_slim
from feddual.records.study_dir import StudyDir, all_runs
from feddual.records.tables import ArrayTable, RowTable, arrays_bytes, rows_bytes
from tests.figures.test_figures import make_run, quadratic_run, write_study

# --- identity


def resolved(**overrides):
    return config.resolve("paper-fmnist", {key.replace("__", "."): v for key, v in overrides.items()}).to_dict()


def test_place_pace_and_seed_do_not_make_another_experiment():
    same = resolved(seed=3, name="other", runtime__workers=2, checkpoint__every=5, evaluation__batch_size=50)
    assert identity(same) == identity(resolved())
    longer = identity(resolved(training__rounds=200))
    assert longer != identity(resolved())
    assert longer.without_rounds == identity(resolved()).without_rounds


def test_a_config_from_before_there_were_server_optimizers_is_the_same_experiment():
    old = resolved()
    del old["training"]["server"]
    for key in ("memory", "control", "correction"):
        del old["algorithm"][key]
    again = config.resolve(old).to_dict()
    assert again == resolved()
    assert identity(again) == identity(resolved())
    assert differences(old) == {}
    assert identity(resolved(training__server__name="ema")) != identity(resolved())


def test_runs_of_one_experiment_come_together_by_seed():
    configs = {"b": resolved(seed=2), "x": resolved(training__learning_rate=0.5), "a": resolved(seed=0)}
    assert by_experiment(configs) == [["a", "b"], ["x"]]


def test_changes_name_dotted_keys_and_leave_out_what_may_change_on_resuming():
    found = changes(resolved(), resolved(seed=1, training__rounds=7, runtime__workers=4))
    assert found == {"seed": (0, 1), "training.rounds": (180, 7)}


def test_differences_are_from_the_papers_experiment():
    assert differences(resolved(seed=4, training__rounds=5, training__learning_rate=0.5)) == {
        "training.learning_rate": 0.5
    }
    smoothed = resolved(training__server={"name": "ema", "decay": 0.5})
    assert differences(smoothed) == {"training.server.name": "ema", "training.server.decay": 0.5}
    assert flat({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}


# --- tables


def test_rows_are_read_back_as_they_were(tmp_path):
    rows = {
        "one": [{"x": 1, "y": 0.1, "gone": None}, {"x": 2, "y": float("inf"), "deep": {"a": [1, 2.5, None]}}],
        "two": [{"mixed": 1, "flag": True}, {"mixed": 1.0, "text": "1"}],
    }
    (tmp_path / "rows").write_bytes(rows_bytes([{"run": run, **row} for run, some in rows.items() for row in some]))
    table = RowTable(tmp_path / "rows")
    for run, some in rows.items():
        assert json.dumps([dict(sorted(row.items())) for row in table.of(run)]) == json.dumps(
            [dict(sorted(row.items())) for row in some]
        )
    assert table.of("three") == []
    assert np.isnan(RowTable(write(tmp_path / "nan", rows_bytes([{"run": "a", "v": np.nan}]))).of("a")[0]["v"])


def write(path, data):
    path.write_bytes(data)
    return path


def test_arrays_are_read_back_bit_for_bit(tmp_path):
    noise = np.random.default_rng(0)
    arrays = {
        "single": noise.normal(size=(7, 5)).astype(np.float32), "double": noise.normal(size=3),
        "flags": noise.random((2, 2)) > 0.5, "counts": np.arange(4, dtype=np.uint16), "none": np.zeros((3, 0)),
    }  # fmt: skip
    table = ArrayTable(write(tmp_path / "arrays", arrays_bytes({("run", "item"): {**arrays, "about": "ö"}})))
    found = table.of("run", "item")
    assert found.pop("about") == "ö"
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
    assert table.items("run") == ["item"]
    assert table.of("run", "other") == {}


def test_a_damaged_table_is_named(tmp_path):
    (tmp_path / "runs.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"runs\.parquet: damaged"):
        all_runs(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder would be")
    with pytest.raises(UserError, match=r"out: cannot write to .*taken/x\.md \(.+\); choose another folder"):
        atomic_write(tmp_path / "taken" / "x.md", b"")


# --- slim studies


@pytest.fixture
def study(tmp_path):
    """A study of two runs, one with a surface, gradient norms and weights, collected beside it."""
    write_study(tmp_path / "study", "mine", experiments=["paper-fmnist"])
    quadratic_run(tmp_path / "study" / "fedavg-s0", "fedavg", {}, 0, 1.0)
    run = make_run(tmp_path / "study" / "fedavg-s1", "fmnist", "fedavg", 1, rounds=3)
    layout = feddual.functional.layout.Layout([])
    run.write_checkpoint(Checkpoint(3, np.arange(4, dtype=np.float32), layout, {"slot": np.ones(2)}, {}))
    probe = RunDir(run.probe_path("gradient-norms"))
    probe.write_json("facts.json", {"layers": ["a"], "sizes": [1]})
    row = {"round": 1, "clients": [4], "weights": [1.0], "by_client": {"client_at_global": [[2.0]]}, "of_all": {}}
    probe.append("rounds", [row])
    collect([tmp_path / "study"], tmp_path / "slim")
    collect([run.path], tmp_path / "slim", weights=True)
    return tmp_path


def test_a_slim_run_is_read_like_its_directory(study):
    whole, small = (feddual.open(study / folder / "fedavg-s1") for folder in ("study", "slim"))
    assert isinstance(open_run(small.path), SlimRun)
    assert small.config == whole.config
    assert small.checkpoints == [3]
    assert (
        RunDir(whole.path).read_checkpoint(3).weights.tobytes()
        == open_run(small.path).read_checkpoint(3).weights.tobytes()
    )
    assert small.probe("gradient-norms").equals(whole.probe("gradient-norms"))
    with pytest.raises(UserError, match="no probe 'cka' recorded here"):
        small.probe("cka")
    with pytest.raises(UserError, match="no checkpoint of round 2; there are: 3"):
        small.weights(2)
    with pytest.raises(UserError, match="not a run directory"):
        feddual.open(study / "slim" / "fedavg-s7")
    table = feddual.compare(whole.path, small.path)
    assert table["accuracy"].iloc[0] == pytest.approx(table["accuracy"].iloc[1])


def test_a_slim_surface_loads_from_where_it_was(study):
    (folder, _) = open_run(study / "slim" / "fedavg-s0").surfaces()
    small, whole = Surface.load(folder), Surface.load(study / "study" / folder.relative_to(study / "slim"))
    assert small.meta == whole.meta
    np.testing.assert_array_equal(small.loss, whole.loss.astype(np.float32))
    assert (small.class_loss.shape, whole.class_loss.shape) == ((*small.loss.shape, 0), (*small.loss.shape, 10))
    assert "class" not in export(small, "csv", study / "points.csv").read_text()
    with pytest.raises(UserError, match="not a surface"):
        Surface.load(folder.with_name("pair-9"))


def test_a_slim_study_opens_and_reports(study):
    opened = feddual.open_study(study / "slim")
    assert sorted(run.path.name for runs in opened.runs.values() for run in runs) == ["fedavg-s0", "fedavg-s1"]
    assert len(opened.table)
    for source in ("slim", "slim/fedavg-s1"):
        assert figures.report.write(study / source, study / "report.html").stat().st_size > 10_000


def test_collecting_again_adds_and_replaces_and_keeps_weights(study):
    make_run(study / "more" / "fedavg-s2", "fmnist", "fedavg", 2, rounds=3)
    make_run(study / "more" / "fedavg-s1", "fmnist", "fedavg", 1, rounds=4)
    collect([study / "more"], study / "slim")
    assert StudyDir(study / "slim").run_names() == ["fedavg-s0", "fedavg-s1", "fedavg-s2"]
    again = open_run(study / "slim" / "fedavg-s1")
    assert (again.rounds_done(), again.checkpoint_rounds()) == (4, [3])
    assert len(open_slim(study / "slim").arrays("surfaces").items("fedavg-s0")) == 2


def test_a_run_directory_comes_before_a_slim_copy(study):
    make_run(study / "slim" / "fedavg-s1", "fmnist", "fedavg", 1, rounds=5)
    assert [run.rounds_done() for run in all_runs(study / "slim")] == [180, 5]


def test_the_recorded_results_stay_small():
    files = [path for path in figures.RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 150
    assert sum(path.stat().st_size for path in files) <= 8e6
    kept = [run.path.relative_to(figures.RESULTS) for run in all_runs(figures.RESULTS) if run.checkpoint_rounds()]
    assert len(kept) == 5

"""Studies: names, resuming, failures, tuning on held-out data."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from feddual.cli import app
from feddual.data import datasets
from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.collect import collect
from feddual.records.slim import open_slim
from feddual.studies import grid as study
from feddual.studies import tuning
from feddual.training.engine import worker_view
from feddual.training.workbench import workbench
from tests.helpers import TINY, tiny


@pytest.fixture
def grid(tmp_path):
    """A study of four runs of a second."""
    experiment = tmp_path / "tiny.yaml"
    experiment.write_text(yaml.safe_dump(TINY))
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "experiments": [str(experiment)],
                "seeds": 2,
                "rows": {
                    "fedavg": {"algorithm.name": "fedavg"},
                    "fedprox": {"algorithm.name": "fedprox"},
                },
                "tune": {
                    "rounds": 2,
                    "held_out": 0.2,
                    "grid": {"training.learning_rate": [0.001, 0.05]},
                    "rows": {"fedprox": {"algorithm.proximal_weight": [0.1, 0.4]}},
                },
            }
        )
    )
    return path


def run(*arguments):
    result = CliRunner().invoke(app, ["study", *map(str, arguments), "--executor", "inline", "--json"])
    return result, json.loads(result.stdout) if result.stdout.startswith("{") else None


def test_shipped_studies_are_valid():
    for name in study.study_names():
        cells = study.cells(study.load(name, seeds=1))
        assert len({cell.name for cell in cells}) == len(cells)
        for cell in cells:
            cell.experiment({})


def test_names_say_what_differs():
    loaded = study.load("sweep-alpha")
    assert "fedavg-alpha=0.01-s0" in [cell.name for cell in study.cells(loaded)]
    assert "cifar100-published-s1" in [cell.name for cell in study.cells(study.load("fidelity"))]
    rows = {cell.row for cell in study.cells(study.load("paper-fmnist"), ["fedavg-nk", "moon"])}
    assert rows == {"fedavg-nk", "moon"}
    assert [cell.name for cell in study.cells(study.load("variance", seeds=1, draws="2"), ["feddual"])] == [
        "cifar10-feddual-s0", "cifar100-feddual-s0", "cifar10-feddual-d1-s0", "cifar100-feddual-d1-s0",
    ]  # fmt: skip
    assert "cifar10-mean-d4-s1" in [cell.name for cell in study.cells(study.load("fidelity"))]


def drawn(**keys):
    made = study.load({"name": "x", "experiments": ["quickstart"], "rows": {"a": {"algorithm.name": "fedavg"}}, **keys})
    return {cell.name: (cell.experiment({}).partition.seed, cell.experiment({}).seed) for cell in study.cells(made)}


def test_runs_are_repeated_over_seeds_and_over_draws_of_the_clients():
    own = 42  # the experiment's own draw
    assert drawn(seeds=2) == {"a-s0": (own, 0), "a-s1": (own, 1)}
    crossed = {"a-s0": (own, 0), "a-d1-s0": (own + 1, 0), "a-s1": (own, 1), "a-d1-s1": (own + 1, 1)}
    assert drawn(seeds=2, draws=2) == crossed
    assert drawn(seeds=2, draws="each") == {"a-s0": (own, 0), "a-d1-s1": (own + 1, 1)}
    assert study.group("a-d1-s1") == study.group("a-s0") == "a"


def test_what_has_no_draw_says_so():
    with pytest.raises(UserError, match=r"draws: the partition .* draws nothing"):
        drawn(rows={"a": {"partition.name": "tests.helpers:natural_order"}}, draws=2)
    with pytest.raises(UserError, match="draws"):
        drawn(draws="some")


def test_it_goes_on_where_it_stopped_and_says_what_came_out(grid, tmp_path):
    out = tmp_path / "out"
    result, first = run(grid, "--seeds", 1, "--out", out)
    assert result.exit_code == 0
    assert [(row["row"], row["seeds"]) for row in first["rows"]] == [("fedavg", 1), ("fedprox", 1)]
    before = (out / "fedavg-s0" / "metrics.jsonl").stat().st_mtime_ns
    _, second = run(grid, "--out", out)
    assert (out / "fedavg-s0" / "metrics.jsonl").stat().st_mtime_ns == before
    assert [row["seeds"] for row in second["rows"]] == [2, 2]
    assert second["rows"][0]["std"] > 0
    assert yaml.safe_load((out / "study.yaml").read_text())["name"] == "mine"


def test_a_failed_cell_is_recorded_and_the_rest_goes_on(grid, tmp_path):
    values = yaml.safe_load(grid.read_text())
    values["rows"] = {"broken": {"model.name": "tests.helpers:softmax_model"}, **values["rows"]}
    grid.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    result, facts = run(grid, "--seeds", 1, "--out", out)
    assert result.exit_code == 1
    assert list(facts["failed"]) == ["broken-s0"]
    assert "softmax_model" in (out / "failed" / "broken-s0.txt").read_text()
    assert [row["row"] for row in facts["rows"]] == ["fedavg", "fedprox"]


def test_a_name_that_stands_for_nothing_is_told_before_anything_runs(grid, tmp_path):
    values = yaml.safe_load(grid.read_text())
    values["rows"] = {"broken": {"model.name": "tests.helpers:no_such_model"}, **values["rows"]}
    grid.write_text(yaml.safe_dump(values))
    result, _ = run(grid, "--seeds", 1, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "model.name: module 'tests.helpers' has no 'no_such_model'" in result.stderr


def test_another_study_in_the_folder_is_refused(grid, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.yaml").write_text("name: other\n")
    result, _ = run(grid, "--out", out)
    assert result.exit_code == 2
    assert "'other'" in result.stderr
    with pytest.raises(UserError, match="--algorithms: fedsgd not in the study"):
        study.cells(study.load(grid), ["fedsgd"])
    with pytest.raises(UserError, match="does not say what to tune"):
        tuning.trials(study.load("fidelity"))


def test_tuning_chooses_on_held_out_data(grid, tmp_path):
    out = tmp_path / "out"
    result, facts = run(grid, "--seeds", 1, "--tune", "--out", out)
    assert result.exit_code == 0, result.stderr
    chosen = yaml.safe_load((out / "tuned.yaml").read_text())
    assert list(chosen) == ["fedavg-chosen", "fedprox-chosen"]
    assert len(chosen["fedavg-chosen"]["trials"]) == 2
    assert len(chosen["fedprox-chosen"]["trials"]) == 4
    for entry in chosen.values():
        assert entry["accuracy"] == max(entry["trials"].values())
    assert sorted(path.name.split("-")[0] for path in out.glob("*-s0")) == ["fedavg", "fedprox"]
    assert [row["row"].split("=")[0] for row in facts["rows"]] == [f"{row}-learning_rate" for row in chosen]
    trial = config.resolve(yaml.safe_load((out / "tuning/fedavg-learning_rate=0.05-s0/config.yaml").read_text()))
    assert (trial.evaluation.held_out, trial.training.rounds) == (0.2, 2)


def staged(grid, **more):
    """The study with trials of four rounds that are looked at after two."""
    values = yaml.safe_load(grid.read_text())
    values["tune"] |= {"rounds": 4, "first": 0.5, "behind": 0.0, "only": ["fedavg"], **more}
    values["tune"]["grid"] = {"training.learning_rate": [0.001, 1e-7, 0.01, 2e-7]}
    grid.write_text(yaml.safe_dump(values))
    return values


def curves(out):
    return {
        path.parent.name: [json.loads(line)["accuracy"] for line in path.read_text().splitlines()]
        for path in out.glob("tuning/*/metrics.jsonl")
    }


def test_what_is_behind_in_every_repetition_stops_early_and_the_default_goes_on(grid, tmp_path):
    values = staged(grid, repeats=2)
    out = tmp_path / "out"
    asked = (grid, "--seeds", 1, "--tune", "--out", out)
    assert run(*asked)[0].exit_code == 0
    found = curves(out)
    rates = ("0.001", "1e-07", "0.01", "2e-07")
    early = {rate: [found[f"fedavg-learning_rate={rate}{one}"][1] for one in ("-s0", "-d1-s1")] for rate in rates}
    leader = max(early.values(), key=sum)
    dropped = {rate for rate, scores in early.items() if all(a > b for a, b in zip(leader, scores, strict=True))}
    assert dropped - {"0.001"}  # otherwise this shows nothing
    for rate in rates:
        wanted = 2 if rate in dropped and rate != "0.001" else 4
        assert {len(found[f"fedavg-learning_rate={rate}{one}"]) for one in ("-s0", "-d1-s1")} == {wanted}, rate
    entry = yaml.safe_load((out / "tuned.yaml").read_text())["fedavg-chosen"]
    whole = {f"training.learning_rate={rate}" for rate in map(float, rates) if f"{rate:g}" not in dropped - {"0.001"}}
    assert set(entry["trials"]) == whole  # nothing that was cut short is chosen from
    before = curves(out)
    assert run(*asked)[0].exit_code == 0
    assert curves(out) == before
    trials = tuning.trials(study.load({**values, "name": "mine"}))
    draws = {(cell.overrides["seed"], cell.experiment({}).partition.seed) for cell in trials}
    assert len(draws) == 2  # the second repetition has clients of its own


def test_so_many_settings_go_on_and_no_more(grid, tmp_path):
    staged(grid, behind=1.0, keep=1)
    out = tmp_path / "out"
    assert run(grid, "--seeds", 1, "--tune", "--out", out)[0].exit_code == 0
    found = curves(out)
    best = max(found, key=lambda name: found[name][1])
    assert {name for name, curve in found.items() if len(curve) == 4} == {best, "fedavg-learning_rate=0.001-s0"}


@pytest.mark.parametrize("collected", [False, True], ids=["its run is there", "a line is left of it"])
def test_a_trial_that_was_cut_short_is_continued(grid, tmp_path, collected):
    values = staged(grid)
    short = {**values, "tune": values["tune"] | {"rounds": 2, "first": None}}
    out = tmp_path / "out"
    asked = (grid, "--seeds", 1, "--tune", "--out")
    grid.write_text(yaml.safe_dump(short))
    assert run(*asked, out)[0].exit_code == 0
    assert {len(curve) for curve in curves(out).values()} == {2}
    if collected:
        collect([out], tmp_path / "slim")
        out = tmp_path / "slim"
    grid.write_text(yaml.safe_dump({**values, "tune": values["tune"] | {"first": None}}))
    assert run(*asked, out)[0].exit_code == 0
    assert {len(curve) for curve in curves(out).values()} == {4}
    entry = yaml.safe_load((out / "tuned.yaml").read_text())["fedavg-chosen"]
    assert len(entry["trials"]) == 4
    late = {name.split("=")[1].removesuffix("-s0"): curve[-1] for name, curve in curves(out).items()}
    assert entry["accuracy"] == max(late.values())  # the last tenth of four rounds is the fourth


def test_one_setting_may_be_chosen_for_all_experiments(grid, tmp_path):
    values = staged(grid, first=None, rounds=2)
    (one,) = values["experiments"]
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({**TINY, "name": "other", "partition": {"name": "iid", "num_clients": 6}}))
    grid.write_text(yaml.safe_dump({**values, "experiments": [one, str(other)]}))
    out = tmp_path / "out"
    assert run(grid, "--seeds", 1, "--tune", "--out", out)[0].exit_code == 0
    entries = yaml.safe_load((out / "tuned.yaml").read_text()).values()
    joint = [entry for entry in entries if entry["block"] == "joint"]
    assert len(joint) == 2
    assert joint[0]["settings"] == joint[1]["settings"]
    total = {name: sum(entry["trials"][name] for entry in joint) for name in joint[0]["trials"]}
    assert total[f"training.learning_rate={joint[0]['settings']['training.learning_rate']}"] == max(total.values())


def test_recorded_trials_are_not_run_again(grid, tmp_path):
    out, slim = tmp_path / "out", tmp_path / "slim"
    asked = (grid, "--seeds", 1, "--tune", "--algorithms", "fedavg")
    assert run(*asked, "--out", out)[0].exit_code == 0
    collect([out], slim)
    assert run(*asked, "--out", slim)[0].exit_code == 0  # a slim study goes on, as on another machine
    assert not (slim / "tuning").exists()
    first, again = (yaml.safe_load((folder / "tuned.yaml").read_text())["fedavg-chosen"] for folder in (out, slim))
    assert again["settings"] == first["settings"]
    assert again["accuracy"] == pytest.approx(first["accuracy"], rel=1e-3)
    values = yaml.safe_load(grid.read_text())
    values["tune"] |= {"grid": {"training.learning_rate": [0.001, 0.05, 0.02]}, "first": 0.5}
    grid.write_text(yaml.safe_dump(values))
    assert run(*asked, "--out", slim)[0].exit_code == 0
    assert [path.name for path in (slim / "tuning").iterdir()] == ["fedavg-learning_rate=0.02-s0"]
    collect([slim], tmp_path / "both")
    assert len(open_slim(tmp_path / "both").trials) == 3
    collect([slim], slim)
    assert len(open_slim(slim).trials) == 3


def test_a_row_may_follow_the_choice_of_another(grid, tmp_path):
    values = yaml.safe_load(grid.read_text())
    values["rows"]["fedbn"] = {"algorithm.name": "fedbn"}
    values["tune"] |= {"grid": {"training.learning_rate": [0.05]}, "rows": {"fedbn": "fedavg"}}
    values["tune"]["only"] = ["fedavg", "fedbn"]
    grid.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    alone, _ = run(grid, "--seeds", 1, "--tune", "--algorithms", "fedbn", "--out", out)
    assert alone.exit_code == 2
    assert "fedbn takes the choice of fedavg, which has not been tuned yet" in alone.stderr
    assert run(grid, "--seeds", 1, "--tune", "--out", out)[0].exit_code == 0
    assert [path.name for path in (out / "tuning").iterdir()] == ["fedavg-learning_rate=0.05-s0"]
    assert (out / "fedbn-chosen-learning_rate=0.05-s0").is_dir()
    assert run(grid, "--seeds", 1, "--tune", "--algorithms", "fedbn", "--out", out)[0].exit_code == 0
    assert yaml.safe_load((out / "tuned.yaml").read_text())["fedbn-chosen"]["settings"] == {
        "training.learning_rate": 0.05
    }


def test_choices_of_other_rows_stay_and_a_key_of_the_row_may_be_chosen(grid, tmp_path):
    values = yaml.safe_load(grid.read_text())
    values["rows"]["fedprox"]["algorithm.proximal_weight"] = 0.2
    values["tune"]["grid"] = {"training.learning_rate": [0.05]}
    grid.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    assert run(grid, "--seeds", 1, "--tune", "--algorithms", "fedavg", "--out", out)[0].exit_code == 0
    assert run(grid, "--seeds", 1, "--tune", "--algorithms", "fedprox", "--out", out)[0].exit_code == 0
    chosen = yaml.safe_load((out / "tuned.yaml").read_text())
    assert list(chosen) == ["fedavg-chosen", "fedprox-chosen"]
    weight = chosen["fedprox-chosen"]["settings"]["algorithm.proximal_weight"]
    assert weight in (0.1, 0.4)
    (folder,) = out.glob("fedprox-chosen-*-s0")
    run_with = yaml.safe_load((folder / "config.yaml").read_text())
    assert run_with["algorithm"]["proximal_weight"] == weight


def test_a_finished_cell_of_other_settings_is_not_taken_for_the_asked_one(grid, tmp_path):
    out = tmp_path / "out"
    some = ("--seeds", 1, "--algorithms", "fedavg", "--out", out)
    rounds = TINY["training"]["rounds"]
    assert run(grid, *some, "--set", f"training.rounds={rounds + 1}")[0].exit_code == 0
    assert run(grid, *some, "--set", f"training.rounds={rounds + 2}")[0].exit_code == 0  # goes on
    assert len((out / "fedavg-s0" / "metrics.jsonl").read_text().splitlines()) == rounds + 2
    before = (out / "fedavg-s0" / "metrics.jsonl").read_bytes()
    result, facts = run(grid, *some, "--set", f"training.rounds={rounds + 2}", "--set", "training.learning_rate=0.3")
    assert result.exit_code == 1
    assert "training.learning_rate: the run has" in facts["failed"]["fedavg-s0"]
    assert (out / "fedavg-s0" / "metrics.jsonl").read_bytes() == before


def test_rows_are_meant_by_name_first():
    rows = {cell.row for cell in study.cells(study.load("paper-fmnist"), ["feddual"])}
    assert rows == {"feddual"}
    assert len({cell.row for cell in study.cells(study.load("fidelity"), ["feddual"])}) > 3


def test_held_out_rows_are_stratified_and_leave_the_clients():
    labels = np.repeat(np.arange(5), 40)
    kept, held = datasets.held_out_rows(labels, 0.1)
    assert sorted([*kept, *held]) == list(range(200))
    assert np.bincount(labels[held]).tolist() == [4] * 5
    bench = workbench(worker_view(tiny(evaluation__held_out=0.25)))
    assert len(bench.federation.dataset.y_train) == 180
    assert len(bench.federation.test()[1]) == 60
    assert bench.federation.partition.sizes.sum() == 180


def test_the_test_part_stays_unopened(tmp_path, monkeypatch):
    """A file whose test arrays cannot be read serves the held-out protocol."""
    images = np.zeros((20, 8, 8, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(20)
    labels = np.arange(20) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    known = datasets.content_hash(images, labels)[:32] + "0" * 32  # of a test part that is not this one
    monkeypatch.setitem(datasets.FINGERPRINTS, "cifar10", known)
    section = config.section_class("dataset", {"name": "cifar10"})()
    assert len(datasets.load(section, str(tmp_path), with_test=False).y_test) == 0
    with pytest.raises(UserError, match="does not hold the original"):
        datasets.load(section, str(tmp_path))
    few = {"dataset": {"name": "cifar10"}, "partition": {"name": "iid", "num_clients": 10}, "model": {"name": "mlp"}}
    few |= {"algorithm": {"name": "fedavg"}, "runtime": {"data_dir": str(tmp_path)}}
    bench = workbench(worker_view(config.resolve(few, {"evaluation.held_out": 0.5})))
    assert len(bench.federation.test()[1]) == 10  # of the twenty training images

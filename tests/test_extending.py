"""docs/extending.md: every file on the page is written, every command run, in order, in an empty folder."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import diagnostics.__main__
import feddual
import feddual.cli
import figures.__main__
from feddual.records.run_dir import RunDir

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(python|sh) ?(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
APPS = {
    "feddual": feddual.cli.app,
    "python -m figures": figures.__main__.app,
    "python -m diagnostics": diagnostics.__main__.app,
}


def files() -> dict[str, str]:
    """The page's files by name."""
    return {name: text for kind, name, text in BLOCK.findall(PAGE.read_text()) if kind == "python"}


def execute(command: str) -> str:
    """A command of the page, in this process: TensorFlow is imported and configured once."""
    for start, app in APPS.items():
        if command.startswith(f"{start} "):
            result = CliRunner().invoke(app, shlex.split(command.removeprefix(start)))
            assert result.exit_code == 0, f"{command}\n{result.output}\n{result.exception!r}"
            return result.output
    words = shlex.split(command)
    assert words[0] == "python", f"{command}: the test does not know this command"
    runpy.run_path(words[1], run_name="__main__")
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything on the page, done once; the page's modules are forgotten afterwards."""
    place = tmp_path_factory.mktemp("extending")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        for kind, name, text in BLOCK.findall(PAGE.read_text()):
            if kind == "python":
                (place / name).write_text(text)
            else:
                for command in text.strip().splitlines():
                    execute(command)
        yield place
    for name in files():
        sys.modules.pop(Path(name).stem, None)


def test_the_algorithm_trains_keeps_its_state_and_is_resumed(folder):
    run = feddual.open(folder / "runs/fedavgm")
    assert run.config.algorithm.server_momentum == 0.5
    assert run.metrics["round"].tolist() == [1, 2, 3]
    velocity = RunDir(run.path).read_checkpoint(3).server_slots["velocity"]
    assert np.linalg.norm(velocity) == pytest.approx(run.metrics["velocity_norm"].iloc[-1], rel=1e-6)
    plain = feddual.open(folder / "runs/fedavg")
    assert plain.metrics["accuracy"].iloc[0] == run.metrics["accuracy"].iloc[0]  # the first velocity is the update
    assert plain.metrics["loss"].iloc[1] != run.metrics["loss"].iloc[1]


def test_the_algorithm_answers_for_its_fedavg_case(folder, monkeypatch):
    from fedavgm import FedAvgM

    monkeypatch.chdir(folder)
    overrides = {"algorithm.name": "fedavgm:FedAvgM", "training.rounds": 2, **FedAvgM.fedavg_case()}
    run = feddual.run("quickstart", overrides, out=folder / "case", progress=False)
    fedavg = feddual.open(folder / "runs/fedavg").metrics
    np.testing.assert_allclose(run.metrics["loss"], fedavg["loss"].iloc[:2], rtol=1e-4)


def test_the_probe_records_what_is_forgotten_and_changes_nothing(folder):
    run = feddual.open(folder / "runs/probed")
    table = run.probe("forgetting")
    assert set(table["round"]) == {1, 2}
    assert table["absent_classes"].between(1, 9).all()
    assert table[["before", "after"]].stack().between(0, 1).all()
    assert table["after"].mean() < 0.05  # a few epochs on some classes, and the others are gone
    plain = feddual.open(folder / "runs/fedavg")
    assert run.metrics["loss"].tolist() == plain.metrics["loss"].tolist()[:2]


def test_the_figure_is_drawn_from_the_runs_that_are_there(folder, monkeypatch):
    assert {path.name for path in (folder / "out").glob("update_norms.*")} == {
        "update_norms.png",
        "update_norms.pdf",
        "update_norms.html",
    }
    monkeypatch.chdir(folder)
    drawing = figures.draw("update_norms:draw", "runs", "again")
    assert set(drawing.frame["run"]) >= {"fedavg", "fedavgm", "probed"}


def test_the_page_imports_only_what_is_public():
    imported = re.findall(r"^from (\S+) import (.+)|^import (\S+)", "".join(files().values()), re.MULTILINE)
    names = [part for found in imported for text in found for part in re.split(r"[., ]+", text)]
    assert {"feddual", "figures", "Algorithm", "Probe", "charts"} <= set(names)
    assert not [name for name in names if name.startswith("_")]


def test_the_partition_is_the_users_own(folder):
    run = feddual.open(folder / "runs/even-odd")
    assert run.config.partition.seed == 42  # of the file, since the function takes one
    even, odd = run.histograms[:5], run.histograms[5:]
    assert even[:, ::2].sum() + odd[:, 1::2].sum() == run.histograms.sum()
    with pytest.raises(feddual.UserError, match=r"partition\.alpha: unknown key; allowed: name, num_clients, seed"):
        feddual.resolve(run.config, {"partition.alpha": 0.1})


def test_data_and_model_are_the_users_own(folder):
    digits, residual = (feddual.open(folder / "runs" / name) for name in ("digits", "residual"))
    assert digits.config.dataset.path == "digits.npz"
    assert digits.histograms.sum() == 1437
    assert residual.weights()["dense/kernel"].shape == (4 * 4 * 4, 10)
    assert (residual.path / "surfaces").is_dir()


def test_all_of_it_together_in_worker_processes(folder):
    run = feddual.open(folder / "runs/mine")
    assert run.config.runtime.executor == "processes"
    assert run.metrics["velocity_norm"].notna().all()
    assert len(run.probe("forgetting")) > 0

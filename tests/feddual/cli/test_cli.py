import json
import os
import stat

import pytest
import yaml
from typer.testing import CliRunner

from feddual.cli import app
from tests.helpers import TINY

runner = CliRunner()


@pytest.fixture
def tiny_file(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return "tiny.yaml"


def call(*arguments, code=0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def test_run_then_compare_export_and_resume(tiny_file, tmp_path):
    result = call("run", tiny_file, "--out", "runs/a")
    assert "round 3/3" in result.stderr
    assert "clients/s" in result.stderr
    assert "left" in result.stderr
    assert "finished: 3 rounds, accuracy" in result.stdout
    summary = json.loads(call("run", tiny_file, "--out", "runs/b", "--set", "seed=1", "--json").stdout)
    assert summary["seed"] == 1
    assert "finished" in call("run", tiny_file, "--out", "runs/a", "--resume").stdout
    table = call("compare", "runs/a", "runs/b").stdout
    assert "runs/a" in table
    assert "runs/b" in table
    assert len(json.loads(call("compare", "runs/a", "runs/b", "--json").stdout)) == 2
    assert json.loads(call("export", "runs/a", "--to", "keras", "--json").stdout) == ["runs/a/model.keras"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (["partition.alpha=0"], "partition.alpha"),
        (["partition.alpha=-1"], "partition.alpha"),
        (["training.clients_per_round=7"], "training.clients_per_round"),
        (["dataset.name=imagenet"], "dataset.name"),
        (["model.name=resnet"], "model.name"),
        (["training.speed=3"], "training.speed"),
        (["training.learning_rate=.nan"], "training.learning_rate"),
        (["training.rounds=-3"], "training.rounds"),
        (["training.rounds=many"], "training.rounds"),
        (["dataset.path=missing.npz"], "missing.npz"),
    ],
)
def test_bad_input_is_told_in_a_few_lines_and_changes_nothing(settings, field, tiny_file, tmp_path):
    arguments = [part for setting in settings for part in ("--set", setting)]
    result = call("run", tiny_file, "--out", "runs/new", *arguments, code=2)
    assert field in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) <= 4
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs" / "new").exists()


def test_existing_runs_are_left_alone(tiny_file, tmp_path):
    call("run", tiny_file, "--out", "runs/a")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert "already holds a run" in call("run", tiny_file, "--out", "runs/a", code=2).stderr
    assert (
        "another experiment" in call("run", tiny_file, "--out", "runs/a", "--resume", "--set", "seed=9", code=2).stderr
    )
    assert "unknown" in call("run", "nonsense", "--out", "runs/a", code=2).stderr
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before


def test_an_output_folder_that_cannot_be_written(tiny_file, tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(locked, os.W_OK):  # root may write anywhere: a file in the way is refused to everyone
        locked.rmdir()
        locked.write_text("")
    assert "cannot write to" in call("run", tiny_file, "--out", "locked/run", code=2).stderr


def test_a_wrong_data_file(tmp_path):
    (tmp_path / "fmnist.npz").write_bytes(b"nothing")
    result = call("run", "paper-fmnist", "--data-dir", tmp_path, "--out", "runs/a", code=2)
    assert "not a readable .npz" in result.stderr
    assert not (tmp_path / "runs" / "a").exists()


def test_init_makes_a_file_that_runs(tmp_path):
    text = call("init").stdout
    (tmp_path / "mine.yaml").write_text(text)
    small = ["dataset.name=synthetic", "model.name=mlp", "training.rounds=1", "partition.num_clients=10"]
    call("run", "mine.yaml", "--out", "runs/mine", *[part for item in small for part in ("--set", item)])


def test_doctor_and_data_status():
    checks = json.loads(call("doctor", "--json").stdout)
    assert {"Python", "TensorFlow", "CPU", "GPU", "current folder", "cache folder"} <= {
        check["name"] for check in checks
    }
    rows = json.loads(call("data", "status", "--json").stdout)
    assert {"fmnist-mini", "fmnist", "cifar10", "cifar100", "vgg16 weights"} == {row["name"] for row in rows}
    assert "fmnist-mini" in call("data", "status").stdout
    assert "TensorFlow" in call("doctor").stdout
    assert "allowed" in call("data", "fetch", "imagenet", code=2).stderr


def test_algorithms_are_described():
    assert "fedavg" in call("algorithms").stdout
    assert "McMahan" in call("algorithms", "fedavg").stdout
    assert json.loads(call("algorithms", "--json").stdout)[0]["name"]
    assert "unknown" in call("algorithms", "nothing", code=2).stderr


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["export"], ["doctor"], ["data"], ["data", "import"], ["init"]]
)
def test_help_everywhere(command):
    assert "Usage" in call(*command, "--help").stdout


def test_version():
    from feddual import __version__

    assert __version__ in call("--version").stdout

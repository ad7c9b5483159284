"""A run killed at any moment continues to the same bits: real processes, real SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from feddual import algorithms, api
from feddual.errors import UserError
from feddual.records.run_dir import RunDir
from tests.helpers import TINY, tiny

ROOT = Path(__file__).parents[3]
FILES = ("metrics.jsonl", "clients.jsonl", "partition.npz", "checkpoints/round-00006.npz")

# Each is run before the command line starts, and kills the process from inside at one exact moment.
MOMENTS = {
    "in a round": """
from feddual.training import workbench
good, calls = workbench.train_client, []
def dies(task):
    calls.append(task)
    if len(calls) == 11: os.kill(os.getpid(), signal.SIGKILL)
    return good(task)
workbench.train_client = dies
""",
    "in the first checkpoint write": """
good = os.replace
def dies(source, target):
    if 'round-00002' in str(target): os.kill(os.getpid(), signal.SIGKILL)
    return good(source, target)
os.replace = dies
""",
    "in a later checkpoint write, client states written": """
good = os.replace
def dies(source, target):
    if 'round-00004' in str(target): os.kill(os.getpid(), signal.SIGKILL)
    return good(source, target)
os.replace = dies
""",
    "in a metrics write, half a line written": """
good, calls = os.write, []
def dies(descriptor, data):
    if data.startswith(b'{"round":5,"accuracy"'):
        good(descriptor, data[:40])
        os.kill(os.getpid(), signal.SIGKILL)
    return good(descriptor, data)
os.write = dies
""",
}


def command(out, *more, before=""):
    script = f"import os, signal\n{before}\nfrom feddual.cli import main\nmain()"
    return [sys.executable, "-c", script, "run", "tiny.yaml", "--out", str(out), *more]


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def experiment():
    overrides = {"algorithm.name": "tests.helpers:Counting", "training.rounds": 6}
    from feddual.experiment import config

    return config.resolve(TINY, overrides)


@pytest.fixture(scope="module")
def uninterrupted(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(experiment.to_yaml())
    subprocess.run(command("run"), cwd=folder, env=environment(), check=True, capture_output=True)
    return folder / "run"


def assert_same(found: Path, expected: Path) -> None:
    for file in FILES:
        assert (found / file).read_bytes() == (expected / file).read_bytes(), file
    states = sorted(path.name for path in (expected / "client_state").iterdir())
    assert sorted(path.name for path in (found / "client_state").iterdir()) == states


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_an_exact_moment(moment, experiment, uninterrupted, tmp_path):
    (tmp_path / "tiny.yaml").write_text(experiment.to_yaml())
    killed = subprocess.run(command("run", before=MOMENTS[moment]), env=environment(), capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run(command("run", "--resume"), env=environment(), capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert_same(tmp_path / "run", uninterrupted)


def test_killed_from_outside_again_and_again(experiment, uninterrupted, tmp_path):
    (tmp_path / "tiny.yaml").write_text(experiment.to_yaml())
    for rows in (1, 4):
        process = subprocess.Popen(command("run", "--resume"), env=environment(), stderr=subprocess.PIPE)
        log = tmp_path / "run" / "metrics.jsonl"
        deadline = time.time() + 120
        while not (log.is_file() and log.read_bytes().count(b"\n") >= rows) and time.time() < deadline:
            time.sleep(0.002)
        process.kill()
        process.communicate()
    done = subprocess.run(command("run", "--resume"), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "run", uninterrupted)


def test_a_second_live_writer_is_refused(experiment, tmp_path):
    import filelock

    RunDir(tmp_path / "run").create()
    with filelock.FileLock(tmp_path / "run" / ".lock"), pytest.raises(UserError, match="in use by another process"):
        api.run(experiment, out=tmp_path / "run", progress=False)


def test_a_finished_run_stays_as_it_is(tmp_path):
    done = api.run(tiny(), out=tmp_path / "a", progress=False)
    before = {path: path.stat().st_mtime_ns for path in done.path.rglob("*.*")}
    again = api.run(tiny(), out=tmp_path / "a", resume=True, progress=False)
    assert {path: path.stat().st_mtime_ns for path in done.path.rglob("*.*")} == before
    assert again.summary()["finished"]


def test_what_may_change_on_resume(tmp_path):
    api.run(tiny(), out=tmp_path / "a", progress=False)
    api.run(
        tiny(training__rounds=4, checkpoint__every=1, runtime__threads=1),
        out=tmp_path / "a",
        resume=True,
        progress=False,
    )
    for change, message in (
        ({"seed": 1}, "seed: the run has 0, asked for 1"),
        ({"training__batch_size": 8}, "training.batch_size: the run has 16, asked for 8"),
        ({"training__rounds": 2}, "training.rounds: the run has 4, asked for 2"),
        ({"partition__name": "iid"}, "partition.name"),
    ):
        with pytest.raises(UserError, match=message):
            api.run(tiny(**{"training__rounds": 4, **change}), out=tmp_path / "a", resume=True, progress=False)


def test_an_existing_run_is_not_overwritten(tmp_path):
    done = api.run(tiny(), out=tmp_path / "a", progress=False)
    before = (done.path / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        api.run(tiny(seed=3), out=tmp_path / "a", progress=False)
    assert (done.path / "metrics.jsonl").read_bytes() == before


def test_damaged_checkpoints(tmp_path):
    whole = api.run(tiny(training__rounds=6), out=tmp_path / "whole", progress=False)
    broken = api.run(tiny(training__rounds=5, checkpoint__every=2), out=tmp_path / "a", progress=False)
    last = broken.path / "checkpoints" / "round-00005.npz"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"round-00005\.npz: damaged checkpoint"):
        again = api.run(tiny(training__rounds=6), out=tmp_path / "a", resume=True, progress=False)
    assert (again.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    for path in (again.path / "checkpoints").iterdir():
        path.write_bytes(b"x")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(UserError, match="none of its 2 checkpoints"):
        api.run(tiny(training__rounds=7), out=tmp_path / "a", resume=True, progress=False)


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path):
    done = api.run(tiny(), out=tmp_path / "a", progress=False)
    path = done.path / "checkpoints" / "round-00003.npz"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="damaged"):
        RunDir(done.path).read_checkpoint(3)


def test_which_checkpoints_stay(tmp_path):
    def keep(**policy):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return api.run(tiny(training__rounds=7, **policy), out=out, progress=False).checkpoints

    assert keep(checkpoint__every=2, checkpoint__keep=2) == [6, 7]
    assert keep(checkpoint__every=3, checkpoint__keep="all") == [3, 6, 7]
    assert keep(checkpoint__every=100, checkpoint__keep=1, checkpoint__rounds=[0, 2]) == [0, 2, 7]


def test_a_changed_environment_is_told(tmp_path):
    done = api.run(tiny(), out=tmp_path / "a", progress=False)
    text = (done.path / "environment.json").read_text()
    (done.path / "environment.json").write_text(text.replace('"threads": 1', '"threads": 8'))
    with pytest.warns(UserWarning, match="resumed with threads = 1, it began with 8"):
        api.run(tiny(training__rounds=4), out=tmp_path / "a", resume=True, progress=False)


def test_the_resolved_config_runs_again_to_the_same_bits(tmp_path):
    done = api.run(tiny(), out=tmp_path / "a", progress=False)
    again = api.run(yaml.safe_load((done.path / "config.yaml").read_text()), out=tmp_path / "b", progress=False)
    assert (again.path / "metrics.jsonl").read_bytes() == (done.path / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "processes"])
@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_survives_a_kill(name, executor, tmp_path):
    """SIGKILL in the fourth round, between two checkpoints; resumed, the run ends in the same bits as inline."""
    asked = tiny(algorithm__name=name, training__rounds=6)
    whole = api.run(asked, out=tmp_path / "whole", progress=False)
    (tmp_path / "tiny.yaml").write_text(asked.to_yaml())
    dies = """
from feddual.training import engine
good = engine.RunUnderWay._take_in
def dies(self, tally, result):
    if tally.round_index == 4: os.kill(os.getpid(), signal.SIGKILL)
    good(self, tally, result)
engine.RunUnderWay._take_in = dies
"""
    spread = ["--executor", executor, "--workers", "2"]
    killed = subprocess.run(command("run", *spread, before=dies), env=environment(), capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run(command("run", "--resume", *spread), env=environment(), capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    for file in FILES:
        assert (tmp_path / "run" / file).read_bytes() == (whole.path / file).read_bytes(), file

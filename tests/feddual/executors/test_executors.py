"""Real worker processes: same bits as inline, survival of crashes, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feddual import api
from feddual.errors import UserError
from feddual.executors.inline import Inline
from feddual.executors.processes import Processes, gpu_environments
from feddual.experiment import config
from tests.helpers import TINY, tiny

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _find_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


# Functions that workers run; named below by import path.
def square(task):
    return task**2, os.getpid()


def sleep_and_tell(seconds):
    time.sleep(seconds)
    return seconds, os.getpid()


def die_once(marker):
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def always_die(_):
    os._exit(7)


def complain(task):
    raise UserError(f"bad task {task}")


@pytest.fixture(scope="module")
def pool():
    processes = Processes(2)
    yield processes
    processes.close()


def test_results_come_in_the_order_of_the_tasks_from_both_workers(pool):
    tasks = list(range(20))
    found = list(pool.imap("tests.feddual.executors.test_executors:square", tasks))
    assert [value for value, _ in found] == [task**2 for task in tasks]
    assert [value for value, _ in Inline().imap("tests.feddual.executors.test_executors:square", tasks)] == [
        task**2 for task in tasks
    ]
    assert list(pool.imap("tests.feddual.executors.test_executors:square", [])) == []


def test_the_longest_begin_first(pool):
    """One long and four short tasks on two workers: with costs, the long one has a worker to itself."""
    tasks = [0.01, 0.01, 0.01, 0.01, 0.5]
    found = list(pool.imap("tests.feddual.executors.test_executors:sleep_and_tell", tasks, costs=tasks))
    assert [seconds for seconds, _ in found] == tasks
    assert len({pid for _, pid in found[:4]}) == 1
    assert found[4][1] not in {pid for _, pid in found[:4]}


def test_a_worker_that_dies_is_replaced_and_its_task_done_again(pool, tmp_path):
    assert (
        list(pool.imap("tests.feddual.executors.test_executors:die_once", [str(tmp_path / str(i)) for i in range(3)]))
        == ["survived"] * 3
    )
    assert [value for value, _ in pool.imap("tests.feddual.executors.test_executors:square", [1, 2, 3])] == [1, 4, 9]


def test_a_task_that_always_kills_is_given_up(tmp_path):
    processes = Processes(1)
    with pytest.raises(RuntimeError, match="ended 3 worker processes, the last with exit code 7"):
        list(processes.imap("tests.feddual.executors.test_executors:always_die", [0]))
    processes.close()


def test_errors_arrive_as_they_were_raised():
    processes = Processes(1)
    with pytest.raises(UserError, match="bad task 5"):
        list(processes.imap("tests.feddual.executors.test_executors:complain", [5]))
    processes.close()


@pytest.mark.parametrize("algorithm", ["fedavg", "tests.helpers:Counting"])
def test_processes_give_the_same_bits_as_inline(algorithm, tmp_path):
    inline = api.run(tiny(algorithm__name=algorithm), out=tmp_path / "inline", progress=False)
    spread = tiny(algorithm__name=algorithm, runtime__executor="processes", runtime__workers=2)
    processes = api.run(spread, out=tmp_path / "processes", progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00003.npz"):
        assert (inline.path / file).read_bytes() == (processes.path / file).read_bytes()


def children(pid):
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in found if "feddual.executors._worker" in line and f" {pid} " in line]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(how, tmp_path):
    """Ctrl-C or a kill of the run: its workers end within seconds, and the run resumes."""
    experiment = config.resolve(
        TINY, {"training.rounds": 100000, "runtime.executor": "processes", "runtime.workers": 2}
    )
    (tmp_path / "long.yaml").write_text(experiment.to_yaml())
    command = [sys.executable, "-m", "feddual.cli", "run", "long.yaml", "--out", "run"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        # Tests started in the background inherit an ignored SIGINT; a person's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = tmp_path / "run" / "metrics.jsonl"
    deadline = time.time() + 120
    while not (log.is_file() and log.read_bytes().count(b"\n") >= 2) and time.time() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(how)
    _, told = process.communicate(timeout=30)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert b"the same command continues" in told
    deadline = time.time() + 20
    while any(os.path.exists(f"/proc/{worker}") for worker in workers) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def test_a_worker_does_not_finish_a_long_task_for_a_killed_parent():
    code = """
from feddual.experiment import config
from feddual import executors
pool = executors.create(config.Runtime(executor="processes", workers=1))
list(pool.imap("time:sleep", [600]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.time() + 60
    while not children(process.pid) and time.time() < deadline:
        time.sleep(0.1)
    (worker,) = children(process.pid)
    time.sleep(3)  # it has the task
    process.kill()
    process.wait()
    deadline = time.time() + 20
    while os.path.exists(f"/proc/{worker}") and time.time() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{worker}")


def test_workers_share_the_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpu_environments("auto") == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert gpu_environments("cpu") == [{"CUDA_VISIBLE_DEVICES": "-1"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpu_environments("auto") == []


def stopping(task):
    return next(iter([]))


def test_a_stray_stop_iteration_does_not_end_the_tasks_silently():
    executor = Inline()
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(executor.imap("tests.feddual.executors.test_executors:stopping", [1, 2]))

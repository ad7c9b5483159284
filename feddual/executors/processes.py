"""Runs tasks in worker processes on this machine.

A worker is a fresh interpreter (`python -m feddual.executors._worker`), not a fork: TensorFlow does not survive a fork,
and a script or notebook needs no `if __name__ == "__main__"`. It keeps what it builds, so a model is built once per
worker. A worker that dies is replaced and its task done again; when this process ends, in whatever way, the workers see
their connection close and end too.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from feddual.errors import UserError
from feddual.executors import TaskLost

TRIES = 3  # for one task, when workers die over it


class Worker:
    """One process and the connection to it."""

    def __init__(self, number: int, environment: dict[str, str]):
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "feddual.executors._worker", str(theirs.fileno()), *filter(None, sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
                start_new_session=True,  # Ctrl-C is for the parent, which closes the workers in order
            )
        self.number = number
        self.connection = Connection(ours.detach())
        self.task: int | None = None

    def close(self) -> None:
        self.connection.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:  # in the middle of a task
            self.process.kill()
            self.process.wait()


class Processes:
    """A fixed number of workers, each with one task at a time."""

    def __init__(self, workers: int, environments: Sequence[dict[str, str]] = ()):
        """Start the workers; `environments` are given to them in turn."""
        if not hasattr(socket, "AF_UNIX"):
            raise UserError("runtime.executor: 'processes' needs Linux or macOS; use 'inline'")
        self.workers = workers
        self._environments = list(environments) or [{}]
        self._pool = [self._start(number) for number in range(workers)]

    def _start(self, number: int) -> Worker:
        return Worker(number, self._environments[number % len(self._environments)])

    def imap(self, function_path: str, tasks: Sequence[Any], costs: Sequence[float] | None = None) -> Iterator[Any]:
        """Results in the order of the tasks; the longest begin first, so that all workers finish together."""
        order = sorted(range(len(tasks)), key=lambda task: -costs[task] if costs is not None else 0)
        waiting, tries, results = order[::-1], [0] * len(tasks), {}
        for worker in self._pool:
            self._give(worker, function_path, tasks, waiting)
        for wanted in range(len(tasks)):
            while wanted not in results:
                for ready in wait([worker.connection for worker in self._pool if worker.task is not None]):
                    worker = next(worker for worker in self._pool if worker.connection is ready)
                    task = worker.task
                    assert task is not None
                    try:
                        error, value = worker.connection.recv()
                    except (EOFError, OSError):
                        tries[task] += 1
                        if tries[task] == TRIES:
                            ended = f"task {task} of {function_path} ended {TRIES} worker processes, the last with"
                            code = worker.process.wait()
                            raise TaskLost(task, f"{ended} exit code {code}; out of memory?") from None
                        worker.close()
                        waiting.append(task)
                        worker = self._pool[worker.number] = self._start(worker.number)
                    else:
                        if error is not None:
                            raise value from RuntimeError(f"in a worker process:\n{error}")
                        results[task] = value
                    self._give(worker, function_path, tasks, waiting)
            yield results.pop(wanted)

    def _give(self, worker: Worker, function_path: str, tasks: Sequence[Any], waiting: list[int]) -> None:
        worker.task = waiting.pop() if waiting else None
        if worker.task is not None:
            with suppress(OSError):  # it is dead; reading from it will tell
                worker.connection.send((function_path, tasks[worker.task]))

    def close(self) -> None:
        """End all workers."""
        for worker in self._pool:
            worker.close()


def create(runtime: Any) -> Processes:
    """`runtime.workers` processes; with GPUs, each sees one of them."""
    return Processes(runtime.workers, gpu_environments(runtime.device))


def gpu_environments(device: str) -> list[dict[str, str]]:
    """What to set so that workers share the visible GPUs, one each in turn."""
    if device == "cpu":
        return [{"CUDA_VISIBLE_DEVICES": "-1"}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        found = sorted(name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia"))
        visible = ",".join(number for number in found if number.isdigit())
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in visible.split(",") if gpu not in ("", "-1")]

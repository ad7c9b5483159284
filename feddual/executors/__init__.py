"""Executors run functions on workers; they know nothing of federated learning. One file each, found by its name."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from feddual.experiment import plugins


class TaskLost(RuntimeError):
    """A task that ended one worker after another."""

    def __init__(self, task: int, message: str):
        super().__init__(message)
        self.task = task


class Executor(Protocol):
    """Runs a function, named by `package.module:function`, over tasks."""

    workers: int

    def imap(self, function_path: str, tasks: Sequence[Any], costs: Sequence[float] | None = None) -> Iterator[Any]:
        """Run a function over tasks.

        Args:
            function_path: `package.module:function`, which every worker imports.
            tasks: Its argument, one for each call; must survive pickling.
            costs: How long each may take, in any unit: the longest begin first.

        Returns:
            The results as they come, in the order of the tasks.
        """

    def close(self) -> None:
        """Leave nothing behind."""


def create(runtime: Any) -> Executor:
    """The executor of an experiment's `runtime` section."""
    return plugins.find("executors", runtime.executor, "runtime.executor")(runtime)

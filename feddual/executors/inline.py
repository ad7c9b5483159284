"""Runs every task in this process, one after the other: the plain case all others must equal."""

from collections.abc import Iterator, Sequence
from typing import Any

from feddual.experiment.plugins import load_attribute


class Inline:
    """No workers."""

    workers = 1

    def imap(self, function_path: str, tasks: Sequence[Any], costs: Sequence[float] | None = None) -> Iterator[Any]:
        """Results in the order of the tasks."""
        function = load_attribute(function_path, "function")
        for task in tasks:  # not `map`, which would take a StopIteration of the function for the end
            yield function(task)

    def close(self) -> None:
        """Nothing to leave."""


def create(runtime: Any) -> Inline:
    """The executor; it takes nothing from the runtime section."""
    return Inline()

"""One file per algorithm, found by its name; a user's own by `module:Class`."""

from typing import TYPE_CHECKING, Any

from feddual.experiment import plugins

if TYPE_CHECKING:
    from feddual.algorithms._base import Algorithm


def names() -> tuple[str, ...]:
    """All that can be named."""
    return plugins.names("algorithms")


def find(name: str) -> "type[Algorithm]":
    """The class behind `algorithm.name`."""
    return plugins.find("algorithms", name, "algorithm.name")


def create(experiment: Any) -> "Algorithm":
    """The algorithm of an experiment, with its parameters."""
    return find(experiment.algorithm.name)(experiment.algorithm, experiment.training)

"""One file per algorithm, found by its name; a user's own by `package.module:Class`."""

import importlib
from typing import TYPE_CHECKING, Any

from feddual.errors import UserError
from feddual.experiment.plugins import load_attribute, module_names

if TYPE_CHECKING:
    from feddual.algorithms._base import Algorithm


def names() -> tuple[str, ...]:
    """The algorithms of this package."""
    return module_names(__file__)


def find(name: str) -> "type[Algorithm]":
    """The class behind `algorithm.name`."""
    from feddual.algorithms._base import Algorithm

    if ":" in name:
        cls = load_attribute(name, "algorithm.name")
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise UserError(f"algorithm.name: {name!r} is not a subclass of feddual.algorithms._base.Algorithm")
        return cls
    if name not in names():
        raise UserError(f"algorithm.name: {name!r} is unknown; allowed: {', '.join(names())}, or package.module:Class")
    module = importlib.import_module(f"feddual.algorithms.{name}")
    return next(
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Algorithm) and cls.__module__ == module.__name__
    )


def create(experiment: Any) -> "Algorithm":
    """The algorithm of an experiment, with its parameters."""
    return find(experiment.algorithm.name)(experiment.algorithm, experiment.training)

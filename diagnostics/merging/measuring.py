"""Losses along straight lines between weight vectors, whole or in one layer, and of models with one layer exchanged.

Every point is made from both ends in float64 and rounded once, so that the ends are the models themselves. A model that
is asked for again (each end of every line) is evaluated once.
"""

from functools import cached_property
from typing import Any

import numpy as np

from diagnostics.surfaces.objective import Objective
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint

WHOLE = "all"  # instead of a layer's name
ENDS = ("first", "second")  # whose other layers are kept


def steps(grid: int) -> np.ndarray:
    """The points of a line, from 0 to 1 with 1/2 among them.

    Raises:
        UserError: When there is no such line of so many points.
    """
    if grid < 3 or grid % 2 == 0:
        raise UserError(f"grid: an odd number of points, at least 3, is needed so that t = 1/2 is one; got {grid}")
    return np.linspace(0, 1, grid)


def barrier(values: np.ndarray, t: np.ndarray) -> dict[str, float]:
    """How far a line of losses (or errors) rises above the straight line between its ends.

    With L(t) the loss of (1 − t) a + t b:

        barrier = max over t of  L(t) − ((1 − t) L(0) + t L(1))        (Frankle et al., 2020; Entezari et al., 2022)

    The ends are among the points, so it is never negative; where the loss is convex it is zero. `middle` is the same
    difference at t = 1/2, the average of the two models, and negative where averaging helps.

    Args:
        values: L at the points, shape (points,).
        t: The points, from 0 to 1; 1/2 is one of them.

    Returns:
        barrier, at (its t) and middle; NaN where a value is not finite.
    """
    above = values - ((1 - t) * values[0] + t * values[-1])
    above[0] = above[-1] = 0.0  # without the rounding of the weights (1 - t) and t
    half = len(t) // 2
    top = int(above.argmax()) if np.isfinite(above).all() else half
    highest = float(above.max()) if np.isfinite(above).all() else float("nan")
    return {"barrier": highest, "at": float(t[top]), "middle": float(above[half])}


class Losses:
    """An objective at many weight vectors, each of them once."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self._known: dict[str, tuple[float, float]] = {}

    def __call__(self, vector: np.ndarray) -> tuple[float, float]:
        """Loss and error (1 − accuracy; NaN without classes) of a model."""
        key = fingerprint(vector)
        if key not in self._known:
            found = self.objective(vector)
            self._known[key] = float(found.loss), 1 - float(found.accuracy)
        return self._known[key]


class Layers:
    """The parts of a vector that are taken together: all of it, or a layer's kernel, bias and moving statistics."""

    def __init__(self, layout: Layout):
        self.layout = layout

    @cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """Of each layer with trained weights, in the model's order, which entries of the vector are its own."""
        masks = {}
        for name in self.layout.layers:
            masks[name] = np.zeros(self.layout.size, bool)
            for entry in self.layout.entries:
                masks[name][entry.slice] |= entry.layer == name
        return masks

    def mask(self, layer: str) -> np.ndarray:
        """The entries of a layer, or of the whole."""
        return np.ones(self.layout.size, bool) if layer == WHOLE else self.masks[layer]

    def exchanged(self, vector: np.ndarray, other: np.ndarray, layer: str) -> np.ndarray:
        """A model with one layer from another."""
        return np.where(self.mask(layer), other, vector)

    def between(self, a: np.ndarray, b: np.ndarray, t: float, layer: str = WHOLE, end: str = ENDS[0]) -> np.ndarray:
        """(1 − t) a + t b in one layer (or all), the other layers as at one end."""
        mask, made = self.mask(layer), np.array(a if end == ENDS[0] else b, np.float32)
        made[mask] = (1 - t) * a[mask].astype(np.float64) + t * b[mask].astype(np.float64)
        return made

    def apart(self, a: np.ndarray, b: np.ndarray, layer: str = WHOLE) -> float:
        """‖b − a‖ / ‖a‖ over the trained weights of a layer, or of all."""
        mask = self.mask(layer)[: self.layout.num_trainable]
        first, second = (one[: self.layout.num_trainable][mask].astype(np.float64) for one in (a, b))
        return float(np.linalg.norm(second - first) / (np.linalg.norm(first) or np.nan))


def line(
    evaluation: Losses, layers: Layers, a: np.ndarray, b: np.ndarray, t: np.ndarray, layer: str = WHOLE,
    end: str = ENDS[0],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """Losses and errors along one line, and what is read off it.

    Args:
        evaluation: Of models.
        layers: Of the layout.
        a: The first model's weights, (size,).
        b: The second's.
        t: The points.
        layer: The one that moves, or `all`.
        end: first or second: whose other layers are kept.

    Returns:
        A row per point (t, loss, error), and one row: barrier, at, middle and rise, of the loss and (error_...) of the
        error, and apart, the distance in that layer. The rise is what averaging does: L(1/2) minus the loss of the
        model whose other layers are kept; of a whole line minus the mean of both ends, the same as `middle`.
    """
    found = [evaluation(layers.between(a, b, float(step), layer, end)) for step in t]
    losses, errors = np.array(found).T
    points = [
        {"t": float(step), "loss": float(loss), "error": float(error)}
        for step, loss, error in zip(t, losses, errors, strict=True)
    ]
    read: dict[str, Any] = {}
    for prefix, values in (("", losses), ("error_", errors)):
        here = barrier(values, t)
        kept = values[0 if end == ENDS[0] else -1]
        here["rise"] = here["middle"] if layer == WHOLE else float(values[len(t) // 2] - kept)
        read |= {f"{prefix}{name}": value for name, value in here.items()}
    return points, {**read, "apart": layers.apart(a, b, layer)}


def balanced_pairs(count: int, wanted: int | None) -> list[tuple[int, int]]:
    """Pairs of 0 ... count − 1 in which all take part about equally often: neighbours on a circle first.

    Args:
        count: How many models.
        wanted: How many pairs; None for all.

    Returns:
        (smaller, larger), so many at most.
    """
    found: dict[tuple[int, int], None] = {}
    for gap in range(1, count // 2 + 1):
        for place in range(count):
            first, second = sorted((place, (place + gap) % count))
            found.setdefault((first, second))
    return list(found)[: len(found) if wanted is None else wanted]

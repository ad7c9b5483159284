"""Which measures of sharpness a rescaling moves that leaves the model's function alone.

relu(c z) = c relu(z) for c > 0: a layer times c, and the next one's kernel divided by c, is the same function at other
weights, and some measures can be made anything that way (Dinh et al., "Sharp Minima Can Generalize for Deep Nets", ICML
2017). One factor for each layer leaves alone what is on the scale of filters, one for each unit only what is on the
scale of single weights, since the next layer's filters mix units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from diagnostics.flatness.catalogue import MEASURES
from diagnostics.landscape import Landscape
from diagnostics.surfaces.checks import inputs_that_fit
from feddual.errors import UserError
from feddual.functional.layout import Entry, Layout

By = Literal["layer", "node"]
SAME = 1e-4  # relative difference of outputs that rounding may make
MOVED = 0.02  # relative change of a measure beyond rounding, and beyond the steps of a bisection
FEW = 64  # samples on which the outputs are compared


@dataclass
class Audit:
    """What `rescaling_audit` found.

    Attributes:
        table: A row per measure and step size: `before` and `after`, their `ratio`, `moved`, by how many standard
            errors (`errors`), and whether it `should` stay.
        pairs: The layers that were multiplied, each with the one that takes it back.
        factor: By how much.
        by: layer or node.
        outputs: The largest difference of the outputs, relative to the largest output.
    """

    table: pd.DataFrame
    pairs: list[tuple[str, str]]
    factor: float
    by: str
    outputs: float

    def _repr_html_(self) -> str:
        return f"<p>{self}</p>" + self.table.to_html(index=False)

    def __str__(self) -> str:
        said = ", ".join(f"{first} × {self.factor:g}, {second} ÷ {self.factor:g}" for first, second in self.pairs)
        each = "" if self.by == "layer" else " (unit by unit, factors between 1 and this)"
        return f"Rescaled: {said}{each}. The outputs differ by {self.outputs:.1e} of the largest one."


def rescaling_audit(
    model: Any,
    x: Any,
    y: Any,
    *,
    factor: float = 10.0,
    by: By = "layer",
    measures: str | Sequence[str] = "default",
    budget: str | float = "full",
    directions: int = 5,
    images: int | None = 1000,
    seed: int = 0,
    **settings: Any,
) -> Audit:
    """Rescale a network's layers so that its function is the same, and measure its sharpness before and after.

    Pairs of layers are found by trying: of two that follow each other the first is multiplied, the second's kernel
    divided, and the pair is taken if the outputs stay.

    Args:
        model: A Keras model.
        x: Inputs, shape (n, ...).
        y: Targets.
        factor: By which layers are multiplied.
        by: `layer`, one factor for all its units, or `node`, another one for each.
        measures: As for `Landscape.sharpness`.
        budget: The same.
        directions: The same.
        images: Samples.
        seed: Of samples, directions and the units' factors.
        **settings: As for `Landscape.sharpness`.

    Returns:
        The measures before and after.

    Raises:
        UserError: When the network has no such rescaling, as with tanh.

    Example:
        >>> import diagnostics, keras
        >>> layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
        >>> model = keras.Sequential([keras.Input((4,)), *layers])
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> audit = diagnostics.rescaling_audit(model, x, y, measures=["kappa_fn", "sam"], directions=2)
        >>> audit.table.set_index("measure")["moved"].to_dict()
        {'gradient_norm': True, 'kappa_fn': False, 'sam': True}
    """
    if by not in get_args(By):
        raise UserError(f"by: {by!r} is unknown; allowed: {', '.join(get_args(By))}")
    if not factor > 0 or factor == 1:
        raise UserError(f"factor: must be above 0 and not 1, got {factor}")
    before = Landscape(model, x, y, images=images, seed=seed)
    weights, pairs, apart = _rescaled(before, factor, by)
    after = Landscape(model, x, y, images=images, seed=seed, weights=weights)
    first, second = (
        one.sharpness(measures, budget=budget, directions=directions, progress=False, **settings)
        for one in (before, after)
    )
    return Audit(_rows(first.table, second.table, by), pairs, factor, by, apart)


def _rescaled(landscape: Landscape, factor: float, by: By) -> tuple[np.ndarray, list[tuple[str, str]], float]:
    """Other weights of the same function, which layers they differ in, and how far the outputs are apart."""
    objective = landscape.objective

    def outputs(weights: np.ndarray) -> np.ndarray:
        with inputs_that_fit():
            return np.asarray(objective.outputs(np.asarray(weights, np.float32), objective.x[:FEW]))

    layout, rng = landscape.space.layout, np.random.default_rng(landscape.seed)
    meant, weights = outputs(landscape.weights), landscape.weights.astype(np.float64)
    largest = float(np.abs(meant).max()) or 1.0
    pairs: list[tuple[str, str]] = []
    apart, nearest = 0.0, np.inf
    names = list(layout.layers)
    for first, second in pairwise(names):
        if any(first in pair for pair in pairs):
            continue  # pairs do not overlap, so that every layer moves by the factor or its inverse
        tried = _pair(layout, weights, first, second, factor, None if by == "layer" else rng)
        if tried is None:
            continue
        distance = float(np.abs(outputs(tried) - meant).max()) / largest
        nearest = min(nearest, distance)
        if distance <= SAME:
            weights, apart = tried, distance
            pairs.append((first, second))
    if not pairs:
        shown = f"the nearest changes the outputs by {nearest:.0%}" if np.isfinite(nearest) else "no two layers fit"
        raise UserError(
            f"model: no layer can be multiplied by {factor:g} and the next one divided without changing the function "
            f"({shown}): only activations with f(c z) = c f(z), such as relu, allow that; tanh, sigmoid, gelu do not"
        )
    return weights.astype(np.float32), pairs, apart


def _pair(
    layout: Layout, weights: np.ndarray, first: str, second: str, factor: float, rng: np.random.Generator | None
) -> np.ndarray | None:
    """The weights with a layer multiplied and the next one's kernel divided; None where their shapes do not fit."""
    kernel = next((entry for entry in layout.layers[second] if entry.role == "kernel"), None)
    whole = next((entry for entry in layout.layers[first] if entry.role == "kernel"), None)
    if kernel is None or whole is None or len(kernel.shape) < 2:
        return None
    units = whole.shape[-1]
    if kernel.shape[-2] % units:
        return None
    # Of each unit another factor; flattened places have their channels last.
    factors = np.full(units, factor) if rng is None else factor ** rng.uniform(0, 1, units)
    made = weights.copy()
    for entry in layout.layers[first]:
        if entry.shape[-1] != units:
            return None
        made[entry.slice] = (_of(made, entry) * factors).ravel()
    again = np.tile(factors, kernel.shape[-2] // units)
    made[kernel.slice] = (_of(made, kernel) / again[:, None]).ravel()
    return made


def _of(weights: np.ndarray, entry: Entry) -> np.ndarray:
    return weights[entry.slice].reshape(entry.shape)


def _rows(before: pd.DataFrame, after: pd.DataFrame, by: By) -> pd.DataFrame:
    rows = []
    for one, two in zip(before.to_dict("records"), after.to_dict("records"), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = float(np.float64(two["value"]) / one["value"])
            errors = abs(two["value"] - one["value"]) / one["se"] if one["se"] > 0 else np.nan
        should = getattr(MEASURES[one["measure"]], f"{by}s")
        rows.append({
            "measure": one["measure"], "level": one["level"], "before": one["value"], "after": two["value"],
            "ratio": ratio, "moved": not abs(ratio - 1) <= MOVED, "errors": errors, "should_stay": should,
        })  # fmt: skip
    return pd.DataFrame(rows)

"""Directions in weight space: random ones on the scale of the filters, and those between models.

A random direction is Gaussian noise whose filters are scaled to the norms of the model's own (Li et al., "Visualizing
the Loss Landscape of Neural Nets", NeurIPS 2018): a step of 1 moves every filter by 100 % of its norm. What a filter
is depends on the layer; the table is here, and `register_filter_axes` adds to it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from feddual import seeding
from feddual.errors import UserError
from feddual.functional import _keras
from feddual.functional.layout import Entry, Layout, fingerprint, moving_statistics, owners, read

Norm = Literal["filter", "layer", "model", "abs"]
Scale = Literal["none", "filter", "abs"]
Axes = tuple[int, ...]
AxesRule = Axes | Callable[[Any, tuple[int, ...]], Axes]  # fixed, or found from the layer and the shape
INCLUDABLE = ("bias", "norm")
TINY = 1e-10  # keeps a dead filter's zero norm from being divided by

# --- which axes are summed over in the norm of one filter ----------------------------------------------------------


def _all_but(*kept: int) -> AxesRule:
    """All axes but these, counted from the end."""
    return lambda layer, shape: tuple(axis for axis in range(len(shape)) if axis - len(shape) not in kept)


def _contracted(layer: Any, shape: tuple[int, ...]) -> Axes:
    """EinsumDense: the axes its equation sums over, `abc,cde->abde`; what remains is one filter per output."""
    inputs, output = layer.equation.replace(" ", "").split("->")
    kernel = inputs.split(",")[1]
    return tuple(axis for axis, letter in enumerate(kernel) if letter not in output)


_FILTER_AXES: dict[tuple[str, str], AxesRule] = {
    ("Dense", "kernel"): (0,),  # (in, out): one filter per neuron
    ("EinsumDense", "kernel"): _contracted,
    (_keras.CONVOLUTION, "kernel"): _all_but(-1),  # (space..., in / groups, out)
    (_keras.TRANSPOSED, "kernel"): _all_but(-2),  # (space..., OUT, in)
    (_keras.DEPTHWISE, "kernel"): _all_but(-1, -2),  # (space..., in, multiplier)
    (_keras.SEPARABLE, "depthwise_kernel"): _all_but(-1, -2),
    (_keras.SEPARABLE, "pointwise_kernel"): _all_but(-1),
    (_keras.CONVOLUTIONAL_LSTM, "kernel"): _all_but(-1),
    (_keras.CONVOLUTIONAL_LSTM, "recurrent_kernel"): _all_but(-1),
    ("Embedding", "embeddings"): (1,),  # (tokens, dimensions): one filter per token
}
for _cell in ("LSTMCell", "GRUCell", "SimpleRNNCell"):  # (in, gates x units)
    _FILTER_AXES[_cell, "kernel"] = _FILTER_AXES[_cell, "recurrent_kernel"] = (0,)
_NORMALISATION = {f"{kind}Normalization" for kind in ("Batch", "Group", "Layer", "RMS", "Unit", "")}
_STILL = {"PReLU"}  # one number per channel or position, no filter


def register_filter_axes(layer: type | str, role: str, axes: AxesRule) -> None:
    """Say what a filter is in a layer of your own.

    Args:
        layer: The class, or its name; subclasses inherit the rule.
        role: The variable's name in the layer, such as `kernel`.
        axes: The axes summed over in the norm of one filter, or a function of (layer, shape) that returns them.
    """
    _FILTER_AXES[layer if isinstance(layer, str) else layer.__name__, role] = axes


def filter_axes(layer: Any, role: str, shape: Sequence[int], include: Sequence[str] = ()) -> Axes | None:
    """The axes of one filter's norm; None for what is not moved.

    Args:
        layer: The layer that owns the variable.
        role: The variable's name in it.
        shape: The variable's shape.
        include: `bias`, `norm` or both, to move those as well; such a variable counts as one filter.
    """
    shape = tuple(shape)
    ancestors = [cls.__name__ for cls in type(layer).__mro__]
    for name in ancestors:
        if (name, role) in _FILTER_AXES:
            rule = _FILTER_AXES[name, role]
            return rule(layer, shape) if callable(rule) else rule
    if _NORMALISATION & set(ancestors):
        return tuple(range(len(shape))) if "norm" in include else None
    if role == "bias" or len(shape) <= 1 or _STILL & set(ancestors):
        return tuple(range(len(shape))) if "bias" in include else None
    return tuple(range(len(shape) - 1))  # an unknown layer: outputs last, as everywhere in Keras


# --- directions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Direction:
    """A vector in the layout of a model's weights, and where it came from."""

    vector: np.ndarray  # float32
    name: str

    @property
    def sha256(self) -> str:
        return fingerprint(self.vector)


class Space:
    """A model's weights as a vector, with the layer behind each entry: where directions are made.

    Args:
        model: A built Keras model.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> space = diagnostics.Space(model)
        >>> space.random(seed=0, index=1).name
        'random filter-normalised, seed 0, index 1'
        >>> space.between(space.weights, 0 * space.weights, "to zero").vector.shape
        (15,)
    """

    def __init__(self, model: Any):
        self.layout, self.weights, owned = Layout.of_model(model), read(model), owners(model)
        self.owners = [owned[id(variable)][0] for variable in (*model.trainable_variables, *moving_statistics(model))]

    def random(
        self,
        seed: int = 0,
        index: int = 0,
        norm: Norm = "filter",
        *,
        weights: np.ndarray | None = None,
        layers: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> Direction:
        """A Gaussian direction on the scale of the model.

        Each variable's noise has a stream of its own, so that a layer more or less leaves the others' noise alone, and
        two models of one architecture get the same noise, each scaled by its own filters.

        Args:
            seed: Of all directions together.
            index: Which direction.
            norm: `filter`, `layer` (each variable has the norm of the model's), `model` (the whole has it) or `abs`
                (each weight's noise is multiplied by that weight's size, and nothing is normalised).
            weights: Those to take the norms of; the model's own by default.
            layers: Move these only; all by default.
            include: `bias`, `norm` (normalisation layers), to move those too.

        Returns:
            The direction; its name says how it was made.
        """
        if norm not in get_args(Norm):
            raise UserError(f"norm: {norm!r} is unknown; allowed: {', '.join(get_args(Norm))}")
        weights = self.weights if weights is None else self.checked(weights)
        vector = np.zeros(self.layout.size)
        moved = np.zeros(self.layout.size, bool)
        for entry, axes in self.moved(layers, include):
            noise = self.noise(entry, seed, index)
            vector[entry.slice] = scaled(noise, weights[entry.slice].reshape(entry.shape), axes, norm).ravel()
            moved[entry.slice] = True
        if not weights[moved].any():
            raise UserError("all weights that a random direction moves are zero: on their scale it leads nowhere")
        if norm == "model":  # after all noise is drawn: one factor for the whole
            vector *= np.linalg.norm(weights[moved].astype(np.float64)) / (np.linalg.norm(vector) + TINY)
        name = f"random {norm}-{'scaled' if norm == 'abs' else 'normalised'}, seed {seed}, index {index}"
        name += f", of {' and '.join(layers)} only" if layers else ""
        name += f", with {' and '.join(include)}" if include else ""
        return Direction(vector.astype(np.float32), name)

    def moved(self, layers: Sequence[str] = (), include: Sequence[str] = ()) -> list[tuple[Entry, Axes]]:
        """What random directions move.

        Args:
            layers: These only; all by default.
            include: `bias`, `norm` (normalisation layers), to move those too.

        Returns:
            The variables' entries in the layout, each with the axes of one filter's norm.
        """
        check_names("layers", layers, self.layout.layers)
        check_names("include", include, INCLUDABLE)
        found = []
        for entry, layer in zip(self.layout.entries, self.owners, strict=True):
            axes = filter_axes(layer, entry.role, entry.shape, include) if entry.trainable else None
            if axes is not None and (not layers or entry.layer in layers):
                found.append((entry, axes))
        if not found:
            raise UserError("the model has no trainable weight that a random direction moves (biases stay still)")
        return found

    def coordinates(
        self, scale: Scale, weights: np.ndarray, layers: Sequence[str] = (), include: Sequence[str] = ()
    ) -> tuple[list[Entry], np.ndarray]:
        """The weights that a measurement moves, and the scale of each.

        Args:
            scale: `filter` (the root mean square of the weight's filter, ‖w_f‖ / √n_f), `abs` (its size) or `none` (1;
                then every trainable weight counts, biases and normalisation layers too).
            weights: Those to take the scales of.
            layers: These only; all by default.
            include: `bias`, `norm`, with a scale.

        Returns:
            Entries of the layout, and the scales of all their values in that order, float64.
        """
        if scale not in get_args(Scale):
            raise UserError(f"scale: {scale!r} is unknown; allowed: {', '.join(get_args(Scale))}")
        if scale == "none":
            check_names("layers", layers, self.layout.layers)
            check_names("include", include, INCLUDABLE)
            mine = [e for e in self.layout.entries if e.trainable and (not layers or e.layer in layers)]
            return mine, np.ones(sum(entry.stop - entry.start for entry in mine))
        entries, scales = [], []
        for entry, axes in self.moved(layers, include):
            sizes = np.abs(weights[entry.slice].reshape(entry.shape).astype(np.float64))
            if scale == "filter":
                sizes = np.sqrt(np.mean(np.square(sizes), axis=axes, keepdims=True))
            entries.append(entry)
            scales.append(np.broadcast_to(sizes, entry.shape).ravel())
        return entries, np.concatenate(scales)

    @staticmethod
    def noise(entry: Entry, seed: int, index: int) -> np.ndarray:
        """The standard normal numbers behind a random direction's part, from a stream of their own.

        Args:
            entry: The variable.
            seed: Of all directions together.
            index: Which direction.

        Returns:
            Shape as the variable's.
        """
        return seeding.generator(seed, f"direction {entry.path}", index).standard_normal(entry.shape)

    def between(
        self, start: np.ndarray, end: np.ndarray, name: str = "from the first model to the second"
    ) -> Direction:
        """The direction whose step of 1 leads from one model's weights to another's.

        Args:
            start: Weights, a vector in the layout of the model.
            end: Others.
            name: For captions.

        Returns:
            The direction.
        """
        difference = self.checked(end).astype(np.float64) - self.checked(start)
        if not difference.any():
            raise UserError("the two models have the same weights: there is no direction between them")
        return Direction(difference.astype(np.float32), name)

    def plane(self, first: np.ndarray, second: np.ndarray, third: np.ndarray) -> tuple[Direction, Direction]:
        """The plane through three models: the first lies at (0, 0), the second at (1, 0), the third at (0, 1).

        Args:
            first: Weights, a vector in the layout of the model.
            second: Others.
            third: Others.

        Returns:
            Two directions.
        """
        one = self.between(first, second, "from the first model to the second")
        two = self.between(first, third, "from the first model to the third")
        if abs(cosine(one, two)) > 1 - 1e-9:
            raise UserError("the three models lie on one line: there is no plane through them")
        return one, two

    def checked(self, weights: np.ndarray) -> np.ndarray:
        """These weights, if they can be the model's.

        Args:
            weights: A vector.

        Returns:
            The same in float32.
        """
        if np.shape(weights) != (self.layout.size,):
            raise UserError(
                f"weights: the model holds {self.layout.size} values, these are of shape {np.shape(weights)}; "
                "they belong to another model"
            )
        return np.asarray(weights, np.float32)

    def table(self) -> list[dict[str, Any]]:
        """What a filter is in each variable: for people, and for the manifest."""
        rows = []
        for entry, layer in zip(self.layout.entries, self.owners, strict=True):
            axes = filter_axes(layer, entry.role, entry.shape) if entry.trainable else None
            filters = 0 if axes is None else int(np.prod(np.delete(entry.shape, axes)))
            row = {"path": entry.path, "layer": entry.layer_type, "shape": list(entry.shape)}
            rows.append(row | {"axes": None if axes is None else list(axes), "filters": filters})
        return rows


def check_names(what: str, given: Sequence[str], known: Collection[str]) -> None:
    """Refuse names that are not known, and a text where a list of them is expected."""
    if isinstance(given, str):
        raise UserError(f"{what}: expected a list of names, such as [{given!r}], got {given!r}")
    unknown = set(given) - set(known)
    if unknown:
        raise UserError(f"{what}: {', '.join(sorted(unknown))} unknown; there are {', '.join(known)}")


def scaled(noise: np.ndarray, weights: np.ndarray, axes: Axes, norm: Norm) -> np.ndarray:
    """Noise whose filters (or the variable as a whole) have the norms of the weights'; in float64."""
    if norm == "model":
        return noise
    if norm == "abs":
        return noise * np.abs(weights, dtype=np.float64)
    where = axes if norm == "filter" else tuple(range(noise.ndim))
    norms = [np.sqrt(np.square(value, dtype=np.float64).sum(axis=where, keepdims=True)) for value in (weights, noise)]
    return noise * (norms[0] / (norms[1] + TINY))


def usable(directions: Sequence[Direction] | Direction, space: Space, number: int | None) -> list[Direction]:
    """A user's directions, if so many lines (any number for None), or a plane of two, can be made of them."""
    given = [directions] if isinstance(directions, Direction) else list(directions)
    others = [type(one).__name__ for one in given if not isinstance(one, Direction)]
    if others:
        raise UserError(
            f"directions: expected those that diagnostics.Space makes, got {others[0]}; a vector of your own: "
            "diagnostics.Direction(vector, name)"
        )
    if not given or (number is not None and len(given) != number):
        raise UserError(f"directions: expected {number or 'at least one'}, got {len(given)}")
    found = [replace(one, vector=space.checked(one.vector)) for one in given]
    hashes = [one.sha256 for one in found]
    for place, one in enumerate(found):
        if not np.isfinite(one.vector).all():
            raise UserError(f"directions: {one.name!r} holds values that are not finite")
        if not one.vector.any():
            raise UserError(f"directions: {one.name!r} is zero everywhere, so it leads nowhere")
        if hashes[place] in hashes[:place]:
            raise UserError(f"directions: {one.name!r} is given twice")
    if number == 2 and abs(cosine(*found)) > 1 - 1e-9:
        raise UserError("directions: the two are parallel: there is no plane along them")
    return found


def cosine(one: Direction, two: Direction) -> float:
    """Between two directions; about 1 / sqrt(n) for random ones."""
    a, b = one.vector.astype(np.float64), two.vector.astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

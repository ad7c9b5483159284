"""The curvature of a loss at a model as a linear operator: the Hessian, or the GGN, whole or of some layers."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diagnostics.curvature.products import KINDS, Products
from diagnostics.surfaces.checks import inputs_that_fit
from diagnostics.surfaces.directions import Scale, Space
from feddual.errors import UserError
from feddual.functional.layout import Entry

if TYPE_CHECKING:
    from diagnostics.landscape import Landscape

Kind = Literal["hessian", "ggn"]
DENSE = 4000  # coordinates, at most, of a matrix written out


class Curvature:
    """The second derivatives of a landscape's mean loss as a linear operator S A S, one product at a time.

    A is the Hessian, or the generalised Gauss-Newton matrix J^T H J, which leaves out the curvature of the network
    itself and the layers' own losses (weight decay), so that it has no negative eigenvalue. S is diagonal and puts
    the curvature on a scale of the weights:

    - `none`: one. Rescaling a layer changes the curvature, though not the model.
    - `filter`: ||w_f|| / sqrt(n_f) for each of the n_f weights of a filter f, so that a random filter-normalised
      direction d, as surfaces have them, bends the loss by d' A d = tr(S A S) on average.
    - `abs`: |w|.

    Moving statistics of batch normalisation stay as they are. Where a model is piecewise linear (relu, max-pooling),
    the derivatives are those of the piece that each sample lies on.

    Args:
        landscape: The model and the samples.
        kind: hessian or ggn; the latter for cross-entropy from logits and mse.
        scale: none, filter or abs.
        layers: Only the block of these layers; all by default.
        include: `bias`, `norm`: with `filter` and `abs`, let those move too; with `none` all do.

    Raises:
        UserError: For what has no curvature, with the reason.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> curvature = diagnostics.Curvature(diagnostics.Landscape(model, x, y))
        >>> curvature.size, curvature.matvec(curvature.gradient()).shape
        (15, (15,))
    """

    def __init__(
        self,
        landscape: "Landscape",
        kind: Kind = "hessian",
        scale: Scale = "none",
        layers: Sequence[str] = (),
        include: Sequence[str] = (),
    ):
        if kind not in KINDS:
            raise UserError(f"kind: {kind!r} is unknown; allowed: {', '.join(KINDS)}")
        objective = landscape.objective
        if objective.bn != "frozen":
            raise UserError(f"bn: curvature keeps moving statistics as they are, got {objective.bn!r}; use bn='frozen'")
        if not np.isfinite(landscape.weights).all():
            raise UserError("the model has weights that are not finite. Has training diverged?")
        self.landscape, self.kind, self.scale = landscape, kind, scale
        self.layers, self.include = tuple(layers), tuple(include)
        self.entries, self.scaling = _coordinates(landscape.space, landscape.weights, scale, layers, include)
        self.indices = np.concatenate([np.arange(entry.start, entry.stop) for entry in self.entries])
        self.size = len(self.indices)
        self.products = 0  # so far, each one pass over the samples
        self.seconds = 0.0  # that they took
        key = "curvature", tuple(entry.path for entry in self.entries)
        self._products: Products = objective.engines.setdefault(key, Products(objective, self.entries))
        self._graph: Callable[..., Any] = self._compiled(kind)

    def __repr__(self) -> str:
        scaled = "" if self.scale == "none" else f", scaled by {self.scale}"
        return f"Curvature({self.kind} of {self.size} weights{scaled}, {self.samples} samples)"

    @property
    def samples(self) -> int:
        """How many samples the loss is the mean over."""
        return len(self.landscape.objective.x)

    @property
    def mode(self) -> str:
        """How the products are computed."""
        return self._products.mode if self.kind == "hessian" else "through the outputs"

    def matvec(self, vector: np.ndarray) -> np.ndarray:
        """The operator's product with a vector: one pass over the samples.

        Args:
            vector: Shape (size,).

        Returns:
            S A S v, float64, shape (size,).
        """
        vector = np.asarray(vector, np.float64).reshape(-1)
        if vector.shape != (self.size,):
            raise UserError(f"vector: expected {self.size} values, got {len(vector)}")
        started = time.perf_counter()
        found = self._graph(self.landscape.weights, self.scaling * vector).numpy()
        self.products += 1
        self.seconds += time.perf_counter() - started
        return np.asarray(self.scaling * found)

    def gradient(self) -> np.ndarray:
        """The gradient of the mean loss at these coordinates, without the scaling.

        Returns:
            Float64, shape (size,).
        """
        return np.asarray(self._compiled("gradient")(self.landscape.weights, np.zeros(self.size)).numpy())

    def vector(self, values: np.ndarray) -> np.ndarray:
        """Coordinates as a vector in the layout of the model's weights, zero elsewhere.

        Args:
            values: Shape (size,).

        Returns:
            Shape (weights,), float64.
        """
        whole = np.zeros(self.landscape.space.layout.size)
        whole[self.indices] = values
        return whole

    @cached_property
    def blocks(self) -> dict[str, np.ndarray]:
        """Which coordinates belong to each layer, in the model's order."""
        places = np.split(np.arange(self.size), np.cumsum([entry.stop - entry.start for entry in self.entries])[:-1])
        found: dict[str, list[np.ndarray]] = {}
        for entry, where in zip(self.entries, places, strict=True):
            found.setdefault(entry.layer, []).append(where)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def as_linear_operator(self) -> Any:
        """For SciPy's solvers.

        Returns:
            A `scipy.sparse.linalg.LinearOperator`, symmetric.
        """
        from scipy.sparse.linalg import LinearOperator

        return LinearOperator((self.size, self.size), matvec=self.matvec, rmatvec=self.matvec, dtype=np.float64)

    def dense(self) -> np.ndarray:
        """The matrix itself, by a product for each column; for small models.

        Returns:
            Shape (size, size), symmetric up to rounding.
        """
        if self.size > DENSE:
            raise UserError(f"dense: {self.size} coordinates are too many for a matrix; at most {DENSE}")
        return np.stack([self.matvec(row) for row in np.eye(self.size)], 1)

    def _compiled(self, what: str) -> Callable[..., Any]:
        made = self.landscape.objective.engines
        key = f"curvature {what}", tuple(entry.path for entry in self.entries)
        if key not in made:
            with inputs_that_fit():
                made[key] = getattr(self._products, what)()
        return made[key]


def _coordinates(
    space: Space, weights: np.ndarray, scale: Scale, layers: Sequence[str], include: Sequence[str]
) -> tuple[list[Entry], np.ndarray]:
    """The tensors that move, and the scale of each of their values."""
    entries, scaling = space.coordinates(scale, weights, layers, include)
    if not scaling.any():
        raise UserError("all weights that the scale is taken from are zero: on it there is no curvature")
    return entries, scaling

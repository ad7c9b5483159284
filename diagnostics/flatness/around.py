"""The loss near a model, counted: what the measures of sharpness ask of a landscape, and what that costs.

A pass is one evaluation of the loss on all samples. A gradient counts as three and a product with the Hessian as six,
which is about their arithmetic; on a part of the samples they count as that part.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.surfaces.checks import inputs_that_fit
from diagnostics.surfaces.directions import Scale
from feddual._lazy import tf
from feddual.errors import UserError
from feddual.functional.graphs import compiled

if TYPE_CHECKING:
    from diagnostics.landscape import Landscape
    from diagnostics.surfaces.objective import Objective

GRADIENT, PRODUCT = 3, 6  # passes
SAMPLES = 1024  # on which a worst case is looked for: the first of the landscape's, stratified like all of them


class Around:
    """The mean loss at displaced weights, and the passes that were taken so far."""

    def __init__(self, landscape: "Landscape", layers: Sequence[str] = (), include: Sequence[str] = ()):
        """Args: the landscape; layers and kinds of weights that move, as for its lines."""
        if landscape.objective.bn != "frozen":
            found = landscape.objective.bn
            raise UserError(f"bn: sharpness keeps moving statistics as they are, got {found!r}; use bn='frozen'")
        if not np.isfinite(landscape.weights).all():
            raise UserError("the model has weights that are not finite. Has training diverged?")
        self.landscape, self.layers, self.include = landscape, tuple(layers), tuple(include)
        self.count = len(landscape.objective.x)
        self.few = min(SAMPLES, self.count)
        self.passes = 0.0

    def scale(self, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
        """Which weights move on a scale, as places in the vector, and the scale of each."""
        entries, scaling = self.landscape.space.coordinates(scale, self.landscape.weights, self.layers, self.include)
        return np.concatenate([np.arange(entry.start, entry.stop) for entry in entries]), scaling

    def moved(self, places: np.ndarray, change: np.ndarray) -> np.ndarray:
        """The weights with a change at some places, in float32."""
        weights = self.landscape.weights.astype(np.float64)
        weights[places] += change
        return weights.astype(np.float32)

    def loss(self, places: np.ndarray, change: np.ndarray, count: int | None = None) -> float:
        """The mean loss of the first samples (all by default) at displaced weights."""
        return self._sums(places, change, count)[0]

    def accuracy(self, places: np.ndarray, change: np.ndarray) -> float:
        """The share of right answers; NaN where there are no classes."""
        return self._sums(places, change, None)[1]

    def _sums(self, places: np.ndarray, change: np.ndarray, count: int | None) -> tuple[float, float]:
        count = count or self.count
        self.passes += count / self.count
        found = self.landscape.objective(self.moved(places, change), count)
        return float(found.loss), float(found.accuracy)

    def slope(self, places: np.ndarray, change: np.ndarray, count: int | None = None) -> tuple[float, np.ndarray]:
        """The mean loss of the first samples at displaced weights, and its gradient at these places."""
        count = count or self.count
        self.passes += GRADIENT * count / self.count
        loss, gradient = slope(self.landscape.objective, self.moved(places, change), count)
        return loss, gradient[places]

    @cached_property
    def gradient(self) -> np.ndarray:
        """Of all trainable weights at the model itself; it is taken once."""
        nowhere = np.zeros(0, int)
        self.passes += GRADIENT
        return slope(self.landscape.objective, self.moved(nowhere, np.zeros(0)), self.count)[1]

    @cached_property
    def centre(self) -> tuple[float, float]:
        """Loss and accuracy at the model itself."""
        return self._sums(np.zeros(0, int), np.zeros(0), None)


def slope(objective: "Objective", weights: np.ndarray, count: int) -> tuple[float, np.ndarray]:
    """The mean loss over the first samples, and its gradient.

    Args:
        objective: The loss.
        weights: Shape (layout.size,).
        count: How many samples.

    Returns:
        The loss, and the gradient with respect to the trainable weights in float64, (layout.num_trainable,).
    """
    graph = objective.engines.get("slope") or objective.engines.setdefault("slope", _slope(objective))
    with inputs_that_fit():
        loss, gradient = graph(weights, count)
    return float(loss), gradient.numpy()[: objective.layout.num_trainable]


def _slope(objective: "Objective") -> Callable[..., Any]:
    size = objective.batch_size

    def graph(weights: Any, count: Any) -> Any:
        def step(begin: Any, total: Any, slopes: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(objective.batch_losses(weights, begin, tf.minimum(begin + size, count))[0])
            return begin + size, total + loss, slopes + tf.cast(tape.gradient(loss, weights), tf.float64)

        zero = tf.zeros([], tf.float64)
        start = (0, zero, tf.zeros([objective.layout.size], tf.float64))
        _, loss, slopes = tf.while_loop(lambda begin, *_: begin < count, step, start)
        return loss / tf.cast(count, tf.float64), slopes / tf.cast(count, tf.float64)

    return compiled(graph, ([objective.layout.size], tf.float32), ([], tf.int32))

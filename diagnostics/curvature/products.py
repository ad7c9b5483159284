"""Products of a vector with the second derivatives of an objective, traced into one graph.

Hessian: the derivative of the gradient along the vector (forward over reverse; Pearlmutter, "Fast Exact
    Multiplication by the Hessian", 1994), or, where an operation cannot be followed forward, the gradient of the
    gradient's product with it.
GGN: J^T H J, with the outputs' Jacobian J and the loss's own Hessian H there (Schraudolph, 2002).

Sums over samples are in float64; what a batch gives is as exact as the model's own arithmetic.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from feddual._lazy import tf
from feddual.errors import UserError
from feddual.functional.graphs import compiled
from feddual.functional.layout import Entry
from feddual.functional.network import Values, taken

if TYPE_CHECKING:
    from diagnostics.surfaces.objective import Objective

KINDS = ("hessian", "ggn")
# First derivatives that TensorFlow takes for constants, silently, when it differentiates again.
SILENT = ("ResizeBilinearGrad", "SparseAddGrad", "FakeQuantWithMinMaxArgsGradient", "FakeQuantWithMinMaxVarsGradient")


class Products:
    """What is traced for one objective and some of its tensors: gradient, Hessian and GGN products of the mean loss."""

    def __init__(self, objective: "Objective", entries: Sequence[Entry]):
        """Args: the objective, and the entries of its layout that the derivatives are taken with respect to."""
        self._objective, self._entries = objective, tuple(entries)
        self._places = {entry.path: place for place, entry in enumerate(self._entries)}
        self._sizes = [entry.stop - entry.start for entry in self._entries]
        doubles = any(str(v.dtype) == "float64" for v in objective.network.whole.trainable_variables)
        self._dtype = tf.float64 if doubles else tf.float32
        self.mode = ""  # of the Hessian's products, once they are compiled

    def gradient(self) -> Callable[..., Any]:
        """Compiled: from weights to the gradient of the mean loss."""
        return self._compile(lambda tensors, values, tangents, begin, end: self._slope(tensors, values, begin, end))

    def hessian(self) -> Callable[..., Any]:
        """Compiled: from weights and a vector to the Hessian's product with it."""
        modes = {"forward over reverse": self._forward_over_reverse, "reverse over reverse": self._reverse_over_reverse}
        failed: list[Exception] = []
        for name, batch in modes.items():
            try:
                made = self._compile(batch)
                self.mode = name
                return made
            except (LookupError, ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:
                failed.append(error)
        raise UserError(
            f"kind: the model has an operation without a second derivative, so its loss has no Hessian: "
            f"{_said(failed[-1])}"
        ) from failed[-1]

    def ggn(self) -> Callable[..., Any]:
        """Compiled: from weights and a vector to the GGN's product with it."""
        hessian = self._hessian_of_loss()
        failed: list[Exception] = []
        for push in (_pushed, _pushed_backwards):
            try:
                return self._compile(self._through_outputs(push, hessian))
            except (LookupError, ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:
                failed.append(error)
        raise UserError(
            f"kind: the model has an operation that cannot be followed forward, so it has no GGN: {_said(failed[-1])}"
        ) from failed[-1]

    # --- one batch; each takes (tensors, values, tangents, begin, end) and gives one tensor per entry

    def _loss(self, values: Values, begin: Any, end: Any) -> Any:
        return tf.reduce_sum(self._objective.batch_losses_at(values, begin, end)[0])

    def _slope(self, tensors: list[Any], values: Values, begin: Any, end: Any) -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            loss = self._loss(values, begin, end)
        return _dense(tape.gradient(loss, tensors, unconnected_gradients="zero"))

    def _forward_over_reverse(
        self, tensors: list[Any], values: Values, tangents: list[Any], begin: Any, end: Any
    ) -> list[Any]:
        with tf.autodiff.ForwardAccumulator(tensors, tangents) as forward:
            slopes = _twice(self._slope(tensors, values, begin, end))
        return _dense(forward.jvp(slopes, unconnected_gradients="zero"))

    def _reverse_over_reverse(
        self, tensors: list[Any], values: Values, tangents: list[Any], begin: Any, end: Any
    ) -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            slopes = _twice(self._slope(tensors, values, begin, end))
            along = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(slopes, tangents, strict=True)])
        return _dense(tape.gradient(along, tensors, unconnected_gradients="zero"))

    def _through_outputs(self, push: Callable[..., Any], hessian: Callable[..., Any]) -> Callable[..., list[Any]]:
        objective = self._objective

        def batch(tensors: list[Any], values: Values, tangents: list[Any], begin: Any, end: Any) -> list[Any]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(tensors)
                outputs, moved = push(
                    lambda: objective.taken_by_loss(objective.outputs_at(values, begin, end)[0]), tensors, tangents
                )
            bent = hessian(outputs, moved)
            weights = objective.weighted(tf.ones([tf.shape(outputs)[0]], tf.float64), begin)
            shape = tf.concat([tf.shape(outputs)[:1], tf.ones([tf.rank(outputs) - 1], tf.int32)], 0)
            bent *= tf.cast(tf.reshape(weights, shape), bent.dtype)
            return _dense(tape.gradient(outputs, tensors, output_gradients=bent, unconnected_gradients="zero"))

        return batch

    def _hessian_of_loss(self) -> Callable[[Any, Any], Any]:
        """The product of a sample's loss's Hessian at its outputs with a change of them; where it is known."""
        objective = self._objective
        if objective.kind == "crossentropy" and not objective.is_clipped:
            return _bent_entropy
        if objective.is_squares:
            return _bent_squares
        raise UserError(
            "kind: 'ggn' is for cross-entropy from logits and mse, whose second derivatives are known; this loss is "
            f"{objective.loss_name}; take kind='hessian'"
        )

    # --- all batches

    def _compile(self, batch: Callable[..., list[Any]]) -> Callable[..., Any]:
        objective, count, size = self._objective, len(self._objective.x), self._objective.batch_size
        total = sum(self._sizes)

        def run(weights: Any, vector: Any) -> Any:
            tensors = [tf.cast(taken(weights, entry), self._dtype) for entry in self._entries]
            parts = tf.split(tf.cast(vector, self._dtype), self._sizes)
            tangents = [tf.reshape(part, entry.shape) for part, entry in zip(parts, self._entries, strict=True)]

            def values(entry: Entry) -> Any:
                place = self._places.get(entry.path)
                return taken(weights, entry) if place is None else tensors[place]

            def step(begin: Any, sums: Any) -> Any:
                end = tf.minimum(begin + size, count)
                found = batch(tensors, values, tangents, begin, end)
                flat = tf.concat([tf.reshape(part, [-1]) for part in found], 0)
                return end, sums + tf.cast(flat, tf.float64)

            zero = tf.zeros([total], tf.float64)
            return tf.while_loop(lambda begin, _: begin < count, step, (0, zero))[1] / count

        with _exact_moments():
            return compiled(run, ([objective.layout.size], tf.float32), ([total], tf.float64))


@contextmanager
def _exact_moments() -> Iterator[None]:
    """While a graph is traced, a variance that can be differentiated twice.

    TensorFlow's own stops the gradient at the mean, which changes no first derivative, but every second one: layer and
    group normalisation would silently have another Hessian.
    """

    def moments(x: Any, axes: Any, shift: Any = None, keepdims: bool = False, name: Any = None) -> tuple[Any, Any]:
        mean = tf.reduce_mean(x, axes, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), axes, keepdims=keepdims)
        return mean if keepdims else tf.squeeze(mean, axes), variance

    library, own = tf.nn, tf.nn.moments
    library.moments = moments
    try:
        yield
    finally:
        library.moments = own


def _dense(parts: Sequence[Any]) -> list[Any]:
    """An embedding's derivative comes as rows and their places."""
    return [tf.convert_to_tensor(part) for part in parts]


def _twice(slopes: list[Any]) -> list[Any]:
    """Traced: the same, if no operation on the way to them has a derivative that would be left out."""
    used = {operation.type for operation in slopes[0].graph.get_operations()}
    lost = sorted(used & set(SILENT))
    if lost:
        raise LookupError(f"{', '.join(lost)}: TensorFlow has no derivative of it")
    return slopes


def _pushed(function: Callable[[], Any], tensors: list[Any], tangents: list[Any]) -> tuple[Any, Any]:
    """A function's value and its derivative along tangents."""
    with tf.autodiff.ForwardAccumulator(tensors, tangents) as forward:
        value = function()
    return value, forward.jvp(value, unconnected_gradients="zero")


def _pushed_backwards(function: Callable[[], Any], tensors: list[Any], tangents: list[Any]) -> tuple[Any, Any]:
    """The same by reverse mode alone: J v is the gradient of u -> (J^T u) . v."""
    value = function()
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        along = tf.zeros_like(value)
        outer.watch(along)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(tensors)
            again = function()
        pulled = _dense(inner.gradient(again, tensors, output_gradients=along, unconnected_gradients="zero"))
        product = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(pulled, tangents, strict=True)])
    return value, outer.gradient(product, along, unconnected_gradients="zero")


def _per_output(outputs: Any) -> Any:
    """How many numbers a sample's loss is the mean over: of entropies for its places, of squares for its outputs."""
    return tf.cast(tf.reduce_prod(tf.shape(outputs)[1:]), outputs.dtype)


def _bent_entropy(outputs: Any, change: Any) -> Any:
    chances = tf.nn.softmax(outputs)
    bent = chances * (change - tf.reduce_sum(chances * change, -1, keepdims=True))
    return bent * tf.cast(tf.shape(outputs)[-1], outputs.dtype) / _per_output(outputs)


def _bent_squares(outputs: Any, change: Any) -> Any:
    return 2 * change / _per_output(outputs)


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return np.str_(lines[0] if lines else type(error).__name__).item()[:300]

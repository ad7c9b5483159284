"""Compiling functions, and running them over slices of data."""

from collections.abc import Callable
from typing import Any

from feddual._lazy import tf


def compiled(function: Callable[..., Any], *specs: Any) -> Callable[..., Any]:
    """One graph of a function, traced once for these (shape, dtype) pairs; it takes arrays or tensors."""
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in specs]
    # The concrete function: tf.function itself logs warnings when many of one source line are made.
    graph = tf.function(function, autograph=False, input_signature=signature).get_concrete_function()
    return lambda *values: graph(*(tf.convert_to_tensor(v, s.dtype) for v, s in zip(values, signature, strict=True)))


def in_batches(graph: Callable[..., Any], size: int, x: Any, *others: Any) -> Any:
    """A compiled function over slices of `x`, its results put together: for what is computed once."""
    return tf.concat([graph(x[begin : begin + size], *others) for begin in range(0, len(x), size)], 0)

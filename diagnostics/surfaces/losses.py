"""Losses as users give them: what they compute, what people read, and what tells one from another."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import fingerprint

Loss = str | Callable[[Any, Any], Any] | None
CROSS_ENTROPY = ("crossentropy", "sparse_categorical_crossentropy", "categorical_crossentropy")
LIBRARIES = ("keras", "numpy", "tensorflow")  # their functions are known by name
PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))


def resolve_loss(loss: Loss) -> tuple[str, Callable[[Any, Any], Any]]:
    """What kind of loss it is, and the function from (targets, outputs) to losses."""
    if loss is None or (isinstance(loss, str) and loss in CROSS_ENTROPY) or _is_plain_entropy(loss):
        return "crossentropy", lambda y, z: tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    if isinstance(loss, str) and loss == "mse":
        return "mse", lambda y, z: tf.square(tf.reshape(tf.cast(y, z.dtype), tf.shape(z)) - z)
    if isinstance(loss, keras.losses.Loss):
        return "custom", loss.call
    if callable(loss):
        return "custom", loss
    raise UserError(f"loss: {loss!r} is unknown; allowed: crossentropy, mse, or a function of (targets, outputs)")


def _is_plain_entropy(loss: Any) -> bool:
    """Whether a Keras loss is cross-entropy and nothing else, so that it can be taken from logits."""
    if not isinstance(loss, (keras.losses.SparseCategoricalCrossentropy, keras.losses.CategoricalCrossentropy)):
        return False
    smooth, ignored, axis = (getattr(loss, key, None) for key in ("label_smoothing", "ignore_class", "axis"))
    return not smooth and ignored is None and axis in (None, -1)


def loss_name(loss: Loss) -> str:
    """For people: the function's or class's own name."""
    kind, _ = resolve_loss(loss)
    if kind != "custom":
        return kind
    while isinstance(loss, functools.partial):
        loss = loss.func
    found = getattr(loss, "__name__", type(loss).__name__)
    return "a loss of one's own" if found == "<lambda>" else found


def loss_hash(loss: Loss) -> str | None:
    """Tells losses of one's own apart, in any process, by their code and values; None for a built-in one."""
    if resolve_loss(loss)[0] != "custom":
        return None
    return hashlib.sha256(repr(_described(loss, {})).encode()).hexdigest()[:16]


def _described(value: Any, seen: dict[int, Any]) -> Any:
    """All that decides what a function or object computes, as text: no addresses, no order of chance.

    Args:
        value: What to describe.
        seen: Functions and objects on the way here, which may lead back to themselves.
    """
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return [_described(item, seen) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(_described(item, seen)) for item in value)
    if isinstance(value, Mapping):
        return sorted((str(key), str(_described(item, seen))) for key, item in value.items())
    if _is_array(value):
        return fingerprint(np.asarray(value))
    if inspect.iscode(value):
        return [value.co_code.hex(), value.co_names, _described(value.co_consts, seen)]
    if id(value) in seen:
        return "seen"
    seen[id(value)] = value
    if isinstance(value, functools.partial):
        return [_described(part, seen) for part in (value.func, value.args, value.keywords)]
    if inspect.ismethod(value):
        return [_described(part, seen) for part in (value.__func__, value.__self__)]
    value = getattr(value, "python_function", value)  # of a tf.function
    place = [getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__)]
    if inspect.isfunction(value) and place[0].partition(".")[0] not in LIBRARIES:
        return [*place, *(_described(part, seen) for part in _parts(value))]
    if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
        return place
    if isinstance(value, keras.layers.Layer):
        return [*place, _described(value.get_weights(), seen)]
    # Keras numbers its names over the process, and a reduction is not asked for.
    held = {key: item for key, item in getattr(value, "__dict__", {}).items() if key not in ("name", "reduction")}
    code = [getattr(type(value), method, None) for method in ("call", "__call__")]
    return [*place, _described(code, seen), _described(held, seen)]


def _parts(function: Any) -> list[Any]:
    """Code, defaults, and the values taken from around it; of globals, data and functions of the same module."""
    around = inspect.getclosurevars(function)
    near = {
        key: item
        for key, item in around.globals.items()
        if isinstance(item, (*PLAIN, list, tuple, set, frozenset, Mapping))
        or _is_array(item)
        or (inspect.isfunction(item) and item.__module__ == function.__module__)
    }
    return [function.__code__, function.__defaults__, function.__kwdefaults__, around.nonlocals, near]


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "numpy")

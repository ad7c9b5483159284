"""Losses as users give them: what they compute, what people read, and what tells one from another."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional._keras import as_loss, weights_of_losses
from feddual.functional.layout import fingerprint

Loss = str | Callable[[Any, Any], Any] | None
Function = Callable[[Any, Any], Any]  # from (targets, outputs) to losses
OWN = ("crossentropy", "mse")  # names that are no names of Keras, or mean more here
# Keras' cross-entropies, by the name of their functions, and the activation whose outputs they take.
ENTROPIES = {
    "sparse_categorical_crossentropy": ("SparseCategoricalCrossentropy", "softmax"),
    "categorical_crossentropy": ("CategoricalCrossentropy", "softmax"),
    "binary_crossentropy": ("BinaryCrossentropy", "sigmoid"),
}
MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")  # reductions that batches do not change
LIBRARIES = ("keras", "numpy", "tensorflow")  # their functions are known by name
PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))


@dataclass(frozen=True)
class Meant:
    """A loss as it is meant: what it computes, and what it takes a network's outputs for."""

    kind: str  # crossentropy (of labels), mse or custom
    of_outputs: Function
    of_logits: Function | None = None  # for a network whose last activation is taken off
    end: str = ""  # that activation
    takes: str = "anything"  # probabilities, logits for certain, or `logits?`: what looks otherwise is refused


def resolve_loss(loss: Loss, y: Any = None) -> Meant:
    """What a user's loss means for these targets."""
    loss = canonical(loss)
    if loss is None or loss == "crossentropy":
        return Meant("crossentropy", _entropy, _entropy, "softmax", "logits?")
    if loss == "mse":
        return Meant("mse", lambda y, z: tf.square(tf.reshape(tf.cast(y, z.dtype), tf.shape(z)) - z))
    if isinstance(loss, keras.losses.Loss):
        end = {name: end for name, end in ENTROPIES.values()}.get(type(loss).__name__)
        if end is None or not type(loss).__module__.startswith("keras."):
            return Meant("custom", _as_keras_calls(loss))
        takes = "logits" if loss.from_logits else "probabilities"
        if _is_plain_entropy(loss) and (y is None or not hasattr(loss, "label_smoothing") or _is_labels(y)):
            return Meant("crossentropy", _entropy if loss.from_logits else _of_probabilities, _entropy, end, takes)
        twin = type(loss).from_config(loss.get_config() | {"from_logits": True})
        return Meant("custom", _as_keras_calls(loss), _as_keras_calls(twin), end, takes)
    if callable(loss):
        return Meant("custom", loss)
    raise UserError(f"loss: {loss!r} is unknown; {_ALLOWED}")


_ALLOWED = "allowed: crossentropy, mse, a loss of Keras or its name, or a function of (targets, outputs)"


def canonical(loss: Any) -> Any:
    """A loss with the names of Keras resolved, and its functions for cross-entropy as the objects they stand for."""
    if isinstance(loss, str) and loss not in OWN:
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            raise UserError(f"loss: {loss!r} is unknown; {_ALLOWED}") from None
    name = getattr(loss, "__name__", "")
    if name in ENTROPIES and loss.__module__.startswith("keras."):
        return getattr(keras.losses, ENTROPIES[name][0])()
    return loss


def compiled_loss(model: Any, y: np.ndarray) -> Loss:
    """The loss that a model was compiled with, None without one.

    Raises:
        UserError: Where the number that Keras reports is not the mean of one function over samples.
    """
    own = [name for name in ("compute_loss", "test_step") if not _is_of_keras(getattr(type(model), name))]
    if own:
        raise UserError(f"loss: {model.name!r} has a {own[0]} of its own; give loss= a function of (targets, outputs)")
    loss = model.loss if model.compiled else None
    if isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    if loss is None:
        return None
    if isinstance(loss, (list, tuple, dict)) or weights_of_losses(model) is not None:
        raise UserError(
            f"loss: {model.name!r} is compiled with several losses or loss_weights; pass the one that is meant"
        )
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):  # as Keras chooses among them
        classes = model.output_shape[-1]
        sparse = y.ndim < len(model.output_shape) or y.shape[-1] == 1
        loss = "binary_crossentropy" if classes == 1 else f"{'sparse_' * sparse}categorical_crossentropy"
    loss = canonical(keras.losses.get(loss))
    loss = loss if isinstance(loss, keras.losses.Loss) else as_loss(loss)
    if loss.reduction not in MEANS:
        raise UserError(
            f"loss: {model.name!r} is compiled with one whose reduction is {loss.reduction!r}, which depends on the "
            "batches; pass loss= the same with the default reduction, the mean over samples"
        )
    return loss


def _is_of_keras(function: Any) -> bool:
    return bool(function.__module__.startswith("keras."))


def _entropy(y: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def _of_probabilities(y: Any, outputs: Any) -> Any:
    """As Keras computes it: of probabilities clipped at 1e-7, and made to add up to one."""
    tiny = keras.config.epsilon()
    return _entropy(y, tf.math.log(tf.clip_by_value(outputs, tiny, 1 - tiny)))


def _as_keras_calls(loss: Any) -> Function:
    """The losses before their mean; Keras gives its losses targets and outputs of one type."""
    return lambda y, z: loss.call(tf.cast(y, loss.dtype), z if z.dtype == loss.dtype else tf.cast(z, loss.dtype))


def _is_plain_entropy(loss: Any) -> bool:
    """Whether a Keras loss is cross-entropy over classes and nothing else, so that labels are enough."""
    if type(loss).__name__ not in ("SparseCategoricalCrossentropy", "CategoricalCrossentropy"):
        return False
    smooth, ignored, axis = (getattr(loss, key, None) for key in ("label_smoothing", "ignore_class", "axis"))
    return not smooth and ignored is None and axis in (None, -1)


def _is_labels(y: np.ndarray) -> bool:
    """Whether targets are one class per sample, as numbers or one-hot rows; soft targets are not."""
    return y.ndim == 1 or bool(((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all())


def loss_name(loss: Any) -> str:
    """For people: the function's or class's own name."""
    loss = canonical(loss)
    if (kind := resolve_loss(loss).kind) != "custom":
        return kind
    while isinstance(loss, functools.partial):
        loss = loss.func
    if type(loss) is type(as_loss(len)):
        loss = loss.fn
    found = getattr(loss, "__name__", type(loss).__name__)
    return "a loss of one's own" if found == "<lambda>" else found


def is_squares(loss: Any) -> bool:
    """Whether a loss is the mean of squares and nothing else."""
    loss = canonical(loss)
    if isinstance(loss, str):
        return loss == "mse"
    if type(loss) is type(as_loss(len)):
        loss = loss.fn
    return type(loss) is keras.losses.MeanSquaredError or loss is keras.losses.mean_squared_error


def loss_hash(loss: Loss) -> str | None:
    """Tells losses of one's own apart, in any process, by their code and values; None for a built-in one."""
    loss = canonical(loss)
    if resolve_loss(loss).kind != "custom":
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

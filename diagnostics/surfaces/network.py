"""A private copy of a model, cut where a diagnostic needs it, as a function of one weight vector.

The user's model is read and never changed. Cutting a Keras model adds nodes to its layers, so all surgery happens on
a copy; a model that cannot be copied (a subclass without a config) is used as it is, uncut, through `stateless_call`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import Entry, Layout, moving_statistics
from feddual.models import seeded_initialisers, split

TOLERANCE = 1e-4  # relative; a rewrite that is further from the plain path is not used


class Network:
    """The evaluated copy of a model."""

    def __init__(self, model: Any, logits: bool = True, frozen: bool = False, dropout: bool = True):
        """Copy a model.

        Args:
            model: A built Keras model with one input and one output.
            logits: Take a softmax at the end off.
            frozen: Treat frozen layers as trainable, so that directions may move them.
            dropout: Off, dropout and noise layers are taken out, so that training mode is only batch statistics.
        """
        check(model)
        self.whole: Any = copy_of(model, dropout)
        self.is_copy = self.whole is not None
        if self.whole is None:
            if frozen or not dropout:
                raise UserError(
                    f"model: {model.name!r} cannot be copied (it has no config), which frozen=True and "
                    "bn='recalibrate' with dropout need; build it from layers (functional or Sequential)"
                )
            self.whole = model
        elif logits:
            with seeded_initialisers(0):
                cut = without_softmax(self.whole)
            self.whole = cut if cut is self.whole else fresh(cut)
        if frozen:
            for layer in self.whole._flatten_layers():
                layer.trainable = True
        if not self.whole.trainable_variables:
            raise UserError(f"model: {model.name!r} has no trainable weights; frozen=True looks at frozen ones")
        self.layout = Layout.of_model(self.whole)
        self.prefix: Any | None = None
        self.rest = self.whole

    def cut(self) -> None:
        """Take the leading frozen layers off: `rest` then maps their features to the outputs."""
        if self.is_copy and is_functional(self.whole):
            prefix, rest = split(fresh(self.whole), penultimate=False)  # a cut leaves traces, even one that fails
            if prefix is not None:
                self.prefix, self.rest = prefix, fresh(rest)

    def join(self) -> None:
        """Undo `cut`."""
        self.prefix, self.rest = None, self.whole

    def mismatch(self, x: Any, features: Any) -> float:
        """How far `rest` of a few samples' features is from the whole network: relative to the largest output."""
        whole, rest = (
            np.asarray(part(values, training=False), np.float64)
            for part, values in ((self.whole, x), (self.rest, features))
        )
        finite = np.isfinite(whole)
        if (finite != np.isfinite(rest)).any():
            return float("inf")
        largest = np.max(np.abs(whole[finite]), initial=0.0)
        return float(np.max(np.abs(whole - rest)[finite], initial=0.0) / (largest + 1e-6))

    def bind(self, part: Any | None = None) -> "Bound":
        """A part (`rest` by default) that takes its weights from the vector."""
        part = self.rest if part is None else part
        return Bound(part, entries_of(part, self.layout))


def entries_of(part: Any, layout: Layout) -> dict[int, Entry]:
    """The entry of each variable of what comes after a cut, which holds the last variables in their order."""
    found: dict[int, Entry] = {}
    for variables, trainable in ((part.trainable_variables, True), (moving_statistics(part), False)):
        entries = [entry for entry in layout.entries if entry.trainable == trainable]
        entries = entries[len(entries) - len(variables) :]
        for variable, entry in zip(variables, entries, strict=True):
            if tuple(variable.shape) != entry.shape:
                raise ValueError("the part does not hold the last of the model's weights in their order")
            found[id(variable)] = entry
    return found


class Bound:
    """A model or layer that takes slices of the weight vector where its variables stand."""

    def __init__(self, part: Any, entries: dict[int, Entry]):
        self.part = part
        self._takes_training = getattr(part, "_call_has_training_arg", True)
        # What is not in the vector stays as it is now, whatever happens to the model later.
        self._trainable, self._others = (
            [entries.get(id(v)) or tf.constant(v.numpy()) for v in variables]
            for variables in (part.trainable_variables, part.non_trainable_variables)
        )

    def __call__(self, weights: Any, x: Any, training: bool = False) -> tuple[Any, list[Any]]:
        """Traced: the outputs, and the non-trainable variables after them."""
        values = [
            [value if tf.is_tensor(value) else tf.cast(taken(weights, value), v.dtype) for value, v in pairs]
            for pairs in (
                zip(self._trainable, self.part.trainable_variables, strict=True),
                zip(self._others, self.part.non_trainable_variables, strict=True),
            )
        ]
        arguments = {"training": training} if self._takes_training else {}
        return self.part.stateless_call(*values, x, **arguments)


def taken(weights: Any, entry: Any) -> Any:
    """Traced: one tensor out of a weight vector."""
    return tf.reshape(weights[entry.start : entry.stop], entry.shape)


def check(model: Any) -> None:
    """Refuse what cannot be evaluated, saying why."""
    if not isinstance(model, keras.Model):
        raise UserError(f"model: expected a keras.Model or a run, got {type(model).__name__}")
    if not model.built:
        raise UserError(f"model: {model.name!r} has no weights yet; call it once or give it an Input")
    if is_functional(model) and (len(model.inputs) != 1 or len(model.outputs) != 1):
        raise UserError(
            f"model: {model.name!r} has {len(model.inputs)} inputs and {len(model.outputs)} outputs; surfaces need "
            "one of each. Wrap it: keras.Model(one_input, one_output)"
        )


def is_functional(model: Any) -> bool:
    """Whether Keras knows the graph of its layers."""
    return isinstance(model, keras.Sequential) or hasattr(model, "_functional") or hasattr(model, "_operations")


def copy_of(model: Any, dropout: bool = True) -> Any | None:
    """A model of the same layers with weights of its own; None if Keras cannot make one."""

    def cloned(layer: Any) -> Any:
        config = layer.get_config()
        if not dropout:
            config |= {key: 0.0 for key in ("rate", "stddev") if key in config}
        return type(layer).from_config(config)

    if not is_functional(model):
        return None
    try:
        with seeded_initialisers(0):  # their draws must not move the caller's random numbers
            copy = keras.models.clone_model(model, clone_function=None if dropout else cloned)
        for layer in model.layers:  # by name: two graphs need not list their branches in one order
            if layer.weights:
                copy.get_layer(layer.name).set_weights(layer.get_weights())
    except Exception:  # whatever a user's layer raises when it is rebuilt from its config
        return None
    for ours, theirs in zip(copy._flatten_layers(), model._flatten_layers(), strict=True):
        ours.trainable = theirs.trainable
    return copy


def fresh(model: Any) -> Any:
    """A copy without the traces that cutting leaves in layers, which would hinder the next cut."""
    copy = copy_of(model)
    return model if copy is None else copy


def without_softmax(model: Any) -> Any:
    """The model up to its logits, if it ends in a softmax; else the model itself."""
    last = model.outputs[0]._keras_history.operation
    inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]  # a list of one would have to be called by one
    if type(last).__name__ == "Softmax" or (isinstance(last, keras.layers.Activation) and _is_softmax(last)):
        return keras.Model(inputs, last.input, name=model.name)
    if _is_softmax(last):
        config: dict[str, Any] = last.get_config()
        linear = type(last).from_config(config | {"activation": "linear"})
        logits = linear(last.input)
        linear.set_weights(last.get_weights())
        return keras.Model(inputs, logits, name=model.name)
    if isinstance(last, keras.Model) and is_functional(last):
        inner = without_softmax(last)
        return model if inner is last else keras.Model(inputs, inner(last.input), name=model.name)
    return model


def _is_softmax(layer: Any) -> bool:
    return getattr(getattr(layer, "activation", None), "__name__", "") == "softmax"


def compiled(function: Callable[..., Any], *specs: Any) -> Callable[..., Any]:
    """One graph of a function, traced once for these (shape, dtype) pairs; it takes arrays or tensors."""
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in specs]
    # The concrete function: tf.function itself logs warnings when many of one source line are made.
    graph = tf.function(function, autograph=False, input_signature=signature).get_concrete_function()
    return lambda *values: graph(*(tf.convert_to_tensor(v, s.dtype) for v, s in zip(values, signature, strict=True)))


def in_batches(graph: Callable[..., Any], size: int, x: Any, *others: Any) -> Any:
    """A compiled function over slices of `x`, its results put together: for what is computed once."""
    return tf.concat([graph(x[begin : begin + size], *others) for begin in range(0, len(x), size)], 0)

"""Taking models apart, and copying them.

A cut makes a new Keras model of some of a model's layers. It adds nodes to those layers, so a user's model is never
cut itself: that happens to a copy, and a copy is compared with its model before it is used (`checked_copy`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from feddual._lazy import keras
from feddual.functional import _keras
from feddual.functional._keras import is_functional, seeded_initialisers

TOLERANCE = 1e-4  # relative; what is further from the plain path, or from the model itself, is not used


# --- cuts -----------------------------------------------------------------------------------------------------------


def split(model: Any, penultimate: bool = True) -> tuple[Any | None, Any]:
    """Cut a model after its leading frozen layers.

    Only a chain of layers is cut; anything else is trained whole. Layers without weights that follow a frozen one
    (pooling, flattening) belong to the prefix, since their output is the smaller thing to keep.

    Args:
        model: A functional or Sequential model.
        penultimate: Off, the rest has the logits only, and may be a single layer.

    Returns:
        The prefix, or None, and the rest with two outputs: penultimate activations and logits.
    """
    cut = None
    for layer in model.layers:
        if layer.trainable_variables or any(map(_keras.is_random_state, layer.variables)):
            break
        if layer.weights or cut is not None:
            cut = layer
    rest = tail(model, cut, penultimate) if cut is not None else None
    if cut is None or rest is None:
        return None, keras.Model(model.inputs[0], _outputs(model, penultimate), name="trained")
    return keras.Model(model.inputs[0], cut.output, name="prefix"), rest


def tail(model: Any, layer: Any, penultimate: bool = True) -> Any | None:
    """What comes after one of a chain's leading layers, with the same outputs as `split`; None if there is no chain."""
    previous = None
    for other in model.layers:
        if previous is not None and not (_keras.is_called_once(other) and other.input is previous.output):
            return None
        previous = other
        if other is layer:
            break
    try:
        return keras.Model(layer.output, _outputs(model, penultimate), name="rest")
    except ValueError:  # something further on looks back past the cut
        return None


def _outputs(model: Any, penultimate: bool) -> Any:
    """Penultimate activations and logits, or the logits only."""
    output, last = model.outputs[0], model.layers[-1]
    if not penultimate:
        return output
    single = _keras.is_called_once(last) and last.output is output and last.weights
    return [last.input if single else output, output]


def chain(model: Any) -> list[Any]:
    """The leading layers, each of which takes the one before it and nothing else.

    Raises:
        ValueError: If there is none.
    """
    found: list[Any] = []
    output = model.inputs[0]
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        if not _keras.is_called_once(layer) or layer.input is not output:
            break
        found.append(layer)
        output = layer.output
    if not found:
        raise ValueError("the model does not begin with a chain of layers")
    return found


def at_first(model: Any, variables: set[int]) -> tuple[Any | None, Any]:
    """The layers before the first that holds one of these variables, by id, and the rest; (None, model) if it is first.

    Raises:
        ValueError: If that layer is not in the chain, or something further on looks back past the cut.
    """
    last = None
    for layer in chain(model):
        if any(id(variable) in variables for variable in layer.variables):
            break
        last = layer
    else:
        raise ValueError("the first moved layer is not in the chain")
    if last is None:
        return None, model
    before = keras.Model(model.inputs, last.output)
    return before, after(model, last)


def after(model: Any, layer: Any) -> Any:
    """What comes after a layer of the chain; ValueError if something further on looks back past it."""
    return fresh(keras.Model(layer.output, model.outputs[0]))


def to_layers(model: Any, layers: list[Any]) -> Any:
    """The model that gives the outputs of some of its layers."""
    outputs = _keras.outputs_within(model)
    return keras.Model(model.inputs, [outputs[id(layer)] for layer in layers])


def without_end(model: Any, activation: str) -> Any:
    """The model up to what its last activation, `softmax` or `sigmoid`, takes; the model itself if it ends otherwise.

    A layer with weights that is called elsewhere too is left as it is: its twin would have weights of its own.
    """
    inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]  # a list of one would have to be called by one
    last, taken = _last(model)
    if getattr(last, "activity_regularizer", None) is not None:  # it sees what the activation gives
        return model
    alone = isinstance(last, keras.layers.Activation) and _ends(last, activation)
    if alone or type(last).__name__.lower() == activation:
        return keras.Model(inputs, taken[0], name=model.name)
    if not isinstance(last, keras.layers.Layer) or not _keras.is_called_once(last):
        return model
    if _ends(last, activation):
        config: dict[str, Any] = last.get_config()
        linear = type(last).from_config(config | {"activation": "linear"})
        values = linear(taken[0])
        linear.set_weights(last.get_weights())
        return keras.Model(inputs, values, name=model.name)
    if isinstance(last, keras.Model) and is_functional(last):
        inner = without_end(last, activation)
        return model if inner is last else keras.Model(inputs, inner(taken[0]), name=model.name)
    return model


def ends_linearly(model: Any) -> bool:
    """Whether the outputs are those of a layer with weights and no activation: logits or numbers, no probabilities."""
    if not is_functional(model):
        return False
    last, _ = _last(model)
    return ends_linearly(last) if isinstance(last, keras.Model) else hasattr(last, "kernel") and _ends(last, "linear")


def _last(model: Any) -> tuple[Any, list[Any]]:
    """The last operation that does something, and what it takes."""
    last, taken = _keras.origin(model.outputs[0])
    while type(last).__name__ == "Identity" or (isinstance(last, keras.layers.Activation) and _ends(last, "linear")):
        last, taken = _keras.origin(taken[0])
    return last, taken


def _ends(layer: Any, activation: str) -> bool:
    return getattr(getattr(layer, "activation", None), "__name__", "") == activation


# --- copies ---------------------------------------------------------------------------------------------------------


def copy_of(model: Any, dropout: bool = True) -> Any | None:
    """A model of the same layers with weights of its own; None if Keras cannot make one.

    Args:
        model: Any Keras model.
        dropout: Off, dropout and noise layers are taken out.
    """

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
    for ours, theirs in zip(_keras.layers_and_self(copy), _keras.layers_and_self(model), strict=True):
        ours.trainable = theirs.trainable
    return copy


def checked_copy(model: Any, few: Any, dropout: bool = True) -> tuple[Any | None, str]:
    """A copy that gives what the model gives on a few inputs; or None and the reason there is none.

    Keras rebuilds layers from their configs, and a config need not tell all: statistics that `adapt` computed, an
    argument that `get_config` forgets, an attribute set after construction.

    Args:
        model: Any Keras model.
        few: Some inputs, as the model takes them; None where there are none to compare by.
        dropout: As for `copy_of`.
    """
    copy = copy_of(model, dropout)
    if copy is None:
        return None, "Keras cannot rebuild it from its config"
    apart = distance(model, copy, few)
    if apart <= TOLERANCE:
        return copy, ""
    return None, (
        f"a copy that Keras makes of it from its layers' configs is another function (on a few inputs its outputs "
        f"differ by {apart:.1e}, relative): does a layer's get_config leave out an argument, is an attribute set after "
        "construction, or is a Normalization adapted?"
    )


def distance(model: Any, other: Callable[..., Any], few: Any) -> float:
    """How far another function is from a model on a few inputs; 0 where there are none, or they do not fit."""
    try:
        wanted = None if few is None else model(few, training=False)
    except Exception:  # whoever evaluates the model says so better
        wanted = None
    try:
        return 0.0 if wanted is None else mismatch(wanted, other(few, training=False))
    except Exception:  # whatever a user's layer raises that was not rebuilt as it was
        return float("inf")


def mismatch(wanted: Any, found: Any) -> float:
    """How far outputs are from the wanted ones: relative to the largest; infinite where only one is finite."""
    wanted, found = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
    if wanted.shape != found.shape:
        return float("inf")
    finite = np.isfinite(wanted)
    if (finite != np.isfinite(found)).any():
        return float("inf")
    largest = np.max(np.abs(wanted[finite]), initial=0.0)
    return float(np.max(np.abs(wanted - found)[finite], initial=0.0) / (largest + 1e-6))


def fresh(model: Any) -> Any:
    """A copy without the traces that cutting leaves in layers, which would hinder the next cut."""
    copy = copy_of(model)
    return model if copy is None else copy

"""What the project uses of Keras that Keras does not promise. Nothing else touches a private name of it.

`tests/functional/test_keras.py` has a test for each function, which fails when Keras changes what it stands on.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feddual._lazy import keras

# Classes that Keras' layers inherit from, by which a kind of layer is known.
CONVOLUTION, TRANSPOSED = "BaseConv", "BaseConvTranspose"
DEPTHWISE, SEPARABLE = "BaseDepthwiseConv", "BaseSeparableConv"
CONVOLUTIONAL_LSTM = "ConvLSTMCell"


def layers_within(model: Any) -> list[Any]:
    """All layers of a model, those of nested models and composite layers too, in the model's order."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def layers_and_self(model: Any) -> list[Any]:
    """The same with the model itself, first."""
    return list(model._flatten_layers())


def own_variables(layer: Any) -> list[Any]:
    """The variables that a layer itself holds, without those of layers inside it; trainable ones first."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the state of a generator, of dropout for instance."""
    return "seed_generator" in variable.path


def is_functional(model: Any) -> bool:
    """Whether Keras knows the graph of its layers: functional and Sequential models."""
    return isinstance(model, keras.Sequential) or hasattr(model, "_functional") or hasattr(model, "_operations")


def is_called_once(layer: Any) -> bool:
    """Whether a layer stands at one place of a graph only, with one input."""
    return len(layer._inbound_nodes) == 1 and not isinstance(layer.input, list)


def origin(tensor: Any) -> tuple[Any, list[Any]]:
    """The layer or operation that a tensor comes from, and what it took there; elsewhere it may take something else."""
    operation, place, _ = tensor._keras_history
    return operation, list(operation._inbound_nodes[place].input_tensors)


def weights_of_losses(model: Any) -> Any:
    """The `loss_weights` that a model was compiled with."""
    return getattr(model._compile_loss, "_user_loss_weights", None)


def mask_of(tensor: Any) -> Any:
    """The places of a tensor that count, if a layer left some out."""
    return getattr(tensor, "_keras_mask", None)


def as_loss(function: Any) -> Any:
    """A function of (targets, outputs) as the loss that `compile` makes of it."""
    from keras.src.losses.losses import LossFunctionWrapper

    return LossFunctionWrapper(function, name=getattr(function, "__name__", None))


def outputs_within(model: Any) -> dict[int, Any]:
    """The output of each layer within this model, by the layer's id.

    A layer of a cut model also stands in the whole one: its own `output` may belong to that.
    """
    graph = model._functional if isinstance(model, keras.Sequential) else model
    nodes = [node for level in graph._nodes_by_depth.values() for node in level]
    return {id(node.operation): node.outputs[0] for node in nodes}


def takes_training(part: Any) -> bool:
    """Whether a layer's `call` has the argument `training`."""
    return bool(getattr(part, "_call_has_training_arg", True))


@contextmanager
def seeded_initialisers(seed: int) -> Iterator[None]:
    """Keras draws the seeds of unseeded initialisers from Python's generator: fix it here, and leave no trace."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)

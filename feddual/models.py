"""Keras builders with explicit layer names, and the split of a network into a frozen prefix and a trained part.

Each builder is a function `build(input_shape, num_classes, ...) -> keras.Model` that returns logits; its keyword
parameters are keys of the config's `model` section, its name the value of `model.name`. A user's own builder is
`model: {name: "my_package.nets:build", ...}`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from feddual._lazy import keras
from feddual.data import datasets
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.functional._keras import seeded_initialisers
from feddual.functional.network import Network

Shape = Sequence[int]
Activation = Annotated[Literal["relu", "tanh"], Field(description="of the hidden layers")]
Weights = Annotated[str, Field(description="imagenet (found locally or downloaded), random, or a .weights.h5 file")]
Width = Annotated[int, Field(ge=1, description="units of the hidden layer")]
Projection = Annotated[
    int, Field(ge=0, description="MOON's projection head: this many outputs of two layers before the last; 0 for none")
]
BatchNorm = Annotated[bool, Field(description="batch normalisation after each convolution")]
Dropout = Annotated[float, Field(ge=0, lt=1, description="after the two wide layers")]
Hidden = Annotated[list[Width], Field(description="units of each hidden layer; none gives softmax regression")]


def lenet5(input_shape: Shape, num_classes: int, activation: Activation = "relu", projection: Projection = 0) -> Any:
    """LeNet-5 (LeCun et al., 1998) on unpadded images: 44,426 parameters for 28 x 28 x 1 and 10 classes."""
    return _lenet("lenet5", input_shape, num_classes, projection, activation, filters=16, flat=True)


def lenet_published(input_shape: Shape, num_classes: int, projection: Projection = 0) -> Any:
    """The network of the public FedDUAL code: tanh, six filters twice, Dense 120 per pixel; 164,116 parameters."""
    return _lenet("lenet_published", input_shape, num_classes, projection, "tanh", filters=6, flat=False)


def _lenet(
    name: str, input_shape: Shape, num_classes: int, projection: int, activation: str, filters: int, flat: bool
) -> Any:
    """LeNet with so many filters in its second convolution; `flat` where its first dense layer sees all pixels."""
    layers = keras.layers
    return _chain(
        name,
        input_shape,
        layers.Conv2D(6, 5, activation=activation, name="conv1"),
        layers.AveragePooling2D(2, name="pool1"),
        layers.Conv2D(filters, 5, activation=activation, name="conv2"),
        layers.AveragePooling2D(2, name="pool2"),
        *([layers.Flatten(name="flatten")] if flat else []),
        layers.Dense(120, activation=activation, name="dense1"),
        *([] if flat else [layers.Flatten(name="flatten")]),
        layers.Dense(84, activation=activation, name="dense2"),
        *_output(84, num_classes, projection),
    )


def _chain(name: str, input_shape: Shape, *layers: Any) -> Any:
    return keras.Sequential([keras.Input(input_shape, name="images"), *layers], name=name)


def mlp(
    input_shape: Shape,
    num_classes: int,
    hidden: Hidden = [64],  # noqa: B006 - a config's default, never changed
    activation: Activation = "relu",
) -> Any:
    """Fully connected layers."""
    layers = keras.layers
    stack = [layers.Dense(units, activation=activation, name=f"dense{i}") for i, units in enumerate(hidden, 1)]
    return _chain("mlp", input_shape, layers.Flatten(name="flatten"), *stack, layers.Dense(num_classes, name="output"))


def vgg_small(input_shape: Shape, num_classes: int, batch_norm: BatchNorm = False) -> Any:
    """Six 3 x 3 convolutions in the manner of VGG, all trainable: 7 million multiply-adds for 32 x 32 x 3."""
    layers = keras.layers
    stack = [*_blocks([(16, 2), (24, 2), (48, 2)], batch_norm), layers.Flatten(name="flatten")]
    stack.append(layers.Dense(64, activation="relu", name="dense1"))
    return _chain("vgg_small", input_shape, *stack, layers.Dense(num_classes, name="output"))


def _output(width: int, num_classes: int, projection: int) -> list[Any]:
    """The last layer, behind a projection head (Li et al., 2021) where one is asked for."""
    layers = keras.layers
    output = layers.Dense(num_classes, name="output")
    if not projection:
        return [output]
    hidden = layers.Dense(width, activation="relu", name="projection1")
    return [hidden, layers.Dense(projection, name="projection2"), output]


def vgg16(
    input_shape: Shape, num_classes: int, hidden: Width = 64, weights: Weights = "imagenet", projection: Projection = 0
) -> Any:
    """ImageNet's VGG16 convolutions, frozen, average pooling, Dense `hidden`, Dense classes: a trained head."""
    return _vgg16(input_shape, num_classes, hidden, weights, projection, trainable=False)


def vgg16_finetune(input_shape: Shape, num_classes: int, hidden: Width = 64, weights: Weights = "imagenet") -> Any:
    """The same network with every layer trained."""
    return _vgg16(input_shape, num_classes, hidden, weights, 0, trainable=True)


def vgg16_bn_cifar(input_shape: Shape, num_classes: int, dropout: Dropout = 0.5) -> Any:
    """VGG16 with batch normalisation and two layers of 4096, as FedMut trains it from scratch; 33.6 M parameters."""
    layers = keras.layers
    stack = _blocks([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], batch_norm=True)
    stack.append(layers.Flatten(name="flatten"))
    for number in (1, 2):
        stack.append(layers.Dense(4096, activation="relu", name=f"dense{number}"))
        stack.append(layers.Dropout(dropout, name=f"dropout{number}"))
    return _chain("vgg16_bn_cifar", input_shape, *stack, layers.Dense(num_classes, name="output"))


def _blocks(blocks: Sequence[tuple[int, int]], batch_norm: bool) -> list[Any]:
    """Blocks of (width, how many) convolutions, each with pooling behind it."""
    stack: list[Any] = []
    for block, (width, count) in enumerate(blocks, 1):
        for number in range(1, count + 1):
            stack += _convolution(width, f"block{block}_conv{number}", batch_norm)
        stack.append(keras.layers.MaxPooling2D(2, name=f"block{block}_pool"))
    return stack


def _convolution(width: int, name: str, batch_norm: bool) -> list[Any]:
    layers = keras.layers
    if not batch_norm:
        return [layers.Conv2D(width, 3, padding="same", activation="relu", name=name)]
    return [
        layers.Conv2D(width, 3, padding="same", name=name),
        layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn"),
        layers.ReLU(name=f"{name}_relu"),
    ]


def _vgg16(input_shape: Shape, num_classes: int, hidden: int, weights: str, projection: int, trainable: bool) -> Any:
    images = keras.Input(input_shape, name="images")
    base = keras.applications.VGG16(include_top=False, weights=None, input_tensor=images)
    _load_vgg16(base, weights)
    for layer in base.layers:
        layer.trainable = trainable
    x = keras.layers.GlobalAveragePooling2D(name="pool")(base.output)
    x = keras.layers.Dense(hidden, activation="relu", name="dense1")(x)
    for layer in _output(hidden, num_classes, projection):
        x = layer(x)
    return keras.Model(images, x, name="vgg16")


VGG16_FILE = "vgg16_imagenet_notop.weights.h5"


def _load_vgg16(base: Any, weights: str) -> None:
    if weights == "random":
        return
    try:
        if weights == "imagenet":
            original = keras.applications.VGG16(include_top=False, weights="imagenet", input_shape=base.input_shape[1:])
            base.set_weights(original.get_weights())
        else:
            base.load_weights(weights)
    except Exception as error:  # Keras raises bare exceptions for a host out of reach and for a file of another shape
        raise UserError(
            f"model.weights: VGG16 weights {weights!r} cannot be loaded "
            f"({str(error).splitlines()[0][:120]}). Put {VGG16_FILE} into a folder given by --data-dir or "
            "FEDDUAL_DATA, or use weights: random"
        ) from error


_ALL = (lenet5, lenet_published, mlp, vgg16, vgg16_bn_cifar, vgg16_finetune, vgg_small)
MODELS: dict[str, Callable[..., Any]] = {builder.__name__: builder for builder in _ALL}


# --- networks -------------------------------------------------------------------------------------------------------


def build(
    config: Any, input_shape: Shape, num_classes: int, seed: int = 0, data_dir: str | None = None,
    preprocess: str = "auto",
) -> Network:  # fmt: skip
    """Build the network of a config's `model` section; the same seed gives the same initial weights."""
    parameters = config.model_dump()
    name = parameters.pop("name")
    if name in ("vgg16", "vgg16_finetune") and parameters["weights"] == "imagenet":
        parameters["weights"] = str(datasets.find_file(VGG16_FILE, data_dir) or "imagenet")
    builder = plugins.find("models", name, "model.name")
    with seeded_initialisers(seed):
        try:
            model = builder(tuple(input_shape), num_classes, **parameters)
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise UserError(
                f"model.name: {name!r} cannot be built for inputs of shape {tuple(input_shape)} and "
                f"{num_classes} classes: {str(error).splitlines()[0]}"
            ) from error
    _check(model, name, num_classes)
    if preprocess == "auto":
        preprocess = "vgg16" if name in ("vgg16", "vgg16_finetune") else "unit"
    return Network(model, preprocess)


def _check(model: Any, name: str, num_classes: int) -> None:
    if not isinstance(model, keras.Model):
        raise UserError(f"model.name: {name!r} returned {type(model).__name__}, not a keras.Model")
    if isinstance(model.output_shape, list) or tuple(model.output_shape) != (None, num_classes):
        raise UserError(
            f"model.name: {name!r} has outputs of shape {model.output_shape}; expected (None, "
            f"{num_classes}), one logit per class"
        )
    activation = getattr(model.layers[-1], "activation", None)
    if isinstance(model.layers[-1], keras.layers.Softmax) or getattr(activation, "__name__", "") == "softmax":
        raise UserError(f"model.name: {name!r} ends in a softmax; return logits (no activation on the last layer)")
    if not model.trainable_variables:
        raise UserError(f"model.name: {name!r} has no trainable weights")

"""Whatever the model: every point of its surface is what `set_weights` and `evaluate` give there."""

import numpy as np
import pytest

from diagnostics.landscape import loss_surface
from diagnostics.surfaces.directions import Space
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import variables_of

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(40, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(40, 6, 6, 2)).astype(np.float32)
SERIES = RNG.normal(size=(40, 5, 3)).astype(np.float32)
TOKENS = RNG.integers(1, 12, (40, 5))
LABELS = RNG.integers(0, 4, 40)
PLACES = RNG.integers(0, 4, (40, 5))  # a class for each place of a series
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]
SOFT = (0.7 * ONE_HOT + 0.3 * RNG.dirichlet(np.ones(4), 40)).astype(np.float32)
YES = RNG.integers(0, 2, 40)
SEVERAL = RNG.integers(0, 2, (40, 4)).astype(np.float32)
NUMBERS = RNG.normal(size=40).astype(np.float32)
ENTROPY = "sparse_categorical_crossentropy"

KINDS = {}


def kind(x, y, loss=ENTROPY, **options):
    """Enter a kind of model: from its input to its output, data, and the loss it is compiled with."""

    def enter(build):
        KINDS[build.__name__.replace("_", " ")] = (build, x, y, loss, options)
        return build

    return enter


def logits():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def layers():
    return keras.layers


# --- what stands in the middle


@kind(ROWS, LABELS, logits)
def dense(x):
    return layers().Dense(4)(layers().Dense(8, "relu")(x))


@kind(ROWS, LABELS, logits)
def skips(x):
    h = layers().Dense(6, "tanh")(x)
    return layers().Dense(4)(layers().Concatenate()([layers().Add()([h, x]), x]))


@kind(ROWS, LABELS, logits)
def a_shared_layer(x):
    shared = layers().Dense(6, "tanh")
    return layers().Dense(4)(shared(shared(x)))


@kind(ROWS, LABELS, logits)
def nested(x):
    inner = keras.Sequential([keras.Input((6,)), layers().Dense(5, "relu"), layers().Dense(5)])
    return layers().Dense(4)(layers().ReLU()(inner(x)))


@kind(ROWS, LABELS, logits)
def batch_normalisation(x):
    return layers().Dense(4)(layers().BatchNormalization(moving_mean_initializer="ones")(layers().Dense(8)(x)))


@kind(ROWS, LABELS, logits)
def layer_normalisation(x):
    return layers().Dense(4)(layers().LayerNormalization()(layers().Dense(8)(x)))


@kind(IMAGES, LABELS, logits)
def group_normalisation(x):
    h = layers().GroupNormalization(2)(layers().Conv2D(4, 3)(x))
    return layers().Dense(4)(layers().GlobalAveragePooling2D()(h))


@kind(IMAGES, LABELS, logits)
def convolutions(x):
    h = layers().AveragePooling2D(2)(layers().Conv2D(3, 3, activation="relu")(x))
    return layers().Dense(4)(layers().Flatten()(h))


@kind(IMAGES, LABELS, logits)
def transposed_convolution(x):
    return layers().Dense(4)(layers().Flatten()(layers().Conv2DTranspose(2, 3, strides=2)(x)))


@kind(IMAGES, LABELS, logits)
def depthwise_convolution(x):
    return layers().Dense(4)(layers().Flatten()(layers().DepthwiseConv2D(3, depth_multiplier=2)(x)))


@kind(IMAGES, LABELS, logits)
def separable_convolution(x):
    return layers().Dense(4)(layers().Flatten()(layers().SeparableConv2D(3, 3)(x)))


@kind(SERIES, LABELS, logits)
def convolution_of_a_series(x):
    return layers().Dense(4)(layers().GlobalMaxPooling1D()(layers().Conv1D(4, 2, activation="relu")(x)))


@kind(SERIES, LABELS, logits)
def attention(x):
    h = layers().MultiHeadAttention(2, 3)(x, x)
    return layers().Dense(4)(layers().Flatten()(layers().Attention(use_scale=True)([h, x])))


@kind(SERIES, LABELS, logits)
def lstm(x):
    return layers().Dense(4)(layers().LSTM(4)(x))


@kind(SERIES, LABELS, logits)
def gru(x):
    return layers().Dense(4)(layers().GRU(3)(x))


@kind(TOKENS, LABELS, logits)
def embedding(x):
    return layers().Dense(4)(layers().GlobalAveragePooling1D()(layers().Embedding(12, 3)(x)))


@kind(TOKENS, LABELS, logits)
def an_embedding_with_a_mask(x):
    return layers().Dense(4)(layers().LSTM(3)(layers().Embedding(12, 3, mask_zero=True)(x)))


@kind(10 * TOKENS, LABELS, logits, dtype="int64")
def integer_lookup(x):
    h = layers().IntegerLookup(vocabulary=[10 * token for token in range(1, 12)])(x)
    return layers().Dense(4)(layers().Flatten()(layers().Embedding(12, 3)(h)))


@kind(5 + 3 * ROWS, LABELS, logits)
def adapted_normalisation(x):
    layer = layers().Normalization()
    layer.adapt(5 + 3 * ROWS)
    return layers().Dense(4)(layer(x))


@kind(ROWS, LABELS, logits)
def dropout(x):
    return layers().Dense(4)(layers().Dropout(0.5)(layers().Dense(8, "relu")(x)))


@kind(IMAGES, LABELS, logits)
def frozen_layers_first(x):
    h = layers().Flatten()(layers().Conv2D(3, 3, activation="relu", trainable=False)(x))
    return layers().Dense(4)(h)


@kind(ROWS, LABELS, logits)
def prelu(x):
    return layers().Dense(4)(layers().PReLU()(layers().Dense(8)(x)))


@kind(ROWS, LABELS, logits, rtol=5e-3, policy="mixed_float16")  # float16 rounds at 1e-3
def mixed_precision(x):
    return layers().Dense(4)(layers().Dense(8, "relu")(x))


# --- how it ends


@kind(ROWS, LABELS)
def softmax(x):
    return layers().Dense(4, "softmax")(layers().Dense(8, "relu")(x))


@kind(ROWS, LABELS)
def softmax_then_identity(x):
    return layers().Identity()(layers().Dense(4, "softmax")(x))


@kind(ROWS, LABELS)
def softmax_then_linear(x):
    return layers().Activation("linear")(layers().Softmax()(layers().Dense(4)(x)))


@kind(ROWS, LABELS)
def softmax_then_reshape(x):
    return layers().Reshape((4,))(layers().Dense(4, "softmax")(x))


@kind(ROWS, LABELS)
def softmax_called_twice(x):
    layer = layers().Softmax()
    return layer(layers().Dense(4)(layer(layers().Dense(5)(x))))


@kind(ROWS, LABELS)
def a_dense_softmax_called_twice(x):
    layer = layers().Dense(4, "softmax")
    return layer(layer(layers().Dense(4)(x)))


@kind(ROWS, LABELS)
def nested_softmax(x):
    inner = keras.Sequential([keras.Input((6,)), layers().Dense(5, "relu"), layers().Dense(4, "softmax")])
    return inner(layers().Dense(6)(x))


@kind(SERIES, PLACES)
def softmax_at_each_place(x):
    return layers().TimeDistributed(layers().Dense(4, "softmax"))(layers().LSTM(3, return_sequences=True)(x))


@kind(ROWS, LABELS)
def average_of_softmaxes(x):
    return layers().Average()([layers().Dense(4, "softmax")(x), layers().Dense(4, "softmax")(x)])


@kind(ROWS, YES, "binary_crossentropy")
def sigmoid(x):
    return layers().Dense(1, "sigmoid")(layers().Dense(8, "relu")(x))


@kind(ROWS, SEVERAL, "binary_crossentropy")
def several_labels(x):
    return layers().Dense(4, "sigmoid")(x)


@kind(ROWS, LABELS, "crossentropy")
def entropy_of_keras_choice(x):
    return layers().Dense(4, "softmax")(x)


@kind(ROWS, NUMBERS, "mse")
def regression(x):
    return layers().Dense(1)(layers().Dense(8, "relu")(x))


@kind(ROWS, NUMBERS, "huber")
def robust_regression(x):
    return layers().Dense(1)(x)


# --- the loss


def own(y, z):
    return tf.reduce_mean(tf.abs(y - z) ** 1.5, -1)


@kind(ROWS, NUMBERS, lambda: own)
def a_function_as_loss(x):
    return layers().Dense(1)(x)


@kind(ROWS, ONE_HOT, lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.1))
def smoothed_labels(x):
    return layers().Dense(4, "softmax")(x)


@kind(ROWS, SOFT, "categorical_crossentropy")
def soft_labels(x):
    return layers().Dense(4, "softmax")(x)


@kind(ROWS, LABELS, logits, regularisation=True)
def regularisation(x):
    h = layers().Dense(8, "relu", kernel_regularizer="l2", activity_regularizer="l1")(x)
    return layers().Dense(4, kernel_regularizer="l2")(h)


@kind(ROWS, LABELS, ENTROPY, weights=np.linspace(0.2, 3, 40))
def weighted_samples(x):
    return layers().Dense(4, "softmax")(x)


# --- all of them


def compiled(name):
    build, x, _, loss, options = KINDS[name]
    keras.utils.set_random_seed(5)
    keras.config.set_dtype_policy(options.get("policy", "float32"))
    try:
        inputs = keras.Input(x.shape[1:], dtype=options.get("dtype"))
        model = keras.Model(inputs, build(inputs))
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(loss=loss() if callable(loss) else loss, jit_compile=False)
    return model


def set_weights(model, layout, vector):
    """By Keras' own door; what is not in the vector (frozen weights, seeds) stays."""
    parts = dict(zip(map(id, variables_of(model)), layout.split(vector).values(), strict=True))
    model.set_weights([parts.get(id(variable), variable.numpy()) for variable in model.weights])


@pytest.mark.parametrize("name", KINDS)
def test_every_point_is_what_evaluate_gives(name):
    model, (_, x, y, _, options) = compiled(name), KINDS[name]
    weights = options.get("weights")
    more = {"sample_weight": weights, "regularisation": options.get("regularisation", False)}
    surface = loss_surface(model, x, y, grid=3, extent=0.5, images=None, progress=False, **more)
    space = Space(model)
    one, two = (space.random(0, index).vector for index in (0, 1))
    for row, column in np.ndindex(3, 3):
        set_weights(model, space.layout, space.weights + surface.alphas[column] * one + surface.betas[row] * two)
        wanted = model.evaluate(x, y, sample_weight=weights, batch_size=40, verbose=0)
        found = surface.loss[row, column]
        np.testing.assert_allclose(found, wanted, rtol=options.get("rtol", 2e-5), err_msg=f"{row}, {column}")


def test_there_are_enough_kinds():
    assert len(KINDS) >= 34


def test_several_heads_are_refused():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, [keras.layers.Dense(4)(inputs), keras.layers.Dense(1)(inputs)])
    with pytest.raises(UserError, match=r"2 outputs.*Wrap it"):
        loss_surface(model, ROWS, LABELS, grid=3, progress=False)

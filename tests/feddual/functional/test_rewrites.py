import numpy as np
import pytest

from feddual._lazy import keras, tf
from feddual.functional.rewrites import Convolutions
from feddual.training.engine import worker_view
from feddual.training.local import ClientTask
from feddual.training.workbench import train_client, workbench
from tests.helpers import tiny


def network(shape, convolution, pool=None, second=None, last_pool=None, dtype="float64"):
    layers = keras.layers
    stack = [keras.Input(shape, dtype=dtype), layers.Conv2D(**convolution, dtype=dtype)]
    if pool:
        stack.append(layers.AveragePooling2D(pool, dtype=dtype))
    if second:
        stack.append(layers.Conv2D(**second, dtype=dtype))
    if last_pool:
        stack.append(layers.AveragePooling2D(last_pool, dtype=dtype))
    return keras.Sequential([*stack, layers.Flatten(dtype=dtype), layers.Dense(3, dtype=dtype)])


@pytest.mark.parametrize(
    ("shape", "convolution", "pool", "second", "rewritten"),
    [
        ((8, 8, 1), {"filters": 4, "kernel_size": 5, "activation": "relu"}, 2, None, 1),
        ((9, 7, 3), {"filters": 2, "kernel_size": (3, 2), "activation": "tanh"}, None, None, 1),
        ((8, 6, 3), {"filters": 5, "kernel_size": 3, "padding": "same", "activation": "relu"}, 2, None, 1),
        ((9, 9, 2), {"filters": 3, "kernel_size": 4, "padding": "same", "strides": 2}, None, None, 1),
        ((11, 9, 1), {"filters": 3, "kernel_size": 3, "strides": (2, 1), "use_bias": False}, (5, 7), None, 1),
        ((9, 9, 2), {"filters": 3, "kernel_size": 3, "padding": "same", "dilation_rate": 2}, 3, None, 1),
        # 5 x 5 outputs: the pooling does not tile and stays Keras', and so does what follows
        ((7, 7, 1), {"filters": 3, "kernel_size": 3}, 2, {"filters": 2, "kernel_size": 2}, 1),
        ((14, 12, 1), {"filters": 4, "kernel_size": 3, "activation": "relu"}, 2, {"filters": 5, "kernel_size": 3}, 2),
        (
            (9, 8, 2),
            {"filters": 3, "kernel_size": 2},
            None,
            {"filters": 4, "kernel_size": (3, 2), "padding": "same", "activation": "tanh"},
            2,
        ),
        (
            (12, 12, 1),
            {"filters": 3, "kernel_size": 3, "padding": "same"},
            2,
            {"filters": 2, "kernel_size": 4, "padding": "same", "use_bias": False},
            2,
        ),
        ((8, 8, 1), {"filters": 3, "kernel_size": 3}, None, {"filters": 2, "kernel_size": 2, "strides": 2}, 1),
        ((8, 8, 1), {"filters": 9, "kernel_size": 3}, None, {"filters": 2, "kernel_size": 2}, 1),  # too many channels
    ],
)
def test_leading_convolutions_and_its_gradient_equal_keras_in_float64(shape, convolution, pool, second, rewritten):
    compare(network(shape, convolution, pool, second), shape, rewritten)


def compare(model, shape, rewritten):
    first = Convolutions.of(model)
    x = tf.constant(np.random.default_rng(0).normal(size=(5, *shape)))
    values = [tf.constant(variable.numpy()) for variable in model.trainable_variables]
    count = len(first.variables)
    assert len(first.stages) == rewritten
    assert count == len(values) - len(first.rest.trainable_variables)

    def accelerated(values):
        return first.rest.stateless_call(values[count:], [], first(values[:count], x))[0][1]

    def plain(values):
        return model.stateless_call(values, [], x)[0]

    found, expected = [], []
    for function, results in ((accelerated, found), (plain, expected)):
        with tf.GradientTape() as tape:
            tape.watch(values)
            logits = function(values)
            loss = tf.reduce_sum(tf.square(logits))
        results += [logits, *tape.gradient(loss, values)]
    for ours, keras_own in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "kernel", "padding", "pool"),
    [((14, 14, 1), 5, "valid", 2), ((13, 11, 2), 4, "same", 3), ((12, 14, 1), (2, 3), "valid", (3, 2)),
     ((12, 12, 1), 3, "same", 2), ((16, 16, 1), 1, "valid", 4)],
)  # fmt: skip
def test_a_second_convolution_with_pooling_equals_keras_in_float64(shape, kernel, padding, pool):
    """Its gradient for the input adds overlapping patches that lie a pooling step apart."""
    first = {"filters": 3, "kernel_size": 3, "padding": "same", "activation": "tanh"}
    second = {"filters": 4, "kernel_size": kernel, "padding": padding, "activation": "tanh"}
    probe = network(shape, first, None, second)
    rows, columns = probe.layers[1].output.shape[1:3]
    size = pool if isinstance(pool, tuple) else (pool, pool)
    crop = (rows - rows % size[0], columns - columns % size[1])
    shape = (shape[0] - (rows - crop[0]), shape[1] - (columns - crop[1]), shape[2])  # so that the windows tile
    compare(network(shape, first, None, second, size), shape, 2)


@pytest.mark.parametrize(
    "layers",
    [
        lambda layers: [layers.Dense(4)],
        lambda layers: [layers.Conv2D(4, 3, groups=2)],
        lambda layers: [layers.Conv2D(4, 3, activation="softmax")],
        lambda layers: [layers.Conv2D(4, 3, kernel_regularizer="l2")],
        lambda layers: [layers.SeparableConv2D(4, 3)],
    ],
)
def test_where_it_does_not_apply_the_model_is_left_alone(layers):
    stack = layers(keras.layers)
    model = keras.Sequential([keras.Input((6, 6, 4)), *stack, keras.layers.Flatten(), keras.layers.Dense(2)])
    assert Convolutions.of(model) is None


def test_a_network_that_is_no_chain_is_left_alone():
    layers = keras.layers
    images = keras.Input((6, 6, 1))
    one = layers.Conv2D(2, 3)(images)
    two = layers.Conv2D(2, 3)(images)
    model = keras.Model(images, layers.Dense(2)(layers.Flatten()(layers.Add()([one, two]))))
    assert Convolutions.of(model) is None


@pytest.mark.parametrize("name", ["lenet5", "lenet_published", "vgg_small"])
def test_a_clients_round_accelerated_and_plain(name):
    """In float32 the two differ in the last bits of each step; SGD does not magnify them: 1e-5 after a round."""
    results, start = [], None
    for accelerate in (True, False):
        experiment = tiny(
            dataset__shape=[28, 28, 1], model__name=name, runtime__accelerate=accelerate,
            training__optimizer="sgd", training__learning_rate=0.01,
        )  # fmt: skip
        bench = workbench(worker_view(experiment))
        assert (bench.training.forward.first is not None) == accelerate
        start = bench.initial_weights()
        results.append(train_client(ClientTask(worker_view(experiment), 1, 0, start)).weights)
    assert np.abs(results[0] - start).max() > 1e-3
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)

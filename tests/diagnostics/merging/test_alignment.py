"""Reordering hidden units: the same function, and twins found again exactly."""

import numpy as np
import pytest

import diagnostics
from diagnostics.merging.alignment import align, permuted, units_of
from feddual._lazy import keras
from feddual.errors import UserError
from feddual.functional.layout import assign, read

layers = keras.layers


def noisy(model, seed=0):
    """Random weights everywhere, biases and statistics too."""
    rng = np.random.default_rng(seed)
    vector = read(model) + rng.normal(0, 0.5, len(read(model))).astype(np.float32)
    names = [entry for entry in diagnostics.Space(model).layout.entries if entry.role == "moving_variance"]
    for entry in names:
        vector[entry.slice] = rng.uniform(0.5, 2, entry.stop - entry.start)
    assign(model, vector)
    return model


def mlp():
    return noisy(
        keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(12, activation="relu"),
                layers.Dropout(0.2),
                layers.Dense(9),
                layers.Activation("tanh"),
                layers.Dense(3),
            ]
        )
    )


def conv():
    return noisy(
        keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                layers.Conv2D(6, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(5, 2),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(7, activation="relu"),
                layers.Dense(3, activation="softmax"),
            ]
        )
    )


def pixels():
    """A dense layer on every pixel, flattened after it, as the published LeNet has; the convolution nested."""
    first = keras.Sequential([keras.Input((6, 6, 1)), layers.Conv2D(4, 3, activation="tanh")])
    return noisy(
        keras.Sequential(
            [keras.Input((6, 6, 1)), first, layers.Dense(6, activation="tanh"), layers.Flatten(), layers.Dense(3)]
        )
    )


MODELS = {"mlp": mlp, "conv": conv, "pixels": pixels}


def twin(model, seed=1):
    units, rng = units_of(model), np.random.default_rng(seed)
    return units, permuted(read(model), units, [rng.permutation(one.count) for one in units])


@pytest.mark.parametrize("name", MODELS)
def test_another_order_is_the_same_function(name):
    model = MODELS[name]()
    x = np.random.default_rng(2).normal(size=(20, *model.input_shape[1:])).astype(np.float32)
    before, weights = model(x, training=False).numpy(), read(model)
    _, other = twin(model)
    assert not np.array_equal(other, weights)
    assign(model, other)
    np.testing.assert_allclose(model(x, training=False).numpy(), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_permuted_twin_becomes_the_same_model_in_bits(name):
    model = MODELS[name]()
    units, other = twin(model)
    assert [one.count for one in units] == {"mlp": [12, 9], "conv": [6, 5, 7], "pixels": [4, 6]}[name]
    found, orders = align(other, read(model), units)
    assert np.array_equal(found, read(model))
    assert np.array_equal(permuted(other, units, orders), found)


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_a_twin_beyond_a_large_barrier_has_none_after_alignment(name):
    model, rng = MODELS[name](), np.random.default_rng(3)
    x = rng.normal(size=(200, *model.input_shape[1:])).astype(np.float32)
    y = model(x).numpy().argmax(1)  # the model is right everywhere, and so is its twin
    model.layers[-1].kernel.assign(4 * model.layers[-1].kernel)
    model.layers[-1].bias.assign(4 * model.layers[-1].bias)
    units, other = twin(model)
    second = keras.models.clone_model(model)
    assign(second, other)
    options = {"align": True, "layers": False, "grid": 5, "progress": False, "bn": "interpolate"}
    found = diagnostics.barriers({"a": model, "b": second}, x, y, **options)
    plain, aligned = (found.values.query(f"order == '{order}'").iloc[0] for order in ("as trained", "aligned"))
    assert plain["barrier"] > 0.5
    assert plain["error_barrier"] > 0.1
    assert plain["apart"] > 0.5
    assert aligned["barrier"] == aligned["error_barrier"] == aligned["apart"] == 0
    assert found.settings["units"] == sum(one.count for one in units)
    assert found.settings["moved_units"][0] > 10


def test_alignment_never_leads_further_away():
    model, rng = conv(), np.random.default_rng(4)
    units, to = units_of(model), read(model)
    for _ in range(3):
        other = (to + rng.normal(0, 1.0, len(to))).astype(np.float32)
        assert np.linalg.norm(align(other, to, units)[0] - to) <= np.linalg.norm(other - to) * (1 + 1e-7)


def test_frozen_layers_stay():
    """Units between a frozen and a trained layer cannot change places: one side of them is not in the vector."""
    model = mlp()
    model.layers[0].trainable = False
    assert [one.count for one in units_of(model)] == [9]


def test_what_cannot_be_permuted_is_refused_with_the_reason():
    start = keras.Input((4,))
    first = layers.Dense(4, activation="relu", name="first")(start)
    skip = keras.Model(start, layers.Dense(2)(layers.Add(name="skip")([start, first])))
    with pytest.raises(UserError, match=r"'skip' \(Add\) joins 2 paths"):
        units_of(skip)
    for layer, said in (
        (layers.LayerNormalization(name="odd"), r"across 'odd' \(LayerNormalization\)"),
        (layers.Reshape((2, 2), name="odd"), r"across 'odd' \(Reshape\)"),
        (layers.Activation(lambda x: x[:, ::-1], name="odd"), "not known to treat all units alike"),
    ):
        with pytest.raises(UserError, match=said):
            units_of(keras.Sequential([keras.Input((4,)), layers.Dense(4), layer, layers.Flatten(), layers.Dense(2)]))
    shared = layers.Dense(4, name="shared")
    with pytest.raises(UserError, match="shared is used more than once"):
        units_of(keras.Sequential([keras.Input((4,)), shared, keras.Sequential([shared]), layers.Dense(2)]))
    grouped = keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(4, 3, groups=2), layers.Flatten(), layers.Dense(2)]
    )
    with pytest.raises(UserError, match="has 2 groups"):
        units_of(grouped)

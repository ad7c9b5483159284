"""Each thing the project uses of Keras that Keras does not promise: when a release changes one, its test says so."""

import random

import numpy as np
import pytest

from feddual._lazy import keras
from feddual.functional import _keras


def nested():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="within")], name="inner")
    return keras.Sequential([keras.Input((4,)), inner, keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(2)])


def test_layers_of_nested_models_are_walked():
    model = nested()
    names = [layer.name for layer in _keras.layers_within(model)]
    assert {"inner", "within", "drop"} <= set(names)
    assert model not in _keras.layers_within(model)
    assert _keras.layers_and_self(model)[0] is model
    assert set(names) < {layer.name for layer in _keras.layers_and_self(model)}


def test_a_layer_tells_its_own_variables_trainable_first():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    names = [variable.name for variable in _keras.own_variables(layer)]
    assert names == ["gamma", "beta", "moving_mean", "moving_variance"]
    composite = keras.layers.Bidirectional(keras.layers.LSTM(2))
    composite.build((None, 5, 3))
    assert composite.variables
    assert not _keras.own_variables(composite)  # they belong to the cells within


def test_the_state_of_generators_is_told_from_weights():
    found = [variable for variable in nested().variables if _keras.is_random_state(variable)]
    assert len(found) == 1
    assert tuple(found[0].shape) == (2,)


def test_functional_models_are_told_from_subclasses():
    class Mine(keras.Model):
        def call(self, x):
            return x

    inputs = keras.Input((2,))
    assert _keras.is_functional(keras.Model(inputs, keras.layers.Dense(1)(inputs)))
    assert _keras.is_functional(nested())
    assert not _keras.is_functional(Mine())


def test_a_layer_used_twice_or_on_a_list_is_not_called_once():
    inputs = keras.Input((3,))
    shared, joined = keras.layers.Dense(3), keras.layers.Add()
    once = keras.layers.Dense(3)
    keras.Model(inputs, joined([shared(shared(inputs)), once(inputs)]))
    assert _keras.is_called_once(once)
    assert not _keras.is_called_once(shared)
    assert not _keras.is_called_once(joined)


def test_a_tensor_tells_what_it_comes_from_and_at_which_call():
    model = nested()
    operation, taken = _keras.origin(model.outputs[0])
    assert operation is model.layers[-1]
    assert taken[0] is model.layers[-2].output
    shared, inputs = keras.layers.Dense(3), keras.Input((3,))
    first = shared(inputs)
    assert _keras.origin(shared(first))[1][0] is first
    assert _keras.origin(first)[1][0] is inputs


def test_weights_of_losses_are_those_of_compile():
    model = nested()
    model.compile(loss="mse")
    assert _keras.weights_of_losses(model) is None
    model.compile(loss="mse", loss_weights=[0.5])
    assert _keras.weights_of_losses(model) == [0.5]


def test_outputs_carry_their_mask():
    layer = keras.layers.Embedding(4, 2, mask_zero=True)
    np.testing.assert_array_equal(_keras.mask_of(layer(np.array([[1, 0]]))), [[True, False]])
    assert _keras.mask_of(keras.layers.Embedding(4, 2)(np.array([[1, 0]]))) is None


def test_a_function_becomes_the_loss_that_compile_makes_of_it():
    def apart(y, z):
        return y - z

    model = nested()
    model.compile(loss=apart)
    x, y = np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)
    assert _keras.as_loss(apart).fn is apart
    np.testing.assert_allclose(_keras.as_loss(apart)(y, model(x)), model.compute_loss(None, y, model(x)), rtol=1e-6)


@pytest.mark.parametrize("sequential", [True, False])
def test_outputs_within_a_cut_model_are_its_own(sequential):
    inputs = keras.Input((4,))
    first, second = keras.layers.Dense(3), keras.layers.Dense(2)
    whole = keras.Sequential([inputs, first, second]) if sequential else keras.Model(inputs, second(first(inputs)))
    outputs = _keras.outputs_within(whole)
    model = keras.Model(whole.inputs[0], [outputs[id(first)], outputs[id(second)]])
    x = np.ones((5, 4), np.float32)
    np.testing.assert_array_equal(model(x)[1], whole(x))
    rest = keras.Model(first.output, second.output)
    np.testing.assert_array_equal(
        keras.Model(rest.inputs[0], _keras.outputs_within(rest)[id(second)])(model(x)[0]), whole(x)
    )


def test_whether_a_layer_takes_training_is_told():
    taking, plain = keras.layers.Dropout(0.5), keras.layers.Flatten()
    assert _keras.takes_training(taking)
    assert not _keras.takes_training(plain)
    assert _keras.takes_training(nested())


def test_unseeded_initialisers_follow_pythons_generator():
    def drawn():
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
        return layer.kernel.numpy()

    random.seed(5)
    before = random.getstate()
    with _keras.seeded_initialisers(1):
        first = drawn()
    assert random.getstate() == before
    with _keras.seeded_initialisers(1):
        np.testing.assert_array_equal(drawn(), first)
    with _keras.seeded_initialisers(2):
        assert (drawn() != first).any()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        (_keras.CONVOLUTION, ("Conv1D", "Conv2D", "Conv3D")),
        (_keras.TRANSPOSED, ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")),
        (_keras.DEPTHWISE, ("DepthwiseConv1D", "DepthwiseConv2D")),
        (_keras.SEPARABLE, ("SeparableConv1D", "SeparableConv2D")),
    ],
)
def test_kinds_of_layers_are_known_by_what_they_inherit_from(name, layers):
    for layer in layers:
        assert name in [cls.__name__ for cls in getattr(keras.layers, layer).__mro__]


def test_a_convolutional_lstm_has_the_cell_we_know():
    layer = keras.layers.ConvLSTM2D(2, 3)
    assert _keras.CONVOLUTIONAL_LSTM in [cls.__name__ for cls in type(layer.cell).__mro__]

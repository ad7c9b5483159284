"""A copy that is another function than its model is never used: the original is, or the call is refused."""

import numpy as np
import pytest

import diagnostics
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional import cut
from feddual.functional.evaluated import Evaluated

RNG = np.random.default_rng(0)
X = (5 + 3 * RNG.normal(size=(80, 6))).astype(np.float32)
Y = RNG.integers(0, 3, 80)


def adapted():
    """Statistics that `adapt` computed are no weights of the layer's config."""
    layer = keras.layers.Normalization()
    layer.adapt(X)
    return keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])


@keras.saving.register_keras_serializable()
class Forgetful(keras.layers.Layer):
    """Its config leaves an argument out."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):
        return super().get_config()


def forgetful():
    return keras.Sequential([keras.Input((6,)), Forgetful(0.01), keras.layers.Dense(3)])


def set_later():
    model = keras.Sequential([keras.Input((6,)), Forgetful(), keras.layers.Dense(3)])
    model.layers[0].factor = 0.02
    return model


CASES = {"adapted": adapted, "forgetful": forgetful, "set later": set_later}


@pytest.mark.parametrize("name", CASES)
def test_the_centre_is_the_models_own_loss(name):
    keras.utils.set_random_seed(1)
    model = CASES[name]()
    copy, why = cut.checked_copy(model, X[:4])
    assert copy is None
    assert "another function" in why
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss)
    wanted = model.evaluate(X, Y, verbose=0)
    landscape = diagnostics.Landscape(model, X, Y)
    assert landscape.measures().loss == pytest.approx(wanted, rel=1e-5)
    surface = landscape.surface(grid=3, progress=False)
    assert surface.loss[surface.centre] == pytest.approx(wanted, rel=1e-5)


def test_what_needs_a_copy_is_refused_with_the_reason():
    with pytest.raises(UserError, match="get_config"):
        Evaluated(forgetful(), X[:4], frozen=True)
    model = keras.Sequential([keras.Input((6,)), *forgetful().layers, keras.layers.Softmax()])
    with pytest.raises(UserError, match=r"returns probabilities.*get_config"):
        diagnostics.Landscape(model, X, Y)


def test_a_faithful_copy_is_used_and_the_model_left_alone():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(3, "softmax")])
    before = [len(layer._inbound_nodes) for layer in model.layers]
    evaluated = Evaluated(model, X[:4])
    assert evaluated.is_copy
    assert [len(layer._inbound_nodes) for layer in model.layers] == before
    logits = evaluated.whole(X[:4])
    np.testing.assert_allclose(tf.nn.softmax(logits), model(X[:4]), rtol=1e-5)


def test_outputs_differ_by_the_largest_relative_to_the_largest():
    assert cut.mismatch([1.0, -4.0], [1.0, -4.0]) == 0
    assert cut.mismatch([1.0, -4.0], [1.4, -4.0]) == pytest.approx(0.1, rel=1e-5)
    assert cut.mismatch([1.0, np.nan], [1.0, np.nan]) == 0
    assert cut.mismatch([1.0, np.inf], [1.0, 2.0]) == np.inf
    assert cut.mismatch(np.ones(2), np.ones((2, 1))) == np.inf


def test_training_compares_its_function_with_the_model(monkeypatch):
    """A rewrite that gives something else is not used, and told."""
    from feddual.functional import rewrites
    from feddual.training.engine import worker_view
    from feddual.training.workbench import forget, workbench
    from tests.helpers import tiny

    asked = worker_view(tiny(dataset__shape=[16, 16, 1], model__name="lenet5", seed=77))
    bench = workbench(asked)
    assert bench.training.forward.first is not None
    forget()
    right = rewrites.Convolutions.finish
    monkeypatch.setattr(rewrites.Convolutions, "finish", lambda self, w, v, b: 1.5 * right(self, w, v, b))
    with pytest.warns(UserWarning, match="are not used"):
        assert workbench(asked).training.forward.first is None
    forget()

"""Calibration and neural collapse of Keras models: what is said of logits, of probabilities, and what is refused."""

import numpy as np
import pytest

import diagnostics
from diagnostics.forgetting import measures
from feddual._lazy import keras
from feddual.errors import UserError

layers = keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 5)).astype(np.float32), RNG.integers(0, 3, 80)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    parts = [layers.Dense(6, activation="relu", name="hidden"), layers.Dropout(0.5), layers.Dense(3, name="logits")]
    return keras.Sequential([keras.Input((5,)), *parts])


def by_hand(model):
    first, last = model.get_layer("hidden"), model.get_layer("logits")
    hidden = np.maximum(X @ np.array(first.kernel) + np.array(first.bias), 0)
    return hidden, hidden @ np.array(last.kernel) + np.array(last.bias)


def test_they_are_those_of_the_models_own_answers(model):
    before = [value.copy() for value in model.get_weights()]
    hidden, logits = by_hand(model)
    assert diagnostics.calibration(model, X, Y).ece == pytest.approx(measures.reliability(logits, Y).ece, rel=1e-5)
    found, wanted = diagnostics.neural_collapse(model, X, Y, batch_size=7), measures.collapse_of(hidden, Y)
    assert found.nc1 == pytest.approx(wanted.nc1, rel=1e-5)
    assert found.equiangle == pytest.approx(wanted.equiangle, rel=1e-5)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    assert len(model.layers) == 3


def test_probabilities_and_one_hot_rows_say_the_same(model):
    ended = keras.Sequential([model, layers.Softmax()])
    one_hot = np.eye(3)[Y]
    plain = diagnostics.calibration(model, X, Y)
    np.testing.assert_allclose(diagnostics.calibration(ended, X, one_hot).confidence, plain.confidence, rtol=1e-5)
    flat = keras.Model(model.inputs[0], layers.Softmax()(model.outputs[0]))
    assert diagnostics.neural_collapse(flat, X, one_hot).nc1 == diagnostics.neural_collapse(model, X, Y).nc1


def test_features_of_another_layer(model):
    found = diagnostics.neural_collapse(model, X, Y, layer="logits")
    assert found.nc1 == pytest.approx(measures.collapse_of(by_hand(model)[1], Y).nc1, rel=1e-4)
    with pytest.raises(UserError, match="layer: 'nothing' is unknown; allowed: hidden, dropout"):
        diagnostics.neural_collapse(model, X, Y, layer="nothing")


def test_a_reliability_table_shows_itself(model):
    found = diagnostics.calibration(model, X, Y, bins=5)
    assert found.table["count"].sum() == 80
    assert found.table["to"].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert repr(found) == f"Reliability(ece={found.ece:.4g}, 5 bins, 80 examples)"
    assert found.plot().plotly().data


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def test_what_cannot_be_used_is_refused(model):
    single = keras.Sequential([keras.Input((5,)), layers.Dense(1)])
    nested = keras.Sequential([keras.Input((5,)), keras.Sequential([layers.Dense(3)])])
    own = Subclassed()
    own(X)
    cases = [
        (lambda: diagnostics.calibration("runs/a", X, Y), r"expected a keras.Model, got str; of a run give run.model"),
        (lambda: diagnostics.calibration(model, X, Y + 1), "y: expected integer labels from 0 to 2 or one-hot rows"),
        (lambda: diagnostics.calibration(model, X, X), "y: expected integer labels from 0 to 2"),
        (lambda: diagnostics.calibration(model, X[:, :4], Y), r"x: the model takes inputs of shape \(None, 5\)"),
        (lambda: diagnostics.calibration(single, X, Y), r"two classes or more, got \(None, 1\)"),
        (lambda: diagnostics.calibration(model, X, Y, bins=0), "bins, batch_size: must be at least 1, got 0"),
        (lambda: diagnostics.neural_collapse(model, X, Y, batch_size=0), "batch_size: must be at least 1, got 0"),
        (lambda: diagnostics.neural_collapse(nested, X, Y), "no single last layer with weights"),
        (lambda: diagnostics.neural_collapse(own, X, Y), "cannot be cut before its last layer"),
    ]  # fmt: skip
    for call, words in cases:
        with pytest.raises(UserError, match=words):
            call()

"""Rescaling a network without changing its function: what stays, what moves, and who is refused."""

import numpy as np
import pytest

import diagnostics
from diagnostics.flatness import catalogue
from feddual import models
from feddual._lazy import keras
from feddual.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 8, 8, 1)).astype(np.float32)
Y = RNG.integers(0, 3, 120)
FAST = {"directions": 2, "steps": 5, "images": None}


def network(activation="relu"):
    """A convolution, a flattened layer and a dense one: units of the first are channels of the second's inputs."""
    layers = keras.layers
    make = keras.initializers.HeNormal
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(3, 3, activation=activation, kernel_initializer=make(1)),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(6, activation=activation, kernel_initializer=make(2)),
        layers.Dense(3, kernel_initializer=make(3)),
    ])  # fmt: skip


NAMES = [name for name in catalogue.GROUPS if name != "magnitude_sigma"]  # its accuracies come in steps


@pytest.fixture(scope="module")
def by_layer():
    return diagnostics.rescaling_audit(network(), X, Y, factor=10, measures=NAMES, **FAST)


def test_measures_on_the_filters_scale_stay_and_the_others_move(by_layer):
    assert by_layer.pairs[0] == ("conv2d", "dense")
    assert by_layer.outputs < 1e-5
    for row in by_layer.table.to_dict("records"):
        if row["should_stay"]:
            # A second difference of a float32 loss has fewer digits than the rest.
            assert row["ratio"] == pytest.approx(1, abs=1e-4 if row["measure"] != "kappa_fn" else 1e-3), row["measure"]
        assert row["moved"] != row["should_stay"], row
    moved = set(by_layer.table.query("moved")["measure"])
    assert {"sam", "keskar", "lambda_1", "trace", "gradient_norm"} <= moved
    assert "conv2d × 10" in str(by_layer)


def test_unit_by_unit_only_the_single_weights_scale_stays():
    names = ["kappa_fn", "average_adaptive", "asam", "asam_filter", "worst_adaptive_l2", "worst_adaptive_linf"]
    audit = diagnostics.rescaling_audit(network(), X, Y, factor=10, by="node", measures=names, **FAST)
    table = audit.table.drop_duplicates("measure").set_index("measure")
    for name in ("average_adaptive", "asam", "worst_adaptive_l2", "worst_adaptive_linf"):
        assert table.loc[name, "ratio"] == pytest.approx(1, abs=1e-3)
    for name in ("kappa_fn", "asam_filter"):
        assert table.loc[name, "moved"]


def test_a_tanh_network_has_no_such_rescaling():
    with pytest.raises(UserError, match=r"no layer can be multiplied by 10 and the next one divided .*relu.*tanh"):
        diagnostics.rescaling_audit(network("tanh"), X, Y)
    x = RNG.normal(size=(20, 28, 28, 1)).astype(np.float32)
    lenet = models.MODELS["lenet_published"]((28, 28, 1), 10)
    with pytest.raises(UserError, match="only activations with"):
        diagnostics.rescaling_audit(lenet, x, RNG.integers(0, 10, 20))


def test_what_cannot_be_used_is_refused():
    for factor in (1, 0, -2):
        with pytest.raises(UserError, match="factor: must be above 0 and not 1"):
            diagnostics.rescaling_audit(network(), X, Y, factor=factor)
    with pytest.raises(UserError, match="by: 'unit' is unknown; allowed: layer, node"):
        diagnostics.rescaling_audit(network(), X, Y, by="unit")

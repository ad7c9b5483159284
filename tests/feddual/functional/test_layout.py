import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddual import models
from feddual._lazy import keras
from feddual.functional import layout as weights
from feddual.functional.layout import Entry, Layout
from tests import helpers

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


def layout_of(shapes):
    entries, position = [], 0
    for number, shape in enumerate(shapes):
        entries.append(Entry(f"layer{number}/kernel", f"layer{number}", "Dense", "kernel", shape, position, True))
        position = entries[-1].stop
    return Layout(entries)


@given(shapes)
def test_split_and_join_are_inverse(shapes):
    layout = layout_of(shapes)
    vector = np.arange(layout.size, dtype=np.float32)
    assert (layout.join(layout.split(vector)) == vector).all()
    assert {path: array.shape for path, array in layout.split(vector).items()} == {
        entry.path: entry.shape for entry in layout.entries
    }


@given(shapes)
def test_a_layout_survives_json(shapes):
    import json

    layout = layout_of(shapes)
    assert Layout.from_list(json.loads(json.dumps(layout.to_list()))) == layout


def test_equal_variable_names_keep_their_own_keys():
    """In Keras 3 every Dense calls its variables kernel and bias; the keys must not collapse."""
    layout = Layout.of_model(models.mlp((3,), 2, hidden=[4]))
    assert [entry.path for entry in layout.entries] == ["dense1/kernel", "dense1/bias", "output/kernel", "output/bias"]
    with pytest.raises(ValueError, match="unique"):
        Layout([layout.entries[0], layout.entries[0]])


def test_keys_of_unnamed_layers_do_not_depend_on_how_many_were_built_before():
    first = Layout.of_model(helpers.user_model((4,), 3))
    keras.layers.Dense(2)
    second = Layout.of_model(helpers.user_model((4,), 3))
    assert first == second
    assert "dense_2/kernel" in first.by_path
    assert "batch_normalization/gamma" in first.by_path


def test_keys_of_unnamed_layers_know_how_keras_spells_them():
    def layout():
        layers = keras.layers
        stack = [layers.Conv2D(2, 3), layers.DepthwiseConv2D(3), layers.Conv2DTranspose(2, 3), layers.Conv2D(1, 3)]
        return Layout.of_model(keras.Sequential([keras.Input((9, 9, 1)), *stack]))

    assert layout() == layout()
    assert list(layout().layers) == ["conv2d", "depthwise_conv2d", "conv2d_transpose", "conv2d_1"]


def test_trainable_entries_come_first_and_statistics_after():
    layout = Layout.of_model(helpers.user_model((4,), 3))
    assert [entry.trainable for entry in layout.entries] == sorted(
        (entry.trainable for entry in layout.entries), reverse=True
    )
    assert [entry.role for entry in layout.entries if not entry.trainable] == ["moving_mean", "moving_variance"]
    assert layout.num_trainable == layout.size - 10


def test_read_and_assign_are_inverse():
    model = helpers.user_model((4,), 3)
    vector = np.random.default_rng(0).normal(size=Layout.of_model(model).size).astype(np.float32)
    weights.assign(model, vector)
    assert (weights.read(model) == vector).all()
    with pytest.raises(ValueError, match="weights"):
        weights.assign(model, np.append(vector, 0))


def test_the_sign_of_an_update():
    assert weights.update(np.float32([3]), np.float32([1])).tolist() == [2.0]


def test_layer_norms_take_kernel_and_bias_together():
    layout = Layout.of_model(models.mlp((1,), 1, hidden=[]))
    assert weights.layer_norms(layout, np.float32([3, 4])) == {"output": 5.0}


def test_fingerprint_sees_values_shapes_and_types():
    a = np.zeros((2, 3), np.float32)
    assert weights.fingerprint(a) == weights.fingerprint(a.copy())
    assert len({weights.fingerprint(x) for x in (a, a.T, a + 1, a.astype(np.float64))}) == 4

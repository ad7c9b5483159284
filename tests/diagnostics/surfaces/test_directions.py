"""What a filter is, layer by layer, and the mistakes that other tools made with it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diagnostics.surfaces.directions import Space, cosine, filter_axes, register_filter_axes, scaled
from feddual import seeding
from feddual._lazy import keras
from feddual.errors import UserError


def dense_net(seed=0):
    layers = keras.layers
    with_seed = keras.initializers.RandomNormal(seed=seed)
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, activation="relu", kernel_initializer=with_seed, name="one"),
            layers.Dense(3, kernel_initializer=keras.initializers.RandomNormal(seed=seed + 1), name="two"),
        ]
    )


def layer_cases():
    """(name, layer, input shape, {variable: (axes of one filter's norm, number of filters)})."""
    layers = keras.layers
    return {
        "dense": (layers.Dense(3), (4,), {"kernel": ((0,), 3)}),
        "dense on images": (layers.Dense(3), (5, 5, 4), {"kernel": ((0,), 3)}),
        "conv1d": (layers.Conv1D(5, 3), (8, 2), {"kernel": ((0, 1), 5)}),
        "conv2d": (layers.Conv2D(5, 3), (8, 8, 2), {"kernel": ((0, 1, 2), 5)}),
        "conv2d in groups": (layers.Conv2D(4, 3, groups=2), (8, 8, 2), {"kernel": ((0, 1, 2), 4)}),
        "conv3d": (layers.Conv3D(5, 2), (4, 4, 4, 2), {"kernel": ((0, 1, 2, 3), 5)}),
        "conv2d transpose": (layers.Conv2DTranspose(5, 3), (4, 4, 2), {"kernel": ((0, 1, 3), 5)}),
        "depthwise": (layers.DepthwiseConv2D(3, depth_multiplier=2), (8, 8, 3), {"kernel": ((0, 1), 6)}),
        "separable": (
            layers.SeparableConv2D(5, 3, depth_multiplier=2),
            (8, 8, 3),
            {"depthwise_kernel": ((0, 1), 6), "pointwise_kernel": ((0, 1, 2), 5)},
        ),
        "lstm": (layers.LSTM(4), (6, 3), {"kernel": ((0,), 16), "recurrent_kernel": ((0,), 16)}),
        "gru": (layers.GRU(4), (6, 3), {"kernel": ((0,), 12), "recurrent_kernel": ((0,), 12)}),
    }


def test_the_table_of_filter_axes():
    for name, (layer, shape, expected) in layer_cases().items():
        model = keras.Sequential([keras.Input(shape), layer])
        rows = {row["path"].split("/")[-1]: row for row in Space(model).table()}
        for variable, (axes, filters) in expected.items():
            assert tuple(rows[variable]["axes"]) == axes, (name, variable)
            assert rows[variable]["filters"] == filters, (name, variable)
        assert rows["bias"]["axes"] is None, name


def test_attention_embeddings_normalisation_and_prelu():
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    h = layers.Embedding(11, 8, name="tokens")(tokens)
    h = layers.MultiHeadAttention(2, 3, name="attention")(h, h)
    h = layers.LayerNormalization(name="norm")(h)
    h = layers.PReLU(name="prelu")(h)
    h = layers.BatchNormalization(name="bn")(h)
    model = keras.Model(tokens, layers.Dense(3, name="output")(layers.Flatten()(h)))
    rows = {row["path"]: row for row in Space(model).table()}
    for part in ("query", "key", "value"):
        assert rows[f"{part}/kernel"]["axes"] == [0]  # (d, heads, key)
        assert rows[f"{part}/kernel"]["filters"] == 6
        assert rows[f"{part}/bias"]["axes"] is None  # two-dimensional, and still a bias
    assert rows["attention_output/kernel"]["axes"] == [0, 1]  # (heads, key, d)
    assert rows["attention_output/kernel"]["filters"] == 8
    assert rows["tokens/embeddings"]["axes"] == [1]
    space = Space(model)
    direction, weights = (space.layout.split(v.astype(float)) for v in (space.random(seed=3).vector, space.weights))
    parts = {f"{part}/kernel": (0,) for part in ("query", "key", "value")}
    for path, axes in {**parts, "attention_output/kernel": (0, 1), "tokens/embeddings": (1,)}.items():
        norms = [np.sqrt((v[path] ** 2).sum(axis=axes)) for v in (direction, weights)]
        np.testing.assert_allclose(*norms, rtol=1e-5, err_msg=path)
    still = ("norm/gamma", "norm/beta", "prelu/alpha", "bn/gamma", "bn/beta", "bn/moving_mean", "bn/moving_variance")
    for path in still:
        assert rows[path]["axes"] is None, path
        assert not direction[path].any(), path


def test_two_attention_layers_have_weights_of_different_names():
    layers = keras.layers
    x = keras.Input((6, 8))
    h = layers.MultiHeadAttention(2, 3)(x, x)
    model = keras.Model(x, layers.MultiHeadAttention(2, 3)(h, h))
    direction = Space(model).random()
    parts = Space(model).layout.split(direction.vector)
    assert not np.array_equal(parts["query/kernel"], parts["query#2/kernel"])


def test_every_filter_of_a_direction_has_the_norm_of_the_models():
    for name, (layer, shape, expected) in layer_cases().items():
        model = keras.Sequential([keras.Input(shape), layer])
        space = Space(model)
        direction = space.layout.split(space.random(seed=3).vector)
        weights = space.layout.split(space.weights)
        for path, value in direction.items():
            variable = path.split("/")[-1]
            if variable not in expected:
                assert not value.any(), (name, path)  # bias: not moved
                continue
            axes = expected[variable][0]
            norms = [np.sqrt((np.asarray(v, float) ** 2).sum(axis=axes)) for v in (value, weights[path])]
            np.testing.assert_allclose(*norms, rtol=1e-5, err_msg=f"{name} {path}")


def test_plain_numpy_twin():
    model = dense_net()
    space = Space(model)
    found = space.layout.split(space.random(seed=1, index=2).vector)["one/kernel"]
    noise = seeding.generator(1, "direction one/kernel", 2).standard_normal((4, 5))
    kernel = model.get_layer("one").kernel.numpy().astype(float)
    expected = np.empty_like(noise)
    for neuron in range(5):  # one filter at a time, as the definition says
        expected[:, neuron] = noise[:, neuron] * np.linalg.norm(kernel[:, neuron]) / np.linalg.norm(noise[:, neuron])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_layer_norm_is_not_called_filter_norm():
    space = Space(dense_net())
    weights = space.layout.split(space.weights)["one/kernel"].astype(float)
    by_layer = space.layout.split(space.random(norm="layer").vector)["one/kernel"].astype(float)
    np.testing.assert_allclose(np.linalg.norm(by_layer), np.linalg.norm(weights), rtol=1e-6)
    assert not np.allclose(np.linalg.norm(by_layer, axis=0), np.linalg.norm(weights, axis=0), rtol=1e-2)


def test_on_the_scale_of_single_weights_the_noise_is_multiplied_by_each():
    model = dense_net()
    space = Space(model)
    found = space.random(0, 3, "abs")
    entry = space.layout.by_path["two/kernel"]
    expected = np.abs(space.weights[entry.slice].astype(np.float64)) * space.noise(entry, 0, 3).ravel()
    np.testing.assert_array_equal(found.vector[entry.slice], expected.astype(np.float32))
    assert not found.vector[space.layout.by_path["two/bias"].slice].any()
    assert found.name == "random abs-scaled, seed 0, index 3"


def test_coordinates_are_what_directions_move_with_the_scale_of_each():
    space = Space(dense_net())
    weights = space.weights + np.float32(0.5)
    kernel = weights[space.layout.by_path["two/kernel"].slice].reshape(5, 3).astype(np.float64)
    (entry,), scaling = space.coordinates("filter", weights, ["two"])
    assert entry.path == "two/kernel"
    np.testing.assert_allclose(scaling.reshape(5, 3)[0], np.linalg.norm(kernel, axis=0) / np.sqrt(5))
    np.testing.assert_allclose(space.coordinates("abs", weights, ["two"])[1], np.abs(kernel).ravel())
    entries, scaling = space.coordinates("none", weights)
    assert [entry.path for entry in entries] == ["one/kernel", "one/bias", "two/kernel", "two/bias"]
    assert (scaling == 1).all()
    with pytest.raises(UserError, match="scale: 'layer' is unknown; allowed: none, filter, abs"):
        space.coordinates("layer", weights)


def test_model_norm_has_one_factor_for_the_whole():
    # loss-landscapes recomputed the norm inside its loop: [3, 4] and [3, 4] scaled to 10 gave 7.07 and 5.77.
    space = Space(dense_net())
    moved = [space.layout.by_path[path].slice for path in ("one/kernel", "two/kernel")]
    whole, unscaled = (space.random(norm=norm) for norm in ("model", "layer"))
    total = np.sqrt(sum((space.weights[part].astype(float) ** 2).sum() for part in moved))
    np.testing.assert_allclose(np.linalg.norm(whole.vector.astype(float)), total, rtol=1e-6)
    assert unscaled.sha256 != whole.sha256


def test_noise_is_gaussian_not_uniform():
    model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(100, use_bias=False)])
    space = Space(model)
    noise = space.random(norm="model").vector.astype(float)
    noise /= noise.std()
    assert abs(noise.mean()) < 0.03
    assert abs((noise**4).mean() - 3) < 0.15  # 1.8 for a uniform one


def test_the_result_of_the_scaling_is_used():
    # A port of Li's code threw the products away.
    noise = np.ones((4, 2))
    weights = np.array([[3.0, 0], [0, 0], [4, 0], [0, 0]])
    np.testing.assert_allclose(scaled(noise, weights, (0,), "filter"), [[2.5, 0]] * 4, atol=1e-12)


def test_a_dead_filter_is_not_moved():
    model = dense_net()
    kernel = model.get_layer("one").kernel
    value = kernel.numpy()
    value[:, 2] = 0
    kernel.assign(value)
    space = Space(model)
    moved = space.layout.split(space.random().vector)["one/kernel"]
    assert not moved[:, 2].any()
    assert moved[:, 1].all()


def test_a_model_of_zeros_has_no_scale():  # before: a flat surface
    model = dense_net()
    model.set_weights([np.zeros_like(value) for value in model.get_weights()])
    with pytest.raises(UserError, match=r"all weights .* are zero"):
        Space(model).random()


def test_frozen_layers_and_statistics_stay():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, trainable=False, name="frozen"),
            layers.BatchNormalization(name="bn"),
            layers.Flatten(),
            layers.Dense(2, name="output"),
        ]
    )
    space = Space(model)
    moved = space.layout.split(space.random().vector)
    assert "frozen/kernel" not in moved
    for path in ("bn/moving_mean", "bn/moving_variance", "bn/gamma", "output/bias"):
        assert not moved[path].any()
    with_bias = space.layout.split(space.random(include=("bias",)).vector)
    assert not with_bias["output/bias"].any()  # a zero bias has a zero norm
    assert not with_bias["bn/gamma"].any()
    assert space.layout.split(space.random(include=("norm",)).vector)["bn/gamma"].any()


def test_a_layer_more_leaves_the_others_noise_alone():
    layers = keras.layers
    small, large = dense_net(), None
    large = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, name="one"), layers.Dense(5, name="between"), layers.Dense(3, name="two")]
    )
    large.get_layer("one").set_weights(small.get_layer("one").get_weights())
    first = [Space(m).layout.split(Space(m).random(seed=7).vector)["one/kernel"] for m in (small, large)]
    np.testing.assert_array_equal(*first)


def test_streams_differ_by_seed_index_and_repeat():
    space = Space(dense_net())
    hashes = {space.random(seed, index).sha256 for seed in (0, 1) for index in (0, 1)}
    assert len(hashes) == 4
    assert space.random(1, 1).sha256 in hashes
    assert abs(cosine(space.random(0, 0), space.random(0, 1))) < 0.6


def test_the_same_noise_in_another_process(monkeypatch):
    # Python's own hash() differs from process to process; the streams must not.
    code = "from feddual import seeding; print(seeding.generator(5, 'direction one/kernel', 1).standard_normal())"
    monkeypatch.setenv("PYTHONHASHSEED", "11")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert float(done.stdout) == seeding.generator(5, "direction one/kernel", 1).standard_normal()


def auto_named():
    """Layers that Keras names and numbers over the process."""
    layers, make = keras.layers, keras.initializers.RandomNormal
    return keras.Sequential(
        [keras.Input((8, 8, 1))]
        + [layers.Conv2D(3, 3, kernel_initializer=make(seed=seed)) for seed in (1, 2)]
        + [layers.Flatten(), layers.Dense(4, kernel_initializer=make(seed=3))]
    )


def test_a_direction_of_unnamed_layers_is_the_same_in_another_process(monkeypatch):
    names = "from tests.diagnostics.surfaces.test_directions import Space, auto_named"
    code = f"{names}; print(Space(auto_named()).random(3, 1).sha256)"
    monkeypatch.setenv("PYTHONHASHSEED", "11")
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    first, second = auto_named(), auto_named()
    assert first.layers[0].name != second.layers[0].name
    assert {Space(model).random(3, 1).sha256 for model in (first, second)} == {done.stdout.strip()}


def test_a_bias_is_normalised_once_as_a_whole():
    # loss-landscapes scaled a bias again for each of its entries.
    model = dense_net()
    bias = np.array([0.5, -2.0, 1.0, 0.0, 3.0], np.float32)
    model.get_layer("one").bias.assign(bias)
    space = Space(model)
    found = space.layout.split(space.random(seed=1, index=2, include=("bias",)).vector)["one/bias"]
    noise = seeding.generator(1, "direction one/bias", 2).standard_normal(5)
    np.testing.assert_allclose(found, noise * np.linalg.norm(bias) / np.linalg.norm(noise), rtol=1e-6)
    assert not space.layout.split(space.random(seed=1, index=2).vector)["one/bias"].any()


def test_between_models_and_planes():
    space, other, third = Space(dense_net()), Space(dense_net(5)), Space(dense_net(9))
    line = space.between(space.weights, other.weights)
    np.testing.assert_allclose(space.weights + line.vector, other.weights, rtol=1e-6, atol=1e-8)
    one, two = space.plane(space.weights, other.weights, third.weights)
    np.testing.assert_allclose(space.weights + two.vector, third.weights, rtol=1e-6, atol=1e-8)
    assert one.sha256 == line.sha256
    with pytest.raises(UserError, match="one line"):
        space.plane(space.weights, other.weights, space.weights + 2 * line.vector)
    with pytest.raises(UserError, match="same weights"):
        space.between(space.weights, space.weights)
    with pytest.raises(UserError, match="another model"):
        space.between(space.weights, space.weights[:-1])


def test_a_layer_of_ones_own():
    class Odd(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(3, shape[-1]), name="table")

        def call(self, x):
            return x @ keras.ops.transpose(self.table)

    layer = Odd()
    layer.build((None, 4))
    assert filter_axes(layer, "table", (3, 4)) == (0,)  # unknown: outputs last, as everywhere in Keras
    register_filter_axes(Odd, "table", (1,))
    assert filter_axes(layer, "table", (3, 4)) == (1,)


def test_bad_input():
    space = Space(dense_net())
    with pytest.raises(UserError, match="norm: 'weight' is unknown"):
        space.random(norm="weight")
    with pytest.raises(UserError, match="layers: nowhere"):
        space.random(layers=("nowhere",))
    with pytest.raises(UserError, match="include: biases unknown; there are bias, norm"):
        space.random(include=("biases",))
    with pytest.raises(UserError, match="include: expected a list"):
        space.random(include="bias")
    with pytest.raises(UserError, match="layers: expected a list"):
        space.random(layers="one")
    only_bias = keras.Sequential([keras.Input((3,)), keras.layers.PReLU()])
    with pytest.raises(UserError, match="no trainable weight"):
        Space(only_bias).random()

import numpy as np
import pytest

from feddual import models
from feddual.data import datasets
from feddual.errors import UserError
from feddual.experiment import config
from feddual.functional import features
from feddual.functional import layout as weights
from tests.helpers import tiny

SIZES = {
    "lenet5": ((28, 28, 1), {}, 44_426),
    "lenet_published": ((28, 28, 1), {}, 164_116),
    "vgg16": ((32, 32, 3), {"weights": "random"}, 33_482),  # the trained head; the base is frozen
    "vgg16_finetune": ((32, 32, 3), {"weights": "random"}, 14_714_688 + 33_482),
    "vgg16_bn_cifar": ((32, 32, 3), {}, 33_646_666),
    "mlp": ((28, 28, 1), {}, 784 * 64 + 64 + 650),
    "vgg_small": ((32, 32, 3), {}, None),
}


def section(name, **values):
    return config.section_class("model", {"name": name}).model_validate({"name": name, **values})


def build(name, shape, seed=0, num_classes=10, **values):
    return models.build(section(name, **values), shape, num_classes, seed)


def test_every_model_is_sized_here():
    assert set(SIZES) == set(models.MODELS)


@pytest.mark.parametrize("name", sorted(set(SIZES) - {"vgg16_bn_cifar", "vgg16_finetune"}))
def test_models(name):
    shape, values, trainable = SIZES[name]
    network = build(name, shape, **values)
    if trainable is not None:
        assert network.layout.num_trainable == trainable
    first = weights.read(network.model)
    assert (weights.read(build(name, shape, **values).model) == first).all()
    assert not (weights.read(build(name, shape, seed=1, **values).model) == first).all()
    assert build(name, shape, **values).layout == network.layout
    logits = network.model(np.random.default_rng(0).random((2, *shape), np.float32)).numpy()
    assert logits.shape == (2, 10)
    assert not np.allclose(logits.sum(1), 1)  # logits, not probabilities


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg16_bn_cifar", "vgg16_finetune"])
def test_large_models(name):
    shape, values, trainable = SIZES[name]
    assert build(name, shape, **values).layout.num_trainable == trainable


@pytest.mark.parametrize("batch_norm", [False, True])
def test_vgg_small_stays_small(batch_norm):
    """At most 8 million multiply-adds a sample: kernel size x output positions, summed over the layers."""
    network = build("vgg_small", (32, 32, 3), batch_norm=batch_norm)
    total = 0
    for layer in network.model.layers:
        if hasattr(layer, "kernel"):
            positions = np.prod(layer.output.shape[1:-1]) if len(layer.output.shape) > 2 else 1
            total += np.prod(layer.kernel.shape) * positions
    assert total <= 8e6
    assert sum(hasattr(layer, "kernel_size") for layer in network.model.layers) == 6
    assert any(entry.layer_type == "BatchNormalization" for entry in network.layout.entries) == batch_norm


def test_building_leaves_the_callers_randomness_alone():
    import random

    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    expected = random.Random(7).random()
    build("mlp", (4,))
    assert random.random() == expected


def test_a_users_model():
    network = build("tests.helpers:user_model", (4,), num_classes=3, width=7)
    assert network.layout.by_path["dense/kernel"].shape == (4, 7)
    with pytest.raises(UserError, match="ends in a softmax; return logits"):
        build("tests.helpers:softmax_model", (4,))
    with pytest.raises(UserError, match="cannot import 'nowhere'"):
        build("nowhere:build", (4,))
    with pytest.raises(UserError, match="has no 'nothing'"):
        build("tests.helpers:nothing", (4,))
    with pytest.raises(UserError, match=r"cannot be built for inputs of shape \(4,\)"):
        build("lenet5", (4,))
    with pytest.raises(UserError, match=r"model\.depth: unknown key; did you mean .width.\? allowed: name, width"):
        tiny(model__name="tests.helpers:user_model", model__depth=3)


def test_the_frozen_prefix_is_cut_off():
    network = build("tests.helpers:frozen_model", (8, 8, 2), num_classes=3)
    assert network.prefix.output_shape == (None, 3)  # the pooling belongs to it
    assert [entry.layer for entry in network.layout.entries] == ["hidden", "hidden", "output", "output"]
    x = np.random.default_rng(0).random((5, 8, 8, 2), np.float32)
    penultimate, logits = network.trained(network.prefix(x))
    np.testing.assert_allclose(logits, network.model(x), rtol=1e-6)
    assert penultimate.shape == (5, 6)
    assert build("lenet5", (28, 28, 1)).prefix is None


def test_features_are_the_prefix_output_and_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDUAL_CACHE", str(tmp_path))
    network = build("tests.helpers:frozen_model", (8, 8, 2), num_classes=3)
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 2), np.uint8)
    monkeypatch.setattr(features, "CHUNK", 3)
    found = features.features(network, images)
    np.testing.assert_allclose(found, network.prefix(datasets.preprocess(images, "unit")), rtol=1e-6)

    def fail(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(features, "_write", fail)
    features.features(network, images)
    for other in (
        lambda: features.features(network, images[::-1]),
        lambda: features.features(build("tests.helpers:frozen_model", (8, 8, 2), 1, 3), images),
        lambda: features.features(
            models.build(section("tests.helpers:frozen_model"), (8, 8, 2), 3, 0, None, "raw"), images
        ),
    ):
        with pytest.raises(AssertionError, match="computed again"):
            other()
    assert not list((tmp_path / "features").glob("*.partial"))


def test_vgg16_weights_from_a_file(tmp_path):
    network = build("vgg16", (32, 32, 3), weights="random")
    base = models.keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3))
    base.save_weights(tmp_path / models.VGG16_FILE)
    loaded = models.build(section("vgg16"), (32, 32, 3), 10, 0, str(tmp_path))
    kernel = loaded.model.get_layer("block5_conv3").kernel.numpy()
    assert (kernel == base.get_layer("block5_conv3").kernel.numpy()).all()
    assert loaded.frozen_hash != network.frozen_hash
    assert loaded.preprocess == "vgg16"
    with pytest.raises(UserError, match=r"model\.weights: VGG16 weights 'missing.weights.h5' cannot be loaded"):
        build("vgg16", (32, 32, 3), weights="missing.weights.h5")


def test_a_projection_head_stands_before_the_last_layer():
    """MOON's: features to Dense(84, relu), Dense(256), Dense(10); the representation is the 256 values."""
    network = build("lenet5", (28, 28, 1), projection=256)
    assert [layer.name for layer in network.model.layers[-4:]] == ["dense2", "projection1", "projection2", "output"]
    assert network.trained.outputs[0].shape == (None, 256)
    assert network.layout.size == 44_426 - 850 + (84 * 84 + 84) + (84 * 256 + 256) + (256 * 10 + 10)

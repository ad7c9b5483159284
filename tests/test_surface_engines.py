"""How points are computed must not show in them: several directions, frozen layers, workers, kills, losses."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diagnostics import objective, store
from diagnostics.directions import Space
from diagnostics.losses import loss_hash, loss_name
from diagnostics.results import Surface
from diagnostics.surface import loss_lines, loss_surface
from feddual._lazy import keras, tf
from feddual.errors import UserError
from tests.test_surface import IMAGES, QUIET, X, Y, mlp


@pytest.mark.parametrize("parts", [(["two"], ["one"]), (["one"], ["two"], ["one", "bias"])])
def test_lines_that_move_different_layers(parts):
    model = mlp()
    model.get_layer("one").bias.assign(np.linspace(-1, 1, 8))
    space = Space(model)
    directions = [space.random(index=index, layers=part[:1], include=part[1:]) for index, part in enumerate(parts)]
    options = {"directions": directions, "grid": 5, **QUIET}
    fast = loss_lines(model, X, Y, **options)
    assert fast.meta["facts"]["engine"] == "linearity + dense suffix"
    np.testing.assert_allclose(fast.loss, loss_lines(model, X, Y, engine="plain", **options).loss, rtol=1e-5)


class Killed(Exception):
    pass


def squares(y, z):
    return tf.reduce_sum(tf.square(z), 1)


TWO_LEVELS = {"grid": 21, "range": 2.0, "loss": squares, "two_level": 45, **QUIET}


@pytest.fixture(scope="module")
def two_levels():
    """A model, inputs so alike that few of them tell a contour level from the next, and the surface."""
    model, x = mlp(scale=2.0), 1 + X / 100
    return model, x, loss_surface(model, x, Y, **TWO_LEVELS)


@pytest.mark.parametrize("fine_chunks", [0, 1])
def test_two_levels_killed_in_the_second_are_continued(tmp_path, monkeypatch, two_levels, fine_chunks):
    model, x, whole = two_levels
    write, written = store.Folder.write, []

    def dies(self, name, values):
        written.append(name)
        if sum(name.startswith("fine") for name in written) > fine_chunks:
            raise Killed
        write(self, name, values)

    with monkeypatch.context() as patch:
        patch.setattr(store.Folder, "write", dies)
        with pytest.raises(Killed):
            loss_surface(model, x, Y, out=tmp_path / "s", **TWO_LEVELS)
    partial = Surface.load(tmp_path / "s")
    assert partial.computed.all()
    assert not partial.complete
    assert partial.preview().loss.shape == (21, 21)
    resumed = loss_surface(model, x, Y, out=tmp_path / "s", **TWO_LEVELS)
    assert resumed.complete
    assert resumed.meta["facts"]["two_level"] == whole.meta["facts"]["two_level"]
    for name in ("loss", "sem", "samples"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
        np.testing.assert_array_equal(getattr(Surface.load(tmp_path / "s"), name), getattr(whole, name))


def test_a_kill_before_the_last_file_is_made_good(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store.Folder, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET)
    loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["manifest.json", "surface.npz"]


def test_two_levels_with_workers_equal_serial(two_levels):
    model, x, serial = two_levels
    parallel = loss_surface(model, x, Y, workers=2, **TWO_LEVELS)
    for name in ("loss", "sem", "samples"):
        np.testing.assert_array_equal(getattr(serial, name), getattr(parallel, name))


# --- which loss it is


def power(exponent):
    def of_outputs(y, z):
        return tf.reduce_sum(tf.abs(z) ** exponent, 1)

    return of_outputs


def scaled(y, z, factor=1.0):
    return factor * squares(y, z)


class Scaled(keras.losses.Loss):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y, z):
        return self.factor * squares(y, z)


def test_losses_are_told_apart():
    table = np.arange(3.0)
    losses = keras.losses
    different = [
        *(losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(delta=1.0), losses.Huber(delta=2.0)),
        *(losses.SparseCategoricalCrossentropy(ignore_class=k) for k in (0, 1)),
        *(losses.CategoricalCrossentropy(label_smoothing=k) for k in (0.1, 0.2)),
        *(power(1), power(5), power(table), power(table + 1)),
        *(scaled, functools.partial(scaled, factor=2.0), functools.partial(scaled, factor=3.0)),
        *(Scaled(1.0), Scaled(2.0), Scaled(1.0).call),
        *(lambda y, z: squares(y, z), lambda y, z: 2 * squares(y, z), lambda y, z, k=3: k * squares(y, z)),
    ]
    hashes = [loss_hash(loss) for loss in different]
    assert len(set(hashes)) == len(hashes)
    assert loss_hash(power(5)) == hashes[9]
    assert loss_hash(losses.Huber(delta=2.0)) == hashes[3]
    assert loss_hash(Scaled(2.0)) == loss_hash(Scaled(2.0))  # though Keras numbers their names
    for builtin in (None, "mse", losses.SparseCategoricalCrossentropy(), losses.CategoricalCrossentropy()):
        assert loss_hash(builtin) is None


def test_the_hash_of_a_loss_is_the_same_in_another_process(monkeypatch):
    code = "from tests import test_surface_engines as t; print(t.loss_hash(t.power(5)), t.loss_hash(t.Scaled(2.0)))"
    monkeypatch.setenv("PYTHONHASHSEED", "11")
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == [loss_hash(power(5)), loss_hash(Scaled(2.0))]


def test_another_loss_is_another_measurement_and_reads_well(tmp_path):
    targets = keras.utils.to_categorical(Y)
    options = {"grid": 3, "out": tmp_path / "s", **QUIET}
    found = loss_surface(mlp(), X, targets, loss=keras.losses.MeanSquaredError(), **options)
    assert "MeanSquaredError, mean of 90" in found.caption()
    np.testing.assert_allclose(found.accuracy[1, 1], np.mean(np.argmax(mlp()(X), 1) == Y))
    np.testing.assert_allclose(loss_surface(mlp(), X, targets, grid=3, loss="mse", **QUIET).loss, found.loss, rtol=1e-6)
    with pytest.raises(UserError, match="loss: it has"):
        loss_surface(mlp(), X, targets, loss=keras.losses.MeanAbsoluteError(), **options)
    options["out"] = tmp_path / "power"
    assert "of_outputs, mean of 90" in loss_surface(mlp(), X, Y, loss=power(1), **options).caption()
    with pytest.raises(UserError, match="loss_hash"):
        loss_surface(mlp(), X, Y, loss=power(5), **options)
    assert loss_name(functools.partial(scaled, factor=2.0)) == "scaled"
    assert "lambda" not in loss_name(lambda y, z: z)


def test_an_ignored_class_is_ignored():
    model, labels = mlp(), np.where(np.arange(90) % 3, Y, 3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3, reduction="none")
    surface = loss_surface(model, X, labels, grid=3, loss=loss, **QUIET)
    np.testing.assert_allclose(surface.loss[1, 1], np.mean(loss(labels, model(X))), rtol=1e-5)
    assert surface.loss[1, 1] < loss_surface(model, X, labels, grid=3, **QUIET).loss[1, 1]


# --- frozen layers and one trained layer after them


def linear_probe(kind):
    layers = keras.layers
    base = keras.Sequential([keras.Input((8, 8, 2)), layers.Conv2D(3, 3), layers.GlobalAveragePooling2D()])
    base.trainable = False
    if kind == "chain":
        return keras.Sequential([keras.Input((8, 8, 2)), *base.layers, layers.Dense(4, activation="softmax")])
    if kind == "nested":
        return keras.Sequential([keras.Input((8, 8, 2)), base, layers.Dense(4)])
    images = keras.Input((8, 8, 2))
    return keras.Model(images, layers.Dense(4)(base(images, training=False)))


LABELS = np.arange(40) % 4


@pytest.mark.parametrize("kind", ["chain", "nested", "functional"])
def test_a_single_layer_after_frozen_ones(kind):
    model = linear_probe(kind)
    fast = loss_surface(model, IMAGES, LABELS, grid=3, **QUIET)
    assert fast.meta["facts"]["engine"] == "prefix + linearity + dense suffix"
    assert fast.meta["facts"]["check_prefix"] < 1e-5
    plain = loss_surface(model, IMAGES, LABELS, grid=3, engine="plain", **QUIET)
    assert plain.meta["facts"]["engine"] == "plain"
    np.testing.assert_allclose(fast.loss, plain.loss, rtol=1e-5)


def test_a_shortcut_around_frozen_layers_is_not_cut():
    layers = keras.layers
    images = keras.Input((8, 8, 2))
    h = layers.Conv2D(2, 3, padding="same", trainable=False)(images)
    h = layers.Conv2D(2, 3, padding="same", trainable=False)(layers.Add()([h, images]))
    model = keras.Model(images, layers.Dense(4)(layers.Flatten()(layers.Add()([h, images]))))
    found = [loss_surface(model, IMAGES, LABELS, grid=3, engine=engine, **QUIET) for engine in ("auto", "plain")]
    np.testing.assert_allclose(found[0].loss, found[1].loss, rtol=1e-5)


def test_a_wrong_prefix_is_not_used(monkeypatch):
    model = linear_probe("chain")
    plain = loss_surface(model, IMAGES, LABELS, grid=3, engine="plain", **QUIET)
    right = objective.in_batches
    monkeypatch.setattr(objective, "in_batches", lambda *arguments: 1.5 * right(*arguments))
    with pytest.warns(UserWarning, match="frozen layers computed once differ from the whole network"):
        found = loss_surface(model, IMAGES, LABELS, grid=3, **QUIET)
    np.testing.assert_allclose(found.loss, plain.loss, rtol=1e-5)
    assert found.meta["facts"]["check_prefix"] > 1e-4

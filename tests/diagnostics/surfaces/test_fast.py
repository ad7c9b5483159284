"""How points are computed must not show in them: several directions, frozen layers, workers, kills, losses."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diagnostics.landscape import loss_lines, loss_surface
from diagnostics.surfaces import objective
from diagnostics.surfaces.directions import Direction, Space
from diagnostics.surfaces.losses import loss_hash, loss_name
from diagnostics.surfaces.results import Surface
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.records import measurements as store
from tests.diagnostics.surfaces.test_measure import IMAGES, QUIET, X, Y, cross_entropy, mlp


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


TWO_LEVELS = {"grid": 21, "extent": 2.0, "loss": squares, "two_level": 45, **QUIET}


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
    code = f"import {__name__} as t; print(t.loss_hash(t.power(5)), t.loss_hash(t.Scaled(2.0)))"
    monkeypatch.setenv("PYTHONHASHSEED", "11")
    root = Path(__file__).parents[3]
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


# --- workers, kills and odd numbers


def convolutions(batch_norm=False, seed=0):
    layers, make = keras.layers, keras.initializers.RandomNormal
    kernels = [make(0, 0.3, seed=seed + number) for number in range(3)]
    return keras.Sequential(
        [keras.Input((8, 8, 2)), layers.Conv2D(3, 3, activation="tanh", kernel_initializer=kernels[0])]
        + [layers.BatchNormalization(momentum=0.5)] * batch_norm
        + [layers.AveragePooling2D(2), layers.Conv2D(4, 2, activation="relu", kernel_initializer=kernels[1])]
        + [layers.Flatten(), layers.Dense(4, kernel_initializer=kernels[2])]
    )


# Through the workers' files and code in this process; `test_workers_equal_serial_in_bits` starts real ones.
WORKERS = {"workers": 2, "executor": "inline"}


@pytest.mark.parametrize("engine", ["linearity + patches", "plain"])
def test_workers_equal_serial_for_every_engine(engine):
    options = {"grid": (5, 7), "engine": "plain" if engine == "plain" else "auto", "batch_size": 16, **QUIET}
    serial, parallel = (loss_surface(convolutions(), IMAGES, LABELS, **options, **more) for more in ({}, WORKERS))
    assert parallel.meta["facts"]["engine"] == engine
    for name in ("loss", "sem", "accuracy", "class_loss"):
        np.testing.assert_array_equal(getattr(serial, name), getattr(parallel, name))


def test_workers_equal_serial_for_lines_of_different_layers():
    model = mlp()
    space = Space(model)
    directions = [space.random(index=index, layers=[layer]) for index, layer in enumerate(("two", "one"))]
    serial, parallel = (
        loss_lines(model, X, Y, directions=directions, grid=5, **QUIET, **more) for more in ({}, WORKERS)
    )
    np.testing.assert_array_equal(serial.loss, parallel.loss)


def test_two_levels_with_workers_equal_serial(two_levels):
    model, x, serial = two_levels
    parallel = loss_surface(model, x, Y, **WORKERS, **TWO_LEVELS)
    for name in ("loss", "sem", "samples"):
        np.testing.assert_array_equal(getattr(serial, name), getattr(parallel, name))


def odd(y, z):
    """NaN, infinite, negative and zero losses, by the size of the first output."""
    size = z[:, 0]
    return tf.where(size > 1.0, np.inf, tf.where(size > 0.5, np.nan, tf.where(size > 0, tf.zeros_like(size), size)))


def test_odd_losses_survive_files_and_kills(tmp_path, monkeypatch):
    model = mlp(scale=0.3)
    x = np.tile(X[:1], (8, 1))  # one sample, so that a point has one kind of loss
    options = {"grid": 9, "extent": 20.0, "loss": odd, **QUIET}
    whole = loss_surface(model, x, Y[:8], **options)
    kinds = [np.isnan(whole.loss), np.isposinf(whole.loss), whole.loss < 0, whole.loss == 0]
    assert all(kind.any() for kind in kinds)
    assert whole.computed.all()
    whole.save(tmp_path / "saved")
    np.testing.assert_array_equal(Surface.load(tmp_path / "saved").loss, whole.loss)
    write, written = store.Folder.write, []

    def dies(self, name, values):
        if len(written) == 3:
            raise Killed
        written.append(name)
        write(self, name, values)

    with monkeypatch.context() as patch:
        patch.setattr(store.Folder, "write", dies)
        with pytest.raises(Killed):
            loss_surface(model, x, Y[:8], out=tmp_path / "s", **options)
    partial = Surface.load(tmp_path / "s")
    assert partial.computed.sum() == 48
    np.testing.assert_array_equal(partial.loss[partial.computed], whole.loss[partial.computed])
    again = []
    monkeypatch.setattr(
        store.Folder, "write", lambda self, name, values: (again.append(name), write(self, name, values))
    )
    np.testing.assert_array_equal(loss_surface(model, x, Y[:8], out=tmp_path / "s", **options).loss, whole.loss)
    assert not set(again) & set(written)  # no loss counts as "to do"


# --- batch normalisation, and planes through models


def test_statistics_of_a_convolution_interpolated_and_recalibrated():
    first, second = convolutions(batch_norm=True), convolutions(batch_norm=True, seed=5)
    for model, mean in ((first, 0.1), (second, 0.4)):
        model.layers[1].moving_mean.assign(np.full(3, mean))
        model.layers[1].moving_variance.assign(np.linspace(0.5, 1.5 + mean, 3))
    space, other = Space(first), Space(second)
    options = {"directions": [space.between(space.weights, other.weights)], "extent": (0, 1), "grid": 3, **QUIET}
    ends = [cross_entropy(model(IMAGES).numpy(), LABELS).mean() for model in (first, second)]
    moved = loss_lines(first, IMAGES, LABELS, bn="interpolate", **options)
    np.testing.assert_allclose(moved.loss[0, [0, -1]], ends, rtol=1e-5)
    again = loss_lines(first, IMAGES, LABELS, bn="recalibrate", **options)
    hidden = second.layers[0](IMAGES).numpy().astype(float)
    second.layers[1].moving_mean.assign(hidden.mean((0, 1, 2)))
    second.layers[1].moving_variance.assign(hidden.var((0, 1, 2)))
    expected = cross_entropy(second(IMAGES).numpy(), LABELS).mean()
    np.testing.assert_allclose(again.loss[0, -1], expected, rtol=1e-4)
    assert abs(expected - ends[1]) > 1e-3


def test_a_plane_through_three_models_passes_through_them():
    models = [convolutions(seed=seed) for seed in (0, 5, 9)]
    space = Space(models[0])
    plane = space.plane(*(Space(model).weights for model in models))
    surface = loss_surface(models[0], IMAGES, LABELS, directions=plane, grid=3, extent=(0, 1), **QUIET)
    found = [surface.loss[0, 0], surface.loss[0, 2], surface.loss[2, 0]]
    expected = [cross_entropy(model(IMAGES).numpy(), LABELS).mean() for model in models]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": {"images": X}}, "x: expected an array .* got dict"),
        ({"x": [[1, 2], [3]]}, "x: expected an array .* got list"),
        ({"y": np.array(["cat", "dog"] * 45)}, "y: expected numbers, got text"),
        ({"y": X[:, :3], "loss": "mse"}, r"y: mse over outputs of shape \(None, 4\) .* got \(90, 3\)"),
        ({"grid": 5.0}, "grid: expected N or NXxNY, got 5.0"),
        ({"extent": "a"}, "extent: expected numbers, got 'a'"),
        ({"include": ("biases",)}, "include: biases unknown"),
        ({"include": "bias"}, "include: expected a list"),
    ],
)
def test_input_of_other_kinds_is_named(given, message):
    options = {"x": X, "y": Y, "grid": 3, **QUIET, **given}
    for measure in (loss_surface, loss_lines):
        with pytest.raises(UserError, match=message):
            measure(mlp(), **options)


def test_a_data_set_is_not_an_array():
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    with pytest.raises(UserError, match=r"x: expected an array .* collected into arrays"):
        loss_surface(mlp(), data, Y, **QUIET)
    with pytest.raises(UserError, match="as arrays"):
        loss_surface(mlp(), data, **QUIET)


def test_numbers_of_numpy_are_numbers():
    surface = loss_surface(mlp(), X, Y, grid=np.int64(5), extent=np.float32(1), **QUIET)
    assert surface.loss.shape == (5, 5)
    lines = loss_lines(mlp(), X, Y, count=1, grid=np.int64(5), extent=np.float32(1), **QUIET)
    np.testing.assert_array_equal(lines.alphas, surface.alphas)
    with pytest.raises(UserError, match="a line has one count"):
        loss_lines(mlp(), X, Y, grid=(3, 5), **QUIET)
    with pytest.raises(UserError, match="alphas: expected numbers"):
        loss_lines(mlp(), X, Y, alphas=["a", 0, 1], **QUIET)


def test_directions_that_lead_nowhere_are_named():
    model = mlp()
    space = Space(model)
    good, size = space.random(), space.layout.size
    cases = {
        "Direction(vector, name)": [good.vector, good.vector],
        "'nothing' is zero everywhere": [good, Direction(np.zeros(size, np.float32), "nothing")],
        "'broken' holds values that are not finite": [good, Direction(np.full(size, np.nan, np.float32), "broken")],
        "given twice": [good, good],
        "parallel": [good, Direction(-2 * good.vector, "back")],
        "expected 2, got 1": good,
    }
    for message, directions in cases.items():
        with pytest.raises(UserError, match=re.escape(message)):
            loss_surface(model, X, Y, grid=3, directions=directions, **QUIET)
    with pytest.raises(UserError, match="given twice"):
        loss_lines(model, X, Y, grid=3, directions=[good, good], **QUIET)
    alone = loss_lines(model, X, Y, grid=3, directions=good, **QUIET)
    in_float64 = Direction(good.vector.astype(float), "the same")
    np.testing.assert_array_equal(loss_lines(model, X, Y, grid=3, directions=[in_float64], **QUIET).loss, alone.loss)

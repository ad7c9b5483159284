"""Surfaces: what every point means, what a kill or a second worker must not change, and what is refused."""

import json
import os

import numpy as np
import pytest

import diagnostics
from diagnostics.landscape import loss_lines, loss_surface
from diagnostics.subject import stratified_rows
from diagnostics.surfaces import fast as engines
from diagnostics.surfaces import sweep
from diagnostics.surfaces.directions import Direction, Space
from diagnostics.surfaces.grid import Grid, axis
from diagnostics.surfaces.objective import Objective
from diagnostics.surfaces.results import Lines, Surface
from feddual._lazy import keras, tf
from feddual.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 90)
IMAGES = RNG.normal(size=(40, 8, 8, 2)).astype(np.float32)
QUIET = {"progress": False, "images": None}


def mlp(softmax=False, hidden=8, scale=1.0):
    layers = keras.layers
    make = keras.initializers.RandomNormal
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(hidden, activation="relu", kernel_initializer=make(0, scale, seed=1), name="one"),
            layers.Dense(4, activation="softmax" if softmax else None, kernel_initializer=make(seed=2), name="two"),
        ]
    )


def cross_entropy(logits, labels):
    """In float64, by hand."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]


def at(model, alpha, beta, seed=0, direction=0):
    """A point the slow way: weights written into a copy of the model."""
    space = Space(model)
    one, two = (space.random(seed, 2 * direction + axis).vector for axis in (0, 1))
    from feddual.functional.layout import assign

    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    assign(copy, space.weights + np.float32(alpha) * one + np.float32(beta) * two)
    return copy


# --- what the numbers are


def test_every_point_equals_the_models_loss_there():
    model = mlp()
    surface = loss_surface(model, X, Y, grid=(5, 3), extent=(-1, 1), **QUIET)
    assert surface.loss.shape == (3, 5)
    for iy, beta in enumerate(surface.betas):
        for ix, alpha in enumerate(surface.alphas):
            logits = at(model, alpha, beta)(X).numpy()
            losses = cross_entropy(logits, Y)
            np.testing.assert_allclose(surface.loss[iy, ix], losses.mean(), rtol=1e-5)
            np.testing.assert_allclose(surface.sem[iy, ix], losses.std(ddof=1) / np.sqrt(90), rtol=1e-4)
            np.testing.assert_allclose(surface.accuracy[iy, ix], (logits.argmax(1) == Y).mean())
            by_class = [losses[Y == label].mean() for label in range(4)]
            np.testing.assert_allclose(surface.class_loss[iy, ix], by_class, rtol=1e-5)


def test_the_centre_equals_the_models_loss():
    model = mlp()
    surface = loss_surface(model, X, Y, grid=3, **QUIET)
    assert surface.alphas[1] == surface.betas[1] == 0.0
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(Y, model(X)).numpy()
    np.testing.assert_allclose(surface.loss[surface.centre], expected, rtol=1e-6)
    np.testing.assert_allclose(surface.meta["facts"]["loss"], expected, rtol=1e-6)


def test_non_square_asymmetric_grid_is_not_transposed():
    # A quadratic bowl with its own directions: L = (w0 - 3)² + 10 (w1 + 1)² is known everywhere.
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((2, 1), np.float32)])
    steps = [Direction(np.array(v, np.float32), "axis") for v in ([1, 0], [0, 1])]

    def bowl(y, z):
        return (z[:, 0] - 3) ** 2 * tf.cast(y == 0, tf.float32) + 10 * (z[:, 0] + 1) ** 2 * tf.cast(y == 1, tf.float32)

    x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    surface = loss_surface(model, x, y, grid=(7, 3), extent=((-1, 2), (0, 1)), directions=steps, loss=bowl, **QUIET)
    np.testing.assert_allclose(surface.alphas, [-1, -0.5, 0, 0.5, 1, 1.5, 2], atol=1e-12)
    a, b = np.meshgrid(surface.alphas, surface.betas)
    np.testing.assert_allclose(surface.loss, ((a - 3) ** 2 + 10 * (b + 1) ** 2) / 2, rtol=1e-6)
    assert surface.betas[0] == 0  # a bound of zero is a bound like any other


def test_no_walk_no_drift_no_zigzag():
    """Each point is computed from the centre: any subset, in any order, has the same bits."""
    model = mlp()
    fine = loss_surface(model, X, Y, grid=5, engine="plain", **QUIET)
    coarse = loss_surface(model, X, Y, grid=3, engine="plain", **QUIET)
    np.testing.assert_array_equal(fine.loss[::2, ::2], coarse.loss)


def test_the_range_is_used():
    model = mlp()
    near, far = (loss_surface(model, X, Y, grid=3, extent=r, **QUIET) for r in (0.5, 1.0))
    assert not np.allclose(near.loss, far.loss)
    np.testing.assert_allclose(near.alphas, [-0.5, 0, 0.5])


def test_a_softmax_at_the_end_changes_nothing():
    plain, soft = mlp(scale=40.0), mlp(softmax=True, scale=40.0)
    inputs = keras.Input((6,))
    layered = keras.Model(inputs, keras.layers.Softmax()(plain(inputs)))
    by_op = keras.Model(inputs, keras.ops.softmax(plain(inputs)))
    expected = loss_surface(plain, X, Y, grid=3, **QUIET)
    assert expected.loss.max() > 16.2  # beyond the plateau of clipped probabilities at -ln 1e-7
    for model in (soft, layered, by_op):
        np.testing.assert_allclose(loss_surface(model, X, Y, grid=3, **QUIET).loss, expected.loss, rtol=1e-6)


def test_model_and_optimizer_are_bitwise_unchanged():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(X, Y, epochs=1, verbose=0)
    before = [v.numpy().copy() for v in (*model.variables, *model.optimizer.variables)]
    nodes = [len(layer._inbound_nodes) for layer in model.layers]
    import random

    state = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002 - that it is left alone is the point
    loss_surface(model, X, Y, grid=3, **QUIET)
    loss_surface(model, X, Y, grid=3, bn="recalibrate", **QUIET)
    after = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    assert nodes == [len(layer._inbound_nodes) for layer in model.layers]
    assert random.getstate() == state[0]
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    assert model.layers[-1].activation.__name__ == "softmax"


def test_layer_rescaling_of_a_relu_net_gives_the_same_surface():
    """Dinh et al.'s rescaling changes no function value; filter normalisation makes the surface follow."""
    model = mlp()
    one, two = model.get_layer("one"), model.get_layer("two")
    expected = loss_surface(model, X, Y, grid=5, **QUIET)
    kernel, other = one.kernel.numpy(), two.kernel.numpy()
    one.kernel.assign(kernel * 8)
    two.kernel.assign(other / 8)
    np.testing.assert_allclose(loss_surface(model, X, Y, grid=5, **QUIET).loss, expected.loss, rtol=1e-4)
    # Node by node the next layer's filters mix, so that the surface changes: the documented limit.
    factors = np.geomspace(0.1, 10, 8).astype(np.float32)
    one.kernel.assign(kernel * factors)
    two.kernel.assign(other / factors[:, None])
    changed = loss_surface(model, X, Y, grid=5, **QUIET)
    np.testing.assert_allclose(changed.loss[2, 2], expected.loss[2, 2], rtol=1e-5)
    assert not np.allclose(changed.loss, expected.loss, rtol=1e-2)


def test_the_mean_curvature_of_a_quadratic_is_the_trace():
    """L = |w|² / 2 per filter: the second difference along any filter-normalised direction is |w|² exactly."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    weights = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    model.set_weights([weights])
    # Each sample picks one input out, so that outputs are rows of the kernel.
    x, y = np.eye(3, dtype=np.float32), np.zeros(3, int)
    lines = loss_lines(
        model, x, y, loss=lambda t, z: tf.reduce_sum(tf.square(z), 1) * 3 / 2, count=4, alphas=[-0.5, 0, 0.5], **QUIET
    )
    kappa = (lines.loss[:, 0] + lines.loss[:, 2] - 2 * lines.loss[:, 1]) / 0.25
    np.testing.assert_allclose(kappa, (weights**2).sum(), rtol=1e-4)


# --- batch normalisation


def bn_net():
    layers = keras.layers
    make = keras.initializers.RandomNormal
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, kernel_initializer=make(seed=1)),
            layers.BatchNormalization(momentum=0.5),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.Dense(4, kernel_initializer=make(seed=2)),
        ]
    )
    model.layers[1].moving_mean.assign(np.linspace(-0.1, 0.1, 8))
    model.layers[1].moving_variance.assign(np.linspace(0.5, 1.5, 8))
    return model


def test_moving_statistics_are_never_perturbed():
    model = bn_net()
    surface = loss_surface(model, X, Y, grid=3, **QUIET)
    logits = at(model, 1.0, -1.0)(X, training=False).numpy()
    np.testing.assert_allclose(surface.loss[0, 2], cross_entropy(logits, Y).mean(), rtol=1e-5)


def test_recalibrated_statistics_are_those_of_the_data():
    model = bn_net()
    surface = loss_surface(model, X, Y, grid=3, bn="recalibrate", **QUIET)
    moved = at(model, 1.0, -1.0)
    hidden = moved.layers[0](X).numpy().astype(float)
    normed = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + moved.layers[1].epsilon)
    logits = np.maximum(normed, 0) @ moved.layers[-1].kernel.numpy()
    np.testing.assert_allclose(surface.loss[0, 2], cross_entropy(logits, Y).mean(), rtol=1e-4)


def test_statistics_move_between_models_on_request():
    first, second = bn_net(), bn_net()
    second.layers[1].moving_mean.assign(np.ones(8))
    second.layers[0].kernel.assign(first.layers[0].kernel + 0.3)
    space, other = Space(first), Space(second)
    line = [space.between(space.weights, other.weights)]
    found = {
        bn: loss_lines(first, X, Y, directions=line, extent=(0, 1), grid=3, bn=bn, **QUIET).loss[0, -1]
        for bn in ("frozen", "interpolate")
    }
    end = cross_entropy(second(X, training=False).numpy(), Y).mean()
    np.testing.assert_allclose(found["interpolate"], end, rtol=1e-5)
    assert abs(found["frozen"] - end) > 1e-4
    with pytest.raises(UserError, match="interpolate"):
        loss_surface(first, X, Y, grid=3, bn="interpolate", **QUIET)


# --- models the engine never made


def models_of_all_kinds():
    layers = keras.layers
    images = keras.Input((8, 8, 2))
    residual = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    residual = layers.Add()([residual, layers.Conv2D(4, 1)(residual)])
    residual = keras.Model(images, layers.Dense(4)(layers.Flatten()(residual)))
    transposed = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2DTranspose(3, 3, strides=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    depthwise = keras.Sequential(
        [
            keras.Input((8, 8, 2)), layers.DepthwiseConv2D(3, depth_multiplier=2), layers.BatchNormalization(),
            layers.SeparableConv2D(4, 3), layers.PReLU(), layers.Flatten(), layers.Dense(4),
        ]
    )  # fmt: skip
    convolutions = keras.Sequential(
        [
            keras.Input((8, 8, 2)), layers.Conv2D(3, 3, activation="tanh"), layers.AveragePooling2D(2),
            layers.Conv2D(4, 2, activation="relu"), layers.Flatten(), layers.Dense(4),
        ]
    )  # fmt: skip
    conv_dense = keras.Sequential(
        [keras.Input((8, 8, 2)), layers.Conv2D(3, 3, strides=2, activation="relu"), layers.Flatten(), layers.Dense(4)]
    )
    frozen = keras.Sequential(
        [
            keras.Input((8, 8, 2)), layers.Conv2D(3, 3, trainable=False), layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="relu"), layers.Dense(4),
        ]
    )  # fmt: skip
    sequence = keras.Input((8, 16))
    attended = layers.MultiHeadAttention(2, 3)(sequence, sequence)
    attended = layers.LayerNormalization()(layers.Add()([attended, sequence]))
    attention = keras.Model(sequence, layers.Dense(4)(layers.GlobalAveragePooling1D()(attended)))
    lstm = keras.Sequential([keras.Input((8, 16)), layers.LSTM(5), layers.Dense(4)])
    nested = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.Sequential([layers.Conv2D(3, 3), layers.Flatten()]),
            layers.Dense(4, activation="softmax"),
        ]
    )
    flat = IMAGES.reshape(40, 8, 16)
    return {
        "residual": (residual, IMAGES), "transposed": (transposed, IMAGES), "depthwise": (depthwise, IMAGES),
        "convolutions": (convolutions, IMAGES), "conv and dense": (conv_dense, IMAGES), "frozen": (frozen, IMAGES),
        "attention": (attention, flat), "lstm": (lstm, flat), "nested": (nested, IMAGES),
    }  # fmt: skip


@pytest.fixture(scope="module")
def zoo():
    return models_of_all_kinds()


KINDS = (
    "residual",
    "transposed",
    "depthwise",
    "convolutions",
    "conv and dense",
    "frozen",
    "attention",
    "lstm",
    "nested",
)
ENGINES = {
    "residual": "linearity",
    "convolutions": "linearity + patches",
    "conv and dense": "linearity + dense suffix",
    "frozen": "prefix + linearity + dense suffix",
}


@pytest.mark.parametrize("kind", KINDS)
def test_fast_equals_plain_on_all_kinds_of_models(zoo, kind):
    model, x = zoo[kind]
    labels = np.arange(40) % 4
    fast = loss_surface(model, x, labels, grid=3, batch_size=16, **QUIET)
    plain = loss_surface(model, x, labels, grid=3, batch_size=16, engine="plain", **QUIET)
    np.testing.assert_allclose(fast.loss, plain.loss, rtol=1e-5)
    np.testing.assert_allclose(fast.class_loss, plain.class_loss, rtol=1e-5)
    np.testing.assert_array_equal(fast.accuracy, plain.accuracy)
    assert fast.meta["facts"]["engine"] == ENGINES.get(kind, fast.meta["facts"]["engine"])
    rows = stratified_rows(labels, None)
    outputs = model(x[rows]).numpy()
    logits = np.log(outputs) if kind == "nested" else outputs
    np.testing.assert_allclose(plain.loss[1, 1], cross_entropy(logits, labels[rows]).mean(), rtol=1e-4)


def test_only_some_layers_moved_uses_the_prefix(zoo):
    model, x = zoo["convolutions"]
    dense = next(layer for layer in ("dense", "dense_1") if layer in Space(model).layout.layers)
    options = {"grid": 3, "layers": (dense,), **QUIET}
    fast = loss_surface(model, x, np.arange(40) % 4, **options)
    assert fast.meta["facts"]["engine"] == "prefix + linearity + dense suffix"
    plain = loss_surface(model, x, np.arange(40) % 4, engine="plain", **options)
    np.testing.assert_allclose(fast.loss, plain.loss, rtol=1e-5)


def test_frozen_layers_move_only_on_request(zoo):
    model, x = zoo["frozen"]
    labels = np.arange(40) % 4
    still = loss_surface(model, x, labels, grid=3, **QUIET)
    moved = loss_surface(model, x, labels, grid=3, frozen=True, **QUIET)
    np.testing.assert_allclose(still.loss[1, 1], moved.loss[1, 1], rtol=1e-5)
    assert not np.allclose(still.loss, moved.loss, rtol=1e-3)
    assert not model.layers[0].trainable


def test_a_fast_path_that_is_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(engines, "_linear", lambda layer, kernel, bias, x: keras.ops.matmul(x, kernel) * 1.01)
    with pytest.warns(UserWarning, match="differs from the plain one"):
        found = loss_surface(mlp(), X, Y, grid=3, **QUIET)
    assert found.meta["facts"]["engine"] == "plain"
    assert found.meta["facts"]["check"] > 1e-4


def test_custom_losses():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    targets = X[:, 0] * 2 - 1
    predicted = model(X).numpy()[:, 0].astype(float)
    expected = np.mean((predicted - targets) ** 2)
    for loss in ("mse", lambda y, z: tf.square(y - z[:, 0]), keras.losses.MeanSquaredError()):
        given = targets[:, None] if isinstance(loss, keras.losses.Loss) else targets
        surface = loss_surface(model, X, given, grid=3, loss=loss, **QUIET)
        np.testing.assert_allclose(surface.loss[1, 1], expected, rtol=1e-5)
        assert np.isnan(surface.accuracy).all()
        assert surface.class_loss.shape == (3, 3, 0)


def test_negative_and_zero_losses_are_losses():
    # Li's tool took everything at or below zero for "to do".
    surface = loss_surface(mlp(), X, Y, grid=3, loss=lambda y, z: -tf.reduce_sum(tf.square(z), 1), **QUIET)
    assert (surface.loss < 0).all()
    assert surface.computed.all()
    surface.plot()


def test_nan_and_infinity_are_kept():
    def explodes(y, z):
        size = tf.reduce_max(tf.abs(z), 1)
        return tf.where(size > 1.0, tf.constant(np.inf), size)

    surface = loss_surface(mlp(scale=0.3), X, Y, grid=5, extent=50.0, loss=explodes, **QUIET)
    assert np.isinf(surface.loss).any()
    assert np.isfinite(surface.loss[surface.centre])
    assert surface.computed.all()
    surface.plot()


def test_logits_normalised_forget_confidence():
    model = mlp()
    before = loss_surface(model, X, Y, grid=3, logit_norm=True, **QUIET)
    model.get_layer("two").kernel.assign(model.get_layer("two").kernel * 5)
    np.testing.assert_allclose(loss_surface(model, X, Y, grid=3, logit_norm=True, **QUIET).loss, before.loss, rtol=1e-4)
    assert not np.allclose(loss_surface(model, X, Y, grid=3, **QUIET).loss, before.loss, rtol=1e-2)


# --- order, kills, workers


def test_the_order_is_nested_and_begins_at_the_centre():
    grid = Grid.plane((51, 31), 1.0)
    assert tuple(grid.coordinates(grid.order[:1])[0]) == (0, 0)
    assert sorted(grid.order) == list(range(51 * 31))
    assert len(grid.levels[0]) <= 0.05 * 51 * 31
    first = grid.coordinates(grid.levels[0])
    assert {-1, 0, 1} <= set(first[:, 0]) & set(first[:, 1])  # the corners too
    assert len(np.unique(first[:, 0])) * len(np.unique(first[:, 1])) == len(first)  # a grid of its own
    assert Grid.plane(51, 1.0).levels[0].size == 121
    for count in range(19, 102, 2):  # a preview of about a twentieth, whatever the parity
        assert 0.037 < Grid.plane(count, 1.0).levels[0].size / count**2 < 0.07
    second = grid.coordinates(np.concatenate(grid.levels[:2]))
    assert len(np.unique(second[:, 0])) * len(np.unique(second[:, 1])) == len(second)
    for counts, extent in (((3, 3), 1.0), ((4, 6), ((-1, 2), (0, 1))), ((3, 21), ((0, 1), (-2, 2)))):
        odd = Grid.plane(counts, extent)
        assert sorted(odd.order) == list(range(counts[0] * counts[1]))
        assert tuple(odd.coordinates(odd.order[:1])[0]) == (0, 0)


class Killed(Exception):
    pass


@pytest.mark.parametrize(("engine", "calls"), [("auto", 4 + 3 + 1), ("plain", 1 + 25)])
def test_resume_equals_full_in_bits(tmp_path, monkeypatch, engine, calls):
    model = mlp()
    options = {"grid": (9, 7), "engine": engine, **QUIET}
    monkeypatch.setattr(sweep, "CHUNK", 8)
    monkeypatch.setattr(engines, "POINTS", 4)
    whole = loss_surface(model, X, Y, **options)
    owner = engines.Fast if engine == "auto" else engines.Plain
    original, done = owner.sums, []

    def dies(self, coordinates, count):
        done.append(1)
        if len(done) > calls:
            raise Killed
        return original(self, coordinates, count)

    with monkeypatch.context() as patch:
        patch.setattr(owner, "sums", dies)
        with pytest.raises(Killed):
            loss_surface(model, X, Y, out=tmp_path / "s", **options)
    partial = Surface.load(tmp_path / "s")
    assert 0 < partial.computed.sum() < partial.computed.size
    assert partial.computed[partial.centre]
    assert np.isnan(partial.loss[~partial.computed]).all()
    assert np.isfinite(partial.loss[partial.computed]).all()
    partial.preview().plot()
    resumed = loss_surface(model, X, Y, out=tmp_path / "s", **options)
    np.testing.assert_array_equal(resumed.loss, whole.loss)
    np.testing.assert_array_equal(resumed.sem, whole.sem)
    np.testing.assert_array_equal(Surface.load(tmp_path / "s").loss, whole.loss)
    assert not (tmp_path / "s" / "chunks").exists()
    monkeypatch.setattr(owner, "sums", dies)  # a third call only reads
    np.testing.assert_array_equal(loss_surface(model, X, Y, out=tmp_path / "s", **options).loss, whole.loss)


def test_a_damaged_chunk_is_computed_again(tmp_path, monkeypatch):
    model = mlp()
    whole = loss_surface(model, X, Y, grid=7, **QUIET)
    original = diagnostics.surfaces.results.store.Folder.finish
    monkeypatch.setattr(diagnostics.surfaces.results.store.Folder, "finish", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        loss_surface(model, X, Y, grid=7, out=tmp_path / "s", **QUIET)
    chunk = sorted((tmp_path / "s" / "chunks").iterdir())[1]
    chunk.write_bytes(chunk.read_bytes()[:50])
    monkeypatch.setattr(diagnostics.surfaces.results.store.Folder, "finish", original)
    np.testing.assert_array_equal(loss_surface(model, X, Y, grid=7, out=tmp_path / "s", **QUIET).loss, whole.loss)


def unfinished(monkeypatch, model, out, **options):
    """A surface that was killed before its end."""
    with monkeypatch.context() as patch:
        patch.setattr(diagnostics.surfaces.results.store.Folder, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            loss_surface(model, X, Y, out=out, **options, **QUIET)


def test_a_damaged_early_chunk_only_delays_the_preview(tmp_path, monkeypatch):
    model, shown = mlp(), []
    unfinished(monkeypatch, model, tmp_path / "s", grid=9, engine="plain")
    first, *_, last = sorted((tmp_path / "s" / "chunks").iterdir())
    first.write_bytes(b"")
    last.unlink()
    loss_surface(model, X, Y, grid=9, engine="plain", out=tmp_path / "s", on_preview=shown.append, **QUIET)
    (preview,) = shown
    assert not preview.complete
    preview.plot()


def test_a_kill_at_the_very_beginning_is_no_obstacle(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".manifest.json.123.partial").write_text("{")
    (tmp_path / "s" / ".lock").touch()
    assert loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET).complete


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path, monkeypatch):
    """Between the first look at the folder and its lock there is time."""
    model, original = mlp(), sweep.Sweep.__init__
    options = {"out": tmp_path / "s", **QUIET}

    def meanwhile(grid):
        def init(self, *args, **others):
            monkeypatch.setattr(sweep.Sweep, "__init__", original)
            loss_surface(model, X, Y, grid=grid, **options)
            original(self, *args, **others)

        monkeypatch.setattr(sweep.Sweep, "__init__", init)

    meanwhile(5)
    with pytest.raises(UserError, match="holds another measurement"):
        loss_surface(model, X, Y, grid=3, **options)
    before = listing(tmp_path)
    assert Surface.load(tmp_path / "s").loss.shape == (5, 5)
    saved = loss_surface(model, X, Y, grid=3, **QUIET)
    looked = diagnostics.surfaces.results.store.Folder.check
    looks = iter([lambda *_: None, looked])
    monkeypatch.setattr(diagnostics.surfaces.results.store.Folder, "check", lambda *args: next(looks)(*args))
    with pytest.raises(UserError, match="holds another measurement"):
        saved.save(tmp_path / "s")
    assert listing(tmp_path) == before


def test_the_order_of_a_finished_surface_does_not_matter(tmp_path):
    model = mlp()
    whole = loss_surface(model, X, Y, grid=3, out=tmp_path / "s", **QUIET)
    path = tmp_path / "s" / "manifest.json"
    path.write_text(path.read_text().replace(whole.meta["identity"]["order"], "an older one"))
    np.testing.assert_array_equal(loss_surface(model, X, Y, grid=3, out=tmp_path / "s", **QUIET).loss, whole.loss)


def test_workers_equal_serial_in_bits(zoo):
    model, x = zoo["frozen"]
    options = {"grid": (7, 9), **QUIET}
    serial = loss_surface(model, x, np.arange(40) % 4, **options)
    parallel = loss_surface(model, x, np.arange(40) % 4, workers=2, **options)
    for name in ("loss", "sem", "accuracy", "class_loss"):
        np.testing.assert_array_equal(getattr(serial, name), getattr(parallel, name))


def by_name(y, z):
    return tf.reduce_sum(z, 1)


class Unpicklable(keras.layers.Dense):
    def get_config(self):
        raise NotImplementedError("no config")


def test_workers_refuse_what_cannot_travel(tmp_path, monkeypatch):
    class Own(keras.layers.Dense):
        """Of no module that a worker could import."""

    def with_layer(kind):
        return keras.Sequential([keras.Input((6,)), kind(4)])

    notebook = with_layer(Subclassed.Own)
    cases = [
        (mlp(), lambda y, z: tf.reduce_sum(z, 1)),
        (with_layer(Own), None),
        (notebook, None),
        (with_layer(Unpicklable), None),
    ]
    monkeypatch.setattr(Subclassed.Own, "__module__", "__main__")
    for model, loss in cases:
        with pytest.raises(UserError, match="workers: model and loss cannot be sent"):
            loss_surface(model, X, Y, grid=9, loss=loss, workers=2, out=tmp_path / "s", **QUIET)
        assert not (tmp_path / "s").exists()
    found = loss_surface(mlp(), X, Y, grid=3, loss=by_name, workers=2, out=tmp_path / "s", **QUIET)
    assert found.complete


def test_two_levels_state_their_error():
    model = mlp(scale=2.0)
    x = 1 + X / 100  # samples so alike that few of them tell a level from the next
    options = {"grid": 15, "extent": 2.0, "loss": lambda y, z: tf.reduce_sum(tf.square(z), 1), **QUIET}
    surface = loss_surface(model, x, Y, two_level=45, **options)
    full = loss_surface(model, x, Y, **options)
    fine = surface.samples == 90
    assert 0 < fine.sum() < fine.size
    assert fine[surface.centre]
    np.testing.assert_array_equal(surface.loss[fine], full.loss[fine])
    stated = surface.meta["facts"]["two_level"]
    assert stated["share_refined"] == fine.mean()
    errors = np.abs(surface.loss - full.loss)[~fine]
    assert np.sqrt((errors**2).mean()) < 3 * max(stated["rms_error"], surface.sem[~fine].max())


def test_lines_bundle(tmp_path):
    model = mlp()
    lines = loss_lines(model, X, Y, count=3, grid=5, out=tmp_path / "l", **QUIET)
    assert lines.loss.shape == (3, 5)
    assert len(set(lines.loss[:, 2])) == 1  # the centre is shared
    space = Space(model)
    from feddual.functional.layout import assign

    copy = keras.models.clone_model(model)
    assign(copy, space.weights + np.float32(0.5) * space.random(0, 2).vector)
    np.testing.assert_allclose(lines.loss[2, 3], cross_entropy(copy(X).numpy(), Y).mean(), rtol=1e-5)
    np.testing.assert_array_equal(Lines.load(tmp_path / "l").loss, lines.loss)
    with pytest.raises(UserError, match="holds lines"):
        Surface.load(tmp_path / "l")


def test_samples_are_stratified_in_every_beginning():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    rows = stratified_rows(labels, 50, seed=3)
    assert np.bincount(labels[rows]).tolist() == [30, 15, 5]
    assert np.bincount(labels[rows[:20]]).tolist() == [12, 6, 2]
    assert len(set(rows)) == 50
    np.testing.assert_array_equal(rows, stratified_rows(labels, 50, seed=3))
    assert set(rows) != set(stratified_rows(labels, 50, seed=4))


def test_a_saved_part_is_not_taken_for_the_whole(tmp_path):
    model = mlp()
    whole = loss_surface(model, X, Y, grid=5, **QUIET)
    part = loss_surface(model, X, Y, grid=5, **QUIET)
    part.computed[0], part.loss[0] = False, np.nan
    part.save(tmp_path / "s")
    assert not Surface.load(tmp_path / "s").complete
    np.testing.assert_array_equal(loss_surface(model, X, Y, grid=5, out=tmp_path / "s", **QUIET).loss, whole.loss)


def test_a_part_is_not_saved_over_more(tmp_path, monkeypatch):
    model = mlp()
    part = loss_surface(model, X, Y, grid=9, engine="plain", **QUIET)
    part.computed[0], part.loss[0] = False, np.nan
    unfinished(monkeypatch, model, tmp_path / "s", grid=9, engine="plain")
    for _ in range(2):  # over the chunks of an unfinished surface, then over the finished one
        before = listing(tmp_path)
        with pytest.raises(UserError, match="points that are not computed here"):
            part.save(tmp_path / "s")
        assert listing(tmp_path) == before
        loss_surface(model, X, Y, grid=9, engine="plain", out=tmp_path / "s", **QUIET)


def test_save_and_load(tmp_path):
    surface = loss_surface(mlp(), X, Y, grid=3, **QUIET)
    surface.save(tmp_path / "a")
    loaded = Surface.load(tmp_path / "a")
    np.testing.assert_array_equal(loaded.class_loss, surface.class_loss)
    assert loaded.meta == json.loads(json.dumps(surface.meta))
    identity = loaded.meta["identity"]
    assert {"weights", "data", "directions", "loss", "bn", "alphas", "betas"} <= set(identity)
    assert {"tensorflow", "numpy", "threads", "check", "images"} <= set(loaded.meta["facts"])
    surface.save(tmp_path / "a")  # the same again is fine
    assert "<img" in surface._repr_html_()


# --- bad input


def listing(folder):
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_surface_of_other_weights_or_settings_is_not_overwritten(tmp_path):
    model = mlp()
    loss_surface(model, X, Y, grid=3, out=tmp_path / "s", **QUIET)
    before = listing(tmp_path)
    with pytest.raises(UserError, match="alphas"):
        loss_surface(model, X, Y, grid=5, out=tmp_path / "s", **QUIET)
    with pytest.raises(UserError, match="data"):
        loss_surface(model, X + 1, Y, grid=3, out=tmp_path / "s", **QUIET)
    model.get_layer("one").kernel.assign(model.get_layer("one").kernel * 1.5)
    with pytest.raises(UserError, match="weights"):
        loss_surface(model, X, Y, grid=3, out=tmp_path / "s", **QUIET)
    other = loss_surface(model, X, Y, grid=3, **QUIET)
    with pytest.raises(UserError, match="holds another measurement"):
        other.save(tmp_path / "s")
    assert listing(tmp_path) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="not a surface"):
        loss_surface(model, X, Y, grid=3, out=tmp_path / "mine", **QUIET)
    for path in (tmp_path / "mine" / "thesis.txt", tmp_path / "mine" / "thesis.txt" / "s"):
        with pytest.raises(UserError, match="out: "):
            loss_surface(model, X, Y, grid=3, out=path, **QUIET)
        with pytest.raises(UserError, match="out: "):
            other.save(path)
    assert listing(tmp_path / "mine") == {str(tmp_path / "mine" / "thesis.txt"): b"dear"}


def test_a_diverged_model_has_no_surface(tmp_path):
    model = mlp()
    model.get_layer("one").kernel.assign(np.full((6, 8), np.nan))
    with pytest.raises(UserError, match="weights that are not finite"):
        loss_surface(model, X, Y, grid=3, out=tmp_path / "s", **QUIET)
    with pytest.raises(UserError, match="loss at the model itself is nan"):
        loss_surface(mlp(), X, Y, grid=3, loss=lambda y, z: z[:, 0] * np.nan, out=tmp_path / "s", **QUIET)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 1}, "at least 3"),
        ({"grid": 4}, "odd count"),
        ({"grid": "5xx"}, "NXxNY"),
        ({"extent": 0.0}, "extent"),
        ({"extent": (0.1, 1.0)}, "contain 0"),
        ({"extent": float("nan")}, "extent"),
        ({"images": 0}, "images"),
        ({"norm": "weights"}, "norm"),
        ({"bn": "batch"}, "bn"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": lambda y, z: tf.reduce_mean(z)}, "one loss per sample"),
        ({"engine": "warp"}, "engine"),
        ({"batch_size": 0}, "batch_size"),
        ({"two_level": 90}, "two_level"),
        ({"workers": 0}, "workers"),
        ({"executor": "ray"}, "executor"),
        ({"directions": []}, "directions"),
    ],
)
def test_bad_settings_are_named(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        loss_surface(mlp(), X, Y, out=tmp_path / "s", progress=False, **{"grid": 3, **options})
    assert not (tmp_path / "s").exists()


def test_bad_data_and_models_are_named():
    model = mlp()
    with pytest.raises(UserError, match="needs data"):
        loss_surface(model)
    with pytest.raises(UserError, match="as many inputs as targets"):
        loss_surface(model, X, Y[:-1])
    with pytest.raises(UserError, match="inputs of shape"):
        loss_surface(model, X[:, :3], Y, progress=False)
    with pytest.raises(UserError, match="integer labels from 0 to 3"):
        loss_surface(model, X, Y + 1, progress=False)
    with pytest.raises(UserError, match=r"keras\.Model or a run"):
        loss_surface(print, X, Y)
    with pytest.raises(UserError, match="not a run directory"):
        loss_surface("nowhere")
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(3)(inputs)
    with pytest.raises(UserError, match="2 outputs"):
        loss_surface(keras.Model(inputs, [hidden, hidden]), X, Y)
    with pytest.raises(UserError, match="no weights yet"):
        loss_surface(keras.Sequential([keras.layers.Dense(3)]), X, Y)
    with pytest.raises(UserError, match="another model"):
        loss_surface(model, X, Y, directions=[Direction(np.ones(3, np.float32), "short")] * 2, grid=3, progress=False)


class Subclassed(keras.Model):
    """A model that Keras cannot copy."""

    class Own(keras.layers.Dense):
        """Found by its name, unless a test says it is of a notebook."""

    def __init__(self, softmax=False):
        super().__init__()
        self.one, self.two = keras.layers.Dense(5, activation="relu"), keras.layers.Dense(4)
        self.softmax = softmax

    def call(self, x):
        z = self.two(self.one(x))
        return keras.ops.softmax(z) if self.softmax else z


def test_subclassed_models_work_as_far_as_they_can():
    model = Subclassed()
    model(X)
    surface = loss_surface(model, X, Y, grid=3, **QUIET)
    rows = stratified_rows(Y, None)
    expected = cross_entropy(model(X[rows]).numpy(), Y[rows]).mean()
    np.testing.assert_allclose(surface.loss[1, 1], expected, rtol=1e-5)
    soft = Subclassed(softmax=True)
    soft(X)
    with pytest.raises(UserError, match="returns probabilities"):
        loss_surface(soft, X, Y, grid=3, **QUIET)


def test_axis_values_are_exact():
    assert axis(51, -1, 1)[25] == 0.0
    np.testing.assert_array_equal(axis(5, -1, 1), [-1, -0.5, 0, 0.5, 1])
    with pytest.raises(UserError, match="miss the centre"):
        axis(4, -1, 1)


def test_gradient_norm_is_of_the_mean_not_the_sum():
    model = mlp()
    objective = Objective(model, X, Y, batch_size=32)
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(Y, model(X))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    expected = np.sqrt(sum(float(tf.reduce_sum(g**2)) for g in gradients))
    np.testing.assert_allclose(objective.gradient_norm(), expected, rtol=1e-5)


def test_no_temporary_files_remain(tmp_path):
    loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET)
    assert sorted(os.listdir(tmp_path / "s")) == ["manifest.json", "surface.npz"]

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from feddual import devices, seeding
from feddual._lazy import keras, tf
from feddual.training import workbench as benches
from feddual.training.engine import worker_view
from feddual.training.local import ClientTask, Optimizer
from feddual.training.workbench import train_client, workbench
from tests import reference
from tests.helpers import tiny


def bench_of(**overrides):
    return workbench(worker_view(tiny(**overrides)))


def task_of(bench, client_id=0, round_index=1, weights=None):
    weights = bench.initial_weights() if weights is None else weights
    identity = worker_view(bench.experiment)
    return ClientTask(
        identity, round_index, client_id, weights, {}, bench.algorithm.init_client(bench.network.layout, weights)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"training__optimizer": "adam", "training__learning_rate": 0.01},
        {"training__optimizer": "sgd", "training__learning_rate": 0.1},
        {"training__optimizer": "sgd", "training__learning_rate": 0.05, "training__momentum": 0.9},
        {"training__optimizer": "sgd", "training__learning_rate": 0.1, "training__clip_norm": 0.05},
    ],
)
def test_a_clients_round_equals_the_numpy_twin(settings):
    """Two epochs of unequal batches, from a network with both signs in its weights."""
    bench = bench_of(**settings)
    training = bench.experiment.training
    assert any(len(bench.federation.client(client)[1]) % training.batch_size for client in (0, 1, 2))
    for client_id in (0, 1, 2):
        x, y = bench.federation.client(client_id)
        found = train_client(task_of(bench, client_id)).weights
        orders = seeding.batch_orders(0, 1, client_id, len(y), training.local_epochs)
        expected = reference.local_training(
            bench.initial_weights(), x.astype(np.float64), y, orders, training.batch_size,
            lambda w, x, y: reference.mlp_loss_and_gradient(w, x, y, [6, 8, 4])[1],
            training.optimizer, training.learning_rate, training.momentum, training.clip_norm,
        )  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["lenet5", "vgg_small"])
def test_a_convolutional_round_equals_keras_own_training(name):
    """The same batches through keras.Model.fit, one model, Keras' Adam."""
    bench = bench_of(
        dataset__shape=[28, 28, 1], model__name=name, training__local_epochs=1, training__learning_rate=0.01
    )
    x, y = bench.federation.client(1)
    found = train_client(task_of(bench, 1)).weights
    model = bench.network.model
    before = bench.initial_weights()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    order = seeding.batch_orders(0, 1, 1, len(y), 1)[0]
    model.fit(x[order], y[order], batch_size=16, shuffle=False, verbose=0)
    from feddual.functional.layout import assign, read

    expected = read(model)
    assign(model, before)
    assert np.abs(expected - before).max() > 0.01
    # Adam divides by the root of tiny second moments, which magnifies the last bits of float32.
    np.testing.assert_allclose(found, expected, atol=3e-4)
    assert np.abs(found - expected).mean() < 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "optimizer"),
    [
        ("adam", {}, lambda: keras.optimizers.Adam(0.01)),
        ("sgd", {}, lambda: keras.optimizers.SGD(0.01)),
        ("sgd", {"training__momentum": 0.9}, lambda: keras.optimizers.SGD(0.01, momentum=0.9)),
        ("sgd", {"training__clip_norm": 0.5}, lambda: keras.optimizers.SGD(0.01, clipnorm=0.5)),
    ],
)
def test_optimizers_are_keras_optimizers(name, settings, optimizer):
    ours = Optimizer(tiny(training__optimizer=name, training__learning_rate=0.01, **settings).training)
    theirs, rng = optimizer(), np.random.default_rng(0)
    weights = tf.constant(rng.normal(size=7), tf.float32)
    variable = keras.Variable(weights)
    state = ours.init(weights)
    for step in range(5):
        gradient = tf.constant(rng.normal(size=7), tf.float32)
        weights, state = ours.step(weights, gradient, state, tf.constant(step))
        theirs.apply([gradient], [variable])
        np.testing.assert_allclose(weights, variable, rtol=1e-5, atol=1e-7)


def test_weight_decay_by_hand():
    """w = 2, g = 1, rate 0.1, decay 0.5: w - 0.1 (1 + 0.5 * 2) = 1.8."""
    settings = tiny(training__optimizer="sgd", training__learning_rate=0.1, training__weight_decay=0.5).training
    assert Optimizer(settings).step(tf.constant([2.0]), tf.constant([1.0]), [], tf.constant(0))[
        0
    ].numpy() == pytest.approx([1.8])


def test_one_trace_serves_clients_of_all_sizes_and_rounds():
    bench = bench_of()
    sizes = {len(bench.federation.client(client)[1]) for client in range(6)}
    assert len(sizes) > 1
    for round_index in (1, 2):
        for client_id in range(6):
            train_client(task_of(bench, client_id, round_index))
    assert bench.training.run[""].experimental_get_tracing_count() == 1


def test_zero_epochs_change_nothing():
    bench = bench_of(training__local_epochs=0)
    assert (train_client(task_of(bench)).weights == bench.initial_weights()).all()


def test_what_the_loop_measures():
    """At learning rate 1e-12 the weights stand still, so loss, accuracy and gradient sum have known values."""
    bench = bench_of(training__optimizer="sgd", training__learning_rate=1e-12)
    x, y = bench.federation.client(0)
    result, trained = bench.training.train(task_of(bench), x, y, 0)
    weights = bench.initial_weights().astype(np.float64)
    loss, _ = reference.mlp_loss_and_gradient(weights, x.astype(np.float64), y, [6, 8, 4])
    assert trained.epoch_loss.tolist() == pytest.approx([loss, loss], rel=1e-5)
    logits = bench.network.model(x).numpy()
    assert trained.epoch_accuracy.tolist() == pytest.approx([np.mean(logits.argmax(1) == y)] * 2)
    batches = -(-len(y) // 16)
    assert trained.steps == 2 * batches == result.metrics["steps"]
    orders = seeding.batch_orders(0, 1, 0, len(y), 2)
    expected = sum(
        reference.mlp_loss_and_gradient(weights, x[rows].astype(np.float64), y[rows], [6, 8, 4])[1]
        for order in orders for rows in np.split(order, range(16, len(y), 16))
    )  # fmt: skip
    np.testing.assert_allclose(trained.gradient_sum, expected, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_and_dropout():
    """Moving statistics move as Keras moves them; dropout follows from seed, round and client."""
    bench = bench_of(model__name="tests.helpers:user_model", training__local_epochs=1, training__batch_size=500)
    layout = bench.network.layout
    x, _ = bench.federation.client(0)
    result = train_client(task_of(bench))
    tensors = layout.split(result.weights)
    start = layout.split(bench.initial_weights())
    hidden = x @ start["dense/kernel"] + start["dense/bias"]
    np.testing.assert_allclose(tensors["batch_normalization/moving_mean"], 0.01 * hidden.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tensors["batch_normalization/moving_variance"], 0.99 + 0.01 * hidden.var(0), rtol=1e-4)
    assert (train_client(task_of(bench)).weights == result.weights).all()
    assert not (train_client(task_of(bench, round_index=2)).weights == result.weights).all()


def test_frozen_prefix_plain_and_cached_agree():
    results = []
    for cached in (True, False):
        bench = bench_of(
            dataset__shape=[8, 8, 2], model__name="tests.helpers:frozen_model", runtime__cache_features=cached
        )
        x, _ = bench.federation.client(0)
        assert x.shape[1:] == ((3,) if cached else (8, 8, 2))
        results.append(train_client(task_of(bench)).weights)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_regularisers_of_a_users_model_are_part_of_the_loss():
    def gradient_sum(strength):
        def build(input_shape, num_classes):
            decay = keras.regularizers.L2(strength)
            return keras.Sequential(
                [keras.Input(input_shape), keras.layers.Dense(num_classes, kernel_regularizer=decay)]
            )

        import tests.helpers

        tests.helpers.regularised = build
        benches._workbenches.cache_clear()
        bench = bench_of(model__name="tests.helpers:regularised", training__local_epochs=1, training__batch_size=500,
                         training__optimizer="sgd", training__learning_rate=1e-12)  # fmt: skip
        x, y = bench.federation.client(0)
        return bench.training.train(task_of(bench), x, y, 0)[1].gradient_sum, bench.initial_weights()

    plain, weights = gradient_sum(0.0)
    decayed, _ = gradient_sum(0.25)
    np.testing.assert_allclose(decayed - plain, np.append(2 * 0.25 * weights[:24], np.zeros(4)), rtol=1e-4, atol=1e-6)
    benches._workbenches.cache_clear()


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_xla_equals_the_plain_path_with_a_bounded_number_of_compilations(model):
    """Padded and masked batches give the plain path's result within 1e-5; sizes share a few compilations."""
    shape = {"mlp": [6], "lenet5": [28, 28, 1]}[model]
    settings = {"dataset__shape": shape, "model__name": model, "training__optimizer": "sgd"}
    compiled = bench_of(**settings, runtime__jit=True)
    plain = bench_of(**settings, runtime__jit=False)
    sizes = [len(plain.federation.client(client)[1]) for client in range(6)]
    for client_id in range(6):
        for round_index in (1, 2):
            a = train_client(task_of(compiled, client_id, round_index))
            b = train_client(task_of(plain, client_id, round_index))
            np.testing.assert_allclose(a.weights, b.weights, rtol=1e-5, atol=1e-5)
            assert a.metrics["train_accuracy"] == pytest.approx(b.metrics["train_accuracy"])
            assert a.metrics["train_loss"] == pytest.approx(b.metrics["train_loss"], rel=1e-4)
            assert a.metrics["steps"] == b.metrics["steps"]
    batches = {-(-size // 16) for size in sizes}
    assert any(size % 16 for size in sizes)
    assert compiled.training.run[""].experimental_get_tracing_count() == len({(b - 1).bit_length() for b in batches})


def test_when_xla_is_used():
    from feddual.errors import UserError
    from feddual.training.workbench import use_jit

    plain = bench_of().network
    normalised = bench_of(model__name="tests.helpers:user_model").network
    assert not use_jit("auto", "/CPU:0", plain)
    assert use_jit("auto", "/GPU:0", plain)
    assert not use_jit("auto", "/GPU:0", normalised)
    with pytest.raises(UserError, match="not possible with batch normalisation"):
        use_jit(True, "/CPU:0", normalised)


def test_work_is_placed_on_the_device_asked_for(tmp_path):
    """With two logical CPUs in a process of its own: the run on the second one places its results there."""
    import subprocess
    import sys
    from pathlib import Path

    code = """
from feddual._lazy import tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.feddual.training.test_local import bench_of, task_of
bench = bench_of(runtime__device="CPU:1")
seen = []
run = bench.training.run[""]
bench.training.run[""] = lambda *arguments: seen.append(run(*arguments)) or seen[-1]
bench.training.train(task_of(bench), *bench.federation.client(0), 0)
assert seen[0]["weights"].device.endswith("CPU:1"), seen[0]["weights"].device
assert bench.evaluator.inputs.device.endswith("CPU:1")
x, y = bench.client(2)  # the data live on the device, and a client's are the same as from the host
assert bench.resident.device.endswith("CPU:1") and x.device.endswith("CPU:1")
assert (x.numpy() == bench.federation.client(2)[0]).all() and (y == bench.federation.client(2)[1]).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize(("libc", "calls"), [("glibc", [(-1, 2**30), (-4, 0)]), ("", [])])
def test_freed_memory_is_kept_where_glibc_can(monkeypatch, libc, calls):
    done = []
    monkeypatch.setattr(devices.platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(
        devices.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *options: done.append(options))
    )
    devices.keep_memory()
    assert done == calls


@pytest.mark.parametrize("order", [("layers", "variables"), ("variables", "layers"), ("", "variables")])
def test_the_finest_norms_that_a_probe_asks_for_are_added_up(order):
    bench = bench_of()
    x, y = bench.client(0)
    asked = tuple(SimpleNamespace(step_norms=parts) for parts in order)
    _, trained = bench.training.train(replace(task_of(bench), probes=asked), x, y, 0)
    variables = [entry for entry in bench.network.layout.entries if entry.trainable]
    assert trained.square_sums.shape == (2, len(variables))  # cross-entropy's, and the steps'

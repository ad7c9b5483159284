"""FedDUAL's loss and aggregation, against numpy twins and its own limits."""

import numpy as np
import pytest

from feddual import api
from feddual._lazy import tf
from feddual.algorithms._base import ClientContext, ServerState
from feddual.errors import UserError
from feddual.experiment import config
from feddual.functional.layout import Entry, Layout
from feddual.training.engine import worker_view
from feddual.training.local import ClientTask
from feddual.training.workbench import train_client, workbench
from tests import reference
from tests.feddual.algorithms.test_algorithms import SGD
from tests.helpers import tiny


def feddual(**overrides):
    if overrides.get("model__hidden") == []:  # softmax regression has one layer only
        overrides.setdefault("algorithm__mask", "output")
    return tiny(algorithm__name="feddual", **{"algorithm__preset": "literal", **overrides})


def weights_of(run, round_index=None):
    return np.concatenate([value.ravel() for value in run.weights(round_index).values()])


def softmax(v):
    e = np.exp(v - v.max())
    return e / e.sum()


def divergence_gradient(kind, w, g):
    """By hand: d KL(p||q) / dw = p (log p - log q - KL);  d KL(q||p) / dw = p - q;  l2: (w - g) / n."""
    p, q = softmax(w), softmax(g)
    if kind == "kl":
        return p * (np.log(p / q) - np.sum(p * np.log(p / q)))
    return p - q if kind == "reverse_kl" else (w - g) / len(w)


@pytest.mark.parametrize("kind", ["kl", "reverse_kl", "l2"])
def test_the_gradient_of_the_adaptive_loss(kind):
    """One full batch at standing weights away from the global ones, beta = 0.5, divergence scaled up to be visible."""
    asked = feddual(
        algorithm__divergence=kind,
        algorithm__beta_mode="fixed_half",
        algorithm__kl_scale=500.0,
        **{**SGD, "training__learning_rate": 1e-12},
        training__local_epochs=1,
        training__batch_size=500,
    )
    bench = workbench(worker_view(asked))
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    start = (glob + 0.5 * np.random.default_rng(0).normal(size=glob.shape)).astype(np.float32)
    bench.algorithm.start_weights = lambda layout, weights, client: start
    try:
        _, trained = bench.training.train(ClientTask("", 1, 0, glob), x, y, 0)
    finally:
        del bench.algorithm.start_weights
    w, g = start.astype(np.float64), glob.astype(np.float64)
    plain = reference.mlp_loss_and_gradient(w, x.astype(np.float64), y, [6, 4])[1]
    extra = 500 * divergence_gradient(kind, w, g)
    assert np.linalg.norm(extra) > 0.5
    np.testing.assert_allclose(trained.gradient_sum, 0.5 * plain + 0.5 * extra, rtol=1e-4, atol=1e-5)


def divergence_and_gradient(w, g, kind="kl"):
    """Twice feddual's loss at beta = 0.5 and no cross-entropy, through its hooks, in float64."""
    algorithm = workbench(worker_view(feddual(algorithm__divergence=kind, algorithm__beta_mode="fixed_half"))).algorithm
    layout = Layout([Entry("output/kernel", "output", "Dense", "kernel", (len(w),), 0, True)])
    ctx = ClientContext(layout, tf.constant(g), {}, {}, None, None, 1, 0.1)
    values = tf.constant(w)
    ctx = ctx.with_(before=algorithm.before_training(ctx), epoch=algorithm.start_epoch(ctx, 0, values, 0.0))
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = 2 * algorithm.loss_term(ctx, values, None, None, tf.constant(0.0, tf.float64))
    return found.numpy(), tape.gradient(found, values).numpy()


@pytest.mark.parametrize("kind", ["kl", "reverse_kl"])
def test_the_divergence_its_gradient_and_its_zero(kind):
    """Value by its definition, gradient by hand and by central differences; both are zero at the global weights."""
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=12), rng.normal(size=12)

    def value(w):
        p, q = (softmax(w), softmax(g)) if kind == "kl" else (softmax(g), softmax(w))
        return np.sum(p * np.log(p / q))

    found, gradient = divergence_and_gradient(w, g, kind)
    assert found == pytest.approx(value(w), rel=1e-10)
    np.testing.assert_allclose(gradient, divergence_gradient(kind, w, g), rtol=1e-10, atol=1e-14)
    differences = [(value(w + step) - value(w - step)) / 2e-5 for step in 1e-5 * np.eye(12)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-9)
    nothing, flat = divergence_and_gradient(g, g, kind)
    assert abs(nothing) < 1e-14
    np.testing.assert_allclose(flat, 0, atol=1e-14)


def test_kl_per_tensor_adds_up_the_tensors_own():
    """Two tensors, each with its own softmax, are two independent divergences; one scope couples them."""
    asked = feddual(algorithm__kl_scope="per_tensor", model__hidden=[])
    bench = workbench(worker_view(asked))
    scopes = bench.algorithm._scopes(bench.network.layout)
    assert [part.stop - part.start for part in scopes] == [24, 4]
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=28).astype(np.float32), rng.normal(size=28).astype(np.float32)
    ctx = ClientContext(bench.network.layout, tf.constant(g), {}, {}, None, None, 1, 0.1)
    before = {"anchors": [(g[part], softmax(g[part])) for part in scopes]}
    found = bench.algorithm._divergence(ctx.with_(before=before), tf.constant(w), None, None)
    p, q = (np.concatenate([softmax(v[part]) for part in scopes]) for v in (w, g))
    assert float(found) == pytest.approx(np.sum(p * np.log(p / q)), rel=1e-5)


def test_kl_is_half_the_variance_of_small_displacements_and_ignores_shifts():
    """KL(p || q) = Var_q(delta) / 2 + O(delta^3); its gradient is nearly (delta - mean) / n."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=20000) * 0.05
    delta = 0.01 * rng.normal(size=20000)
    kl, gradient = divergence_and_gradient(w + delta, w)
    q = softmax(w)
    variance = np.sum(q * delta**2) - np.sum(q * delta) ** 2
    assert kl == pytest.approx(variance / 2, rel=1e-3)
    assert np.corrcoef(gradient, delta - delta.mean())[0, 1] > 0.99
    shifted, moved = divergence_and_gradient(w + delta + 0.3, w)
    assert shifted == pytest.approx(kl, rel=1e-10)
    np.testing.assert_allclose(moved, gradient, rtol=1e-8, atol=1e-16)


@pytest.mark.parametrize("mode", ["per_epoch", "running", "per_step", "previous_participation", "fixed_half"])
def test_beta_in_the_first_epoch(mode):
    """beta = 0.5 in epoch one, where local and global accuracy agree."""
    asked = feddual(
        algorithm__beta_mode=mode,
        training__local_epochs=1,
        **SGD,
        training__batch_size=500,
        algorithm__divergence="none",
    )
    bench = workbench(worker_view(asked))
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    slots = bench.algorithm.init_client(bench.network.layout, glob)
    _, trained = bench.training.train(ClientTask("", 1, 0, glob, {}, slots), x, y, 0)
    plain = reference.mlp_loss_and_gradient(glob.astype(np.float64), x.astype(np.float64), y, [6, 4])[1]
    np.testing.assert_allclose(trained.gradient_sum, 0.5 * plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["per_epoch", "running", "per_step", "previous_participation", "fixed_half"])
def test_beta_follows_the_accuracies(mode):
    """Three epochs of one batch by hand: steps of (1 - beta) times the gradient, beta = sigmoid(A_local - A_global).

    A_local is the accuracy now (per_epoch, per_step: the batch is all the data), one step ago (running), or, of a
    client that reached 0.9 when it last took part, 0.9.
    """
    asked = feddual(
        algorithm__beta_mode=mode,
        training__local_epochs=3,
        **{**SGD, "training__learning_rate": 2.0},
        training__batch_size=500,
        algorithm__divergence="none",
    )
    bench = workbench(worker_view(asked))
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    slots = {"accuracy": np.float32([0.9])} if mode == "previous_participation" else {}
    _, trained = bench.training.train(ClientTask("", 1, 0, glob, {}, slots), x, y, 0)
    x64 = x.astype(np.float64)

    def accuracy(w):
        return np.mean((x64 @ w[:24].reshape(6, 4) + w[24:]).argmax(1) == y)

    before = w = glob.astype(np.float64)
    expected, betas = np.zeros(28), []
    for _ in range(3):
        local = {"running": accuracy(before), "previous_participation": 0.9, "fixed_half": accuracy(glob)}
        betas.append(1 / (1 + np.exp(accuracy(glob) - local.get(mode, accuracy(w)))))
        step = (1 - betas[-1]) * reference.mlp_loss_and_gradient(w, x64, y, [6, 4])[1]
        expected, before, w = expected + step, w, w - 2.0 * step
    assert max(betas) > 0.55 or mode == "fixed_half"
    np.testing.assert_allclose(trained.gradient_sum, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("scale", "low", "high"), [(1.0, 0.26894142, 0.73105858), (100.0, 0.0, 1.0)])
def test_betas_range(scale, low, high):
    """From sigmoid(-1), all forgotten, to sigmoid(1), all learned; in percent nearly from 0 to 1."""
    asked = feddual(algorithm__beta_scale=scale)
    algorithm = workbench(worker_view(asked)).algorithm
    for local, right, expected in ((0.0, 1.0, low), (0.5, 0.5, 0.5), (1.0, 0.0, high)):
        ctx = ClientContext(None, None, {}, {}, None, None, 1, 0.1, before={"accuracy": tf.constant(right)})
        assert float(algorithm._beta(ctx, tf.constant(local))) == pytest.approx(expected, abs=1e-6)


def test_published_clients_train_as_fedavgs_under_adam():
    """Half the loss changes nothing but Adam's tiny epsilon."""
    results = []
    for asked in (feddual(algorithm__preset="published"), tiny()):
        bench = workbench(worker_view(asked))
        results.append(train_client(ClientTask(worker_view(asked), 1, 0, bench.initial_weights())).weights)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "source", ["grad_end_mean", "grad_end_sum", "grad_start_mean", "pseudo", "pseudo_per_step", "weights"]
)
def test_what_clients_send(source):
    """Against the full gradient or displacement by hand; the gradient reaches the masked layers only."""
    asked = feddual(
        algorithm__update_source=source,
        algorithm__mask="output",
        algorithm__adaptive=False,
        training__optimizer="sgd",
        training__learning_rate=0.1,
    )
    bench = workbench(worker_view(asked))
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    result, trained = bench.training.train(ClientTask("", 1, 0, glob), x, y, 0)
    where = np.arange(56, 92)  # output kernel and bias behind 6*8 + 8

    def full(w):
        return reference.mlp_loss_and_gradient(w.astype(np.float64), x.astype(np.float64), y, [6, 8, 4])[1][where]

    expected = {
        "grad_end_mean": lambda: full(trained.weights),
        "grad_end_sum": lambda: full(trained.weights) * len(y),
        "grad_start_mean": lambda: full(glob),
        "pseudo": lambda: (glob - trained.weights)[where],
        "pseudo_per_step": lambda: (glob - trained.weights)[where] / (0.1 * trained.steps),
        "weights": lambda: trained.weights[where],
    }[source]()
    np.testing.assert_allclose(result.payload["source"], expected, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_ends_at_the_masked_layers():
    """In the traced graph no gradient operation belongs to a layer before the mask."""
    bench = workbench(
        worker_view(
            feddual(
                algorithm__mask="output",
                algorithm__adaptive=False,
                dataset__shape=[28, 28, 1],
                model__name="lenet5",
                runtime__accelerate=False,
            )
        )
    )
    training, layout = bench.training, bench.network.layout
    entries = bench.algorithm.entries(layout)
    graph = tf.function(
        lambda w, x, y: training._gradient(w, x, y, tf.shape(y)[0], entries),
        autograph=False,
        input_signature=[
            tf.TensorSpec([layout.size]),
            tf.TensorSpec([None, 28, 28, 1]),
            tf.TensorSpec([None], tf.int32),
        ],
    ).get_concrete_function()
    names = [node.op for function in graph.graph.as_graph_def().library.function for node in function.node_def]
    assert "Conv2D" in names
    assert not [name for name in names if "Backprop" in name or "AvgPoolGrad" in name or "ReluGrad" in name]


def test_with_pseudo_gradients_and_a_large_epsilon_it_is_fedavg(tmp_path):
    case = {
        "algorithm__adaptive": False,
        "algorithm__update_source": "pseudo",
        "algorithm__epsilon": 1e12,
        "algorithm__mask": "all",
    }
    a = api.run(feddual(**case), out=tmp_path / "a", progress=False)
    b = api.run(tiny(), out=tmp_path / "b", progress=False)
    np.testing.assert_allclose(weights_of(a), weights_of(b), rtol=1e-5, atol=1e-6)


def test_with_an_empty_mask_and_no_adaptive_loss_it_is_fedavg_bit_for_bit(tmp_path):
    a = api.run(feddual(algorithm__mask="none", algorithm__adaptive=False), out=tmp_path / "a", progress=False)
    b = api.run(tiny(), out=tmp_path / "b", progress=False)
    np.testing.assert_array_equal(weights_of(a), weights_of(b))


def one_round(asked, tmp_path):
    """A round's run, the weights it started from, and what its clients sent."""
    done = api.run(asked, out=tmp_path / "round", progress=False)
    start = workbench(worker_view(asked)).initial_weights()
    results = [train_client(ClientTask(worker_view(asked), 1, int(c), start)) for c in done.clients["client"]]
    return done, start, results


@pytest.mark.parametrize("granularity", ["tensor", "layer", "neuron"])
@pytest.mark.parametrize("method", ["gibbs", "quantile_w2", "quantile_w1", "geometric_median"])
def test_the_server_takes_a_barycenter_of_the_masked_layers_and_the_mean_of_the_rest(granularity, method, tmp_path):
    asked = feddual(
        algorithm__granularity=granularity,
        algorithm__barycenter=method,
        algorithm__mask="output",
        algorithm__epsilon=0.05,
        algorithm__server_lr=0.5,
        training__rounds=1,
    )
    done, glob, results = one_round(asked, tmp_path)
    sources = np.stack([result.payload["source"] for result in results]).astype(np.float64)
    kernel, bias = np.arange(32).reshape(8, 4), np.arange(32, 36)
    groups = {"tensor": [kernel.ravel(), bias], "layer": [np.arange(36)], "neuron": [*kernel.T, bias]}[granularity]
    expected = np.mean([result.weights for result in results], axis=0)
    shares = np.full(3, 1 / 3)
    for group in groups:
        rows = sources[:, group]
        bar = reference.gibbs(rows, shares, 0.05) if method == "gibbs" else reference.quantile(rows, shares, method)
        expected[56 + group] = glob[56 + group] - 0.5 * bar
    np.testing.assert_allclose(weights_of(done), expected, rtol=1e-5, atol=1e-6)
    facts = done.metrics["barycenter"].iloc[0]
    assert {"iterations", "residual", "effective_clients", "from_mean"} <= set(next(iter(facts.values())))


def test_clients_weigh_by_their_examples_in_the_barycenter_too(tmp_path):
    asked = feddual(
        algorithm__mask="output",
        algorithm__epsilon=0.05,
        algorithm__granularity="layer",
        training__weighting="num_examples",
        training__rounds=1,
    )
    done, glob, results = one_round(asked, tmp_path)
    sizes = np.array([result.num_examples for result in results])
    assert len(set(sizes)) == 3
    rows = np.stack([result.payload["source"] for result in results]).astype(np.float64)
    expected = sizes / sizes.sum() @ np.stack([result.weights for result in results])
    expected[56:] = glob[56:] - reference.gibbs(rows, sizes / sizes.sum(), 0.05)
    np.testing.assert_allclose(weights_of(done), expected, rtol=1e-5, atol=1e-6)


def test_epsilon_shrinks_from_round_to_round(tmp_path):
    """The second round at a decay of 0.1 is a first round with a tenth of epsilon, from where the first one ended."""
    asked = feddual(
        algorithm__mask="output",
        algorithm__update_source="pseudo",
        algorithm__epsilon=0.5,
        algorithm__epsilon_decay=0.1,
        training__rounds=2,
        checkpoint__rounds=[1],
    )
    done = api.run(asked, out=tmp_path / "run", progress=False)
    glob = weights_of(done, 1)
    view = worker_view(asked)
    server = ServerState(glob, {"epsilon": np.array([0.05])})
    chosen = done.clients.query("round == 2")["client"]
    results = [train_client(ClientTask(view, 2, int(c), glob, server.slots)) for c in chosen]
    rows = np.stack([result.payload["source"] for result in results]).astype(np.float64)
    expected = np.mean([result.weights for result in results], axis=0)
    for group in (slice(0, 32), slice(32, 36)):
        expected[56:][group] = glob[56:][group] - reference.gibbs(rows[:, group], np.full(3, 1 / 3), 0.05)
    np.testing.assert_allclose(weights_of(done), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("epsilon", "moves"), [(1e-5, False), (3.0, True)])
def test_a_published_round_equals_the_public_loop(epsilon, moves, tmp_path):
    """Body: the mean. Head: minus the transcribed loop on summed gradients; frozen at 1e-5, moving at 3."""
    asked = feddual(algorithm__preset="published", algorithm__epsilon=epsilon, training__rounds=1)
    done, glob, results = one_round(asked, tmp_path)
    expected = np.mean([result.weights for result in results], axis=0)
    sources = np.stack([result.payload["source"] for result in results])
    for part in (slice(0, 32), slice(32, 36)):
        bar = reference.published(sources[:, part], np.full(3, 1 / 3), 1000, epsilon)
        expected[56:][part] = glob[56:][part] - bar
        mean = sources[:, part].mean(0)
        assert bar.any() == moves
        assert np.linalg.norm(bar - mean) >= 0.1 * np.linalg.norm(mean)
    np.testing.assert_allclose(weights_of(done), expected, rtol=1e-4, atol=1e-4)
    assert (np.abs(weights_of(done) - glob)[56:].max() > 0.1) == moves


def test_free_support_through_feddual(tmp_path):
    """Two clients: the kernel's eight input units are matched before they are averaged; the bias is averaged."""
    asked = feddual(
        algorithm__barycenter="free_support",
        algorithm__mask="output",
        algorithm__update_source="grad_start_mean",
        partition__alpha=0.1,
        training__clients_per_round=2,
        training__rounds=1,
    )
    done, glob, results = one_round(asked, tmp_path)
    sources = np.stack([result.payload["source"] for result in results]).astype(np.float64)
    points = reference.free_support(sources[:, :32].reshape(2, 8, 4), np.full(2, 0.5))
    moved = (glob - weights_of(done))[56:].astype(np.float64)
    gaps = np.abs(moved[:32].reshape(8, 1, 4) - points).max(2)
    assert sorted(gaps.argmin(1)) == list(range(8))  # the same points, in the order of one of the clients
    assert gaps.min(1).max() < 1e-6
    np.testing.assert_allclose(moved[32:], sources[:, 32:].mean(0), rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(moved[:32] - sources[:, :32].mean(0)) >= 0.1 * np.linalg.norm(sources[:, :32].mean(0))


def test_match_norm_gives_the_step_the_clients_displacement(tmp_path):
    asked = feddual(algorithm__match_norm=True, algorithm__mask="output/kernel", training__rounds=1)
    done, glob, results = one_round(asked, tmp_path)
    wanted = np.mean([np.linalg.norm((result.weights - glob)[56:88]) for result in results])
    assert np.linalg.norm((weights_of(done) - glob)[56:88]) == pytest.approx(wanted, rel=1e-4)


def test_controls_and_the_published_preset(tmp_path):
    """A frozen output layer stays; at ordinary gradient scales the published arithmetic leaves it there, too."""
    for preset, most in (("frozen_head", 0.0), ("published", 2e-3)):
        asked = feddual(algorithm__preset=preset, checkpoint__rounds=[0])
        done = api.run(asked, out=tmp_path / preset, progress=False)
        moved = np.abs(weights_of(done, 3) - weights_of(done, 0))
        assert moved[56:].max() <= most
        assert moved[:56].max() > 0.01
    mean = api.run(
        feddual(algorithm__preset="mean", algorithm__adaptive=False),
        out=tmp_path / "mean",
        progress=False,
    )
    fedavg = api.run(tiny(), out=tmp_path / "fedavg", progress=False)
    np.testing.assert_allclose(weights_of(mean), weights_of(fedavg), rtol=1e-5, atol=1e-6)


def test_presets_and_precedence():
    asked = [config.resolve("paper-fmnist", more).algorithm for more in ({}, {"algorithm.preset": "literal"})]
    assert [(one.preset, one.mask, one.epsilon, one.epsilon_relative, one.update_source) for one in asked] == [
        ("consistent", "last_tensors:2", 0.5, True, "pseudo"),
        ("literal", "last_layers:2", 1e-5, False, "grad_end_mean"),
    ]
    assert config.resolve("paper-fmnist", {"algorithm.preset": "paper"}).algorithm == asked[1]  # its name of before
    published = config.resolve("published-fmnist")
    assert (published.algorithm.preset, published.algorithm.iterations, published.training.batch_size) == (
        "published",
        1000,
        10,
    )
    assert published.dataset.preprocess == "raw"
    mixed = config.resolve("published-fmnist", {"algorithm.epsilon": 0.1})
    assert (mixed.algorithm.epsilon, mixed.algorithm.mask) == (0.1, "last_tensors:2")
    other = config.resolve("published-fmnist", {"algorithm.name": "fedavg"})
    assert other.algorithm.preset is None
    with pytest.raises(UserError, match=r"algorithm.preset: 'tuned' is unknown to feddual"):
        config.resolve("paper-fmnist", {"algorithm.preset": "tuned"})


def test_xla_trains_feddual_and_moon_as_the_plain_path():
    """Their passes over all of a client's data ignore the padding."""
    for name in ("feddual", "moon"):
        results = []
        for jit in (True, False):
            asked = tiny(algorithm__name=name, training__optimizer="sgd", runtime__jit=jit)
            bench = workbench(worker_view(asked))
            glob = bench.initial_weights()
            slots = bench.algorithm.init_client(bench.network.layout, glob)
            results.append(train_client(ClientTask(worker_view(asked), 1, 1, glob, {}, slots)))
        np.testing.assert_allclose(results[0].weights, results[1].weights, rtol=1e-5, atol=1e-5)
        for key, value in results[1].payload.items():
            np.testing.assert_allclose(results[0].payload[key], value, rtol=1e-4, atol=1e-5)

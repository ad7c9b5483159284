"""Each algorithm against a plain-numpy twin, and the properties its paper promises.

The federation is tiny (6 clients of unequal size, 4 classes, 6 inputs, softmax regression with 28 weights), so whole
rounds are recomputed by hand in float64. Weights have both signs; client sizes differ.
"""

import numpy as np
import pytest

from feddual import algorithms, api, seeding
from feddual._lazy import tf
from feddual.algorithms._base import Batch, ClientContext, ClientResult, Outputs, ServerState
from feddual.errors import UserError
from feddual.experiment import config
from feddual.functional import masks
from feddual.records.run_dir import RunDir
from feddual.training.engine import worker_view
from feddual.training.local import ClientTask, LocalTraining
from feddual.training.workbench import train_client, workbench
from tests import reference
from tests.helpers import serve, tiny

SGD = {"training__optimizer": "sgd", "training__learning_rate": 0.1, "model__hidden": []}


def experiment(name, **overrides):
    return tiny(algorithm__name=name, **{**SGD, **overrides})


def gradient(w, x, y):
    return reference.mlp_loss_and_gradient(w, x, y, [6, 4])[1]


class Twin:
    """A federated run in numpy: subclasses fill in the algorithm."""

    def __init__(self, experiment):
        self.bench = workbench(worker_view(experiment))
        self.settings = experiment.training
        self.num_clients = self.bench.federation.num_clients
        self.x = self.bench.initial_weights().astype(np.float64)
        self.state = {}
        self.start()

    def start(self): ...

    def correct(self, g, w, client):
        return g

    def local(self, client, round_index):
        data, labels = self.bench.federation.client(client)
        data = data.astype(np.float64)
        orders = seeding.batch_orders(0, round_index, client, len(labels), self.settings.local_epochs)
        w, self.gradients, velocity = self.x.copy(), [], np.zeros_like(self.x)
        for order in orders:
            for begin in range(0, len(order), self.settings.batch_size):
                rows = order[begin : begin + self.settings.batch_size]
                g = gradient(w, data[rows], labels[rows])
                self.gradients.append(g)
                velocity = self.momentum() * velocity - self.settings.learning_rate * self.correct(g, w, client)
                w = w + velocity
        return w, len(labels), data, labels

    def momentum(self):
        return self.settings.momentum

    def run(self, rounds):
        for round_index in range(1, rounds + 1):
            clients = seeding.sample_clients(0, round_index, self.num_clients, self.settings.clients_per_round)
            self.server([(client, *self.client(client, round_index)) for client in clients])
        return self.x

    def client(self, client, round_index):
        w, n, _, _ = self.local(client, round_index)
        return w, n

    def server(self, results):
        self.x = np.mean([w for _, w, *_ in results], axis=0)


def check(name, twin, tmp_path, rounds=4, tolerance=2e-5, **overrides):
    asked = experiment(name, training__rounds=rounds, **overrides)
    done = api.run(asked, out=tmp_path / "run", progress=False)
    found = np.concatenate([value.ravel() for value in done.weights().values()])
    np.testing.assert_allclose(found, twin(asked).run(rounds), rtol=tolerance, atol=tolerance)
    return done


# --- losses with known answers


PART = slice(22, 28)  # the weights they act on: two of the kernel, and the four biases


def linear(w, batch):
    """<g_k, w>, with g_k as the rows of the client's data."""
    return tf.reduce_sum(batch.weights * tf.linalg.matvec(batch.x, w))


def quadratic(w, batch):
    """a_k / 2 ||w - b_k||^2, with b_k as the rows and a_k - 1 as the labels."""
    a = 1 + tf.cast(batch.y, tf.float32)
    return tf.reduce_sum(batch.weights * a * tf.reduce_sum(tf.square(w - batch.x), 1)) / 2


class Known:
    """An algorithm's own client loop and server, with the network's loss replaced. All start at zero.

    The rows of a client's data are equal, so every batch has the same loss. The numbers are small multiples of powers
    of two: sums of a few of them are exact in float32, and "equal" means equal.
    """

    ROWS = np.array([[2, -1, 0.5, 3, -2, 1], [-4, 2, 1, -1, 0.5, -3], [1, 1, -2, 0.5, 4, 2], [3, -3, 1.5, -2, 1, -1]])
    CURVATURES = np.array([1, 3, 2, 4])
    SIZES = (4, 8, 16, 8)

    def __init__(self, name, loss, **overrides):
        asked = experiment(name, **{"training__batch_size": 4, "training__local_epochs": 1, **overrides})
        forward = workbench(worker_view(asked)).training.forward
        replaced = {"loss_term": lambda self, ctx, weights, batch, *_: loss(weights[PART], batch)}
        self.algorithm = type("Known", (algorithms.find(name),), replaced)(asked.algorithm, asked.training)
        self.training = LocalTraining(forward, self.algorithm, asked.training)
        self.layout, zeros = forward.layout, np.zeros(28, np.float32)
        self.server = ServerState(zeros, self.algorithm.init_server(self.layout, zeros))
        self.slots = [self.algorithm.init_client(self.layout, zeros) for _ in self.SIZES]

    def round(self, clients):
        """Train these clients, move the server, and return how far each client moved."""
        x, results = self.server.weights, []
        for client in clients:
            data = np.repeat(self.ROWS[client][None], self.SIZES[client], 0).astype(np.float32)
            labels = np.full(self.SIZES[client], self.CURVATURES[client] - 1, np.int32)
            task = ClientTask("", 1, client, x, self.algorithm.broadcast(self.server), self.slots[client])
            results.append(self.training.train(task, data, labels, 0)[0])
            self.slots[client] = results[-1].slots
        self.server = serve(self.algorithm, self.server, results, self.layout, len(self.SIZES))
        return [(result.weights - x)[PART] for result in results]

    @property
    def x(self):
        return self.server.weights[PART]


OPTIMUM = Known.CURVATURES @ Known.ROWS / Known.CURVATURES.sum()  # of the mean of the quadratic losses


# --- FedProx


@pytest.mark.parametrize("decoupled", [False, True])
def test_fedprox_equals_its_twin(decoupled, tmp_path):
    class Prox(Twin):
        def correct(self, g, w, client):
            return g + 0.7 * (w - self.x)

    if decoupled:  # one step: w - lr g, then w - lr mu (w - x): not the same as the coupled step

        class Prox(Twin):
            def correct(self, g, w, client):
                after = w - 0.1 * g
                return g + 0.7 * (after - self.x)

    check("fedprox", Prox, tmp_path, algorithm__proximal_weight=0.7, algorithm__decoupled=decoupled)


def test_a_stronger_pull_moves_less_and_one_step_is_not_pulled(tmp_path):
    def moved(mu, **more):
        asked = experiment("fedprox", algorithm__proximal_weight=mu, **more)
        bench = workbench(worker_view(asked))
        start = bench.initial_weights()
        return np.linalg.norm(train_client(ClientTask(worker_view(asked), 1, 0, start)).weights - start)

    norms = [moved(mu) for mu in (0.0, 0.5, 2.0, 8.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.5 * norms[0]
    one_step = {"training__local_epochs": 1, "training__batch_size": 1000}
    assert moved(0.0, **one_step) == moved(8.0, **one_step)


@pytest.mark.parametrize("name", ["fedprox", "moon"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_its_term_it_is_fedavg_bit_for_bit(name, optimizer, tmp_path):
    key = {"fedprox": "algorithm__proximal_weight", "moon": "algorithm__contrastive_weight"}[name]
    a = api.run(tiny(algorithm__name=name, training__optimizer=optimizer, **{key: 0.0}), out=tmp_path / "a",
                progress=False)  # fmt: skip
    b = api.run(tiny(training__optimizer=optimizer), out=tmp_path / "b", progress=False)
    for path, value in b.weights().items():
        np.testing.assert_array_equal(a.weights()[path], value)


def test_the_pull_is_the_gradient_of_the_proximal_term():
    """d/dy mu/2 ||y - x||^2 = mu (y - x), here against central differences (exact for a quadratic) in float64."""
    bench = workbench(worker_view(experiment("fedprox", algorithm__proximal_weight=0.7)))
    g, x, y = np.random.default_rng(0).normal(size=(3, 28))
    ctx = ClientContext(bench.network.layout, x, {}, {}, None, None, 1, 0.1)
    term = lambda y: 0.7 / 2 * np.sum((y - x) ** 2)  # noqa: E731
    differences = [(term(y + step) - term(y - step)) / 2 for step in np.eye(28)]
    np.testing.assert_allclose(bench.algorithm.adjust_gradient(ctx, g, y) - g, differences, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mu", [8, 1024])
def test_a_pull_of_one_over_the_rate_leaves_one_gradient_step(mu):
    """eta = 1/mu: y - eta g - eta mu (y - x) = x - eta g, so however many steps, the client ends at -g / mu -> 0."""
    known = Known("fedprox", linear, algorithm__proximal_weight=mu, training__learning_rate=1 / mu)
    moved = known.round(range(4))
    np.testing.assert_array_equal(moved, -Known.ROWS / mu)


# --- FedNova


@pytest.mark.parametrize(("momentum", "effort"), [(0.0, [1, 2, 4, 2]), (0.5, [1, 2.5, 6.125, 2.5])])
def test_fednova_goes_along_the_weighted_mean_gradient_whatever_the_local_work(momentum, effort):
    """Linear losses, three of four clients, tau = 1, 2, 4, 2 steps: x' = x - eta tau_eff sum p_k g_k, p = n / sum n.

    With momentum 0.5 the gradients weigh 1; 1.5, 1; 1.875, 1.75, 1.5, 1, in all 1, 2.5, 6.125. FedAvg's step is
    eta sum p_k ||a_k|| g_k instead, another direction.
    """
    chosen, effort = [0, 1, 2], np.array(effort)[:3]
    p = np.array(Known.SIZES)[:3] / 28
    settings = {"training__momentum": momentum, "training__learning_rate": 0.5, "training__weighting": "num_examples"}
    nova, plain = Known("fednova", linear, **settings), Known("fedavg", linear, **settings)
    for known in (nova, plain):
        moved = known.round(chosen)
        np.testing.assert_array_equal(moved, -0.5 * effort[:, None] * Known.ROWS[:3])
    np.testing.assert_allclose(nova.x, -0.5 * (p @ effort) * (p @ Known.ROWS[:3]), rtol=1e-6)
    np.testing.assert_allclose(plain.x, -0.5 * (p * effort) @ Known.ROWS[:3], rtol=1e-6)
    cosine = nova.x @ plain.x / np.linalg.norm(nova.x) / np.linalg.norm(plain.x)
    assert cosine < 0.99


@pytest.mark.parametrize("tau", [0, 1, 2, 7, 459])
def test_fednovas_recursions_have_closed_forms(tau):
    def normaliser(**overrides):
        return workbench(worker_view(experiment("fednova", **overrides))).algorithm.normaliser(tau)

    rho, shrink = 0.9, 1 - 0.05 * 0.3
    assert normaliser() == tau
    assert normaliser(training__momentum=rho) == pytest.approx(
        (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho), rel=1e-10
    )
    assert normaliser(training__learning_rate=0.05, algorithm__proximal_weight=0.3) == pytest.approx(
        (1 - shrink**tau) / (1 - shrink), rel=1e-10
    )
    assert normaliser(training__optimizer="adam", algorithm__proximal_weight=0.3) == tau  # outside the theory


def test_moving_statistics_are_averaged_and_never_normalised():
    """Two clients of 1 and 3 examples after 2 and 8 steps; statistics move to (1 a + 3 b) / 4, trained values do not.

    tau_eff = (2 + 3 * 8) / 4 = 6.5: trained values move by 6.5 (1/4 * 1/2 + 3/4 * 1/8) = 1.421875 where each client
    moved by 1, while the mean moves by 1.
    """
    bench = workbench(worker_view(tiny(algorithm__name="fednova", model__name="tests.helpers:user_model")))
    layout, start = bench.network.layout, bench.initial_weights()
    assert layout.size > layout.num_trainable
    results = [ClientResult(client, n, start + 1, {"normaliser": np.float32([tau, tau])})
               for client, n, tau in ((0, 1, 2), (1, 3, 8))]  # fmt: skip
    results[1].weights[layout.num_trainable :] += 2
    algorithm = type(bench.algorithm)(bench.experiment.algorithm, tiny(training__weighting="num_examples").training)
    moved = serve(algorithm, ServerState(start), results, layout, 6).weights - start
    np.testing.assert_allclose(moved[: layout.num_trainable], 1.421875, rtol=1e-5)
    np.testing.assert_allclose(moved[layout.num_trainable :], (1 + 3 * 3) / 4, rtol=1e-5)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.6)])
def test_fednova_equals_its_twin(momentum, mu, tmp_path):
    class Nova(Twin):
        def correct(self, g, w, client):
            return g + mu * (w - self.x)

        def client(self, client, round_index):
            w, n, _, _ = self.local(client, round_index)
            tau, rate = len(self.gradients), self.settings.learning_rate
            if mu:
                a = (1 - (1 - rate * mu) ** tau) / (rate * mu)  # closed forms; feddual uses the recursions
            elif momentum:
                a = (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
            else:
                a = tau
            return w, n, a, tau

        def server(self, results):
            p = np.array([n for _, _, n, _, _ in results]) / sum(n for _, _, n, _, _ in results)
            effective = sum(q * (tau if mu else a) for q, (*_, a, tau) in zip(p, results, strict=True))
            self.x = self.x + effective * sum(
                q * (w - self.x) / a for q, (_, w, _, a, _) in zip(p, results, strict=True)
            )

    check("fednova", Nova, tmp_path, training__momentum=momentum, algorithm__proximal_weight=mu,
          training__learning_rate=0.02, training__weighting="num_examples")  # fmt: skip


def test_fednova_refuses_momentum_with_a_proximal_term():
    with pytest.raises(UserError, match="no agreed normaliser"):
        experiment("fednova", training__momentum=0.9, algorithm__proximal_weight=0.1)


# --- SCAFFOLD and FedPVR


class Scaffold(Twin):
    control = "mean_grad"

    def mask(self):
        return np.ones(28)

    def start(self):
        self.c = np.zeros(28)
        self.ck = {client: np.zeros(28) for client in range(self.num_clients)}

    def correct(self, g, w, client):
        return g + self.mask() * (self.c - self.ck[client])

    def client(self, client, round_index):
        w, n, data, labels = self.local(client, round_index)
        tau, rate = len(self.gradients), self.settings.learning_rate
        new = {
            "mean_grad": lambda: np.mean(self.gradients, axis=0),
            "option1": lambda: gradient(self.x, data, labels),
            "option2": lambda: self.ck[client] - self.c + (self.x - w) / (tau * rate),
        }[self.control]()
        return w, n, self.mask() * (new - self.ck[client])

    def server(self, results):
        self.x = np.mean([w for _, w, *_ in results], axis=0)
        for client, _, _, change in results:
            self.ck[client] = self.ck[client] + change
            self.c = self.c + change / self.num_clients


@pytest.mark.parametrize("control", ["mean_grad", "option1", "option2"])
def test_scaffold_equals_its_twin_and_the_server_control_is_the_mean(control, tmp_path):
    twin = type("ScaffoldTwin", (Scaffold,), {"control": control})
    done = check("scaffold", twin, tmp_path, rounds=5, algorithm__control=control)
    files = RunDir(done.path)
    last = files.read_checkpoint(5)
    controls = [files.read_client_state(c, d)["control"].astype(np.float64) for c, d in last.client_states.items()]
    np.testing.assert_allclose(last.server_slots["control"], sum(controls) / 6, rtol=1e-5, atol=1e-6)


def test_scaffold_corrects_drift_where_fedavg_stalls(tmp_path):
    """Full participation on skewed clients, many local steps: SCAFFOLD comes closer to the common optimum."""
    common = {"partition__alpha": 0.05, "training__clients_per_round": 6, "training__rounds": 40,
              "training__local_epochs": 5, "training__learning_rate": 0.2, "dataset__noise": 2.0}  # fmt: skip

    def norm(name, **more):
        asked = experiment(name, **common, **more)
        done = api.run(asked, out=tmp_path / name, progress=False)
        bench = workbench(worker_view(asked))
        x, y = bench.federation.train(np.arange(240))
        w = np.concatenate([value.ravel() for value in done.weights().values()]).astype(np.float64)
        per_client = [gradient(w, *(part.astype(np.float64) if i == 0 else part for i, part in
                      enumerate(bench.federation.client(c)))) for c in range(6)]  # fmt: skip
        del x, y
        return np.linalg.norm(np.mean(per_client, axis=0))  # the objective SCAFFOLD and uniform FedAvg minimise

    assert norm("scaffold") < 0.5 * norm("fedavg")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("scaffold", {}), ("scaffold", {"control": "option2"}), ("fedpvr", {"mask": "output/bias"}),
     ("feddyn", {"alpha": 1.0})],
)  # fmt: skip
def test_the_servers_state_is_the_mean_of_the_clients_after_every_round(name, settings):
    """c = 1/N sum c_k (h = 1/N sum g_k) over all clients, of which two take part; the numbers are exact in float32."""
    known = Known(name, quadratic, training__learning_rate=0.5, training__clip_norm=None,
                  **{f"algorithm__{key}": value for key, value in settings.items()})  # fmt: skip
    key = "dual" if name == "feddyn" else "control"
    for chosen in ([0, 1], [1, 3], [0, 3]):
        known.round(chosen)
        states = np.array([slots[key] for slots in known.slots], np.float64)
        assert np.count_nonzero(known.server.slots[key]) >= 3
        np.testing.assert_allclose(known.server.slots[key], states.mean(0), rtol=0, atol=1e-10)
    assert not states[2].any()  # never took part


@pytest.mark.parametrize("correction", ["pre", "post"])
def test_from_the_second_round_every_scaffold_client_goes_along_the_mean_gradient(correction):
    """Linear losses, all take part: c_k = g_k after round one, so a step is g_k + c - c_k = c = the mean of the g_k."""
    known = Known("scaffold", linear, training__learning_rate=0.25, algorithm__correction=correction)
    steps = np.array([1, 2, 4, 2])[:, None]
    np.testing.assert_array_equal(known.round(range(4)), -0.25 * steps * Known.ROWS)  # as FedAvg
    for _ in range(2):
        np.testing.assert_array_equal(known.round(range(4)), -0.25 * steps * Known.ROWS.mean(0))


def test_option2_is_the_mean_gradient_under_sgd():
    """(x - y) / (tau eta) = mean(g) + c - c_k; subtracting c - c_k again leaves the mean of the raw gradients."""
    both = [Known("scaffold", quadratic, algorithm__control=control) for control in ("mean_grad", "option2")]
    for chosen in ([0, 2], [1, 2], [0, 3]):
        for known in both:
            known.round(chosen)
    for a, b in zip(both[0].slots, both[1].slots, strict=True):
        np.testing.assert_allclose(a["control"], b["control"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both[0].x, both[1].x, rtol=1e-5)


def test_scaffold_reaches_the_optimum_of_quadratics_where_fedavg_is_biased():
    """FedAvg settles at the mean of the b_k weighted by 1 - (1 - eta a_k)^tau instead of a_k."""
    settings = {"training__learning_rate": 0.0625, "training__batch_size": 16, "training__local_epochs": 8}
    found = {}
    for name in ("scaffold", "fedavg"):
        known = Known(name, quadratic, **settings)
        for _ in range(60):
            known.round(range(4))
        found[name] = known.x
    share = 1 - (1 - 0.0625 * Known.CURVATURES) ** 8
    np.testing.assert_allclose(found["scaffold"], OPTIMUM, atol=1e-4)
    np.testing.assert_allclose(found["fedavg"], share @ Known.ROWS / share.sum(), atol=1e-4)
    assert np.linalg.norm(found["fedavg"] - OPTIMUM) > 0.1 * np.linalg.norm(OPTIMUM)


def test_a_single_scaffold_client_does_plain_sgd_forever(tmp_path):
    """N = 1: c = c_1 always, so the correction vanishes."""
    alone = {"partition": {"name": "iid", "num_clients": 1}, "training__clients_per_round": 1, "training__rounds": 4}
    a = api.run(experiment("scaffold", **alone), out=tmp_path / "a", progress=False)
    b = api.run(experiment("fedavg", **alone), out=tmp_path / "b", progress=False)
    for path, value in b.weights().items():
        np.testing.assert_allclose(a.weights()[path], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_scaffolds_server_with_five_of_a_hundred(rate):
    """The example of pfl-research: c = 2, each client changes its control by 0.5: 2 + 0.5 * 5 / 100. All moved by 1."""
    bench = workbench(worker_view(experiment("scaffold", algorithm__server_lr=rate)))
    results = [ClientResult(k, 10, np.ones(28, np.float32), {"control_change": np.full(28, 0.5)}) for k in range(5)]
    server = ServerState(np.zeros(28, np.float32), {"control": np.full(28, 2, np.float32)})
    after = serve(bench.algorithm, server, results, bench.network.layout, 100)
    np.testing.assert_allclose(after.slots["control"], 2.025, rtol=1e-6)
    np.testing.assert_array_equal(after.weights, rate)


def test_option2_with_adam_needs_a_flag():
    with pytest.raises(UserError, match="holds for plain SGD only"):
        tiny(algorithm__name="scaffold", algorithm__control="option2")
    assert tiny(algorithm__name="scaffold", algorithm__control="option2", algorithm__allow_invalid=True)


def test_fedpvr_equals_its_twin_and_scaffold_for_the_whole_mask(tmp_path):
    biases = np.concatenate([np.zeros(24), np.ones(4)])
    twin = type("PvrTwin", (Scaffold,), {"mask": lambda self: biases, "momentum": lambda self: 0.5 * (1 - biases)})
    check("fedpvr", twin, tmp_path, algorithm__mask="output/bias", algorithm__momentum_uncorrected=0.5)
    whole = api.run(experiment("fedpvr", algorithm__mask="all"), out=tmp_path / "all", progress=False)
    scaffold = api.run(experiment("scaffold"), out=tmp_path / "scaffold", progress=False)
    for path, value in scaffold.weights().items():
        np.testing.assert_array_equal(whole.weights()[path], value)
    assert RunDir(tmp_path / "run").read_checkpoint(4).server_slots["control"].shape == (4,)


def test_fedpvr_without_a_mask_is_fedavg_with_its_momentum(tmp_path):
    asked = experiment("fedpvr", algorithm__mask="none", algorithm__momentum_uncorrected=0.5)
    a = api.run(asked, out=tmp_path / "a", progress=False)
    b = api.run(experiment("fedavg", training__momentum=0.5), out=tmp_path / "b", progress=False)
    for path, value in b.weights().items():
        np.testing.assert_array_equal(a.weights()[path], value)


# --- FedDyn


def test_feddyns_duals_are_gradients_and_it_reaches_the_optimum_with_two_clients_a_round():
    """Solved exactly: grad f_k(y) - g_k + alpha (y - x) = 0, so the new dual g_k - alpha (y - x) is grad f_k(y)."""
    known = Known("feddyn", quadratic, algorithm__alpha=1.0, training__learning_rate=0.1875, training__batch_size=16,
                  training__local_epochs=50, training__clip_norm=None)  # fmt: skip
    rng = np.random.default_rng(0)
    for _ in range(80):
        x, chosen = known.x, sorted(rng.choice(4, 2, replace=False))
        for client, moved in zip(chosen, known.round(chosen), strict=True):
            gradient = Known.CURVATURES[client] * (x + moved - Known.ROWS[client])
            np.testing.assert_allclose(known.slots[client]["dual"][PART], gradient, atol=1e-4)
    np.testing.assert_allclose(known.x, OPTIMUM, atol=1e-3)


def test_feddyns_server_with_ten_of_a_hundred():
    """From h = 0: h' = -alpha/100 sum (y - x), so x' = mean(y) + 10/100 (mean(y) - x); sizes do not matter."""
    bench = workbench(worker_view(experiment("feddyn", algorithm__alpha=0.3)))
    layout, rng = bench.network.layout, np.random.default_rng(0)
    x, ys = rng.normal(size=28).astype(np.float32), rng.normal(size=(10, 28)).astype(np.float32)
    server = ServerState(x, bench.algorithm.init_server(layout, x))
    results = [ClientResult(client, 5 + client, y) for client, y in enumerate(ys)]
    mean = ys.mean(0, dtype=np.float64)
    np.testing.assert_allclose(
        serve(bench.algorithm, server, results, layout, 100).weights, mean + 0.1 * (mean - x), rtol=1e-5, atol=1e-6
    )


def test_feddyn_equals_its_twin_and_the_server_dual_is_the_mean(tmp_path):
    class Dyn(Twin):
        def start(self):
            self.h, self.gk = np.zeros(28), {client: np.zeros(28) for client in range(self.num_clients)}

        def correct(self, g, w, client):
            return g - self.gk[client] + 0.3 * (w - self.x)

        def server(self, results):
            for client, w, _ in results:
                self.gk[client] = self.gk[client] - 0.3 * (w - self.x)
            self.h = self.h - 0.3 / self.num_clients * sum(w - self.x for _, w, _ in results)
            self.x = np.mean([w for _, w, _ in results], axis=0) - self.h / 0.3
            np.testing.assert_allclose(self.h, np.mean(list(self.gk.values()), axis=0), atol=1e-12)

    check("feddyn", Dyn, tmp_path, algorithm__alpha=0.3, training__clip_norm=None)


def test_the_first_round_of_feddyn_by_hand(tmp_path):
    """Full participation: x' = 2 mean(y) - x, and the clients solve FedProx's problem with mu = alpha."""
    common = {"training__clients_per_round": 6, "training__rounds": 1, "checkpoint__rounds": [0]}
    dyn = api.run(
        experiment("feddyn", algorithm__alpha=0.5, training__clip_norm=None, **common),
        out=tmp_path / "a",
        progress=False,
    )
    prox = api.run(experiment("fedprox", algorithm__proximal_weight=0.5, **common), out=tmp_path / "b", progress=False)
    for path, start in dyn.weights(0).items():
        np.testing.assert_allclose(dyn.weights(1)[path], 2 * prox.weights(1)[path] - start, rtol=1e-5, atol=1e-6)
    assert dyn.metrics["accuracy"].iloc[0] == prox.metrics["accuracy"].iloc[0]  # tested: the mean of the clients


@pytest.mark.parametrize("choice", ["avg_active", "cloud", "avg_all"])
def test_which_model_feddyn_tests(choice, tmp_path):
    done = api.run(experiment("feddyn", algorithm__eval_model=choice), out=tmp_path / "a", progress=False)
    checkpoint = RunDir(done.path).read_checkpoint(3)
    assert ("tested" in checkpoint.server_slots) == (choice != "cloud")
    if choice == "avg_all":
        files = RunDir(done.path)
        last = {c: files.read_client_state(c, d)["last"] for c, d in checkpoint.client_states.items()}
        start = workbench(worker_view(experiment("feddyn"))).initial_weights()
        everyone = np.mean([last.get(client, start) for client in range(6)], axis=0)
        np.testing.assert_allclose(checkpoint.server_slots["tested"], everyone, rtol=1e-4, atol=1e-6)


# --- MOON


def moon_parts(hidden=8):
    asked = tiny(algorithm__name="moon", algorithm__contrastive_weight=1.0, training__optimizer="sgd",
                 training__learning_rate=1e-12, training__local_epochs=1, training__batch_size=500)  # fmt: skip
    bench = workbench(worker_view(asked))
    return asked, bench


def moon_loss(w, x, y, glob, prev, mu, temperature=0.5):
    def features(v):
        return np.maximum(x @ v[:48].reshape(6, 8) + v[48:56], 0)

    def unit(z):
        return z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-8)

    z = unit(features(w))
    towards, away = (z * unit(features(glob))).sum(1), (z * unit(features(prev))).sum(1)
    contrast = -np.log(np.exp(towards / temperature) / (np.exp(towards / temperature) + np.exp(away / temperature)))
    return reference.mlp_loss_and_gradient(w, x, y, [6, 8, 4])[0] + mu * contrast.mean(), contrast


def test_moons_gradient_is_that_of_its_loss_and_is_not_zero():
    """One full batch at standing weights: the loop's gradient against central differences of the twin's loss."""
    asked, bench = moon_parts()
    x, y = bench.federation.client(0)
    rng = np.random.default_rng(1)
    glob = bench.initial_weights()
    prev = (glob + 0.3 * rng.normal(size=glob.shape)).astype(np.float32)
    start = (glob + 0.1 * rng.normal(size=glob.shape)).astype(np.float32)
    slots = {"previous": prev, "participated": np.ones(1, np.float32)}
    bench.algorithm.start_weights = lambda layout, weights, client: start
    try:
        _, trained = bench.training.train(ClientTask(worker_view(asked), 1, 0, glob, {}, slots), x, y, 0)
    finally:
        del bench.algorithm.start_weights
    x64, w = x.astype(np.float64), start.astype(np.float64)
    loss = lambda v, mu: moon_loss(v, x64, y, glob.astype(np.float64), prev.astype(np.float64), mu)[0]  # noqa: E731
    difference = np.array([
        (loss(w + step, 1.0) - loss(w - step, 1.0)) / 2e-6 for step in 1e-6 * np.eye(len(w))
    ])  # fmt: skip
    np.testing.assert_allclose(trained.gradient_sum, difference, rtol=2e-3, atol=2e-5)
    plain = reference.mlp_loss_and_gradient(w, x64, y, [6, 8, 4])[1]
    assert np.linalg.norm(trained.gradient_sum - plain) > 0.05 * np.linalg.norm(plain)


def test_moon_pulls_nowhere_at_a_first_participation():
    asked, bench = moon_parts()
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    _, trained = bench.training.train(
        ClientTask(worker_view(asked), 1, 0, glob, {}, bench.algorithm.init_client(bench.network.layout, glob)), x, y, 0
    )
    plain = reference.mlp_loss_and_gradient(glob.astype(np.float64), x.astype(np.float64), y, [6, 8, 4])[1]
    np.testing.assert_allclose(trained.gradient_sum, plain, rtol=1e-4, atol=1e-5)  # previous = global: no pull


def moon_term(z, glob, prev):
    """feddual's term and its gradient for given representations, in float64, and the twin's term."""
    algorithm, n = moon_parts()[1].algorithm, len(z)
    ctx = ClientContext(None, tf.constant(glob), {}, {"previous": tf.constant(prev), "participated": np.ones(1)}, None,
                        None, n, 0.1, forward_all=lambda features: Outputs(None, features))  # fmt: skip
    ctx = ctx.with_(before=algorithm.before_training(ctx))
    batch = Batch(None, None, tf.range(n), tf.fill([n], tf.constant(1 / n, tf.float64)), n)
    features = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(features)
        found = algorithm.loss_term(ctx, None, batch, Outputs(None, features), tf.constant(0.0, tf.float64))

    def cosine(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    expected = np.log1p(np.exp((cosine(z, prev) - cosine(z, glob)) / 0.5)).mean()
    return found.numpy(), tape.gradient(found, features).numpy(), expected


def test_moons_term_and_its_bounds():
    """From log(1 + e^(-2/T)), at the global side, to log(1 + e^(2/T)); log 2 without a gradient where both agree."""
    z, glob, prev = np.random.default_rng(0).normal(size=(3, 7, 5))
    found, _, expected = moon_term(z, glob, prev)
    assert found == pytest.approx(expected, rel=1e-10)
    assert 0.0181 < found < 4.0182
    assert moon_term(2 * glob, glob, -glob)[0] == pytest.approx(np.log1p(np.exp(-4)), rel=1e-10)
    assert moon_term(-3 * glob, glob, -glob)[0] == pytest.approx(np.log1p(np.exp(4)), rel=1e-10)
    same, gradient, _ = moon_term(z, glob, glob)
    assert same == pytest.approx(np.log(2), rel=1e-10)
    np.testing.assert_allclose(gradient, 0, atol=1e-14)


def test_moon_survives_representations_that_are_zero():
    """Biases of -100 in front of the ReLU: no cosine exists, and what is left is the gradient of the cross-entropy."""
    asked, bench = moon_parts()
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    glob[48:56] = -100
    slots = {"previous": bench.initial_weights(), "participated": np.ones(1, np.float32)}
    _, trained = bench.training.train(ClientTask(worker_view(asked), 1, 0, glob, {}, slots), x, y, 0)
    plain = reference.mlp_loss_and_gradient(glob.astype(np.float64), x.astype(np.float64), y, [6, 8, 4])[1]
    assert not plain[:56].any()
    np.testing.assert_allclose(trained.gradient_sum, plain, rtol=1e-4, atol=1e-6)


def test_moon_keeps_the_last_local_model(tmp_path):
    done = api.run(tiny(algorithm__name="moon"), out=tmp_path / "a", progress=False)
    files = RunDir(done.path)
    states = files.read_checkpoint(3).client_states
    assert set(states) == set(done.clients["client"])
    assert all(files.read_client_state(c, d)["participated"][0] == 1 for c, d in states.items())
    result = train_client(ClientTask(worker_view(moon_parts()[0]), 1, 0, moon_parts()[1].initial_weights(), {},
                                     files.read_client_state(*next(iter(states.items())))))  # fmt: skip
    np.testing.assert_array_equal(result.slots["previous"], result.weights)


# --- FedBN


BN = {"model__name": "tests.helpers:user_model", "training__optimizer": "sgd", "training__learning_rate": 0.1}


def test_without_batch_normalisation_fedbn_is_fedavg_bit_for_bit(tmp_path):
    a = api.run(tiny(algorithm__name="fedbn"), out=tmp_path / "a", progress=False)
    b = api.run(tiny(), out=tmp_path / "b", progress=False)
    for path, value in b.weights().items():
        np.testing.assert_array_equal(a.weights()[path], value)


def test_fedbn_keeps_batch_normalisation_with_its_client(tmp_path):
    done = api.run(tiny(algorithm__name="fedbn", **BN, checkpoint__rounds=[0]), out=tmp_path / "a", progress=False)
    local = [path for path in done.weights() if path.startswith("batch_normalization/")]
    assert len(local) == 4
    for path, start in done.weights(0).items():
        assert (done.weights(3)[path] == start).all() == (path in local)  # the server never moves them
    files = RunDir(done.path)
    states = {c: files.read_client_state(c, d)["bn"] for c, d in files.read_checkpoint(3).client_states.items()}
    values = list(states.values())
    assert all(not np.array_equal(values[0], other) for other in values[1:])
    once = done.clients.groupby("client").size()
    twin = workbench(worker_view(tiny(algorithm__name="fedbn", **BN)))
    client = int(once[once == 1].index[0])  # trained in one round only: nobody else touched its values
    when = int(done.clients.query("client == @client")["round"].iloc[0])
    if when == 1:
        start = twin.initial_weights()
        slots = twin.algorithm.init_client(twin.network.layout, start)
        alone = train_client(ClientTask(worker_view(twin.experiment), 1, client, start, {}, slots))
        np.testing.assert_array_equal(alone.slots["bn"], states[client])
    assert done.metrics["bytes_up"].iloc[0] == 4 * 3 * (twin.network.layout.size - 20)


def test_fedbn_client_by_client():
    """Clients 0 and 1, then 1 and 2: everyone starts from the same body, and from its own batch normalisation."""
    bench = workbench(worker_view(tiny(algorithm__name="fedbn", algorithm__bn_eval="server_initial", **BN)))
    algorithm, layout, start = bench.algorithm, bench.network.layout, bench.initial_weights()
    own = np.concatenate([np.arange(layout.size)[entry.slice] for entry in layout.entries
                          if entry.path.startswith("batch_normalization/")])  # fmt: skip
    body = np.setdiff1d(np.arange(layout.size), own)
    server = ServerState(start, algorithm.init_server(layout, start))
    slots = [algorithm.init_client(layout, start) for _ in range(3)]
    trained = {}
    for round_index, chosen in ((1, (0, 1)), (2, (1, 2))):
        results = []
        for client in chosen:
            begin = algorithm.start_weights(layout, server.weights, slots[client])
            np.testing.assert_array_equal(begin[body], server.weights[body])
            np.testing.assert_array_equal(begin[own], trained.get(client, start)[own])
            task = ClientTask(worker_view(bench.experiment), round_index, client, server.weights, {}, slots[client])
            results.append(train_client(task))
            slots[client], trained[client] = results[-1].slots, results[-1].weights
        server = serve(algorithm, server, results, layout, 6)
        mean = np.mean([result.weights for result in results], axis=0)
        np.testing.assert_allclose(server.weights[body], mean[body], rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(server.weights[own], start[own])
    assert not (trained[0][own] == trained[1][own]).any()


@pytest.mark.parametrize(
    "policy", ["average_participants", "average_all_seen", "per_client_mean_accuracy", "server_initial"]
)
def test_what_fedbn_tests(policy, tmp_path):
    done = api.run(tiny(algorithm__name="fedbn", algorithm__bn_eval=policy, **BN), out=tmp_path / "a", progress=False)
    files = RunDir(done.path)
    checkpoint = files.read_checkpoint(3)
    own = {c: files.read_client_state(c, d)["bn"] for c, d in checkpoint.client_states.items()}
    last = done.clients.query("round == 3")["client"]
    if policy == "average_participants":
        np.testing.assert_allclose(checkpoint.server_slots["bn"], np.mean([own[c] for c in last], axis=0), rtol=1e-5)
    elif policy == "average_all_seen":
        np.testing.assert_allclose(
            checkpoint.server_slots["bn"], np.mean(list(own.values()), axis=0), rtol=1e-4, atol=1e-6
        )
    elif policy == "per_client_mean_accuracy":
        np.testing.assert_array_equal(checkpoint.server_slots["bn"], [own[c] for c in last])
    else:
        assert checkpoint.server_slots == {}


# --- masks and protocols


def test_masks():
    layout = workbench(worker_view(tiny(model__hidden=[8, 5]))).network.layout
    paths = lambda mask: [entry.path for entry in masks.select(layout, mask)]  # noqa: E731
    assert paths("last_layers:1") == paths("output") == paths("last_tensors:2") == ["output/kernel", "output/bias"]
    assert paths("first:1") == ["dense1/kernel", "dense1/bias"]
    assert paths("all") == [entry.path for entry in layout.entries]
    assert paths("none") == []
    assert paths("re:bias$") == ["dense1/bias", "dense2/bias", "output/bias"]
    assert paths("dense2/kernel,output") == ["dense2/kernel", "output/kernel", "output/bias"]
    assert len(paths("random:2")) == 4
    for mask, message in {
        "last_layers:9": "from 1 to 3",
        "last_layers:two": "needs a number",
        "head": "the model has the layers dense1",
        "re:x": "matches none",
        "re:(": "not a regular expression",
    }.items():
        with pytest.raises(UserError, match=message):
            masks.select(layout, mask)


@pytest.mark.parametrize(
    ("name", "down", "up", "settings"),
    [("fedavg", 92, 92, {}), ("fedprox", 92, 92, {}), ("fednova", 92, 92, {}), ("moon", 92, 92, {}),
     ("feddyn", 92, 92, {}), ("scaffold", 184, 184, {}), ("fedpvr", 128, 128, {"algorithm__mask": "output"}),
     ("feddual", 92, 128, {"algorithm__mask": "output", "algorithm__update_source": "grad_end_mean"}),
     ("feddual", 92, 92, {"algorithm__mask": "output"}), ("fedbn", 89, 89, BN),
     ("feddual", 92, 92, {"algorithm__memory": "displacements"}),
     ("feddual", 184, 184, {"algorithm__control": "mean_grad"})],
)  # fmt: skip
def test_what_is_communicated(name, down, up, settings):
    """The model has 6*8 + 8 + 8*4 + 4 = 92 values, its output 36; the BN model 89 besides BN's 20."""
    bench = workbench(worker_view(tiny(algorithm__name=name, **settings)))
    assert bench.algorithm.communication(bench.network.layout) == (down, up)


@pytest.mark.parametrize(
    ("name", "paper", "faithful"),
    [
        ("fedavg", "uniform", "num_examples"),
        ("fedprox", "uniform", "num_examples"),
        ("fednova", "uniform", "num_examples"),
        ("scaffold", "uniform", "uniform"),
        ("fedbn", "uniform", "uniform"),
        ("feddyn", "uniform", "uniform"),
        ("moon", "uniform", "num_examples"),
        ("fedpvr", "uniform", "uniform"),
        ("feddual", "uniform", "num_examples"),
    ],
)
def test_protocols(name, paper, faithful):
    for protocol, weighting, optimizer in (("paper", paper, "adam"), ("faithful", faithful, "sgd")):
        found = config.resolve("paper-fmnist", {"algorithm.name": name, "protocol": protocol}).training
        assert (found.weighting, found.optimizer) == (weighting, optimizer)

"""Each algorithm against a plain-numpy twin, and the properties its paper promises.

The federation is tiny (6 clients of unequal size, 4 classes, 6 inputs, softmax regression with 28 weights), so whole
rounds are recomputed by hand in float64. Weights have both signs; client sizes differ.
"""

import numpy as np
import pytest

from feddual import api, config, masks, seeding
from feddual.engine import worker_view
from feddual.errors import UserError
from feddual.local_training import ClientTask
from feddual.run_dir import RunDir
from feddual.workbench import train_client, workbench
from tests import reference
from tests.helpers import tiny

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


# --- FedNova


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
          training__learning_rate=0.02)  # fmt: skip


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


# --- FedDyn


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


def test_moon_at_a_first_participation_and_its_bounds():
    asked, bench = moon_parts()
    x, y = bench.federation.client(0)
    glob = bench.initial_weights()
    _, trained = bench.training.train(
        ClientTask(worker_view(asked), 1, 0, glob, {}, bench.algorithm.init_client(bench.network.layout, glob)), x, y, 0
    )
    plain = reference.mlp_loss_and_gradient(glob.astype(np.float64), x.astype(np.float64), y, [6, 8, 4])[1]
    np.testing.assert_allclose(trained.gradient_sum, plain, rtol=1e-4, atol=1e-5)  # previous = global: no pull
    contrast = moon_loss(glob.astype(np.float64), x.astype(np.float64), y, glob, glob, 1.0)[1]
    assert contrast == pytest.approx(np.log(2))
    assert np.log(1 + np.exp(-4)) == pytest.approx(0.0181, abs=1e-4)


def test_moon_keeps_the_last_local_model(tmp_path):
    done = api.run(tiny(algorithm__name="moon"), out=tmp_path / "a", progress=False)
    files = RunDir(done.path)
    states = files.read_checkpoint(3).client_states
    assert set(states) == set(done.clients["client"])
    assert all(files.read_client_state(c, d)["participated"][0] == 1 for c, d in states.items())


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
    ("name", "paper", "faithful"),
    [
        ("fedavg", "uniform", "num_examples"),
        ("fedprox", "uniform", "num_examples"),
        ("fednova", "num_examples", "num_examples"),
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

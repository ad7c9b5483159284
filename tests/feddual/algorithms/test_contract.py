"""One sheet of questions for every algorithm: the package's, and one brought by import path."""

import os

import numpy as np
import pytest

from feddual import algorithms, api
from feddual.algorithms._base import ServerState
from feddual.experiment import config
from feddual.records.run_dir import RunDir
from feddual.training.engine import worker_view
from feddual.training.local import ClientTask
from feddual.training.workbench import train_client, workbench
from tests import helpers
from tests.helpers import tiny

ALGORITHMS = [*algorithms.names(), "tests.helpers:Counting"]
# Settings of theirs that change what is kept and sent: the same questions again.
DISPLACED = {"algorithm__name": "feddual", "algorithm__update_source": "pseudo", "algorithm__mask": "output"}
SETTINGS = {
    "feddual with memory": {**DISPLACED, "algorithm__memory": "displacements"},
    "feddual with control": {**DISPLACED, "algorithm__control": "mean_grad"},
    "feddual with both": {**DISPLACED, "algorithm__memory": "displacements", "algorithm__control": "mean_grad"},
}
every_algorithm = pytest.mark.parametrize("name", [*ALGORITHMS, *SETTINGS])


def asked(name, **overrides):
    return tiny(**{"algorithm__name": name, **SETTINGS.get(name, {}), **overrides})


def run(name, out, **overrides):
    return api.run(asked(name, **overrides), out=out, progress=False)


def weights_of(run):
    return np.concatenate([value.ravel() for value in run.weights().values()])


@every_algorithm
def test_same_seed_same_bits_and_other_seed_other_bits(name, tmp_path):
    first, again, other = (run(name, tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2)))
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00003.npz"):
        assert (first.path / file).read_bytes() == (again.path / file).read_bytes()
    assert not (weights_of(first) == weights_of(other)).all()


@every_algorithm
def test_slots_keep_their_names_shapes_and_types_and_one_trace_serves_all(name):
    bench = workbench(worker_view(asked(name)))
    algorithm, layout = bench.algorithm, bench.network.layout
    weights = bench.initial_weights()
    server = ServerState(weights, algorithm.init_server(layout, weights))
    clients = {client: algorithm.init_client(layout, weights) for client in range(3)}

    def shape(slots):
        return {key: (np.shape(value), np.asarray(value).dtype) for key, value in slots.items()}

    def shapes():  # what the server keeps to itself may grow
        types = {key: np.asarray(value).dtype for key, value in server.slots.items()}
        return shape(algorithm.broadcast(server)), types, shape(clients[0])

    before = shapes()
    for round_index in (1, 2):
        results = []
        for client, slots in clients.items():
            identity = worker_view(bench.experiment)
            sent = (server.weights, algorithm.broadcast(server))
            result = train_client(ClientTask(identity, round_index, client, *sent, slots))
            assert result.is_finite
            clients[client] = result.slots
            results.append(result)
        server = helpers.serve(algorithm, server, results, layout, 6)
        assert shapes() == before
        assert server.weights.dtype == np.float32
        assert server.weights.shape == (layout.size,)
    assert bench.training.run[""].experimental_get_tracing_count() == 1


@every_algorithm
def test_it_learns(name, tmp_path):
    done = run(name, tmp_path / "a", training__rounds=15, training__learning_rate=0.02, partition__alpha=5.0)
    assert done.metrics["accuracy"].iloc[-1] > 0.75
    assert done.metrics["num_set_aside"].sum() == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_fedavg_case_is_fedavg(name, tmp_path):
    case = algorithms.find(name).fedavg_case()
    if isinstance(case, str):
        pytest.skip(case)
    common = {"training.weighting": "uniform"}
    ours = api.run(
        config.resolve(helpers.TINY, {"algorithm.name": name, **common, **case}), out=tmp_path / "a", progress=False
    )
    plain = {key: value for key, value in case.items() if not key.startswith("algorithm.")}
    fedavg = api.run(config.resolve(helpers.TINY, {**common, **plain}), out=tmp_path / "b", progress=False)
    np.testing.assert_allclose(weights_of(ours), weights_of(fedavg), rtol=1e-5, atol=1e-7)


@every_algorithm
def test_stopping_and_resuming_equals_running_through(name, tmp_path):
    whole = run(name, tmp_path / "whole", training__rounds=5)
    run(name, tmp_path / "parts", training__rounds=3)
    parts = api.run(asked(name, training__rounds=5), out=tmp_path / "parts", resume=True, progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00005.npz"):
        assert (whole.path / file).read_bytes() == (parts.path / file).read_bytes()


@every_algorithm
def test_the_order_of_clients_does_not_matter(name, tmp_path):
    """Another executor may return clients in any order of work; results are taken in by client id."""
    bench = workbench(worker_view(asked(name)))
    algorithm, layout, weights = bench.algorithm, bench.network.layout, bench.initial_weights()
    server = ServerState(weights, algorithm.init_server(layout, weights))
    slots, sent = algorithm.init_client(layout, weights), algorithm.broadcast(server)
    results = [train_client(ClientTask(worker_view(bench.experiment), 1, client, weights, sent, slots))
               for client in (2, 0, 1)]  # fmt: skip
    finished = [helpers.serve(algorithm, server, order, layout, 6).weights for order in (results, results[::-1])]
    np.testing.assert_allclose(finished[0], finished[1], rtol=1e-6, atol=1e-7)


# A gradient is no displacement: FedDUAL's head would move by it even where the clients did not.
DISPLACEMENTS = {"feddual": {"algorithm__update_source": "pseudo", "algorithm__mask": "all"}}


@every_algorithm
@pytest.mark.parametrize(
    ("weighting", "epochs", "copies"), [("uniform", 2, 1), ("uniform", 2, 3), ("num_examples", 2, 3), ("uniform", 0, 3)]
)
def test_identical_clients_agree_and_the_server_takes_their_model(name, weighting, epochs, copies):
    """Same data, same seed: y_k = y bit for bit, and x' = y, also for one client; without epochs y = x.

    FedDyn's server goes on: h = -alpha copies / 6 (y - x), so x' = y - h / alpha = y + copies / 6 (y - x).
    """
    settings = {"training__weighting": weighting, "training__local_epochs": epochs, **DISPLACEMENTS.get(name, {})}
    bench = workbench(worker_view(asked(name, **settings)))
    algorithm, layout, weights = bench.algorithm, bench.network.layout, bench.initial_weights()
    server = ServerState(weights, algorithm.init_server(layout, weights))
    slots = algorithm.init_client(layout, weights)
    task = ClientTask(worker_view(bench.experiment), 1, 2, weights, algorithm.broadcast(server), slots)
    results = [train_client(task) for _ in range(copies)]
    y = results[0].weights
    assert all((result.weights == y).all() for result in results)
    assert (y == weights).all() == (epochs == 0)
    expected = y + copies / 6 * (y - weights) if name == "feddyn" else y
    found = helpers.serve(algorithm, server, results, layout, 6).weights
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@every_algorithm
def test_with_clients_of_one_size_both_weightings_agree(name, tmp_path):
    a, b = (
        run(name, tmp_path / weighting, partition={"name": "iid", "num_clients": 6}, training__weighting=weighting)
        for weighting in ("uniform", "num_examples")
    )
    assert set(a.clients["num_examples"]) == {40}
    np.testing.assert_allclose(weights_of(a), weights_of(b), rtol=1e-5, atol=1e-6)


@every_algorithm
def test_a_client_that_is_not_finite_is_set_aside_and_recorded(name, tmp_path, monkeypatch):
    from feddual.training import workbench

    good = workbench.train_client

    def broken(task):
        result = good(task)
        if task.round_index == 2:
            result.weights[0] = np.nan
        return result

    monkeypatch.setattr(workbench, "train_client", broken)
    done = run(name, tmp_path / "a")
    assert done.metrics["num_set_aside"].tolist() == [0, 3, 0]
    assert done.clients.groupby("round")["finite"].all().tolist() == [True, False, True]
    assert np.isfinite(weights_of(done)).all()


def test_state_reaches_the_disk_and_comes_back(tmp_path):
    done = run(
        "tests.helpers:Counting", tmp_path / "a", training__rounds=4, checkpoint__every=1, checkpoint__keep="all"
    )
    files = RunDir(done.path)
    seen = {client: 0 for client in range(6)}
    for round_index in range(1, 5):
        for client in done.clients.query("round == @round_index")["client"]:
            seen[client] += 1
        checkpoint = files.read_checkpoint(round_index)
        assert checkpoint.server_slots["rounds"].tolist() == [round_index]
        counts = {c: files.read_client_state(c, d)["rounds"][0] for c, d in checkpoint.client_states.items()}
        assert counts == {client: count for client, count in seen.items() if count}
    assert done.metrics["server_rounds"].tolist() == [1, 2, 3, 4]


def test_fedavg_with_full_participation_and_one_full_batch_is_one_step_of_gradient_descent(tmp_path):
    """Weighted by examples, the mean of one-step clients is a step on the pooled mean loss: exactly centralised GD."""
    from tests import reference

    experiment = tiny(
        training__rounds=1, training__clients_per_round=6, training__local_epochs=1, training__batch_size=240,
        training__optimizer="sgd", training__learning_rate=0.5, training__weighting="num_examples",
    )  # fmt: skip
    done = api.run(experiment, out=tmp_path / "a", progress=False)
    bench = workbench(worker_view(experiment))
    x, y = bench.federation.train(np.arange(240))
    start = bench.initial_weights().astype(np.float64)
    _, gradient = reference.mlp_loss_and_gradient(start, x.astype(np.float64), y, [6, 8, 4])
    np.testing.assert_allclose(weights_of(done), start - 0.5 * gradient, rtol=1e-5, atol=1e-6)


def test_the_two_weightings_by_hand():
    from feddual import aggregation

    acc = aggregation.add(None, np.float32([1, -2]), 1.0)
    more = aggregation.add(acc, np.float32([5, 2]), 3.0)
    assert aggregation.mean(more).tolist() == [4.0, 1.0]
    assert more is acc  # an accumulator, and says so: one vector is held, however many are added


TENTH = """
from dataclasses import replace
from feddual.algorithms._base import Algorithm

class Tenth(Algorithm):
    def finish(self, server, acc, layout, num_clients):
        return replace(server, weights=acc), {}

    def accumulate(self, acc, result, server):
        return result.weights  # whoever comes last: the order of clients matters
"""


def test_one_more_file_is_covered_unasked(tmp_path):
    """A copy of the package with a tenth algorithm that is wrong: the sheet above finds the file and the fault."""
    import re
    import shutil
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).parents[3]
    for folder in ("feddual", "tests"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    (tmp_path / "feddual/algorithms/tenth.py").write_text(TENTH)

    def sheet(*arguments):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/feddual/algorithms/test_contract.py",
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout

    listed = sheet("--collect-only")
    assert set(re.findall(r"::(\w+)\[.*tenth", listed)) == set(re.findall(r"::(\w+)\[.*fedavg", listed))
    found = sheet("-k", "tenth and (order or slots)")
    assert re.search(r"FAILED .*test_the_order_of_clients_does_not_matter\[tenth\]", found)
    assert "1 failed, 1 passed" in found

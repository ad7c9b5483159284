"""FedDUAL with state between rounds: a memory of all clients' displacements, and SCAFFOLD's control variates."""

import numpy as np
import pytest

from feddual import api
from feddual.algorithms import _memory
from feddual.algorithms._base import ClientResult, ServerState
from feddual.errors import UserError
from feddual.records.run_dir import RunDir
from feddual.training.engine import worker_view
from feddual.training.workbench import workbench
from tests import helpers, reference
from tests.feddual.algorithms.test_algorithms import Scaffold, Twin, check, experiment
from tests.helpers import tiny

# Softmax regression, plain cross-entropy: the kernel is the body, the four biases are the head.
HEAD = slice(24, 28)
PLAIN = {"algorithm__adaptive": False, "algorithm__update_source": "pseudo", "algorithm__mask": "output/bias"}
BARYCENTER = {"algorithm__epsilon_relative": False, **PLAIN, "algorithm__epsilon": 0.02, "algorithm__server_lr": 0.5}
MEMORY = {"algorithm__memory": "displacements"}
CONTROL = {"algorithm__control": "mean_grad"}


def weights_of(run):
    return np.concatenate([value.ravel() for value in run.weights().values()])


def head(x, moved, shares):
    """x - eta_s B({-displacements}) of the biases."""
    return x[HEAD] - 0.5 * reference.gibbs(-np.array(moved)[:, HEAD], shares, 0.02)


# --- memory


class Remembering(Twin):
    """x + sum_k p_k d_k over all clients seen so far; the head moves by half the barycenter of the same d_k."""

    def server(self, results):
        for client, w, n in results:
            self.state[client] = (n if self.settings.weighting == "num_examples" else 1, w - self.x)
        shares, moved = map(np.array, zip(*self.state.values(), strict=True))
        shares = shares / shares.sum()
        after = self.x + shares @ moved
        after[HEAD] = head(self.x, moved, shares)
        self.x = after


@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_memory_equals_its_twin(weighting, tmp_path):
    done = check("feddual", Remembering, tmp_path, rounds=5, training__weighting=weighting, **BARYCENTER, **MEMORY)
    seen = done.clients.groupby("round")["client"].apply(set)
    facts = done.metrics["barycenter"]
    for last in range(1, 6):  # the barycenter is of everybody who ever came
        assert len(facts.iloc[last - 1]["output/bias"]["client_weights"]) == len(set().union(*seen[:last]))
    assert len(set().union(*seen)) > 3


def test_a_round_with_memory_by_hand():
    """Client 0 moved by 4 when it last came and is away; client 1 came before, and moves by 2 now: not by the old 8."""
    asked = experiment("feddual", **PLAIN, **MEMORY, algorithm__barycenter="mean")
    bench = workbench(worker_view(asked))
    known = {
        "remembered": np.array([0, 1]),
        "shares": np.ones(2),
        "displacements": np.stack([np.full(28, value, np.float32) for value in (4, 8)]),
    }
    result = ClientResult(1, 10, np.full(28, 3, np.float32), {"source": np.full(4, -2, np.float32)})
    server = ServerState(np.ones(28, np.float32), known)
    after = helpers.serve(bench.algorithm, server, [result], bench.network.layout, 6)
    assert after.weights.tolist() == [1 + (4 + 2) / 2] * 28
    assert after.slots["displacements"][:, 0].tolist() == [4, 2]
    assert known["displacements"][:, 0].tolist() == [4, 8]  # state is a value


def test_renewing_a_memory_keeps_one_row_for_each_client_in_their_order():
    slots = _memory.empty(2)
    slots = _memory.renew(slots, [5, 2], [1.0, 3.0], [np.array([5, 5.5]), np.array([2, 2.5])])
    slots = _memory.renew(slots, [3, 5], [4.0, 6.0], [np.array([3, 3.5]), np.array([6, 6.5])])
    assert slots["remembered"].tolist() == [2, 3, 5]
    assert slots["shares"].tolist() == [3, 4, 6]
    assert slots["displacements"].tolist() == [[2, 2.5], [3, 3.5], [6, 6.5]]


def test_where_all_take_part_memory_changes_nothing(tmp_path):
    settings = {**BARYCENTER, "training__clients_per_round": 6}
    a, b = (
        api.run(experiment("feddual", **settings, algorithm__memory=memory), out=tmp_path / memory, progress=False)
        for memory in ("none", "displacements")
    )
    np.testing.assert_allclose(weights_of(a), weights_of(b), rtol=1e-5, atol=1e-6)


def test_memory_serves_the_mean_alone_too(tmp_path):
    """Without the barycenter, or with one that is the mean, all layers move by the mean of what is remembered."""
    settings = {**PLAIN, **MEMORY, "training__rounds": 4}
    off = {"algorithm__dynamic": False, "algorithm__update_source": "grad_end_mean"}
    a, b = (
        api.run(experiment("feddual", **{**settings, **more}), out=tmp_path / str(number), progress=False)
        for number, more in enumerate((off, {"algorithm__barycenter": "mean"}))
    )
    np.testing.assert_allclose(weights_of(a), weights_of(b), rtol=1e-5, atol=1e-6)


def test_the_memory_stays_with_the_server_and_reaches_the_disk(tmp_path):
    asked = tiny(algorithm__name="feddual", **{**PLAIN, **MEMORY, "algorithm__mask": "output"})
    done = api.run(asked, out=tmp_path / "a", progress=False)
    slots = RunDir(done.path).read_checkpoint(3).server_slots
    assert slots["remembered"].tolist() == sorted(set(done.clients["client"]))
    assert slots["displacements"].shape == (len(slots["remembered"]), 92)
    algorithm = workbench(worker_view(asked)).algorithm
    assert algorithm.broadcast(ServerState(np.zeros(92), slots)) == {}


def test_moving_statistics_are_the_rounds_mean(tmp_path):
    """A variance plus remembered changes of it might become negative."""
    settings = {**PLAIN, "algorithm__mask": "all", "model": {"name": "tests.helpers:user_model"}}
    first = {"algorithm__name": "feddual", **settings, "training__rounds": 1}
    a, b = (
        api.run(tiny(**first, algorithm__memory=memory), out=tmp_path / memory, progress=False)
        for memory in ("none", "displacements")
    )
    one, two = (RunDir(run.path).read_checkpoint(1) for run in (a, b))
    rest = slice(one.layout.num_trainable, None)
    assert len(one.weights[rest])
    np.testing.assert_array_equal(one.weights[rest], two.weights[rest])


def test_memory_is_of_displacements():
    said = r"algorithm\.memory: 'displacements' is of no use to algorithm\.update_source 'weights'; use .* 'pseudo'"
    with pytest.raises(UserError, match=said):
        experiment("feddual", **{**PLAIN, **MEMORY, "algorithm__update_source": "weights"})


# --- control variates


class Controlled(Scaffold):
    """SCAFFOLD's clients and controls; the head moves by half the barycenter of their displacements."""

    def server(self, results):
        before, moved = self.x, [w - self.x for _, w, *_ in results]
        super().server(results)
        self.x[HEAD] = head(before, moved, np.full(len(moved), 1 / len(moved)))


def test_control_equals_its_twin_and_the_server_control_is_the_mean(tmp_path):
    done = check("feddual", Controlled, tmp_path, rounds=5, **BARYCENTER, **CONTROL)
    files = RunDir(done.path)
    last = files.read_checkpoint(5)
    controls = [files.read_client_state(c, d)["control"].astype(np.float64) for c, d in last.client_states.items()]
    np.testing.assert_allclose(last.server_slots["control"], sum(controls) / 6, rtol=1e-5, atol=1e-6)
    assert (done.metrics["control_norm"] > 0).all()


@pytest.mark.parametrize("correction", ["pre", "post"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_its_two_halves_it_is_scaffold_bit_for_bit(optimizer, correction, tmp_path):
    common = {"training__optimizer": optimizer, "training__rounds": 4, "algorithm__correction": correction}
    halves = {"algorithm__adaptive": False, "algorithm__dynamic": False}
    a = api.run(experiment("feddual", **common, **halves, **CONTROL), out=tmp_path / "a", progress=False)
    b = api.run(experiment("scaffold", **common), out=tmp_path / "b", progress=False)
    np.testing.assert_array_equal(weights_of(a), weights_of(b))


def test_controls_are_of_the_adaptive_loss_and_stand_beside_the_last_accuracy(tmp_path):
    """Half the cross-entropy has half the gradient; a client keeps both of its slots."""
    halved = {"algorithm__beta_mode": "fixed_half", "algorithm__divergence": "none", "training__local_epochs": 1}
    settings = {**PLAIN, **CONTROL, "training__batch_size": 500, "training__rounds": 1}
    plain = api.run(experiment("feddual", **settings, training__local_epochs=1), out=tmp_path / "a", progress=False)
    half = api.run(
        experiment("feddual", **{**settings, **halved, "algorithm__adaptive": True}), out=tmp_path / "b", progress=False
    )
    one, two = (RunDir(run.path).read_checkpoint(1).server_slots["control"] for run in (plain, half))
    np.testing.assert_allclose(two, one / 2, rtol=1e-5, atol=1e-7)
    last = api.run(
        experiment("feddual", **settings, algorithm__beta_mode="previous_participation"), out=tmp_path / "c",
        progress=False,
    )  # fmt: skip
    files = RunDir(last.path)
    for client, digest in files.read_checkpoint(1).client_states.items():
        assert set(files.read_client_state(client, digest)) == {"control", "accuracy"}

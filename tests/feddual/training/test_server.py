"""Server optimizers: by hand, against a twin, under every algorithm; nothing changes without one."""

import numpy as np
import pytest

import feddual
from feddual import algorithms, api
from feddual.experiment.schema import ServerAdaptive, ServerEma, ServerMomentum, ServerNone
from feddual.records.run_dir import RunDir
from feddual.training import server
from feddual.training.engine import worker_view
from feddual.training.workbench import workbench
from tests import reference
from tests.feddual.algorithms.test_algorithms import Twin, check
from tests.helpers import tiny

OPTIMIZERS = {
    "momentum": {"learning_rate": 0.5, "momentum": 0.75},
    "ema": {"decay": 0.75},
    "fedadam": {"learning_rate": 0.02, "beta1": 0.5, "beta2": 0.75, "tau": 0.01},
    "fedyogi": {"learning_rate": 0.02, "beta1": 0.5, "beta2": 0.75, "tau": 0.01},
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_algorithm = pytest.mark.parametrize("algorithm", [*algorithms.names(), "tests.helpers:Counting"])


def asked(name, **overrides):
    return tiny(**{"training__server": {"name": name, **OPTIMIZERS.get(name, {})}, **overrides})


def run(asked, out, **more):
    return api.run(asked, out=out, progress=False, **more)


def weights_of(run, round_index=None):
    return RunDir(run.path).read_checkpoint(round_index or run.checkpoints[-1]).weights


# --- formulas


def two_steps(settings):
    """Weights 1 and -2, and a moving statistic, towards two aggregated models; where both steps lead."""
    x, found = np.float32([1, -2, 5]), []
    slots = server.init(settings, x, 2)
    for aggregated in (np.float32([3, -1, 7]), np.float32([6, -2, 8])):
        x, slots = server.step(settings, x, aggregated, slots, 2)
        found.append(x.tolist())
    assert all(value.dtype == np.float32 for value in (x, *slots.values()))
    return found


def test_momentum_by_hand():
    """v = (2, 1), x = (1, -2) + 2 v = (5, 0); v = (2, 1) / 2 + (1, -2) = (2, -1.5), x = (5, 0) + 2 v = (9, -3)."""
    settings = ServerMomentum(name="momentum", learning_rate=2.0, momentum=0.5)
    assert two_steps(settings) == [[5, 0, 7], [9, -3, 8]]


def test_a_moving_average_by_hand():
    """3/4 (1, -2) + 1/4 (3, -1) = (1.5, -1.75); 3/4 of that + 1/4 (6, -2) = (2.625, -1.8125)."""
    settings = ServerEma(name="ema", decay=0.75)
    assert two_steps(settings) == [[3, -1, 7], [6, -2, 8]]
    slots = server.init(settings, np.float32([1, -2]), 2)
    for model, average in (([3, -1], [1.5, -1.75]), ([6, -2], [2.625, -1.8125])):
        slots = server.averaged(settings, np.float32(model), slots)
        assert server.tested(slots, np.float32(model)).tolist() == average
    with pytest.raises(feddual.UserError, match=r"'ema' averages one model, and this algorithm tests 3"):
        server.averaged(settings, np.zeros((3, 2)), slots)


def test_the_average_is_tested_and_nothing_else_changes(tmp_path):
    """The same weights and clients as without; the loss is that of the average, by hand from the checkpoints."""
    keep = {"checkpoint__every": 1, "checkpoint__keep": "all", "checkpoint__rounds": [0], "training__rounds": 3}
    plain, ema = run(tiny(**keep), tmp_path / "a"), run(asked("ema", **keep), tmp_path / "b")
    np.testing.assert_array_equal(weights_of(plain), weights_of(ema))
    assert (plain.path / "clients.jsonl").read_bytes() == (ema.path / "clients.jsonl").read_bytes()
    saved = [RunDir(plain.path).read_checkpoint(index).weights.astype(np.float64) for index in range(4)]
    average = saved[0]
    for model in saved[1:]:
        average = 0.75 * average + 0.25 * model
    bench = workbench(worker_view(tiny()))
    logits = bench.evaluator.logits(average.astype(np.float32), 0, len(bench.evaluator.labels))
    accuracy = float(np.mean(logits.argmax(1) == bench.evaluator.labels))
    assert ema.metrics["accuracy"].iloc[-1] == pytest.approx(accuracy)
    assert ema.metrics["loss"].iloc[-1] != plain.metrics["loss"].iloc[-1]


@pytest.mark.parametrize(("name", "second"), [("fedadam", [1.75, 1.0]), ("fedyogi", [2.0, 1.0])])
def test_the_first_adaptive_step_by_hand(name, second):
    """d = (2, 1), m = d / 4, and v, from tau^2 = 1: FedAdam 3/4 + d^2 / 4; FedYogi 1 + 4/4, and 1 where d^2 = v."""
    settings = ServerAdaptive(name=name, learning_rate=8.0, beta1=0.75, beta2=0.75, tau=1.0)
    expected = [1 + 8 * 0.5 / (second[0] ** 0.5 + 1), -2 + 8 * 0.25 / (second[1] ** 0.5 + 1)]
    np.testing.assert_allclose(two_steps(settings)[0], [*expected, 7], rtol=1e-6)


def test_fedyogi_shrinks_where_the_change_is_small():
    """v = 1, d^2 = 1/4: v - (1/4) (1/4) = 15/16, where FedAdam has 3/4 + 1/16 = 13/16."""
    for name, v in (("fedyogi", 15 / 16), ("fedadam", 13 / 16)):
        settings = ServerAdaptive(name=name, learning_rate=1.0, beta1=0.0, beta2=0.75, tau=1.0)
        after, slots = server.step(
            settings, np.zeros(1, np.float32), np.float32([0.5]), server.init(settings, np.zeros(1, np.float32), 1), 1
        )
        assert slots["second"].tolist() == [v]
        np.testing.assert_allclose(after, 0.5 / (v**0.5 + 1), rtol=1e-6)


@every_optimizer
def test_rounds_of_fedavg_equal_their_twin(name, tmp_path):
    class Smoothed(Twin):
        def server(self, results):
            sent = self.x
            super().server(results)
            self.x = reference.server_step(sent, self.x, self.state, name, **OPTIMIZERS[name])

    check("fedavg", Smoothed, tmp_path, training__server={"name": name, **OPTIMIZERS[name]})


# --- in a run


@every_algorithm
@pytest.mark.parametrize("name", ["momentum", "fedadam"])
def test_it_acts_once_on_what_any_algorithm_aggregates(name, algorithm, tmp_path):
    """The first round begins alike with and without: the next model follows from the start and the plain round's end.

    The algorithm's own state is what it is without.
    """
    plain, moved = (
        run(asked(which, algorithm__name=algorithm, training__rounds=1), tmp_path / which) for which in ("none", name)
    )
    start = workbench(worker_view(asked("none", algorithm__name=algorithm))).initial_weights()
    expected = reference.server_step(start, weights_of(plain), {}, name, **OPTIMIZERS[name])
    np.testing.assert_allclose(weights_of(moved), expected, rtol=1e-6, atol=1e-8)
    first, second = (RunDir(one.path).read_checkpoint(1) for one in (plain, moved))
    assert first.server_slots.keys() == second.server_slots.keys()
    for slot, value in first.server_slots.items():
        np.testing.assert_array_equal(second.server_slots[slot], value)
    assert first.client_states == second.client_states
    assert set(second.optimizer_slots) == ({"first", "second"} if name == "fedadam" else {"velocity"})


@every_optimizer
def test_stopping_and_resuming_equals_running_through(name, tmp_path):
    """Also with an algorithm that has slots of its own, and when a round is done again from its checkpoint."""
    own = {"algorithm__name": "tests.helpers:Counting", "checkpoint__rounds": [4]}
    whole = run(asked(name, training__rounds=5, **own), tmp_path / "whole")
    run(asked(name, training__rounds=3, **own), tmp_path / "parts")
    parts = run(asked(name, training__rounds=5, **own), tmp_path / "parts", resume=True)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00005.npz"):
        assert (whole.path / file).read_bytes() == (parts.path / file).read_bytes()
    feddual.replay(whole, 5, [], tmp_path / "replayed")
    np.testing.assert_array_equal(RunDir(tmp_path / "replayed").read_checkpoint(5).weights, weights_of(whole))


def test_a_slot_of_the_same_name_is_the_algorithms_own(tmp_path):
    done = run(asked("momentum", algorithm__name="tests.feddual.training.test_server:Named"), tmp_path / "a")
    last = RunDir(done.path).read_checkpoint(3)
    assert last.server_slots["velocity"].tolist() == [3]
    assert last.optimizer_slots["velocity"].shape == last.weights.shape


class Named(feddual.Algorithm):
    """Its slot has the name of the momentum's, and no other is shown to it."""

    def init_server(self, layout, weights):
        return {"velocity": np.zeros(1, np.float32)}

    def finish(self, server, acc, layout, num_clients):
        assert set(server.slots) == {"velocity"}
        state, facts = super().finish(server, acc, layout, num_clients)
        return type(state)(state.weights, {"velocity": server.slots["velocity"] + 1}), facts


@pytest.mark.parametrize(
    "neutral",
    [{"name": "none"}, {"name": "ema", "decay": 0.0}, {"name": "momentum", "momentum": 0.0, "learning_rate": 1.0}],
)
def test_neutral_settings_change_no_bit(neutral, tmp_path):
    plain = run(tiny(), tmp_path / "plain")
    same = run(tiny(training__server=neutral), tmp_path / "same")
    for file in ("metrics.jsonl", "clients.jsonl"):
        assert (plain.path / file).read_bytes() == (same.path / file).read_bytes()
    np.testing.assert_array_equal(weights_of(plain), weights_of(same))


def test_without_one_nothing_is_done_or_kept(tmp_path):
    aggregated = np.float32([1, 2])
    weights, slots = server.step(ServerNone(), np.float32([0, 0]), aggregated, {}, 2)
    assert weights is aggregated
    assert slots == server.init(ServerNone(), aggregated, 2) == {}
    done = run(tiny(), tmp_path / "a")
    with np.load(done.path / "checkpoints" / "round-00003.npz") as file:
        assert set(file.files) == {"weights", "layout", "client_states"}


def test_moving_statistics_take_the_aggregated_value(tmp_path):
    """Batch normalisation's mean and variance are those of the round without an optimizer; its weights are not."""
    plain, moved = (
        run(asked(name, model={"name": "tests.helpers:user_model"}, training__rounds=1), tmp_path / name)
        for name in ("none", "momentum")
    )
    layout = RunDir(plain.path).read_checkpoint(1).layout
    assert layout.size > layout.num_trainable
    a, b = weights_of(plain), weights_of(moved)
    np.testing.assert_array_equal(a[layout.num_trainable :], b[layout.num_trainable :])
    assert (a[: layout.num_trainable] != b[: layout.num_trainable]).mean() > 0.5


def test_a_round_without_a_finite_client_leaves_model_and_state(tmp_path, monkeypatch):
    from feddual.training import workbench

    good = workbench.train_client

    def broken(task):
        result = good(task)
        if task.round_index == 2:
            result.weights[0] = np.nan
        return result

    monkeypatch.setattr(workbench, "train_client", broken)
    done = run(asked("momentum", training__rounds=2, checkpoint__every=1), tmp_path / "a")
    before, after = (RunDir(done.path).read_checkpoint(index) for index in (1, 2))
    np.testing.assert_array_equal(before.weights, after.weights)
    np.testing.assert_array_equal(before.optimizer_slots["velocity"], after.optimizer_slots["velocity"])


def test_a_run_recorded_before_goes_on(tmp_path):
    """Its config has no such key."""
    import yaml

    whole = run(tiny(training__rounds=5), tmp_path / "whole")
    old = run(tiny(), tmp_path / "old")
    written = yaml.safe_load((old.path / "config.yaml").read_text())
    del written["training"]["server"]
    (old.path / "config.yaml").write_text(yaml.safe_dump(written))
    on = run(tiny(training__rounds=5), tmp_path / "old", resume=True)
    assert (on.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    with pytest.raises(feddual.UserError, match=r"training\.server\.name: the run has 'none', asked for 'ema'"):
        run(asked("ema", training__rounds=6), tmp_path / "old", resume=True)

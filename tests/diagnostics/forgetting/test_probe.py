"""The forgetting probe: a federation of two classes whose every number is known by hand, and what it refuses."""

import numpy as np
import pytest

import diagnostics
from diagnostics.forgetting import measures
from diagnostics.forgetting.probe import COLUMNS, QUANTITIES, classifier
from feddual import api, probes
from feddual._lazy import keras
from feddual.data.datasets import Dataset
from feddual.errors import UserError
from feddual.training.engine import worker_view
from feddual.training.workbench import workbench
from tests.helpers import tiny

RATE = 4.0
# One full-batch step of gradient descent at each of two clients, of which each holds one class.
TWO = {
    "dataset": {"name": "tests.diagnostics.forgetting.test_probe:two_points"},
    "model": {"name": "tests.diagnostics.forgetting.test_probe:two_lines"},
    "partition": {"name": "tests.helpers:natural_order", "num_clients": 2},
    "training__optimizer": "sgd", "training__learning_rate": RATE, "training__rounds": 1,
    "training__clients_per_round": 2, "training__local_epochs": 1, "training__batch_size": 100,
}  # fmt: skip


def two_points() -> Dataset:
    """Class 0 lies at (1, 2), class 1 at (-1, 2): four to train on and three to test on of each."""
    points = np.array([[1, 2], [-1, 2]], np.float32)
    train, test = np.repeat([0, 1], 4), np.repeat([0, 1], 3)
    return Dataset("two points", points[train], train, points[test], test)


def two_lines(input_shape, num_classes):
    """A linear model without a bias, which answers both rightly, by a margin of one."""
    kernel = keras.initializers.Constant([[0.5, -0.5], [0.0, 0.0]])
    dense = keras.layers.Dense(num_classes, use_bias=False, kernel_initializer=kernel, name="output")
    return keras.Sequential([keras.Input(input_shape), dense])


def values(table, name, **where):
    rows = table[table["quantity"] == name]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows["value"].tolist()


def test_two_clients_with_one_class_each_by_hand(tmp_path):
    """The margin of x is u.x with u = (-1, 0) at first. For its class 0 the first client takes u - 2 s x0, with
    s = RATE sigmoid(-1), and so answers 0 to everything: x1 has 1 - 2 s x0.x1 = 1 - 6 s < 0. The second mirrors it.
    Their mean u = (-1 - 2 s, 0) is right again, and surer: local training forgets all that averaging brings back."""
    run = api.run(tiny(**TWO), out=tmp_path / "run", probes=[diagnostics.ForgettingProbe()], progress=False)
    table = run.probe("forgetting")
    assert tuple(table.columns) == COLUMNS
    assert set(table["quantity"]) == set(QUANTITIES)
    assert values(table, "accuracy_before") == values(table, "accuracy_aggregated") == [1, 1]
    for client in (0, 1):
        own, other = {"client": client, "class": client}, {"client": client, "class": 1 - client}
        for name, here, there in (("accuracy_after", 1, 0), ("forgotten", 0, 1), ("lost", 0, -1)):
            assert (values(table, name, **own), values(table, name, **other)) == ([here], [there]), name
    assert values(table, "accuracy_held") == [1, 1]
    assert values(table, "accuracy_lacking") == [0, 0]
    # Features are the inputs, the same for all. The columns of the kernel begin at (1/2, 0) and (-1/2, 0); for class 0
    # they come to (1/2 + s, 2 s) and its opposite, for class 1 to (1/2 + s, -2 s) and its opposite.
    s = RATE / (1 + np.e)
    cosine = ((0.5 + s) ** 2 - (2 * s) ** 2) / ((0.5 + s) ** 2 + (2 * s) ** 2)
    assert values(table, "prototype_cosine") == values(table, "centred_cosine") == [1, 1]
    assert values(table, "classifier_cosine") == pytest.approx([cosine, cosine], abs=1e-5)
    # All examples of a class are one point, and two points are a simplex.
    for name in ("nc1", "nc2_equinorm", "nc2_equiangle", "nc2_simplex"):
        assert values(table, name) == pytest.approx([0], abs=1e-6)
    sure = 1 / (1 + np.exp(-1 - 2 * s))
    assert values(table, "ece") == pytest.approx([1 - sure], rel=1e-5)
    assert values(table, "own_accuracy") == [1, 1]
    assert [values(table, f"own_{name}") for name in ("mean", "worst_tenth", "spread")] == [[1], [1], [0]]
    assert values(table, "forward_passes") == [6 * (2 + 2) + 4 + 4]
    bins = diagnostics.ForgettingProbe.reliability(run.path / "probes/forgetting").query("count > 0")
    assert bins[["round", "count", "accuracy"]].values.tolist() == [[1, 6, 1]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    experiment = tiny(model__hidden=[7], training__rounds=2, checkpoint__keep="all", checkpoint__rounds=[0, 1, 2])
    asked = [diagnostics.ForgettingProbe(samples=33, own_clients=4, own_samples=9)]
    run = api.run(experiment, out=tmp_path_factory.mktemp("forgetting") / "run", probes=asked, progress=False)
    return run, workbench(worker_view(experiment)), run.probe("forgetting")


def answers(run, round_index, x):
    """Features and logits of the global model, in plain numpy."""
    weights = run.weights(round_index)
    hidden = np.maximum(x @ weights["dense1/kernel"] + weights["dense1/bias"], 0)
    return hidden, hidden @ weights["output/kernel"] + weights["output/bias"]


def test_the_global_model_is_the_servers_before_and_after(measured):
    run, bench, table = measured
    x, y = bench.federation.test()
    facts = (run.path / "probes/forgetting/facts.json").read_text()
    assert '"samples": 33' in facts
    whole = api.run(run.config, out=run.path.parent / "whole", probes=[diagnostics.ForgettingProbe()], progress=False)
    everything = whole.probe("forgetting")  # 1000 is more than there is: all of it
    for index in (1, 2):
        features, logits = answers(run, index, x)
        right = logits.argmax(1) == y
        expected = [right[y == label].mean() for label in range(4)]
        assert values(everything, "accuracy_aggregated", round=index) == pytest.approx(expected, rel=1e-5)
        before = answers(run, index - 1, x)[1].argmax(1) == y
        found = values(everything, "accuracy_before", round=index)
        assert found == pytest.approx([before[y == label].mean() for label in range(4)], rel=1e-5)
        collapse = measures.collapse_of(features.astype(float), y)
        assert values(everything, "nc1", round=index) == pytest.approx([collapse.nc1], rel=1e-3)
        assert values(everything, "ece", round=index) == pytest.approx([measures.reliability(logits, y).ece], rel=1e-3)
    assert values(table, "accuracy_before", round=2) == values(table, "accuracy_aggregated", round=1)


def test_own_accuracies_are_of_a_fixed_sample_of_fixed_clients(measured):
    run, bench, table = measured
    own = table[table["quantity"] == "own_accuracy"]
    first, second = (own[own["round"] == index]["client"].tolist() for index in (1, 2))
    assert first == second == sorted(first)
    assert len(first) == 4
    sizes = run.partition.sizes[first]
    passes = 33 * (3 + 2) + np.minimum(sizes, 9).sum()
    assert values(table, "forward_passes") == [passes, passes]
    whole = api.run(run.config, out=run.path.parent / "own", probes=[diagnostics.ForgettingProbe()], progress=False)
    for client, value in (
        whole.probe("forgetting")
        .query("quantity == 'own_accuracy' and round == 2")[["client", "value"]]
        .itertuples(index=False)
    ):
        x, y = bench.federation.client(client)
        assert value == pytest.approx((answers(run, 2, x)[1].argmax(1) == y).mean(), rel=1e-5)


def test_the_classifier_is_the_last_dense_layer_a_row_per_class(measured):
    run, bench, _ = measured
    layout = bench.network.layout
    weights = run._dir.read_checkpoint(2).weights
    np.testing.assert_array_equal(classifier(layout, weights, 4), run.weights(2)["output/kernel"].T)
    assert classifier(layout, weights, 5) is None


def test_clients_that_are_set_aside_have_no_row(tmp_path):
    experiment = tiny(training__optimizer="sgd", training__learning_rate=1e30, training__rounds=2)
    run = api.run(experiment, out=tmp_path / "run", probes=[diagnostics.ForgettingProbe()], progress=False)
    aside = run.clients.query("not finite")[["round", "client"]].values.tolist()
    table = run.probe("forgetting")
    heard = table[table["quantity"] == "accuracy_after"][["round", "client"]].values.tolist()
    assert aside
    assert not [one for one in aside if one in heard]


@pytest.mark.parametrize("settings", [{"samples": 0}, {"own_clients": -1}, {"own_samples": 2.5}, {"samples": True}])
def test_wrong_settings_are_refused_before_training(settings):
    (name, value) = next(iter(settings.items()))
    with pytest.raises(UserError, match=f"forgetting: {name} must be a whole number from 1, got {value}"):
        diagnostics.ForgettingProbe(**settings)
    with pytest.raises(UserError, match="every must be at least 1"):
        probes.create({"name": "forgetting", "every": 0})


def test_it_is_asked_for_on_the_command_line(tmp_path):
    asked = probes.parse("forgetting@every=5,samples=200")
    probe = probes.create(asked)
    assert (probe.schedule.every, probe.samples) == (5, 200)
    with pytest.raises(UserError, match="nothing was recorded here by the probe `forgetting`"):
        diagnostics.ForgettingProbe.read(tmp_path)

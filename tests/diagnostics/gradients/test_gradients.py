"""Gradient norms: every definition against numbers known by hand, and a probe that changes nothing."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import diagnostics
import feddual
from diagnostics import gradients
from diagnostics.__main__ import app
from diagnostics.gradients import Groups
from diagnostics.gradients.contract import Halves, probe_set, random_halves
from diagnostics.gradients.definitions.cka import gram
from diagnostics.gradients.definitions.dissimilarity import dissimilarity
from diagnostics.gradients.definitions.drift_diversity import drift_diversity
from feddual import algorithms, api
from feddual._lazy import keras
from feddual.errors import UserError
from feddual.records.identity import Replicate
from feddual.training.engine import worker_view
from feddual.training.workbench import workbench
from tests import reference
from tests.helpers import tiny

SIZES = [6, 8, 4]
RATE = 0.1
# One full-batch step of gradient descent: w_k = w - RATE g_k, so that everything about w_k is known too.
ONE_STEP = {
    "training__optimizer": "sgd",
    "training__learning_rate": RATE,
    "training__local_epochs": 1,
    "training__batch_size": 500,
}
ALL = ["A", "B", "C", "F", "G", "I", "cka", "J", "A'", "N"]


def probe(**settings):
    return diagnostics.GradientNormProbe(**{"every": 1, "definitions": ALL, **settings})


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A round of full-batch steps with every definition, and the clients' gradients from the numpy twin."""
    experiment = tiny(**ONE_STEP, training__rounds=1, checkpoint__rounds=[0])
    out = tmp_path_factory.mktemp("gradients") / "run"
    run = api.run(experiment, out=out, probes=[probe()], progress=False)
    bench = workbench(worker_view(experiment))
    weights = bench.initial_weights().astype(np.float64)
    clients = run.clients["client"].tolist()

    def gradient(w, x, y):
        return reference.mlp_loss_and_gradient(w, x.astype(np.float64), y, SIZES)[1]

    found = {client: gradient(weights, *bench.federation.client(client)) for client in clients}
    return run, bench, weights, found, gradient


def norms(vector):
    """Of the two layers of SIZES, kernel and bias together."""
    return np.array([np.linalg.norm(vector[:56]), np.linalg.norm(vector[56:])])


def recorded(run, name, how="raw", client=None):
    frame = run.probe("gradient-norms")
    rows = frame[(frame["definition"] == name) & (frame["normalisation"] == how)]
    rows = rows[rows["client"].isna()] if client is None else rows[rows["client"] == client]
    assert rows["layer"].tolist() == ["dense1", "output"]
    return rows["value"].to_numpy()


def test_every_definition_on_one_step_of_gradient_descent(measured):
    """With w_k = w - r g_k: drift is r ||g_k||, per step ||g_k||, the mini-batch's norm ||g_k|| as well."""
    run, bench, weights, found, gradient = measured
    mean = np.mean(list(found.values()), axis=0)
    for client, g in found.items():
        x, y = bench.federation.client(client)
        end = gradient(weights - RATE * g, x, y)
        cosine = [
            a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in ((g[:56], mean[:56]), (g[56:], mean[56:]))
        ]
        expected = {
            "client_at_global": norms(g),
            "drift": RATE * norms(g),
            "drift_per_step": norms(g),
            "minibatch": norms(g),
            "minibatch_own": norms(g),
            "local_end": norms(end),
            "published": len(y) * norms(end),
            "cosine": cosine,
        }
        for name, values in expected.items():
            np.testing.assert_allclose(recorded(run, name, client=client), values, rtol=2e-4, err_msg=name)
    squares = np.array([norms(g) ** 2 for g in found.values()])
    x, y = bench.federation.test()
    order = np.random.default_rng(0).permutation(len(y))[:1000]
    of_all = {
        "global": norms(mean),
        "dissimilarity": squares.mean(0) / norms(mean) ** 2,
        "drift_pooled": RATE * norms(mean),
        "drift_diversity": squares.sum(0) / norms(3 * mean) ** 2,
        "server": norms(gradient(weights, x[order], y[order])),
    }
    for name, values in of_all.items():
        np.testing.assert_allclose(recorded(run, name), values, rtol=2e-4, err_msg=name)
    assert (of_all["dissimilarity"] > 1.1).all()


def test_normalisations(measured):
    run, _, weights, found, _ = measured
    client = min(found)
    g = norms(found[client])
    sizes = np.array([56, 36])
    expected = {
        "rms": g / np.sqrt(sizes),
        "relative": g / norms(weights),
        "scale_free": g * norms(weights),
        "share": g**2 / np.sum(g**2),
    }
    for how, values in expected.items():
        np.testing.assert_allclose(recorded(run, "client_at_global", how, client), values, rtol=2e-4)


def test_scale_free_norms_survive_a_layer_that_is_rescaled_and_taken_back():
    """w1 -> 10 w1, w2 -> w2 / 10 leaves a linear chain's function; the gradients become g1 / 10 and 10 g2."""
    raw, weights = np.array([3.0, 0.5]), np.array([2.0, 7.0])
    other = gradients.normalise(raw * [0.1, 10], "scale_free", np.ones(2), weights * [10, 0.1])
    np.testing.assert_allclose(other, gradients.normalise(raw, "scale_free", np.ones(2), weights))
    assert not np.allclose(raw * [0.1, 10], raw)


def test_two_halves_are_unbiased_on_a_quadratic():
    """f_i(w) = ||w - c_i||^2 / 2 has the gradient w - c_i. Over all pairs of single draws the estimates average to
    ||g||^2 and to the trace of the covariance exactly, while the plain norm is too large by that trace."""
    layout = workbench(worker_view(tiny(model__hidden=[]))).network.layout
    groups = Groups(layout)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, layout.size))
    mean = -centres.mean(0)
    pairs = [gradients.two_halves(groups, -a, -b, 1) for a, b in itertools.product(centres, centres)]
    square, trace = np.mean(pairs, axis=0)
    np.testing.assert_allclose(square, groups.squares(mean), rtol=1e-10)
    np.testing.assert_allclose(trace, [np.trace(np.cov(centres.T, bias=True))], rtol=1e-10)
    plain = np.mean([groups.squares(-c) for c in centres], axis=0)
    np.testing.assert_allclose(plain, square + trace, rtol=1e-10)


def test_halves_of_data_in_class_order_are_dealt_at_random():
    """Four examples with the gradient 3, then four with -1: halves in this order say -3 of a square that is 1.

    Over all splits the product averages to 1 - s^2 / 8 = 3 / 7, with s^2 = 32 / 7 the examples' variance: the square
    without what a mean of eight noisy values adds to it.
    """
    values = np.repeat([3.0, -1.0], 4)
    assert values[:4].mean() * values[4:].mean() == -3

    def product(rows):
        return values[rows].mean() * values[np.setdiff1d(np.arange(8), rows)].mean()

    assert np.mean([product(list(rows)) for rows in itertools.combinations(range(8), 4)]) == pytest.approx(3 / 7)
    dealt = [random_halves(np.arange(8), 1, index, client) for index in range(60) for client in range(20)]
    assert all(sorted([*one, *two]) == list(range(8)) and len(one) == 4 for one, two in dealt)
    drawn = [product(one) for one, _ in dealt]
    assert np.mean(drawn) == pytest.approx(3 / 7, abs=4 * np.std(drawn) / np.sqrt(len(drawn)))
    assert [list(part) for part in random_halves(np.arange(8), 1, 2, 3)] == [
        list(part) for part in random_halves(np.arange(8), 1, 2, 3)
    ]


def test_halves_that_differ_by_an_example_are_unbiased_too():
    """Three examples of variance s^2: E||g'||^2 = ||g||^2 + s^2 with one, + s^2 / 2 with two of them."""
    groups = Groups(workbench(worker_view(tiny(model__hidden=[]))).network.layout)
    found = []
    for draw in itertools.product([0.0, 2.0], repeat=3):  # mean 1, variance 1
        first, second = np.zeros(groups.sizes[0]), np.zeros(groups.sizes[0])
        first[0], second[0] = draw[0], np.mean(draw[1:])
        found.append(Halves(groups, first, second, (1, 2)).without_noise)
    square, trace = np.mean(found, axis=0)
    assert (square[0], trace[0]) == (pytest.approx(1), pytest.approx(1))


def test_the_root_cut_off_at_zero_is_not_right_on_average_and_the_signed_square_is():
    """The gradient is 0, its halves are 1 or -1 alike often: products 1 and -1, A' 1 and 0, on average 1/2."""
    groups = Groups(workbench(worker_view(tiny(model__hidden=[]))).network.layout)
    unit = np.zeros(groups.sizes[0])
    unit[0] = 1
    seen = [
        SimpleNamespace(groups=groups, halves=Halves(groups, a * unit, b * unit, (1, 1)))
        for a, b in itertools.product([1, -1], repeat=2)
    ]
    root, square = (
        np.mean([gradients.definition(letter).at_client(one)[0] for one in seen]) for letter in ("A'", "A2")
    )
    assert (root, square) == (0.5, 0.0)


def test_a_partition_in_class_order_is_measured_on_mixed_halves(tmp_path):
    """Partition `published` lists a client's examples class by class; what is recorded is the twin's, to the row."""
    experiment = tiny(**ONE_STEP, training__rounds=1, partition__name="published", partition__alpha=0.3)
    run = api.run(experiment, out=tmp_path / "run", probes=[probe(definitions="A")], progress=False)
    bench = workbench(worker_view(experiment))
    weights = bench.initial_weights().astype(np.float64)
    sizes, ordered = bench.federation.partition.sizes, []
    for client in run.clients["client"].tolist():
        x, y = bench.federation.client(client)
        assert (np.diff(y) >= 0).all()

        def square(one, two, x=x, y=y):
            both = [
                reference.mlp_loss_and_gradient(weights, x[part].astype(float), y[part], SIZES)[1]
                for part in (one, two)
            ]
            return np.array([both[0][:56] @ both[1][:56], both[0][56:] @ both[1][56:]])

        rows = probe_set(client, len(y), 256)
        dealt = random_halves(rows, experiment.seed, 1, client)
        found = recorded(run, "client_at_global_square", client=client)
        np.testing.assert_allclose(found, square(*dealt), rtol=1e-3, atol=1e-7)
        unbiased = recorded(run, "client_at_global_unbiased", client=client)
        np.testing.assert_allclose(unbiased, np.sqrt(np.maximum(found, 0)), rtol=1e-5)
        ordered.append((square(*np.split(rows, [len(rows) // 2])), found))
    in_order, at_random = np.mean(ordered, axis=0)
    assert sizes.max() > 20
    assert (in_order < 0.7 * at_random).all()


@pytest.mark.parametrize("name", algorithms.names())
def test_the_steps_gradient_is_cross_entropys_for_every_algorithm(name, measured, tmp_path):
    """In the first full-batch step all of them have the same weights and data, so H is the same, ||g_k||."""
    _, _, _, found, _ = measured
    experiment = tiny(**ONE_STEP, training__rounds=1, algorithm__name=name)
    run = api.run(experiment, out=tmp_path / "run", probes=[probe(definitions="A")], progress=False)
    for client, g in found.items():
        np.testing.assert_allclose(recorded(run, "minibatch", client=client), norms(g), rtol=2e-4)


def test_the_algorithms_own_gradient_has_a_name_of_its_own(measured, tmp_path):
    """FedProx, two full-batch steps: the second one is taken along g(w1) + mu (w1 - w), with w1 = w - r g(w)."""
    _, bench, weights, found, gradient = measured
    mu = 0.5
    two = ONE_STEP | {"training__local_epochs": 2, "training__rounds": 1}
    experiment = tiny(**two, algorithm__name="fedprox", algorithm__proximal_weight=mu)
    run = api.run(experiment, out=tmp_path / "run", probes=[probe(definitions="A")], progress=False)
    for client, g in found.items():
        second = gradient(weights - RATE * g, *bench.federation.client(client))
        pulled = second - mu * RATE * g
        plain, own = (np.sqrt((norms(g) ** 2 + norms(last) ** 2) / 2) for last in (second, pulled))
        np.testing.assert_allclose(recorded(run, "minibatch", client=client), plain, rtol=2e-4)
        np.testing.assert_allclose(recorded(run, "minibatch_own", client=client), own, rtol=2e-4)
        assert (own < 0.999 * plain).all()


def test_what_older_logs_say_of_all_clients_is_the_pooled_drift(measured, tmp_path):
    """There it stood beside the clients' values, under their name, and no table showed it."""
    run = measured[0]
    folder = run.path / "probes" / "gradient-norms"
    text = (folder / "rounds.jsonl").read_text().replace('"drift_pooled"', '"drift"')
    (tmp_path / "rounds.jsonl").write_text(text)
    (tmp_path / "facts.json").write_text((folder / "facts.json").read_text())
    pd.testing.assert_frame_equal(diagnostics.GradientNormProbe.read(tmp_path), run.probe("gradient-norms"))


def test_equal_clients_have_dissimilarity_one_and_diversity_one_over_k():
    squares = np.tile([[4.0, 9.0]], (5, 1))
    np.testing.assert_allclose(dissimilarity(np.full(5, 0.2), squares, squares[0]), 1)
    np.testing.assert_allclose(drift_diversity(squares, 25 * squares[0]), 1 / 5)


def test_cka_of_rotated_and_of_unrelated_representations():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert np.sum(gram(x) * gram(5 * x @ rotation + 2)) == pytest.approx(1)
    assert np.sum(gram(x) * gram(rng.normal(size=(40, 3)))) < 0.3


@pytest.mark.parametrize("name", algorithms.names())
def test_training_is_the_same_in_bits_with_every_definition_on(name, tmp_path):
    experiment = tiny(algorithm__name=name, training__rounds=2)
    plain = api.run(experiment, out=tmp_path / "plain", progress=False)
    probed = api.run(experiment, out=tmp_path / "probed", probes=[probe(every=2)], progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00002.npz"):
        assert (plain.path / file).read_bytes() == (probed.path / file).read_bytes(), file
    frame = probed.probe("gradient-norms")
    assert set(frame[frame["definition"] == "minibatch"]["round"]) == {1, 2}
    assert set(frame[frame["definition"] == "client_at_global"]["round"]) == {2}


def test_resumed_and_replayed_rounds_record_the_same(tmp_path):
    whole = api.run(tiny(checkpoint__keep="all"), out=tmp_path / "whole", probes=[probe()], progress=False)
    rounds = api.rounds(tiny(), out=tmp_path / "cut", probes=[probe()])
    for _ in range(3):
        next(rounds)
    rounds.close()
    (tmp_path / "cut/checkpoints/round-00003.npz").unlink(missing_ok=True)
    cut = api.run(tiny(), out=tmp_path / "cut", probes=[probe()], resume=True, progress=False)
    name = "probes/gradient-norms/rounds.jsonl"
    assert (cut.path / name).read_bytes() == (whole.path / name).read_bytes()

    before = sorted(path.name for path in whole.path.rglob("*"))
    offline = diagnostics.gradient_norms(whole, [3], definitions=ALL)
    online = whole.probe("gradient-norms")
    pd.testing.assert_frame_equal(offline, online[online["round"] == 3].reset_index(drop=True))
    added = set(path.name for path in whole.path.rglob("*")) - set(before)
    assert added == {"gradient-norms-offline"}
    with pytest.raises(UserError, match="the start of round 2 was not kept"):
        diagnostics.gradient_norms(cut, [2])


LARGEST = """
import numpy as np
from diagnostics.gradients import Definition

def at_client(client):
    return np.maximum(client.drift, 1e6)

def spread(seen):
    return np.ptp(seen.values("largest"), axis=0)

LARGEST = Definition("L", "max(||w - w_k||, 1e6)", "nothing", at_client=at_client, of_all=spread, at_local=True)
"""


def test_a_definition_of_ones_own_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(LARGEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    asked = probe(definitions=["mine:LARGEST", "A"])
    run = api.run(tiny(training__rounds=1), out=tmp_path / "run", probes=[asked], progress=False)
    frame = run.probe("gradient-norms")
    own = frame[(frame["definition"] == "largest") & (frame["normalisation"] == "raw")]
    assert set(own[own["client"].notna()]["value"]) == {1e6}
    assert own[own["client"].isna()]["value"].tolist() == [0.0, 0.0]
    assert gradients.per_round(frame, "mine:LARGEST").shape == (1, 2)
    with pytest.raises(UserError, match="is 'mine'; every gradient-norm definition is an instance of Definition"):
        gradients.definition("mine:__name__")


def test_every_definition_is_found_by_its_file_and_says_what_it_is():
    assert list(gradients.DEFINITIONS.values()) == sorted(gradients.DEFINITIONS.values(), key=lambda one: one.letter)
    for name, one in gradients.DEFINITIONS.items():
        assert gradients.definition(one.letter) is gradients.definition(name) is one
        assert one.formula
        assert one.at_client or one.of_all or one.across_clients
        assert not one.shares or one.shares in gradients.DEFINITIONS


def test_the_servers_gradient_needs_no_other_definition(measured, tmp_path):
    experiment = tiny(**ONE_STEP, training__rounds=1)
    alone = api.run(experiment, out=tmp_path / "run", probes=[probe(definitions="J")], progress=False)
    np.testing.assert_array_equal(recorded(alone, "server"), recorded(measured[0], "server"))
    assert "client_at_global" not in set(alone.probe("gradient-norms")["definition"])


def test_a_probe_holds_settings_only(tmp_path):
    """It travels to workers: a run leaves nothing in it, and what clients measured stays as they measured it."""
    used, fresh = probe(), probe()
    api.run(tiny(training__rounds=1), out=tmp_path / "run", probes=[used], progress=False)
    assert vars(used) == vars(fresh)
    result = SimpleNamespace(
        client_id=3, weights=np.ones(2, np.float32), probes={used.name: {"values": {}, "sent": {}}}
    )
    before = repr(result.probes)
    one = used.accumulate(None, result, np.zeros(2, np.float32), 2.0)
    both = used.accumulate(one, result, np.zeros(2, np.float32), 1.0)
    assert repr(result.probes) == before
    assert (one.clients, both.clients, both.weights) == ((3,), (3, 3), (2.0, 1.0))
    np.testing.assert_array_equal(both.weighted, [-3, -3])


def test_frozen_variables_are_absent_and_split_keeps_variables_apart(tmp_path):
    frozen = api.run(
        tiny(model__name="tests.helpers:frozen_model", dataset__shape=[6, 6, 1], training__rounds=1),
        out=tmp_path / "frozen",
        probes=[probe()],
        progress=False,
    )
    trainable = {entry.layer for entry in frozen._dir.read_checkpoint(1).layout.entries if entry.trainable}
    assert set(frozen.probe("gradient-norms")["layer"]) == trainable
    split = api.run(tiny(training__rounds=1), out=tmp_path / "split", probes=[probe(split=True)], progress=False)
    layers = ["dense1/kernel", "dense1/bias", "output/kernel", "output/bias"]
    assert list(dict.fromkeys(split.probe("gradient-norms").query("definition != 'cka'")["layer"])) == layers


def test_a_gradient_that_is_not_a_number_is_recorded_and_the_run_goes_on(tmp_path):
    experiment = tiny(training__optimizer="sgd", training__learning_rate=1e30, training__rounds=2)
    run = api.run(experiment, out=tmp_path / "run", probes=[probe()], progress=False)
    assert run.summary()["rounds"] == 2
    frame = run.probe("gradient-norms")
    assert frame[frame["definition"] == "local_end"]["value"].isna().any()


def test_tensorboard_gets_scalars_and_histograms(tmp_path):
    api.run(tiny(training__rounds=1), out=tmp_path / "run", probes=[probe(tensorboard=True)], progress=False)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run/events/gradient-norms"))
    events.Reload()
    tags = events.Tags()["tensors"]
    assert {"drift/output", "drift/output/clients", "dissimilarity_of_all/output"} <= set(tags)


# --- comparing


def frame_of(factor, seed, rounds=20):
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(99).lognormal(size=(rounds, 2))
    rows = [
        (index + 1, client, layer, "client_at_global", "rms", value * rng.lognormal(0, 0.05))
        for index in range(rounds)
        for client in range(3)
        for layer, value in zip(("a", "b"), common[index] * factor, strict=True)
    ]
    return pd.DataFrame(rows, columns=["round", "client", "layer", "definition", "normalisation", "value"])


def test_ratios_find_a_known_factor():
    table = gradients.ratios([frame_of(1, i) for i in range(3)], [frame_of([2, 5], 10 + i) for i in range(3)], ["A"])
    assert table["ratio"].tolist() == pytest.approx([2, 5], rel=0.03)
    assert (table["low"] < table["ratio"]).all()
    assert (table["ratio"] < table["high"]).all()
    assert (table["high"] / table["low"] < 1.4).all()  # Student's t with two degrees of freedom
    assert (table["all_low"] < table["low"]).all()
    assert table["runs"].tolist() == [3, 3]
    assert table["comparisons"].tolist() == [2, 2]  # layers
    alone = gradients.ratios([frame_of(1, 0)], [frame_of(2, 1)], ["A"])
    assert alone[["low", "high", "all_low", "all_high"]].isna().all(axis=None)
    with pytest.raises(UserError, match="in pairs"):
        gradients.ratios([frame_of(1, 0)], [], ["A"])
    with pytest.raises(UserError, match="allowed: A client_at_global"):
        gradients.definition("Z")


def test_rounds_of_a_signed_square_are_averaged_before_the_ratio():
    """2, -1 and 5, mean 2, against 1 in each round; a norm that is 0 in a round leaves it out, and says so."""

    def frame(name, values):
        rows = [(at, 0, "a", name, "raw", value) for at, value in enumerate(values, 1)]
        return pd.DataFrame(rows, columns=["round", "client", "layer", "definition", "normalisation", "value"])

    squares = [frame("client_at_global_square", values) for values in ([1.0, 1, 1], [2.0, -1, 5])]
    (row,) = gradients.ratios(squares[:1], squares[1:], ["A2"]).to_dict("records")
    assert (row["ratio"], row["rounds"]) == (pytest.approx(2), 3)
    middle, low, high = gradients.bands(squares, "A2")
    assert (middle["a"].tolist(), low[1, 0], high[2, 0]) == ([1.5, 0, 3], -1, 5)
    norms = [frame("client_at_global", values) for values in ([1.0, 1, 1], [2.0, 0, 8])]
    (row,) = gradients.ratios(norms[:1], norms[1:], ["A"], "raw").to_dict("records")
    assert (row["ratio"], row["rounds"]) == (pytest.approx(4), 2)


def test_ratios_are_read_from_a_file_only_if_it_is_of_these_runs(tmp_path):
    which = [Replicate(42, seed) for seed in range(3)]
    groups = {
        "even": {which[seed]: frame_of(1, seed) for seed in range(3)},
        "skewed": {which[1]: frame_of(2, 3), which[2]: frame_of(2, 4)},
    }
    asked, file = {("skewed", "rms"): ["A"], ("milder", "rms"): ["A"]}, tmp_path / "ratios.json"
    made = gradients.ratio_tables(groups, "even", asked, file)
    assert not file.exists()  # drawing writes nothing
    assert set(made["against"]) == {"skewed"}
    assert set(made["runs"]) == {2}  # paired by seed
    gradients.ratio_tables(groups, "even", asked, file, write=True)
    again = gradients.ratio_tables(groups, "even", asked, file)
    assert again.to_dict("records") == made.to_dict("records")  # every digit
    file.write_text(file.read_text().replace('"layer": "a"', '"layer": "kept"'))
    assert "kept" in set(gradients.ratio_tables(groups, "even", asked, file)["layer"])
    groups["skewed"][which[1]] = frame_of(3, 3)
    assert "kept" not in set(gradients.ratio_tables(groups, "even", asked, file)["layer"])


def test_the_command_compares_runs_and_says_what_is_missing(measured, tmp_path):
    run = measured[0]
    result = CliRunner().invoke(app, ["gradients", str(run.path), str(run.path), "--definition", "A", "--json"])
    assert result.exit_code == 0, result.output
    assert [row["ratio"] for row in json.loads(result.stdout)] == [1.0, 1.0]
    shown = CliRunner().invoke(app, ["gradients", str(run.path), "--out", str(tmp_path / "t.csv")])
    assert "drift_diversity" in shown.stdout
    assert "dissimilarity" in (tmp_path / "t.csv").read_text()
    assert "||g_k||" in CliRunner().invoke(app, ["gradients", ".", "--explain"]).stdout
    plain = api.run(tiny(training__rounds=1), out=tmp_path / "plain", progress=False)
    failed = CliRunner().invoke(app, ["gradients", str(plain.path)])
    assert failed.exit_code == 2
    assert "--probe gradient-norms@every=5" in failed.stderr
    offline = CliRunner().invoke(app, ["gradients", str(plain.path), "--offline", "--definition", "A"])
    assert offline.exit_code == 0, offline.stderr


# --- plain Keras


def keras_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_the_callback_measures_on_a_fixed_batch_and_changes_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype(np.float32), rng.integers(4, size=32)
    plain, probed = keras_model(), keras_model()
    callback = diagnostics.GradientNormCallback(x[:9], y[:9], every=2)
    plain.fit(x, y, epochs=4, verbose=0)
    probed.fit(x, y, epochs=4, verbose=0, callbacks=[callback])
    for a, b in zip(plain.get_weights(), probed.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    frame = callback.frame()
    assert sorted(set(frame["epoch"])) == [2, 4]
    last = frame.query("epoch == 4 and definition == 'client_at_global' and normalisation == 'raw'")
    weights = np.concatenate([value.ravel() for value in probed.get_weights()]).astype(np.float64)
    expected = reference.mlp_loss_and_gradient(weights, x[:9].astype(np.float64), y[:9], SIZES)[1]
    np.testing.assert_allclose(last["value"], norms(expected), rtol=1e-4)
    with pytest.raises(UserError, match="at least two"):
        diagnostics.GradientNormCallback(x[:1], y[:1])


def test_names_of_the_package():
    assert "GradientNormProbe" in dir(diagnostics)
    with pytest.raises(AttributeError, match="it has"):
        diagnostics.NoSuchThing  # noqa: B018
    assert feddual.replay

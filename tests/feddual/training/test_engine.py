import json

import numpy as np
import pytest

import feddual
from feddual import api, probes
from feddual.errors import UserError
from tests.helpers import NormProbe, tiny


def test_rounds_are_yielded_live_and_recorded(tmp_path):
    records = []
    for record in api.rounds(tiny(), out=tmp_path / "a"):
        rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
        assert len(rows) == record.round_index
        assert json.loads(rows[-1]) == record.metrics
        records.append(record)
    assert [record.round_index for record in records] == [1, 2, 3]
    run = feddual.open(tmp_path / "a")
    assert run.metrics["round"].tolist() == [1, 2, 3]
    assert len(run.clients) == 9
    assert set(run.timings) >= {
        "seconds",
        "client_seconds",
        "server_seconds",
        "evaluation_seconds",
        "peak_memory_bytes",
    }
    np.testing.assert_array_equal(np.concatenate([w.ravel() for w in run.weights().values()]), records[-1].weights)


def test_metrics_hold_only_what_config_and_seed_determine(tmp_path):
    run = api.run(tiny(), out=tmp_path / "a", progress=False)
    assert not [name for name in [*run.metrics, *run.clients] if "second" in name or "memory" in name]
    assert {"accuracy", "loss", "balanced_accuracy", "macro_f1", "kappa", "mcc", "auc", "g_mean", "per_class_accuracy",
            "train_loss", "bytes_up", "bytes_down", "num_set_aside", "update_norms"} <= set(run.metrics)  # fmt: skip
    assert run.metrics["bytes_up"].tolist() == [4 * 92 * 3] * 3  # 6*8+8 + 8*4+4 = 92 weights, 3 clients


def test_an_opened_run(tmp_path):
    run = api.run(tiny(), out=tmp_path / "a", progress=False)
    model = run.model()
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    weights = run.weights()
    hidden = np.maximum(x @ weights["dense1/kernel"] + weights["dense1/bias"], 0)
    np.testing.assert_allclose(
        model(x), hidden @ weights["output/kernel"] + weights["output/bias"], rtol=1e-5, atol=1e-6
    )
    assert run.partition.num_clients == 6
    assert run.histograms.sum() == 240
    assert run.environment["tensorflow"]
    assert "accuracy" in run._repr_html_()
    assert "round 3" in repr(run)
    with pytest.raises(UserError, match="no checkpoint of round 1; there are: 2, 3"):
        run.weights(1)
    with pytest.raises(UserError, match="not a run directory"):
        feddual.open(tmp_path)


def test_an_opened_run_shows_new_rounds_when_it_is_refreshed(tmp_path):
    run = api.run(tiny(training__rounds=1), out=tmp_path / "a", progress=False)
    assert (len(run.metrics), run.config.training.rounds) == (1, 1)
    api.run(tiny(training__rounds=2), out=tmp_path / "a", resume=True, progress=False)
    assert len(run.metrics) == 1
    assert run.refresh() is run
    assert (len(run.metrics), len(run.timings), run.config.training.rounds) == (2, 2, 2)


def test_evaluation_can_be_rarer_but_the_last_round_is_tested(tmp_path):
    run = api.run(tiny(evaluation__every=2), out=tmp_path / "a", progress=False)
    assert run.metrics["accuracy"].isna().tolist() == [True, False, False]


def test_probes_measure_on_schedule_and_change_nothing(tmp_path):
    plain = api.run(tiny(), out=tmp_path / "plain", progress=False)
    probed = api.run(tiny(), out=tmp_path / "probed", probes=[NormProbe(every=2)], progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00003.npz"):
        assert (plain.path / file).read_bytes() == (probed.path / file).read_bytes()
    frame = probed.probe("norm")
    assert frame["round"].tolist() == [2, 2, 2]
    expected = probed.clients.query("round == 2")["update_norm"]
    np.testing.assert_allclose(frame["norm"], expected, rtol=1e-5)
    configured = tiny(probes=[{"name": "tests.helpers:NormProbe", "rounds": [1]}])
    assert api.run(configured, out=tmp_path / "c", progress=False).probe("norm")["round"].tolist() == [1, 1, 1]


def test_schedules():
    due = lambda **keywords: [i for i in range(1, 101) if probes.Schedule(**keywords).due(i, 100)]  # noqa: E731
    assert due(every=25) == [25, 50, 75, 100]
    assert due(rounds=(3, 7)) == [3, 7]
    assert due(log_spaced=3) == [1, 10, 100]
    with pytest.raises(UserError, match="every must be at least 1"):
        probes.Schedule(every=0)


def test_probes_from_the_command_line():
    assert probes.parse("gradient-norms@every=5") == {"name": "gradient-norms", "every": 5}
    assert probes.parse("loss-surface@rounds=1+30,grid=5") == {"name": "loss-surface", "rounds": [1, 30], "grid": 5}
    with pytest.raises(UserError, match="expected NAME@key=value"):
        probes.parse("a@b")
    with pytest.raises(UserError, match=r"probes: 'no-such-probe' is unknown; allowed: forgetting, gradient-norms"):
        probes.create({"name": "no-such-probe"})
    with pytest.raises(UserError, match="does not take"):
        probes.create({"name": "tests.helpers:NormProbe", "colour": 1})


def test_ten_thousand_clients_start_in_seconds_and_memory_follows_the_active_ones(tmp_path):
    experiment = tiny(
        dataset__num_train=100_000, partition__name="dirichlet_clients", partition__num_clients=10_000,
        algorithm__name="tests.helpers:Counting", training__rounds=2, training__clients_per_round=5,
    )  # fmt: skip
    run = api.run(experiment, out=tmp_path / "a", progress=False)
    assert run.partition.num_clients == 10_000
    assert len(list((run.path / "client_state").iterdir())) == run.clients["client"].nunique() <= 10
    assert len(run.clients) == 10


def test_comparing_runs(tmp_path):
    a = api.run(tiny(), out=tmp_path / "a", progress=False)
    api.run(tiny(seed=1), out=tmp_path / "b", progress=False)
    frame = feddual.compare(a, tmp_path / "b", target=0.3)
    assert frame["seed"].tolist() == [0, 1]
    assert frame["accuracy"].iloc[0] == a.metrics["accuracy"].iloc[-1]


def test_summary_by_hand():
    from feddual.records.summary import summarise

    config = tiny(training__rounds=20).to_dict()
    rows = [{"round": i, "accuracy": 0.05 * i, "loss": 1.0, "num_clients": 3, "num_set_aside": 0, "update_norm": 1.0,
             "per_class_accuracy": [0.1] * 4} for i in range(1, 21)]  # fmt: skip
    found = summarise(config, rows, [{"round": i, "seconds": 2.0} for i in range(1, 21)], target=0.5)
    assert found["accuracy"] == pytest.approx(0.975)  # the last 10 % of 20 rounds: 0.95 and 1.00
    assert (found["final"], found["best"], found["best_round"]) == (1.0, 1.0, 20)
    assert (found["rounds_to_target"], found["rounds_to_target_mean5"]) == (10, 12)
    assert found["seconds_to_target"] == 20.0
    assert not found["diverged"]
    stuck = [row | {"accuracy": 0.255} for row in rows]
    assert summarise(config, stuck)["diverged"]
    assert summarise(config, [row | {"update_norm": float("nan")} for row in rows])["diverged"]


def test_export(tmp_path):
    import pandas as pd

    from feddual._lazy import keras
    from feddual.cli.export import export

    run = api.run(tiny(), out=tmp_path / "a", progress=False)
    (file,) = export(run.path, "keras")
    x = np.ones((2, 6), np.float32)
    np.testing.assert_array_equal(keras.models.load_model(file)(x), run.model()(x))
    assert pd.read_csv(export(run.path, "csv")[0])["round"].tolist() == [1, 2, 3]
    assert pd.read_parquet(export(run.path, "parquet", tmp_path / "out")[0])["round"].tolist() == [1, 2, 3]
    with pytest.raises(UserError, match="allowed: keras, csv, parquet"):
        export(run.path, "onnx")

import struct
import time

import pytest

from feddual import api
from feddual.errors import UserError
from feddual.records.sinks import scalars
from tests.helpers import tiny


def events(folder):
    """The scalars in TensorBoard's files, read with TensorBoard's own parser."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return {
        tag: [
            (event.step, struct.unpack("<f", event.tensor_proto.tensor_content)[0])
            for event in accumulator.Tensors(tag)
        ]
        for tag in accumulator.Tags()["tensors"]
    }


def test_tensorboard_shows_every_round_once_also_after_a_resume(tmp_path):
    api.run(tiny(sinks=["tensorboard"]), out=tmp_path / "a", progress=False)
    run = api.run(tiny(training__rounds=5, sinks=["tensorboard"]), out=tmp_path / "a", resume=True, progress=False)
    curves = events(tmp_path / "a" / "events")
    assert curves["accuracy"] == [(i + 1, pytest.approx(value)) for i, value in enumerate(run.metrics["accuracy"])]
    assert len(curves["update_norms/dense1"]) == 5


def test_what_counts_as_a_number():
    row = {"round": 3, "accuracy": 0.5, "update_norms": {"a": 1.0}, "per_class_accuracy": [0.1, None], "auc": None}
    assert scalars(row) == {"accuracy": 0.5, "update_norms/a": 1.0, "per_class_accuracy/0": 0.1}


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__
    monkeypatch.setattr(
        "importlib.import_module",
        lambda name, *rest: (_ for _ in ()).throw(ImportError(name)) if name == "wandb" else real(name),
    )
    from feddual.records.sinks import _need

    with pytest.raises(UserError, match=r"pip install 'feddual\[wandb\]'"):
        _need("wandb", "wandb")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow warns about its own plans
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_mlflow_local_store_continues_on_resume(store, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # SQLite beside the run is the default
    if store == "file":
        address = (tmp_path / "mlruns").as_uri()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases ask for this
    api.run(tiny(sinks=["mlflow"]), out=tmp_path / "a", progress=False)
    run = api.run(tiny(training__rounds=5, sinks=["mlflow"]), out=tmp_path / "a", resume=True, progress=False)
    client = MlflowClient(address)
    (logged,) = client.search_runs([client.get_experiment_by_name("feddual").experiment_id])
    history = client.get_metric_history(logged.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == list(zip(run.metrics["round"], run.metrics["accuracy"], strict=True))
    assert logged.data.params["training.batch_size"] == "16"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # W&B warns about its own plans
def test_wandb_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = api.run(tiny(sinks=["wandb"]), out=tmp_path / "a", progress=False)
    (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(120):  # W&B's own process writes it, on a busy machine some time later
        if found := b"accuracy" in file.read_bytes():
            break
        time.sleep(0.5)
    assert found

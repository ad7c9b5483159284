"""Where rounds are reported besides the run directory: TensorBoard, MLflow, Weights & Biases.

A sink gets every metrics row, those of earlier rounds first when a run is resumed, so it needs no state of its own that
a kill could spoil.
"""

import importlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.records.identity import flat

Row = Mapping[str, Any]


class Sink(Protocol):
    """Takes rows. It is made from the run's path, its config as plain values, and the rows recorded before a resume."""

    def record(self, row: Row) -> None:
        """Report a round.

        Args:
            row: Its row of metrics.jsonl.
        """

    def close(self) -> None:
        """The run has ended, or was interrupted."""


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row, per-class values spelled out."""
    found = {}
    for key, value in row.items():
        if isinstance(value, (int, float)) and key != "round":
            found[key] = float(value)
        elif isinstance(value, Mapping):
            found |= {f"{key}/{name}": number for name, number in value.items() if isinstance(number, (int, float))}
        elif isinstance(value, list):
            found |= {f"{key}/{number}": item for number, item in enumerate(value) if isinstance(item, (int, float))}
    return found


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"sinks: {extra!r} needs the package {module}: pip install 'feddual[{extra}]'") from error


class TensorBoard:
    """Curves under `events/`, rewritten from the metrics when a run is resumed."""

    def __init__(self, path: Path, config: Mapping[str, Any], history: Sequence[Row]):
        _need("tensorboard", "tensorboard")
        from feddual._lazy import tf

        shutil.rmtree(path / "events", ignore_errors=True)
        self._tf = tf
        self._writer = tf.summary.create_file_writer(str(path / "events"))
        for row in history:
            self.record(row)

    def record(self, row: Row) -> None:
        with self._writer.as_default(step=row["round"]):
            for name, value in scalars(row).items():
                self._tf.summary.scalar(name, value)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """One MLflow run, continued on resume; the tracking address is MLFLOW_TRACKING_URI or `mlruns` beside the run."""

    def __init__(self, path: Path, config: Mapping[str, Any], history: Sequence[Row]):
        _need("mlflow", "mlflow")
        from mlflow.tracking import MlflowClient

        default = f"sqlite:///{(path.parent / 'mlflow.db').resolve()}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default)
        found = self._client.get_experiment_by_name("feddual")
        experiment = found.experiment_id if found else self._client.create_experiment("feddual")
        where = f"tags.feddual_run = '{path.resolve()}'"
        runs = self._client.search_runs([experiment], where)
        if runs and history:
            self._run = runs[0].info.run_id
        else:
            self._run = self._client.create_run(experiment, run_name=path.name).info.run_id
            self._client.set_tag(self._run, "feddual_run", str(path.resolve()))
            for key, value in flat(config).items():
                self._client.log_param(self._run, key, str(value)[:500])
        logged = self._client.get_metric_history(self._run, "round")
        self._last = max((metric.step for metric in logged), default=0)
        for row in history:
            self.record(row)

    def record(self, row: Row) -> None:
        if row["round"] <= self._last:
            return
        for name, value in (scalars(row) | {"round": row["round"]}).items():
            self._client.log_metric(self._run, name, value, step=row["round"])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Wandb:
    """One W&B run named by the run directory; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, path: Path, config: Mapping[str, Any], history: Sequence[Row]):
        import hashlib

        wandb = _need("wandb", "wandb")
        identity = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        project, resume = os.environ.get("WANDB_PROJECT", "feddual"), "allow" if history else None
        named = {"project": project, "name": path.name, "id": identity, "dir": str(path)}
        self._run = wandb.init(**named, resume=resume, config=dict(config))
        self._last = self._run.step
        for row in history:
            self.record(row)

    def record(self, row: Row) -> None:
        if row["round"] >= self._last:
            self._run.log(scalars(row), step=row["round"])

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}


def create(name: str, path: Path, config: Mapping[str, Any], history: Sequence[Row]) -> Sink:
    """The sink of that name, with the rows recorded so far."""
    return plugins.find("sinks", name, "sinks")(path, config, history)

"""All runs under a folder, known by their resolved config, never by a folder's name."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Identity, Replicate, identity, replicate
from feddual.records.run_dir import RunDir
from feddual.records.study_dir import all_runs, study_of
from feddual.records.summary import summarise


@dataclass(frozen=True)
class Recorded:
    """One run on disk."""

    record: RunDir
    config: dict[str, Any]
    identity: Identity
    study: str | None  # the name of the study it belongs to

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def replicate(self) -> Replicate:
        return replicate(self.config)

    @property
    def seed(self) -> int:
        return self.replicate.seed

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"].get("name") or self.config["dataset"].get("path"))

    @property
    def is_timing(self) -> bool:
        """Whether it ran alone on the machine: studies of timings are named so."""
        return self.study is not None and self.study.split("-")[0] == "timing"

    @property
    def is_plain(self) -> bool:
        """Whether it ran without the exact accelerations."""
        runtime = self.config["runtime"]
        return not (runtime["cache_features"] and runtime["accelerate"])

    @cached_property
    def finished(self) -> bool:
        return self.record.rounds_done() >= self.config["training"]["rounds"]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.record.rows("metrics")

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        return self.record.rows("timings")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return summarise(self.config, self.metrics, self.timings)

    @cached_property
    def partition(self) -> dict[str, np.ndarray]:
        return self.record.read_partition()


class RunSet:
    """All runs under a folder, in run directories and in slim studies.

    Raises:
        UserError: When there is no such folder, or a config in it cannot be read.
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)
        found = all_runs(self.root)
        if not found and not self.root.is_dir():
            advice = "name one with run directories, or gather some with `python -m figures collect STUDY`"
            raise UserError(f"--runs: {self.root} is not a folder; {advice}")
        self._resolved: dict[str, dict[str, Any]] = {}  # what resolving gave, by all but name and seed
        self._studies: dict[Path, str | None] = {}  # names, by the runs' parents
        self.every = [self._read(run) for run in found]
        self.runs = [run for run in self.every if run.finished]
        self.unfinished = [run.path for run in self.every if not run.finished]

    def same(self, wanted: Identity | None, holding: Callable[[Recorded], bool] | None = None) -> list[Recorded]:
        """The runs of an experiment, one per draw of the clients and seed.

        Args:
            wanted: What identifies it; None has no runs.
            holding: Which of them count; by default all.

        Returns:
            In the order of draws, then seeds; where one ran twice, the one that was not for timing.
        """
        found = [run for run in self.runs if run.identity == wanted and (holding is None or holding(run))]
        once = {run.replicate: run for run in sorted(found, key=lambda run: run.is_timing, reverse=True)}
        return [once[which] for which in sorted(once)]

    def _read(self, run: RunDir) -> Recorded:
        values = run.read_config()
        try:
            if ":" not in values["algorithm"]["name"]:  # a user's own algorithm may not be importable here
                values = self._complete(values)
        except UserError:
            pass  # made by another version: it stands as it was recorded
        except (TypeError, KeyError) as error:
            raise UserError(f"{run.path}/config.yaml: not the config of a run; remove it from --runs") from error
        if run.path.parent not in self._studies:
            study = study_of(run.path, self.root)
            self._studies[run.path.parent] = None if study is None else study.read().get("name")
        return Recorded(run, values, identity(values), self._studies[run.path.parent])

    def _complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """With keys that are younger than the run filled in; done once for all seeds, since it takes a while."""
        own = {key: values[key] for key in ("name", "seed") if key in values}
        text = json.dumps({key: value for key, value in values.items() if key not in own})
        if text not in self._resolved:
            self._resolved[text] = config.resolve(values).to_dict()
        return self._resolved[text] | own

"""Recorded runs: found under a folder by their resolved config, never by a folder's name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from diagnostics.statistics import over_seeds
from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.run_dir import RunDir
from feddual.records.summary import summarise
from figures.paper import _rows
from figures.paper._rows import Identity

NOT_RUN = "not run"
WINDOW = 5  # rounds


class Drawing(NamedTuple):
    """What drawing a figure gives."""

    files: list[Path]
    frame: pd.DataFrame  # the numbers in it, tidy


@dataclass(frozen=True)
class Recorded:
    """One run on disk."""

    path: Path
    config: dict[str, Any]
    identity: Identity
    study: str | None  # the name of the study it belongs to

    @property
    def seed(self) -> int:
        return self.config["seed"]

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
    def metrics(self) -> list[dict[str, Any]]:
        return RunDir(self.path).rows("metrics")

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        return RunDir(self.path).rows("timings")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return summarise(self.config, self.metrics, self.timings)

    @cached_property
    def partition(self) -> dict[str, np.ndarray]:
        return RunDir(self.path).read_partition()


@dataclass(frozen=True)
class Tuned:
    """The settings a study chose for a row on held-out data."""

    row: str
    dataset: str
    settings: dict[str, Any]
    identity: Identity
    follows: str | None = None  # the row whose trials chose for this one too


@dataclass(frozen=True)
class Trial:
    """A run that was tested on held-out training data."""

    name: str
    dataset: str
    algorithm: str
    settings: dict[str, Any]  # in which it differs from the paper's experiment
    rounds: int
    accuracy: float


class Results:
    """All runs under a folder.

    Raises:
        UserError: When there is no such folder, or a config in it cannot be read.
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)
        if not self.root.is_dir():
            raise UserError(
                f"--runs: {self.root} is not a folder; name one with run directories, "
                "or gather some with `python -m figures collect STUDY`"
            )
        self.every = [self._read(path.parent) for path in sorted(self.root.rglob("config.yaml"))]
        self.runs = [run for run in self.every if run.summary["finished"]]
        self.unfinished = [run.path for run in self.every if not run.summary["finished"]]

    def of(self, dataset: str, row: str) -> list[Recorded]:
        """The runs of a table's row in the paper's setting, one per seed."""
        return self.same(_rows.paper_identity(dataset, row))

    def same(self, wanted: Identity | None) -> list[Recorded]:
        """The runs of an experiment, one per seed."""
        found = [run for run in self.runs if run.identity == wanted]
        by_seed = {run.seed: run for run in sorted(found, key=lambda run: run.is_timing, reverse=True)}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def timed(self, dataset: str, row: str, plain: bool) -> list[Recorded]:
        """The runs of a row that had the machine for themselves, whatever their number of rounds."""
        wanted = _rows.paper_identity(dataset, row)
        return [
            run
            for run in self.runs
            if run.is_timing
            and run.is_plain == plain
            and wanted is not None
            and run.identity.without_rounds == wanted.without_rounds
        ]

    @cached_property
    def tuned(self) -> dict[tuple[str, str], Tuned]:
        """What the studies' tuned.yaml files chose, by data set and row.

        Raises:
            UserError: When two of them chose differently for the same row and data set.
        """
        found: dict[tuple[str, str], Tuned] = {}
        places: dict[tuple[str, str], Path] = {}
        for path in sorted(self.root.rglob("tuned.yaml")):
            study = _yaml(path.with_name("study.yaml")) or {}
            rows, tried = study.get("rows", {}), (study.get("tune") or {}).get("rows", {})
            for entry in (_yaml(path) or {}).values():
                row = entry["row"]
                wanted = (rows.get(row) or _rows.overrides(row)) | entry["settings"]
                try:
                    experiment = config.resolve(entry["experiment"], wanted).to_dict()
                except UserError:
                    continue  # of a preset or a file that is gone; its runs cannot be recognised
                name = str(experiment["dataset"].get("name"))
                if entry["experiment"] != f"paper-{name}":
                    continue  # of a setting that is not the paper's
                follows = tried[row] if isinstance(tried.get(row), str) else None
                tuned = Tuned(row, name, entry["settings"], _rows.identity(experiment), follows)
                if found.setdefault((name, row), tuned).identity != tuned.identity:
                    raise UserError(
                        f"{row} on {name}: {path} chose other settings than {places[name, row]}; keep one of them"
                    )
                places.setdefault((name, row), path)
        return found

    def chosen(self, dataset: str, row: str) -> list[Recorded]:
        """A row's runs with the settings that were chosen for it, one per seed; FedDUAL's stand in its preset."""
        if (dataset, row) in self.tuned:
            return self.same(self.tuned[dataset, row].identity)
        return self.of(dataset, row) if row == "feddual-tuned" else []

    @cached_property
    def trials(self) -> list[Trial]:
        """The finished trials under the folder: runs, and the lines of tuning.json files."""
        found = {
            str(run.path): {"settings": _rows.differences(run.config), **run.summary}
            for run in self.runs
            if run.config["evaluation"].get("held_out")
        }
        for path in sorted(self.root.rglob("tuning.json")):
            found |= {f"{path.parent.name}/{name}": line for name, line in json.loads(path.read_text()).items()}
        return [
            Trial(name, line["dataset"], line["algorithm"], line["settings"], line["rounds"], line["accuracy"])
            for name, line in found.items()
        ]

    def _read(self, path: Path) -> Recorded:
        values = _yaml(path / "config.yaml")
        try:
            if ":" not in values["algorithm"]["name"]:  # a user's own algorithm may not be importable here
                values = config.resolve(values).to_dict()  # fills in keys that are younger than the run
        except UserError:
            pass  # made by another version: it stands as it was recorded
        except (TypeError, KeyError) as error:
            raise UserError(f"{path}/config.yaml: not the config of a run; remove the folder from --runs") from error
        return Recorded(path, values, _rows.identity(values), self._study(path))

    def _study(self, path: Path) -> str | None:
        for folder in (path, *path.parents):
            if (folder / "study.yaml").is_file():
                return (_yaml(folder / "study.yaml") or {}).get("name")
            if folder == self.root:
                break
        return None


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except FileNotFoundError:
        return None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML; collect it again or remove it") from error


# --- frames -----------------------------------------------------------------------------------------------------------


def per_round(runs: Sequence[Recorded], key: str) -> pd.DataFrame:
    """A metric with a row per round and a column per seed."""
    columns = {
        run.seed: pd.Series({row["round"]: row[key] for row in run.metrics if row.get(key) is not None}) for run in runs
    }
    return pd.DataFrame(columns, dtype=float).sort_index()


def smoothed(values: pd.Series) -> pd.Series:
    """The running mean over the last rounds: with very skewed clients one round swings by points."""
    return values.rolling(WINDOW, min_periods=1).mean()


def seeds_text(*numbers: int) -> str:
    """`3 seeds`, or `1-3 seeds` where they differ."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low}–{high} seeds" if low < high else f"{high} seed{'s' if high != 1 else ''}"


def accuracy(runs: Sequence[Recorded], paper: tuple[float, float] | str | None = None) -> dict[str, Any]:
    """A cell of an accuracy table, in percent.

    Args:
        runs: The seeds of an experiment.
        paper: The paper's mean and standard deviation, "*" when it did not converge there, None when not in the paper.
    """
    facts = [run.summary for run in runs]
    mean, std = over_seeds([fact["accuracy"] for fact in facts])
    given = paper if isinstance(paper, tuple) else (np.nan, np.nan)
    return {
        "seeds": len(runs),
        "accuracy": 100 * mean,
        "std": 100 * std,
        "final": 100 * over_seeds([fact["final"] for fact in facts])[0],
        "best": 100 * over_seeds([fact["best"] for fact in facts])[0],
        "diverged": sum(fact["diverged"] for fact in facts),
        "paper": given[0],
        "paper_std": given[1],
        "paper_diverged": paper == "*",
        "difference": 100 * mean - given[0],
    }


def accuracy_text(cell: Mapping[str, Any]) -> str:
    """`48.70 ± 0.20 (10)`; `*` for what diverged in all seeds, `not run` without data."""
    if not cell["seeds"]:
        return NOT_RUN
    if cell["diverged"] == cell["seeds"]:
        return f"* ({cell['seeds']})"
    spread = f" ± {cell['std']:.2f}" if cell["std"] == cell["std"] else ""
    some = f", {cell['diverged']} *" if cell["diverged"] else ""
    return f"{cell['accuracy']:.2f}{spread} ({cell['seeds']}{some})"


def paper_text(cell: Mapping[str, Any]) -> str:
    if cell["paper_diverged"]:
        return "*"
    return f"{cell['paper']:.2f} ± {cell['paper_std']:.2f}" if cell["paper"] == cell["paper"] else "–"


def difference_text(cell: Mapping[str, Any]) -> str:
    gone = cell["difference"] != cell["difference"] or cell["diverged"] == cell["seeds"]
    return "–" if gone else signed(cell["difference"])


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")

"""Slim studies: many runs in a few Parquet files, small enough to keep beside the pictures that are drawn from them.

    study.yaml  tuned.yaml     as in the study's own folder
    runs.parquet               a row per run: config, environment, which partition, facts of the gradient-norm probe
    metrics.parquet  timings.parquet  gradient_norms.parquet      rows by run
    trials.parquet             a row per run that only chose settings
    partitions.parquet         each distinct histogram once
    surfaces.parquet           manifest and arrays of each, without the losses by class, which are most of it
    sharpness.parquet          of each measurement its JSON
    weights.parquet            last weights of some runs

A slim run is addressed by the path that its run directory would have, and so are its surfaces and its probe:
`open_run`, `open_probe` and `measurements` read them there. It lacks clients.jsonl, the partition's index lists, and
what resuming needs. Only `collect` writes here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.functional.layout import Layout
from feddual.records.run_dir import Checkpoint, RunDir, atomic_write
from feddual.records.tables import Arrays, ArrayTable, RowTable, arrays_bytes, rows_bytes

RUNS = "runs"
GRADIENT_NORMS = "gradient-norms"  # the probe whose rows are kept
LOGS = {"metrics": "metrics", "timings": "timings", GRADIENT_NORMS: "gradient_norms"}
Rows = list[dict[str, Any]]


def open_run(path: str | os.PathLike[str]) -> RunDir:
    """The run at a path: its directory, or its rows in the slim study of a folder above; it may not exist."""
    path = Path(path)
    here = None if RunDir(path).exists else _slim_run(path)
    return here or RunDir(path)


def open_probe(path: Path) -> "RunDir | SlimProbe":
    """What a probe recorded at a path within a run."""
    run = None if path.is_dir() else _slim_run(path.parent.parent)
    return SlimProbe(run, path.name) if run is not None and run.has_probe(path.name) else RunDir(path)


def kept_surface(path: Path) -> dict[str, Any] | None:
    """The manifest and the arrays of a slim run's surface; None if there is none at this path."""
    run = None if path.is_dir() or path.parent.name != "surfaces" else _slim_run(path.parent.parent)
    found = run.study.arrays("surfaces").of(run.name, path.name) if run is not None else None
    return {**found, "manifest": json.loads(found["manifest"])} if found else None


def kept_sharpness(path: Path) -> dict[str, Any] | None:
    """What a slim run keeps of the sharpness measured at a path; None if there is none."""
    run = None if path.is_dir() or path.parent.name != "sharpness" else _slim_run(path.parent.parent)
    found = run.study.arrays("sharpness").of(run.name, path.name) if run is not None else None
    return dict(json.loads(found["json"])) if found else None


def slim_runs(root: Path) -> "Iterator[SlimRun]":
    """All runs of the slim studies under a folder."""
    for study in map(open_slim, slim_folders(root)):
        yield from (SlimRun(study, name) for name in study.runs)


def slim_folders(root: Path) -> list[Path]:
    """The slim studies under a folder, also those that keep trials only."""
    return sorted({path.parent for name in (RUNS, "trials") for path in root.rglob(f"{name}.parquet")})


def _slim_run(path: Path) -> "SlimRun | None":
    for folder in path.parents:
        if (folder / f"{RUNS}.parquet").is_file():
            study, name = open_slim(folder), path.relative_to(folder).as_posix()
            if name in study.runs:
                return SlimRun(study, name)
    return None


def open_slim(folder: Path) -> "SlimStudy":
    """A folder's slim study, read again only when it was written again; empty where nothing was collected."""
    stamps = [(folder / f"{name}.parquet") for name in (RUNS, "trials")]
    return _open_slim(folder, tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in stamps))


@lru_cache(32)
def _open_slim(folder: Path, stamps: tuple[int, ...]) -> "SlimStudy":
    return SlimStudy(folder)


class SlimStudy:
    """The files of a folder, each read when it is asked for."""

    def __init__(self, path: Path):
        self.path = path
        self.rows = cache(lambda file: RowTable(path / f"{file}.parquet"))  # of a file, by run
        self.arrays = cache(lambda file: ArrayTable(path / f"{file}.parquet"))

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """What there is to know of each run, by name."""
        return {name: self.rows(RUNS).of(name)[0] for name in self.rows(RUNS)}

    @cached_property
    def trials(self) -> dict[str, dict[str, Any]]:
        """The summaries of runs that chose settings, by name."""
        return {name: self.rows("trials").of(name)[0] for name in self.rows("trials")}


class SlimRun(RunDir):
    """One run of a slim study."""

    def __init__(self, study: SlimStudy, name: str):
        super().__init__(study.path / name)
        self.study, self.name = study, name

    @property
    def exists(self) -> bool:
        return True

    def read_config(self) -> dict[str, Any]:
        return dict(self.study.runs[self.name]["config"])

    @property
    def environment(self) -> dict[str, Any] | None:
        return self.study.runs[self.name].get("environment")

    def rows(self, log: str) -> Rows:
        return self.study.rows(LOGS[log]).of(self.name) if log in LOGS else []

    def rounds_done(self) -> int:
        return self.study.rows("metrics").count(self.name)

    @property
    def has_partition(self) -> bool:
        return "partition" in self.study.runs[self.name]

    def read_partition(self) -> dict[str, np.ndarray]:
        facts = self.study.runs[self.name]
        if "partition" not in facts:
            raise FileNotFoundError(f"{self.path}: no partition was recorded")
        arrays = self.study.arrays("partitions").of(str(facts["partition"]), "")
        return {**arrays, "fingerprint": np.array(facts["fingerprint"])}

    def checkpoint_rounds(self) -> list[int]:
        return sorted(int(item) for item in self.study.arrays("weights").items(self.name))

    def read_checkpoint(self, round_index: int) -> Checkpoint:
        arrays = self.study.arrays("weights").of(self.name, str(round_index))
        if not arrays:
            there = ", ".join(map(str, self.checkpoint_rounds())) or "none"
            raise UserError(f"{self.path}: no checkpoint of round {round_index}; there are: {there}")
        layout = Layout.from_list(json.loads(arrays["layout"]))
        return Checkpoint(round_index, arrays["weights"], layout, {}, {})

    def has_probe(self, name: str) -> bool:
        return name == GRADIENT_NORMS and GRADIENT_NORMS in self.study.runs[self.name]

    def surfaces(self) -> list[Path]:
        return sorted(self.surface_path(item) for item in self.study.arrays("surfaces").items(self.name))

    def sharpness(self) -> list[Path]:
        return sorted(self.sharpness_path(item) for item in self.study.arrays("sharpness").items(self.name))


@dataclass(frozen=True)
class SlimProbe:
    """What a probe recorded in a slim run."""

    run: SlimRun
    name: str

    def read_json(self, name: str) -> Any:
        """The facts; there is one such file."""
        return self.run.study.runs[self.run.name].get(self.name)

    def rows(self, log: str) -> Rows:
        """The rows; there is one log."""
        return self.run.rows(self.name)


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """What is kept of a run."""

    config: dict[str, Any]
    environment: dict[str, Any] | None
    logs: dict[str, Rows]  # of LOGS
    histograms: np.ndarray | None = None
    fingerprint: str = ""
    probe_facts: dict[str, Any] | None = None
    surfaces: dict[str, Arrays] = field(default_factory=dict)  # `manifest` is JSON text
    sharpness: dict[str, str] = field(default_factory=dict)  # JSON text
    checkpoint: Checkpoint | None = None


def write_slim(folder: Path, runs: Mapping[str, Kept], trials: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Replace a slim study; each file is written whole or not at all, the list of runs last."""
    runs = dict(sorted(runs.items()))
    arrays: dict[str, dict[tuple[str, str], Arrays]] = {
        "partitions": {}, "surfaces": {}, "sharpness": {}, "weights": {}
    }  # fmt: skip
    places: dict[tuple[bytes, tuple[int, ...]], int] = {}  # of histograms, by content
    rows: dict[str, list[dict[str, Any]]] = {file: [] for file in LOGS.values()}
    rows["trials"] = [{"trial": name, **facts} for name, facts in sorted(trials.items())]
    rows[RUNS] = []
    for name, kept in runs.items():
        facts: dict[str, Any] = {"environment": kept.environment, GRADIENT_NORMS: kept.probe_facts}
        if (histograms := kept.histograms) is not None:
            place = places.setdefault((histograms.tobytes(), histograms.shape), len(places))
            arrays["partitions"][str(place), ""] = {"histograms": histograms}
            facts |= {"partition": place, "fingerprint": kept.fingerprint}
        known = {key: value for key, value in facts.items() if value is not None}
        rows[RUNS].append({"run": name, "config": kept.config, **known})
        for log, lines in kept.logs.items():
            rows[LOGS[log]] += [{"run": name, **line} for line in lines]
        arrays["surfaces"] |= {(name, item): found for item, found in kept.surfaces.items()}
        arrays["sharpness"] |= {(name, item): {"json": text} for item, text in kept.sharpness.items()}
        if (checkpoint := kept.checkpoint) is not None:
            layout = json.dumps(checkpoint.layout.to_list())
            state: Arrays = {"weights": checkpoint.weights, "layout": layout}
            arrays["weights"][name, str(checkpoint.round_index)] = state
    files = {file: arrays_bytes(items) if items else None for file, items in arrays.items()}
    files |= {file: rows_bytes(lines) if lines else None for file, lines in rows.items()}
    for file, data in files.items():
        path = folder / f"{file}.parquet"
        if data is None:
            path.unlink(missing_ok=True)
        else:
            atomic_write(path, data)
    return [folder / f"{file}.parquet" for file, data in files.items() if data is not None]

"""Slim copies of finished runs (`python -m figures collect`): what figures draw from, in the format of `slim`.

The last round's rows are whole; those before it keep what figures draw. Trials (runs that only choose
settings) become a line each.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.records.identity import differences
from feddual.records.measurements import read_arrays, read_manifest
from feddual.records.run_dir import SHARPNESS, RunDir, atomic_write
from feddual.records.slim import (
    GRADIENT_NORMS,
    Kept,
    Rows,
    SlimRun,
    kept_sharpness,
    open_probe,
    open_slim,
    slim_folders,
    write_slim,
)  # fmt: skip
from feddual.records.study_dir import FILES, TUNING, all_runs, study_of
from feddual.records.tables import Arrays

# Kept in every row.
METRICS = ("round", "accuracy", "loss", "num_clients", "bytes_down", "bytes_up", "beta", "barycenter")
BARYCENTER = ("effective_clients", "iterations")
TIMINGS = ("round", "seconds", "client_seconds", "server_seconds")
METRIC_DIGITS = 6
CURVE_DIGITS = 4
TIMING_DIGITS = 4  # a clock is no better than that


@dataclass
class Collected:
    """What was copied, and what was not and why."""

    runs: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    trials: int = 0
    bytes: int = 0


@dataclass
class _Target:
    """A slim study to be: what goes into it."""

    runs: dict[str, RunDir] = field(default_factory=dict)
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)


def collect(sources: Sequence[Path], into: Path, weights: bool = False) -> Collected:
    """Copy runs, and the runs of studies, into slim studies; runs and trials that were collected before stay.

    Args:
        sources: Run directories, or folders with runs in them.
        into: Where they go; a run keeps its path within its source.
        weights: Copy the last checkpoint too.

    Raises:
        UserError: When a source holds no run, or two would go to the same place.
    """
    done = Collected()
    targets: dict[Path, _Target] = {}
    for source in sources:
        found = all_runs(source)
        if not found:
            raise UserError(f"{source}: neither a run directory (config.yaml) nor a folder with some in it")
        alone = found[0].path == source
        top = source.resolve().parent if alone else source
        for run in found:
            home = None if alone else study_of(run.path.parent, source)
            folder = into if home is None else into / home.path.relative_to(source)
            path = run.path.resolve() if alone else run.path
            name = path.relative_to(top if home is None else home.path).as_posix()
            _add(run, name, folder, targets.setdefault(folder, _Target()), done)
        if not alone:
            _copy_study_files(source, into, targets, done)
    for folder, target in sorted(targets.items()):
        _write(folder, target, weights, done)
    return done


def _add(run: RunDir, name: str, folder: Path, target: _Target, done: Collected) -> None:
    """Put a run, or a trial's line, where it goes; an unfinished run is left out."""
    values, facts = run.read_config(), run.summary()
    is_trial = name.startswith(TUNING)
    if not facts["finished"]:
        if not is_trial:
            done.skipped[str(run.path)] = f"unfinished, at round {facts['rounds']}"
    elif is_trial:
        line = {"settings": differences(values), **rounded(facts, METRIC_DIGITS), "curve": _curve(run)}
        target.trials[name.removeprefix(TUNING)] = line
    elif target.runs.setdefault(name, run).path != run.path:
        both = f"{run.path} and {target.runs[name].path}"
        raise UserError(f"{both} would both go to {folder / name}; collect them --into two folders")


def _curve(run: RunDir) -> list[float | None]:
    """A trial's accuracies by round: what stages of choosing compare."""
    return list(rounded([row.get("accuracy") for row in run.rows("metrics")], CURVE_DIGITS))


def _copy_study_files(source: Path, into: Path, targets: dict[Path, _Target], done: Collected) -> None:
    for name in FILES:
        for path in sorted(source.rglob(name)):
            data = path.read_bytes()
            atomic_write(into / path.relative_to(source), data)
            done.bytes += len(data)
    for folder in slim_folders(source):  # trials whose runs are elsewhere
        target = targets.setdefault(into / folder.relative_to(source), _Target())
        target.trials = open_slim(folder).trials | target.trials


def _write(folder: Path, target: _Target, weights: bool, done: Collected) -> None:
    before = open_slim(folder)
    runs = {name: kept(SlimRun(before, name), True) for name in before.runs}
    for name, run in sorted(target.runs.items()):
        asked = kept(run, weights)
        if weights and asked.checkpoint is None:
            raise UserError(f"--weights: {run.path} has no checkpoint")
        if asked.checkpoint is None and name in runs:
            asked.checkpoint = runs[name].checkpoint
        runs[name] = asked
    trials = before.trials | target.trials
    done.bytes += sum(path.stat().st_size for path in write_slim(folder, runs, trials))
    done.runs += [folder / name for name in sorted(target.runs)]
    done.trials += len(trials)


def kept(run: RunDir, weights: bool) -> Kept:
    """What is kept of a run; of a slim run all of it."""
    found = Kept(run.read_config(), run.environment, {})
    found.logs["metrics"] = _slim(run.rows("metrics"), METRICS, METRIC_DIGITS)
    found.logs["timings"] = _slim(run.rows("timings"), TIMINGS, TIMING_DIGITS)
    if run.has_partition:
        partition = run.read_partition()
        histograms = partition["histograms"]
        found.histograms = histograms.astype(np.min_scalar_type(histograms.max()))
        found.fingerprint = str(partition["fingerprint"])
    if run.has_probe(GRADIENT_NORMS):
        probe = open_probe(run.probe_path(GRADIENT_NORMS))
        found.probe_facts = probe.read_json("facts.json")
        found.logs[GRADIENT_NORMS] = _gradient_norms(probe.rows("rounds"))
    for path in run.surfaces():
        arrays = read_arrays(path)
        if arrays is not None:  # finished
            found.surfaces[path.name] = {"manifest": json.dumps(read_manifest(path)), **_single(arrays)}
    for path in run.sharpness():
        text = kept_sharpness(path) or json.loads((path / SHARPNESS).read_text(encoding="utf-8"))
        found.sharpness[path.name] = json.dumps(text)
    checkpoint = run.last_good_checkpoint() if weights else None
    if checkpoint is not None:  # clients' states belong to resuming, which a slim run cannot
        found.checkpoint = replace(checkpoint, server_slots={}, client_states={}, optimizer_slots={})
    return found


def _gradient_norms(rows: Rows) -> Rows:
    """The scheduled rounds whole; of those between, what concerns all clients."""
    dense = any("client_at_global" in row["by_client"] for row in rows)
    for row in rows:
        if dense and "client_at_global" not in row["by_client"]:
            row["by_client"] = {}
    return list(rounded(rows, TIMING_DIGITS))


def _single(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """A surface's arrays in single precision, but for the axes, whose zero must stay zero; no losses by class."""
    shorter = {"class_loss": arrays["class_loss"][..., :0]} if "class_loss" in arrays else {}
    return {
        name: array.astype(np.float32) if array.dtype == np.float64 and name not in ("alphas", "betas") else array
        for name, array in {**arrays, **shorter}.items()
    }


def _slim(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], digits: int) -> Rows:
    """The last row whole, of the others these keys."""
    some = [{key: row[key] for key in keys if key in row} for row in rows[:-1]]
    for row in some:
        if "barycenter" in row:
            tensors = row["barycenter"].items()
            row["barycenter"] = {name: {key: facts[key] for key in BARYCENTER} for name, facts in tensors}
    return list(rounded([*some, *rows[-1:]], digits))


def rounded(value: Any, digits: int) -> Any:
    """Floats to so many significant digits, however deep they lie."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list) else value

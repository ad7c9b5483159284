"""Slim copies of runs, small enough to keep beside the pictures that are drawn from them.

A slim run has run_dir's layout, so that `feddual.open` reads it. It lacks checkpoints (unless asked for), clients.jsonl
and the partition's index lists. The last round's rows are whole; those before it keep what figures draw.
A study's folder keeps its study.yaml and tuned.yaml, and its trials (runs tested on held-out training data) as a line
each in tuning.json.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.records.run_dir import RunDir, atomic_write, npz_bytes
from feddual.records.summary import summarise
from feddual.studies.tuning import recorded_trials
from figures.paper import _rows

# Kept in every row.
METRICS = ("round", "accuracy", "loss", "num_clients", "bytes_down", "bytes_up", "beta", "barycenter")
BARYCENTER = ("effective_clients", "iterations")
TIMINGS = ("round", "seconds", "client_seconds", "server_seconds")
METRIC_DIGITS = 6
TIMING_DIGITS = 4  # a clock is no better than that
GRADIENTS = Path("probes") / "gradient-norms"
STUDY_FILES = ("study.yaml", "tuned.yaml")


@dataclass
class Collected:
    """What was copied, and what was not and why."""

    runs: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    trials: int = 0
    bytes: int = 0


def collect(sources: Sequence[Path], into: Path, weights: bool = False) -> Collected:
    """Copy runs, and the runs of studies, as slim run directories into a folder.

    Args:
        sources: Run directories, or folders with run directories in them.
        into: Where they go; a run keeps its path within its source.
        weights: Copy the last checkpoint too.

    Raises:
        UserError: When a source holds no run, or two would go to the same place.
    """
    done = Collected()
    places: dict[Path, Path] = {}
    for source in sources:
        found = _places(source, into)
        for target, origin in found.items():
            if places.setdefault(target, origin) != origin:
                raise UserError(
                    f"{origin} and {places[target]} would both go to {target}; collect them --into two folders"
                )
        if not RunDir(source).exists:
            _copy_study(source, into, done)
    for target, origin in sorted(places.items()):
        facts = _facts(RunDir(origin))
        if facts["finished"]:
            done.bytes += _copy_run(RunDir(origin), RunDir(target), weights)
            done.runs.append(target)
        else:
            done.skipped[str(origin)] = f"unfinished, at round {facts['rounds']}"
    return done


def _places(source: Path, into: Path) -> dict[Path, Path]:
    """Where each run of a source goes. Trials are not copied."""
    if RunDir(source).exists:
        return {into / source.resolve().name: source}
    configs = sorted(source.rglob("config.yaml")) if source.is_dir() else []
    if not configs:
        raise UserError(f"{source}: neither a run directory (config.yaml) nor a folder with some in it")
    origins = [path.parent for path in configs]
    return {into / run.relative_to(source): run for run in origins if not _is_held_out(run)}


def is_trial(path: Path) -> bool:
    """Whether a path within a study is that of a run which only chose settings."""
    return "tuning" in path.parts[:-1]


def _is_held_out(run: Path) -> bool:
    return float(RunDir(run).read_config()["evaluation"].get("held_out", 0)) > 0


def _facts(run: RunDir) -> dict[str, Any]:
    return summarise(run.read_config(), run.rows("metrics"), run.rows("timings"))


def _copy_study(source: Path, into: Path, done: Collected) -> None:
    for name in STUDY_FILES:
        for path in sorted(source.rglob(name)):
            data = path.read_bytes()
            atomic_write(into / path.relative_to(source), data)
            done.bytes += len(data)
    trials: dict[Path, dict[str, Any]] = {}
    for path in sorted(source.rglob("config.yaml")):
        run = path.parent
        facts = _facts(RunDir(run)) if _is_held_out(run) else None
        if facts is not None and facts["finished"]:
            home = next((folder for folder in run.parents if (folder / "study.yaml").is_file()), source)
            name = run.relative_to(home).as_posix().removeprefix("tuning/")
            settings = _rows.differences(RunDir(run).read_config())
            trials.setdefault(home, {})[name] = {"settings": settings, **rounded(facts, METRIC_DIGITS)}
    for home, lines in trials.items():
        target = into / home.relative_to(source)
        # Trials of an earlier collection may have been made elsewhere: their runs are not here.
        before = recorded_trials(target) | recorded_trials(home)
        lines = {name.removeprefix("tuning/"): facts for name, facts in before.items()} | lines
        data = (json.dumps(dict(sorted(lines.items())), indent=1) + "\n").encode()
        atomic_write(target / "tuning.json", data)
        done.trials += len(lines)
        done.bytes += len(data)


def _copy_run(run: RunDir, slim: RunDir, weights: bool) -> int:
    """Copy one run; config.yaml comes last, since with it a directory is a run. Returns the bytes written."""
    slim.path.mkdir(parents=True, exist_ok=True)
    partition = run.read_partition()
    histograms = partition["histograms"]
    slim.write_histograms(histograms.astype(np.min_scalar_type(histograms.max())), str(partition["fingerprint"]))
    slim.write_json("environment.json", run.read_json("environment.json"))
    slim.write_rows("metrics", _slim(run.rows("metrics"), METRICS, METRIC_DIGITS))
    slim.write_rows("timings", _slim(run.rows("timings"), TIMINGS, TIMING_DIGITS))
    _copy_gradient_norms(run, slim)
    _copy_surfaces(run, slim)
    if weights:
        checkpoint = run.last_good_checkpoint()
        if checkpoint is None:
            raise UserError(f"--weights: {run.path} has no checkpoint")
        # Clients' states belong to resuming, which a slim run cannot.
        slim.write_checkpoint(type(checkpoint)(checkpoint.round_index, checkpoint.weights, checkpoint.layout, {}, {}))
    slim.write_config((run.path / "config.yaml").read_text(encoding="utf-8"))
    return sum(path.stat().st_size for path in slim.path.rglob("*") if path.is_file())


def _copy_gradient_norms(run: RunDir, slim: RunDir) -> None:
    """The scheduled rounds whole; of those between, what concerns all clients."""
    source, target = RunDir(run.path / GRADIENTS), RunDir(slim.path / GRADIENTS)
    facts = source.read_json("facts.json")
    if facts is not None:
        target.write_json("facts.json", facts)
        rows = source.rows("rounds")
        dense = any("client_at_global" in row["by_client"] for row in rows)
        for row in rows:
            if dense and "client_at_global" not in row["by_client"]:
                row["by_client"] = {}
        target.write_rows("rounds", rounded(rows, TIMING_DIGITS))


def _copy_surfaces(run: RunDir, slim: RunDir) -> None:
    """Finished surfaces, their arrays in single precision."""
    for path in sorted((run.path / "surfaces").glob("*/surface.npz")):
        target = slim.path / "surfaces" / path.parent.name
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        halved = {name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in arrays.items()}
        halved |= {axis: arrays[axis] for axis in ("alphas", "betas") if axis in arrays}  # zero must stay zero
        atomic_write(target / path.name, npz_bytes(zipfile.ZIP_DEFLATED, **halved))
        atomic_write(target / "manifest.json", path.with_name("manifest.json").read_bytes())


def _slim(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], digits: int) -> list[dict[str, Any]]:
    """The last row whole, of the others these keys."""
    kept = [{key: row[key] for key in keys if key in row} for row in rows[:-1]]
    for row in kept:
        if "barycenter" in row:
            tensors = row["barycenter"].items()
            row["barycenter"] = {name: {key: facts[key] for key in BARYCENTER} for name, facts in tensors}
    return rounded([*kept, *rows[-1:]], digits)


def rounded(value: Any, digits: int) -> Any:
    """Floats to so many significant digits, however deep they lie."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list) else value

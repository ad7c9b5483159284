"""Gradient norms of runs after the fact: those that were recorded, or measured anew.

Runs are deterministic, so the round after a checkpoint is done again with the probe: the same numbers in bits as if it
had been there from the start, for every definition, also those that need the clients' models.
"""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

import feddual
from diagnostics.gradients.probe import GradientNormProbe
from feddual.errors import UserError
from feddual.probes import LOG
from feddual.records.identity import Replicate, replicate
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_run
from feddual.records.study_dir import StudyDir

FOLDER = "gradient-norms-offline"


def gradient_norms(run: "feddual.Run | str | Path", rounds: list[int] | None = None, **settings: Any) -> pd.DataFrame:
    """Measure rounds of a run from its checkpoints; the result is also kept in its `probes/gradient-norms-offline/`.

    Args:
        run: A run or its folder.
        rounds: Rounds to measure; by default every one whose start is kept.
        **settings: Of `GradientNormProbe`.

    Returns:
        The tidy table: round, client (none for all of them), layer, definition, normalisation, value.

    Raises:
        UserError: When a round's start was not kept; it names those that were.
    """
    opened = run if isinstance(run, feddual.Run) else feddual.open(run)
    chosen = opened.replayable if rounds is None else rounds
    opened.check_replayable(*chosen)
    rows, facts = [], None
    for index in chosen:
        with tempfile.TemporaryDirectory() as folder:
            probe = GradientNormProbe(**{"every": 1, **settings})
            feddual.replay(opened, index, [probe], Path(folder) / "round")
            recorded = RunDir(RunDir(Path(folder) / "round").probe_path(probe.name))
            rows += recorded.rows(LOG)
            facts = recorded.read_json("facts.json")
    target = RunDir(RunDir(opened.path).probe_path(FOLDER))
    target.write_json("facts.json", facts)
    target.cut_back(0, [LOG])
    target.append(LOG, rows)
    return GradientNormProbe.read(target.path)


def by_replicate(path: Path, offline: bool = False) -> dict[Replicate, pd.DataFrame]:
    """The tables of a run, or of the runs in a folder, by draw of the clients and seed.

    Args:
        path: A run directory or a folder of some.
        offline: Measure now, from the checkpoints.

    Raises:
        UserError: When there is no run, or one has recorded nothing.
    """
    folders = [path] if open_run(path).exists else [path / name for name in StudyDir(path).run_names()]
    if not folders:
        raise UserError(f"{path}: neither a run nor a folder of runs")
    runs = map(feddual.open, folders)
    return {replicate(run.config.to_dict()): _recorded(run, offline) for run in runs}


def _recorded(run: feddual.Run, offline: bool) -> pd.DataFrame:
    if offline:
        return gradient_norms(run)
    for name in (GradientNormProbe.name, FOLDER):
        if (record := open_run(run.path)).has_probe(name):
            return GradientNormProbe.read(record.probe_path(name))
    raise UserError(
        f"{run.path}: no gradient norms recorded; run with --probe gradient-norms@every=5, or pass --offline "
        "to measure from its checkpoints"
    )

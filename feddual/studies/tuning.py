"""Choosing a study's settings on held-out training data: `feddual study --tune`.

Each row is tried with each combination (`study.Tune` says how), and run with the one that did best. Trials that stand
in the folder as lines of their own (`python -m figures collect` writes them) are not run again.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.run_dir import RunDir
from feddual.records.study_dir import TUNING, StudyDir
from feddual.studies.grid import (
    Cell,
    Overrides,
    Study,
    Tune,
    cell_name,
    chosen_rows,
    combinations,
    facts_of,
    repeated,
    repetitions,
)  # fmt: skip


def trials(study: Study, algorithms: Sequence[str] = ()) -> list[Cell]:
    """The runs that choose settings."""
    tune = study.tune
    if tune is None:
        raise UserError(f"--tune: the study {study.name} does not say what to tune (no `tune` section)")
    rows = {row: keys for row, keys in chosen_rows(study, algorithms).items() if not tune.only or row in tune.only}
    fixed: Overrides = {"seed": 0, "evaluation.held_out": tune.held_out}
    if tune.rounds is not None:
        fixed["training.rounds"] = tune.rounds
    named = [(source, row, tried) for source in study.experiments for row in rows for tried in _tried(tune, row)]
    return [
        Cell(TUNING + cell_name(study, source, row, tried), row, source, {**rows[row], **tried, **fixed}, tried)
        for source, row, tried in named
    ]


def _tried(tune: Tune, row: str) -> list[Overrides]:
    own = tune.rows.get(row, {})
    if isinstance(own, str):
        return []  # that row's trials serve this one too
    return own if isinstance(own, list) else list(combinations({**tune.grid, **own}))


def _to_run(study: Study, out: Path, algorithms: Sequence[str]) -> list[Cell]:
    """The trials that are not recorded already."""
    files = StudyDir(out)
    recorded = files.trials()
    return [cell for cell in trials(study, algorithms) if cell.name not in recorded or files.run(cell.name).exists]


def first_trials(study: Study, out: Path, algorithms: Sequence[str] = ()) -> list[Cell]:
    """The trials of grids, cut to their first rounds; without those that are so far already."""
    first = study.tune.first if study.tune else None
    if first is None:
        return []
    wanted = []
    for cell in _to_run(study, out, algorithms):
        run = StudyDir(out).run(cell.name)
        short = cell.experiment({}).training.rounds <= first
        if short or not _is_of_grid(study, cell) or run.rounds_done() >= first:
            continue
        begun = run.read_config()["training"]["rounds"] if run.exists else 0  # a run cannot be made shorter
        wanted.append(replace(cell, overrides={**cell.overrides, "training.rounds": max(first, begun)}))
    return wanted


def last_trials(study: Study, out: Path, algorithms: Sequence[str] = ()) -> list[Cell]:
    """The trials that run to their end: of a grid those that are not hopeless, and the row's own settings."""
    tune = study.tune
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in _to_run(study, out, algorithms):
        rows.setdefault((cell.source, cell.row), []).append(cell)
    wanted: list[Cell] = []
    for row in rows.values():
        if tune is None or not tune.first or not _is_of_grid(study, row[0]):
            wanted += row
            continue
        scores = {cell.name: _early_score(StudyDir(out).run(cell.name), tune.first) for cell in row}
        enough = tune.hopeless * max(scores.values())
        wanted += [cell for cell in row if scores[cell.name] >= enough or _is_default(study, cell)]
    return wanted


def _is_of_grid(study: Study, cell: Cell) -> bool:
    """Whether a trial belongs to a grid; listed candidates all run to their end."""
    return study.tune is not None and not isinstance(study.tune.rows.get(cell.row), list)


def _is_default(study: Study, cell: Cell) -> bool:
    own = {key: value for key, value in cell.overrides.items() if key not in cell.tried} | study.rows[cell.row]
    return config.resolve(cell.source, own) == cell.experiment({})


def _early_score(run: RunDir, first: int) -> float:
    """A trial's mean accuracy over the second half of its first rounds; 0 when it did not get there."""
    rows = [row for row in run.rows("metrics") if row["round"] <= first]
    if not rows or rows[-1]["round"] < first:
        return 0.0
    late = [row["accuracy"] for row in rows if row["round"] > first // 2 and row.get("accuracy") is not None]
    return sum(late) / len(late) if late else 0.0


def tuned_cells(
    study: Study, out: Path, algorithms: Sequence[str] = (), overrides: Overrides | None = None
) -> list[Cell]:
    """The study's runs with the settings that did best on held-out data, named ROW-chosen; tuned.yaml has the choices.

    Args:
        study: The study.
        out: Its folder.
        algorithms: Only rows of these names or algorithms.
        overrides: With which the trials were run.

    Raises:
        UserError: When a row has no finished trial.
    """
    best: dict[str, dict[str, Any]] = {}
    files = StudyDir(out)
    recorded = files.trials()
    for cell in trials(study, algorithms):
        if not _is_of_grid(study, cell):
            continue
        facts = facts_of(files.run(cell.name)) or recorded.get(cell.name)
        whole = facts is not None and facts["rounds"] >= cell.experiment(overrides or {}).training.rounds
        score = facts["accuracy"] if facts is not None and whole else None
        key = cell_name(study, cell.source, cell.row, {})
        entry = best.setdefault(key, {"experiment": cell.source, "row": cell.row, "accuracy": None, "trials": {}})
        entry["trials"][cell.name.removeprefix(TUNING)] = score
        if score is not None and (entry["accuracy"] is None or score > entry["accuracy"]):
            entry |= {"accuracy": score, "settings": cell.tried}
    missing = [key for key, entry in best.items() if "settings" not in entry]
    if missing:
        raise UserError(f"--tune: no finished trial of {', '.join(missing)}; see {out}/failed")
    listed = {row for row, own in (study.tune.rows if study.tune else {}).items() if isinstance(own, list)}
    # Choices of rows that are not named this time stay.
    before = {key: entry for key, entry in files.choices().items() if entry["row"] not in listed}
    best |= _same_choices(study, algorithms, before | best)
    files.write_choices(before | best)
    cells = []
    for which, entry in itertools.product(repetitions(study), best.values()):
        source, row, settings = entry["experiment"], entry["row"], entry["settings"]
        name = cell_name(study, source, f"{row}-chosen", settings)
        cells.append(repeated(study, which, source, row, study.rows[row] | settings, name))
    return cells


def _same_choices(study: Study, algorithms: Sequence[str], choices: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The choices of rows that follow another one's."""
    followers = {row: own for row, own in (study.tune.rows if study.tune else {}).items() if isinstance(own, str)}
    same = {}
    for row in chosen_rows(study, algorithms):
        for source in study.experiments if row in followers else ():
            leader = cell_name(study, source, followers[row], {})
            if leader not in choices:
                raise UserError(f"--tune: {row} takes the choice of {followers[row]}, which has not been tuned yet")
            settings = dict(choices[leader]["settings"])  # YAML would write one object twice as a reference
            own = {"row": row, "settings": settings, "trials": {}}
            same[cell_name(study, source, row, {})] = {**choices[leader], **own}
    return same

"""Choosing a study's settings on held-out training data: `feddual study --tune`.

Each row is tried with each of its settings (`grid.Tune` says how) and run twice: with what did best on each experiment,
and with the one setting that did best over all of them. Trials that stand in the folder as lines of their own (`python
-m figures collect` writes them) are not run again, unless they were cut short of what is asked for now.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Replicate
from feddual.records.study_dir import TUNING, StudyDir
from feddual.records.summary import late_mean
from feddual.studies.grid import (
    Cell,
    Overrides,
    Study,
    Tune,
    cell_name,
    chosen_rows,
    combinations,
    repeated,
    repetitions,
)  # fmt: skip

Curve = list[float | None]  # accuracies by round


def trials(study: Study, algorithms: Sequence[str] = ()) -> list[Cell]:
    """The runs that choose settings, in full: every setting once, then again with other clients and another seed."""
    tune = _tune(study)
    rows = {row: keys for row, keys in chosen_rows(study, algorithms).items() if not tune.only or row in tune.only}
    fixed: Overrides = {"evaluation.held_out": tune.held_out}
    if tune.rounds is not None:
        fixed["training.rounds"] = tune.rounds
    cells = []
    for seed, source in itertools.product(range(tune.repeats), study.experiments):
        for row, tried in [(name, one) for name in rows for one in _tried(tune, name)]:
            name = TUNING + cell_name(study, source, row, tried)
            cell = repeated(study, Replicate(seed, seed), source, row, {**rows[row], **tried, **fixed}, name)
            cells.append(replace(cell, tried=tried))
    return cells


def _tune(study: Study) -> Tune:
    if study.tune is None:
        raise UserError(f"--tune: the study {study.name} does not say what to tune (no `tune` section)")
    return study.tune


def _tried(tune: Tune, row: str) -> list[Overrides]:
    own = tune.rows.get(row, {})
    if isinstance(own, str):
        return []  # that row's trials serve this one too
    return own if isinstance(own, list) else list(combinations({**tune.grid, **own}))


@dataclass(frozen=True)
class _Tried:
    """A row's settings on one experiment: its trials, and how far each is."""

    cells: list[Cell]
    curves: list[Curve]  # of each repetition
    begun: list[int]  # rounds that its run was begun with: a run cannot be made shorter

    def score(self, rounds: int) -> np.ndarray:
        """Each repetition's accuracy over the last tenth of so many rounds; NaN for one that is not so far."""
        return np.array([late_mean(curve, rounds) for curve in self.curves])


class Trials:
    """What is known of a study's trials: from their runs, or from the lines that were collected of them."""

    def __init__(self, study: Study, out: Path, algorithms: Sequence[str] = (), overrides: Overrides | None = None):
        """Read them.

        Args:
            study: The study.
            out: Its folder.
            algorithms: Only rows of these names or algorithms.
            overrides: With which the trials run.
        """
        self.study, self.tune, self._overrides = study, _tune(study), overrides or {}
        files = StudyDir(out)
        recorded = files.trials()
        # by row, then by experiment, then by setting
        self.rows: dict[str, dict[str, dict[str, _Tried]]] = {}
        for cell in trials(study, algorithms):
            run = files.run(cell.name)
            there = [row.get("accuracy") for row in run.rows("metrics")] if run.exists else []
            curve: Curve = max(there, recorded.get(cell.name, {}).get("curve", []), key=len)
            settings = self.rows.setdefault(cell.row, {}).setdefault(cell.source, {})
            known = settings.setdefault(setting_text(cell.tried), _Tried([], [], []))
            known.cells.append(cell)
            known.curves.append(curve)
            known.begun.append(run.read_config()["training"]["rounds"] if run.exists else 0)

    def _rounds(self, cell: Cell) -> int:
        return cell.experiment(self._overrides).training.rounds

    def _first(self, cell: Cell) -> int:
        whole = self._rounds(cell)
        return whole if self.tune.first is None else max(1, round(self.tune.first * whole))

    def first(self) -> list[Cell]:
        """The trials, cut to their first rounds; without those that are so far already."""
        wanted = []
        for tried in self._every():
            for cell, curve, begun in zip(tried.cells, tried.curves, tried.begun, strict=True):
                if len(curve) < self._first(cell):
                    rounds = max(self._first(cell), begun)
                    wanted.append(replace(cell, overrides={**cell.overrides, "training.rounds": rounds}))
        return sorted(wanted, key=lambda cell: cell.overrides["seed"])

    def last(self) -> list[Cell]:
        """The trials that go on to their end, without those that are there already."""
        wanted = []
        for by_source in self.rows.values():
            together = self._best_together(by_source)
            for settings in by_source.values():
                for name in sorted(settings.keys() & (together | self._best(settings))):
                    pairs = zip(settings[name].cells, settings[name].curves, strict=True)
                    wanted += [cell for cell, curve in pairs if len(curve) < self._rounds(cell)]
        order = {cell.name: place for place, cell in enumerate(trials(self.study))}
        return sorted(wanted, key=lambda cell: order[cell.name])

    def _every(self) -> list[_Tried]:
        return [tried for by in self.rows.values() for settings in by.values() for tried in settings.values()]

    def _early(self, settings: Mapping[str, _Tried]) -> dict[str, np.ndarray]:
        """Each setting's accuracies after the first rounds; a trial that did not get there counts as 0."""
        return {name: np.nan_to_num(tried.score(self._first(tried.cells[0]))) for name, tried in settings.items()}

    def _best(self, settings: Mapping[str, _Tried]) -> set[str]:
        """The settings that go on: not behind the leader in every repetition and clearly so, and at most `keep`."""
        early = self._early(settings)
        leader = max(early.values(), key=lambda scores: float(scores.mean()))
        gaps = {name: leader - scores for name, scores in early.items()}
        alive = [name for name, gap in gaps.items() if not (gap.min() > 0 and gap.mean() > self.tune.behind)]
        ranked = sorted(alive, key=lambda name: float(gaps[name].mean()))
        own = {name for name, tried in settings.items() if self._is_default(tried.cells[0])}
        return set(ranked[: self.tune.keep]) | own

    def _best_together(self, by_source: Mapping[str, Mapping[str, _Tried]]) -> set[str]:
        """The settings that are best over all experiments, so that one for all can be chosen in the end."""
        early = [self._early(settings) for settings in by_source.values()]
        common = set.intersection(*(set(scores) for scores in early))
        ranked = sorted(common, key=lambda name: -sum(float(scores[name].mean()) for scores in early))
        return set(ranked[: self.tune.keep]) if len(early) > 1 else set()

    def _is_default(self, cell: Cell) -> bool:
        own = {key: value for key, value in cell.overrides.items() if key not in cell.tried}
        return config.resolve(cell.source, own | self.study.rows[cell.row]) == cell.experiment({})

    def choices(self) -> dict[str, dict[str, Any]]:
        """What did best, by the name of the cell it is for: on each experiment, and over all of them.

        Experiments without a whole trial have no choice yet.
        """
        best: dict[str, dict[str, Any]] = {}
        for row, by_source in self.rows.items():
            scores = {source: self._whole(settings) for source, settings in by_source.items()}
            common = set.intersection(*(set(known) for known in scores.values()))
            joint = max(common, key=lambda name: sum(known[name] for known in scores.values()), default=None)
            for source, known in scores.items():
                chosen = max(known, key=lambda name: known[name], default=None)
                for block, name in (("chosen", chosen), ("joint", joint if len(scores) > 1 else None)):
                    if name is not None:
                        key = cell_name(self.study, source, f"{row}-{block}", {})
                        settings = dict(by_source[source][name].cells[0].tried)
                        entry = {"experiment": source, "row": row, "block": block, "accuracy": known[name]}
                        begun = sum(bool(curve) for tried in by_source[source].values() for curve in tried.curves)
                        best[key] = {**entry, "settings": settings, "trials": dict(known), "begun": begun}
        return best

    def _whole(self, settings: Mapping[str, _Tried]) -> dict[str, float]:
        """The mean accuracy of the settings whose trials all ran to their end."""
        scores = {name: float(tried.score(self._rounds(tried.cells[0])).mean()) for name, tried in settings.items()}
        return {name: score for name, score in scores.items() if np.isfinite(score)}


def setting_text(tried: Overrides) -> str:
    """A trial's settings in a line, as in its name."""
    return ",".join(f"{key}={value}" for key, value in tried.items()) or "defaults"


def tuned_cells(
    study: Study, out: Path, algorithms: Sequence[str] = (), overrides: Overrides | None = None
) -> list[Cell]:
    """The study's runs with the settings that did best on held-out data; tuned.yaml has the choices.

    They are named ROW-chosen and, with one setting for all experiments, ROW-joint.

    Args:
        study: The study.
        out: Its folder.
        algorithms: Only rows of these names or algorithms.
        overrides: With which the trials were run.

    Raises:
        UserError: When there is no whole trial at all.
    """
    files = StudyDir(out)
    best = Trials(study, out, algorithms, overrides).choices()
    if not best and any(not isinstance(_tune(study).rows.get(row), str) for row in chosen_rows(study, algorithms)):
        raise UserError(f"--tune: no trial ran to its end; see {out}/failed")
    before = files.choices()  # choices of rows that are not named this time stay
    best |= _same_choices(study, algorithms, before | best)
    files.write_choices(before | best)
    cells = []
    for which, source in repetitions(study):
        for entry in (entry for entry in best.values() if entry["experiment"] == source):
            row, settings = entry["row"], entry["settings"]
            name = cell_name(study, source, f"{row}-{entry['block']}", settings)
            cells.append(repeated(study, which, source, row, study.rows[row] | settings, name))
    return cells


def _same_choices(study: Study, algorithms: Sequence[str], choices: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The choices of rows that follow another one's."""
    followers = {row: own for row, own in _tune(study).rows.items() if isinstance(own, str)}
    same = {}
    for row in (row for row in chosen_rows(study, algorithms) if row in followers):
        leaders = [entry for entry in choices.values() if entry["row"] == followers[row]]
        if not leaders:
            raise UserError(f"--tune: {row} takes the choice of {followers[row]}, which has not been tuned yet")
        for entry in leaders:
            settings = dict(entry["settings"])  # YAML would write one object twice as a reference
            key = cell_name(study, entry["experiment"], f"{row}-{entry['block']}", {})
            same[key] = {**entry, "row": row, "settings": settings, "trials": {}, "begun": 0}
    return same

"""The rows of the paper's tables among recorded runs, and what is said of several seeds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from diagnostics.statistics import over_runs, over_seeds
from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Identity, Replicate, identity
from feddual.records.results import Recorded, RunSet
from feddual.records.study_dir import all_choices
from feddual.studies import grid
from figures import _rows
from figures.charts import LOOKS

NOT_RUN = "not run"
WINDOW = 5  # rounds


class Drawing(NamedTuple):
    """What drawing a figure gives."""

    files: list[Path]
    frame: pd.DataFrame  # the numbers in it, tidy


@dataclass(frozen=True)
class Tuned:
    """The settings a study chose for a row on held-out data."""

    row: str
    experiment: str
    block: str  # `chosen` on the experiment, `joint` over all of the study
    settings: dict[str, Any]
    identity: Identity
    accuracy: float  # on held-out data
    whole: int  # settings that were tried to the end; none for a row that follows another
    begun: int  # runs of all that were tried


class Results(RunSet):
    """All runs under a folder, and which of them are rows of the paper's tables."""

    def of(self, dataset: str, row: str, setting: str = "paper-") -> list[Recorded]:
        """The runs of a table's row with nothing tuned, one per draw of the clients and seed.

        Args:
            dataset: cifar10, cifar100 or fmnist.
            row: An algorithm, or one with a preset: `feddual-literal`.
            setting: What the experiments' names begin with.

        Returns:
            In the order of draws and seeds, those of another row where it is the same; none when it was not run.
        """
        return _rows.found_once(row, lambda name: self.same(_rows.row_identity(setting + dataset, name)))

    def of_study(
        self, study: str, holding: Callable[[Recorded], bool] | None = None
    ) -> dict[tuple[str, str], list[Recorded]]:
        """The runs of a shipped study's rows, wherever they were recorded.

        Args:
            study: Its name.
            holding: Whether a run has what is asked for, where the same run may have been recorded twice.

        Returns:
            By experiment and row, one per draw of the clients and seed; none for what was not run.
        """
        loaded = grid.load(study)
        asked = ((source, row) for source in loaded.experiments for row in loaded.rows)
        return {
            (source, row): self.same(identity(config.resolve(source, loaded.rows[row]).to_dict()), holding)
            for source, row in asked
        }

    def timed(self, dataset: str, row: str, plain: bool) -> list[Recorded]:
        """The runs of a row that had the machine for themselves, whatever their number of rounds.

        Args:
            dataset: cifar10, cifar100 or fmnist.
            row: An algorithm, or one with a preset.
            plain: Whether without the exact accelerations.

        Returns:
            In the order in which they were found.
        """
        timed = [run for run in self.runs if run.is_timing and run.is_plain == plain]

        def find(name: str) -> list[Recorded]:  # what pixels are divided by takes no time
            known = [_rows.row_identity(setting + dataset, name) for setting in _rows.SETTINGS]
            wanted = {one.without_rounds for one in known if one}
            return [run for run in timed if run.identity.without_rounds in wanted]

        return _rows.found_once(row, find)

    @cached_property
    def tuned(self) -> dict[tuple[str, str, str], Tuned]:
        """What the studies' tuned.yaml files chose, by experiment, row and block.

        Raises:
            UserError: When two of them chose differently.
        """
        found: dict[tuple[str, str, str], Tuned] = {}
        places: dict[tuple[str, str, str], Path] = {}
        for path, files in all_choices(self.root).items():
            rows = files.read().get("rows", {})
            for entry in files.choices().values():
                key = (entry["experiment"], entry["row"], entry.get("block", "chosen"))
                wanted = (rows.get(entry["row"]) or _rows.overrides(entry["row"])) | entry["settings"]
                try:
                    asked = identity(config.resolve(entry["experiment"], wanted).to_dict())
                except UserError:
                    continue  # of a preset or a file that is gone; its runs cannot be recognised
                facts = (entry["accuracy"], len(entry["trials"]), entry.get("begun", 0))
                tuned = Tuned(key[1], key[0], key[2], entry["settings"], asked, *facts)
                if found.setdefault(key, tuned).identity != tuned.identity:
                    said = f"{key[1]} on {key[0]}: {path} chose other settings than {places[key]}"
                    raise UserError(f"{said}; keep one of them")
                places.setdefault(key, path)
        return found

    def chosen(self, dataset: str, row: str, setting: str = "paper-", block: str = "chosen") -> list[Recorded]:
        """A row's runs with the settings that were chosen for it, one per draw of the clients and seed.

        Args:
            dataset: cifar10, cifar100 or fmnist.
            row: An algorithm.
            setting: What the experiments' names begin with.
            block: `chosen` on this data set, or `joint`, one setting for all.

        Returns:
            In the order of draws and seeds; none when nothing was chosen.
        """

        def find(name: str) -> list[Recorded]:
            tuned = self.tuned.get((setting + dataset, name, block))
            return self.same(tuned.identity) if tuned else []

        return _rows.found_once(row, find)


# --- frames -----------------------------------------------------------------------------------------------------------


def per_round(runs: Sequence[Recorded], value: str | Callable[[dict[str, Any]], Any]) -> pd.DataFrame:
    """A metric, or what a function reads from a round's metrics, a row per round, a column per repetition."""
    columns: dict[Replicate, pd.Series] = {}
    for run in runs:
        found = {row["round"]: row.get(value) if isinstance(value, str) else value(row) for row in run.metrics}
        columns[run.replicate] = pd.Series({index: one for index, one in found.items() if one is not None}, dtype=float)
    return pd.DataFrame(columns, dtype=float).rename_axis(columns=Replicate._fields if columns else None).sort_index()


def smoothed(values: pd.Series) -> pd.Series:
    """The running mean over the last rounds: with very skewed clients one round swings by points."""
    return values.rolling(WINDOW, min_periods=1).mean()


def seeds_text(*numbers: int, what: str = "seed") -> str:
    """`3 seeds`, or `1-3 seeds` where they differ."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low}–{high} {what}s" if low < high else f"{high} {what}{'s' if high != 1 else ''}"


def baseline_first(runs: Sequence[Recorded]) -> list[Recorded]:
    """Runs in the order of their repetitions, experiments with FedAvg on even clients, then FedAvg, before others."""

    def place(run: Recorded) -> tuple[bool, bool, Replicate]:
        return run.config["algorithm"]["name"] != "fedavg", run.config["partition"]["name"] != "iid", run.replicate

    return sorted(runs, key=place)


def repetitions_text(which: Iterable[Replicate]) -> str:
    """`3 seeds`, or `2 draws × 3 seeds` of several draws of the clients."""
    found = list(which)
    draws, seeds = ({one[place] for one in found} for place in (0, 1))
    if len(draws) < 2:
        return seeds_text(len(seeds))
    whole = len(found) == len(draws) * len(seeds)
    return f"{len(draws)} draws × {seeds_text(len(seeds))}" if whole else f"{len(found)} draws and seeds"


def accuracy(runs: Sequence[Recorded], paper: tuple[float, float] | str | None = None) -> dict[str, Any]:
    """A cell of an accuracy table, in percent.

    Args:
        runs: The seeds of an experiment.
        paper: The paper's mean and standard deviation, "*" when it did not converge there, None when not in the paper.
    """
    facts = [run.summary for run in runs]
    mean, std = over_seeds([fact["accuracy"] for fact in facts])
    known = [fact["accuracy"] for fact in facts if fact["accuracy"] is not None]
    _, low, high = over_runs(100 * np.array(known or [np.nan])).floats()
    given = paper if isinstance(paper, tuple) else (np.nan, np.nan)
    final, best = (100 * over_seeds([fact[key] for fact in facts])[0] for key in ("final", "best"))
    return {
        "seeds": len(runs), "accuracy": 100 * mean, "std": 100 * std, "low": low, "high": high,
        "final": final, "best": best,
        "diverged": sum(fact["diverged"] for fact in facts), "paper": given[0], "paper_std": given[1],
        "paper_diverged": paper == "*", "difference": 100 * mean - given[0],
    }  # fmt: skip


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
    missing = "*" if cell["paper_diverged"] else "–"
    return f"{cell['paper']:.2f} ± {cell['paper_std']:.2f}" if cell["paper"] == cell["paper"] else missing


def difference_text(cell: Mapping[str, Any]) -> str:
    gone = cell["difference"] != cell["difference"] or cell["diverged"] == cell["seeds"]
    return "–" if gone else signed(cell["difference"])


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def same_text(row: str) -> str:
    """`= FedAvg`, for a row whose runs are another's."""
    return f"= {LOOKS[row].label}" if row else ""


def task(run: Recorded) -> tuple[str, str]:
    """What a run can be compared on: data and model."""
    return run.dataset, str(run.config["model"]["name"])


def is_iid(run: Recorded) -> bool:
    """Whether its clients are alike."""
    return bool(run.config["partition"]["name"] == "iid")


def grouped(runs: Sequence[Recorded]) -> dict[str, list[Recorded]]:
    """Runs that are repetitions of one experiment, in the order of draws and seeds, by what tells experiments apart."""
    gathered: dict[tuple[str, int], dict[Replicate, Recorded]] = {}
    for run in runs:
        number = 0
        while run.replicate in gathered.get((run.identity.text, number), {}):
            number += 1  # the same run twice: two groups
        gathered.setdefault((run.identity.text, number), {})[run.replicate] = run
    ordered = sorted(gathered.values(), key=lambda members: _place(next(iter(members.values()))))
    names = _names([next(iter(members.values())) for members in ordered])
    return {name: [members[which] for which in sorted(members)] for name, members in zip(names, ordered, strict=True)}


def _place(run: Recorded) -> tuple[int, bool, str]:
    name = run.config["algorithm"]["name"]
    order = _rows.ALGORITHMS
    return order.index(name) if name in order else len(order), not is_iid(run), str(run.path)


def _names(runs: Sequence[Recorded]) -> list[str]:
    """The algorithm; data, model, partition where they differ; then what still tells runs apart: preset, folder."""
    names = [_algorithm(run.config["algorithm"]) for run in runs]
    tasks = [list(facet) for facet in zip(*map(task, runs), strict=True)]
    for facet in (*tasks, [_partition(run.config["partition"]) for run in runs]):
        if len(set(facet)) > 1:
            names = [f"{name}, {what}" for name, what in zip(names, facet, strict=True)]
    for more in ([run.config["algorithm"].get("preset") for run in runs], [run.path.name for run in runs]):
        named, twice = zip(names, more, strict=True), Counter(names)
        names = [f"{name} ({what})" if twice[name] > 1 and what else name for name, what in named]
    again = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} #{before + 1}" if before else name for name, before in zip(names, again, strict=True)]


def _algorithm(section: dict[str, Any]) -> str:
    look = LOOKS.get(section["name"])
    return look.label if look else str(section["name"])


def _partition(section: dict[str, Any]) -> str:
    if section["name"] == "iid":
        return "IID"
    return f"non-IID (α = {section['alpha']:g})" if section.get("alpha") is not None else str(section["name"])

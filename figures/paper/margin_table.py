"""How far FedDUAL is ahead of each baseline, run by run, in each block of Table 1.

Runs of one draw and seed share clients, initial weights, samples and batches, so their difference says more than the
difference of two means.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import LEVEL, NO_INTERVAL, over_repetitions, over_seeds, simultaneous
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, same_text, signed
from figures._rows import ALGORITHMS, BY_EXAMPLES, DATASETS, SAME_RUNS, SETTINGS, same_as
from figures.charts import LOOKS, tables

Pairs = Sequence[tuple[Recorded, Recorded]]  # of one draw and seed: ours and theirs
BLOCKS = {"default": "(a) at 1e-3", "chosen": "(b) chosen", "joint": "(c) one for all"}

OURS = "feddual"
BASELINES = (*(row for row in ALGORITHMS if row != OURS), *BY_EXAMPLES)
TITLE = "FedDUAL against each baseline: points of accuracy, and rounds to the target"
NOTES = (
    "FedDUAL minus baseline, both in the same block of Table 1: mean of the runs' differences (same clients, same "
    "seed), its 95 % interval over draws of the clients and seeds and, behind the bar, one wide enough for all "
    "comparisons of the part to hold at once (Bonferroni; their number is in the heading, rows with the same runs "
    "counted once). In brackets: runs in which FedDUAL is ahead / runs both have; * when the baseline did not converge "
    "in some. Rounds: median over the same runs of the first round that reaches the target.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write margin_table.md, .tex and .csv."""
    cells, sections = [], []
    for setting, dataset in itertools.product(SETTINGS, DATASETS):
        made, comparisons = _part(runs, setting, dataset)
        if not setting and not comparisons:
            continue
        cells += [
            {"setting": setting + dataset, "dataset": dataset, "row": row, "block": block, **cell}
            for (row, block), cell in made.items()
        ]
        lines = [
            [LOOKS[row].label, *(text for block in BLOCKS if (row, block) in made for text in _texts(made[row, block]))]
            for row in BASELINES
        ]
        lines = [line + ["–"] * (1 + 3 * len(BLOCKS) - len(line)) for line in lines]  # rows of (a) alone
        columns = ["baseline", *(name for title in BLOCKS.values() for name in (title, "its rounds", "FedDUAL's"))]
        said = f"{DATASETS[dataset]}, {SETTINGS[setting]}"
        sections.append(tables.Block(f"{said} ({comparisons} comparisons)" if comparisons else said, columns, lines))
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("margin_table", TITLE, sections, NOTES, frame, out), frame)


def _part(runs: Results, setting: str, dataset: str) -> tuple[dict[tuple[str, str], dict[str, Any]], int]:
    """The cells of a data set by baseline and block, and how many comparisons they are."""
    found = {
        (row, block): (find(dataset, row, **more), find(dataset, OURS, **more))
        for block in BLOCKS
        for find, more in [_finder(runs, setting, block)]
        for row in BASELINES
        if block == "default" or row not in BY_EXAMPLES
    }
    same = {key: same_as(key[0], theirs) for key, (theirs, _) in found.items()}
    pairs = {key: _pairs(ours, theirs) for key, (theirs, ours) in found.items()}
    comparisons = sum(bool(several) and not same[key] for key, several in pairs.items())
    return {key: {"same_as": same[key], **_cell(several, comparisons)} for key, several in pairs.items()}, comparisons


def _finder(runs: Results, setting: str, block: str) -> tuple[Any, dict[str, str]]:
    if block == "default":
        return runs.of, {"setting": setting}
    return runs.chosen, {"setting": setting, "block": block}


def _pairs(ours: Sequence[Recorded], theirs: Sequence[Recorded]) -> Pairs:
    same = {run.replicate: run for run in theirs}
    return [(run, same[run.replicate]) for run in ours if run.replicate in same]


def _cell(pairs: Pairs, comparisons: int) -> dict[str, Any]:
    by_run = {mine.replicate: 100 * (mine.summary["accuracy"] - other.summary["accuracy"]) for mine, other in pairs}
    gaps = [*by_run.values()]
    margin, std = over_seeds(gaps)
    single, every = (over_repetitions(by_run, at) for at in (LEVEL, simultaneous(comparisons)))
    ends = dict(zip(("low", "high", "all_low", "all_high"), (*single[1:], *every[1:]), strict=True))
    return {
        "seeds": len(pairs), "margin": margin, "std": std, **{name: float(end) for name, end in ends.items()},
        "comparisons": comparisons, "ahead": sum(gap > 0 for gap in gaps),
        "diverged": sum(other.summary["diverged"] for _, other in pairs),
        "rounds": _rounds([other for _, other in pairs]), "our_rounds": _rounds([mine for mine, _ in pairs]),
    }  # fmt: skip


def _rounds(runs: Sequence[Recorded]) -> float:
    """The median; infinite when half of the seeds do not reach the target."""
    rounds = [np.inf if run.summary["rounds_to_target"] is None else run.summary["rounds_to_target"] for run in runs]
    return float(np.median(rounds)) if rounds else np.nan


def _texts(cell: dict[str, Any]) -> list[str]:
    if not cell["seeds"]:
        return [NOT_RUN, "–", "–"]
    if cell["same_as"]:
        return [same_text(cell["same_as"]), "–", "–"]
    ends = [signed(cell[name]) for name in ("low", "high", "all_low", "all_high")]
    around = "[{}, {} | {}, {}]".format(*ends) if cell["seeds"] > 1 else f"({NO_INTERVAL})"
    rounds = ["not reached" if np.isinf(cell[key]) else f"{cell[key]:g}" for key in ("rounds", "our_rounds")]
    star = ", *" if cell["diverged"] else ""
    return [f"{signed(cell['margin'])} {around} ({cell['ahead']}/{cell['seeds']}{star})", *rounds]

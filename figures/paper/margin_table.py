"""How far FedDUAL's preset `tuned` is ahead of each baseline, seed by seed.

Runs of one seed share initial weights, sampled clients and batches, so their difference says more than the difference
of two means. Baselines stand with Adam 1e-3, as in Table 1, and with the settings chosen for them on held-out data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import LEVEL, NO_INTERVAL, over_repetitions, over_seeds, simultaneous
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, same_text, signed
from figures._rows import ALGORITHMS, DATASETS, SAME_RUNS, same_as
from figures.charts import LOOKS, tables

Pairs = Sequence[tuple[Recorded, Recorded]]  # of one seed: ours and theirs

OURS = "feddual-tuned"
BASELINES = tuple(row for row in ALGORITHMS if row != "feddual")
TITLE = "FedDUAL (tuned) against each baseline: points of accuracy, and rounds to the target"
NOTES = (
    "FedDUAL minus baseline: mean of the seeds' differences, its 95 % interval (Student's t) and, behind the bar, one "
    "wide enough for all comparisons of the data set to hold at once (Bonferroni; their number is in the heading, rows "
    "with the same runs counted twice). In brackets: seeds in which FedDUAL is ahead / seeds both have; * when the "
    "baseline did not converge in some. Rounds: median over the same seeds of the first round that reaches the target.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write margin_table.md, .tex and .csv."""
    cells, sections = [], []
    found = {"default": runs.of, "tuned": runs.chosen}
    for dataset, label in DATASETS.items():
        ours = runs.of(dataset, OURS)
        theirs = {(row, block): find(dataset, row) for row in BASELINES for block, find in found.items()}
        same = {key: same_as(key[0], several) for key, several in theirs.items()}
        pairs = {key: _pairs(ours, several) for key, several in theirs.items()}
        comparisons = sum(bool(several) and not same[key] for key, several in pairs.items())
        made = {key: {"same_as": same[key], **_cell(several, comparisons)} for key, several in pairs.items()}
        cells += [{"dataset": dataset, "row": row, "block": block, **cell} for (row, block), cell in made.items()]
        lines = [
            [LOOKS[row].label, *(text for block in found for text in _texts(made[row, block]))] for row in BASELINES
        ]
        columns = ["baseline", "at 1e-3", "its rounds", "FedDUAL's", "chosen settings", "its rounds", "FedDUAL's"]
        heading = f"{label} ({comparisons} comparisons)" if comparisons else label
        sections.append(tables.Block(heading, columns, lines))
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("margin_table", TITLE, sections, NOTES, frame, out), frame)


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

"""How far FedDUAL's preset `tuned` is ahead of each baseline, seed by seed.

Runs of one seed share initial weights, sampled clients and batches, so their difference says more than the difference
of two means. Baselines stand with Adam 1e-3, as in Table 1, and with the settings chosen for them on held-out data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import over_seeds
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, same_text, signed
from figures._rows import ALGORITHMS, DATASETS, SAME_RUNS, same_as
from figures.charts import LOOKS, tables

OURS = "feddual-tuned"
BASELINES = tuple(row for row in ALGORITHMS if row != "feddual")
TITLE = "FedDUAL (tuned) against each baseline: points of accuracy, and rounds to the target"
NOTES = (
    "FedDUAL minus baseline: mean ± sample standard deviation of the seeds' differences (seeds in which FedDUAL is "
    "ahead / seeds both have; * when the baseline did not converge in some). Rounds: median over the same seeds of the "
    "first round that reaches the target.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write margin_table.md, .tex and .csv."""
    cells, sections = [], []
    for dataset, label in DATASETS.items():
        ours = runs.of(dataset, OURS)
        lines = []
        for row in BASELINES:
            found = {"default": runs.of(dataset, row), "tuned": runs.chosen(dataset, row)}
            pair = {block: {"same_as": same_as(row, of), **_cell(ours, of)} for block, of in found.items()}
            cells += [{"dataset": dataset, "row": row, "block": block, **cell} for block, cell in pair.items()]
            lines.append([LOOKS[row].label, *(text for cell in pair.values() for text in _texts(cell))])
        columns = ["baseline", "at 1e-3", "its rounds", "FedDUAL's", "chosen settings", "its rounds", "FedDUAL's"]
        sections.append(tables.Block(label, columns, lines))
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("margin_table", TITLE, sections, NOTES, frame, out), frame)


def _cell(ours: Sequence[Recorded], theirs: Sequence[Recorded]) -> dict[str, Any]:
    by_seed = {run.seed: run for run in theirs}
    pairs = [(run, by_seed[run.seed]) for run in ours if run.seed in by_seed]
    gaps = [100 * (mine.summary["accuracy"] - other.summary["accuracy"]) for mine, other in pairs]
    margin, std = over_seeds(gaps)
    return {
        "seeds": len(pairs), "margin": margin, "std": std, "ahead": sum(gap > 0 for gap in gaps),
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
    spread = f" ± {cell['std']:.2f}" if cell["std"] == cell["std"] else ""
    rounds = ["not reached" if np.isinf(cell[key]) else f"{cell[key]:g}" for key in ("rounds", "our_rounds")]
    star = ", *" if cell["diverged"] else ""
    return [f"{signed(cell['margin'])}{spread} ({cell['ahead']}/{cell['seeds']}{star})", *rounds]

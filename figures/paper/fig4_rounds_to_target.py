"""Fig. 4 a-c: rounds until the target accuracy, one panel per data set.

A bar is the median over runs of the first round that reaches the target; the paler one below it asks the mean of five
rounds to reach it, which no lucky round can. A seed that never gets there counts as later than all that do.
The paper prints no numbers; the diamonds are derived from its Tables 4 and 5.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from feddual.records.results import Recorded
from feddual.records.summary import TARGETS
from figures._results import NOT_RUN, Drawing, Results, same_text, signed
from figures._rows import ALGORITHMS, AUTHORS_NOTE, DATASETS, SAME_RUNS, same_as
from figures.charts import LOOKS, Bars, Chart, Panel, save, tables
from figures.paper import _values as _paper

NAME = "fig4_rounds_to_target"
TITLE = "Fig. 4: rounds to the target accuracy"
NOT_REACHED = "not reached"
NOTES = (
    "Median over runs of the first round that reaches the target, and of the first round at which the mean of five "
    "rounds does; in brackets the runs that reach it. Paper: derived from its Tables 4 and 5 (hours to the target, "
    "over all hours, times all rounds); it prints no numbers, and names no target for CIFAR-100 (0.20 is our choice).",
    f"In {AUTHORS_NOTE}.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig4_rounds_to_target.png, .pdf and .html, and its numbers as .md, .tex and .csv."""
    frame = pd.DataFrame([_cell(runs, dataset, row) for dataset in DATASETS for row in ALGORITHMS])
    panels, sections = [], []
    for letter, (dataset, label) in zip("abc", DATASETS.items(), strict=True):
        cells = frame[frame["dataset"] == dataset].to_dict("records")
        title = f"{label}, target {100 * TARGETS[dataset]:.0f} %"
        panels.append(Panel(f"({letter}) {title}", "communication rounds", "", [_bars(cells)]))
        sections.append(_section(title, cells))
    caption = f"median over runs; fewer rounds are better; {AUTHORS_NOTE}"
    chart = Chart(panels, panel_height=4.4, share_y=True, caption=caption)
    files = save(chart, NAME, out) + tables.write(NAME, TITLE, sections, NOTES, frame, out)
    return Drawing(files, frame)


def _cell(runs: Results, dataset: str, row: str) -> dict[str, Any]:
    found = runs.of(dataset, row)
    first, mean5 = (_median(found, key) for key in ("rounds_to_target", "rounds_to_target_mean5"))
    return {
        "dataset": dataset, "row": row, "target": TARGETS[dataset], "seeds": len(found), "same_as": same_as(row, found),
        "reached": sum(run.summary["rounds_to_target"] is not None for run in found), "rounds": first,
        "reached_mean5": sum(run.summary["rounds_to_target_mean5"] is not None for run in found),
        "rounds_mean5": mean5, "paper_derived": _paper.rounds_to_target(row, dataset),
    }  # fmt: skip


def _median(runs: Sequence[Recorded], key: str) -> float:
    """NaN when half of the seeds, or more, do not reach the target."""
    rounds = [np.inf if run.summary[key] is None else run.summary[key] for run in runs]
    middle = np.median(rounds) if rounds else np.nan
    return float(middle) if np.isfinite(middle) else np.nan


def _bars(cells: Sequence[Mapping[Any, Any]]) -> Bars:
    def known(key: str) -> list[float | None]:
        return [None if np.isnan(cell[key]) else cell[key] for cell in cells]

    def ours(key: str) -> list[float | None]:
        return [None if cell["same_as"] else value for cell, value in zip(cells, known(key), strict=True)]

    return Bars(
        [LOOKS[cell["row"]] for cell in cells],
        {"first round": ours("rounds"), "mean of 5 rounds": ours("rounds_mean5")},
        [same_text(cell["same_as"]) or (NOT_REACHED if cell["seeds"] else NOT_RUN) for cell in cells],
        ("paper, derived", known("paper_derived")),
    )


def _section(title: str, cells: Sequence[Mapping[Any, Any]]) -> tables.Block:
    lines = []
    for cell in cells:
        paper, gap = cell["paper_derived"], cell["rounds"] - cell["paper_derived"]
        ours = [_text(cell, f"rounds{way}", f"reached{way}") for way in ("", "_mean5")]
        theirs = "–" if np.isnan(paper) else f"{paper:g}"
        apart = "–" if np.isnan(gap) else signed(gap, 0 if gap == int(gap) else 1)
        lines.append([LOOKS[cell["row"]].label, *ours, theirs, apart])
    return tables.Block(title, ["algorithm", "first round", "mean of 5 rounds", "paper, derived", "difference"], lines)


def _text(cell: Mapping[Any, Any], rounds: str, reached: str) -> str:
    if not cell["seeds"]:
        return NOT_RUN
    if cell["same_as"]:
        return same_text(cell["same_as"])
    shown = NOT_REACHED if np.isnan(cell[rounds]) else f"{cell[rounds]:g}"
    return f"{shown} ({cell[reached]}/{cell['seeds']})"

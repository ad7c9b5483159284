"""Table 1: test accuracy of the nine algorithms and FedDUAL's controls on three data sets.

First with the paper's protocol (Adam 1e-3 for all), then with the settings that each algorithm's tuning chose on
held-out training data. The paper's value and the difference stand beside ours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from feddual.records.results import Recorded
from figures._results import Drawing, Results, accuracy, accuracy_text, difference_text, paper_text, same_text
from figures._rows import ALGORITHMS, DATASETS, SAME_RUNS, VARIANTS, same_as
from figures.charts import LOOKS, tables
from figures.paper import _values as _paper
from figures.paper.tuning_table import text

TUNED = (*ALGORITHMS[:-1], "feddual-tuned")
TITLE = "Table 1: test accuracy (%), 100 clients, 10 per round, α = 0.01"
NOTES = (
    "Ours: mean ± sample standard deviation over seeds (their number; one has none) of the mean accuracy over the last "
    "10 % of rounds; the 95 % interval of the mean (Student's t) is in the CSV file. Paper: FedDUAL, TMLR 2025, Table "
    "1. Difference: ours minus the paper's, in points. Bold: the best mean.",
    "* did not converge: non-finite weights, or within a point of chance over the last 10 % of rounds.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write table1_accuracy.md, .tex and .csv."""
    blocks = {"paper": _block(ALGORITHMS, runs.of), "variant": _block(VARIANTS, runs.of)}
    blocks["tuned"] = _block(TUNED, runs.chosen)
    for cell in blocks["tuned"]:
        cell["settings"] = _settings(runs, cell["dataset"], cell["row"])
    chosen = [
        [LOOKS[row].label, *(cell["settings"] or "not tuned" for cell in blocks["tuned"] if cell["row"] == row)]
        for row in TUNED
    ]
    sections = [
        section("Adam, learning rate 1e-3, for all", blocks["paper"]),
        section("FedDUAL read in other ways, and its controls (Adam 1e-3)", blocks["variant"], with_paper=False),
        section("Settings chosen on held-out training data; FedDUAL's one setting for all three", blocks["tuned"]),
        tables.Block("The settings chosen", ["algorithm", *DATASETS.values()], chosen),
    ]
    frame = pd.DataFrame([{"block": block, **cell} for block, cells in blocks.items() for cell in cells])
    return Drawing(tables.write("table1_accuracy", TITLE, sections, NOTES, frame, out), frame)


def _settings(runs: Results, dataset: str, row: str) -> str:
    if (dataset, row) in runs.tuned:
        return text(runs.tuned[dataset, row].settings)
    return "preset tuned" if row == "feddual-tuned" else ""


def _block(rows: Sequence[str], find: Any) -> list[dict[str, Any]]:
    """The cells of some rows, data set by data set within a row."""
    cells = []
    for row in rows:
        for dataset in DATASETS:
            found: list[Recorded] = find(dataset, row)
            paper = _paper.TABLE1.get(row.removesuffix("-tuned"), {}).get(dataset)
            cells.append({"row": row, "dataset": dataset, "same_as": same_as(row, found), **accuracy(found, paper)})
    return cells


def section(title: str, cells: Sequence[dict[str, Any]], with_paper: bool = True) -> tables.Block:
    """A part of the table: a line per row, three columns per data set (one without the paper's values)."""
    best = {
        dataset: max((c["accuracy"] for c in cells if c["dataset"] == dataset and _counts(c)), default=None)
        for dataset in DATASETS
    }
    columns = ["algorithm"]
    for label in DATASETS.values():
        columns += [label, "paper", "difference"] if with_paper else [label]
    lines = []
    for row in dict.fromkeys(cell["row"] for cell in cells):
        line = [LOOKS[row].label]
        for cell in (cell for cell in cells if cell["row"] == row):
            text = same_text(cell["same_as"]) or accuracy_text(cell)
            line.append(tables.Strong(text) if _counts(cell) and cell["accuracy"] == best[cell["dataset"]] else text)
            line += [paper_text(cell), difference_text(cell)] if with_paper else []
        lines.append(line)
    return tables.Block(title, columns, lines)


def _counts(cell: dict[str, Any]) -> bool:
    return cell["seeds"] > cell["diverged"] and not cell["same_as"]

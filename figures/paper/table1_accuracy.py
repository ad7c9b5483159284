"""Table 1: test accuracy of the nine algorithms on three data sets, in three blocks and two settings.

(a) Adam 1e-3 and nothing tuned, as in the public code; (b) settings chosen on held-out training data, for each data set
and algorithm from as many trials; (c) one setting for all data sets, chosen from the same trials. First in the authors'
setting, which feeds raw pixels, with the paper's values beside ours; then with the input that is good practice.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from feddual.records.results import Recorded
from figures._results import Drawing, Results, accuracy, accuracy_text, difference_text, paper_text, same_text
from figures._rows import ALGORITHMS, BY_EXAMPLES, DATASETS, SAME_RUNS, SETTINGS, same_as
from figures.charts import LOOKS, tables
from figures.paper import _values as _paper
from figures.paper.tuning_table import text

TITLE = "Table 1: test accuracy (%), 100 clients, 10 per round, α = 0.01"
BLOCKS = {
    "default": "(a) Adam, learning rate 1e-3, nothing tuned",
    "chosen": "(b) settings chosen for each data set",
    "joint": "(c) one setting for all data sets",
}
NOTES = (
    "Ours: mean ± sample standard deviation over runs (their number; one has none), each with its own draw of the "
    "clients or seed, of the mean accuracy over the last 10 % of rounds; the 95 % interval of the mean is in the CSV "
    "file, as are the final and the best round. Paper: FedDUAL, TMLR 2025, Table 1. Difference: ours minus theirs, in "
    "points. Bold: the best mean.",
    "All clients count alike but where it says by examples. Optimizer: Adam in (a), what was chosen in (b) and (c), "
    "which is listed below; SCAFFOLD and FedPVR correct Adam's gradient in (a).",
    "* did not converge: non-finite weights, or within a point of chance over the last 10 % of rounds.",
    SAME_RUNS,
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write table1_accuracy.md, .tex and .csv."""
    cells: list[dict[str, Any]] = []
    sections = []
    for setting, said in SETTINGS.items():
        for block, title in BLOCKS.items():
            found = _cells(runs, setting, block)
            if not any(cell["seeds"] for cell in found) and (setting, block) != ("paper-", "default"):
                continue
            sections.append(section(f"{title}; {said}", found, with_paper=bool(setting)))
            if block != "default":
                sections.append(_settings(found))
            cells += found
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("table1_accuracy", TITLE, sections, NOTES, frame, out), frame)


def _cells(runs: Results, setting: str, block: str) -> list[dict[str, Any]]:
    """The cells of a block, data set by data set within a row."""
    rows = (*ALGORITHMS, *BY_EXAMPLES) if block == "default" else ALGORITHMS
    find = partial(runs.chosen, block=block) if block != "default" else runs.of
    cells = []
    for row in rows:
        for dataset in DATASETS:
            found: list[Recorded] = find(dataset, row, setting=setting)
            tuned = runs.tuned.get((setting + dataset, row, block))
            facts = {"setting": setting + dataset, "block": block, "row": row, "dataset": dataset}
            facts |= {"same_as": same_as(row, found), "settings": text(tuned.settings) if tuned else ""}
            cells.append(facts | accuracy(found, _paper.TABLE1.get(row, {}).get(dataset) if setting else None))
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
            said = same_text(cell["same_as"]) or accuracy_text(cell)
            line.append(tables.Strong(said) if _counts(cell) and cell["accuracy"] == best[cell["dataset"]] else said)
            line += [paper_text(cell), difference_text(cell)] if with_paper else []
        lines.append(line)
    return tables.Block(title, columns, lines)


def _settings(cells: Sequence[dict[str, Any]]) -> tables.Block:
    """What was chosen for the rows of a block."""
    lines = [
        [LOOKS[row].label, *(cell["settings"] or "not tuned" for cell in cells if cell["row"] == row)]
        for row in ALGORITHMS
    ]
    return tables.Block("The settings chosen", ["algorithm", *DATASETS.values()], lines)


def _counts(cell: dict[str, Any]) -> bool:
    return cell["seeds"] > cell["diverged"] and not cell["same_as"]

"""Settings chosen on held-out training data: what was best for each algorithm, and out of how many.

For each data set, and one for all data sets. Every algorithm has as many trials; what is clearly behind after a third
of the rounds stops there (`feddual study paper-tuned --tune`).
"""

from pathlib import Path
from typing import Any

import pandas as pd

from figures._results import NOT_RUN, Drawing, Results
from figures._rows import ALGORITHMS, DATASETS, SETTINGS
from figures.charts import LOOKS, tables

TITLE = "Settings chosen on held-out training data: accuracy (%)"
NOTES = (
    "Mean over the repetitions of a setting, each with its own clients and seed, of the mean accuracy over the last 10 "
    "% of the rounds; a tenth of the training data is held out before the clients are drawn, and the test data stay "
    "unopened. "
    "Trials: settings tried to the end / runs of all that were begun.",
)
COLUMNS = ["setting", "dataset", "row", "block", "settings", "accuracy", "whole", "begun"]


def draw(runs: Results, out: Path) -> Drawing:
    """Write tuning_table.md, .tex and .csv."""
    sections, cells = [], []
    for setting, said in SETTINGS.items():
        for block, title in (("chosen", "for each data set"), ("joint", "one setting for all data sets")):
            found = [_cell(runs, setting, dataset, row, block) for row in ALGORITHMS for dataset in DATASETS]
            if not any(cell["whole"] for cell in found) and (setting, block) != ("paper-", "chosen"):
                continue
            columns = ["algorithm", *(name for label in DATASETS.values() for name in (label, "settings", "trials"))]
            lines = [[LOOKS[row].label, *_line(found, row)] for row in ALGORITHMS]
            sections.append(tables.Block(f"{title}; {said}", columns, lines))
            cells += found
    frame = pd.DataFrame(cells, columns=COLUMNS)
    return Drawing(tables.write("tuning_table", TITLE, sections, NOTES, frame, out), frame)


def _cell(runs: Results, setting: str, dataset: str, row: str, block: str) -> dict[str, Any]:
    tuned = runs.tuned.get((setting + dataset, row, block))
    return {
        "setting": setting, "dataset": dataset, "row": row, "block": block,
        "settings": text(tuned.settings) if tuned else "", "accuracy": 100 * tuned.accuracy if tuned else None,
        "whole": tuned.whole if tuned else 0, "begun": tuned.begun if tuned else 0,
    }  # fmt: skip


def _line(cells: list[dict[str, Any]], row: str) -> list[str]:
    line: list[str] = []
    for cell in (cell for cell in cells if cell["row"] == row):
        count = f"{cell['whole']} / {cell['begun']}" if cell["whole"] else "as another row's"
        line += [f"{cell['accuracy']:.2f}", cell["settings"], count] if cell["settings"] else [NOT_RUN, "–", "–"]
    return line


def text(settings: dict[str, Any]) -> str:
    """Settings as people read them."""
    named = ((key.rpartition(".")[2].replace("_", " "), value) for key, value in settings.items())
    return ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in named)

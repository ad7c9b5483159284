"""FedDUAL read in several ways, beside FedAvg and two controls, in the authors' setting.

FedDUAL stands for our reading, the default; `literal` follows Algorithm 1 to the letter, `published` the public code's
arithmetic; in `frozen_head` the output layer never moves, in `mean` the barycenter is the mean.
"""

from pathlib import Path

import pandas as pd

from figures._results import Drawing, Results, accuracy, accuracy_text, paper_text, signed
from figures._rows import AUTHORS_NOTE, DATASETS, READINGS
from figures.charts import LOOKS, tables
from figures.paper import _values as _paper

TITLE = "FedDUAL's readings and controls: test accuracy (%) and gain over FedAvg (points)"
ROWS = ("fedavg", "feddual", *READINGS)
NOTES = (
    "Mean ± sample standard deviation over runs (their number) of the mean accuracy over the last 10 % of rounds; "
    "gain: difference of the means. Paper: FedDUAL's Table 1. * did not converge.",
    f"In {AUTHORS_NOTE}.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write fidelity_table.md, .tex and .csv."""
    cells = []
    for row in ROWS:
        for dataset in DATASETS:
            cell = accuracy(runs.of(dataset, row), _paper.TABLE1.get(row, {}).get(dataset))
            base = accuracy(runs.of(dataset, "fedavg"))["accuracy"]
            cells.append({"row": row, "dataset": dataset, **cell, "gain": cell["accuracy"] - base})
    frame = pd.DataFrame(cells)

    columns = ["reading", *(name for label in DATASETS.values() for name in (label, "gain"))]
    lines = []
    for row in ROWS:
        line = [LOOKS[row].label]
        for cell in (cell for cell in cells if cell["row"] == row):
            missing = cell["gain"] != cell["gain"] or row == "fedavg"
            line += [accuracy_text(cell), "–" if missing else signed(cell["gain"])]
        lines.append(line)
    for row, label in (("fedavg", "the paper's FedAvg"), ("feddual", "the paper's FedDUAL")):
        line = [label]
        for dataset in DATASETS:
            cell, base = (accuracy([], _paper.TABLE1[name][dataset]) for name in (row, "fedavg"))
            line += [paper_text(cell), "–" if row == "fedavg" else signed(cell["paper"] - base["paper"])]
        lines.append(line)
    files = tables.write("fidelity_table", TITLE, [tables.Block("", columns, lines)], NOTES, frame, out)
    return Drawing(files, frame)

"""Where FedDUAL's gain comes from: each half alone, both, neither, and damping in place of them.

Runs of one draw and seed are compared, so that what is left is the part that was changed. The authors' setting.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import NO_INTERVAL, over_repetitions
from figures._results import NOT_RUN, Drawing, Results, accuracy, accuracy_text, signed
from figures._rows import AUTHORS_NOTE, DATASETS
from figures.charts import tables

TITLE = "Which half of FedDUAL helps: test accuracy (%) and gain over neither half (points)"
ROWS = {
    "neither": "neither (FedAvg)",
    "adaptive": "adaptive loss alone",
    "barycenter": "barycenter alone",
    "both": "both: FedDUAL",
    "mean": "both, with the mean for the barycenter",
    "damping": "damping alone: half a step of the output layer's mean",
}
WHOLE = {"neither": "fedavg", "both": "feddual"}  # rows of Table 1
NOTES = (
    "Mean ± sample standard deviation over runs (their number), each with its own draw of the clients or seed; gain: "
    "mean of the runs' differences from neither, with its 95 % interval over draws and seeds.",
    f"In {AUTHORS_NOTE}.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write halves_table.md, .tex and .csv."""
    found = runs.of_study("halves")
    cells: list[dict[str, Any]] = []
    lines = []
    for row, label in ROWS.items():
        line = [label]
        for dataset in DATASETS:
            base = runs.of(dataset, "fedavg")
            mine = runs.of(dataset, WHOLE[row]) if row in WHOLE else found[f"paper-{dataset}", row]
            same = {run.replicate: run.summary["accuracy"] for run in base}
            gaps = {
                run.replicate: 100 * (run.summary["accuracy"] - same[run.replicate])
                for run in mine
                if run.replicate in same and row != "neither"
            }
            gain, low, high = map(float, over_repetitions(gaps)) if gaps else (np.nan,) * 3
            cell = {"row": row, "dataset": dataset, **accuracy(mine), "gain": gain, "gain_low": low, "gain_high": high}
            cells.append(cell)
            line += [accuracy_text(cell), _gain(cell, len(gaps))]
        lines.append(line)
    columns = ["variant", *(name for label in DATASETS.values() for name in (label, "gain"))]
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("halves_table", TITLE, [tables.Block("", columns, lines)], NOTES, frame, out), frame)


def _gain(cell: dict[str, Any], pairs: int) -> str:
    if not pairs:
        return "–" if cell["seeds"] else NOT_RUN
    around = f"[{signed(cell['gain_low'])}, {signed(cell['gain_high'])}]" if pairs > 1 else f"({NO_INTERVAL})"
    return f"{signed(cell['gain'])} {around}"

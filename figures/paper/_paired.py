"""Tables of variants, each compared run by run with the one they vary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import NO_INTERVAL, over_repetitions
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, accuracy, accuracy_text, signed
from figures._rows import DATASETS
from figures.charts import tables

Found = Mapping[tuple[str, str], Sequence[Recorded]]  # runs by data set and row


def write(
    name: str, title: str, rows: Mapping[str, str], base: str, found: Found, notes: Sequence[str], out: Path
) -> Drawing:
    """Write a table: a line per row, accuracy and gain over the base for each data set.

    Args:
        name: Of the files.
        title: Of the table.
        rows: Labels by row.
        base: The row that the others are compared with.
        found: The runs.
        notes: Below it.
        out: Where the files go.
    """
    cells, lines = [], []
    for row, label in rows.items():
        made = [
            _cell(dataset, row, found.get((dataset, row), []), found.get((dataset, base), [])) for dataset in DATASETS
        ]
        cells += made
        lines.append([label, *(text for cell in made for text in (accuracy_text(cell), _gain(cell, row == base)))])
    columns = ["variant", *(text for label in DATASETS.values() for text in (label, "gain"))]
    frame = pd.DataFrame(cells)
    return Drawing(tables.write(name, title, [tables.Block("", columns, lines)], notes, frame, out), frame)


def _cell(dataset: str, row: str, mine: Sequence[Recorded], base: Sequence[Recorded]) -> dict[str, Any]:
    same = {run.replicate: run.summary["accuracy"] for run in base}
    pairs = [run for run in mine if run.replicate in same]
    gaps = {run.replicate: 100 * (run.summary["accuracy"] - same[run.replicate]) for run in pairs}
    gain, low, high = map(float, over_repetitions(gaps)) if gaps else (np.nan,) * 3
    ends = {"gain": gain, "gain_low": low, "gain_high": high, "pairs": len(gaps)}
    return {"row": row, "dataset": dataset, **accuracy(mine), **ends}


def _gain(cell: Mapping[str, Any], is_base: bool) -> str:
    if is_base or not cell["pairs"]:
        return "–" if cell["seeds"] else NOT_RUN
    around = f"[{signed(cell['gain_low'])}, {signed(cell['gain_high'])}]" if cell["pairs"] > 1 else f"({NO_INTERVAL})"
    return f"{signed(cell['gain'])} {around}"

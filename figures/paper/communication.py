"""Test accuracy against communication: all bytes sent up and down so far, one panel per data set.

Algorithms differ in what a round sends (SCAFFOLD and FedPVR send control variates, FedDUAL gradients of the masked
layers), so that fewer rounds need not be fewer bytes.
"""

from pathlib import Path

import pandas as pd

from feddual.records.summary import TARGETS
from figures._results import WINDOW, Drawing, Results, per_round, seeds_text, smoothed
from figures._rows import DATASETS, ROWS, TUNED_NOTE
from figures.charts import LOOKS, Chart, Line, Panel, save

GB = 1e9


def draw(runs: Results, out: Path) -> Drawing:
    """Write communication.png, .pdf and .html."""
    parts, panels = [], []
    for dataset, label in DATASETS.items():
        lines, seeds_found = [], []
        for row in ROWS:
            found = runs.of(dataset, row)
            if not found:
                continue
            accuracy = 100 * per_round(found, "accuracy").mean(axis=1)
            smooth = smoothed(accuracy)
            sent = (per_round(found, "bytes_up") + per_round(found, "bytes_down")).mean(axis=1).cumsum() / GB
            sent = sent.reindex(smooth.index)
            lines.append(Line(LOOKS[row], sent.to_numpy(), smooth.to_numpy()))
            columns = {"dataset": dataset, "row": row, "round": smooth.index, "gigabytes": sent, "accuracy": smooth}
            parts.append(pd.DataFrame(columns))
            seeds_found.append(len(found))
        level = 100 * TARGETS[dataset] if lines else None
        note = f"{seeds_text(*seeds_found)}; dashed: target {level:.0f} %" if lines else ""
        panels.append(Panel(label, "sent up and down (GB)", "test accuracy (%)", lines, level, note=note))
    caption = f"mean over seeds, running mean over {WINDOW} rounds; all traffic, uncompressed; {TUNED_NOTE}"
    chart = Chart(panels, caption=caption, panel_height=3.3)
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return Drawing(save(chart, "communication", out), frame)

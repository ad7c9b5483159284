"""Fig. 3 a-c: test accuracy over rounds, one panel per data set, all algorithms.

The line is the mean over seeds, smoothed by a running mean over five rounds: at α = 0.01 one round swings by points.
Fig. 10 has the seeds' spread. Ours to add: the same with the settings that were chosen for each algorithm.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from feddual.records.results import Recorded
from feddual.records.summary import TARGETS
from figures._results import WINDOW, Drawing, Results, per_round, seeds_text, smoothed
from figures._rows import DATASETS, ROWS, TUNED_NOTE
from figures.charts import LOOKS, Chart, Line, Panel, save

CHOSEN = tuple(row for row in ROWS if row != "feddual")
MEANS = f"mean over seeds, running mean over {WINDOW} rounds; α = 0.01"


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig3_curves and fig3_curves_chosen, each as .png, .pdf and .html."""
    chart, curves = _chart(runs.of, ROWS, f"{MEANS}; {TUNED_NOTE}")
    files = save(chart, "fig3_curves", out)
    chart, chosen = _chart(runs.chosen, CHOSEN, f"{MEANS}; settings chosen on held-out data")
    files += save(chart, "fig3_curves_chosen", out)
    frames = [part.assign(block=block) for block, part in (("default", curves), ("chosen", chosen)) if len(part)]
    return Drawing(files, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame())


def _chart(find: Callable[[str, str], list[Recorded]], rows: Sequence[str], caption: str) -> tuple[Chart, pd.DataFrame]:
    """A panel per data set, a curve per row, and the curves' numbers."""
    parts, panels = [], []
    for letter, (dataset, label) in zip("abc", DATASETS.items(), strict=True):
        lines, seeds_found = [], []
        for row in rows:
            seeds = 100 * per_round(find(dataset, row), "accuracy")
            if seeds.empty:
                continue
            mean = seeds.mean(axis=1)
            smooth = smoothed(mean)
            lines.append(Line(LOOKS[row], smooth.index.to_numpy(), smooth.to_numpy()))
            columns = {"round": mean.index, "seeds": seeds.shape[1], "accuracy": mean, "smoothed": smooth}
            parts.append(pd.DataFrame({"dataset": dataset, "row": row, **columns}))
            seeds_found.append(seeds.shape[1])
        level = 100 * TARGETS[dataset] if lines else None
        note = f"{seeds_text(*seeds_found)}; dashed: target {level:.0f} %" if lines else ""
        panels.append(Panel(f"({letter}) {label}", "communication round", "test accuracy (%)", lines, level, note=note))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return Chart(panels, caption=caption, panel_height=3.3), frame

"""Fig. 3 a-c: test accuracy over rounds, one panel per data set, all algorithms.

The line is the mean over runs, smoothed by a running mean over five rounds: at α = 0.01 one round swings by points.
Fig. 10 has their spread. Ours to add: the same with the settings that were chosen for each algorithm.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from feddual.records.results import Recorded
from feddual.records.summary import TARGETS
from figures._results import WINDOW, Drawing, Results, per_round, same_text, seeds_text, smoothed
from figures._rows import ALGORITHMS, AUTHORS_NOTE, DATASETS, same_as
from figures.charts import LOOKS, Chart, Line, Panel, save

Find = Callable[[str, str], Sequence[Recorded]]  # the runs of a data set and a row
MEANS = f"mean over runs (draws of the clients and seeds), running mean over {WINDOW} rounds; α = 0.01"


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig3_curves and fig3_curves_chosen, each as .png, .pdf and .html."""
    files, frames = [], []
    titles = [f"({letter}) {label}" for letter, label in zip("abc", DATASETS.values(), strict=True)]
    for name, block, find, settings in (
        ("fig3_curves", "default", runs.of, AUTHORS_NOTE),
        ("fig3_curves_chosen", "chosen", runs.chosen, "raw pixels; settings chosen on held-out data"),
    ):
        chart, part = by_dataset(find, ALGORITHMS, _curve, titles, "communication round", f"{MEANS}; {settings}")
        files += save(chart, name, out)
        frames += [part.assign(block=block)] if len(part) else []
    return Drawing(files, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame())


def by_dataset(
    find: Find, rows: Sequence[str], curve: Callable[[Sequence[Recorded]], pd.DataFrame], titles: Sequence[str],
    x_label: str, caption: str,
) -> tuple[Chart, pd.DataFrame]:  # fmt: skip
    """A panel per data set, a curve per row (its first column to the right, its last up), and the curves' numbers."""
    parts, panels = [], []
    for title, dataset in zip(titles, DATASETS, strict=True):
        every = {row: runs for row in rows if (runs := find(dataset, row))}
        same = [f"{LOOKS[row].label} {same_text(other)}" for row, of in every.items() if (other := same_as(row, of))]
        found = {row: of for row, of in every.items() if not same_as(row, of)}
        curves = {row: curve(runs) for row, runs in found.items()}
        ends = {row: (one.iloc[:, 0].to_numpy(), one.iloc[:, -1].to_numpy()) for row, one in curves.items()}
        lines = [Line(LOOKS[row], x, y) for row, (x, y) in ends.items()]
        parts += [one.assign(dataset=dataset, row=row) for row, one in curves.items()]
        level = 100 * TARGETS[dataset] if lines else None
        note = f"{seeds_text(*map(len, found.values()), what='run')}; dashed: target {level:.0f} %" if lines else ""
        panels.append(
            Panel(
                title, x_label, "test accuracy (%)", lines, level, note="\n".join(filter(None, [note, "; ".join(same)]))
            )
        )
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return Chart(panels, caption=caption, panel_height=3.3), frame


def _curve(runs: Sequence[Recorded]) -> pd.DataFrame:
    mean = (100 * per_round(runs, "accuracy")).mean(axis=1)
    return pd.DataFrame({"round": mean.index, "seeds": len(runs), "accuracy": mean, "smoothed": smoothed(mean)})

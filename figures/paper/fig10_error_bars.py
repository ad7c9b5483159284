"""Fig. 10 a-c: Fig. 3 with the spread over seeds.

One picture per data set and one panel per algorithm, since nine bands in one panel hide each other: the mean over
seeds, a band of one standard deviation, and FedAvg in grey behind it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from diagnostics.statistics import NO_INTERVAL, band
from feddual.records.results import Recorded
from figures._results import Drawing, Results, per_round, seeds_text
from figures._rows import ALGORITHMS, AUTHORS_NOTE, DATASETS, same_as
from figures.charts import LOOKS, Chart, Line, Panel, save

REFERENCE = "fedavg"


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig10_error_bars_<data set>.png, .pdf and .html."""
    files, parts = [], []
    for letter, (dataset, label) in zip("abc", DATASETS.items(), strict=True):
        found = {row: runs.of(dataset, row) for row in ALGORITHMS}
        same = {row: other for row, of in found.items() if (other := same_as(row, of))}
        bands = {row: band for row, of in found.items() if row not in same and not (band := _band(of)).empty}
        top = max((float(np.nanmax(band[["accuracy", "high"]])) for band in bands.values()), default=100.0)
        named = {row: [LOOKS[one].label for one in ALGORITHMS if same.get(one, one) == row] for row in ALGORITHMS}
        titles = {row: " = ".join(labels) for row, labels in named.items()}
        panels = [_panel(row, titles[row], bands, (0, 1.04 * top)) for row in ALGORITHMS if row not in same]
        caption = f"({letter}) {label}: mean and standard deviation over runs; thin grey: FedAvg; {AUTHORS_NOTE}"
        chart = Chart(panels, columns=5, caption=caption, panel_height=2.1, share_y=True, legend=())
        files += save(chart, f"fig10_error_bars_{dataset}", out)
        parts += [band.assign(dataset=dataset, row=row) for row, band in bands.items()]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return Drawing(files, frame)


def _band(runs: Sequence[Recorded]) -> pd.DataFrame:
    """Mean and spread of the accuracy in percent, round by round; one seed has no spread."""
    seeds = 100 * per_round(runs, "accuracy")
    mean, low, high = band(seeds)
    columns = {"round": seeds.index, "seeds": seeds.shape[1], "accuracy": mean, "low": low, "high": high}
    return pd.DataFrame(columns).reset_index(drop=True)


def _panel(row: str, title: str, bands: dict[str, pd.DataFrame], y_range: tuple[float, float]) -> Panel:
    lines = []
    if row in bands and row != REFERENCE and REFERENCE in bands:
        x, y = (bands[REFERENCE][key].to_numpy() for key in ("round", "accuracy"))
        lines.append(Line(replace(LOOKS[REFERENCE], width=0.9), x, y, behind=True))
    if row in bands:
        look = replace(LOOKS[row], dash="solid", width=1.4)  # alone in its panel
        x, y, low, high = (bands[row][key].to_numpy() for key in ("round", "accuracy", "low", "high"))
        lines.append(Line(look, x, y, low, high, marked=False))
    seeds = int(bands[row]["seeds"].iloc[0]) if row in bands else 0
    note = (NO_INTERVAL if seeds == 1 else seeds_text(seeds, what="run")) if seeds else ""
    return Panel(title, "communication round", "test accuracy (%)", lines, y_range=y_range, note=note)

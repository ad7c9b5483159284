"""What each client holds: images of each class, one panel per data set and partition found among the runs."""

from pathlib import Path

import numpy as np
import pandas as pd

from feddual.records.results import Recorded
from figures._results import Drawing, Results
from figures._rows import DATASETS
from figures.charts import Chart, Heat, Panel, Scale, save

COLUMNS = 3
IMAGES = Scale(1, 5000, log=True, label="images", colours="Blues")  # zeros stay white


def draw(runs: Results, out: Path) -> Drawing:
    """Write client_histograms.png, .pdf and .html."""
    panels, facts = [], []
    for run in _distinct(runs):
        counts = run.partition["histograms"]
        sizes = counts.sum(axis=1)
        partition = run.config["partition"]
        name = title(run).replace(f": {partition['name']}", "")  # too long for a panel
        note = f"{partition['name']}; {sizes.min():,}–{sizes.max():,} images, median {np.median(sizes):,.0f}"
        panels.append(Panel(name, "client", "class", [Heat(counts.T, IMAGES)], note=note))
        facts.append({
            "dataset": run.dataset, "partition": partition["name"], "alpha": partition.get("alpha"),
            "seed": partition.get("seed"), "clients": len(sizes), "smallest": int(sizes.min()),
            "median_size": float(np.median(sizes)), "largest": int(sizes.max()),
        })  # fmt: skip
    panels = panels or [Panel(label, "client", "class", []) for label in DATASETS.values()]
    chart = Chart(panels, columns=min(COLUMNS, len(panels)), panel_height=3.1)
    return Drawing(save(chart, "client_histograms", out), pd.DataFrame(facts))


def _distinct(runs: Results) -> list[Recorded]:
    """A run for each way to divide a whole training set; of several draws the first."""
    order = {name: place for place, name in enumerate(DATASETS)}
    found: dict[tuple[str, str], Recorded] = {}
    for run in sorted(runs.runs, key=lambda run: run.replicate):
        if not run.config["evaluation"].get("held_out"):
            drawn = {key: value for key, value in run.config["partition"].items() if key != "seed"}
            found.setdefault((run.dataset, str(drawn)), run)

    def place(run: Recorded) -> tuple[int, str, str, float]:
        partition = run.config["partition"]
        return order.get(run.dataset, len(order)), run.dataset, partition["name"], partition.get("alpha") or 0

    return sorted(found.values(), key=place)


def title(run: Recorded) -> str:
    """The data set and how it was divided."""
    partition = run.config["partition"]
    alpha = f", α = {partition['alpha']:g}" if partition.get("alpha") is not None else ""
    return f"{DATASETS.get(run.dataset, run.dataset)}: {partition['name']}{alpha}"

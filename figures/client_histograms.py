"""What each client holds: images of each class, one panel per data set and partition found among the runs."""

from pathlib import Path

import numpy as np
import pandas as pd

from figures import _charts
from figures._charts import Chart, Heat, Panel
from figures._results import Drawing, Recorded, Results
from figures._rows import DATASETS

COLUMNS = 3
CAPTION = "main classes: those that make up 90 % of a client's images, median over clients"


def draw(runs: Results, out: Path) -> Drawing:
    """Write client_histograms.png, .pdf and .html."""
    panels, facts = [], []
    for run in _distinct(runs):
        counts = run.partition["histograms"]
        sizes, classes = counts.sum(axis=1), _main_classes(counts)
        note = f"{sizes.min():,}–{sizes.max():,} images per client, main classes: {np.median(classes):g}"
        panels.append(Panel(_title(run), "client", "class", [Heat(counts.T, "images")], note=note))
        partition = run.config["partition"]
        facts.append(
            {
                "dataset": run.dataset,
                "partition": partition["name"],
                "alpha": partition.get("alpha"),
                "seed": partition.get("seed"),
                "clients": len(sizes),
                "smallest": int(sizes.min()),
                "median_size": float(np.median(sizes)),
                "largest": int(sizes.max()),
                "median_main_classes": float(np.median(classes)),
            }
        )
    panels = panels or [Panel(label, "client", "class", []) for label in DATASETS.values()]
    chart = Chart(panels, columns=min(COLUMNS, len(panels)), caption=CAPTION, panel_height=3.1)
    return Drawing(_charts.save(chart, "client_histograms", out), pd.DataFrame(facts))


def _distinct(runs: Results) -> list[Recorded]:
    """A run for each partition of a whole training set."""
    order = {name: place for place, name in enumerate(DATASETS)}
    found: dict[tuple[str, str], Recorded] = {}
    for run in runs.runs:
        if not run.config["evaluation"].get("held_out"):
            found.setdefault((run.dataset, str(run.partition["fingerprint"])), run)

    def place(run: Recorded) -> tuple[int, str, str, float]:
        partition = run.config["partition"]
        return order.get(run.dataset, len(order)), run.dataset, partition["name"], partition.get("alpha") or 0

    return sorted(found.values(), key=place)


def _main_classes(counts: np.ndarray) -> np.ndarray:
    """How many classes make up 90 % of each client's images; some partitions give everyone an image of each."""
    descending = -np.sort(-counts, axis=1)
    shares = descending.cumsum(axis=1) / counts.sum(axis=1, keepdims=True)
    return (shares < 0.9).sum(axis=1) + 1


def _title(run: Recorded) -> str:
    partition = run.config["partition"]
    alpha = f", α = {partition['alpha']:g}" if partition.get("alpha") is not None else ""
    return f"{DATASETS.get(run.dataset, run.dataset)}: {partition['name']}{alpha}"

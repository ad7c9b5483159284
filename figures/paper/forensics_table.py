"""What the paper's levels come from: FedAvg, FedProx and MOON with one factor changed at a time.

A setting matches when level and rounds to target do. FedBN is FedAvg on these networks.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, accuracy
from figures._rows import DATASETS
from figures.charts import LOOKS, tables
from figures.paper import _values as _paper

TITLE = "What the paper's levels come from: test accuracy (%) and rounds to the target, one factor at a time"
ROWS = ("fedavg", "fedprox", "moon")
FACTORS = {
    "": "raw pixels, batch 32, Adam 1e-3: `paper-*`",
    "batch10": "batch 10",
    "scaled": "scaled input",
    "scaled10": "scaled input, batch 10",
    "rounds500": "500 rounds",
    "sgd0.01": "SGD 0.01",
    "sgd0.03": "SGD 0.03",
    "sgd0.1": "SGD 0.1",
    "sgd0.3": "SGD 0.3",
    "nk": "clients count by their examples",
    "clients": "clients drawn one by one (`dirichlet_clients`)",
    "lenet5": "LeNet-5",
}
STUDIES = {"cifar10": "forensics", "fmnist": "forensics-fmnist"}
SHOWS = tuple(STUDIES)
NOTES = (
    "Mean over seeds (their number) of the mean over the last 10 % of rounds / of the final round / of the best round; "
    "then the median of the first round that reaches the target. Partition of seed 42. Paper: its Table 1, and rounds "
    "derived from its Tables 4 and 5.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write forensics_table.md, .tex and .csv."""
    cells, sections = [], []
    for dataset, study in STUDIES.items():
        found = runs.of_study(study)
        lines = []
        for factor, said in FACTORS.items():
            names = {row: f"{row}-{factor}" if factor else row for row in ROWS}
            known = [(f"paper-{dataset}", name) in found for name in names.values()]
            if not any(known):
                continue
            made = [_cell(dataset, factor, row, found.get((f"paper-{dataset}", names[row]))) for row in ROWS]
            lines.append([said, *(text for cell in made for text in _texts(cell))])
            cells += made
        lines.append(["the paper", *(text for row in ROWS for text in _paper_texts(row, dataset))])
        columns = ["setting", *(name for row in ROWS for name in (LOOKS[row].label, "rounds"))]
        sections.append(tables.Block(DATASETS[dataset], columns, lines))
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("forensics_table", TITLE, sections, NOTES, frame, out), frame)


def _cell(dataset: str, factor: str, row: str, runs: list[Recorded] | None) -> dict[str, Any]:
    here = [run for run in runs or () if run.replicate.draw == 42]
    rounds = [np.inf if run.summary["rounds_to_target"] is None else run.summary["rounds_to_target"] for run in here]
    names = {"dataset": dataset, "factor": factor, "row": row, "asked": runs is not None}
    facts = accuracy(here, _paper.TABLE1[row][dataset])
    return names | facts | {"rounds": float(np.median(rounds)) if rounds else np.nan}


def _texts(cell: dict[str, Any]) -> list[str]:
    if not cell["asked"]:
        return ["–", "–"]
    if not cell["seeds"]:
        return [NOT_RUN, "–"]
    reached = "not reached" if np.isinf(cell["rounds"]) else f"{cell['rounds']:g}"
    return [f"{cell['accuracy']:.1f} / {cell['final']:.1f} / {cell['best']:.1f} ({cell['seeds']})", reached]


def _paper_texts(row: str, dataset: str) -> list[str]:
    value = _paper.TABLE1[row][dataset]
    return [f"{value[0]:.2f} ± {value[1]:.2f}", str(_paper.rounds_to_target(row, dataset) or "–")]

"""Can a round's clients be averaged? Barriers by layer of recorded runs, and one layer averaged or kept.

Compared are experiments whose barriers were measured in the same way (`python -m diagnostics barriers RUN RUN ...`).
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd

from diagnostics.merging.result import Barriers, compare_barriers
from diagnostics.statistics import said
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, baseline_first
from figures._rows import DATASETS
from figures.charts import LOOKS, Chart, Panel, merging, save, tables

TITLE = "Barriers between clients, and what averaging one layer changes"
NOTES = (
    "Means over runs and 95 % intervals over training seeds and draws of the clients, and paired differences to the "
    "first experiment. `barrier`: the most by which the loss rises above the straight line between the ends of a line; "
    "`rise`: what averaging the ends does to the loss. `averaged`: a client's model takes one layer from the global "
    "model; `kept`: the global model takes one from the client; on all clients' data (pooled) or the client's own.",
)
SHOWN = ("barrier", "rise", "loss change, averaged", "loss change, kept")
SAME = ("pairs", "grid", "layers", "bn", "images", "split", "seed", "batch_size")  # of what is compared


def draw(runs: Results, out: Path) -> Drawing:
    """Write barriers.png, .pdf and .html, and barriers_table.md, .tex and .csv."""
    found = {title: (dataset, compare_barriers(groups)) for title, (dataset, groups) in _groups(runs).items()}
    panels = [
        replace(panel, note=f"{title}\n{panel.note}")
        for title, (_, table) in found.items()
        for panel in merging.by_layer(table).panels
    ]
    chart = Chart(panels or [Panel("", "layer", "loss", [], empty=NOT_RUN)], min(2, len(panels)) or 1)
    parts = [table.assign(of=title, dataset=dataset) for title, (dataset, table) in found.items()]
    frame = pd.concat(parts, ignore_index=True) if parts else _blank()
    blocks = [_block(title, table) for title, (_, table) in found.items()] or [_empty()]
    files = save(chart, "barriers", out)
    return Drawing(files + tables.write("barriers_table", TITLE, blocks, NOTES, frame, out), frame)


def _groups(runs: Results) -> dict[str, tuple[str, dict[str, list[Barriers]]]]:
    """What was measured alike, by data set, model and round: the data set, and results by experiment."""
    found: dict[tuple[str, str, str], dict[str, list[Barriers]]] = {}
    for run in baseline_first(runs.runs):
        for path in run.record.barriers():
            one = Barriers.load(path)
            if "clients" not in set(one.values["between"]):
                continue  # of several runs, not of a round
            key = json.dumps([one.identity.get(name) for name in SAME] + [list(one.layers), path.name])
            model = run.config["model"]["name"]
            title = f"{DATASETS.get(run.dataset, run.dataset)}, {model}, {re.sub('-0*', ' ', path.name)}"
            found.setdefault((title, key, run.dataset), {}).setdefault(_label(run), []).append(one)
    many = [title for title, *_ in found]
    return {
        title if many.count(title) == 1 else f"{title} ({number})": (dataset, groups)
        for number, ((title, _, dataset), groups) in enumerate(found.items(), 1)
    }


def _label(run: Recorded) -> str:
    """An experiment by algorithm and partition."""
    partition, algorithm = run.config["partition"], run.config["algorithm"]["name"]
    preset = run.config["algorithm"].get("preset")
    known = LOOKS.get(f"{algorithm}-{preset}") or LOOKS.get(algorithm)
    alpha = f", α = {partition['alpha']:g}" if partition.get("alpha") is not None else f", {partition['name']}"
    return (known.label if known else str(algorithm)) + alpha


def _block(title: str, table: pd.DataFrame) -> tables.Block:
    rows = []
    for row in table[table["quantity"].isin(SHOWN)].to_dict("records"):
        mean = said(row["mean"], row["low"], row["high"])
        gap = said(row["difference"], row["difference_low"], row["difference_high"], "+.3g") if row["pairs"] else "–"
        rows.append([*(str(row[key]) for key in ("quantity", "between", "layer", "experiment")), mean, gap])
    return tables.Block(title, _columns(), rows)


def _columns() -> list[str]:
    return ["quantity", "between, or on", "layer", "experiment", "mean [95 %]", "to the first [95 %]"]


def _empty() -> tables.Block:
    return tables.Block("", _columns(), [[NOT_RUN] + ["–"] * 5])


def _blank() -> pd.DataFrame:
    columns = "quantity between order layer mean low high runs difference pairs of".split()
    return pd.DataFrame({"dataset": [*DATASETS], "experiment": NOT_RUN}).reindex(
        columns=["dataset", "experiment", *columns]
    )

"""Where the spread of a run's accuracy comes from: the draw of the clients, the seed, or neither alone.

Of every experiment that was repeated over several draws and several seeds, each with each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import over_repetitions, said, variance_components
from feddual.experiment import config
from feddual.records.identity import Replicate
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results
from figures._rows import DATASETS
from figures.charts import LOOKS, tables

NAMES = {"draw": "clients", "seed": "seed", "rest": "both together"}
SHOWS = ("cifar10", "cifar100")
TITLE = "Accuracy over draws of the clients and seeds: standard deviations, in points"
NOTES = (
    "A seed drives initialisation, client sampling and batches; a draw is the partition's seed. Standard deviations "
    "of the two and of what only their combination explains, from a balanced analysis of variance; `0 (−)` where the "
    "estimate of a variance is negative, so too small to be seen. `in all`: of one run around the mean of all. "
    "Interval: 95 % over draws and seeds. `naive`: the "
    "standard deviation over the seeds of the first draw, which is what is left when the clients are drawn once.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write variance.md, .tex and .csv."""
    frames: list[pd.DataFrame] = []
    for several in _repeated(runs):
        accuracies = {run.replicate: 100 * run.summary["accuracy"] for run in several}
        readings = pd.DataFrame([{**which._asdict(), "accuracy": value} for which, value in accuracies.items()])
        mean, low, high = over_repetitions(accuracies).floats()
        first = readings[readings["draw"] == readings["draw"].min()]["accuracy"]
        sizes = {"draws": readings["draw"].nunique(), "seeds": readings["seed"].nunique(), "mean": mean}
        about: dict[str, Any] = {"dataset": several[0].dataset, "experiment": _name(several[0]), **sizes}
        about |= {"low": low, "high": high, "naive": first.std(ddof=1)}
        parts = variance_components(readings, "accuracy", Replicate._fields)
        frames.append(parts.assign(**about))
    frame = pd.concat(frames, ignore_index=True) if frames else _blank()
    files = tables.write("variance", TITLE, [_block(frame)], NOTES, frame, out)
    return Drawing(files, frame)


def _blank() -> pd.DataFrame:
    columns = "component variance share negative freedom draws seeds mean low high naive".split()
    return pd.DataFrame({"dataset": SHOWS, "experiment": NOT_RUN}).reindex(columns=["dataset", "experiment", *columns])


def _repeated(runs: Results) -> list[list[Recorded]]:
    """The runs of each experiment that has several draws, several seeds, and each with each."""
    groups: dict[str, list[Recorded]] = {}
    for run in runs.runs:
        groups.setdefault(run.identity.text, []).append(run)
    found = [runs.same(group[0].identity) for group in groups.values()]
    whole = [several for several in found if not several[0].config["evaluation"].get("held_out")]
    return [several for several in whole if _balanced([run.replicate for run in several])]


def _balanced(replicates: Sequence[Replicate]) -> bool:
    draws, seeds = ({getattr(one, field) for one in replicates} for field in Replicate._fields)
    return min(len(draws), len(seeds)) > 1 and len(draws) * len(seeds) == len(replicates)


def _name(run: Recorded) -> str:
    algorithm, preset = run.config["algorithm"]["name"], run.config["algorithm"].get("preset")
    look = LOOKS.get(f"{algorithm}-{preset}") or LOOKS.get(algorithm)
    counted = ", by examples" if run.config["training"]["weighting"] == "num_examples" else ""
    even = ", even clients" if run.config["partition"]["name"] == "iid" else ""
    model = run.config["model"]["name"]
    usual = config.resolve(f"paper-{run.dataset}").to_dict()["model"]["name"] if run.dataset in DATASETS else model
    network = f", {model}" if model != usual else ""
    fed = f", {run.config['dataset'].get('preprocess', 'auto')} input"
    return (look.label if look else algorithm) + counted + even + network + fed


def _block(frame: pd.DataFrame) -> tables.Block:
    columns = ["data", "experiment", "accuracy", "draws × seeds", *NAMES.values(), "in all", "naive"]
    if frame["component"].isna().all():
        return tables.Block("", columns, [[DATASETS[name], NOT_RUN] + ["–"] * (len(columns) - 2) for name in SHOWS])
    lines = []
    for (dataset, experiment), part in frame.groupby(["dataset", "experiment"], sort=False):
        first, by_name = part.iloc[0], part.set_index("component")
        spreads = [_spread(by_name.loc[name]) for name in NAMES]
        accuracy = said(first["mean"], first["low"], first["high"], ".2f")
        size = f"{first['draws']} × {first['seeds']}"
        name = DATASETS.get(str(dataset), str(dataset))
        total = np.sqrt(part["variance"].sum())
        lines.append([name, str(experiment), accuracy, size, *spreads, f"{total:.2f}", f"{first['naive']:.2f}"])
    return tables.Block("", columns, lines)


def _spread(part: Any) -> str:
    return "0 (−)" if part["negative"] else f"{np.sqrt(part['variance']):.2f}"

"""Test accuracy against communication: all bytes sent up and down so far, one panel per data set.

Algorithms differ in what a round sends (SCAFFOLD and FedPVR send control variates, FedDUAL gradients of the masked
layers), so that fewer rounds need not be fewer bytes.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from feddual.records.results import Recorded
from figures._results import WINDOW, Drawing, Results, per_round, smoothed
from figures._rows import ALGORITHMS, AUTHORS_NOTE, DATASETS
from figures.charts import save
from figures.paper.fig3_curves import by_dataset

GB = 1e9


def draw(runs: Results, out: Path) -> Drawing:
    """Write communication.png, .pdf and .html."""
    caption = f"mean over runs, running mean over {WINDOW} rounds; all traffic, uncompressed; {AUTHORS_NOTE}"
    chart, frame = by_dataset(runs.of, ALGORITHMS, _curve, list(DATASETS.values()), "sent up and down (GB)", caption)
    return Drawing(save(chart, "communication", out), frame)


def _curve(runs: Sequence[Recorded]) -> pd.DataFrame:
    accuracy = smoothed(100 * per_round(runs, "accuracy").mean(axis=1))
    sent = (per_round(runs, "bytes_up") + per_round(runs, "bytes_down")).mean(axis=1).cumsum() / GB
    sent = sent.reindex(accuracy.index)
    return pd.DataFrame({"gigabytes": sent, "round": accuracy.index, "accuracy": accuracy})

"""Pictures of runs, with matplotlib: curves over rounds, bytes or seconds, seeds as points, who holds what."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

from feddual.errors import UserError
from figures.charts import gradients

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLOURS = (*gradients.COLOURS, "#222222", "#882255", "#999999")  # nine algorithms, nine colours
AGAINST = {"round": "communication round", "megabytes": "sent up and down so far (MB)", "seconds": "seconds so far"}


def progress(run: Any, column: str, against: str = "round") -> "pd.Series":
    """A column of a run's metrics, indexed by the round, or by the megabytes or seconds spent until then."""
    table = run.metrics.set_index("round")
    if against == "megabytes":
        table.index = (table["bytes_down"] + table["bytes_up"]).cumsum() / 1e6
    elif against == "seconds":
        table.index = run.timings.set_index("round")["seconds"].reindex(table.index).cumsum()
    elif against != "round":
        raise UserError(f"against: {against!r} is unknown; allowed: {', '.join(AGAINST)}")
    return table[column].dropna()


def curves(runs: Mapping[str, Any], column: str = "accuracy", against: str = "round") -> "Figure":
    """A line per label: the mean over its runs (one, or a list with one per seed) and the range they span.

    Args:
        runs: A run or a list of runs by label.
        column: Of `run.metrics`.
        against: round, megabytes or seconds.
    """
    figure, axis = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    plt.close(figure)
    for number, (label, one) in enumerate(runs.items()):
        series = [progress(run, column, against) for run in _several(one)]
        values = np.stack([item.to_numpy() for item in series])
        places = np.stack([item.index.to_numpy(float) for item in series]).mean(0)
        colour, dash = COLOURS[number % len(COLOURS)], "solid" if number < len(COLOURS) else "dashed"
        axis.plot(places, values.mean(0), color=colour, linestyle=dash, label=label, linewidth=1.6)
        if len(values) > 1:
            axis.fill_between(places, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    seeds = max(len(_several(one)) for one in runs.values())
    axis.set(xlabel=AGAINST[against], ylabel=column.replace("_", " "))
    axis.set_title(f"mean and range of {seeds} seeds" if seeds > 1 else "one seed", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def seeds(runs: Mapping[str, Any], quantity: str = "accuracy") -> "Figure":
    """A row per label: each seed's number of `run.summary()` as a point, their mean as a bar."""
    figure, axis = plt.subplots(figsize=(6.4, 0.36 * len(runs) + 0.9), layout="constrained")
    plt.close(figure)
    values = {label: [run.summary()[quantity] for run in _several(one)] for label, one in runs.items()}
    order = sorted(values, key=lambda label: float(np.mean(values[label])))
    for place, label in enumerate(order):
        axis.plot(values[label], [place] * len(values[label]), "o", color=COLOURS[0], alpha=0.6, markersize=5)
        axis.plot(np.mean(values[label]), place, "|", color=COLOURS[1], markersize=16, markeredgewidth=2.5)
    axis.set_yticks(range(len(order)), order)
    axis.set(xlabel=quantity, ylim=(-0.6, len(order) - 0.4))
    axis.grid(alpha=0.3, axis="x")
    return figure


def label_maps(federations: Mapping[str, Any], class_names: Sequence[str] = (), clients: int = 50) -> "Figure":
    """Who holds what: examples of each class (down) at each client (right), on one logarithmic scale.

    Args:
        federations: Counts of shape (clients, classes) by label, such as `run.histograms`.
        class_names: Of the classes.
        clients: The first so many are drawn.
    """
    counts = {label: np.asarray(one)[:clients].T for label, one in federations.items()}
    norm = LogNorm(1, max(one.max() for one in counts.values()))
    figure, axes = plt.subplots(
        1, len(counts), figsize=(4.6 * len(counts) + 1.2, 2.9), squeeze=False, sharey=True, layout="constrained"
    )
    plt.close(figure)
    for axis, (label, one) in zip(axes[0], counts.items(), strict=True):
        image = axis.imshow(np.ma.masked_equal(one, 0), aspect="auto", cmap="viridis", norm=norm, origin="lower")
        axis.set(title=label, xlabel="client")
    if class_names:
        axes[0, 0].set_yticks(range(len(class_names)), class_names, fontsize=8)
    else:
        axes[0, 0].set_ylabel("class")
    figure.colorbar(image, ax=axes[0].tolist(), label="examples")
    return figure


def _several(one: Any) -> list[Any]:
    return list(one) if isinstance(one, (list, tuple)) else [one]

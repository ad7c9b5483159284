"""Charts of runs: curves over rounds, bytes or seconds, seeds as points, who holds what."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feddual.errors import UserError
from figures.charts.describe import Chart, Heat, Line, Panel, Points
from figures.charts.scale import Scale
from figures.charts.style import COLOURS, Look, look

if TYPE_CHECKING:
    import pandas as pd

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
    series: pd.Series = table[column].dropna()
    return series


def curves(runs: Mapping[str, Any], column: str = "accuracy", against: str = "round") -> Chart:
    """A line per label: the mean over its runs (one, or a list with one per seed) and the range they span.

    Args:
        runs: A run or a list of runs by label.
        column: Of `run.metrics`.
        against: round, megabytes or seconds.

    Returns:
        One panel.
    """
    marks = []
    for number, (label, one) in enumerate(runs.items()):
        series = [progress(run, column, against) for run in _several(one)]
        values = np.stack([item.to_numpy() for item in series])
        places = np.stack([item.index.to_numpy(float) for item in series]).mean(0)
        edges = (values.min(0), values.max(0)) if len(values) > 1 else ()
        marks.append(Line(look(number, label), places, values.mean(0), *edges))
    seeds = max(len(_several(one)) for one in runs.values())
    note = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    panel = Panel("", AGAINST[against], column.replace("_", " "), marks, note=note)
    return Chart([panel], 1, panel_height=3.3, width=7.0)


def seeds(runs: Mapping[str, Any], quantity: str = "accuracy") -> Chart:
    """A row per label: each seed's number of `run.summary()` as a point, their mean as a bar.

    Args:
        runs: A run or a list of runs by label.
        quantity: Of `run.summary()`.

    Returns:
        One panel, the largest mean on top.
    """
    values = {label: [run.summary()[quantity] for run in _several(one)] for label, one in runs.items()}
    order = sorted(values, key=lambda label: -float(np.mean(values[label])))
    marks = []
    for place, label in enumerate(order):
        mine = np.array(values[label], float)
        marks.append(Points(Look("seeds", COLOURS[0]), mine, np.full(len(mine), place)))
        mean = Look("their mean", COLOURS[1], "|", width=2.5)
        marks.append(Points(mean, mine.mean(keepdims=True), np.full(1, place)))
    panel = Panel("", quantity, "", marks, y_names=order)
    return Chart([panel], 1, panel_height=0.36 * len(runs) + 0.9, width=6.4)


def label_maps(federations: Mapping[str, Any], class_names: Sequence[str] = (), clients: int = 50) -> Chart:
    """Who holds what: examples of each class (down) at each client (right), on one logarithmic scale.

    Args:
        federations: Counts of shape (clients, classes) by label, such as `run.histograms`.
        class_names: Of the classes.
        clients: The first so many are drawn.

    Returns:
        A panel per label.
    """
    counts = {label: np.asarray(one)[:clients].T for label, one in federations.items()}
    scale = Scale(1.0, float(max(one.max() for one in counts.values())), log=True, label="examples")
    panels = [
        Panel(label, "client", "" if class_names else "class", [Heat(one, scale)], y_names=class_names)
        for label, one in counts.items()
    ]
    return Chart(panels, len(panels), panel_height=3.0, share_y=True, width=4.6 * len(panels) + 1.4)


def _several(one: Any) -> list[Any]:
    return list(one) if isinstance(one, (list, tuple)) else [one]

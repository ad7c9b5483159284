"""Charts of what averaging breaks. Frames come from `ForgettingProbe.read`, one per seed; each returns a `Chart`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diagnostics.forgetting import reading
from figures.charts.describe import Bars, Chart, Heat, Line, Panel
from figures.charts.scale import Scale
from figures.charts.style import FAINT, Look, look

if TYPE_CHECKING:
    import pandas as pd

    Frames = Sequence[pd.DataFrame]
    Runs = Mapping[str, Frames]  # by label

MOST_NAMES = 20  # classes that are named one by one
# Panels by what they are about: a quantity, its title, and what is said below that.
LINES = {
    "classes": {
        "accuracy_held": ("Classes it holds", "a client's model, after local training"),
        "accuracy_lacking": ("Classes it lacks", "a client's model, after local training"),
    },
    "cosines": {
        "prototype_cosine": ("Class prototypes", "cosine between two clients"),
        "centred_cosine": ("Centred prototypes", "less the mean over the classes"),
        "classifier_cosine": ("Classifier weights", "cosine between two clients"),
    },
    "clients": {
        "own_mean": ("Mean over clients", "the global model on their own data"),
        "own_worst_tenth": ("Worst tenth of the clients", "mean accuracy"),
        "own_spread": ("Spread over clients", "standard deviation of accuracy"),
    },
    "features": {
        "nc1": ("NC1", "within classes, to between"),
        "nc2_equinorm": ("NC2, equal norms", "0 for a simplex"),
        "nc2_simplex": ("NC2, angles", "distance from a simplex's"),
        "ece": ("Calibration error", "of the global model, 15 bins"),
    },
}  # fmt: skip
RANGES = {"classes": (-0.02, 1.02)}  # of the axis: holding and lacking are to be compared
LABELS = {"classes": "accuracy", "cosines": "cosine", "clients": "accuracy", "features": ""}


def change_scale(tables: "Sequence[pd.DataFrame]", label: str = "accuracy lost") -> Scale:
    """Colours of differences of accuracies: white where nothing changed, red where something was lost.

    Args:
        tables: Of `reading.by_class`.
        label: Beside the colour bar.

    Returns:
        A scale as wide to both sides.
    """
    limit = max([0.01, *(float(np.nanmax(np.abs(one.to_numpy()), initial=0)) for one in tables)])
    return Scale(-limit, limit, label=label, colours="RdBu_r")


def matrix(
    table: "pd.DataFrame", scale: Scale, title: str, note: str = "", when: Mapping[str, str] | None = None
) -> Panel:
    """Classes down, rounds to the right.

    Args:
        table: Of `reading.by_class`.
        scale: Of the colours.
        title: Above it.
        note: A small line below that.
        when: Controls under which it is shown on a page.

    Returns:
        A panel.
    """  # fmt: skip
    classes, rounds = list(map(str, table.index)), list(map(str, table.columns))
    marks = [Heat(table.to_numpy(float), scale, when=when or {})] if table.size else []
    named = classes if len(classes) <= MOST_NAMES else []
    return Panel(title, "round", "class", marks, note=note, x_names=rounds, y_names=named, empty="not recorded")


def changes(runs: "Runs", title: str = "") -> Chart:
    """Class by round: what accuracy fell by in local training, in averaging, and in the whole round.

    Args:
        runs: By label, a frame per seed.
        title: Above all.

    Returns:
        A row of panels per label, all on one scale around zero.
    """
    tables = {
        label: {name: reading.by_class(frames, name) for name in reading.CHANGES} for label, frames in runs.items()
    }
    scale = change_scale([table for row in tables.values() for table in row.values()])
    panels = [
        matrix(table, scale, reading.CHANGES[name].capitalize(), label)
        for label, row in tables.items()
        for name, table in row.items()
    ]
    return _rows(panels, title)


def stages(runs: "Runs", title: str = "") -> Chart:
    """Class by round: accuracy of the global model, of the clients' models (mean), of the averaged model.

    Args:
        runs: By label, a frame per seed.
        title: Above all.

    Returns:
        A row of panels per label, all on one scale.
    """
    scale = Scale(0.0, 1.0, label="accuracy")
    panels = [
        matrix(reading.by_class(frames, name), scale, words.capitalize(), label)
        for label, frames in runs.items()
        for name, words in reading.STAGES.items()
    ]
    return _rows(panels, title)


def _rows(panels: Sequence[Panel], title: str) -> Chart:
    return Chart(panels, 3, title, panel_height=2.7, width=10.2)


def lines(runs: "Runs", about: str, title: str = "") -> Chart:
    """Quantities over rounds, a line per label: mean and range of the seeds.

    Args:
        runs: By label, a frame per seed.
        about: One of `LINES`: classes, cosines, clients, features.
        title: Above all.

    Returns:
        A panel per quantity.
    """
    panels = []
    for name, (words, note) in LINES[about].items():
        drawn = []
        for number, (label, frames) in enumerate(runs.items()):
            table = reading.over_rounds(frames, name).dropna()
            values, rounds = table.to_numpy(float), table.index.to_numpy(float)
            edges = (values.min(1), values.max(1)) if values.shape[1:] > (1,) and len(values) else ()
            if len(values):
                drawn.append(Line(look(number, label), rounds, values.mean(1), *edges))
        empty = "not recorded" if not runs else "none"
        panels.append(Panel(words, "round", LABELS[about], drawn, note=note, empty=empty, y_range=RANGES.get(about)))
    return Chart(panels, len(panels), title, 2.9, width=10.2 if len(panels) > 2 else 7.2)


def bins_of(table: "pd.DataFrame", style: Look, when: Mapping[str, str] | None = None) -> tuple[Line, Line]:
    """A reliability table as two curves: accuracy against confidence, and the share of examples that are so sure.

    Args:
        table: Of `reading.pooled`.
        style: Of the curves.
        when: Controls under which they are shown on a page.

    Returns:
        The curves.
    """
    known = table[table["count"] > 0]
    accuracy = Line(style, known["confidence"].to_numpy(float), known["accuracy"].to_numpy(float), when=when or {})
    middles = ((table["from"] + table["to"]) / 2).to_numpy(float)
    count = table["count"].to_numpy(float)
    return accuracy, Line(style, middles, count / max(count.sum(), 1), when=when or {})


def diagonal() -> Line:
    """Where confidence is accuracy.

    Returns:
        A thin dashed line.
    """
    ends = np.array([0.0, 1.0])
    return Line(Look("as sure as right", FAINT, dash="dashed", width=0.9), ends, ends, behind=True)


def reliability(runs: "Runs", round_index: int | None = None, title: str = "") -> Chart:
    """How right models are when they are so sure; on the dashed line a model is calibrated.

    Args:
        runs: By label, of each seed a table of `ForgettingProbe.reliability` or `Reliability.table`.
        round_index: Which round; by default the last.
        title: Above all.

    Returns:
        Three panels: accuracy against confidence, how many examples are so sure, and the calibration error.
    """
    right, sure, errors = [], [], []
    for number, (label, tables) in enumerate(runs.items()):
        table, error = reading.pooled(tables, round_index)
        if len(table):
            style = replace(look(number, label), width=1.8)
            one, other = bins_of(table, style)
            right.append(one)
            sure.append(other)
            errors.append((style, error))
    ends, missing = (-0.02, 1.02), "not recorded"
    bars = [Bars([style for style, _ in errors], {"": [error for _, error in errors]}, text="{:.3f}")]
    panels = [
        Panel("Right when so sure?", "confidence", "accuracy", [diagonal(), *right] if right else [], y_range=ends),
        Panel("How sure", "confidence", "share of examples", sure),
        Panel("Calibration error", "", "", bars if errors else []),
    ]
    return Chart([replace(one, empty=missing) for one in panels], 3, title, 3.1, legend=[one.look for one in right])

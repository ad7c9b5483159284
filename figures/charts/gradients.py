"""Charts of per-layer gradient norms. Frames come from `GradientNormProbe.read`; every function returns a `Chart`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from diagnostics import gradients
from diagnostics.statistics import NO_INTERVAL
from figures.charts.describe import Bars, Chart, Heat, Line, Panel, Points
from figures.charts.scale import Scale
from figures.charts.style import COLOURS, FAINT, Look, look

if TYPE_CHECKING:
    import pandas as pd

    Frames = Sequence[pd.DataFrame]  # one per seed
    Runs = Mapping[str, Frames]  # by label

UNITS = {
    "raw": "norm", "rms": "norm / √size", "relative": "norm / weight norm", "scale_free": "norm × weight norm",
    "share": "share of squared norm",
}  # fmt: skip
PROFILE = "ratio to IID"


def axis_label(name: str, normalisation: str) -> str:
    """What the axis shows, in words."""
    chosen = gradients.definition(name)
    return f"{chosen.letter}: {chosen.name.replace('_', ' ')}" + (f"\n{UNITS[normalisation]}" if chosen.is_norm else "")


def lines(runs: "Runs", name: str = "A", normalisation: str = "rms", title: str = "") -> Chart:
    """Small multiples by layer: the quantity over rounds for each label, mean and range of the seeds.

    Args:
        runs: By label, a frame per seed.
        name: Of the definition, or its letter.
        normalisation: One of raw, rms, relative, scale_free, share.
        title: Above all.

    Returns:
        A panel per layer.
    """
    parts = {label: gradients.bands(frames, name, normalisation) for label, frames in runs.items()}
    layers = list(next(iter(parts.values()))[0].columns)
    panels = []
    for column, layer in enumerate(layers):
        drawn = []
        for number, (label, (middle, low, high)) in enumerate(parts.items()):
            edges = (low[:, column], high[:, column]) if len(runs[label]) > 1 else ()
            drawn.append(Line(look(number, label), middle.index.to_numpy(), middle[layer].to_numpy(), *edges))
        panels.append(Panel(layer, "round", axis_label(name, normalisation), drawn, y_scale="log"))
    return Chart(panels, len(layers), title, 2.5, share_y=True, width=2.1 * len(layers) + 0.8)


def _by_round(table: "pd.DataFrame", scale: Scale, title: str, hatched: np.ndarray | None = None) -> Panel:
    """Layers down, rounds to the right."""
    heat = Heat(table.to_numpy(), scale, hatched=hatched)
    return Panel(title, "round", "", [heat], x_names=list(map(str, table.columns)), y_names=list(table.index))


def ratio_heatmap(
    base: "Frames", other: "Frames", name: str = "A", normalisation: str = "rms", limit: float | None = None,
    title: str = "",
) -> Chart:  # fmt: skip
    """Layer by round: log2 of other / base. Hatched where the seeds do not agree which is larger.

    Args:
        base: A frame per seed.
        other: As many.
        name: Of the definition, or its letter.
        normalisation: As for `lines`.
        limit: The largest logarithm to draw; by default the largest there is.
        title: Above it.

    Returns:
        One panel.
    """
    middle, agreed = gradients.log_ratios(base, other, name, normalisation)
    limit = limit or float(np.nanmax(np.abs(middle.to_numpy()))) or 1.0
    scale = Scale(-limit, limit, label=f"log2 ratio\n{axis_label(name, normalisation)}", colours="RdBu_r")
    hatched = ~agreed if len(base) > 1 else None
    return Chart([_by_round(middle, scale, title, hatched)], 1, "", 0.42 * len(middle) + 1.3, width=6.4)


def level_heatmaps(runs: "Runs", names: Sequence[str] = ("C", "E"), title: str = "") -> Chart:
    """Layer by round, a panel for each label and definition, one logarithmic colour scale per definition.

    Args:
        runs: By label, a frame per seed.
        names: Of the definitions, or their letters.
        title: Above all.

    Returns:
        A row of panels per definition.
    """
    panels = []
    for row, name in enumerate(names):
        tables = {label: gradients.bands(frames, name, "raw")[0].T for label, frames in runs.items()}
        values = np.concatenate([table.to_numpy().ravel() for table in tables.values()])
        scale = Scale(float(np.nanmin(values)), float(np.nanmax(values)), log=True, label=axis_label(name, "raw"))
        panels += [_by_round(table, scale, label if row == 0 else "") for label, table in tables.items()]
    return Chart(panels, len(runs), title, 2.1, width=3.5 * len(runs) + 0.8)


def _ratio_panel(title: str, label: str, marks: Sequence[Points], layers: Sequence[str], note: str = "") -> Panel:
    """A logarithmic axis, and a line where nothing differs."""
    return Panel(title, "", label, marks, level=1, y_scale="log", x_names=layers, note=note)


def _intervals(rows: "pd.DataFrame", style: Look, shift: float = 0.0, joined: bool = False) -> Points:
    ratio, low, high = (rows[column].to_numpy(float) for column in ("ratio", "low", "high"))
    return Points(style, np.arange(len(rows)) + shift, ratio, low, high, joined)


def depth_profile(tables: "Mapping[str, pd.DataFrame]", name: str, title: str = "") -> Chart:
    """Layers from input to output against the ratio of `gradients.ratios`, a line for each label.

    Args:
        tables: By label.
        name: Of the definition, or its letter.
        title: Above it.

    Returns:
        One panel.
    """
    marks, layers = [], []
    for number, (label, table) in enumerate(tables.items()):
        rows = table[table["definition"] == gradients.definition(name).name]
        layers = list(rows["layer"])
        label += f" ({NO_INTERVAL})" if rows["low"].isna().all() else ""
        marks.append(_intervals(rows, look(number, label), 0.08 * (number - (len(tables) - 1) / 2), joined=True))
    return Chart([_ratio_panel(title, PROFILE, marks, layers)], 1, panel_height=3.0, width=6.0)


def client_strips(runs: "Runs", name: str = "A", normalisation: str = "rms", rounds: Sequence[int] = ()) -> Chart:
    """Every client's value, by layer, round by round: how far clients lie apart, not only their mean.

    Args:
        runs: By label, a frame per seed; the first seed is drawn.
        name: Of the definition, or its letter.
        normalisation: As for `lines`.
        rounds: By default all measured ones.

    Returns:
        A film: a panel per round, four of them on paper.
    """
    tables = {}
    for label, frames in runs.items():
        frame = frames[0]
        mine = frame["definition"] == gradients.definition(name).name
        tables[label] = frame[mine & (frame["normalisation"] == normalisation) & frame["client"].notna()]
    picked = list(rounds) or sorted(set.intersection(*(set(table["round"]) for table in tables.values())))
    layers = list(dict.fromkeys(next(iter(tables.values()))["layer"]))
    panels = []
    for index in picked:
        marks = []
        for number, (label, table) in enumerate(tables.items()):
            rows = table[table["round"] == index]
            shift = 0.3 * (number - (len(tables) - 1) / 2) + 0.1 * np.random.default_rng(0).uniform(-1, 1, len(rows))
            places = rows["layer"].map(layers.index).to_numpy(float) + shift
            told = [f"{layer}, client {client}" for layer, client in zip(rows["layer"], rows["client"], strict=True)]
            style = Look(label, COLOURS[number % len(COLOURS)], width=0.6)
            marks.append(Points(style, places, rows["value"].to_numpy(float), told=told))
        words = axis_label(name, normalisation)
        panels.append(Panel(f"round {index}", "", words, marks, y_scale="log", x_names=layers))
    columns = min(4, len(panels))
    return Chart(panels, columns, panel_height=2.8, share_y=True, width=2.5 * columns + 0.6, film=True)


def sensitivity(table: "pd.DataFrame", title: str = "") -> Chart:
    """The same runs under several definitions: the ratio by layer with its interval.

    Args:
        table: Of `gradients.ratios`.
        title: Above all.

    Returns:
        A panel per definition; grey where the interval holds 1 or where there is none.
    """
    layers = list(dict.fromkeys(table["layer"]))
    panels = []
    for name in dict.fromkeys(table["definition"]):
        rows = table[table["definition"] == name].set_index("layer").reindex(layers).reset_index()
        sides = {COLOURS[1]: rows["low"] > 1, COLOURS[0]: rows["high"] < 1}
        sides[FAINT] = ~(sides[COLOURS[0]] | sides[COLOURS[1]])
        marks = []
        for colour, here in sides.items():
            shown = rows.assign(**{column: rows[column].where(here) for column in ("ratio", "low", "high")})
            if here.any():
                marks.append(_intervals(shown, Look("", colour)))
        letter = gradients.definition(name).letter
        words = name.replace("_", " ") + (f"\n{NO_INTERVAL}" if rows["low"].isna().all() else "")
        panels.append(_ratio_panel(letter, "ratio non-IID / IID", marks, layers, words))
    return Chart(panels, len(panels), title, 2.8, share_y=True, width=1.75 * len(panels) + 1.0)


def overhead(percent: Mapping[str, float], title: str = "") -> Chart:
    """What measuring costs: percent of a round's time, for by-products and for each scheduled definition.

    Args:
        percent: By name.
        title: Above it.

    Returns:
        One panel.
    """
    bars = Bars([Look(name, COLOURS[0]) for name in percent], {"": list(percent.values())}, text="{:.1f} %")
    panel = Panel(title, "% of a round in which it is measured", "", [bars])
    return Chart([panel], 1, panel_height=0.36 * len(percent) + 1.0, width=5.6, legend=())

"""Pictures of per-layer gradient norms, with matplotlib. Frames come from `GradientNormProbe.read`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, ScalarFormatter

from diagnostics import gradients

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    Runs = Mapping[str, Sequence[pd.DataFrame]]  # label -> the frames of its seeds

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
DASHES = ("solid", "dashed", "dotted", "dashdot")


def _subplots(*args: Any, **kwargs: Any) -> "tuple[Figure, Any]":
    """A figure that pyplot forgets at once: a notebook would show it twice otherwise."""
    figure, axes = plt.subplots(*args, **kwargs)
    plt.close(figure)
    return figure, axes


def axis_label(name: str, normalisation: str) -> str:
    """What the axis shows, in words."""
    chosen = gradients.definition(name)
    units = {
        "raw": "norm",
        "rms": "norm / √size",
        "relative": "norm / weight norm",
        "scale_free": "norm × weight norm",
        "share": "share of squared norm",
    }
    return f"{chosen.letter}: {chosen.name.replace('_', ' ')}" + (f"\n{units[normalisation]}" if chosen.is_norm else "")


def lines(runs: "Runs", name: str = "A", normalisation: str = "rms", title: str = "") -> "Figure":
    """Small multiples by layer: the quantity over rounds for each label, mean and range of the seeds."""
    layers = list(gradients.per_round(next(iter(runs.values()))[0], name, normalisation).columns)
    figure, axes = _subplots(
        1, len(layers), figsize=(2.1 * len(layers) + 0.6, 2.7), sharey=True, squeeze=False, layout="constrained"
    )
    for number, (label, frames) in enumerate(runs.items()):
        middle, low, high = gradients.bands(frames, name, normalisation)
        for axis, layer, column in zip(axes[0], layers, range(len(layers)), strict=True):
            colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            axis.plot(middle.index, middle[layer], color=colour, linestyle=dash, label=label, linewidth=1.4)
            if len(frames) > 1:
                axis.fill_between(middle.index, low[:, column], high[:, column], color=colour, alpha=0.2, linewidth=0)
    for axis, layer in zip(axes[0], layers, strict=True):
        axis.set(title=layer, yscale="log", xlabel="round")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(axis_label(name, normalisation))
    axes[0, -1].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure


def ratio_heatmap(
    base: "Sequence[pd.DataFrame]",
    other: "Sequence[pd.DataFrame]",
    name: str = "A",
    normalisation: str = "rms",
    limit: float | None = None,
    title: str = "",
) -> "Figure":
    """Layer by round: log2 of other / base. Hatched where the seeds do not agree which is larger."""
    middle, agreed = gradients.log_ratios(base, other, name, normalisation)
    limit = limit or float(np.nanmax(np.abs(middle.to_numpy()))) or 1.0
    figure, axis = _subplots(figsize=(6.4, 0.42 * len(middle) + 1.5), layout="constrained")
    edges = np.arange(middle.shape[1] + 1), np.arange(middle.shape[0] + 1)
    image = axis.pcolormesh(*edges, middle.to_numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    if len(base) > 1 and not agreed.all():
        for row, column in np.argwhere(~agreed):
            cell = Rectangle((column, row), 1, 1, fill=False, hatch="////", edgecolor="#555555", linewidth=0)
            axis.add_patch(cell)
    axis.set_yticks(np.arange(len(middle)) + 0.5, middle.index)
    axis.invert_yaxis()
    step = max(1, middle.shape[1] // 9)
    axis.set_xticks(np.arange(0, middle.shape[1], step) + 0.5, middle.columns[::step])
    axis.set(xlabel="round", title=title)
    figure.colorbar(image, label=f"log2 ratio\n{axis_label(name, normalisation)}")
    return figure


def level_heatmaps(runs: "Runs", names: Sequence[str] = ("C", "E"), title: str = "") -> "Figure":
    """Layer by round, a panel for each label and definition, one logarithmic colour scale per definition."""
    from matplotlib.colors import LogNorm

    figure, axes = _subplots(
        len(names), len(runs), figsize=(3.5 * len(runs) + 0.8, 2.1 * len(names) + 0.4), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for row, name in enumerate(names):
        tables = {label: gradients.bands(frames, name, "raw")[0].T for label, frames in runs.items()}
        values = np.concatenate([table.to_numpy().ravel() for table in tables.values()])
        norm = LogNorm(np.nanmin(values), np.nanmax(values))
        for column, (label, table) in enumerate(tables.items()):
            axis = axes[row, column]
            image = axis.pcolormesh(
                np.arange(table.shape[1] + 1), np.arange(len(table) + 1), table.to_numpy(), cmap="viridis", norm=norm
            )
            axis.set_yticks(np.arange(len(table)) + 0.5, table.index)
            axis.invert_yaxis()
            step = max(1, table.shape[1] // 6)
            axis.set_xticks(np.arange(0, table.shape[1], step) + 0.5, table.columns[::step])
            axis.set(title=label if row == 0 else "", xlabel="round" if row == len(names) - 1 else "")
        figure.colorbar(image, ax=axes[row].tolist(), label=axis_label(name, "raw"))
    figure.suptitle(title, fontsize=10)
    return figure


def _errors(rows: "pd.DataFrame") -> np.ndarray:
    """Lengths of the error bars, below and above."""
    return np.maximum([rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]], 0)


def _ratio_axis(axis: Any) -> None:
    """A logarithmic axis with plain numbers, and a line where nothing differs."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter("")
    axis.axhline(1, color="#888888", linewidth=0.8)
    axis.grid(alpha=0.3, axis="y", which="both")


def depth_profile(tables: "Mapping[str, pd.DataFrame]", name: str, title: str = "") -> "Figure":
    """Layers from input to output against the ratio of `gradients.ratios`, a line for each label."""
    figure, axis = _subplots(figsize=(5.4, 3.2), layout="constrained")
    for number, (label, table) in enumerate(tables.items()):
        rows = table[table["definition"] == gradients.definition(name).name]
        places = np.arange(len(rows)) + 0.08 * (number - (len(tables) - 1) / 2)
        axis.errorbar(places, rows["ratio"], _errors(rows), fmt="o-", color=COLOURS[number % len(COLOURS)], label=label,
                      markersize=4, capsize=3, linewidth=1.2)  # fmt: skip
        axis.set_xticks(np.arange(len(rows)), rows["layer"], rotation=20)
    _ratio_axis(axis)
    axis.set(ylabel="ratio to IID", title=title)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def client_strips(runs: "Runs", name: str = "A", normalisation: str = "rms", rounds: Sequence[int] = ()) -> "Figure":
    """Every client's value, by layer, at some rounds: how far clients lie apart, not only their mean."""
    chosen = gradients.definition(name)
    tables = {}
    for label, frames in runs.items():
        frame = frames[0]
        mine = frame[(frame["definition"] == chosen.name) & (frame["normalisation"] == normalisation)]
        tables[label] = mine[mine["client"].notna()]
    there = sorted(set.intersection(*(set(table["round"]) for table in tables.values())))
    picked = list(rounds) or [there[int(place)] for place in np.linspace(0, len(there) - 1, min(4, len(there)))]
    layers = list(dict.fromkeys(next(iter(tables.values()))["layer"]))
    figure, axes = _subplots(
        1, len(picked), figsize=(2.5 * len(picked) + 0.6, 2.8), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, index in zip(axes[0], picked, strict=True):
        for number, (label, table) in enumerate(tables.items()):
            rows = table[table["round"] == index]
            shift = 0.3 * (number - (len(tables) - 1) / 2)
            places = rows["layer"].map(layers.index) + shift + 0.1 * np.random.default_rng(0).uniform(-1, 1, len(rows))
            axis.plot(places, rows["value"], "o", markersize=3, alpha=0.6, color=COLOURS[number], label=label)
        axis.set_xticks(range(len(layers)), layers, rotation=35 if len(layers) <= 5 else 90)
        axis.set(title=f"round {index}", yscale="log")
        axis.grid(alpha=0.3, axis="y")
    axes[0, 0].set_ylabel(axis_label(name, normalisation))
    axes[0, -1].legend(frameon=False, fontsize=8)
    return figure


def sensitivity(table: "pd.DataFrame", title: str = "") -> "Figure":
    """The same runs under several definitions: the ratio by layer with its interval."""
    names = list(dict.fromkeys(table["definition"]))
    figure, axes = _subplots(
        1, len(names), figsize=(1.75 * len(names) + 1.0, 2.9), sharey=True, squeeze=False, layout="constrained"
    )
    layers = list(dict.fromkeys(table["layer"]))
    for axis, name in zip(axes[0], names, strict=True):
        rows = table[table["definition"] == name].set_index("layer").reindex(layers)
        errors = _errors(rows)
        for place, (low, high) in enumerate(zip(rows["low"], rows["high"], strict=True)):
            colour = COLOURS[1] if low > 1 else COLOURS[0] if high < 1 else "#888888"
            axis.errorbar(place, rows["ratio"].iloc[place], errors[:, place : place + 1], fmt="o", color=colour,
                          markersize=5, capsize=3)  # fmt: skip
        _ratio_axis(axis)
        axis.set_xticks(range(len(layers)), layers, rotation=60, fontsize=7)
        letter = gradients.definition(name).letter
        axis.set_title(f"{letter}\n{name.replace('_', ' ')}", fontsize=8)
    axes[0, 0].set_ylabel("ratio non-IID / IID")
    figure.suptitle(title, fontsize=10)
    return figure


def overhead(percent: Mapping[str, float], title: str = "") -> "Figure":
    """What measuring costs: percent of a round's time, for by-products and for each scheduled definition."""
    figure, axis = _subplots(figsize=(5.4, 0.36 * len(percent) + 0.9), layout="constrained")
    places = np.arange(len(percent))
    axis.barh(places, list(percent.values()), color=COLOURS[0])
    for place, value in zip(places, percent.values(), strict=True):
        axis.text(max(value, 0), place, f" {value:.1f} %", va="center", fontsize=8)
    axis.set_yticks(places, list(percent))
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set(xlabel="% of a round in which it is measured", title=title)
    return figure

"""Gradient norms by layer, as the probe recorded them: over rounds, and as ratios between runs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from diagnostics import gradients
from diagnostics.statistics import NO_INTERVAL
from figures.charts import Heat, Panel, Scale
from figures.paper.fig2_gradient_norms import SHOWN
from figures.report._page import Control, Exhibit, Option, Part, line, part
from figures.report._story import UNITS, Group, Story

MOST_ROUNDS = 40  # stops of the slider
NO_PROBE = "no gradient norms; `feddual run ... --probe gradient-norms@every=5` records them"


def norms(story: Story) -> Part:
    """A panel per layer, a line per group, a choice of definitions."""
    missing = [f"{group.label}: {NO_PROBE}" for group in story.groups if not group.gradient_norms]
    frame = _norm_frame(story)
    if frame.empty:
        return part("norms", missing=missing)
    layers = list(dict.fromkeys(frame["layer"]))
    names = [name for name in gradients.DEFINITIONS if name in set(frame["definition"])]
    panels = []
    for layer in layers:
        marks = []
        for group in story.groups:
            rows = frame[(frame["run"] == group.label) & (frame["layer"] == layer)]
            for name in names:
                mine = rows[rows["definition"] == name]
                if len(mine):
                    marks.append(line(group, mine.set_index("round")["value"], {"definition": name}))
        panels.append(Panel(layer, "round", "", marks))
    options = [_definition(name, frame[frame["definition"] == name]) for name in names]
    controls = [Control("definition", "Definition", options)]
    chart = Exhibit("gradient-norms", panels, frame, controls, width=200, height=240)
    return part("norms", [chart], missing)


def _norm_frame(story: Story) -> pd.DataFrame:
    """Long form: run, definition, layer, round, value (the geometric mean over seeds)."""
    parts = []
    for group in story.groups:
        frames = list(group.gradient_norms.values())
        for name in gradients.DEFINITIONS if frames else ():
            if any(gradients.per_round(frame, name, UNITS).empty for frame in frames):
                continue
            table = gradients.bands(frames, name, UNITS)[0] if len(frames) > 1 else gradients.per_round(
                frames[0], name, UNITS
            )  # fmt: skip
            long = table.reset_index().melt("round", var_name="layer", value_name="value")
            parts.append(long.assign(run=group.label, definition=name))
    columns = ["run", "definition", "layer", "round", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _definition(name: str, rows: pd.DataFrame) -> Option:
    """All panels get one axis, so that layers can be compared."""
    chosen = gradients.definition(name)
    finite = rows["value"][np.isfinite(rows["value"])]
    log = chosen.is_norm and len(finite) and finite.min() > 0
    ends = np.log10([finite.min(), finite.max()]) if log else [finite.min(), finite.max()] if len(finite) else [0, 1]
    room = 0.05 * (ends[1] - ends[0] or 1)
    layout = {"yaxis.type": "log" if log else "linear", "yaxis.range": [float(ends[0] - room), float(ends[1] + room)]}
    counts = rows.groupby("run")["round"].nunique()
    measured = f"measured in {' to '.join(map(str, sorted({counts.min(), counts.max()})))} rounds"
    return Option(name, f"{chosen.letter} {name.replace('_', ' ')}", f"{chosen.formula}; {measured}", layout)


def ratios(story: Story) -> Part:
    """How many times larger than at the base, by definition and layer, with a slider over rounds."""
    pairs = {group: story.base_of(group) for group in story.groups}
    found = {group: _ratio_tables(base, group) for group, base in pairs.items() if base is not group}
    tables = {group: table for group, table in found.items() if not table.empty}
    if not tables:
        why = "It takes two runs of the same data and model with the gradient-norms probe, measured in the same rounds."
        return part("ratios", missing=[why])
    every = pd.concat([table.assign(run=group.label) for group, table in tables.items()], ignore_index=True)
    stops = _stops(every)
    limit = float(np.nanmax(np.abs(np.log2(every["ratio"].replace([0, np.inf], np.nan))))) or 1.0
    scale = Scale(-limit, limit, colours="RdBu_r")
    layers, names = (list(dict.fromkeys(every[column])) for column in ("layer", "definition"))
    labels = [f"{gradients.definition(name).letter} {name.replace('_', ' ')}" for name in names]
    cells = [
        _ratio_cells(table[table["round"] == stop], names, layers, scale, {"against": group.key, "round": stop})
        for group, table in tables.items()
        for stop in stops
    ]
    panel = Panel("Ratio by definition and layer", "layer", "", cells, x_names=layers, y_names=labels)
    controls = [
        Control("against", "Compare", [Option(group.key, f"{group.label} / {pairs[group].label}") for group in tables]),
        Control("round", "Round", [Option(stop, stop) for stop in stops], slider=True),
    ]
    chart = Exhibit("gradient-ratios", [panel], every, controls, 600, 380)
    return part("ratios", [chart])


def _ratio_tables(base: Group, other: Group) -> pd.DataFrame:
    """Columns definition, layer, round (`all` for the mean, then with low, high and the number of rounds), ratio."""
    seeds = sorted(set(base.gradient_norms) & set(other.gradient_norms))
    one, two = ([group.gradient_norms[seed] for seed in seeds] for group in (base, other))
    if not seeds:
        return pd.DataFrame()
    parts = [gradients.ratios(one, two, SHOWN, UNITS, seeds).assign(round="all")]
    for letter in SHOWN:
        if any(gradients.per_round(frame, letter, UNITS).empty for frame in [*one, *two]):
            continue
        logs, _ = gradients.log_ratios(one, two, letter, UNITS)
        long = logs.rename_axis("layer").reset_index().melt("layer", var_name="round", value_name="ratio")
        long = long.assign(ratio=2 ** long["ratio"].astype(float), definition=gradients.definition(letter).name)
        parts.append(long.assign(round=long["round"].astype(str)))
    frame = pd.concat(parts, ignore_index=True)
    return frame[["definition", "layer", "round", "ratio", "low", "high", "rounds"]]


def _stops(frame: pd.DataFrame) -> list[str]:
    """The rounds in which most was measured, thinned to what a slider can hold, after `all`."""
    counts = frame[frame["round"] != "all"].groupby("round")["definition"].nunique()
    rounds = sorted(counts[counts == counts.max()].index, key=int)
    step = -(-len(rounds) // MOST_ROUNDS)
    return ["all", *rounds[::step]] if rounds else ["all"]


def _ratio_cells(
    table: pd.DataFrame, names: list[str], layers: list[str], scale: Scale, when: Mapping[str, str]
) -> Heat:
    """The ratios of one stop, definitions down and layers to the right."""
    cells = table.set_index(["definition", "layer"])

    def grid(column: str) -> np.ndarray:
        return np.asarray(cells[column].unstack().reindex(index=names, columns=layers).to_numpy(float))

    def words(name: str, layer: str, value: float, low: float, high: float, rounds: float) -> str:
        alone = f"<br>{NO_INTERVAL}" if when["round"] == "all" else ""
        interval = f"<br>95 %: {low:.2f} to {high:.2f}, {rounds:.0f} rounds measured" if low == low else alone
        return f"{gradients.definition(name).letter} {name.replace('_', ' ')}, {layer}: {value:.3f} times{interval}"

    ratio, low, high, rounds = map(grid, ("ratio", "low", "high", "rounds"))
    texts = [[f"{value:.2f}" if value == value else "" for value in row] for row in ratio]
    told = [
        [words(name, layer, *(part[i, j] for part in (ratio, low, high, rounds))) for j, layer in enumerate(layers)]
        for i, name in enumerate(names)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        return Heat(np.log2(ratio), scale, texts=texts, told=told, when=when)

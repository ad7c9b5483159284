"""Sharpness, curvature, barriers between models and trajectories, as they lie recorded beside the runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from diagnostics.curvature.spectrum import Spectrum
from diagnostics.flatness.sharpness_comparison import compare_sharpness
from diagnostics.flatness.sharpness_result import Sharpness
from diagnostics.merging.result import Barriers, compare_barriers
from diagnostics.statistics import said
from diagnostics.trajectories.trajectory import Trajectory
from feddual.errors import UserError
from figures.charts import flatness as sharpness_plots
from figures.charts import merging as merging_plots
from figures.charts import trajectories as trajectory_plots
from figures.charts.describe import Chart, Line, Panel, Points
from figures.charts.style import paler
from figures.report._page import Control, Exhibit, Option, Part, Table, part
from figures.report._story import Group, Story

MAIN = "main"  # the folder that is shown where there are several
ENDS = ("value", "low", "high")
QUANTITIES = ("barrier", "rise")  # of the matrix
PATH = "#FFFFFF"  # of a trajectory, seen on the contours
MOST = 4  # trajectories that are drawn
T = TypeVar("T", Sharpness, Spectrum, Barriers, Trajectory)
Found = dict[Group, list[T]]


def merging(story: Story) -> Part | None:
    """Forest plot, spectra, barriers, trajectories; None where none of them was recorded."""
    missing: list[str] = []
    sharp = _read(story, "sharpness", Sharpness.load, missing)
    spectra = _read(story, "spectra", Spectrum.load, missing)
    barriers = _read(story, "barriers", Barriers.load, missing)
    paths = _read(story, "trajectories", Trajectory.load, missing)
    shown = [*_sharpness(sharp, missing), *_spectra(spectra), *_barriers(barriers), *_trajectories(paths)]
    return part("merging", shown, missing) if shown or missing else None


def _read(story: Story, kind: str, load: Callable[[Path], T], missing: list[str]) -> Found[T]:
    """By group one measurement of each run that has some: `main`, else the last by name."""
    found: Found[T] = {}
    for group in story.groups:
        for run in group.runs:
            folders = run.record.sharpness() if kind == "sharpness" else _folders(run.path / kind)
            for folder in sorted(folders, key=lambda path: (path.name == MAIN, path.name))[-1:]:
                try:
                    found.setdefault(group, []).append(load(folder))
                except (UserError, OSError, ValueError, KeyError) as error:
                    missing.append(f"{run.path.name}, {kind}/{folder.name}: {error}")
    return {group: several for group, several in found.items() if several}


def _folders(path: Path) -> list[Path]:
    return [one for one in path.glob("*") if any(one.glob("*.json"))] if path.is_dir() else []


# --- sharpness --------------------------------------------------------------------------------------------------------


def _sharpness(found: Found[Sharpness], missing: list[str]) -> list[Exhibit | Table]:
    """Every measure of every model, and where several can be compared their ratios."""
    if not found:
        return []
    shown: list[Exhibit | Table] = [_measures(found)]
    if len(found) > 1:
        try:
            compared = compare_sharpness({group.label: several for group, several in found.items()})
        except UserError as error:
            missing.append(f"ratios of sharpness: {error}")
            return shown
        chart = sharpness_plots.forest(compared)
        height = max(320, 44 * max(len(panel.y_names) for panel in chart.panels))
        first = next(iter(found)).label
        panels = []
        for panel in chart.panels:
            rows, title = [one.replace(" (larger: flatter)", "") for one in panel.y_names], f"Ratio to {first}"
            shorter = replace(panel, x_label="ratio", y_names=rows, title=f"{title} {panel.title}".strip())
            panels.append(_in_colours(shorter, found, _second))
        shown.append(Exhibit("sharpness-ratios", panels, compared.differences, width=600, height=height))
    return shown


def _second(label: str) -> str:
    """`a / b` is about a."""
    return label.rpartition(" / ")[0]


def _measures(found: Found[Sharpness]) -> Table:
    """A row per measure, a column per group: the mean over its runs; of one run its error over draws."""
    frames = [one.table.assign(run=group.label) for group, several in found.items() for one in several]
    frame = pd.concat(frames, ignore_index=True)
    frame["name"] = [sharpness_plots.label(*pair) for pair in zip(frame["measure"], frame["level"], strict=True)]
    rows = []
    for name, part_of in frame.groupby("name", sort=False):
        cells = []
        for group in found:
            mine = part_of[part_of["run"] == group.label]
            value, low, high = (mine[key].mean() if len(mine) == 1 or key == "value" else np.nan for key in ENDS)
            cells.append(said(value, low, high, ".3g") if len(mine) else "–")
        rows.append([str(name), *cells])
    caption = "Sharpness by many measures; of one run with its 95 % interval over draws, of several their mean."
    return Table("sharpness", caption, ["measure", *(group.label for group in found)], rows, frame)


def _in_colours(panel: Panel, groups: Mapping[Group, Any], about: Callable[[str], str] = str) -> Panel:
    """The panel in the colours of the page's runs, under their chips."""
    by_label = {group.label: group for group in groups}
    marks, last = [], None
    for mark in reversed(panel.marks):  # a paler mark without a name lies below the one it belongs to
        look = getattr(mark, "look", None)
        group = by_label.get(about(look.label)) if look is not None and look.label else last
        if look is not None and group is not None:
            colour = group.look.colour if look.label else paler(group.look.colour, 1)
            mark = replace(mark, look=replace(look, colour=colour), when={"run": group.key})  # type: ignore[call-arg]
        last = group
        marks.append(mark)
    return replace(panel, marks=marks[::-1])


# --- spectra ----------------------------------------------------------------------------------------------------------


def _spectra(found: Found[Spectrum]) -> list[Exhibit]:
    """The densities of the groups' first runs over each other."""
    if not found:
        return []
    marks, parts = [], []
    for group, several in found.items():
        x, density = several[0].density()
        seen = density > density.max() * 1e-6  # a logarithmic axis has no place for the Gaussians' far tails
        marks.append(Line(group.look, x[seen], density[seen], marked=False, when={"run": group.key}))
        parts.append(pd.DataFrame({"run": group.label, "eigenvalue": x, "density": density}))
    kinds = dict.fromkeys(str(several[0].meta["identity"]["curvature"]) for several in found.values())
    panel = Panel("Spectral density", "eigenvalue", "density", marks, y_scale="log", note=", ".join(kinds))
    frame = pd.concat(parts, ignore_index=True)
    return [Exhibit("spectra", [panel], frame, width=600, height=340), *_by_layer(found)]


def _by_layer(found: Found[Spectrum]) -> list[Exhibit]:
    """The trace's shares, layer by layer."""
    tables = [several[0].per_layer().assign(run=group.label) for group, several in found.items()]
    frame = pd.concat(tables, ignore_index=True)
    layers = list(dict.fromkeys(frame["layer"]))
    marks = []
    for group in found:
        mine = frame[frame["run"] == group.label].set_index("layer").reindex(layers)
        places = np.arange(len(layers), dtype=float)
        marks.append(Line(group.look, places, mine["share"].to_numpy(float), when={"run": group.key}))
    panel = Panel("Share of the trace", "", "", marks, x_names=layers, level=0, note="of each layer's block")
    return [Exhibit("trace-by-layer", [panel], frame, width=600, height=300)]


# --- barriers and trajectories ----------------------------------------------------------------------------------------


def _barriers(found: Found[Barriers]) -> list[Exhibit]:
    """Who can be averaged with whom, of each group's first run; and layer by layer, with intervals over runs."""
    if not found:
        return []
    firsts = {group: several[0] for group, several in found.items()}
    panels = []
    for group, one in firsts.items():
        drawn = [merging_plots.matrix(one, quantity).panels for quantity in QUANTITIES]
        for same in zip(*drawn, strict=True):  # one order of units, every quantity
            marks = [
                replace(mark, when={"quantity": quantity})
                for quantity, panel in zip(QUANTITIES, same, strict=True)
                for mark in panel.marks
            ]
            panels.append(replace(same[0], title=f"{group.label}, {same[0].title}", marks=marks))
    values = pd.concat([one.values.assign(run=group.label) for group, one in firsts.items()], ignore_index=True)
    control = Control("quantity", "Show", [Option(one, merging_plots.WORDS[one]) for one in QUANTITIES])
    shown = [Exhibit("barriers", panels, values, [control], width=420, height=420)]
    if len(found) == 1 and len(next(iter(found.values()))) == 1:
        (group, one), *_ = firsts.items()
        chart, frame = merging_plots.by_layer(one), one.summary
        bars = [replace(panel, marks=[_of_group(mark, group) for mark in panel.marks]) for panel in chart.panels]
    else:
        frame = compare_barriers({group.label: several for group, several in found.items()})
        bars = [_in_colours(panel, found) for panel in merging_plots.by_layer(frame).panels]
    return [*shown, Exhibit("barriers-by-layer", bars, frame, width=420, height=320)] if bars else shown


def _of_group(mark: Any, group: Group) -> Any:
    return replace(mark, look=replace(mark.look, colour=group.look.colour), when={"run": group.key})


def _trajectories(found: Found[Trajectory]) -> list[Exhibit]:
    """The plane in which each run moves most, and how far it lies off it."""
    shown = []
    for group, several in list(found.items())[:MOST]:
        chart: Chart = trajectory_plots.trajectory(several[0])
        panels = [
            replace(panel, title=f"{group.label}: {panel.title}", marks=list(map(_seen, panel.marks)))
            for panel in chart.panels
        ]
        shown.append(Exhibit(f"trajectory-{group.key}", panels, several[0].points, width=420, height=420))
    return shown


def _seen(mark: Any) -> Any:
    return replace(mark, look=replace(mark.look, colour=PATH)) if isinstance(mark, Points) and mark.joined else mark

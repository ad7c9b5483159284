"""What averaging breaks, as the probe `forgetting` recorded it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from diagnostics.forgetting import reading
from diagnostics.forgetting.probe import ForgettingProbe
from figures.charts import averaging as plots
from figures.charts.describe import Panel
from figures.charts.scale import Scale
from figures.report._gradients import MOST_ROUNDS
from figures.report._page import Control, Exhibit, Option, Part, line, part
from figures.report._story import Group, Story

NO_PROBE = f"not recorded; `feddual run ... --probe {ForgettingProbe.name}@every=5` does"
LINES = {
    "classes": "client-classes",
    "cosines": "client-agreement",
    "clients": "client-fairness",
    "features": "collapse",
}
Frames = Mapping[Group, Sequence[pd.DataFrame]]


def averaging(story: Story) -> Part | None:
    """Forgetting by class, agreement of the clients, fairness, collapse and calibration; None without the probe."""
    found = {group: list(group.forgetting.values()) for group in story.groups if group.forgetting}
    if not found:
        return None
    frames = {group: [frame for frame, _ in several] for group, several in found.items()}
    missing = [f"{group.label}: {NO_PROBE}" for group in story.groups if group not in found]
    changes = [reading.by_class(several, name) for several in frames.values() for name in reading.CHANGES]
    charts = [
        _heatmaps(frames, "forgetting", reading.CHANGES, plots.change_scale(changes, "lost")),
        _heatmaps(frames, "forgetting-stages", reading.STAGES, Scale(0.0, 1.0, label="right")),
        *(_lines(frames, about) for about in LINES),
        _calibration({group: [bins for _, bins in several] for group, several in found.items()}),
    ]
    return part("averaging", charts, missing)


def _heatmaps(frames: Frames, name: str, names: Mapping[str, str], scale: Scale) -> Exhibit:
    """Class by round, a group at a time, a panel per quantity."""
    tables = {(group, which): reading.by_class(several, which) for group, several in frames.items() for which in names}
    panels = []
    for which, words in names.items():
        drawn = [plots.matrix(tables[group, which], scale, words, when={"of": group.key}) for group in frames]
        widest = max(drawn, key=lambda panel: len(panel.x_names))
        panels.append(
            replace(widest, title=words.capitalize(), marks=[mark for panel in drawn for mark in panel.marks])
        )
    parts = [
        table.reset_index().melt("class", var_name="round").assign(run=group.label, quantity=which)
        for (group, which), table in tables.items()
    ]
    controls = [Control("of", "Run", [Option(group.key, group.label) for group in frames])]
    frame = pd.concat(parts, ignore_index=True)[["run", "quantity", "round", "class", "value"]]
    return Exhibit(name, panels, frame, controls, width=300, height=330)


def _lines(frames: Frames, about: str) -> Exhibit:
    """Quantities over rounds, a line per group."""
    panels, parts = [], []
    for name, (title, note) in plots.LINES[about].items():
        marks = []
        for group, several in frames.items():
            table = reading.over_rounds(several, name).dropna()
            edges = (table.min(axis=1), table.max(axis=1)) if table.shape[1] > 1 else ()
            if len(table):
                marks.append(line(group, table.mean(axis=1), {}, edges))
            parts += [table[run].rename("value").reset_index().assign(run=group.label, quantity=name) for run in table]
        panels.append(Panel(title, "round", "", marks, note=note, y_range=plots.RANGES.get(about)))
    frame = pd.concat(parts, ignore_index=True)[["run", "quantity", "round", "value"]]
    return Exhibit(LINES[about], [panel for panel in panels if panel.marks], frame, width=260, height=260)


def _calibration(bins: Frames) -> Exhibit:
    """Accuracy against confidence, with a slider over the rounds."""
    rounds = sorted({int(index) for several in bins.values() for table in several for index in table["round"]})
    rounds = rounds[:: -(-len(rounds) // MOST_ROUNDS)]
    right, sure, parts = [plots.diagonal()], [], []
    for index in rounds:
        for group, several in bins.items():
            table, _ = reading.pooled(several, index)
            if len(table):
                curves = plots.bins_of(table, group.look, {"run": group.key, "at": str(index)})
                right.append(curves[0])
                sure.append(curves[1])
                parts.append(table.assign(run=group.label, round=index))
    panels = [
        Panel("Right when so sure?", "confidence", "accuracy", right, y_range=(-0.02, 1.02)),
        Panel("How sure", "confidence", "share of examples", sure),
    ]
    slider = Control("at", "Round", [Option(str(index), str(index)) for index in rounds], True, len(rounds) - 1)
    columns = ["run", "round", "from", "to", "count", "confidence", "accuracy"]
    return Exhibit("calibration", panels, pd.concat(parts, ignore_index=True)[columns], [slider], height=320)

"""How training went: cards, learning curves, time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import over_seeds
from feddual.records.identity import Replicate
from figures._results import WINDOW, per_round, smoothed
from figures.charts.describe import Bars, Line, Panel
from figures.paper._timing import duration
from figures.report._page import Card, Control, Exhibit, Option, Part, line, part
from figures.report._story import Group, Story

METRICS = {"accuracy": "test accuracy", "loss": "test loss"}
PARTS = {
    "local training": ("train_seconds", "client_seconds"), "server": ("server_seconds",),
    "evaluation": ("evaluation_seconds",),
}  # fmt: skip
PART_COLOURS = ("#0072B2", "#E69F00", "#56B4E9", "#999999")


# --- cards ------------------------------------------------------------------------------------------------------------


def cards(story: Story) -> list[Card]:
    """A card per group."""
    return [_card(group) for group in story.groups]


def _card(group: Group) -> Card:
    facts = [run.summary for run in group.runs]
    mean, spread = over_seeds([fact["accuracy"] if fact["finished"] else fact["final"] for fact in facts])
    around = f" ± {100 * spread:.1f}" if spread == spread else ""
    final, best = (over_seeds([fact[key] for fact in facts])[0] for key in ("final", "best"))
    rounds = sorted({fact["rounds"] for fact in facts})
    total = group.first.config["training"]["rounds"]
    seconds = [fact["seconds"] for fact in facts if fact["seconds"] is not None]
    lines = [
        ("final round", _percent(final)),
        ("best round", _percent(best)),
        ("rounds", f"{'–'.join(map(str, (rounds[0], rounds[-1])[: len(rounds)]))} of {total}"),
        *_repetitions(group),
        ("time", duration(float(np.mean(seconds))) if seconds else "not recorded"),
    ]
    return Card(group, _state(group), f"{100 * mean:.1f}{around} %" if mean == mean else "–", lines)


def _repetitions(group: Group) -> list[tuple[str, str]]:
    """The seeds, and the draws of the clients where there are several."""
    numbers = {
        field: sorted({getattr(run.replicate, field) for run in group.runs}) for field in Replicate._fields[::-1]
    }
    return [
        (field if len(found) == 1 else f"{field}s", ", ".join(map(str, found)))
        for field, found in numbers.items()
        if field == "seed" or len(found) > 1
    ]


def _state(group: Group) -> str:
    if group.unfinished:
        behind = len(group.unfinished)
        return "interrupted" if len(group.runs) == 1 else f"{behind} of {len(group.runs)} interrupted"
    wild = sum(run.summary["diverged"] for run in group.runs)
    return "finished" if not wild else "diverged" if len(group.runs) == 1 else f"{wild} of {len(group.runs)} diverged"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value == value else "–"


# --- learning curves --------------------------------------------------------------------------------------------------


def curves(story: Story) -> Part:
    """Accuracy and loss over rounds."""
    marks, parts = [], []
    for group in story.groups:
        for metric in METRICS:
            seeds = per_round(group.runs, metric)
            if seeds.empty:
                continue
            parts.append(tidy(group, seeds, metric))
            for way, shown in {"measured": seeds, "mean": seeds.apply(smoothed)}.items():
                marks.append(band(group, shown, {"metric": metric, "smoothing": way}))
    missing = [f"{group.label}: no test results yet" for group in story.groups if per_round(group.runs, "loss").empty]
    for run in (run for group in story.groups for run in group.unfinished):
        stopped = f"stopped after round {run.summary['rounds']} of {run.config['training']['rounds']}"
        missing.append(f"{run.path.name}: {stopped}; the same command with --resume goes on")
    if not parts:
        return part("curves", missing=missing or ["No run has finished a round."])
    controls = (
        Control("metric", "Show", [
            Option("accuracy", "accuracy", layout={"yaxis.title.text": METRICS["accuracy"], "yaxis.tickformat": ".0%"}),
            Option("loss", "loss", layout={"yaxis.title.text": METRICS["loss"], "yaxis.tickformat": ""}),
        ]),
        Control("smoothing", "Smoothing", [
            Option("measured", "as measured"), Option("mean", f"mean of {WINDOW} rounds"),
        ]),
    )  # fmt: skip
    panel = Panel("Test accuracy or loss over rounds", "communication round", METRICS["accuracy"], marks)
    drawn = Exhibit("learning-curves", [panel], pd.concat(parts, ignore_index=True), controls, 900, 420)
    return part("curves", [drawn], missing)


def tidy(group: Group, seeds: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Long form, a row per draw, seed and round."""
    long = seeds.rename_axis(index="round").melt(ignore_index=False).dropna().reset_index()
    return long.assign(run=group.label, quantity=quantity)[["run", "draw", "seed", "quantity", "round", "value"]]


def band(group: Group, seeds: pd.DataFrame, when: dict[str, str] | None = None) -> Line:
    """The mean over seeds, and their range where there are several; of the rounds that all have."""
    common = seeds.dropna()
    edges = (common.min(axis=1), common.max(axis=1)) if seeds.shape[1] > 1 else ()
    return line(group, common.mean(axis=1), when or {}, edges)


def from_zero(lines: Sequence[Line]) -> tuple[float, float]:
    """An axis from 0 to a little above the highest line."""
    tops = [float(np.nanmax(one.y if one.high is None else one.high)) for one in lines if len(one.y)]
    return 0.0, 1.05 * max(tops, default=1.0)


# --- time -------------------------------------------------------------------------------------------------------------


def timing(story: Story) -> Part:
    """Where the seconds go."""
    rows = [(group, run, row) for group in story.groups for run in group.runs for row in run.timings]
    if not rows:
        return part("timing", missing=["No timings were recorded."])
    frame = pd.DataFrame([{"run": group.label, **run.replicate._asdict(), **_split(row)} for group, run, row in rows])
    means = frame[(frame["round"] > 1) | (frame.groupby(["run", "draw", "seed"])["round"].transform("max") == 1)]
    means = means.groupby("run", sort=False).mean(numeric_only=True)
    spent = {part: means[part].to_list() for part in [*PARTS, "other"]}
    looks = [group.look for group in story.groups if group.label in means.index]
    bars = Bars(looks, spent, stacked=PART_COLOURS, text="{:.3f} s")
    lines = []
    for group in story.groups:
        seeds = pd.DataFrame({run.replicate: pd.Series({r["round"]: r["seconds"] for r in run.timings}, dtype=float)
                              for run in group.runs}, dtype=float)  # fmt: skip
        if not seeds.empty:
            lines.append(band(group, seeds))
    panels = [
        Panel("By what they were spent on", "seconds per round", "", [bars]),
        Panel("Each round", "communication round", "seconds", lines, y_range=from_zero(lines)),
    ]
    return part("timing", [Exhibit("timing", panels, frame, height=300)])


def _split(row: dict[str, Any]) -> dict[str, float]:
    spent = {part: float(next((row[key] for key in keys if key in row), np.nan)) for part, keys in PARTS.items()}
    other = max(row["seconds"] - float(np.nansum(list(spent.values()))), 0.0)
    return {"round": row["round"], "seconds": row["seconds"], **spent, "other": other}

"""How training went: cards, learning curves, time."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from diagnostics.statistics import over_seeds
from figures._results import WINDOW, per_round, smoothed
from figures.paper._timing import duration
from figures.report._page import Card, Chart, Control, Option, Panel, Section, figure, line
from figures.report._story import Group, Story

METRICS = {"accuracy": "test accuracy", "loss": "test loss"}
PARTS = {
    "local training": ("train_seconds", "client_seconds"),
    "server": ("server_seconds",),
    "evaluation": ("evaluation_seconds",),
}
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
        ("seed" if len(group.runs) == 1 else "seeds", ", ".join(str(run.seed) for run in group.runs)),
        ("time", duration(float(np.mean(seconds))) if seconds else "not recorded"),
    ]
    return Card(group, _state(group), f"{100 * mean:.1f}{around} %" if mean == mean else "–", lines)


def _state(group: Group) -> str:
    if group.unfinished:
        behind = len(group.unfinished)
        return "interrupted" if len(group.runs) == 1 else f"{behind} of {len(group.runs)} interrupted"
    wild = sum(run.summary["diverged"] for run in group.runs)
    return "finished" if not wild else "diverged" if len(group.runs) == 1 else f"{wild} of {len(group.runs)} diverged"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value == value else "–"


# --- learning curves --------------------------------------------------------------------------------------------------


def curves(story: Story) -> Section:
    """Accuracy and loss over rounds."""
    chart = figure("communication round", METRICS["accuracy"])
    parts = []
    for group in story.groups:
        for metric in METRICS:
            seeds = per_round(group.runs, metric)
            if seeds.empty:
                continue
            parts.append(tidy(group, seeds, metric))
            for way, shown in {"measured": seeds, "mean": seeds.apply(smoothed)}.items():
                chart.add_traces(band(group, shown, {"metric": metric, "smoothing": way}))
    missing = [f"{group.label}: no test results yet" for group in story.groups if per_round(group.runs, "loss").empty]
    missing += [
        f"{run.path.name}: stopped after round {run.summary['rounds']} of {run.config['training']['rounds']}; "
        f"the same command with --resume goes on"
        for group in story.groups
        for run in group.unfinished
    ]
    about = (
        "The global model on the test set after each round. With several seeds the line is their mean, the band their "
        "range. With very skewed clients one round swings by points, so a running mean reads better."
    )
    if not parts:
        return Section("curves", "Learning curves", about, missing=missing or ["No run has finished a round."])
    controls = (
        Control("metric", "Show", [
            Option("accuracy", "accuracy", layout={"yaxis.title.text": METRICS["accuracy"], "yaxis.tickformat": ".0%"}),
            Option("loss", "loss", layout={"yaxis.title.text": METRICS["loss"], "yaxis.tickformat": ""}),
        ]),
        Control("smoothing", "Smoothing", [
            Option("measured", "as measured"), Option("mean", f"mean of {WINDOW} rounds"),
        ]),
    )  # fmt: skip
    panel = Panel("Test accuracy or loss over rounds", chart)
    drawn = Chart("learning-curves", [panel], pd.concat(parts, ignore_index=True), controls, 900, 420)
    return Section("curves", "Learning curves", about, [drawn], missing)


def tidy(group: Group, seeds: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Long form, a row per seed and round."""
    long = seeds.rename_axis("round").reset_index().melt("round", var_name="seed", value_name="value").dropna()
    return long.assign(run=group.label, quantity=quantity)[["run", "seed", "quantity", "round", "value"]]


def band(group: Group, seeds: pd.DataFrame, meta: dict[str, str]) -> list[go.Scatter]:
    """The mean over seeds, and their range where there are several; of the rounds that all have."""
    common = seeds.dropna()
    traces = []
    if seeds.shape[1] > 1:
        edge = np.concatenate([common.max(axis=1), common.min(axis=1)[::-1]])
        there = np.concatenate([common.index, common.index[::-1]])
        traces.append(
            go.Scatter(
                x=there, y=edge, fill="toself", fillcolor=group.colour, opacity=0.16, line={"width": 0},
                hoverinfo="skip", meta={"run": group.key} | meta,
            )
        )  # fmt: skip
    mean = common.mean(axis=1)
    return [*traces, line(group, mean.index.to_list(), mean.to_list(), meta=meta)]


# --- time -------------------------------------------------------------------------------------------------------------


def timing(story: Story) -> Section:
    """Where the seconds go."""
    about = (
        "Seconds of a round by what they were spent on (a mean over rounds after the first, in which the graph is "
        "compiled), and each round's. They belong to the machine and to what else it did."
    )
    rows = [(group, run, row) for group in story.groups for run in group.runs for row in run.timings]
    if not rows:
        return Section("timing", "Time", about, missing=["No timings were recorded."])
    frame = pd.DataFrame([{"run": group.label, "seed": run.seed, **_split(row)} for group, run, row in rows])
    means = frame[(frame["round"] > 1) | (frame.groupby(["run", "seed"])["round"].transform("max") == 1)]
    means = means.groupby("run", sort=False).mean(numeric_only=True)
    bars = figure("seconds per round", barmode="stack", yaxis={"autorange": "reversed", "automargin": True})
    for colour, part in zip(PART_COLOURS, [*PARTS, "other"], strict=True):
        bars.add_bar(
            y=means.index.to_list(), x=means[part].to_list(), name=part, orientation="h", marker={"color": colour},
            hovertemplate="%{y}<br>" + part + ": %{x:.3f} s<extra></extra>",
        )  # fmt: skip
    bars.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    each = figure("communication round", "seconds", yaxis={"title": {"text": "seconds"}, "rangemode": "tozero"})
    for group in story.groups:
        seeds = pd.DataFrame({run.seed: pd.Series({r["round"]: r["seconds"] for r in run.timings}, dtype=float)
                              for run in group.runs}, dtype=float)  # fmt: skip
        if not seeds.empty:
            each.add_traces(band(group, seeds, {}))
    panels = [Panel("By what they were spent on", bars), Panel("Each round", each)]
    return Section("timing", "Time", about, [Chart("timing", panels, frame, height=300)])


def _split(row: dict[str, Any]) -> dict[str, float]:
    spent = {part: float(next((row[key] for key in keys if key in row), np.nan)) for part, keys in PARTS.items()}
    other = max(row["seconds"] - float(np.nansum(list(spent.values()))), 0.0)
    return {"round": row["round"], "seconds": row["seconds"], **spent, "other": other}

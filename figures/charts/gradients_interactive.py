"""The same pictures to explore, with plotly."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from diagnostics import gradients
from figures.charts.gradients import COLOURS, axis_label

if TYPE_CHECKING:
    import pandas as pd

    Runs = Mapping[str, Sequence[pd.DataFrame]]

PLOTLY_DASHES = ("solid", "dash", "dot", "dashdot")


def lines(runs: "Runs", name: str = "A", normalisation: str = "rms", title: str = "") -> go.Figure:
    """Small multiples by layer over rounds; hover tells the value, the legend switches labels on and off."""
    layers = list(gradients.per_round(next(iter(runs.values()))[0], name, normalisation).columns)
    figure = make_subplots(1, len(layers), shared_yaxes=True, subplot_titles=layers, horizontal_spacing=0.02)
    for number, (label, frames) in enumerate(runs.items()):
        middle, low, high = gradients.bands(frames, name, normalisation)
        colour = COLOURS[number % len(COLOURS)]
        for column, layer in enumerate(layers):
            where: dict[str, Any] = {"row": 1, "col": column + 1}
            if len(frames) > 1:
                there = np.concatenate([middle.index, middle.index[::-1]])
                edge = np.concatenate([high[:, column], low[::-1, column]])
                figure.add_scatter(x=there, y=edge, fill="toself", fillcolor=colour, opacity=0.2, line_width=0,
                                   legendgroup=label, showlegend=False, hoverinfo="skip", **where)  # fmt: skip
            figure.add_scatter(x=middle.index, y=middle[layer], name=label, legendgroup=label, showlegend=not column,
                               line={"color": colour, "dash": PLOTLY_DASHES[number % 4]}, **where)  # fmt: skip
    figure.update_yaxes(type="log")
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text=axis_label(name, normalisation).replace("\n", "<br>"), row=1, col=1)
    figure.update_layout(template="plotly_white", height=380, title=title)
    return figure


def ratio_heatmap(
    base: "Sequence[pd.DataFrame]",
    other: "Sequence[pd.DataFrame]",
    name: str = "A",
    normalisation: str = "rms",
    title: str = "",
) -> go.Figure:
    """Layer by round: log2 of other / base."""
    middle, agreed = gradients.log_ratios(base, other, name, normalisation)
    limit = float(np.nanmax(np.abs(middle.to_numpy()))) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=middle.to_numpy(), x=[str(index) for index in middle.columns], y=list(middle.index), zmin=-limit,
            zmax=limit, colorscale="RdBu_r", colorbar_title="log2 ratio",
            customdata=np.where(agreed, "all seeds agree", "seeds disagree"),
            hovertemplate="round %{x}, %{y}: %{z:.2f}<br>%{customdata}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(template="plotly_white", height=320, title=title or axis_label(name, normalisation))
    figure.update_xaxes(title_text="round")
    return figure


def ratios(table: "pd.DataFrame", title: str = "") -> go.Figure:
    """The ratio of each definition by layer with its interval; the legend switches definitions on and off."""
    figure = go.Figure()
    for number, name in enumerate(dict.fromkeys(table["definition"])):
        rows = table[table["definition"] == name]
        figure.add_scatter(
            x=rows["layer"], y=rows["ratio"], mode="lines+markers", name=name.replace("_", " "),
            line_color=COLOURS[number % len(COLOURS)],
            error_y={"array": rows["high"] - rows["ratio"], "arrayminus": rows["ratio"] - rows["low"]},
        )  # fmt: skip
    figure.add_hline(1, line_color="#888888", line_width=1)
    figure.update_yaxes(type="log", title_text="ratio non-IID / IID")
    figure.update_layout(template="plotly_white", height=420, title=title)
    return figure


def level_heatmaps(runs: "Runs", names: Sequence[str] = ("C", "E"), title: str = "") -> go.Figure:
    """Layer by round, a panel for each label and definition, log10, one scale per definition."""
    figure = make_subplots(
        len(names), len(runs), column_titles=list(runs), row_titles=[axis_label(name, "raw") for name in names],
        horizontal_spacing=0.08, vertical_spacing=0.12,
    )  # fmt: skip
    for row, name in enumerate(names, 1):
        tables = {label: gradients.bands(frames, name, "raw")[0].T.apply(np.log10) for label, frames in runs.items()}
        values = np.concatenate([table.to_numpy().ravel() for table in tables.values()])
        for column, table in enumerate(tables.values(), 1):
            figure.add_heatmap(
                z=table.to_numpy(), x=[str(index) for index in table.columns], y=list(table.index),
                colorscale="Viridis",
                zmin=np.nanmin(values), zmax=np.nanmax(values), showscale=column == len(tables),
                colorbar={"title": "log10", "len": 0.9 / len(names), "y": 1 - (row - 0.5) / len(names)},
                hovertemplate="round %{x}, %{y}: 10^%{z:.2f}<extra></extra>", row=row, col=column,
            )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(template="plotly_white", height=300 * len(names), title=title)
    return figure


def depth_profile(tables: "Mapping[str, pd.DataFrame]", name: str, title: str = "") -> go.Figure:
    """Layers from input to output against the ratio, a line for each label."""
    figure = go.Figure()
    for number, (label, table) in enumerate(tables.items()):
        rows = table[table["definition"] == gradients.definition(name).name]
        figure.add_scatter(
            x=rows["layer"], y=rows["ratio"], mode="lines+markers", name=label,
            line_color=COLOURS[number % len(COLOURS)],
            error_y={"array": rows["high"] - rows["ratio"], "arrayminus": rows["ratio"] - rows["low"]},
        )  # fmt: skip
    figure.add_hline(1, line_color="#888888", line_width=1)
    figure.update_yaxes(type="log", title_text="ratio to IID")
    figure.update_layout(template="plotly_white", height=420, title=title)
    return figure


def client_strips(runs: "Runs", name: str = "A", normalisation: str = "rms", title: str = "") -> go.Figure:
    """Every client's value by layer, all measured rounds of the first seed; a slider picks the round."""
    chosen = gradients.definition(name).name
    parts = {}
    for label, frames in runs.items():
        rows = frames[0][(frames[0]["definition"] == chosen) & (frames[0]["normalisation"] == normalisation)]
        parts[label] = rows[rows["client"].notna()]
    rounds = sorted(set.intersection(*(set(part["round"]) for part in parts.values())))
    figure = go.Figure()
    for place, index in enumerate(rounds):
        for number, (label, part) in enumerate(parts.items()):
            rows = part[part["round"] == index]
            figure.add_box(
                x=rows["layer"], y=rows["value"], name=label, boxpoints="all", jitter=0.5, pointpos=0,
                visible=not place,
                line={"width": 0}, fillcolor=f"{COLOURS[number]}33", marker_color=COLOURS[number], offsetgroup=label,
                text=[f"client {client}" for client in rows["client"]],
            )  # fmt: skip
    steps = [
        {"label": str(index), "method": "update",
         "args": [{"visible": [place == number // len(parts) for number in range(len(rounds) * len(parts))]}]}
        for place, index in enumerate(rounds)
    ]  # fmt: skip
    figure.update_yaxes(type="log", title_text=axis_label(name, normalisation).replace("\n", "<br>"))
    figure.update_layout(
        template="plotly_white", height=460, boxmode="group", title=title,
        sliders=[{"steps": steps, "currentvalue": {"prefix": "round "}}],
    )  # fmt: skip
    return figure


def overhead(percent: Mapping[str, float], title: str = "") -> go.Figure:
    """What measuring costs, percent of a round's time."""
    figure = go.Figure(go.Bar(x=list(percent.values()), y=list(percent), orientation="h", marker_color=COLOURS[0]))
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title_text="% of a round in which it is measured")
    figure.update_layout(template="plotly_white", height=320, title=title)
    return figure

"""The same pictures to explore, with plotly."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from diagnostics import gradients
from diagnostics.plots.gradients import COLOURS, _log_ratios, axis_label, bands

if TYPE_CHECKING:
    import pandas as pd

    Runs = Mapping[str, Sequence[pd.DataFrame]]

PLOTLY_DASHES = ("solid", "dash", "dot", "dashdot")


def lines(runs: "Runs", name: str = "A", normalisation: str = "rms", title: str = "") -> go.Figure:
    """Small multiples by layer over rounds; hover tells the value, the legend switches labels on and off."""
    layers = list(gradients.per_round(next(iter(runs.values()))[0], name, normalisation).columns)
    figure = make_subplots(1, len(layers), shared_yaxes=True, subplot_titles=layers, horizontal_spacing=0.02)
    for number, (label, frames) in enumerate(runs.items()):
        middle, low, high = bands(frames, name, normalisation)
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
    middle, agreed = _log_ratios(base, other, name, normalisation)
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

"""The same charts with plotly: hover for values, click the legend to show and hide."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from figures.charts.describe import Bars, Chart, Heat, Line, Panel
from figures.charts.style import FAINT, GRID, INK, paler

DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot"}


def library() -> bytes:
    """plotly.js itself."""
    return get_plotlyjs().encode()


def render(chart: Chart, name: str) -> str:
    """The chart's page; it loads plotly.min.js from its own folder."""
    height = round(100 * (chart.panel_height + 0.6) * chart.rows) + 120
    figure = make_subplots(
        rows=chart.rows,
        cols=chart.columns,
        subplot_titles=[
            f"<b>{panel.title}</b>" + (f"<br><sup>{panel.note}</sup>" if panel.note else "") for panel in chart.panels
        ],
        horizontal_spacing=0.06 if chart.columns > 1 else 0.0,
        vertical_spacing=80 / height,
        shared_yaxes=chart.share_y,
    )
    named: set[str] = set()
    for position, panel in enumerate(chart.panels):
        place = {"row": position // chart.columns + 1, "col": position % chart.columns + 1}
        _panel(figure, panel, place, named)
        if not chart.is_labelled_below(position):
            figure.update_xaxes(title_text=panel.x_label, **place)
        if place["col"] == 1 or not chart.share_y:
            figure.update_yaxes(title_text=panel.y_label, **place)
    figure.update_layout(
        template="plotly_white",
        font={"color": INK, "size": 12},
        height=height,
        legend={"orientation": "h", "y": -0.12 / chart.rows - 0.05, "yanchor": "top"},
        barmode="group",
        coloraxis={"colorscale": "Blues", "cmin": 0, "colorbar": _ticks("images")},
        margin={"l": 60, "r": 20, "t": 70, "b": 40},
    )
    if chart.caption:
        figure.add_annotation(
            text=chart.caption, x=0, y=1, yshift=55, xref="paper", yref="paper", showarrow=False, font={"color": FAINT}
        )
    return figure.to_html(include_plotlyjs="directory", full_html=True, div_id=name, config={"displaylogo": False})


def _ticks(title: str) -> dict[str, Any]:
    """A colour bar for logarithms, labelled with the numbers themselves."""
    return {"title": title, "tickvals": [0, 1, 2, 3], "ticktext": ["1", "10", "100", "1,000"]}


def _panel(figure: Any, panel: Panel, place: dict[str, int], named: set[str]) -> None:
    for mark in panel.marks:
        for trace in _traces(mark, named):
            figure.add_trace(trace, **place)
    figure.update_xaxes(gridcolor=GRID, **place)
    figure.update_yaxes(gridcolor=GRID, range=panel.y_range, **place)
    if any(isinstance(mark, Bars) for mark in panel.marks):
        figure.update_yaxes(autorange="reversed", **place)
    if panel.level is not None:
        figure.add_hline(y=panel.level, line={"dash": "dash", "color": FAINT, "width": 1}, **place)
    if not panel.marks:
        figure.add_trace(go.Scatter(x=[], y=[], showlegend=False), **place)  # without a trace there are no axes
        figure.add_annotation(
            text=panel.empty, x=0.5, y=0.5, xref="x domain", yref="y domain", showarrow=False,
            font={"color": FAINT, "size": 15}, **place,
        )  # fmt: skip
        figure.update_xaxes(showticklabels=False, **place)


def _traces(mark: Any, named: set[str]) -> list[Any]:
    if isinstance(mark, Line):
        return _line(mark, named)
    if isinstance(mark, Heat):
        counts = np.where(mark.counts > 0, np.log10(np.maximum(mark.counts, 1)), np.nan)
        return [
            go.Heatmap(
                z=counts, customdata=mark.counts, coloraxis="coloraxis",
                hovertemplate="client %{x}, class %{y}: %{customdata} images<extra></extra>",
            )
        ]  # fmt: skip
    return _bars(mark, named)


def _line(line: Line, named: set[str]) -> list[Any]:
    look = line.look
    shown = look.label not in named and not line.behind
    if shown:
        named.add(look.label)
    group = f"behind {look.label}" if line.behind else look.label
    traces = []
    if line.low is not None and line.high is not None:
        traces.append(
            go.Scatter(
                x=np.concatenate([line.x, line.x[::-1]]), y=np.concatenate([line.high, line.low[::-1]]),
                fill="toself", fillcolor=look.colour, opacity=0.18, line={"width": 0}, legendgroup=group,
                showlegend=False, hoverinfo="skip",
            )
        )  # fmt: skip
    traces.append(
        go.Scatter(
            x=line.x, y=line.y, name=look.label, legendgroup=group, showlegend=shown, mode="lines",
            line={"color": look.colour, "dash": DASHES[look.dash], "width": 1 if line.behind else look.width + 0.4},
            hovertemplate="%{y:.2f} at %{x}",
        )
    )  # fmt: skip
    return traces


def _bars(bars: Bars, named: set[str]) -> list[Any]:
    labels = [look.label for look in bars.looks]
    traces: list[Any] = []
    for number, (name, values) in enumerate(bars.series.items()):
        texts = [
            f"{value:g}" if value is not None else missing for value, missing in zip(values, bars.missing, strict=True)
        ]
        traces.append(
            go.Bar(
                y=labels, x=[0 if value is None else value for value in values], text=texts, textposition="outside",
                orientation="h", name=name, legendgroup=name, showlegend=name not in named, cliponaxis=False,
                marker={"color": [paler(look.colour, number) for look in bars.looks]},
                hovertemplate="%{y}: %{text}",
            )
        )  # fmt: skip
        named.add(name)
    if bars.points:
        name, values = bars.points
        traces.append(
            go.Scatter(
                y=labels, x=values, name=name, mode="markers", legendgroup=name, showlegend=name not in named,
                marker={"symbol": "diamond", "color": "white", "size": 8, "line": {"color": INK, "width": 1.5}},
            )
        )  # fmt: skip
        named.add(name)
    return traces

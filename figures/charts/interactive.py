"""The same charts with plotly: hover for values, click the legend to show and hide, turn what has three dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from figures.charts.describe import Bars, Chart, Heat, Line, Panel, Points
from figures.charts.scale import Scale, round_numbers
from figures.charts.style import AZIMUTH, ELEVATION, FAINT, GRID, INK, Look
from figures.charts.traces import Trace, of_mark, root

GAP, NARROW_GAP = 0.06, 0.02  # between columns, of the width; the second where they share an axis
ABOVE, BELOW = 46, 54  # pixels of a row for the title and for the axis
# The camera of matplotlib's pictures, as a place around the middle.
UP, AROUND = np.radians(ELEVATION), np.radians(AZIMUTH)
EYE = 2.25 * np.array([np.cos(UP) * np.cos(AROUND), np.cos(UP) * np.sin(AROUND), np.sin(UP)])


def library() -> bytes:
    """plotly.js itself."""
    return str(get_plotlyjs()).encode()


def page(chart: Chart, name: str, library: str | bool) -> str:
    """The chart's page; it loads plotly.min.js from its own folder ("directory") or holds it (True)."""
    config = {"displaylogo": False}
    text = figure(chart).to_html(include_plotlyjs=library, div_id=name, config=config, auto_play=False)
    return str(text)


def figure(chart: Chart) -> go.Figure:
    """The chart as a plotly figure."""
    if chart.film:
        return _film(chart)
    row_height = round(100 * chart.panel_height) + (160 if chart.panels[0].deep else 80)
    height = row_height * chart.rows + 110
    inner = height - 110.0  # without margins
    columns = min(chart.columns, len(chart.panels))
    gap = NARROW_GAP if chart.share_y or chart.panels[0].deep else GAP
    width = (1 - gap * (columns - 1)) / columns
    layout = _layout(height, {"l": 70, "r": 20 if not list(chart.scales) else 110, "t": 60, "b": 50})
    drawn: list[list[Trace]] = []
    boxes, named = [], set[str]()
    for place, panel in enumerate(chart.panels):
        row, column = divmod(place, columns)
        number = str(place + 1) if place else ""
        top = 1 - (row * row_height + ABOVE) / inner
        bottom = 1 - ((row + 1) * row_height - BELOW) / inner
        box = (column * (width + gap), column * (width + gap) + width, max(bottom, 0.0), top)
        boxes.append(box)
        axes = _axes(panel, number, box)
        if chart.is_labelled_below(place):
            next(iter(axes.values())).pop("title", None)
        if chart.share_y and column:
            axes[f"yaxis{number}"] |= {"matches": "y", "title": {}, "showticklabels": False}
        layout |= axes
        drawn.append(_traces(panel, number, named, chart.legend))
        layout["annotations"] += _words(panel, number, box)
        layout["shapes"] += _levels(panel, number)
    _colour_bars(chart, drawn, boxes)
    layout["legend"]["y"] = -40 / inner
    layout["barmode"] = "stack" if any(map(_is_stacked, chart.panels)) else "group"
    if chart.caption:
        layout["annotations"].append(_annotation(chart.caption, x=0, y=1, yshift=45, xanchor="left", align="left"))
    return go.Figure({"data": [trace for traces in drawn for trace in traces], "layout": layout})


def single(panel: Panel) -> go.Figure:
    """One panel alone: for a page with titles, legend, colours and controls of its own."""
    layout: dict[str, Any] = dict(_axes(panel, "", None))
    if panel.x_names and not panel.deep:
        layout["xaxis"]["automargin"] = True  # names that do not fit are turned
    data = _traces(panel, "", set(), None)
    for trace in data:
        if "colorbar" in trace and not panel.deep:
            trace |= {"showscale": bool(panel.scale and panel.scale.label)}
    bars = any(isinstance(mark, Bars) for mark in panel.marks)
    margin = {"l": 0, "r": 0, "t": 0, "b": 0} if panel.deep else {"l": 52, "r": 10, "t": 12, "b": 44}
    layout |= {"template": "none", "margin": margin, "hovermode": "closest", "showlegend": bars}
    layout |= {"barmode": "stack" if _is_stacked(panel) else "group", "shapes": _levels(panel, "")}
    if bars:
        layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return go.Figure({"data": data, "layout": layout})


def _layout(height: int, margin: Mapping[str, int]) -> dict[str, Any]:
    return {
        "template": "plotly_white", "font": {"color": INK, "size": 12}, "height": height, "margin": margin,
        "legend": {"orientation": "h", "yanchor": "top", "x": 0}, "annotations": [], "shapes": [],
        "hovermode": "closest",
    }  # fmt: skip


def _film(chart: Chart) -> go.Figure:
    """The panels one after the other: a frame each, a slider and buttons."""
    first, names = chart.panels[0], [panel.title for panel in chart.panels]
    deep = first.deep
    layout = _layout(620 if deep else round(100 * chart.panel_height) + 300, {"l": 70, "r": 20, "t": 70, "b": 60})
    layout |= _axes(first, "", None if deep else (0.0, 1.0, 0.16, 1.0))
    frames: list[dict[str, Any]] = []
    for panel in chart.panels:
        heading = " · ".join(filter(None, [panel.title, panel.note.replace("\n", ", ")]))
        data = _traces(panel, "", set(), chart.legend)
        for trace in data:
            trace |= {"showscale": True} if "colorbar" in trace else {}
        frames.append({"name": panel.title, "data": data, "layout": {"title": {"text": heading, "x": 0.02}}})
    still = {"frame": {"duration": 0, "redraw": True}, "mode": "immediate"}
    play = {"frame": {"duration": 600, "redraw": True}, "fromcurrent": True, "transition": {"duration": 0}}
    buttons = [
        {"label": "play", "method": "animate", "args": [None, play]},
        {"label": "pause", "method": "animate", "args": [[None], still]},
    ]
    steps = [{"label": name, "method": "animate", "args": [[name], still]} for name in names]
    low = 0.06 if deep else 0.0
    layout["updatemenus"] = [
        {"type": "buttons", "direction": "left", "x": 0.1, "y": low, "showactive": False, "buttons": buttons}
    ]
    layout["sliders"] = [{"x": 0.14, "len": 0.84, "y": low + 0.02, "steps": steps}]
    layout["title"] = frames[0]["layout"]["title"]
    layout["legend"] |= {"y": 1.0, "yanchor": "bottom", "x": 1.0, "xanchor": "right"}
    ranges = _whole_range(chart)
    if ranges and not deep:
        layout["yaxis"]["range"] = ranges
    return go.Figure({"data": frames[0]["data"], "layout": layout, "frames": frames})


def _whole_range(chart: Chart) -> list[float]:
    """One y axis for all panels, so that what moves are the points."""
    drawn = [mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Line | Points)]
    values = np.concatenate([np.asarray(mark.y, float) for mark in drawn]) if drawn else np.zeros(0)
    if not values.size:
        return []
    if chart.panels[0].y_scale == "log":
        values = np.log10(values[values > 0])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.05 * (high - low or 1)
    return [low - room, high + room]


def _is_stacked(panel: Panel) -> bool:
    return any(isinstance(mark, Bars) and mark.stacked for mark in panel.marks)


def _traces(panel: Panel, number: str, named: set[str], legend: Sequence[Look] | None) -> list[Trace]:
    """What plotly draws of a panel on its axes or in its scene; `named` gathers what the legend has already."""
    place = {"scene": f"scene{number}"} if panel.deep else {"xaxis": f"x{number}", "yaxis": f"y{number}"}
    if not panel.marks:
        return [{"type": "scatter", "x": [], "y": [], "showlegend": False} | place]  # without a trace, no axes
    found = []
    for mark in panel.marks:
        for trace in of_mark(mark, panel):
            name = trace.get("name")
            if name is not None and "showlegend" not in trace:
                silent = legend is not None and name not in {look.label for look in legend} and trace["type"] != "bar"
                trace["showlegend"] = bool(name) and name not in named and not silent
                named.add(name)
            found.append(trace | place | ({"meta": dict(mark.when)} if mark.when else {}))
    return found


# --- axes -------------------------------------------------------------------------------------------------------------


def _axes(panel: Panel, number: str, box: tuple[float, float, float, float] | None) -> dict[str, dict[str, Any]]:
    """A panel's axes, or its scene, in a box (left, right, bottom, top) of the page, or on all of it."""
    if panel.scale is not None and panel.deep:
        return {
            f"scene{number}": _scene(panel, panel.scale) | ({"domain": {"x": box[:2], "y": box[2:]}} if box else {})
        }
    x: dict[str, Any] = {"title": {"text": panel.x_label}, "gridcolor": GRID, "zeroline": False}
    y: dict[str, Any] = {"title": {"text": _broken(panel.y_label)}, "gridcolor": GRID, "zeroline": False}
    if box:
        x |= {"domain": box[:2], "anchor": f"y{number}"}
        y |= {"domain": box[2:], "anchor": f"x{number}"}
    if panel.x_names:
        places, names = panel.x_ticks
        x |= {"tickvals": places, "ticktext": names, "showgrid": False}
    if panel.rows:
        count = len(panel.rows)
        y |= {"tickvals": list(range(count)), "ticktext": list(panel.rows), "range": [count - 0.5, -0.5]}
        y |= {"automargin": True, "showgrid": False}
    elif cells := [mark.values for mark in panel.marks if isinstance(mark, Heat) and mark.y is None]:
        y |= {"tick0": 0, "dtick": max(1, len(cells[0]) // 10)}
    if panel.x_scale == "log":
        x["type"] = "log"
    if panel.x_range:
        x["range"] = np.log10(panel.x_range).tolist() if panel.x_scale == "log" else list(panel.x_range)
    if panel.y_scale == "log":
        y["type"] = "log"
    if panel.y_scale == "root":
        ends = [float(np.nanmax(mark.y)) for mark in panel.marks if isinstance(mark, Line | Points)]
        values = round_numbers(0, max([1e-9, *ends]))
        y |= {"tickvals": root(values).tolist(), "ticktext": [f"{value:.3g}" for value in values]}
    if panel.y_range:
        y["range"] = list(panel.y_range)
    if panel.square and box:
        y["constrain"] = x["constrain"] = "domain"
        y |= {"scaleanchor": f"x{number}"}
    if not panel.marks:
        x["showticklabels"] = y["showticklabels"] = False
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def _scene(panel: Panel, scale: Scale) -> dict[str, Any]:
    (bottom, top), (where, labels) = scale.ends, scale.ticks()
    height = {
        "title": {"text": scale.label}, "tickvals": where.tolist(), "ticktext": labels,
        "range": [bottom, top + 0.02 * (top - bottom)],  # room for what is clipped
    }  # fmt: skip
    return {
        "xaxis": {"title": {"text": panel.x_label}}, "yaxis": {"title": {"text": panel.y_label}}, "zaxis": height,
        "camera": {"eye": dict(zip("xyz", EYE.tolist(), strict=True)), "center": {"x": 0, "y": 0, "z": -0.14}},
        "aspectmode": "cube",
    }  # fmt: skip


def _colour_bars(chart: Chart, drawn: Sequence[Sequence[Trace]], boxes: Sequence[Sequence[float]]) -> None:
    """A colour bar for each scale, beside the panels that share it."""
    for _, places in chart.scales:
        mine = [boxes[place] for place in places]
        low, high = min(box[2] for box in mine), max(box[3] for box in mine)
        coloured = (one for trace in drawn[places[-1]] for one in (trace, trace.get("marker", {})))
        last = next(one for one in coloured if "colorbar" in one)
        last["showscale"] = True
        last["colorbar"] |= {"y": (low + high) / 2, "len": 0.95 * (high - low), "x": max(box[1] for box in mine)}


# --- words ------------------------------------------------------------------------------------------------------------


def _broken(text: str) -> str:
    return text.replace("\n", "<br>")


def _annotation(text: str, **more: Any) -> dict[str, Any]:
    page = {"xref": "paper", "yref": "paper", "showarrow": False, "font": {"color": FAINT}}
    return page | {"text": _broken(text)} | more


def _words(panel: Panel, number: str, box: Sequence[float]) -> list[dict[str, Any]]:
    left, right, bottom, top = box
    note = f'<br><span style="font-size:11px">{_broken(panel.note)}</span>' if panel.note else ""
    place = {"x": (left + right) / 2, "y": top, "xanchor": "center", "yanchor": "bottom", "font": {"color": INK}}
    found = [_annotation(f"<b>{_broken(panel.title)}</b>{note}", **place)] if panel.title or note else []
    if not panel.marks:
        middle = {"x": (left + right) / 2, "y": (bottom + top) / 2, "font": {"color": FAINT, "size": 15}}
        found.append(_annotation(panel.empty, **middle))
    return found


def _levels(panel: Panel, number: str) -> list[dict[str, Any]]:
    found = []
    if panel.level is not None:
        y = float(root(panel.level)) if panel.y_scale == "root" else panel.level
        found.append({"x0": 0, "x1": 1, "xref": f"x{number} domain", "y0": y, "y1": y, "yref": f"y{number}"})
    if panel.upright is not None:
        x = panel.upright
        found.append({"x0": x, "x1": x, "xref": f"x{number}", "y0": 0, "y1": 1, "yref": f"y{number} domain"})
    return [{"type": "line", "line": {"dash": "dash", "color": FAINT, "width": 1}} | one for one in found]

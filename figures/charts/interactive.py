"""The same charts with plotly: hover for values, click the legend to show and hide, turn what has three dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from figures.charts.describe import Bars, Chart, Contour, Heat, Line, Mark, Panel, Points, Surface3D
from figures.charts.scale import Scale, round_numbers
from figures.charts.style import FAINT, GRID, INK, Look, paler

DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot"}
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left",
    ">": "triangle-right", "D": "diamond", "d": "diamond-tall", "P": "cross", "X": "x", "*": "star", "h": "hexagon",
    "p": "pentagon", "+": "cross-thin", "|": "line-ns",
}  # fmt: skip
GAP, NARROW_GAP = 0.06, 0.02  # between columns, of the width; the second where they share an axis
ABOVE, BELOW = 46, 54  # pixels of a row for the title and for the axis
FEW = 30  # points of a line that are marked
MANY = 600  # cells of a heat map beyond which gaps hide it
# The camera of matplotlib's pictures, as a place around the middle.
ELEVATION, AZIMUTH = np.radians(32), np.radians(-58)
EYE = 2.1 * np.array([np.cos(ELEVATION) * np.cos(AZIMUTH), np.cos(ELEVATION) * np.sin(AZIMUTH), np.sin(ELEVATION)])


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
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    boxes = []
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
        data += _placed(_traces(panel, named, chart.legend), number)
        layout["annotations"] += _words(panel, number, box)
        layout["shapes"] += _levels(panel, number)
    _colour_axes(chart, layout, data, boxes)
    layout["legend"]["y"] = -40 / inner
    if any(mark.stacked for panel in chart.panels for mark in panel.marks if isinstance(mark, Bars)):
        layout["barmode"] = "stack"
    if chart.caption:
        layout["annotations"].append(_annotation(chart.caption, x=0, y=1, yshift=45, xanchor="left", align="left"))
    return go.Figure({"data": data, "layout": layout})


def single(panel: Panel) -> go.Figure:
    """One panel alone: for a page with titles, legend, colours and controls of its own."""
    layout: dict[str, Any] = dict(_axes(panel, "", None))
    data = _placed(_traces(panel, set(), None), "")
    scale = panel.scale
    if scale is not None and not panel.deep:
        layout["coloraxis"] = _colour_axis(scale) | {"colorbar": {**_colour_bar(scale), "thickness": 12}}
        layout["coloraxis"]["showscale"] = bool(scale.label)
        data = [trace | ({"coloraxis": "coloraxis"} if "coloraxis" in trace else {}) for trace in data]
    stacked = any(mark.stacked for mark in panel.marks if isinstance(mark, Bars))
    bars = any(isinstance(mark, Bars) for mark in panel.marks)
    margin = {"l": 0, "r": 0, "t": 0, "b": 0} if panel.deep else {"l": 52, "r": 10, "t": 12, "b": 44}
    layout |= {"template": "none", "margin": margin, "hovermode": "closest", "showlegend": bars}
    layout |= {"barmode": "stack" if stacked else "group", "shapes": _levels(panel, "")}
    if bars:
        layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return go.Figure({"data": data, "layout": layout})


def _layout(height: int, margin: Mapping[str, int]) -> dict[str, Any]:
    return {
        "template": "plotly_white", "font": {"color": INK, "size": 12}, "height": height, "margin": margin,
        "legend": {"orientation": "h", "yanchor": "top", "x": 0}, "barmode": "group", "annotations": [], "shapes": [],
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
        data = _placed(_traces(panel, set(), chart.legend), "")
        for trace in data if deep else ():
            trace["showscale"] = True
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


# --- axes -------------------------------------------------------------------------------------------------------------


def _axes(panel: Panel, number: str, box: tuple[float, float, float, float] | None) -> dict[str, dict[str, Any]]:
    """A panel's axes, or its scene, in a box (left, right, bottom, top) of the page, or on all of it."""
    if panel.deep:
        scale = panel.scale
        assert scale is not None
        return {f"scene{number}": _scene(panel, scale) | ({"domain": {"x": box[:2], "y": box[2:]}} if box else {})}
    x: dict[str, Any] = {"title": {"text": panel.x_label}, "gridcolor": GRID, "zeroline": False}
    y: dict[str, Any] = {"title": {"text": _broken(panel.y_label)}, "gridcolor": GRID, "zeroline": False}
    if box:
        x |= {"domain": box[:2], "anchor": f"y{number}"}
        y |= {"domain": box[2:], "anchor": f"x{number}"}
    if panel.x_names:
        every = max(1, len(panel.x_names) // 9) if all(name.isdigit() for name in panel.x_names) else 1
        places = list(range(0, len(panel.x_names), every))
        x |= {"tickvals": places, "ticktext": list(panel.x_names[::every]), "showgrid": False}
    if panel.rows:
        count = len(panel.rows)
        y |= {"tickvals": list(range(count)), "ticktext": list(panel.rows), "range": [count - 0.5, -0.5]}
        y |= {"automargin": True, "showgrid": False}
    if panel.y_scale == "log":
        y["type"] = "log"
    if panel.y_scale == "root":
        ends = [float(np.nanmax(mark.y)) for mark in panel.marks if isinstance(mark, Line | Points)]
        values = round_numbers(0, max([1e-9, *ends]))
        y |= {"tickvals": _root(values).tolist(), "ticktext": [f"{value:.3g}" for value in values]}
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
        "camera": {"eye": dict(zip("xyz", EYE.tolist(), strict=True)), "center": {"x": 0, "y": 0, "z": -0.1}},
        "aspectmode": "cube",
    }  # fmt: skip


def _colour_axes(chart: Chart, layout: dict[str, Any], data: list[Any], boxes: Sequence[Sequence[float]]) -> None:
    """A colour bar for each scale, beside the panels that share it."""
    scales = dict.fromkeys(panel.scale for panel in chart.panels if panel.scale is not None and not panel.deep)
    named = {scale: "coloraxis" + (str(number) if number > 1 else "") for number, scale in enumerate(scales, 1)}
    for scale, name in named.items():
        layout[name] = _colour_axis(scale) | {"showscale": False}
    for scale, places in chart.scales:
        mine = [boxes[place] for place in places]
        low, high = min(box[2] for box in mine), max(box[3] for box in mine)
        bar = _colour_bar(scale) | {"y": (low + high) / 2, "len": 0.95 * (high - low), "x": max(b[1] for b in mine)}
        if scale in named:
            layout[named[scale]] |= {"showscale": True, "colorbar": bar | {"thickness": 14}}
        else:
            last = next(trace for trace in reversed(data) if trace["type"] == "surface")
            last |= {"showscale": True, "colorbar": bar | {"len": 0.7}}
    for trace in data:
        if "coloraxis" in trace:
            trace["coloraxis"] = named[trace["coloraxis"]]


def _colour_axis(scale: Scale) -> dict[str, Any]:
    low, high = scale.ends
    return {"colorscale": _colour_scale(scale), "cmin": low, "cmax": high}


def _colour_scale(scale: Scale) -> Any:
    if isinstance(scale.colours, str):
        return scale.colours
    places = np.linspace(0, 1, len(scale.colours)).tolist()
    return [list(pair) for pair in zip(places, scale.colours, strict=True)]


def _colour_bar(scale: Scale) -> dict[str, Any]:
    where, labels = scale.ticks()
    return {"title": {"text": _broken(scale.told)}, "tickvals": where.tolist(), "ticktext": labels}


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
        y = float(_root(panel.level)) if panel.y_scale == "root" else panel.level
        found.append({"x0": 0, "x1": 1, "xref": f"x{number} domain", "y0": y, "y1": y, "yref": f"y{number}"})
    if panel.upright is not None:
        x = panel.upright
        found.append({"x0": x, "x1": x, "xref": f"x{number}", "y0": 0, "y1": 1, "yref": f"y{number} domain"})
    return [{"type": "line", "line": {"dash": "dash", "color": FAINT, "width": 1}} | one for one in found]


# --- marks ------------------------------------------------------------------------------------------------------------


def _placed(traces: list[dict[str, Any]], number: str) -> list[dict[str, Any]]:
    """Traces on the axes or in the scene of a panel."""
    for trace in traces:
        deep = trace["type"] == "surface"
        trace |= {"scene": f"scene{number}"} if deep else {"xaxis": f"x{number}", "yaxis": f"y{number}"}
    return traces


def _traces(panel: Panel, named: set[str], legend: Sequence[Look] | None) -> list[dict[str, Any]]:
    """What plotly draws of a panel; `named` gathers what the legend has already."""
    if not panel.marks and not panel.deep:
        return [{"type": "scatter", "x": [], "y": [], "showlegend": False}]  # without a trace there are no axes
    found = []
    for mark in panel.marks:
        for trace in _of_mark(mark, panel):
            name = trace.get("name")
            if name is not None and "showlegend" not in trace:
                silent = legend is not None and name not in {look.label for look in legend} and trace["type"] != "bar"
                trace["showlegend"] = bool(name) and name not in named and not silent
                named.add(name)
            found.append(trace | ({"meta": dict(mark.when)} if mark.when else {}))
    return found


def _of_mark(mark: Mark, panel: Panel) -> list[dict[str, Any]]:
    if isinstance(mark, Line):
        return _line(mark, panel)
    if isinstance(mark, Points):
        return [_points(mark, panel)]
    if isinstance(mark, Bars):
        return _bars(mark)
    if isinstance(mark, Heat):
        return _heat(mark, panel)
    assert isinstance(mark, Contour | Surface3D)
    return [_contour(mark) if isinstance(mark, Contour) else _surface(mark)]


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _line(line: Line, panel: Panel) -> list[dict[str, Any]]:
    look, place = line.look, _root if panel.y_scale == "root" else np.asarray
    group = f"behind {look.label}" if line.behind else look.label
    traces: list[dict[str, Any]] = []
    if line.low is not None and line.high is not None:
        traces.append({
            "type": "scatter", "x": np.concatenate([line.x, line.x[::-1]]),
            "y": place(np.concatenate([line.high, line.low[::-1]])), "fill": "toself", "fillcolor": look.colour,
            "opacity": 0.1 if line.behind else 0.18, "line": {"width": 0}, "mode": "lines", "legendgroup": group,
            "showlegend": False, "hoverinfo": "skip",
        })  # fmt: skip
    marked = line.marked and not line.behind and len(line.x) <= FEW
    traces.append({
        "type": "scatter", "x": np.asarray(line.x), "y": place(line.y), "name": look.label, "legendgroup": group,
        "mode": "lines+markers" if marked else "lines", "marker": {"size": 5}, "opacity": 0.6 if line.behind else 1,
        "line": {"color": look.colour, "dash": DASHES[look.dash], "width": look.width + (0 if line.behind else 0.4)},
        "hovertemplate": "%{y:.4g} at %{x}",
    } | ({"showlegend": False} if line.behind else {}))  # fmt: skip
    if panel.y_scale == "root":
        traces[-1] |= {"customdata": np.asarray(line.y), "hovertemplate": "%{customdata:.4g} at %{x}"}
    return traces


def _points(points: Points, panel: Panel) -> dict[str, Any]:
    look = points.look
    told = list(points.told)
    if not told and (names := panel.x_names or panel.rows):
        told = [names[round(float(place))] for place in (points.x if panel.x_names else points.y)]
    thin = look.marker in "+|"
    trace = {
        "type": "scatter", "x": np.asarray(points.x), "y": np.asarray(points.y), "name": look.label,
        "legendgroup": look.label, "mode": "lines+markers" if points.joined else "markers", "text": told,
        "line": {"color": look.colour, "dash": DASHES[look.dash], "width": look.width + 0.4},
        "marker": {"symbol": SYMBOLS[look.marker], "color": look.colour, "size": 12 if thin else 4 + 2.5 * look.width,
                   "line": {"color": look.colour if thin else "white", "width": look.width if thin else 0.5}},
        "hovertemplate": ("%{x:.4g}" if panel.rows else "%{y:.4g}") + "<br>%{text}",
    }  # fmt: skip
    if points.low is not None and points.high is not None:
        ends = {"array": points.high - points.y, "arrayminus": points.y - points.low}
        trace["error_y"] = ends | {"color": look.colour, "thickness": 1.3, "width": 4}
    return trace


def _bars(bars: Bars) -> list[dict[str, Any]]:
    rows = list(range(len(bars.looks)))
    labels = [look.label for look in bars.looks]
    traces: list[dict[str, Any]] = []
    for number, (name, values) in enumerate(bars.series.items()):
        missing = bars.missing or [""] * len(rows)
        texts = [bars.text.format(v) if v is not None else word for v, word in zip(values, missing, strict=True)]
        colours = [bars.stacked[number] if bars.stacked else paler(look.colour, number) for look in bars.looks]
        traces.append({
            "type": "bar", "y": rows, "x": [0 if value is None else value for value in values], "text": texts,
            "textposition": "none" if bars.stacked else "outside", "orientation": "h", "name": name,
            "legendgroup": name, "cliponaxis": False, "marker": {"color": colours}, "customdata": labels,
            "hovertemplate": f"%{{customdata}}<br>{name}: %{{text}}<extra></extra>",
        })  # fmt: skip
    if bars.points:
        name, given = bars.points
        marker = {"symbol": "diamond", "color": "white", "size": 8, "line": {"color": INK, "width": 1.5}}
        traces.append({"type": "scatter", "y": rows, "x": list(given), "name": name, "mode": "markers",
                       "legendgroup": name, "marker": marker})  # fmt: skip
    return traces


def _heat(heat: Heat, panel: Panel) -> list[dict[str, Any]]:
    values = np.where(np.isfinite(heat.values), heat.values, np.nan)
    if heat.scale.log:
        values = np.log10(np.where(values > 0, values, np.nan))
    rows, columns = values.shape
    gap = 2 if heat.texts else 0.5 if values.size < MANY and heat.x is None else 0
    name = heat.scale.label.replace("\n", ", ")
    trace: dict[str, Any] = {
        "type": "heatmap", "z": values, "coloraxis": heat.scale, "xgap": gap, "ygap": gap,
        "x": np.arange(columns) if heat.x is None else heat.x, "y": np.arange(rows) if heat.y is None else heat.y,
    }  # fmt: skip
    if heat.told:
        return [trace | {"hovertext": heat.told, "hoverinfo": "text", "text": heat.texts, "texttemplate": "%{text}"}]
    if panel.x_names or panel.rows:
        across, down = (list(names) or [""] for names in (panel.x_names, panel.rows))
        cells = [[f"{panel.x_label} {x}, {y}" for x in across] for y in down]
        place = "%{text}"
        trace["text"] = cells if (len(down), len(across)) == values.shape else [[""]]
    else:
        place = f"{panel.x_label} %{{x:.4g}}, {panel.y_label} %{{y:.4g}}"
    hover = f"{place}: %{{customdata:.4g}} {name}<extra></extra>"
    found = [trace | {"customdata": heat.values, "hovertemplate": hover}]
    if heat.hatched is not None and heat.hatched.any():  # plotly hatches no cells: a small cross in each
        below, right = np.nonzero(heat.hatched)
        dots = {"symbol": "x-thin", "size": 5, "line": {"color": "#555555", "width": 1}}
        found.append({"type": "scatter", "x": trace["x"][right], "y": trace["y"][below], "mode": "markers",
                      "marker": dots, "hoverinfo": "skip", "showlegend": False})  # fmt: skip
    return found


def _contour(contour: Contour) -> dict[str, Any]:
    low, high = contour.scale.ends
    return {
        "type": "contour", "z": contour.scale.heights(contour.values), "x": contour.x, "y": contour.y,
        "coloraxis": contour.scale, "customdata": contour.values,
        "contours": {"start": low, "end": high, "size": (high - low) / max(len(contour.scale.levels) - 1, 1)},
        "line": {"width": 0.5, "color": "white"},
        "hovertemplate": "α %{x:.3f}, β %{y:.3f}<br>loss %{customdata:.4f}<extra></extra>",
    }  # fmt: skip


def _surface(surface: Surface3D) -> dict[str, Any]:
    low, high = surface.scale.ends
    error = np.zeros_like(surface.values) if surface.error is None else surface.error
    return {
        "type": "surface", "x": surface.x, "y": surface.y, "z": surface.scale.heights(surface.values), "cmin": low,
        "cmax": high, "colorscale": _colour_scale(surface.scale), "showscale": False,
        "customdata": np.dstack([surface.values, error]), "colorbar": _colour_bar(surface.scale) | {"len": 0.7},
        "hovertemplate": "α %{x:.3f}, β %{y:.3f}<br>loss %{customdata[0]:.4f} ± %{customdata[1]:.2g}<extra></extra>",
    }  # fmt: skip

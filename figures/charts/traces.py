"""A chart's marks as plotly's traces."""

from collections.abc import Callable
from typing import Any

import numpy as np

from figures.charts.describe import Bars, Contour, Heat, Line, Mark, Panel, Points, Surface3D
from figures.charts.scale import Scale
from figures.charts.style import INK, THIN_MARKERS, paler

Trace = dict[str, Any]
DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot"}
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left",
    ">": "triangle-right", "D": "diamond", "d": "diamond-tall", "P": "cross", "X": "x", "*": "star", "h": "hexagon",
    "p": "pentagon", "+": "cross-thin", "|": "line-ns",
}  # fmt: skip
FEW = 30  # points of a line that are marked
MANY = 600  # cells of a heat map beyond which gaps hide it


def _colours(scale: Scale, letter: str) -> Trace:
    """Colours of a trace whose limits begin with a letter, and its colour bar, which is not shown yet."""
    (low, high), (where, labels) = scale.ends, scale.ticks()
    colours: Any = scale.colours
    if not isinstance(colours, str):
        colours = [list(pair) for pair in zip(np.linspace(0, 1, len(colours)).tolist(), colours, strict=True)]
    title = {"text": scale.told.replace("\n", "<br>")}
    bar = {"title": title, "tickvals": where.tolist(), "ticktext": labels, "thickness": 14}
    return {"colorscale": colours, f"{letter}min": low, f"{letter}max": high, "showscale": False, "colorbar": bar}


def of_mark(mark: Mark, panel: Panel) -> list[Trace]:
    """A mark's traces, without their axes."""
    return DRAWERS[type(mark)](mark, panel)


def root(values: Any) -> Any:
    """Square roots that keep the sign."""
    return np.sign(values) * np.sqrt(np.abs(values))


def _line(line: Line, panel: Panel) -> list[Trace]:
    look, place = line.look, root if panel.y_scale == "root" else np.asarray
    group = f"behind {look.label}" if line.behind else look.label
    traces: list[Trace] = []
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


def _points(points: Points, panel: Panel) -> list[Trace]:
    look = points.look
    told = list(points.told)
    if not told and (names := panel.x_names or panel.rows):
        told = [names[round(float(place))] for place in (points.x if panel.x_names else points.y)]
    thin = look.marker in THIN_MARKERS
    marker: Trace = {
        "symbol": SYMBOLS[look.marker], "color": look.colour, "size": 12 if thin else 4 + 2.5 * look.width,
        "line": {"color": look.colour if thin else "white", "width": look.width if thin else 0.5},
    }  # fmt: skip
    if points.scale is not None and points.values is not None:
        marker |= {"color": points.scale.heights(points.values), **_colours(points.scale, "c")}
        marker["line"] = {"color": look.colour, "width": 1}
    trace = {
        "type": "scatter", "x": np.asarray(points.x), "y": np.asarray(points.y), "name": look.label,
        "legendgroup": look.label, "mode": "lines+markers" if points.joined else "markers", "text": told,
        "line": {"color": look.colour, "dash": DASHES[look.dash], "width": look.width + 0.4},
        "marker": marker,
        "hovertemplate": ("%{x:.4g}" if panel.rows else "%{y:.4g}") + "<br>%{text}",
    }  # fmt: skip
    if points.reach is not None:
        ends = {"array": points.reach[1], "arrayminus": points.reach[0]}
        trace["error_x" if points.sideways else "error_y"] = ends | {
            "color": look.colour, "thickness": 1.3, "width": 4,
        }  # fmt: skip
    return [trace]


def _bars(bars: Bars, panel: Panel) -> list[Trace]:
    rows = list(range(len(bars.looks)))
    labels = [look.label for look in bars.looks]
    traces: list[Trace] = []
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


def _heat(heat: Heat, panel: Panel) -> list[Trace]:
    values = np.where(np.isfinite(heat.values), heat.values, np.nan)
    if heat.scale.log:
        values = np.log10(np.where(values > 0, values, np.nan))
    rows, columns = values.shape
    gap = 2 if heat.texts else 0.5 if values.size < MANY and heat.x is None else 0
    name = heat.scale.label.replace("\n", ", ")
    trace: Trace = {
        "type": "heatmap", "z": values, "xgap": gap, "ygap": gap, **_colours(heat.scale, "z"),
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


def _contour(contour: Contour, panel: Panel) -> list[Trace]:
    low, high = contour.scale.ends
    return [{
        "type": "contour", "z": contour.scale.heights(contour.values), "x": contour.x, "y": contour.y,
        "customdata": contour.values, **_colours(contour.scale, "z"),
        "contours": {"start": low, "end": high, "size": (high - low) / max(len(contour.scale.levels) - 1, 1)},
        "line": {"width": 0.5, "color": "white"},
        "hovertemplate": "α %{x:.3f}, β %{y:.3f}<br>loss %{customdata:.4f}<extra></extra>",
    }]  # fmt: skip


def _surface(surface: Surface3D, panel: Panel) -> list[Trace]:
    error = np.zeros_like(surface.values) if surface.error is None else surface.error
    return [{
        "type": "surface", "x": surface.x, "y": surface.y, "z": surface.scale.heights(surface.values),
        "customdata": np.dstack([surface.values, error]), **_colours(surface.scale, "c"),
        "hovertemplate": "α %{x:.3f}, β %{y:.3f}<br>loss %{customdata[0]:.4f} ± %{customdata[1]:.2g}<extra></extra>",
    }]  # fmt: skip


DRAWERS: dict[type[Mark], Callable[..., list[Trace]]] = {
    Line: _line, Points: _points, Bars: _bars, Heat: _heat, Contour: _contour, Surface3D: _surface,
}  # fmt: skip

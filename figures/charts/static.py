"""Charts with matplotlib."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from figures.charts.describe import Bars, Chart, Contour, Heat, Line, Mark, Panel, Points, Surface3D
from figures.charts.scale import Scale
from figures.charts.style import AZIMUTH, DPI, ELEVATION, FAINT, INK, MATPLOTLIB, THIN_MARKERS, Look, paler

# Without dates and versions the same numbers give the same file.
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
LETTER = 0.068  # inches of a letter beside an axis
LEGEND_COLUMNS = 5


def figure(chart: Chart) -> Figure:
    """The chart as a figure that pyplot forgets at once: a notebook would show it twice otherwise."""
    from matplotlib import pyplot  # also teaches a notebook to show figures

    with matplotlib.rc_context(MATPLOTLIB):
        made = _draw(chart, pyplot.figure)
        pyplot.close(made)
        made.draw_without_rendering()  # ticks are made in the style that holds while they are first drawn
    return made


def render(chart: Chart, formats: Sequence[str] = tuple(METADATA), dpi: int | None = None) -> dict[str, bytes]:
    """The chart's bytes by file format: the same chart gives the same bytes."""
    files: dict[str, bytes] = {}
    if not formats:
        return files
    with matplotlib.rc_context(MATPLOTLIB):
        made = _draw(chart, Figure)
        engine = made.get_layout_engine()
        if engine is not None:
            engine.execute(made)
        made.set_layout_engine("none")  # laid out once, for all formats
        for kind in formats:
            made.set_dpi(dpi or DPI)
            buffer = io.BytesIO()
            # Not through savefig, which draws twice: once to lay out.
            canvas = FigureCanvasPdf(made) if kind == "pdf" else FigureCanvasAgg(made)
            getattr(canvas, f"print_{kind}")(buffer, metadata=METADATA[kind])
            files[kind] = buffer.getvalue()
    return files


def gif(chart: Chart, path: Any) -> None:
    """The panels one after the other, on one scale."""
    from matplotlib.animation import FuncAnimation, PillowWriter

    with matplotlib.rc_context(MATPLOTLIB):
        single = Chart(chart.panels[:1], columns=1, panel_height=chart.panel_height, width=chart.width)
        made = _draw(single, Figure)
        ax, norms = made.axes[0], _norms(chart)

        def frame(number: int) -> list[Any]:
            ax.clear()
            _panel(ax, chart.panels[number], chart.width, norms)
            return []

        moving = FuncAnimation(made, frame, frames=len(chart.panels), init_func=lambda: [])
        moving.save(path, writer=PillowWriter(fps=2), dpi=90)


def _draw(chart: Chart, make: Callable[..., Figure]) -> Figure:
    panels = list(chart.panels)
    if chart.film and len(panels) > chart.columns:
        panels = [panels[int(place)] for place in np.linspace(0, len(panels) - 1, chart.columns)]
    rows, columns = -(-len(panels) // chart.columns), min(chart.columns, len(panels))
    handles = _handles(chart) + _bar_handles(chart)
    legend_columns = max(1, min(len(handles), LEGEND_COLUMNS, int(chart.width / 1.6)))
    lines = chart.caption.count("\n") + 1 if chart.caption else 0
    extra = 0.22 * -(-len(handles) // legend_columns) + (0.1 + 0.15 * lines if lines else 0)
    made = make(
        figsize=(chart.width, chart.panel_height * rows + extra), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    )
    norms, axes = _norms(chart), list[Any]()
    for position, panel in enumerate(panels):
        shared = axes[0] if chart.share_y and axes else None
        ax = made.add_subplot(rows, columns, position + 1, projection="3d" if panel.deep else None, sharey=shared)
        _panel(ax, panel, chart.width / columns, norms)
        if chart.share_y and position % columns:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
        if chart.is_labelled_below(position) and not chart.film:
            ax.set_xlabel("")
        axes.append(ax)
    for scale, places in chart.scales:
        beside = [axes[place] for place in places if place < len(axes) and not panels[place].deep]
        if beside:
            _colour_bar(made, scale, norms[scale], beside)
    if chart.caption:
        made.suptitle(chart.caption, fontsize=8.5, color=FAINT, x=0.012, ha="left")
    if handles:
        made.legend(handles=handles, loc="outside lower center", ncols=legend_columns, handlelength=2.6)
    return made


def _norms(chart: Chart) -> dict[Scale, Normalize]:
    scales = {panel.scale for panel in chart.panels if panel.scale is not None}
    return {scale: (LogNorm if scale.log else Normalize)(scale.low, scale.high) for scale in scales}


def _colour_map(scale: Scale) -> Any:
    if isinstance(scale.colours, str):
        return scale.colours
    return LinearSegmentedColormap.from_list("own", scale.colours)


def _colour_bar(made: Figure, scale: Scale, norm: Normalize, axes: list[Any]) -> None:
    drawn = matplotlib.cm.ScalarMappable(norm, _colour_map(scale))
    bar = made.colorbar(drawn, ax=axes, shrink=0.85, pad=0.015, label=scale.told)
    where, labels = scale.ticks()
    bar.set_ticks((10**where if scale.log else where).tolist(), labels=labels)
    bar.minorticks_off()
    bar.outline.set_visible(False)


# --- a panel ----------------------------------------------------------------------------------------------------------


def _panel(ax: Any, panel: Panel, width: float, norms: dict[Scale, Normalize]) -> None:
    """Draw one panel, so many inches wide."""
    lines = panel.note.count("\n") + 1 if panel.note else 0
    ax.set_title(panel.title or " " * bool(lines), loc="left", pad=6 + 10 * lines)  # a blank keeps the note its room
    if panel.note:
        note = ax.annotate(
            panel.note, (0, 1), (0, 3), "axes fraction", "offset points", fontsize=7.5, color=FAINT, va="bottom"
        )
        note.set_in_layout(False)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    for position, mark in enumerate(panel.marks):
        DRAWERS[type(mark)](ax, mark, panel, position, norms)
    if panel.deep:
        return
    if panel.level is not None:
        ax.axhline(panel.level, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if panel.upright is not None:
        ax.axvline(panel.upright, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    if not panel.marks:
        ax.text(0.5, 0.5, panel.empty, transform=ax.transAxes, ha="center", va="center", color=FAINT, fontsize=11)
        ax.tick_params(labelbottom=False, labelleft=False, length=0)
    _axes(ax, panel, width)


def _plain_numbers(axis: Any, low: float, high: float) -> None:
    """On a logarithmic axis, as long as they fit."""
    if high / low < 2000:
        axis.set_major_locator(LogLocator(10, (1, 2, 5) if high / low < 200 else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def _axes(ax: Any, panel: Panel, width: float) -> None:
    if panel.x_range:
        ax.set_xlim(*panel.x_range)
    if panel.x_scale == "log":
        ax.set_xscale("log")
        _plain_numbers(ax.xaxis, *ax.get_xlim())
    if panel.y_scale == "log":
        ax.set_yscale("log")
        _plain_numbers(ax.yaxis, *ax.get_ylim())
    elif panel.y_scale == "root":
        ax.set_yscale("function", functions=(lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * v**2))
    if panel.x_names:
        places, names = panel.x_ticks
        crowded, few = LETTER * sum(len(name) + 2 for name in names) > width - 0.8, len(panel.x_names) <= 5
        turn = {"rotation": 30 if few else 90, "ha": "right" if few else "center"} if crowded else {}
        ax.set_xticks(places, names, **turn)
        ax.grid(axis="x", visible=False)
    if panel.rows:
        ax.set_yticks(range(len(panel.rows)), list(panel.rows))
        ax.set_ylim(len(panel.rows) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    if panel.y_range:
        ax.set_ylim(*panel.y_range)
    if panel.square:
        ax.set_box_aspect(1)
        ax.xaxis.set_major_locator(MaxNLocator(4))  # labels of a narrow panel must not touch


# --- marks ------------------------------------------------------------------------------------------------------------


def _line(ax: Any, line: Line, panel: Panel, position: int, norms: Any) -> None:
    look = line.look
    if line.low is not None and line.high is not None:
        alpha = 0.12 if line.behind else 0.25
        ax.fill_between(line.x, line.low, line.high, color=look.colour, alpha=alpha, linewidth=0)
    step = max(len(line.x) // 8, 1)
    ax.plot(
        line.x, line.y, color=look.colour, linestyle=look.dash, linewidth=look.width,
        alpha=0.6 if line.behind else 0.95, zorder=2 if line.behind else 2 + look.width,
        markevery=((position * 2) % step, step),  # staggered, so that markers of close curves stay apart
        **(_marker(look) if line.marked and not line.behind else {}),
    )  # fmt: skip
    ax.margins(x=0.02)
    ax.xaxis.set_major_locator(MaxNLocator(6))


def _marker(look: Look) -> dict[str, Any]:
    """A marker with a white rim; crosses and strokes are all rim."""
    if look.marker in THIN_MARKERS:
        white = [withStroke(linewidth=look.width + 1.2, foreground="white")]
        return {"marker": look.marker, "markersize": 9, "markeredgewidth": look.width, "path_effects": white}
    size = 2.5 + 1.8 * look.width
    return {"marker": look.marker, "markersize": size, "markeredgewidth": 0.4, "markeredgecolor": "white"}


def _points(ax: Any, points: Points, panel: Panel, position: int, norms: Any) -> None:
    look = points.look
    style = {"color": look.colour, "linestyle": look.dash if points.joined else "none", "linewidth": look.width}
    crowd = 0.6 if len(points.x) > 1 and not points.joined and points.low is None else 1.0
    if points.reach is not None:
        bars = {"xerr" if points.sideways else "yerr": np.array(points.reach)}
        ax.errorbar(points.x, points.y, **bars, elinewidth=1.2, capsize=3, **style, **_marker(look))
    elif points.scale is not None and points.values is not None:
        ax.plot(points.x, points.y, **style, zorder=3)
        colours = {"norm": norms[points.scale], "cmap": _colour_map(points.scale), "edgecolors": look.colour}
        size = {"s": (3.5 + 1.8 * look.width) ** 2, "linewidths": 0.9, "zorder": 4}
        ax.scatter(points.x, points.y, c=points.scale.clip(points.values), marker=look.marker, **colours, **size)
    else:
        ax.plot(points.x, points.y, alpha=crowd, **style, **_marker(look))
    ax.margins(x=0.04)


def _bars(ax: Any, bars: Bars, panel: Panel, position: int, norms: Any) -> None:
    """A row per look: a lane for each series, then one for the points; or one lane, with the series in turn."""
    lanes = 1 if bars.stacked else len(bars.series) + (bars.points is not None)
    height = 0.84 / lanes

    def say(text: str, x: float, y: float, colour: str) -> None:
        ax.annotate(
            text, (x, y), xytext=(4, 0), textcoords="offset points", va="center_baseline", fontsize=7, color=colour
        )

    for place, look in enumerate(bars.looks):
        values = [series[place] for series in bars.series.values()]
        ys = place - 0.42 + (np.arange(lanes) + 0.5) * height
        if bars.stacked:
            parts = [value or 0.0 for value in values]
            ax.barh([ys[0]] * len(parts), parts, 0.94 * height, np.cumsum([0.0, *parts[:-1]]), color=bars.stacked)
            continue
        for number, (y, value) in enumerate(zip(ys, values, strict=False)):
            if value is not None:
                ax.barh(y, value, 0.94 * height, color=paler(look.colour, number), linewidth=0)
                say(bars.text.format(value), max(value, 0), y, INK)
            elif any(other is not None for other in values):
                say(bars.missing[place], 0, y, FAINT)
        if all(value is None for value in values):
            say(bars.missing[place], 0, float(np.mean(ys[: len(values)])), FAINT)
        point = bars.points[1][place] if bars.points else None
        if point is not None:
            ax.plot(point, ys[-1], "D", color="white", mec=FAINT, ms=3.5, zorder=5)
            say(bars.text.format(point), point, ys[-1], FAINT)
    ax.margins(x=0.12)
    negative = any(value is not None and value < 0 for series in bars.series.values() for value in series)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]) if negative else 0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _heat(ax: Any, heat: Heat, panel: Panel, position: int, norms: dict[Scale, Normalize]) -> None:
    rows, columns = heat.values.shape
    x = np.arange(columns) if heat.x is None else heat.x
    y = np.arange(rows) if heat.y is None else heat.y
    hidden = ~np.isfinite(heat.values) | ((heat.values <= 0) if heat.scale.log else False)
    ax.pcolormesh(
        _edges(x), _edges(y), np.ma.array(heat.values, mask=hidden), norm=norms[heat.scale],
        cmap=_colour_map(heat.scale), rasterized=True,
    )  # fmt: skip
    if heat.hatched is not None and heat.hatched.any():
        # A contour runs between nodes; with each value on all four corners of its cell it runs along the cells.
        corners = (np.repeat(_edges(values), 2)[1:-1] for values in (x, y))
        cells = heat.hatched.repeat(2, axis=0).repeat(2, axis=1).astype(float)
        marks = ax.contourf(*corners, cells, levels=[0.5, 1.5], colors="none", hatches=["////"])
        marks.set_edgecolor("0.35")
        marks.set_linewidth(0)
    for row, texts in enumerate(heat.texts):
        for column, text in enumerate(texts):
            ax.text(x[column], y[row], text, ha="center", va="center", fontsize=7)
    ax.grid(visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(8))
    ax.yaxis.set_major_locator(MaxNLocator(10, integer=heat.y is None))


def _edges(values: np.ndarray) -> np.ndarray:
    """Where the cells around values begin and end."""
    if len(values) == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middles = (values[1:] + values[:-1]) / 2
    return np.concatenate([[2 * values[0] - middles[0]], middles, [2 * values[-1] - middles[-1]]])


def _contour(ax: Any, contour: Contour, panel: Panel, position: int, norms: dict[Scale, Normalize]) -> None:
    scale = contour.scale
    place = (contour.x, contour.y, scale.clip(contour.values))
    drawn = ax.contourf(*place, levels=scale.levels, norm=norms[scale], cmap=_colour_map(scale))
    drawn.set_rasterized(True)
    lines = ax.contour(*place, levels=scale.levels[::3], colors="white", linewidths=0.6, alpha=0.8)
    ax.clabel(lines, fontsize=6, fmt=lambda value: f"{value:.2g}")
    ax.grid(visible=False)


def _surface(ax: Any, surface: Surface3D, panel: Panel, position: int, norms: Any) -> None:
    scale = surface.scale
    (bottom, top), (where, labels) = scale.ends, scale.ticks()
    x, y = np.meshgrid(surface.x, surface.y)
    ax.plot_surface(
        x, y, scale.heights(surface.values), cmap=_colour_map(scale), vmin=bottom, vmax=top, rcount=len(y),
        ccount=len(x[0]), linewidth=0, antialiased=True, rasterized=True,
    )  # fmt: skip
    ax.view_init(ELEVATION, AZIMUTH)
    ax.set_zlim(bottom, top)
    ax.set_zticks(where, labels, fontsize=7)
    ax.tick_params(axis="both", labelsize=7, pad=0)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.labelpad = ax.yaxis.labelpad = -4
    ax.set_zlabel(scale.told, labelpad=-2)
    ax.set_box_aspect(None, zoom=0.92)


DRAWERS: dict[type[Mark], Callable[..., None]] = {
    Line: _line, Points: _points, Bars: _bars, Heat: _heat, Contour: _contour, Surface3D: _surface,
}  # fmt: skip


# --- the legend -------------------------------------------------------------------------------------------------------


def _handles(chart: Chart) -> list[Any]:
    """A sample of each look; of mere points without a line."""
    drawn = [mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Line | Points)]
    lined = {mark.look.label for mark in drawn if isinstance(mark, Line) or mark.joined}
    return [
        Line2D([], [], color=look.colour, linestyle=look.dash if look.label in lined else "none",  # type: ignore[arg-type]
               linewidth=look.width, label=look.label, **_marker(look))
        for look in chart.looks
    ]  # fmt: skip


def _bar_handles(chart: Chart) -> list[Any]:
    bars = next((mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Bars)), None)
    if bars is None or list(bars.series) == [""]:
        return []
    colours = bars.stacked or [paler(INK, number) for number in range(len(bars.series))]
    handles: list[Any] = [
        Patch(facecolor=colour, linewidth=0, label=name) for colour, name in zip(colours, bars.series, strict=True)
    ]
    if bars.points:
        rim = {"color": "white", "mec": FAINT, "marker": "D", "ms": 3.5, "linestyle": "none"}
        handles.append(Line2D([], [], label=bars.points[0], **rim))  # type: ignore[arg-type]
    return handles

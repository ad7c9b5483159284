"""Charts with matplotlib, without its global state."""

import io
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from feddual.records.run_dir import atomic_write
from figures.charts.describe import Bars, Chart, Heat, Line, Panel
from figures.charts.style import FAINT, INK, LEGEND_COLUMNS, MATPLOTLIB, PAGE_WIDTH, Look, paler

# Without dates and versions the same numbers give the same file.
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}


def render(chart: Chart) -> dict[str, bytes]:
    """The chart's bytes by file format."""
    with matplotlib.rc_context(MATPLOTLIB):
        return figure_bytes(_figure(chart))


def figure_bytes(figure: Figure, formats: Sequence[str] = tuple(METADATA)) -> dict[str, bytes]:
    """A figure's bytes by file format: the same figure gives the same bytes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for all formats
    files = {}
    for suffix in formats:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, metadata=METADATA[suffix])
        files[suffix] = buffer.getvalue()
    return files


def save_figure(figure: Figure, name: str, out: Path, formats: Sequence[str] = tuple(METADATA)) -> list[Path]:
    """Write NAME.png and NAME.pdf, or one of them, of any figure, and let it go."""
    from matplotlib import pyplot

    files = {out / f"{name}.{suffix}": data for suffix, data in figure_bytes(figure, formats).items()}
    for path, data in files.items():
        atomic_write(path, data)
    pyplot.close(figure)
    return list(files)


def _figure(chart: Chart) -> Figure:
    legend = [_handle(look) for look in chart.legend] + _bar_handles(chart)
    columns = max(1, min(len(legend), LEGEND_COLUMNS))
    extra = 0.22 * -(-len(legend) // columns) + (0.25 if chart.caption else 0)
    figure = Figure(
        figsize=(PAGE_WIDTH, chart.panel_height * chart.rows + extra),
        layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06),
    )
    axes = figure.subplots(chart.rows, chart.columns, squeeze=False, sharey=chart.share_y).ravel()
    images = []
    for position, (ax, panel) in enumerate(zip_longest(axes, chart.panels)):
        if panel is None:
            ax.set_axis_off()
        else:
            images.append(_panel(ax, panel))
            if chart.share_y and position % chart.columns:
                ax.set_ylabel("")
                ax.tick_params(labelleft=False)
            if chart.is_labelled_below(position):
                ax.set_xlabel("")
    image = next((image for image in images if image is not None), None)
    if image is not None:
        heat = next(mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Heat))
        bar = figure.colorbar(image, ax=list(axes), shrink=0.85, pad=0.01, label=heat.label)
        bar.outline.set_visible(False)
    if chart.caption:
        figure.suptitle(chart.caption, fontsize=8.5, color=FAINT, x=0.012, ha="left")
    if legend:
        figure.legend(handles=legend, loc="outside lower center", ncols=columns, handlelength=2.6)
    return figure


def _panel(ax: Any, panel: Panel) -> Any:
    """Draw one panel; returns the image when it is one."""
    ax.set_title(panel.title, loc="left", pad=16 if panel.note else 6)
    if panel.note:
        ax.text(0, 1.02, panel.note, transform=ax.transAxes, fontsize=7.5, color=FAINT, va="bottom").set_in_layout(
            False
        )
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    image = None
    for position, mark in enumerate(panel.marks):
        if isinstance(mark, Line):
            _line(ax, mark, position)
        elif isinstance(mark, Bars):
            _bars(ax, mark)
        else:
            image = _heat(ax, mark)
    if panel.level is not None:
        ax.axhline(panel.level, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if not panel.marks:
        ax.text(0.5, 0.5, panel.empty, transform=ax.transAxes, ha="center", va="center", color=FAINT, fontsize=11)
        ax.tick_params(labelbottom=False, labelleft=False, length=0)
    if panel.y_range:
        ax.set_ylim(*panel.y_range)
    return image


def _line(ax: Any, line: Line, position: int) -> None:
    look = line.look
    width, alpha = (0.9, 0.7) if line.behind else (look.width, 0.95)
    if line.low is not None and line.high is not None:
        ax.fill_between(
            line.x, line.low, line.high, color=look.colour, alpha=0.12 if line.behind else 0.25, linewidth=0
        )
    step = max(len(line.x) // 8, 1)
    ax.plot(
        line.x, line.y, color=look.colour, linestyle=look.dash, linewidth=width, alpha=alpha,
        zorder=2 if line.behind else 2 + look.width,
        marker=look.marker if line.marked else None, markersize=2.5 + 1.8 * look.width, markeredgewidth=0.4,
        markeredgecolor="white",
        markevery=((position * 2) % step, step),  # staggered, so that markers of close curves stay apart
    )  # fmt: skip
    ax.margins(x=0.02)
    ax.xaxis.set_major_locator(MaxNLocator(6))


def _bars(ax: Any, bars: Bars) -> None:
    """A group per look: a lane for each series, then one for the points."""
    lanes = len(bars.series) + (bars.points is not None)
    height = 0.84 / lanes

    def say(text: str, x: float, y: float, colour: str) -> None:
        ax.annotate(
            text, (x, y), xytext=(4, 0), textcoords="offset points", va="center_baseline", fontsize=7, color=colour
        )

    for place, look in enumerate(bars.looks):
        values = [series[place] for series in bars.series.values()]
        ys = place - 0.42 + (np.arange(lanes) + 0.5) * height
        for number, (y, value) in enumerate(zip(ys, values, strict=False)):
            if value is not None:
                ax.barh(y, value, 0.94 * height, color=paler(look.colour, number), linewidth=0)
                say(f"{value:g}", value, y, INK)
            elif any(other is not None for other in values):
                say(bars.missing[place], 0, y, FAINT)
        if all(value is None for value in values):
            say(bars.missing[place], 0, float(np.mean(ys[: len(values)])), FAINT)
        point = bars.points[1][place] if bars.points else None
        if point is not None:
            ax.plot(point, ys[-1], "D", color="white", mec=FAINT, ms=3.5, zorder=5)
            say(f"{point:g}", point, ys[-1], FAINT)
    ax.set_yticks(np.arange(len(bars.looks)), [look.label for look in bars.looks])
    ax.set_ylim(len(bars.looks) - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _heat(ax: Any, heat: Heat) -> Any:
    counts = np.ma.masked_equal(heat.counts, 0)
    image = ax.imshow(
        counts, aspect="auto", origin="lower", cmap="Blues", norm=LogNorm(1, 5000), interpolation="nearest"
    )
    ax.grid(visible=False)
    ax.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    return image


def _handle(look: Look) -> Line2D:
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash,  # type: ignore[arg-type]
        linewidth=look.width, marker=look.marker,
        markersize=2.5 + 1.8 * look.width, markeredgewidth=0.4, markeredgecolor="white", label=look.label,
    )  # fmt: skip


def _bar_handles(chart: Chart) -> list[Any]:
    bars = next((mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Bars)), None)
    if bars is None:
        return []
    handles: list[Any] = [
        Patch(facecolor=paler(INK, number), linewidth=0, label=name) for number, name in enumerate(bars.series)
    ]
    if bars.points:
        handles.append(
            Line2D([], [], color="white", mec=FAINT, marker="D", ms=3.5, linestyle="none", label=bars.points[0])
        )
    return handles

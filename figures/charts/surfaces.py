"""Pictures of loss surfaces. One figure has one colour scale, one set of levels, one camera.

Functions take surfaces (anything with the arrays and the `meta` of `diagnostics.Surface`) and return a matplotlib or
plotly figure; nothing is computed here and no TensorFlow is imported.
"""

import base64
import html as markup
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from diagnostics.statistics import standard_error
from feddual.errors import UserError
from figures.charts.captions import at_centre, caption
from figures.charts.captions import title as title  # also for those who draw panels of their own
from figures.charts.scale import Scale, shared_scale

COLOURS = "viridis"
CAMERA = {"elev": 32, "azim": -58}  # the same view in matplotlib and plotly
SIGMAS = 2.0  # a difference within so many standard errors is hatched

Surfaces = Mapping[str, Any]


def _clipping(scale: Scale) -> str:
    return f" (drawn up to {scale.high:.3g})" if scale.clipped > 0 else ""


# --- flat pictures --------------------------------------------------------------------------------------------------


def plot(surface: Any, kind: str = "contour", *, cap: float | None = None, name: str = "") -> Any:
    """One surface as contours or as a heat map."""
    return panels({name: surface}, kind, cap=cap)


def panels(surfaces: Surfaces, kind: str = "contour", *, cap: float | None = None, columns: int = 3) -> Any:
    """Surfaces side by side on one scale.

    Args:
        surfaces: By name.
        kind: contour or heatmap.
        cap: The largest loss to draw.
        columns: At most so many in a row.
    """
    if kind not in ("contour", "heatmap"):
        raise UserError(f"kind: {kind!r} is unknown; allowed: contour, heatmap")
    shown = _ready(surfaces)
    scale = shared_scale([surface.loss for surface in shown.values()], cap)
    figure, axes = _axes(len(shown), columns)
    mappable = None
    for ax, (name, surface) in zip(axes, shown.items(), strict=False):
        mappable = _draw(ax, surface, scale, kind)
        ax.set_title(title(surface, name), fontsize=9)
    _colour_bar(figure, mappable, axes[: len(shown)], scale, "loss" + _clipping(scale))
    return figure


def _draw(ax: Any, surface: Any, scale: Scale, kind: str) -> Any:
    values, norm = scale.clip(surface.loss), _norm(scale)
    if kind == "heatmap":
        drawn = ax.pcolormesh(
            surface.alphas, surface.betas, values, norm=norm, cmap=COLOURS, shading="nearest", rasterized=True
        )
    else:
        drawn = ax.contourf(surface.alphas, surface.betas, values, levels=scale.levels, norm=norm, cmap=COLOURS)
        lines = ax.contour(
            surface.alphas, surface.betas, values, levels=scale.levels[::3], colors="white", linewidths=0.6, alpha=0.8
        )
        ax.clabel(lines, fontsize=6, fmt=lambda value: f"{value:.2g}")
        drawn.set_rasterized(True)
    _centre(ax)
    return drawn


def difference(first: Any, second: Any, names: tuple[str, str] = ("A", "B")) -> Any:
    """The second surface minus the first, each above its own centre; hatched where it could be chance.

    Args:
        first: A surface, or several (directions, training seeds) that pair up with those of `second`.
        second: The other.
        names: Of both.
    """
    a, b = (list(s) if isinstance(s, (list, tuple)) else [s] for s in (first, second))
    if len(a) != len(b) or any(
        not (np.array_equal(s.alphas, a[0].alphas) and np.array_equal(s.betas, a[0].betas)) for s in [*a, *b]
    ):
        raise UserError("difference: both sides need as many surfaces, on the same grid")
    rises = [_rise(two) - _rise(one) for one, two in zip(a, b, strict=True)]
    mean = np.mean(rises, axis=0)
    if len(rises) > 1:
        error, source = standard_error(np.array(rises)), f"over {len(rises)} pairs"
    else:
        error, source = np.hypot(a[0].sem, b[0].sem), "of the samples"
    figure, (ax,) = _axes(1, 1)
    finite = np.abs(mean[np.isfinite(mean)])
    bound = float(np.quantile(finite, 0.98)) if finite.size and finite.max() > 0 else 1.0
    norm = TwoSlopeNorm(0, -bound, bound)
    drawn = ax.pcolormesh(
        a[0].alphas, a[0].betas, np.clip(mean, -bound, bound), norm=norm, cmap="RdBu_r", shading="nearest",
        rasterized=True,
    )  # fmt: skip
    uncertain = ~(np.abs(mean) > SIGMAS * error)
    if uncertain.any():
        # A contour runs between nodes; with each value on all four corners of its cell it runs along the cells.
        corners = (np.repeat(_edges(values), 2)[1:-1] for values in (a[0].alphas, a[0].betas))
        cells = uncertain.repeat(2, axis=0).repeat(2, axis=1).astype(float)
        marks = ax.contourf(*corners, cells, levels=[0.5, 1.5], colors="none", hatches=["////"])
        marks.set_edgecolor("0.35")
        marks.set_linewidth(0)
    _centre(ax)
    ax.set_title(
        f"loss rise, {names[1]} − {names[0]}\nhatched: within {SIGMAS:g} standard errors {source}\n"
        f"{names[0]}: {at_centre(a)}\n{names[1]}: {at_centre(b)}",
        fontsize=8,
    )
    figure.colorbar(drawn, ax=ax, shrink=0.85, label="difference of L − L(0)")
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """Where the cells around values begin and end."""
    middles = (values[1:] + values[:-1]) / 2
    return np.r_[2 * values[0] - middles[0], middles, 2 * values[-1] - middles[-1]]


def _rise(surface: Any) -> np.ndarray:
    iy, ix = surface.centre
    return surface.loss - surface.loss[iy, ix]


# --- three dimensions -----------------------------------------------------------------------------------------------


def plot3d(surface: Any, *, backend: str = "plotly", cap: float | None = None, name: str = "") -> Any:
    """One surface in three dimensions; heights are on the colours' scale."""
    return panels3d({name: surface}, backend=backend, cap=cap)


def panels3d(surfaces: Surfaces, *, backend: str = "plotly", cap: float | None = None) -> Any:
    """Surfaces side by side: one scale, one height, one camera."""
    shown = _ready(surfaces)
    scale = shared_scale([surface.loss for surface in shown.values()], cap)
    if backend == "matplotlib":
        return _matplotlib3d(shown, scale)
    if backend == "plotly":
        return _plotly3d(shown, scale)
    raise UserError(f"backend: {backend!r} is unknown; allowed: plotly, matplotlib")


def _heights(surface: Any, scale: Scale) -> np.ndarray:
    values = scale.clip(surface.loss)
    return np.log10(values) if scale.log else values


def ticks(scale: Scale) -> tuple[np.ndarray, list[str]]:
    """Where the heights' axis is marked, and with which losses."""
    if scale.log:
        candidates = np.array([m * 10.0**e for e in range(-8, 9) for m in (1, 2, 5)])
        values = candidates[(candidates >= scale.low) & (candidates <= scale.high)]
        if len(values) < 3:
            values = np.geomspace(scale.low, scale.high, 4)
        return np.log10(values), [f"{value:.3g}" for value in values]
    values = np.linspace(scale.low, scale.high, 5)
    return values, [f"{value:.3g}" for value in values]


def _matplotlib3d(surfaces: Surfaces, scale: Scale) -> Any:
    figure = plt.figure(figsize=(4.6 * len(surfaces), 4.2))
    plt.close(figure)
    where, labels = ticks(scale)
    bottom, top = np.log10([scale.low, scale.high]) if scale.log else (scale.low, scale.high)
    for number, (name, surface) in enumerate(surfaces.items(), 1):
        ax = figure.add_subplot(1, len(surfaces), number, projection="3d")
        x, y = np.meshgrid(surface.alphas, surface.betas)
        ax.plot_surface(
            x, y, _heights(surface, scale), cmap=COLOURS, vmin=bottom, vmax=top, rcount=len(y), ccount=len(x[0]),
            linewidth=0, antialiased=True,
        )  # fmt: skip
        ax.view_init(**CAMERA)
        ax.set_zlim(bottom, top)
        ax.set_zticks(where, labels, fontsize=7)
        ax.tick_params(axis="both", labelsize=7, pad=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlabel("α", labelpad=-4)
        ax.set_ylabel("β", labelpad=-4)
        ax.set_zlabel("loss", labelpad=-2)
        ax.set_title(title(surface, name) + (_clipping(scale) and f"\n{_clipping(scale).strip()}"), fontsize=9)
    figure.subplots_adjust(left=0.01, right=0.95, bottom=0.04, top=0.88, wspace=0.08)
    return figure


def _plotly3d(surfaces: Surfaces, scale: Scale) -> Any:
    from plotly.subplots import make_subplots

    names = [title(surface, name).replace("\n", "<br>") for name, surface in surfaces.items()]
    figure = make_subplots(
        1, len(surfaces), specs=[[{"type": "surface"}] * len(surfaces)], subplot_titles=names, horizontal_spacing=0.02
    )
    for number, surface in enumerate(surfaces.values(), 1):
        figure.add_trace(trace3d(surface, scale, show_scale=number == len(surfaces)), 1, number)
    figure.update_scenes(**scene(scale))
    figure.update_layout(margin={"l": 0, "r": 0, "t": 60, "b": 0}, height=520, template="plotly_white")
    return figure


def trace3d(surface: Any, scale: Scale, show_scale: bool = True) -> Any:
    """A surface for plotly, its heights and colours on the scale."""
    import plotly.graph_objects as go

    where, labels = ticks(scale)
    bottom, top = np.log10([scale.low, scale.high]) if scale.log else (scale.low, scale.high)
    return go.Surface(
        x=surface.alphas, y=surface.betas, z=_heights(surface, scale), cmin=float(bottom), cmax=float(top),
        colorscale=COLOURS.capitalize(), showscale=show_scale, customdata=np.dstack([surface.loss, surface.sem]),
        hovertemplate="α %{x:.3f}, β %{y:.3f}<br>loss %{customdata[0]:.4f} ± %{customdata[1]:.2g}<extra></extra>",
        colorbar={"tickvals": where.tolist(), "ticktext": labels, "title": "loss" + _clipping(scale), "len": 0.7},
    )  # fmt: skip


def scene(scale: Scale) -> dict[str, Any]:
    """Axes and camera for plotly."""
    where, labels = ticks(scale)
    bottom, top = np.log10([scale.low, scale.high]) if scale.log else (scale.low, scale.high)
    elevation, azimuth = np.radians(CAMERA["elev"]), np.radians(CAMERA["azim"])
    eye = 2.0 * np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    return {
        "xaxis_title": "α",
        "yaxis_title": "β",
        "zaxis": {
            "title": "loss",
            "tickvals": where.tolist(),
            "ticktext": labels,
            "range": [float(bottom), float(top + 0.02 * (top - bottom))],  # room for what is clipped
        },
        "camera": {"eye": dict(zip("xyz", eye.tolist(), strict=True))},
        "aspectmode": "cube",
    }


# --- over rounds ----------------------------------------------------------------------------------------------------


def animate(surfaces: Surfaces, path: str | Path, *, cap: float | None = None, kind: str = "contour") -> Path:
    """Surfaces one after the other, all on one scale: a .gif of flat pictures, or a .html in 3-D with a slider."""
    path = Path(path)
    shown = _ready(surfaces)
    scale = shared_scale([surface.loss for surface in shown.values()], cap)
    if path.suffix == ".gif":
        _gif(shown, scale, kind, path)
    elif path.suffix == ".html":
        animation(shown, scale).write_html(path, include_plotlyjs=True)
    else:
        raise UserError(f"animate: {path.name!r} must end in .gif or .html")
    return path


def animation(surfaces: Surfaces, scale: Scale | None = None) -> Any:
    """A plotly figure with a frame per surface and a slider."""
    import plotly.graph_objects as go

    scale = scale or shared_scale([surface.loss for surface in surfaces.values()])
    frames = [
        go.Frame(
            data=[trace3d(surface, scale)], name=name,
            layout={"title": {"text": title(surface, name).replace("\n", " · ")}},
        )
        for name, surface in surfaces.items()
    ]  # fmt: skip
    play = {"frame": {"duration": 600, "redraw": True}, "fromcurrent": True, "transition": {"duration": 0}}
    still = {"frame": {"duration": 0, "redraw": True}, "mode": "immediate"}
    figure = go.Figure(data=frames[0].data, layout=frames[0].layout, frames=frames)
    figure.update_scenes(**scene(scale))
    figure.update_layout(
        template="plotly_white", height=620, margin={"l": 0, "r": 0, "t": 60, "b": 0},
        updatemenus=[{
            "type": "buttons", "direction": "left", "x": 0.02, "y": 0.06, "showactive": False,
            "buttons": [
                {"label": "play", "method": "animate", "args": [None, play]},
                {"label": "pause", "method": "animate", "args": [[None], still]},
            ],
        }],
        sliders=[{
            "x": 0.14, "len": 0.84, "y": 0.08,
            "steps": [{"label": name, "method": "animate", "args": [[name], still]} for name in surfaces],
        }],
    )  # fmt: skip
    return figure


def _gif(surfaces: Surfaces, scale: Scale, kind: str, path: Path) -> None:
    from matplotlib.animation import FuncAnimation, PillowWriter

    figure, (ax,) = _axes(1, 1)
    named = list(surfaces.items())
    _colour_bar(figure, _draw(ax, named[0][1], scale, kind), [ax], scale, "loss" + _clipping(scale))

    def frame(number: int) -> list[Any]:
        name, surface = named[number]
        ax.clear()
        _draw(ax, surface, scale, kind)
        _label(ax)
        ax.set_title(title(surface, name), fontsize=9)
        return []

    FuncAnimation(figure, frame, frames=len(named), init_func=lambda: []).save(path, writer=PillowWriter(fps=2), dpi=90)


def html(surface: Any) -> str:
    """The picture and its caption, for a notebook."""
    buffer = io.BytesIO()
    plot(surface).savefig(buffer, format="png", dpi=110)
    picture = base64.b64encode(buffer.getvalue()).decode()
    return (
        f"<figure><img src='data:image/png;base64,{picture}' alt='loss surface'>"
        f"<figcaption style='max-width:60em'>{markup.escape(caption(surface))}</figcaption></figure>"
    )


# --- shared ---------------------------------------------------------------------------------------------------------


def _ready(surfaces: Surfaces) -> dict[str, Any]:
    """What can be drawn of each: an unfinished surface shows its finest complete grid."""
    if not surfaces:
        raise UserError("nothing to draw: no surface was given")
    return {name: surface.preview() for name, surface in surfaces.items()}


def _axes(count: int, columns: int) -> tuple[Any, list[Any]]:
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(0.7 + 3.6 * columns, 3.7 * rows), layout="constrained", squeeze=False
    )
    plt.close(figure)  # pyplot must not keep it; notebooks show what a cell returns
    flat = list(axes.ravel())
    for ax in flat[count:]:
        ax.set_visible(False)
    for ax in flat[:count]:
        _label(ax)
    return figure, flat


def _label(ax: Any) -> None:
    ax.set(xlabel="α", ylabel="β", aspect="auto")
    ax.xaxis.set_major_locator(MaxNLocator(4))  # labels of a narrow panel must not touch
    ax.set_box_aspect(1)


def _centre(ax: Any) -> None:
    ax.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=2.4)
    ax.plot(0, 0, marker="+", color="#d55e00", markersize=8, markeredgewidth=1.4)


def _norm(scale: Scale) -> Any:
    return (LogNorm if scale.log else Normalize)(scale.low, scale.high)


def _colour_bar(figure: Any, mappable: Any, axes: list[Any], scale: Scale, label: str) -> None:
    bar = figure.colorbar(mappable, ax=axes, shrink=0.85, label=label)
    few = scale.log and scale.high / scale.low < 10
    bar.locator = LogLocator(subs=(1, 2, 5)) if scale.log and not few else MaxNLocator(6)
    bar.formatter = FuncFormatter(lambda value, _: f"{value:.3g}")
    bar.minorticks_off()
    bar.update_ticks()

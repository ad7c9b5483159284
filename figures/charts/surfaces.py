"""Charts of loss surfaces. One chart has one colour scale, one set of levels, one camera.

Functions take surfaces (anything with the arrays and the `meta` of `diagnostics.Surface`) and return a `Chart`; nothing
is computed here and no TensorFlow is imported.
"""

import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics.statistics import NO_INTERVAL, repeated
from feddual.errors import UserError
from feddual.records.identity import Replicate
from figures.charts.captions import at_centre, caption, of_logits, title
from figures.charts.describe import Chart, Contour, Heat, Panel, Points, Surface3D
from figures.charts.scale import Scale, shared_scale
from figures.charts.style import Look

SIGMAS = 2.0  # a difference within so many standard errors is hatched
HERE = Points(Look("", "#d55e00", "+", width=1.4), np.zeros(1), np.zeros(1), told=["the model"])

Surfaces = Mapping[str, Any]


def plot(surface: Any, kind: str = "contour", *, cap: float | None = None, name: str = "") -> Chart:
    """One surface as contours or as a heat map; arguments as for `panels`."""
    return panels({name: surface}, kind, cap=cap)


def panels(surfaces: Surfaces, kind: str = "contour", *, cap: float | None = None, columns: int = 3) -> Chart:
    """Surfaces side by side on one scale.

    Args:
        surfaces: By name.
        kind: contour or heatmap.
        cap: The largest loss to draw.
        columns: At most so many in a row.

    Returns:
        A panel per surface.
    """
    if kind not in ("contour", "heatmap"):
        raise UserError(f"kind: {kind!r} is unknown; allowed: contour, heatmap")
    shown, scale = _ready(surfaces, cap)
    columns = min(columns, len(shown))
    drawn = [flat(name, surface, scale, kind) for name, surface in shown.items()]
    return Chart(drawn, columns, panel_height=3.7, width=0.9 + 3.6 * columns)


def flat(name: str, surface: Any, scale: Scale, kind: str = "contour") -> Panel:
    """A panel with a surface from above."""
    place = (surface.alphas, surface.betas)
    mark = Contour(surface.loss, scale, *place) if kind == "contour" else Heat(scale.clip(surface.loss), scale, *place)
    return Panel(name, "α", "β", [mark, HERE], note=title(surface), square=True)


def difference(
    first: Any, second: Any, names: tuple[str, str] = ("A", "B"), which: Sequence[Replicate] | None = None
) -> Chart:
    """The second surface minus the first, each above its own centre; hatched where it could be chance.

    Args:
        first: A surface, or those of several training seeds, of each a list with one per direction; they pair up with
            those of `second`.
        second: The other.
        names: Of both.
        which: Draw of the clients and seed of each list; by default one draw.

    Returns:
        One panel.
    """
    a, b = _by_seed(first), _by_seed(second)
    flat_a, flat_b = ([surface for seed in side for surface in seed] for side in (a, b))
    here = flat_a[0]
    same = [np.array_equal(s.alphas, here.alphas) and np.array_equal(s.betas, here.betas) for s in [*flat_a, *flat_b]]
    if [*map(len, a)] != [*map(len, b)] or len({*map(len, a)}) > 1 or not all(same):
        raise UserError("difference: both sides need as many surfaces, on the same grid")
    rises = np.array([_rise(two) - _rise(one) for one, two in zip(flat_a, flat_b, strict=True)])
    rises = rises.reshape(len(a), -1, *here.loss.shape)
    mean, low, high = repeated(which or [Replicate(0, seed) for seed in range(len(rises))], rises)
    if len(rises) > 1:
        chance = ~((low > 0) | (high < 0))
        said = f"95 % interval ({len(rises)} {'runs' if which else 'seeds'} × {rises.shape[1]} pairs) holds 0"
    else:
        error = np.sqrt(sum(s.sem**2 for s in [*flat_a, *flat_b])) / len(flat_a)
        chance = ~(np.abs(mean) > SIGMAS * error)
        said = f"within {SIGMAS:g} standard errors of the samples; {NO_INTERVAL}"
    finite = np.abs(mean[np.isfinite(mean)])
    bound = float(np.quantile(finite, 0.98)) if finite.size and finite.max() > 0 else 1.0
    scale = Scale(-bound, bound, label="difference of L − L(0)", colours="RdBu_r")
    heat = Heat(np.clip(mean, -bound, bound), scale, here.alphas, here.betas, hatched=chance)
    note = "\n".join(filter(None, [
        of_logits(flat_b[0]), f"hatched: {said}", f"{names[0]}: {at_centre(flat_a)}", f"{names[1]}: {at_centre(flat_b)}"
    ]))  # fmt: skip
    panel = Panel(f"loss rise, {names[1]} − {names[0]}", "α", "β", [heat, HERE], note=note, square=True)
    return Chart([panel], 1, panel_height=3.9, width=4.5)


def _by_seed(given: Any) -> list[list[Any]]:
    """Surfaces by seed and direction."""
    seeds = given if isinstance(given, (list, tuple)) else [given]
    return [list(one) if isinstance(one, (list, tuple)) else [one] for one in seeds]


def _rise(surface: Any) -> np.ndarray:
    iy, ix = surface.centre
    return np.asarray(surface.loss - surface.loss[iy, ix])


def panels3d(surfaces: Surfaces, *, cap: float | None = None) -> Chart:
    """Surfaces in three dimensions, side by side: one scale, one height, one camera.

    Args:
        surfaces: By name.
        cap: The largest loss to draw.

    Returns:
        A panel per surface; heights are on the colours' scale.
    """
    shown, scale = _ready(surfaces, cap)
    drawn = [deep(name, surface, scale) for name, surface in shown.items()]
    return Chart(drawn, len(drawn), panel_height=4.2, width=4.6 * len(drawn))


def deep(name: str, surface: Any, scale: Scale) -> Panel:
    """A panel with a surface in three dimensions."""
    mark = Surface3D(surface.loss, scale, surface.alphas, surface.betas, surface.sem)
    return Panel(name, "α", "β", [mark], note=title(surface))


def animation(surfaces: Surfaces, *, cap: float | None = None, kind: str = "3d") -> Chart:
    """Surfaces one after the other, all on one scale: a film.

    Args:
        surfaces: By name, which the slider shows.
        cap: The largest loss to draw.
        kind: 3d, contour or heatmap.
    """
    return replace(panels3d(surfaces, cap=cap) if kind == "3d" else panels(surfaces, kind, cap=cap), film=True)


def animate(surfaces: Surfaces, path: str | Path, *, cap: float | None = None, kind: str = "contour") -> Path:
    """Write surfaces one after the other: a .gif of flat pictures, or a .html in 3-D with a slider.

    Args:
        surfaces: By name.
        path: Of the file.
        cap: The largest loss to draw.
        kind: Of a .gif, contour or heatmap.

    Returns:
        The path.
    """
    path = Path(path)
    if path.suffix == ".gif":
        from figures.charts import static

        static.gif(replace(animation(surfaces, cap=cap, kind=kind), columns=1, width=4.6), path)
    elif path.suffix == ".html":
        animation(surfaces, cap=cap).save(path)
    else:
        raise UserError(f"animate: {path.name!r} must end in .gif or .html")
    return path


def html(surface: Any) -> str:
    """The picture and its caption, for a notebook."""
    picture = plot(surface)._repr_mimebundle_()["image/png"]
    return (
        f"<figure><img src='data:image/png;base64,{picture}' alt='loss surface'>"
        f"<figcaption style='max-width:60em'>{markup.escape(caption(surface))}</figcaption></figure>"
    )


def _ready(surfaces: Surfaces, cap: float | None) -> tuple[dict[str, Any], Scale]:
    """What can be drawn of each (an unfinished surface shows its finest complete grid), and their scale."""
    if not surfaces:
        raise UserError("nothing to draw: no surface was given")
    shown = {name: surface.preview() for name, surface in surfaces.items()}
    return shown, shared_scale([surface.loss for surface in shown.values()], cap)

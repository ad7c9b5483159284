"""How things show themselves in a notebook: small pieces of HTML, with no library behind them."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

INK = "#0072B2"


def facts(caption: str, values: Mapping[str, Any], picture: str = "") -> str:
    """A caption, a picture and a table of facts; what is None is left out."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(str(key))}</th>"
        f"<td style='text-align:left'>{html.escape(_shown(value))}</td></tr>"
        for key, value in values.items()
        if value is not None
    )
    return f"<b>{html.escape(caption)}</b>{picture}<table>{rows}</table>"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sparkline(values: Sequence[float | None], width: int = 240, height: int = 40) -> str:
    """A curve the size of a word, as SVG; nothing for fewer than two values."""
    known = [(place, value) for place, value in enumerate(values) if value is not None and np.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(value for _, value in known), max(value for _, value in known)
    points = " ".join(
        f"{2 + (width - 4) * place / (len(values) - 1):.1f},"
        f"{height - 3 - (height - 6) * (value - low) / ((high - low) or 1):.1f}"
        for place, value in known
    )
    return _svg(width, height, f"<polyline points='{points}' fill='none' stroke='{INK}' stroke-width='1.5'/>")


def bars(values: Sequence[float], width: int = 240, height: int = 40) -> str:
    """Bars from the largest to the smallest, as SVG."""
    ordered = sorted(values, reverse=True)
    step = width / max(len(ordered), 1)
    drawn = "".join(
        f"<rect x='{step * place:.1f}' y='{height * (1 - value / ordered[0]):.1f}' width='{0.8 * step:.1f}' "
        f"height='{height * value / ordered[0]:.1f}' fill='{INK}'/>"
        for place, value in enumerate(ordered)
        if value > 0
    )
    return _svg(width, height, drawn)


def label_map(counts: np.ndarray, cell: int = 10) -> str:
    """Examples of each class (down) at each client (right) as SVG: the darker, the more, on a logarithmic scale."""
    counts = np.asarray(counts).T
    shades = np.log1p(counts) / np.log1p(max(counts.max(), 1))
    drawn = "".join(
        f"<rect x='{cell * x}' y='{cell * y}' width='{cell - 1}' height='{cell - 1}' fill='{INK}' "
        f"fill-opacity='{shades[y, x]:.2f}'><title>client {x}, class {y}: {counts[y, x]}</title></rect>"
        for y, x in np.argwhere(counts > 0)
    )
    return _svg(cell * counts.shape[1], cell * counts.shape[0], drawn)


def _svg(width: int, height: int, inside: str) -> str:
    return f"<br><svg width='{width}' height='{height}' viewBox='0 0 {width} {height}' role='img'>{inside}</svg>"

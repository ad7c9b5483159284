"""Charts of losses along lines, and of the radial profiles that `diagnostics.flatness.compare` reads off them."""

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from diagnostics.statistics import NO_INTERVAL
from figures.charts.captions import title
from figures.charts.describe import Chart, Line, Panel
from figures.charts.style import look


def plot_lines(bundles: Any | Mapping[str, Any], *, cap: float | None = None, single: bool = True) -> Chart:
    """Lines: the mean, the band of 10 to 90 % over directions, and each direction thinly.

    Args:
        bundles: `diagnostics.Lines`, or several by name.
        cap: The largest loss to draw.
        single: Whether each direction is drawn.

    Returns:
        One panel.
    """
    named = bundles if isinstance(bundles, Mapping) else {"": bundles}
    marks = []
    for number, (name, lines) in enumerate(named.items()):
        losses = np.where(np.isfinite(lines.loss), lines.loss, np.nan)
        style = replace(look(number, (f"{name}: " if name else "") + title(lines)), width=2)
        thin = replace(style, width=0.5, dash="solid")
        marks += [Line(thin, lines.alphas, one, behind=True) for one in losses] if single else []
        low, high = np.nanquantile(losses, [0.1, 0.9], axis=0) if len(losses) > 1 else (None, None)
        marks.append(Line(style, lines.alphas, np.nanmean(losses, axis=0), low, high, marked=False))
    names = next(iter(named.values())).meta["identity"]["direction_names"]
    unit = "the filters' own norms" if "filter" in names[0] else "the direction's own length"
    lowest = min(float(np.nanmin(mark.y)) for mark in marks)
    room = None if cap is None else (lowest - 0.05 * (cap - lowest), cap)
    panel = Panel("", f"step along the direction (1 = {unit})", "loss", marks, y_range=room, upright=0)
    return Chart([panel], 1, panel_height=3.6, width=6.0)


def plot_profiles(profiles: Any, tau: float = 0.1) -> Chart:
    """Radial profiles delta(r) of `compare_models`: mean, interval (dark) and spread over directions (light).

    Args:
        profiles: The comparison's table.
        tau: The rise whose radius is compared, a dashed line.

    Returns:
        A panel for each way in which models are made equal.
    """
    panels = []
    for match in dict.fromkeys(profiles["match"]):
        part = profiles[profiles["match"] == match]
        marks = []
        for number, name in enumerate(dict.fromkeys(part["model"])):
            rows = part[part["model"] == name]
            columns = (rows[key].to_numpy(float) for key in ("radius", "mean", "p10", "p90", "low", "high"))
            radius, mean, p10, p90, low, high = columns
            style = replace(look(number, name), width=2)
            marks.append(Line(replace(style, width=0.1), radius, mean, p10, p90, behind=True))
            marks.append(Line(style, radius, mean, low, high, marked=False))
        equal, note = _equal(match, part)
        note += f"\ndashed: τ = {tau:g}" + (f"; {NO_INTERVAL}" if part["low"].isna().all() else "")
        # A rise grows with r²: under the root it is a straight line, and small radii can be read too.
        words = ("radius r, in lengths of a direction", "loss rise Δ(r)")
        panels.append(Panel(equal, *words, marks, level=tau, note=note, y_scale="root"))
    return Chart(panels, len(panels), panel_height=3.6, share_y=True, width=0.8 + 4.4 * len(panels))


def _equal(match: str, part: Any) -> tuple[str, str]:
    """What is equal in a panel, and how equal the losses are."""
    models = part.drop_duplicates("model")
    loss = {"train": "training loss", "test": "test loss"}.get(models["split"].iloc[0], "loss")
    equal = {"round": "equal rounds", "loss": "equal training loss"}.get(match, "")
    losses = ", ".join(f"{model} {value:.3g}" for model, value in zip(models["model"], models["loss"], strict=True))
    return equal, "\n".join(textwrap.wrap(f"{loss} L(0): {losses}", 64))

"""Charts of trajectories: `diagnostics.trajectory` measured them, nothing is computed here."""

from dataclasses import replace
from typing import Any

import numpy as np

from figures.charts.describe import Chart, Contour, Line, Panel, Points
from figures.charts.scale import shared_scale
from figures.charts.style import Look, look


def trajectory(found: Any, cap: float | None = None) -> Chart:
    """The paths over the loss in the plane, points coloured by their own loss; and how far off the plane they are.

    Args:
        found: `diagnostics.Trajectory`.
        cap: The largest loss to draw.

    Returns:
        Two panels: the plane, and distances by round.
    """
    losses = [found.points["loss"].to_numpy(float)]
    losses += [found.surface.loss] if found.surface is not None else []
    scale = shared_scale(losses, cap)
    over: list[Any] = []
    if found.surface is not None:
        over.append(Contour(found.surface.loss, scale, found.surface.alphas, found.surface.betas))
    beside: list[Any] = []
    for number, name in enumerate(found.runs):
        path, clients = found.of(name), found.of(name, "client")
        style = replace(look(number, name), dash="solid", width=1.6)
        if len(clients):
            told = [f"{name}, round {row.round}, client {row.client:g}: {_said(row)}" for row in clients.itertuples()]
            faint = replace(style, label="", marker="d", width=0.5)
            over.append(_points(faint, clients, scale, told))
        told = [f"{name}, round {row.round}: {_said(row)}" for row in path.itertuples()]
        over.append(replace(_points(style, path, scale, told), joined=True))
        rounds = path["round"].to_numpy(float)
        beside.append(Line(style, rounds, path["distance"].to_numpy(float)))
        off = replace(style, label="", dash="dashed")  # the legend has the solid one
        beside.append(Line(off, rounds, path["off"].to_numpy(float)))
    first, second = (f"principal direction {n + 1} ({found.shares[n]:.0%})" for n in (0, 1))
    origin = f"+: the last model of {found.runs[0]}"
    over.append(Points(Look("", "#222222", "+", width=1.6), np.zeros(1), np.zeros(1), told=[origin]))
    walk = f"random walks of as many steps: {found.walk[0]:.0%}, {found.walk[1]:.0%}"
    note = f"points: the models' own loss; {origin}\n{walk}"
    plane = Panel("in the plane", first, second, over, note=note)
    words = "solid: from the origin; dashed: from the plane\nthe contours are losses in the plane, not of these models"
    aside = Panel("beside the plane", "round", "distance in weight space", beside, note=words)
    return Chart([plane, aside], 2, panel_height=4.0, width=10.2)


def _points(style: Look, rows: Any, scale: Any, told: list[str]) -> Points:
    place = rows["alpha"].to_numpy(float), rows["beta"].to_numpy(float)
    return Points(style, *place, told=told, values=rows["loss"].to_numpy(float), scale=scale)


def _said(row: Any) -> str:
    return f"loss {row.loss:.3g}, {row.off:.3g} off the plane"

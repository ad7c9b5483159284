"""Charts of barriers between models, of one layer averaged or kept, and of planes through a round's clients.

Functions take what `diagnostics.barriers` and `diagnostics.client_planes` give; nothing is computed here.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from diagnostics.statistics import NO_INTERVAL
from feddual.errors import UserError
from figures.charts.describe import Chart, Contour, Heat, Line, Panel, Points
from figures.charts.scale import Scale, shared_scale
from figures.charts.style import FAINT, Look, look

WORDS = {"barrier": "loss barrier", "error_barrier": "error barrier", "rise": "loss above the ends at t = 1/2"}
# What is drawn layer by layer: quantity, between whom or on what data, title, axis, what it says.
BY_LAYER = (
    ("barrier", ("clients", "models"), "one layer of two models mixed", "loss barrier", "all data, other layers kept"),
    ("rise", ("clients", "models"), "one layer of two averaged", "change of loss", "all data, other layers kept"),
    ("loss change, averaged", ("own",), "client, one layer from the global model", "change of loss", "client's data"),
    ("loss change, kept", ("own",), "global model, one layer from the client", "change of loss", "client's data"),
)
SIDE = 0.34  # inches of a cell


def matrix(found: Any, quantity: str = "barrier") -> Chart:
    """Who can be averaged with whom: a cell for each pair that was measured.

    Args:
        found: `diagnostics.Barriers`.
        quantity: barrier, error_barrier or rise.

    Returns:
        A panel for each order of units (as trained, aligned), on one scale.
    """
    if quantity not in WORDS:
        raise UserError(f"quantity: {quantity!r} is unknown; allowed: {', '.join(WORDS)}")
    whole = found.values[found.values["layer"] == "all"]
    there = set(whole["first"]) | set(whole["second"])
    names = [name for name in found.models["model"] if name in there]
    numbers = whole[quantity].to_numpy(float)
    ends = np.nanmin(numbers, initial=0.0), np.nanmax(numbers, initial=0.0)
    if ends[0] < 0:
        bound = max(map(abs, ends))
        scale = Scale(-bound, bound, label=WORDS[quantity], colours="RdBu_r")
    else:
        scale = Scale(0.0, float(ends[1]) or 1.0, label=WORDS[quantity], colours="Oranges")
    panels = []
    for order in dict.fromkeys(whole["order"]):
        cells = np.full((len(names), len(names)), np.nan)
        for row in whole[whole["order"] == order].to_dict("records"):
            place = names.index(row["first"]), names.index(row["second"])
            cells[place] = cells[place[::-1]] = row[quantity]
        texts = [["" if np.isnan(value) else _short(value) for value in line] for line in cells]
        heat = Heat(cells, scale, texts=texts if len(names) <= 14 else ())
        panels.append(Panel(order, "", "", [heat], x_names=[_brief(name) for name in names], y_names=names))
    height = max(2.4, SIDE * len(names) + 1.1)
    return Chart(panels, len(panels), panel_height=height, width=1.3 + len(panels) * max(3.4, 0.5 * len(names) + 1.4))


def _short(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:.2g}" if abs(value) >= 0.01 else f"{value:.3f}"


def _brief(name: str) -> str:
    return name.removeprefix("client ")


def by_layer(found: Any, order: str = "as trained") -> Chart:
    """Which layers suffer: barriers of one layer, and what averaging or keeping one layer changes, with intervals.

    Args:
        found: `diagnostics.Barriers`, or what `diagnostics.compare_barriers` gave of several runs.
        order: as trained or aligned.

    Returns:
        A panel for each way to ask; layers from input to output, then all of them.
    """
    one = hasattr(found, "summary")
    table = found.summary.assign(experiment="") if one else found
    panels, styles = [], {name: look(place, name) for place, name in enumerate(dict.fromkeys(table["experiment"]))}
    for quantity, between, title, label, note in BY_LAYER:
        rows = table[(table["quantity"] == quantity) & table["between"].isin(between)]
        rows = rows[rows["order"].isin([order, "as trained"] if "own" in between else [order])]
        if rows.empty:
            continue
        layers = [layer for layer in dict.fromkeys(rows["layer"]) if layer != "all"]
        layers += ["all"] if "all" in set(rows["layer"]) else []
        marks = []
        for number, (name, style) in enumerate(styles.items()):
            mine = rows[rows["experiment"] == name].set_index("layer").reindex(layers)
            places = np.arange(len(layers)) + 0.14 * (number - (len(styles) - 1) / 2)
            marks.append(Points(style, places, *(mine[key].to_numpy(float) for key in ("mean", "low", "high"))))
        over = "95 % over clients" if one else "95 % over runs"
        note += f"; {over if rows['low'].notna().any() else NO_INTERVAL}"
        panels.append(Panel(title, "", label, marks, level=0, note=note, x_names=layers))
    columns = min(2, len(panels)) or 1
    return Chart(panels, columns, panel_height=2.9, width=4.6 * columns + 0.4)


def lines(found: Any) -> Chart:
    """The loss from one model to the other: each pair thinly, their mean.

    Args:
        found: `diagnostics.Barriers`.

    Returns:
        A panel for clients in pairs, and one for clients and the global model.
    """
    whole = found.lines[found.lines["layer"] == "all"]
    panels = []
    for between in dict.fromkeys(whole["between"]):
        marks = []
        for number, order in enumerate(dict.fromkeys(whole["order"])):
            rows = whole[(whole["between"] == between) & (whole["order"] == order)]
            style = replace(look(number, order), width=2.2)
            for _, pair in rows.groupby(["first", "second"], sort=False):
                marks.append(
                    Line(replace(style, width=0.6), pair["t"].to_numpy(), pair["loss"].to_numpy(float), behind=True)
                )
            mean = rows.groupby("t")["loss"].mean()
            marks.append(Line(style, mean.index.to_numpy(), mean.to_numpy(float)))
        title = {"clients": "two clients", "models": "two models"}.get(between, "client (0) and global model (1)")
        panels.append(Panel(title, "t", "loss", marks, upright=0.5))
    return Chart(panels, len(panels), panel_height=3.0, share_y=True, width=4.2 * len(panels) + 0.4)


def planes(found: Any, columns: int = 4, cap: float | None = None) -> Chart:
    """The loss near a round's clients: on all data, then on each client's own, its place marked.

    Args:
        found: `diagnostics.ClientPlanes`.
        columns: Panels in a row.
        cap: The largest loss to draw.

    Returns:
        A small plane for each data, on one scale; `+` is the global model.
    """
    scale = shared_scale([surface.loss for surface in found.surfaces.values()], cap)
    everyone = found.clients.set_index("client")
    x, y = everyone["alpha"].to_numpy(float), everyone["beta"].to_numpy(float)
    panels = []
    for name, surface in found.surfaces.items():
        marks: list[Any] = [Contour(surface.loss, scale, surface.alphas, surface.betas)]
        marks.append(Points(Look("clients", "#FFFFFF", "o", width=0.5), x, y, told=list(everyone.index)))
        centre = float(surface.loss[surface.centre])
        note = f"global model {centre:.2g}"
        if name in everyone.index:
            row = everyone.loc[name]
            place = np.array([row["alpha"]]), np.array([row["beta"]])
            marks.append(Points(Look("this client", "#D55E00", "o", width=1.6), *place, told=[name]))
            lowest = np.array([row["min_alpha"]]), np.array([row["min_beta"]])
            words = "lowest on the grid"
            marks.append(Points(Look(words, "#FFFFFF", "X", width=1.4), *lowest, told=[words]))
            note += f", own {row['own_loss']:.2g}"
        marks.append(Points(Look("global model", "#222222", "+", width=1.6), np.zeros(1), np.zeros(1)))
        panels.append(Panel(name, "1st direction", "2nd direction", marks, note=note, square=True))
    columns = min(columns, len(panels))
    legend = [
        Look("clients", FAINT, "o", width=0.5), Look("this client", "#D55E00", "o", width=1.6),
        Look("lowest on the grid", FAINT, "X", width=1.4), Look("global model", "#222222", "+", width=1.6),
    ]  # fmt: skip
    return Chart(panels, columns, panel_height=2.9, legend=legend, width=2.4 * columns + 1.0)

"""Charts of measured sharpness: forest plots of ratios with intervals, radial profiles; and the words for them."""

import html as markup
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.statistics import NO_INTERVAL, said
from figures.charts.captions import of_logits
from figures.charts.describe import Chart, Line, Panel, Points
from figures.charts.lines import plot_profiles
from figures.charts.style import look, paler

# What people read for a measure, and for its step size.
NAMES = {
    "gradient_norm": ("‖g‖", ""),
    "kappa_fn": ("κ_FN", "h"),
    "r_tau": ("flatness radius r_τ (larger: flatter)", "τ"),
    "average_adaptive": ("average adaptive", "ρ"),
    "sam": ("SAM", "ρ"),
    "asam": ("ASAM", "ρ"),
    "asam_filter": ("ASAM by filter", "ρ"),
    "kappa_fn_trace": ("κ_FN = tr SHS (Hutch++)", ""),
    "lambda_fn": ("λ_FN = λ_max(SHS)", ""),
    "worst_adaptive_l2": ("worst adaptive, ℓ2", "ρ"),
    "worst_adaptive_linf": ("worst adaptive, ℓ∞", "ρ"),
    "lambda_1": ("λ_1(H)", ""),
    "lambda_ratio": ("λ_1 / λ_5", ""),
    "trace": ("tr H", ""),
    "trace_per_weight": ("tr H / n", ""),
    "keskar": ("Keskar", "ε"),
    "magnitude_sigma": ("magnitude-aware σ (larger: flatter)", "drop"),
}
ROW = 0.26  # inches
BEYOND = 10.0  # a forest's axis ends so many times beyond its ratios


def named(quantity: str) -> str:
    """`SAM, ρ = 0.05` for `sam@0.05`."""
    measure, _, level = quantity.partition("@")
    name, symbol = NAMES.get(measure, (measure, "level"))
    return f"{name}, {symbol} = {level}" if level and symbol else name


def label(measure: str, level: float) -> str:
    """The same of a table's row."""
    return named(measure if np.isnan(level) else f"{measure}@{level:g}")


def forest(found: Any) -> Chart:
    """Every measure of every model over the first model's: ratios with intervals, a row per measure.

    Args:
        found: What `diagnostics.compare_sharpness` gave, or any `Comparison`.

    Returns:
        A panel for each case; measures without a logarithm are named in the note.
    """
    gaps = found.differences
    first = found.summary["model"].iloc[0]
    gaps = gaps[gaps["first"] == first]
    panels = []
    for (match, variant), part in gaps.groupby(["match", "variant"], sort=False):
        ratios = part[part["scale"] == "ratio"]
        panels.append(_forest_panel(ratios, first, _case(str(match), str(variant)), _note(part, ratios)))
    height = 1.1 + ROW * max([len(panel.y_names) * (1 + 0.35 * len(panel.marks) / 2) for panel in panels], default=4)
    caption = "Dotted: as the first model; to the right larger. Intervals may leave the picture."
    return Chart(panels, max(len(panels), 1), caption, panel_height=height, width=2.4 + 4.2 * max(len(panels), 1))


def _case(match: str, variant: str) -> str:
    parts = [{"round": "equal rounds", "loss": "equal training loss"}.get(match, "")]
    return ", ".join(filter(None, [*parts, "" if variant == "plain" else "logits normalised"]))


def _note(part: pd.DataFrame, ratios: pd.DataFrame) -> str:
    lines = [NO_INTERVAL] if ratios["low"].isna().all() else ["dark: 95 %; pale: 95 % for all rows at once"]
    if without := sorted({named(str(one)) for one in part[part["scale"] != "ratio"]["quantity"]}):
        lines += textwrap.wrap(f"not positive, no ratio: {', '.join(without)}", 72)
    return "\n".join(lines)


def _forest_panel(ratios: pd.DataFrame, first: str, title: str, note: str) -> Panel:
    names = list(dict.fromkeys(ratios["quantity"]))
    others = list(dict.fromkeys(ratios["second"]))
    marks: list[Points] = []
    for number, other in enumerate(others):
        rows = ratios[ratios["second"] == other]
        shift = (number - (len(others) - 1) / 2) * 0.6 / max(len(others), 1)
        y = np.array([names.index(one) for one in rows["quantity"]]) + shift
        effect, low, high, widest, highest = (
            rows[key].to_numpy(float) for key in ("effect", "low", "high", "all_low", "all_high")
        )
        style = look(number, f"{other} / {first}")
        told = [f"{other}: {said(*values)}" for values in zip(effect, low, high, strict=True)]
        pale = replace(style, label="", colour=paler(style.colour, 1))
        marks.append(Points(pale, effect, y, widest, highest, sideways=True, told=told))
        marks.append(Points(style, effect, y, low, high, sideways=True, told=told))
    shown = [named(one) for one in names]
    return Panel(
        title, f"ratio to {first}", "", marks, note=note, y_names=shown, upright=1.0, x_scale="log",
        x_range=_reach(ratios), empty="no ratio",
    )  # fmt: skip


def _reach(ratios: pd.DataFrame) -> tuple[float, float] | None:
    """The ends of a forest's axis: few seeds have intervals over tens of decades, which leave the picture."""
    effects = ratios["effect"].to_numpy(float)
    effects = np.append(effects[np.isfinite(effects)], 1.0)
    drawn = ratios[["low", "high", "all_low", "all_high"]].to_numpy(float).ravel()
    drawn = np.append(drawn[np.isfinite(drawn) & (drawn > 0)], effects)
    low, high = max(drawn.min(), effects.min() / BEYOND), min(drawn.max(), effects.max() * BEYOND)
    room = (high / low) ** 0.05 if high > low else 1.5
    return float(low / room), float(high * room)


def radial(measured: Mapping[str, Any]) -> Chart:
    """Radial profiles Delta(r): the mean over directions, its 95 % interval (dark) and the band of 10 to 90 %.

    Args:
        measured: `diagnostics.Sharpness` by name, each with a profile.

    Returns:
        One panel.
    """
    frames = [
        one.profile.assign(
            match="", model=name or "Δ(r)", seeds=1, loss=one.meta["facts"]["loss"],
            split=one.meta["facts"].get("split"),
        )
        for name, one in measured.items() if len(one.profile)
    ]  # fmt: skip
    if not frames:
        return Chart([Panel("", "radius r", "loss rise Δ(r)", [], empty="no profile was measured")], 1)
    tau = next(iter(measured.values())).meta["identity"]["settings"]["tau"]
    made = plot_profiles(pd.concat(frames, ignore_index=True), tau)
    return replace(made, panels=[replace(panel, title="radial profile") for panel in made.panels])


def over_rounds(frame: pd.DataFrame, quantities: Sequence[str] = ()) -> Chart:
    """Measures over the rounds of runs, as the probe `sharpness` records them.

    Args:
        frame: Columns run, round, measure, level, value, low, high.
        quantities: Which measures; all by default.

    Returns:
        A panel for each.
    """
    wanted = list(quantities) or list(dict.fromkeys(frame["measure"]))
    panels = []
    for measure in wanted:
        part = frame[frame["measure"] == measure]
        part = part[part["level"].isna() | (part["level"] == part["level"].min())]
        marks = []
        for number, (run, rows) in enumerate(part.groupby("run", sort=False)):
            rows = rows.sort_values("round")
            x, y, low, high = (rows[key].to_numpy(float) for key in ("round", "value", "low", "high"))
            band = (None, None) if np.isnan(low).all() else (low, high)
            marks.append(Line(look(number, str(run)), x, y, *band))
        level = part["level"].iloc[0] if len(part) else np.nan
        panels.append(Panel(label(measure, level), "round", "", marks))
    return Chart(panels, min(3, max(len(panels), 1)))


# --- words ------------------------------------------------------------------------------------------------------------


def caption(found: Any) -> str:
    """The facts of measured sharpness, in sentences."""
    identity, facts = found.meta["identity"], found.meta["facts"]
    model = facts.get("source", "the model")
    if "round" in facts:
        model += f" ({facts['algorithm']} on {facts['dataset']}) after round {facts['round']}"
    whose = f" of client {facts['client']}" if "client" in facts else ""
    settings = identity["settings"]
    still = "" if identity["include"] else "; biases and normalisation layers unmoved where a measure has a scale"
    left = facts.get("left_out") or {}
    accuracy = "" if facts.get("accuracy") is None else f", accuracy {facts['accuracy']:.1%}"
    sentences = [
        f"Sharpness of {model}; {identity['loss']}, mean of {facts['images']} samples{whose}{of_what(facts)}.",
        f"At the model: L = {facts['loss']:.4g}{accuracy}, ‖g‖ = {facts['gradient_norm']:.2g}: it is no stationary "
        "point, and one-sided rises hold the gradient's part, which stands beside them. ‖g‖·‖w‖ by layer: "
        + ", ".join(f"{row.layer} {row.product:.2g}" for row in found.layers.itertuples())
        + ".",
        f"{settings['directions']} directions or draws, seed {settings['seed']}{still}. Worst cases on the first "
        f"{facts['few']} samples.",
        f"Budget {facts['budget']}: {facts['passes']:.0f} passes over the data.",
    ]
    if left:
        sentences.append(f"Left out: {'; '.join(f'{name} ({why})' for name, why in left.items())}.")
    if normalised := of_logits(found):
        sentences.append(f"{normalised[:1].upper()}{normalised[1:]}.")
    sentences.append(f"Weights {identity['weights'][:8]}, data {identity['data'][:8]}.")
    return " ".join(sentences)


def of_what(facts: Mapping[str, Any]) -> str:
    """Which part of a run's data."""
    return {"train": " of the training data", "test": " of the test data"}.get(str(facts.get("split")), "")


def html(found: Any) -> str:
    """The table, the profile and the caption, for a notebook."""
    rows = zip(found.table["measure"], found.table["level"], strict=True)
    shown = found.table.assign(measure=[label(*row) for row in rows])
    shown = shown.drop(columns="level").dropna(axis=1, how="all")
    picture = ""
    if len(found.profile):
        image = radial({"": found})._repr_mimebundle_()["image/png"]
        picture = f"<img src='data:image/png;base64,{image}' alt='radial profile'>"
    words = f"<figcaption style='max-width:60em'>{markup.escape(caption(found))}</figcaption>"
    return f"<figure>{shown.to_html(index=False, float_format='{:.3g}'.format, na_rep='')}{picture}{words}</figure>"

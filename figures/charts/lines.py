"""Pictures of losses along lines, and of the radial profiles that `diagnostics.flatness.compare` reads off them."""

import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from figures.charts.captions import title

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by all eyes
DASHES = ("-", "--", ":", "-.")


def looks() -> Any:
    """(dash, colour), one after the other without end: all colours first, then all of them dashed, and so on."""
    return itertools.cycle(itertools.product(DASHES, COLOURS))


def plot_lines(bundles: Any | Mapping[str, Any], *, cap: float | None = None, single: bool = True) -> Any:
    """Lines: the mean, the band of 10 to 90 % over directions, and each direction thinly."""
    named = bundles if isinstance(bundles, Mapping) else {"": bundles}
    figure, ax = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    plt.close(figure)
    for (dash, colour), (name, lines) in zip(looks(), named.items(), strict=False):
        losses = np.where(np.isfinite(lines.loss), lines.loss, np.nan)
        if single:
            ax.plot(lines.alphas, losses.T, color=colour, linewidth=0.5, alpha=0.35)
        if len(losses) > 1:
            ax.fill_between(lines.alphas, *np.nanquantile(losses, [0.1, 0.9], axis=0), color=colour, alpha=0.2, lw=0)
        label = f"{name}: " if name else ""
        mean = np.nanmean(losses, axis=0)
        ax.plot(lines.alphas, mean, dash, color=colour, linewidth=2, label=label + title(lines))
    ax.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
    names = next(iter(named.values())).meta["identity"]["direction_names"]
    unit = "the filters' own norms" if "filter" in names[0] else "the direction's own length"
    ax.set(xlabel=f"step along the direction (1 = {unit})", ylabel="loss")
    if cap is not None:
        ax.set_ylim(top=cap)
    ax.legend(fontsize=8, frameon=False, loc="upper center")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def plot_profiles(profiles: Any, tau: float = 0.1) -> Any:
    """Radial profiles delta(r) of `compare_models`: mean, interval (dark) and spread over directions (light)."""
    matches = list(dict.fromkeys(profiles["match"]))
    figure, axes = plt.subplots(
        1, len(matches), figsize=(0.6 + 4.2 * len(matches), 3.6), layout="constrained", squeeze=False, sharey=True
    )
    plt.close(figure)
    for ax, match in zip(axes[0], matches, strict=True):
        part = profiles[profiles["match"] == match]
        for (dash, colour), name in zip(looks(), dict.fromkeys(part["model"]), strict=False):
            rows = part[part["model"] == name]
            ax.fill_between(rows["radius"], rows["p10"], rows["p90"], color=colour, alpha=0.12, lw=0)
            ax.fill_between(rows["radius"], rows["low"], rows["high"], color=colour, alpha=0.3, lw=0)
            ax.plot(rows["radius"], rows["mean"], dash, color=colour, linewidth=2, label=name)
        ax.axhline(tau, color="0.5", linewidth=0.8, linestyle=":")
        ax.annotate(f"τ = {tau:g}", (1, tau), xytext=(0, 3), textcoords="offset points", fontsize=8, ha="right")
        ax.set_xlabel("radius r, in lengths of a direction")
        ax.set_title(_equal(match, part), fontsize=9)
        # A rise grows with r²: under the root it is a straight line, and small radii can be read too.
        ax.set_yscale("function", functions=(lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * v**2))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("loss rise Δ(r)")
    axes[0][0].legend(fontsize=8, frameon=False)
    return figure


def _equal(match: str, part: Any) -> str:
    """What is equal in a panel, and how equal the losses are."""
    models = part.drop_duplicates("model")
    loss = {"train": "training loss", "test": "test loss"}.get(models["split"].iloc[0], "loss")
    equal = {"round": "equal rounds", "loss": f"nearest {loss}"}.get(match, "")
    losses = ", ".join(f"{model} {value:.3g}" for model, value in zip(models["model"], models["loss"], strict=True))
    return "\n".join(filter(None, [equal, *textwrap.wrap(f"{loss} L(0): {losses}", 56)]))

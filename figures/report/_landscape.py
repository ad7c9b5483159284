"""Loss surfaces in three dimensions, and how flat they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.flatness import footing, recorded
from diagnostics.flatness.comparison import Comparison, all_at_once, said_of, said_of_effect
from diagnostics.flatness.recorded import largest
from diagnostics.statistics import NO_INTERVAL
from diagnostics.surfaces.results import Surface
from feddual.records.identity import Replicate
from figures.charts import surfaces as plots
from figures.charts.scale import shared_scale
from figures.report._page import Exhibit, Part, Table, part
from figures.report._story import Group, Story

PLAIN = ("round", "plain")  # the models as they are
MOST_SURFACES = 8  # a browser has no more than 16 places for 3-D
NO_SURFACE = "no loss surface; `python -m diagnostics surface {path}` computes one"
MORE_CASES = (
    "models at equal training loss, or with normalised logits; `python -m diagnostics compare RUN RUN ...` compares "
    "them so, --from surfaces --record 3 records their surfaces"
)
QUANTITY_NAMES = {"kappa": "curvature κ at the centre", "r_tau": "radius at which the loss has risen by {tau:g}"} | {
    f"rise_{radius:g}": f"loss rise at radius {radius:g}" for radius in (0.25, 0.5, 1)
}


def surfaces(story: Story) -> Part:
    """3-D surfaces side by side, one camera, one scale; below them contours of the further cases that are recorded."""
    cases = {case: _chosen(story, case) for case in recorded.ORDER}
    chosen = cases[PLAIN]
    without = [group for group in story.groups if group not in chosen]
    missing = [f"{group.label}: {NO_SURFACE.format(path=group.first.path)}" for group in without]
    for group, surface in chosen.items():
        if not surface.complete:
            known = f"{surface.computed.mean():.0%} of the points are computed"
            missing.append(f"{group.label}: {known}; the coarser grid is shown, the same command goes on")
    missing += [f"{group.label}: not drawn, a page holds {MOST_SURFACES}" for group in list(chosen)[MOST_SURFACES:]]
    missing += story.troubles
    charts = [_exhibit(case, found) for case, found in cases.items() if found]
    return part("surfaces", charts, missing)


def _chosen(story: Story, case: footing.Case) -> dict[Group, Surface]:
    """The surface of each group that is drawn."""
    found = {group: recorded.of_case(story.surfaces.get(group.key, {}), case) for group in story.groups}
    return {group: largest(planes) for group, planes in found.items() if planes}


def _exhibit(case: footing.Case, chosen: Mapping[Group, Surface]) -> Exhibit:
    """The models as they are in three dimensions; other cases as contours, of which a browser has room for any number.

    Each case has a scale of its own: losses of normalised logits are not those of the logits.
    """
    drawn = {group: surface.preview() for group, surface in list(chosen.items())[:MOST_SURFACES]}
    colours = shared_scale([surface.loss for surface in drawn.values()])
    panels, parts = [], []
    for group, surface in drawn.items():
        draw = plots.deep if case == PLAIN else plots.flat
        panels.append(draw(footing.named(group.label, (case[0], "plain")), surface, colours))  # its note says the rest
        alpha, beta = np.meshgrid(surface.alphas, surface.betas)
        columns = {"alpha": alpha, "beta": beta, "loss": surface.loss, "sem": surface.sem, "accuracy": surface.accuracy}
        parts.append(pd.DataFrame({"run": group.label} | {name: value.ravel() for name, value in columns.items()}))
    name, frame = "loss-surfaces" + footing.suffix(case).replace("_", "-"), pd.concat(parts, ignore_index=True)
    if case != PLAIN:
        return Exhibit(name, panels, frame, width=300, height=360)
    (where, labels), (low, high) = colours.ticks(), colours.ends
    places = (100 * (where - low) / (high - low)).round(2).tolist()
    legend = {"title": "loss", "ticks": list(zip(places, labels, strict=True))}
    return Exhibit(name, panels, frame, width=300, height=360, linked=True, legend=legend)


def flatness(story: Story) -> Part:
    """The numbers of the surfaces, with intervals."""
    made = compared(story)
    if made is None:
        return part("flatness", missing=["No complete loss surfaces to compare."])
    table = made.against_first
    first, seeds, directions = table["model"].iloc[0], int(table["seeds"].max()), int(table["directions"].max())
    rows = []
    for quantity, name in QUANTITY_NAMES.items():
        for row in table[table["quantity"] == quantity].to_dict("records"):
            sign = "× " if row["effect_scale"] == "ratio" else "+ "
            gap = [sign + said_of_effect(row), all_at_once(row)] if row["model"] != first else ["–", "–"]
            case = footing.words((row["match"], row["variant"]))
            what = ", ".join(filter(None, [name.format(**made.settings), case]))
            rows.append([what, row["model"], said_of(row), *gap])
    planes = made.settings.get("planes")
    what = f"pairs of directions ({', '.join(planes)})" if planes else "directions"
    caption = f"{seeds} training seed{'s'[: seeds > 1]} × {directions} {what}."
    if seeds == 1:
        caption += f" {NO_INTERVAL.capitalize()}."
    if seeds * directions == 1:
        caption = f"One surface per model ({NO_INTERVAL}); `--direction 1`, `2`, ... gives more pairs."
    caption = " ".join([caption, *made.about])
    shown = set(table["model"])
    missing = [f"{group.label}: no comparable surface" for group in story.groups if group.label not in shown]
    if len(table[["match", "variant"]].drop_duplicates()) < len(recorded.ORDER):
        missing.append(MORE_CASES)
    columns = ["quantity", "run", "mean [95 %]", f"to {first} [95 %]", f"all {table['comparisons'].max():.0f} at once"]
    return part("flatness", [Table("flatness", caption, columns, rows, table)], missing)


def compared(story: Story) -> Comparison | None:
    """The comparison in the folder's `comparison/`, else one of the recorded surfaces; None when there are none.

    One of surfaces that are no longer those around the final models does not count.
    """
    folder = story.root / recorded.FOLDER
    kept = Comparison.load(folder)
    if kept is not None and kept.identity.get("from") != "surfaces":
        labels = {run.path.name: group.label for group in story.groups for run in group.runs}
        runs = kept.settings.get("runs", {})
        names = dict.fromkeys(kept.summary["model"])
        return kept.renamed([labels.get(runs.get(name, [name])[0], name) for name in names])
    found: dict[str, dict[Replicate, dict[str, Any]]] = {}
    for group in story.groups:
        for run in group.runs:
            several = story.surfaces.get(group.key, {}).get(run.replicate, {})
            last = {name: one for name, one in several.items() if recorded.counts(one, run.summary["rounds"])}
            if last:
                found.setdefault(group.label, {})[run.replicate] = last
    tau = {} if kept is None else {"tau": kept.identity["tau"]}
    return recorded.compare_surfaces(found, stored=folder, **tau)

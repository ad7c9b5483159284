"""Surfaces of recorded runs, two groups of runs side by side, and how flat they are.

The surface with the most points is drawn, those of one step and one set of images are measured: `diagnostics.flatness`
says which can be compared and what the numbers are. Models at equal training loss and with normalised logits stand
beside them where they are recorded (`python -m diagnostics compare --from surfaces --record`). The numbers are read
from `comparison/<figure>/` beside the runs when it is of these surfaces.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from diagnostics.flatness import footing, recorded
from diagnostics.flatness.comparison import AGAINST, FILE, Comparison, all_at_once, said_of, said_of_effect
from diagnostics.statistics import NO_INTERVAL
from diagnostics.surfaces.results import Surface
from feddual.records.identity import Replicate
from figures._results import NOT_RUN, Drawing, Results, repetitions_text, seeds_text
from figures.charts import save, tables
from figures.charts import surfaces as plots

QUANTITIES = ("loss", "accuracy", "kappa", "r_tau", "rise_0.25", "rise_0.5", "rise_1")
Row = tuple[str, str, str]  # a study's name, an experiment and a row of it


def draw(
    name: str, title: str, settings: Mapping[str, Mapping[str, Row]], runs: Results, out: Path, dataset: str
) -> Drawing:
    """Pictures and one table of pairs of groups.

    Args:
        name: Of the files.
        title: Of the table.
        settings: By setting, the rows of two groups by label; the first is what the second is compared with.
        runs: Where to look.
        out: Where the files go.
        dataset: For the frame.
    """
    files: list[Path] = []
    frames, sections, captions = [], [], []
    for number, (setting, groups) in enumerate(settings.items()):
        found = _found(groups, runs)
        suffix = _suffix(number)
        made = recorded.compare_surfaces(found, stored=runs.root / recorded.FOLDER / f"{name}{suffix}")
        if made is None:
            blank = {"setting": setting, "dataset": dataset, "quantity": NOT_RUN}
            frames.append(pd.DataFrame([{**blank, "group": label} for label in groups]))
            sections.append(tables.Block(setting, ["quantity", *groups, "compared"], [[NOT_RUN] * (len(groups) + 2)]))
            continue
        cases, _ = recorded.on_one_footing(recorded.comparable(found))
        for case, groups_of_case in cases.items():
            drawn = made.planes[case]
            files += _pictures(f"{name}{suffix}{footing.suffix(case)}", drawn, groups_of_case, out, footing.words(case))
            what = footing.named(setting, case)
            captions += [f"Drawn, {label} ({what}): {surface.caption()}" for label, surface in drawn.items()]
        captions += [f"{setting}: {sentence}" for sentence in made.about]
        table = _table(made)
        frames.append(table.assign(setting=setting, dataset=dataset))
        sections.append(_section(setting, table, made.settings))
    frame = pd.concat(frames, ignore_index=True)
    files += tables.write(f"{name}_table", title, sections, [*NOTES, *captions], frame, out)
    return Drawing(files, frame)


def measure(name: str, settings: Mapping[str, Mapping[str, Row]], runs: Results) -> list[Path]:
    """Compare once, into files beside the runs; arguments as for `draw`."""
    files = []
    for number, groups in enumerate(settings.values()):
        folder = runs.root / recorded.FOLDER / f"{name}{_suffix(number)}"
        if made := recorded.compare_surfaces(_found(groups, runs)):
            made.write(folder, csv=False)
            files.append(folder / FILE)
    return files


def _suffix(number: int) -> str:
    return "" if number == 0 else f"_{number + 1}"


NOTES = (
    "Mean over runs and pairs of directions (loss and accuracy: over runs, of the largest sample), its 95 % interval "
    "over draws of the clients, training seeds and directions (Student's t, crossed random effects). Accuracy: mean "
    "and paired difference; all others: geometric mean and paired ratio. The last column is wide enough for all "
    "comparisons of the table to hold at once (Bonferroni). > or <: a bound, since a radius was never reached within "
    "the plane. Directions are filter-normalised: radius 1 moves every filter by its own norm. A smaller number is a "
    "flatter model, not a better one.",
)


def _found(groups: Mapping[str, Row], runs: Results) -> dict[str, dict[Replicate, dict[str, Surface]]]:
    """The surfaces around the last models of each group's runs, by draw and seed."""
    found: dict[str, dict[Replicate, dict[str, Surface]]] = {}
    for label, (study, source, row) in groups.items():
        several = runs.of_study(study, lambda run: bool(run.record.surfaces()))[source, row]
        surfaces = {run.replicate: recorded.surfaces_of(run.record, run.summary["rounds"]) for run in several}
        found[label] = {which: here for which, here in surfaces.items() if here}
    return found


def _pictures(
    name: str, drawn: Mapping[str, Surface], found: Mapping[str, recorded.Planes], out: Path, words: str
) -> list[Path]:
    """Contours, 3-D, and the difference over all pairs of the table; of cases with words to them, the first alone."""
    first, second = ([list(planes.values()) for planes in group.values()] for group in found.values())
    one, two = found
    if words:
        return save(replace(plots.panels(drawn), caption=words), f"{name}_contours", out, ("png",))
    charts = {
        "contours": plots.panels(drawn), "3d": plots.panels3d(drawn),
        "difference": plots.difference(first, second, (one, two), list(found[one])),
    }  # fmt: skip
    files: list[Path] = []
    for kind, chart in charts.items():
        formats = ("png", "pdf", "html") if kind == "3d" else ("png", "pdf")
        files += save(chart, f"{name}_{kind}", out, formats)
    return files


def _table(made: Comparison) -> pd.DataFrame:
    """The quantities of the table, in its order and under its names."""
    table = made.against_first.rename(columns={"model": "group", "directions": "pairs"})
    keys = ["match", "variant", "group", "quantity"]
    columns = ["quantity", "group", "scale", "mean", "low", "high", "censored", *AGAINST.values(), "seeds", "pairs"]
    places = table[keys[:3]].drop_duplicates().itertuples(index=False)
    rows = table.set_index(keys).loc[[(*place, name) for place in places for name in QUANTITIES]].reset_index()
    return rows[[*columns, "match", "variant"]]


def _section(setting: str, table: pd.DataFrame, settings: Mapping[str, Any]) -> tables.Block:
    """Of each quantity a row for each case, one below the other."""
    labels = list(dict.fromkeys(table["group"]))
    rows = []
    for quantity in QUANTITIES:
        here = table[table["quantity"] == quantity]
        for (match, variant), part in here.groupby(["match", "variant"], sort=False):
            by_group = {row["group"]: row for row in part.to_dict("records")}
            effect = by_group[labels[-1]]
            cells = [said_of(by_group[label]) for label in labels]
            what = footing.named(quantity, (str(match), str(variant)))
            rows.append([what, *cells, effect["effect_scale"], said_of_effect(effect), all_at_once(effect)])
    seeds, pairs = int(table["seeds"].max()), int(table["pairs"].max())
    known = settings.get("repetitions")
    repeated = repetitions_text(Replicate(*one) for one in known) if known else seeds_text(seeds)
    size = f"{repeated} × {pairs} pairs" + (f"; {NO_INTERVAL}" if seeds == 1 else "")
    among = f"all {table['comparisons'].max():.0f} at once"
    return tables.Block(f"{setting} ({size})", ["quantity", *labels, "compared by", "compared", among], rows)

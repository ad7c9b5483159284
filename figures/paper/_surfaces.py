"""Surfaces of recorded runs, two groups of runs side by side, and how flat they are.

The surface with the most points is drawn, all of them are measured: `diagnostics.flatness` says which can be compared
and what the numbers are. They are read from `comparison/<figure>/` beside the runs when it is of these surfaces.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from diagnostics.flatness import recorded
from diagnostics.flatness.comparison import AGAINST, FILE, Comparison, all_at_once, said_of, said_of_effect
from diagnostics.statistics import NO_INTERVAL
from diagnostics.surfaces.results import Surface
from feddual.records.identity import Replicate
from figures._results import NOT_RUN, Drawing, Results, seeds_text
from figures.charts import save, tables
from figures.charts import surfaces as plots

QUANTITIES = ("loss", "accuracy", "kappa", "r_tau", "rise_0.25", "rise_0.5", "rise_1")
Chosen = Callable[[Mapping[str, Any]], bool]  # whether a run's config belongs to a group


def run_of(algorithm: str, model: str, iid: bool = False) -> Chosen:
    """Runs of an algorithm, as its paper has it, and a model on Fashion-MNIST: the paper's clients, or even ones."""

    def chosen(config: Mapping[str, Any]) -> bool:
        partition, asked = config["partition"], config["algorithm"]
        found = (config["dataset"].get("name"), config["model"]["name"], asked["name"], asked["preset"] or "paper")
        divided = partition["name"] == "iid" if iid else partition.get("alpha") == 0.01
        return bool(divided) and found == ("fmnist", model, algorithm, "paper")

    return chosen


def draw(
    name: str, title: str, settings: Mapping[str, Mapping[str, Chosen]], runs: Results, out: Path, dataset: str
) -> Drawing:
    """Pictures and one table of pairs of groups.

    Args:
        name: Of the files.
        title: Of the table.
        settings: By setting, two groups by label; the first is what the second is compared with.
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
        files += _pictures(f"{name}{suffix}", made, recorded.comparable(found), out)
        captions += [f"Drawn, {label} ({setting}): {surface.caption()}" for label, surface in made.surfaces.items()]
        table = _table(made)
        frames.append(table.assign(setting=setting, dataset=dataset))
        sections.append(_section(setting, table))
    frame = pd.concat(frames, ignore_index=True)
    files += tables.write(f"{name}_table", title, sections, [*NOTES, *captions], frame, out)
    return Drawing(files, frame)


def measure(name: str, settings: Mapping[str, Mapping[str, Chosen]], runs: Results) -> list[Path]:
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
    "Mean over training seeds and pairs of directions (loss and accuracy: over seeds, of the largest sample), its 95 % "
    "interval over both (Student's t, random effects of seeds crossed with directions). Accuracy: mean and paired "
    "difference; all others: geometric mean and paired ratio. The last column is wide enough for all comparisons of "
    "the table to hold at once (Bonferroni). > or <: a bound, since a radius was never reached within the plane. "
    "Directions are filter-normalised: radius 1 moves every filter by its own norm. A smaller number is a flatter "
    "model, not a better one.",
)


def _found(groups: Mapping[str, Chosen], runs: Results) -> dict[str, dict[Replicate, dict[str, Surface]]]:
    """The surfaces around the last models of each group's runs, by draw and seed."""
    found: dict[str, dict[Replicate, dict[str, Surface]]] = {label: {} for label in groups}
    for label, chosen in groups.items():
        for run in runs.runs:
            if chosen(run.config):
                surfaces = recorded.surfaces_of(run.record, run.summary["rounds"])
                found[label] |= {run.replicate: surfaces} if surfaces else {}
    return found


def _pictures(name: str, made: Comparison, found: Mapping[str, recorded.Planes], out: Path) -> list[Path]:
    drawn = made.surfaces
    files = save(plots.panels(drawn), f"{name}_contours", out, ("png", "pdf"))
    files += save(plots.panels3d(drawn), f"{name}_3d", out)
    every = [one for group in found.values() for planes in group.values() for one in planes.values()]
    shape = min(surface.loss.shape for surface in every)
    left, right = (
        [[one for one in planes.values() if one.loss.shape == shape] for planes in group.values()]
        for group in found.values()
    )
    one, two = found
    return files + save(plots.difference(left, right, (one, two)), f"{name}_difference", out, ("png", "pdf"))


def _table(made: Comparison) -> pd.DataFrame:
    """The quantities of the table, in its order and under its names."""
    table = made.against_first.rename(columns={"model": "group", "directions": "pairs"})
    columns = ["quantity", "group", "scale", "mean", "low", "high", "censored", *AGAINST.values(), "seeds", "pairs"]
    last = table.drop_duplicates(["group", "quantity"], keep="last").set_index(["group", "quantity"])
    rows = last.loc[[(group, name) for group in dict.fromkeys(table["group"]) for name in QUANTITIES]].reset_index()
    return rows[columns]


def _section(setting: str, table: pd.DataFrame) -> tables.Block:
    labels = list(dict.fromkeys(table["group"]))
    rows = []
    for quantity, part in table.groupby("quantity", sort=False):
        by_group = {row["group"]: row for row in part.to_dict("records")}
        effect = by_group[labels[-1]]
        cells = [said_of(by_group[label]) for label in labels]
        rows.append([str(quantity), *cells, effect["effect_scale"], said_of_effect(effect), all_at_once(effect)])
    seeds, pairs = int(table["seeds"].max()), int(table["pairs"].max())
    size = f"{seeds_text(seeds)} × {pairs} pairs" + (f"; {NO_INTERVAL}" if seeds == 1 else "")
    among = f"all {table['comparisons'].max():.0f} at once"
    return tables.Block(f"{setting} ({size})", ["quantity", *labels, "compared by", "compared", among], rows)

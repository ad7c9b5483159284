"""How sharp models are, by every measure that was recorded: ratios with intervals, profiles, and the numbers.

Compared are experiments whose sharpness was measured in the same way on the same examples
(`python -m diagnostics sharpness RUN RUN ...`).
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from diagnostics.flatness.comparison import Comparison, all_at_once, said_of, said_of_effect
from diagnostics.flatness.sharpness_comparison import SAME, of_cases
from diagnostics.flatness.sharpness_result import Sharpness
from diagnostics.statistics import NO_INTERVAL
from feddual.records.identity import Replicate
from figures._results import NOT_RUN, Drawing, Results, baseline_first
from figures._rows import DATASETS
from figures.charts import LOOKS, Chart, Panel, save, tables
from figures.charts.flatness import forest, named
from figures.charts.lines import plot_profiles

TITLE = "Sharpness of recorded models: means and ratios to the first"
NOTES = (
    "95 % intervals over training seeds and draws; the last column holds for all rows of a block at once. One-sided "
    "rises (SAM, ASAM, worst cases, Keskar) hold the gradient's part, since a federated model is no stationary point: "
    "the norm of the gradient stands with them. Larger is flatter for r_τ and σ, sharper for everything else.",
    "Rescaling layers of a ReLU network leaves its function alone and moves ‖g‖, SAM, Keskar, λ_1 and tr H at will "
    "(Dinh et al., 2017); measures on the scale of the filters stay. Confident models look flat: compare at equal "
    "training loss, or with normalised logits. Sharpness follows the learning rate more than generalisation "
    "(Andriushchenko et al., 2023).",
)
Group = dict[str, dict[Replicate, Sharpness]]  # by experiment


def draw(runs: Results, out: Path) -> Drawing:
    """Write flatness_ratios and flatness_profiles as pictures and pages, flatness.md, .tex and .csv."""
    found = {title: made for title, group in _groups(runs).items() if (made := _compared(group)) is not None}
    forests = [_titled(title, panel) for title, one in found.items() for panel in forest(one).panels]
    profiles = [
        _titled(title, panel)
        for title, one in found.items()
        if len(one.profiles)
        for panel in plot_profiles(one.profiles, one.settings["tau"]).panels
    ]
    rows = max([len(panel.y_names) for panel in forests], default=6)
    files = save(_chart(forests, 1.2 + 0.3 * rows, "ratio"), "flatness_ratios", out)
    files += save(_chart(profiles, 3.6, "radius r"), "flatness_profiles", out)
    shown = {title.partition(",")[0] for title in found}
    parts = [one.against_first.assign(dataset=_dataset(title), of=title) for title, one in found.items()]
    missing = [name for name, label in DATASETS.items() if label not in shown]
    frame = pd.concat([*parts, *([_blank(missing)] if missing else [])], ignore_index=True)
    blocks = [_block(title, one) for title, one in found.items()] or [_empty()]
    return Drawing(files + tables.write("flatness", TITLE, blocks, NOTES, frame, out), frame)


def _chart(panels: list[Panel], height: float, empty: str) -> Chart:
    shown = panels or [Panel("", empty, "", [], empty=NOT_RUN)]
    columns = min(2, len(shown))
    return Chart(shown, columns, panel_height=height, width=1.8 + 4.6 * columns)


def _titled(title: str, panel: Panel) -> Panel:
    return replace(panel, note="\n".join(filter(None, [title, panel.note])))


def _groups(runs: Results) -> dict[str, Group]:
    """What was measured alike, by data set, model and the measurement's name."""
    found: dict[tuple[str, str], Group] = {}  # experiments by identity
    labels: dict[str, str] = {}
    for run in baseline_first(runs.runs):
        for path in run.record.sharpness():
            one = Sharpness.load(path)
            rows = one.meta["facts"].get("rows") or one.meta["identity"]["data"]
            key = json.dumps([rows, *(one.meta["identity"][key] for key in SAME if key != "data"), path.name])
            title = f"{DATASETS.get(run.dataset, run.dataset)}, {run.config['model']['name']}, {path.name}"
            labels[run.identity.text] = _label(run.config)
            found.setdefault((title, key), {}).setdefault(run.identity.text, {})[run.replicate] = one
    many = [title for title, _ in found]
    return {
        title if many.count(title) == 1 else f"{title} ({number})": _named(group, labels)
        for number, ((title, _), group) in enumerate(found.items(), 1)
    }


def _named(group: Group, labels: Mapping[str, str]) -> Group:
    """By label instead of identity; experiments of one label are numbered."""
    made: Group = {}
    for identity, of_one in group.items():
        name = labels[identity]
        taken = [one for one in made if one.partition(" #")[0] == name]
        made[f"{name} #{len(taken) + 1}" if taken else name] = of_one
    return made


def _compared(group: Group) -> Comparison | None:
    """Of the repetitions that all experiments have; None where fewer than two share any."""
    if len(group) < 2:
        return None
    shared = sorted(set.intersection(*map(set, group.values())))
    if not shared:
        return None
    measured = {
        ("round", "plain", label, place): of_one[which]
        for label, of_one in group.items()
        for place, which in enumerate(shared)
    }
    return of_cases(measured, {"repetitions": [list(which) for which in shared]})


def _label(config: Mapping[str, Any]) -> str:
    algorithm, preset = config["algorithm"]["name"], config["algorithm"].get("preset")
    look = LOOKS.get(f"{algorithm}-{preset}") or LOOKS.get(algorithm)
    partition = config["partition"]
    alpha = f", α = {partition['alpha']:g}" if partition.get("alpha") is not None else ""
    return f"{look.label if look else algorithm}, {partition['name']}{alpha}"


COLUMNS = ("measure", "model", "mean [95 %]", "to the first [95 %]", "all at once", "runs")


def _block(title: str, found: Comparison) -> tables.Block:
    table = found.against_first
    first, lines = table["model"].iloc[0], []
    for row in table.to_dict("records"):
        sign = "× " if row["effect_scale"] == "ratio" else "+ "
        gap = [sign + said_of_effect(row), all_at_once(row)] if row["model"] != first else ["", ""]
        lines.append([named(str(row["quantity"])), str(row["model"]), said_of(row), *gap, str(row["seeds"])])
    single = f" ({NO_INTERVAL})" if int(table["seeds"].iloc[0]) == 1 else ""
    return tables.Block(title + single, COLUMNS, lines)


def _empty() -> tables.Block:
    return tables.Block("", COLUMNS, [[NOT_RUN] + ["–"] * (len(COLUMNS) - 1)])


def _dataset(title: str) -> str:
    label = title.partition(",")[0]
    return next((name for name, known in DATASETS.items() if known == label), label)


def _blank(names: list[str]) -> pd.DataFrame:
    columns = "dataset of match variant quantity scale mean low high censored model loss seeds directions".split()
    return pd.DataFrame({"dataset": names, "of": NOT_RUN}).reindex(columns=columns)

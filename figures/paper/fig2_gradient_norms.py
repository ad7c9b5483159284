"""Fig. 2: per-layer gradient norms of FedAvg on IID and non-IID clients, under every definition.

(a) LeNet on Fashion-MNIST, (b) the trained head of the frozen VGG16 on CIFAR-10, which has two layers only, and (c) a
small VGG on CIFAR-10 with all layers trained. The paper does not say which gradient it shows, so the ratio non-IID /
IID is also drawn for each definition, with 95 % intervals over seeds.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from diagnostics import gradients
from diagnostics.gradients.probe import RANDOM, GradientNormProbe
from diagnostics.statistics import NO_INTERVAL, said
from feddual.records.identity import Replicate
from feddual.records.results import Recorded
from feddual.records.slim import open_probe
from figures._results import Drawing, Results, repetitions_text
from figures.charts import Chart, save, tables
from figures.charts import gradients as plots


class Subfigure(NamedTuple):
    """A network on its data: how it is called, and where its runs are asked for."""

    name: str  # of the files
    title: str
    dataset: str
    model: str
    experiment: str
    studies: tuple[str, ...]


SETTINGS = (
    Subfigure(
        "a_lenet", "LeNet, Fashion-MNIST", "fmnist", "lenet_published",
        "paper-fmnist", ("motivation", "motivation-alpha"),
    ),
    Subfigure("b_vgg16_head", "VGG16 head, CIFAR-10", "cifar10", "vgg16", "paper-cifar10", ("motivation",)),
    Subfigure("c_vgg_small", "small VGG, CIFAR-10", "cifar10", "vgg_small", "cifar10", ("motivation-vgg",)),
)  # fmt: skip
SHOWS = ("fmnist", "cifar10")
COMPARED = tuple(one.letter for one in gradients.DEFINITIONS.values())
SHOWN = ("A", "B", "D", "D+", "F", "G", "H", "J")  # norms, side by side
# Of some pictures there is no PDF, of one no page.
FORMATS = {"minibatch": ("png",), "dissimilarity": ("png", "html"), "clients": ("png", "html")}
SKEWED = "α = 0.01"
Groups = dict[str, dict[Replicate, pd.DataFrame]]  # by partition
OVERHEAD = Path(__file__).parents[2] / "benchmarks" / "results" / "probe_overhead.json"


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig2_*.png, .pdf and .html, and fig2_ratios as a table."""
    files: list[Path] = []
    parts = []
    for setting in SETTINGS:
        name, title = setting.name, setting.title
        groups = _groups(_runs(runs, setting))
        base, other = _pairs(groups)
        if not base:
            continue
        repeated = repetitions_text(sorted(set(groups["IID"]) & set(groups[SKEWED])))
        both = {"IID": base, f"non-IID ({SKEWED})": other}
        every = _ratios(runs, setting, groups)
        by_label = {str(label): part for label, part in every[every["normalisation"] == "rms"].groupby("against")}
        ratios, profile = by_label[SKEWED], {label: by_label[label] for label in sorted(by_label)}
        facts = {**_facts(setting), "trained": _trained(base, other), "repeated": repeated}
        order = [*gradients.COLUMNS, "normalisation"]
        parts.append(every[every["against"] == SKEWED][order].assign(**facts))
        chosen = [gradients.definition(item).name for item in SHOWN]
        pictures: dict[str, Chart] = {
            "lines": plots.lines(both, "A", title=f"{title}: gradient of each client at the global model"),
            "minibatch": plots.lines(both, "H", title=f"{title}: gradient of the training steps"),
            "ratio_heatmap": plots.ratio_heatmap(base, other, "A", title=title),
            "dissimilarity": plots.level_heatmaps(both, title=title),
            "clients": plots.client_strips(both, "A"),
            "definitions": plots.sensitivity(ratios[ratios["definition"].isin(chosen)], title=title),
        }
        heading = f"{title}: A, client at global"
        if len(profile) > 1:
            pictures["depth_profile"] = plots.depth_profile(profile, "A", heading)
        for what, picture in pictures.items():
            files += save(picture, f"fig2{name}_{what}", out, FORMATS.get(what, ("png", "pdf", "html")))
    if parts and OVERHEAD.is_file():
        percent = json.loads(OVERHEAD.read_text(encoding="utf-8"))["percent"]
        files += save(plots.overhead(percent, "What measuring costs"), "fig2_overhead", out)
    blank = [_facts(setting) | {"definition": "not run"} for setting in SETTINGS]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(blank)
    files += tables.write("fig2_ratios", "Gradient norms, non-IID / IID", _sections(frame), _notes(runs), frame, out)
    return Drawing(files, frame)


def measure(runs: Results) -> list[Path]:
    """Compute the ratios once, into files beside the runs."""
    found = {setting: _groups(_runs(runs, setting)) for setting in SETTINGS}
    return [_file(runs, one) for one, groups in found.items() if len(_ratios(runs, one, groups, write=True))]


def _facts(setting: Subfigure) -> dict[str, str]:
    return {"setting": setting.title, "model": setting.model, "dataset": setting.dataset}


def _file(runs: Results, setting: Subfigure) -> Path:
    return runs.root / "comparison" / f"fig2{setting.name}.json"


def _ratios(runs: Results, setting: Subfigure, groups: Groups, write: bool = False) -> pd.DataFrame:
    """The strongest skew under every definition; the milder ones, for the profile over depth, under one."""
    milder = {(label, "rms"): ["A"] for label in sorted(groups) if label not in ("IID", SKEWED)}
    asked = {(SKEWED, "rms"): COMPARED, (SKEWED, "raw"): COMPARED} | milder
    return gradients.ratio_tables(groups, "IID", asked, _file(runs, setting), write)


NOTE = (
    "Geometric mean over measured rounds and runs of the ratio non-IID / IID (norms over √size), and its 95 % "
    "interval (Student's t over seeds, crossed with draws of the clients where there are several, of each run the mean "
    "over its rounds; one run has none). * excludes 1 also when "
    "the interval is widened to hold for all layers of the line at once (Bonferroni). Letters as in "
    "docs/diagnostics.md."
)
IN_ORDER = (
    "A' and N were measured with halves in the order of the clients' examples, which is by class in the non-IID runs: "
    "there A' is too small and N too large. Runs of today draw the halves at random."
)


def _notes(runs: Results) -> list[str]:
    def is_random(run: Recorded) -> bool:
        probe = open_probe(run.record.probe_path(GradientNormProbe.name))
        return bool((probe.read_json("facts.json") or {}).get("halves") == RANDOM)

    before = [one.title for one in SETTINGS if not all(map(is_random, _runs(runs, one)))]
    return [NOTE, f"{', '.join(before)}: {IN_ORDER}"] if before else [NOTE]


def _runs(runs: Results, setting: Subfigure) -> list[Recorded]:
    """FedAvg's runs that recorded gradient norms."""
    found = [
        runs.of_study(study, lambda run: run.record.has_probe(GradientNormProbe.name)) for study in setting.studies
    ]
    rows = [several for one in found for (source, _), several in one.items() if source == setting.experiment]
    return [run for several in rows for run in several if run.config["algorithm"]["name"] == "fedavg"]


def _groups(probed: Sequence[Recorded]) -> Groups:
    """Frames by partition and repetition."""
    found: Groups = {}
    for run in probed:
        folder = run.record.probe_path(GradientNormProbe.name)
        found.setdefault(_label(run), {})[run.replicate] = GradientNormProbe.read(folder)
    return found


def _label(run: Recorded) -> str:
    partition = run.config["partition"]
    return "IID" if partition["name"] == "iid" else f"α = {partition['alpha']:g}"


def _pairs(groups: Groups) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    base, other = groups.get("IID", {}), groups.get(SKEWED, {})
    seeds = sorted(set(base) & set(other))
    return [base[seed] for seed in seeds], [other[seed] for seed in seeds]


def _trained(base: Sequence[pd.DataFrame], other: Sequence[pd.DataFrame]) -> str:
    """The rounds of training that both runs of a pair have; a range when pairs differ."""
    rounds = [min(int(a["round"].max()), int(b["round"].max())) for a, b in zip(base, other, strict=True)]
    return f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"


def _sections(frame: pd.DataFrame) -> list[tables.Block]:
    if "ratio" not in frame:
        return [tables.Block("", ["setting", "ratio"], [[setting.title, "not run"] for setting in SETTINGS])]
    sections = []
    for title, rows in frame[frame["normalisation"] == "rms"].groupby("setting", sort=False):
        layers = list(dict.fromkeys(rows["layer"]))
        lines: list[Sequence[str]] = []
        for name, part in rows.groupby("definition", sort=False):
            by_layer = part.set_index("layer")
            cells = [_cell(by_layer.loc[layer]) if layer in by_layer.index else "–" for layer in layers]
            lines.append([f"{gradients.definition(str(name)).letter} {str(name).replace('_', ' ')}", *cells])
        runs = int(rows["runs"].max())
        among = f"{rows['comparisons'].max():.0f} layers compared at once" if runs > 1 else NO_INTERVAL
        heading = f"{title} ({rows['repeated'].iloc[0]}; {_measured(rows)}; {among})"
        sections.append(tables.Block(heading, ["definition", *layers], lines))
    return sections


def _measured(rows: pd.DataFrame) -> str:
    """How many rounds the ratios are of: most of them, and the definitions that have others."""
    letters: dict[int, list[str]] = {}
    for name, part in rows.groupby("definition", sort=False):
        letters.setdefault(int(part["rounds"].max()), []).append(gradients.definition(str(name)).letter)
    most = max(letters, key=lambda count: len(letters[count]))
    others = "".join(f", {' and '.join(of)} in {count}" for count, of in letters.items() if count != most)
    return f"measured in {most} of {rows['trained'].iloc[0]} rounds{others}"


def _cell(row: Any) -> str:
    sure = row["all_low"] > 1 or row["all_high"] < 1
    return said(row["ratio"], row["low"], row["high"], ".2f") + (" *" if sure else "")

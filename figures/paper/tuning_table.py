"""Trials on held-out training data: how many each algorithm had, the best of each, and FedDUAL's one setting for all.

FedDUAL's candidates are ranked by their gain over FedAvg at 1e-3, averaged over the data sets on which they were all
tried: the preset `tuned` is the first. The other algorithms may take another setting on each data set.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from feddual.records.results import Trial
from figures._results import NOT_RUN, Drawing, Results, signed
from figures._rows import ALGORITHMS, DATASETS
from figures.charts import LOOKS, tables

TITLE = "Trials on held-out training data: accuracy (%)"
NOTES = (
    "One seed, a tenth of the training data held out before the clients are drawn, mean over the last 10 % of a "
    "trial's rounds; the test data stay unopened. Settings are those that differ from the paper's experiment.",
    "Settings far behind after a fifth of the rounds stop there; they count as trials.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write tuning_table.md, .tex and .csv."""
    frame = pd.DataFrame(
        [
            {
                "dataset": trial.dataset, "row": trial.algorithm, "settings": text(trial.settings),
                "rounds": trial.rounds, "accuracy": 100 * trial.accuracy, "gain": _gain(trial, runs.trials),
            }
            for trial in runs.trials
        ],
        columns=["dataset", "row", "settings", "rounds", "accuracy", "gain"],
    ).drop_duplicates(["dataset", "row", "settings", "rounds"], ignore_index=True)  # fmt: skip
    missing = [{"dataset": name, "row": NOT_RUN} for name in DATASETS if name not in set(frame["dataset"])]
    frame = pd.concat([frame, pd.DataFrame(missing)], ignore_index=True) if missing else frame
    frame["joint_gain"] = frame["settings"].map(joint_gains(runs.trials)).where(frame["row"] == "feddual")
    feddual = frame[frame["row"] == "feddual"].sort_values("joint_gain", ascending=False, kind="stable")
    ranked, others = feddual[feddual["joint_gain"].notna()], feddual[feddual["joint_gain"].isna()]
    leaders = {place: tuned.follows for place, tuned in runs.tuned.items() if tuned.follows}
    sections = [
        _best(frame, _common(ranked["settings"].to_list()), leaders),
        _candidates("FedDUAL's candidates", ranked),
        *([_candidates("Further settings of FedDUAL, not tried on all data sets", others)] if len(others) else []),
    ]
    return Drawing(tables.write("tuning_table", TITLE, sections, NOTES, frame, out), frame)


def joint_gains(trials: Sequence[Trial]) -> dict[str, float]:
    """FedDUAL's candidates, by what they are, the best first: the mean gain over FedAvg's default in points."""
    datasets = {trial.dataset for trial in trials if trial.algorithm == "feddual"}
    gains: dict[str, dict[str, float]] = {}
    for trial in trials:
        if trial.algorithm == "feddual":
            gains.setdefault(text(trial.settings), {}).setdefault(trial.dataset, _gain(trial, trials))
    whole = {name: float(np.mean(list(by.values()))) for name, by in gains.items() if set(by) == datasets}
    known = {name: gain for name, gain in whole.items() if np.isfinite(gain)}  # where FedAvg was tried
    return dict(sorted(known.items(), key=lambda pair: -pair[1]))


def _gain(trial: Trial, trials: Sequence[Trial]) -> float:
    place = (trial.dataset, trial.rounds)
    bases = [one for one in trials if one.algorithm == "fedavg" and not one.settings]
    same = [one.accuracy for one in bases if (one.dataset, one.rounds) == place]
    return 100 * (trial.accuracy - (same[0] if same else np.nan))


def _common(settings: Sequence[str]) -> list[str]:
    """What all candidates share, in the first one's order; nothing when there are fewer than two."""
    parts = [one.split(", ") for one in dict.fromkeys(settings)]
    return [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []


def _without(settings: str, common: Sequence[str]) -> str:
    """Settings without what all candidates share."""
    return ", ".join(part for part in settings.split(", ") if part not in common)


def _best(frame: pd.DataFrame, common: Sequence[str], leaders: Mapping[tuple[str, str], str]) -> tables.Block:
    lines = []
    for row in ALGORITHMS:
        line: list[Any] = [LOOKS[row].label]
        for dataset in DATASETS:
            part = frame[(frame["row"] == row) & (frame["dataset"] == dataset)]
            if (dataset, row) in leaders:
                line += ["–", f"as {LOOKS[leaders[dataset, row]].label}", "–"]
            elif part.empty:
                line += [NOT_RUN, "–", "–"]
            else:
                whole = part[part["rounds"] == part["rounds"].max()]  # the others were stopped early
                best = whole.loc[whole["accuracy"].idxmax()]
                settings = _without(best["settings"], common) if row == "feddual" else best["settings"]
                line += [f"{best['accuracy']:.2f}", settings or "defaults", str(len(part))]
        lines.append(line)
    columns = ["algorithm", *(name for label in DATASETS.values() for name in (label, "settings", "trials"))]
    return tables.Block("The best of each algorithm", columns, lines)


def _candidates(title: str, part: pd.DataFrame) -> tables.Block:
    common = _common(part["settings"].to_list())
    lines = []
    for number, (settings, cells) in enumerate(part.groupby("settings", sort=False)):
        by_dataset = {str(cell["dataset"]): cell for cell in cells.to_dict("records")}
        gain = cells["joint_gain"].iloc[0]
        label = _without(str(settings), common) or "nothing else"
        line = [tables.Strong(label) if number == 0 and np.isfinite(gain) else label]
        for name in DATASETS:
            cell = by_dataset.get(name)
            line.append(NOT_RUN if cell is None else f"{cell['accuracy']:.2f} ({_points(cell['gain'])})")
        lines.append([*line, _points(gain)])
    blank = [[NOT_RUN] * (len(DATASETS) + 2)]
    shared = f", all with {', '.join(common)}" if common else ""
    return tables.Block(
        f"{title}{shared} (gain over FedAvg at 1e-3)", ["settings", *DATASETS.values(), "mean gain"], lines or blank
    )


def _points(gain: float) -> str:
    return signed(gain) if np.isfinite(gain) else "–"


def text(settings: dict[str, Any]) -> str:
    """Settings as people read them."""
    named = ((key.rpartition(".")[2].replace("_", " "), value) for key, value in settings.items())
    return ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in named)

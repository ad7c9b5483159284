"""What Tables 3, 4 and 5 share: the runs that had the machine for themselves, and the paper's hours beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from feddual import seeding
from feddual.records.results import Recorded
from figures._results import NOT_RUN, Drawing, Results, same_text, signed
from figures._rows import ALGORITHMS, SAME_RUNS, paper_rounds, same_as
from figures.charts import LOOKS, tables
from figures.paper import _values as _paper

HOUR = 3600.0
NOTES = (
    "Ours: one run per algorithm alone on the machine (a study named `timing...`), evaluation included; features of "
    "the frozen VGG16 base are computed once before a cached run and are not counted. Paper: FedDUAL, TMLR 2025, on "
    "its authors' hardware, so that only the ratios to FedAvg can be compared. * did not converge there.",
    "≈ from fewer rounds: a client's seconds per image times the images of the clients in all rounds, plus the rest of "
    "a round times rounds; a short run's first round, which compiles, is left out where there are others.",
    SAME_RUNS,
)


@dataclass(frozen=True)
class Case:
    """A data set, with or without the exact accelerations."""

    dataset: str
    plain: bool
    label: str


SETTINGS = (
    Case("cifar10", False, "CIFAR-10, frozen features cached"),
    Case("cifar10", True, "CIFAR-10, plain (every image through VGG16 at every step, two threads)"),
    Case("cifar100", False, "CIFAR-100, frozen features cached"),
    Case("fmnist", False, "Fashion-MNIST"),
)


@dataclass(frozen=True)
class Time:
    """Seconds, and whether they were measured in full; None when the target was not reached, or is not known to be."""

    seconds: float | None
    measured: bool = True
    known: bool = True


Measure = Callable[[Recorded, Sequence[Recorded]], Time]
Paper = Mapping[str, Mapping[str, _paper.Value]]


def client_seconds(run: Recorded, rounds: int) -> float:
    """Seconds that clients train in the first so many rounds, from the rounds that were timed.

    Clients differ a hundredfold in size, so a short run's mean round is not that of a long one: the time of an image
    is what carries over. A run's first round, in which the graph is compiled, is left out where there are others.
    """
    rows = run.timings[1:] or run.timings
    images = _images(run, max(rounds, rows[-1]["round"]))
    timed = sum(images[row["round"] - 1] for row in rows)
    return float(sum(row["client_seconds"] for row in rows) / timed * sum(images[:rounds]))


def mean_seconds(run: Recorded, key: str) -> float:
    """The mean over rounds after the first, in which the graph is compiled."""
    rows = run.timings[1:] or run.timings
    return float(np.mean([row[key] for row in rows]))


def _images(run: Recorded, rounds: int) -> list[int]:
    """The images of the clients of each round."""
    sizes = run.partition["histograms"].sum(1)
    count = run.config["training"]["clients_per_round"]
    return [int(sizes[seeding.sample_clients(run.seed, i + 1, len(sizes), count)].sum()) for i in range(rounds)]


def _estimate(run: Recorded, rounds: int) -> float:
    return client_seconds(run, rounds) + rounds * (mean_seconds(run, "seconds") - mean_seconds(run, "client_seconds"))


def total(run: Recorded) -> Time:
    """Seconds for the paper's number of rounds."""
    rounds = paper_rounds(run.dataset)
    if len(run.timings) == rounds:
        return Time(run.summary["seconds"])
    return Time(_estimate(run, rounds), measured=False)


def to_target(run: Recorded, full: Sequence[Recorded]) -> Time:
    """Seconds to the target.

    Args:
        run: The timed run.
        full: Runs of the same experiment, in case the timed one is too short, which accelerations do not change, or had
            its input scaled, which costs no time and needs other rounds.
    """
    alike = not full or run.identity.without_rounds == full[0].identity.without_rounds
    if alike and (run.summary["rounds_to_target"] is not None or len(run.timings) == paper_rounds(run.dataset)):
        return Time(run.summary["seconds_to_target"])
    same = next((other for other in full if other.replicate == run.replicate), None)
    if same is None:
        return Time(None, measured=False, known=False)
    rounds = same.summary["rounds_to_target"]
    return Time(_estimate(run, rounds) if rounds else None, measured=False)


def hours_table(name: str, title: str, runs: Results, measure: Measure, paper: Paper, out: Path) -> Drawing:
    """Write a table with a time per algorithm."""
    sections, cells = [], []
    for setting in SETTINGS:
        block = [_cell(runs, setting, row, measure, paper) for row in ALGORITHMS]
        base = block[0]
        for cell in block:
            cell["ratio"] = _ratio(cell["seconds"], base["seconds"])
            cell["paper_ratio"] = _ratio(cell["paper_hours"], base["paper_hours"])
        columns = ["algorithm", "ours", "paper", "difference (h)", "ours / FedAvg", "paper / FedAvg"]
        sections.append(tables.Block(setting.label, columns, [_line(cell) for cell in block]))
        cells += block
    frame = pd.DataFrame(cells)
    return Drawing(tables.write(name, title, sections, NOTES, frame, out), frame)


def _cell(runs: Results, setting: Case, row: str, measure: Measure, paper: Paper) -> dict[str, Any]:
    found = runs.timed(setting.dataset, row, setting.plain)
    time = measure(found[0], runs.of(setting.dataset, row)) if found else Time(None)
    given = paper.get(row, {}).get(setting.dataset)
    hours = given if isinstance(given, float) else np.nan
    seconds = np.nan if time.seconds is None else time.seconds
    return {
        "dataset": setting.dataset, "plain": setting.plain, "row": row, "run": bool(found) and time.known,
        "same_as": same_as(row, found),
        "rounds": len(found[0].timings) if found else 0, "seconds": seconds, "measured": time.measured,
        "paper_hours": hours, "paper_diverged": given == "*", "difference_hours": seconds / HOUR - hours,
    }  # fmt: skip


def _line(cell: Mapping[str, Any]) -> list[str]:
    known = cell["seconds"] == cell["seconds"]
    about = "" if cell["measured"] else "≈ "
    ours = about + duration(cell["seconds"]) if known else ("not reached" if cell["run"] else NOT_RUN)
    ours = same_text(cell["same_as"]) or ours
    paper = "*" if cell["paper_diverged"] else _number(cell["paper_hours"], "{:.2f} h")
    difference = cell["difference_hours"]
    gap = "–" if difference != difference else signed(difference)
    ratios = [_number(cell[key], "{:.2f}") for key in ("ratio", "paper_ratio")]
    return [LOOKS[cell["row"]].label, ours, paper, gap, *ratios]


def duration(seconds: float) -> str:
    """In the unit that reads best."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.2f} h"


def _number(value: float, form: str) -> str:
    return form.format(value) if value == value else "–"


def _ratio(value: float, base: float) -> float:
    return value / base if base else np.nan

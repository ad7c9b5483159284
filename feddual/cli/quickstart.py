"""The end-to-end story on the built-in data: train, look inside, draw, report. A second call continues the first.

OUT/study.yaml, OUT/<cell>/    the quickstart study's runs, with gradient norms
OUT/<cell>/surfaces/pair-N/    the loss around each final model, on the same pairs of random directions
OUT/comparison/                how flat they are, with intervals
OUT/figures/                   pictures for paper
OUT/report.html                all of it to explore
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feddual import executors
from feddual.cli.progress import StoryProgress, sparkline
from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.measurements import is_begun
from feddual.records.run_dir import RunDir
from feddual.studies import grid as study

STUDY = "quickstart"
GRID = 25  # points along each axis of a surface
IMAGES = 1000  # training images the loss is a mean of
PAIRS = 3  # of directions: intervals need several
WORKERS = 2
EVERY = 0.5  # seconds between looks at the runs

TRAINING = (
    "Training three federations on 6,000 Fashion-MNIST images",
    "FedAvg on even clients is how it should go; on skewed clients, most of which see one or two classes, it suffers; "
    "FedDUAL is made for those. Gradient norms of every layer are recorded on the way.",
)
SURFACES = (
    "Walking around the three final models",
    "The loss on planes through each model, the same random directions for all: does skew lead to sharper places?",
)
FIGURES = ("Drawing the figures", "PNG and PDF, for slides and papers.")
REPORT = ("Writing the report", "One page with every number, to turn, filter and download; it needs no network.")


@dataclass
class Outcome:
    """What the story found."""

    out: str
    report: str = ""
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # summaries by cell
    findings: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """What was measured, where it lies, what to try next."""
        cells = [f"{self.out}/{name}" for name in self.runs]
        places = [f"report: {self.report}   (open it in a browser)", f"everything else: {self.out}/"]
        following = [
            f"  feddual compare {' '.join(cells)}",
            "  feddual run quickstart --set partition.alpha=1.0 --probe gradient-norms@every=2 --out runs/milder",
            f"  python -m diagnostics compare {' '.join(cells[:2])} --directions 10 --out runs/flatness",
            "  feddual init > mine.yaml        # your own experiment",
            "  make lab                        # the notebooks",
        ]
        return "\n".join(["", *self.findings, "", *places, "", "Next:", *following])


def tell(
    out: Path, overrides: Mapping[str, Any] | None = None, *, grid: int = GRID, workers: int | None = None,
    progress: bool = True,
) -> Outcome:  # fmt: skip
    """Tell the whole story into a folder.

    Args:
        out: The folder.
        overrides: Dotted keys for all runs, such as `{"training.rounds": 5}`.
        grid: Points along each axis of the surfaces.
        workers: Processes; by default two, or one on a machine with one core.
        progress: Show bars, or lines where there is no terminal.
    """
    loaded = study.load(STUDY)
    cells = study.cells(loaded)
    settings = dict(overrides or {})
    rounds = {cell.name: cell.experiment(settings).training.rounds for cell in cells}  # bad settings end here
    count = workers or min(WORKERS, os.cpu_count() or 1)
    executor = "processes" if count > 1 and os.name == "posix" else "inline"
    outcome = Outcome(str(out))
    runner = study.Runner(loaded, out, count, executor)
    runner.prepare()
    with StoryProgress(progress, stages=4) as shown:
        shown.stage(*TRAINING)
        with _followed(shown, out, rounds):
            for cell, error in runner.run(cells[::-1], settings):  # FedDUAL takes longest: first
                if error is not None:
                    outcome.failed[cell.name] = error
        finished = {cell.name: out / cell.name for cell in cells if cell.name not in outcome.failed}
        shown.stage(*SURFACES)
        outcome.failed |= _surfaces(shown, finished, grid, config.Runtime(executor=executor, workers=count))
        outcome.failed |= _compare(finished, out)
        _draw(shown, out, outcome)
    outcome.runs = {name: RunDir(path).summary() for name, path in finished.items()}
    return outcome


@contextmanager
def _followed(shown: StoryProgress, out: Path, rounds: Mapping[str, int]) -> Iterator[None]:
    """A bar per run, kept true by looking at its log: it also moves while workers train."""
    bars = {name: shown.bar(name, total, "rounds") for name, total in rounds.items()}
    stop = threading.Event()

    def look() -> None:
        for name, bar in bars.items():
            rows = RunDir(out / name).rows("metrics")
            accuracy = [row["accuracy"] for row in rows if row.get("accuracy") is not None]
            facts = f"accuracy {accuracy[-1]:.1%} {sparkline(accuracy)}" if accuracy else ""
            shown.update(bar, len(rows), facts)

    def watch() -> None:
        while not stop.wait(EVERY):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()


# --- surfaces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurfaceTask:
    """What a worker needs to compute a surface."""

    run: str
    direction: int
    grid: int

    @property
    def out(self) -> Path:
        return RunDir(self.run).surface_path(f"pair-{self.direction}")


def measure(task: SurfaceTask) -> str | None:
    """Executor function: compute, or go on with, one surface; the error's text if it cannot be."""
    from diagnostics.landscape import loss_surface
    from feddual import devices

    devices.configure()
    try:
        loss_surface(task.run, grid=task.grid, images=IMAGES, direction=task.direction, out=task.out, progress=False)
    except UserError as error:
        return str(error)
    return None


def _surfaces(shown: StoryProgress, runs: Mapping[str, Path], grid: int, runtime: config.Runtime) -> dict[str, str]:
    """All surfaces that are not there yet; the errors by name."""
    every = [SurfaceTask(str(path), direction, grid) for direction in range(PAIRS) for path in runs.values()]
    tasks = [task for task in every if not _is_there(task.out)]
    bar = shown.bar("loss surfaces", len(every), "surfaces", len(every) - len(tasks))
    if not tasks:
        return {}
    failed = {}
    executor = executors.create(runtime)
    try:
        for task, error in zip(tasks, executor.imap("feddual.cli.quickstart:measure", tasks), strict=True):
            shown.update(bar, None, f"{Path(task.run).name}, {task.out.name}")
            if error is not None:
                failed[f"{Path(task.run).name}/{task.out.name}"] = error
    finally:
        executor.close()
    return failed


def _compare(runs: Mapping[str, Path], out: Path) -> dict[str, str]:
    """How flat, from the surfaces; the error if they cannot be compared. An earlier comparison's numbers go."""
    from diagnostics.flatness import matching, recorded

    surfaces = {path: [RunDir(path).surface_path(f"pair-{n}") for n in range(PAIRS)] for path in runs.values()}
    whole = [path for path, folders in surfaces.items() if all(map(_is_there, folders))]
    try:
        if whole:
            recorded.compare_recorded(matching.group_runs(whole)).save(out / recorded.FOLDER, replace=True)
    except UserError as error:
        return {recorded.FOLDER: str(error)}
    return {}


def _is_there(folder: Path) -> bool:
    from diagnostics.surfaces.results import load

    return is_begun(folder) and load(folder).complete


# --- pictures ---------------------------------------------------------------------------------------------------------


def _draw(shown: StoryProgress, out: Path, outcome: Outcome) -> None:
    from figures import report
    from figures.report import pictures

    shown.stage(*FIGURES)
    bar = shown.bar("figures", None, "files")
    drawn = 0
    for drawn, path in enumerate(pictures.save(out, out / "figures"), 1):
        shown.update(bar, drawn, path.name)
    shown.update(bar, drawn, "", total=drawn)
    shown.stage(*REPORT)
    bar = shown.bar("report", 1, "page")
    outcome.report = str(report.write(out))
    outcome.findings = [finding.text for finding in report.findings(out)]
    shown.update(bar, 1, "")

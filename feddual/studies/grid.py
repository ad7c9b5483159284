"""Grids of runs. A study is a YAML file; each of its cells is a run directory in the study's folder.

    experiments: [paper-fmnist]                       # shipped experiments, or files
    seeds: 3                                          # 0, 1, 2: of initialisation, client sampling and batches
    draws: 5                                          # of the clients, each with every seed; `each`: one for each seed
    rows: {fedavg: {algorithm.name: fedavg}, ...}     # name -> overrides
    grid: {partition.alpha: [0.01, 0.1]}              # every combination, for every row
    workers: 1                                        # runs at a time; by default one per core
    at_most: {paper-fmnist: 3}                        # repetitions of an experiment, where it takes long
    tune: {...}                                       # what `--tune` tries; see Tune
    like: paper-fmnist                                # another study, for the keys that are not given

Started again, a study goes on where it stopped. A cell that fails is recorded in failed/ and the rest goes on.
"""

import itertools
import os
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import Field, ValidationError

from feddual import executors
from feddual.errors import UserError
from feddual.experiment import config, plugins
from feddual.experiment.schema import Section
from feddual.records.identity import Replicate, changes
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_run
from feddual.records.study_dir import StudyDir

Overrides = dict[str, Any]
Draws = Annotated[int, Field(ge=1)] | Literal["each"]


class Tune(Section):
    """What `--tune` tries: each row with each of its settings, several times, tested on held-out training data.

    With `first`, trials stop after this share of their rounds, and those go on that are not clearly behind: a setting
    is dropped when it is behind the row's best in every repetition (same clients, same seed) and by more than `behind`
    on average. The row's own settings always go on.
    """

    rounds: int | None = Field(None, ge=1, description="of a trial; by default the experiment's own")
    repeats: int = Field(1, ge=1, description="of each trial, with clients and seed of its own")
    first: float | None = Field(None, gt=0, lt=1, description="share of the rounds after which hopeless settings stop")
    behind: float = Field(0.02, ge=0, le=1, description="accuracy by which a hopeless setting is behind")
    keep: int | None = Field(None, ge=1, description="how many settings go on at most; by default all but the hopeless")
    held_out: float = Field(0.1, gt=0, le=0.5, description="share of the training data")
    grid: dict[str, list[Any]] = Field({}, description="for all rows")
    rows: dict[str, dict[str, list[Any]] | list[Overrides] | str] = Field(
        {},
        description="for one row: further keys of the grid; or a list of settings in place of it; or the name of a row "
        "that trains in the same way and chooses for both",
    )
    only: list[str] = Field([], description="the rows to tune; by default all")


class Study(Section):
    """A grid of experiments."""

    name: str
    experiments: list[str] = Field(min_length=1)
    seeds: int = Field(1, ge=1)
    draws: Draws = Field(1, description="of the clients, each with every seed; `each`: every seed draws its own")
    rows: dict[str, Overrides] = Field(min_length=1)
    grid: dict[str, list[Any]] = Field({}, description="every combination, for every row")
    at_most: dict[str, int] = Field({}, description="repetitions of an experiment; the first ones are kept")
    workers: int | None = Field(None, ge=1, description="runs at a time; by default one per core")
    tune: Tune | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    row: str
    source: str  # the experiment it starts from
    overrides: Overrides
    tried: Overrides = field(default_factory=dict)  # of a trial: the combination

    def experiment(self, runtime: Overrides) -> config.Experiment:
        return config.resolve(self.source, self.overrides | runtime)


def study_names() -> list[str]:
    return list(plugins.shelf("studies"))


def load(source: str | Path | Mapping[str, Any], seeds: int | None = None, draws: Draws | str | None = None) -> Study:
    """A shipped study by its name, a YAML file, or a mapping with the keys of one and a `name`.

    Args:
        source: The study.
        seeds: Instead of its number.
        draws: Instead of its own.
    """
    if isinstance(source, Mapping):
        name, values = "study", dict(source)
    else:
        name, values = Path(source).stem, config.read_shipped("study", source, "studies")
    name = str(values.pop("name", name))
    like = values.pop("like", None)
    if like is not None:
        values = config.merge(load(like).model_dump(), values)
    if isinstance(draws, str) and draws.isdecimal():  # from a command line
        draws = int(draws)
    values |= {key: value for key, value in {"seeds": seeds, "draws": draws}.items() if value is not None}
    try:
        return Study.model_validate({**values, "name": name})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError(f"study {name}:\n" + "\n".join(lines)) from error


def cells(study: Study, algorithms: Sequence[str] = ()) -> list[Cell]:
    """The runs of a study, in the order in which they are wanted: all rows of one seed, then the next seed.

    Args:
        study: The study.
        algorithms: Only rows of these names or algorithms.
    """
    rows = chosen_rows(study, algorithms)
    return [
        repeated(study, which, source, row, rows[row] | settings, cell_name(study, source, row, settings))
        for which, source in repetitions(study)
        for row in rows
        for settings in combinations(study.grid)
    ]


def repetitions(study: Study) -> list[tuple[Replicate, str]]:
    """Seeds and draws of the clients, counted from the experiment's own draw, each with every experiment."""
    if study.draws == "each":
        found = [Replicate(seed, seed) for seed in range(study.seeds)]
    else:
        found = [Replicate(draw, seed) for seed in range(study.seeds) for draw in range(study.draws)]
    pairs = itertools.product(enumerate(found), study.experiments)
    return [(which, source) for (place, which), source in pairs if place < study.at_most.get(source, len(found))]


def repeated(study: Study, which: Replicate, source: str, row: str, settings: Overrides, name: str) -> Cell:
    """A row's run of one repetition; its name says the draw where it is not the experiment's own."""
    settings = {**settings, "seed": which.seed}
    if which.draw:
        name += f"-d{which.draw}"
        drawn = config.resolve(source, settings).to_dict()["partition"]
        if "seed" not in drawn:
            raise UserError(f"study {study.name}: draws: the partition {drawn['name']!r} draws nothing at random")
        settings["partition.seed"] = int(drawn["seed"]) + which.draw
    return Cell(f"{name}-s{which.seed}", row, source, settings)


def chosen_rows(study: Study, algorithms: Sequence[str]) -> dict[str, Overrides]:
    """The rows that are meant on the command line, by row name or, where no row has it, by algorithm."""
    trained = {row: overrides.get("algorithm.name", "feddual") for row, overrides in study.rows.items()}
    names = {row: {row} | ({algorithm} - set(study.rows)) for row, algorithm in trained.items()}
    unknown = set(algorithms).difference(*names.values())
    if unknown:
        said = f"--algorithms: {', '.join(sorted(unknown))} not in the study"
        raise UserError(f"{said}; its rows are {', '.join(study.rows)}")
    return {row: study.rows[row] for row in study.rows if not algorithms or names[row] & set(algorithms)}


def combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[Overrides]:
    """Every way to take a value for each key."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def cell_name(study: Study, source: str, row: str, settings: Overrides, *rest: str) -> str:
    """A name that says what differs within the study; it is the run's folder."""
    first = [re.sub(r"^paper-", "", Path(source).stem)] if len(study.experiments) > 1 else []
    short = {key: f"{value:g}" if isinstance(value, float) else value for key, value in settings.items()}
    middle = [f"{key.rpartition('.')[2]}={value}" for key, value in short.items()]
    return re.sub(r"[^\w.+=-]", "_", "-".join([*first, row, *middle, *rest]))


# --- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """How far a study is."""

    finished: int
    failed: int
    cells: int
    rounds: int
    total_rounds: int
    seconds: float
    seconds_left: float | None


@dataclass(frozen=True)
class CellTask:
    """What a worker needs to run a cell."""

    experiment: str
    out: str


def run_cell(task: CellTask) -> str | None:
    """Executor function: run, or go on with, one cell; the error's text if it fails."""
    from feddual.training import engine, workbench

    workbench.forget()  # the last cell's
    try:
        for _ in engine.rounds(config.resolve(yaml.safe_load(task.experiment)), task.out, resume=True):
            pass
    except UserError as error:
        return f"error: {error}"
    except Exception:
        return traceback.format_exc()
    return None


class Runner:
    """Runs cells into a folder, over worker processes."""

    def __init__(self, study: Study, out: Path, workers: int | None = None, executor: str = "processes"):
        self.study, self.out, self.files = study, Path(out), StudyDir(Path(out))
        self.runtime = config.Runtime(executor=executor, workers=workers or study.workers or os.cpu_count() or 1)
        self._started, self._at_start = time.monotonic(), 0
        self._progress: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}  # of the cells so far, by config

    def prepare(self) -> None:
        """Claim the folder for this study.

        Raises:
            UserError: When another study lives there.
        """
        if self.files.exists:
            there = self.files.read().get("name")
            if there != self.study.name:
                raise UserError(f"--out: {self.out} holds the study {there!r}; choose another folder")
        elif open_run(self.out).exists:
            raise UserError(f"--out: {self.out} holds a run; choose another folder")
        self.files.write(self.study.model_dump())

    def run(self, wanted: Sequence[Cell], overrides: Overrides | None = None) -> Iterator[tuple[Cell, str | None]]:
        """Run what is not finished yet; yields each cell with its error, or None. Cells of one config run once.

        A finished cell of other settings is run too: the engine continues it where only rounds were added, and
        otherwise names what differs.
        """
        pending: list[tuple[Cell, CellTask]] = []
        for cell in wanted:
            experiment = cell.experiment(overrides or {})
            if self._names.setdefault(experiment.to_json(), cell.name) != cell.name:
                continue
            found = self.files.run(cell.name)
            facts = facts_of(found)
            self._progress[cell.name] = (facts["rounds"] if facts else 0, experiment.training.rounds)
            if facts is None or not facts["finished"] or not _is_of(found, experiment):
                pending.append((cell, CellTask(experiment.to_yaml(), str(self.out / cell.name))))
        self._at_start = sum(done for done, _ in self._progress.values())
        self._started = time.monotonic()
        while pending:
            executor = executors.create(self.runtime)
            try:
                tasks = [task for _, task in pending]
                for error in executor.imap("feddual.studies.grid:run_cell", tasks):
                    cell, _ = pending.pop(0)
                    yield cell, self._record(cell, error)
            except executors.TaskLost as lost:
                cell, _ = pending.pop(lost.task - (len(tasks) - len(pending)))
                yield cell, self._record(cell, str(lost))
            finally:
                executor.close()

    def _record(self, cell: Cell, error: str | None) -> str | None:
        self.files.record_failure(cell.name, error)
        return error

    def status(self) -> Status:
        """Read from the run directories, so that it is also right while workers run."""
        for name, (_, total) in self._progress.items():
            self._progress[name] = (min(self.files.run(name).rounds_done(), total), total)
        done = sum(rounds for rounds, _ in self._progress.values())
        total = sum(rounds for _, rounds in self._progress.values())
        seconds = time.monotonic() - self._started
        fresh = done - self._at_start
        finished = sum(rounds == wanted for rounds, wanted in self._progress.values())
        left = seconds / fresh * (total - done) if fresh else None
        return Status(finished, len(self.files.failures()), len(self._progress), done, total, seconds, left)


def facts_of(run: RunDir) -> dict[str, Any] | None:
    """A run's summary; None where there is no run."""
    return run.summary() if run.exists else None


def _is_of(run: RunDir, experiment: config.Experiment) -> bool:
    """Whether a run is of this experiment, but for what may change on resuming."""
    return not changes(config.resolve(run.read_config()).to_dict(), experiment.to_dict())


def group(cell: str) -> str:
    """A cell's name without its draw and seed."""
    return re.sub(r"(-d\d+)?-s\d+$", "", cell)


def table(names: Iterable[str], out: Path) -> list[dict[str, Any]]:
    """A line per experiment, row and settings: accuracy over the seeds, its spread, rounds to the target."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        facts = facts_of(open_run(out / name))
        if facts is not None and facts["finished"]:
            groups.setdefault(group(name), []).append(facts)
    return [{"row": name, **_over_seeds(several)} for name, several in groups.items()]


def _over_seeds(several: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {key: [facts[key] for facts in several] for key in several[0]}
    rounds = [np.inf if count is None else count for count in columns["rounds_to_target"]]
    middle = float(np.median(rounds))  # a seed that never gets there counts as later than all that do
    return {
        "seeds": len(several),
        "accuracy": float(np.mean(columns["accuracy"])),
        "std": float(np.std(columns["accuracy"], ddof=1)) if len(several) > 1 else None,
        "final": float(np.mean(columns["final"])),
        "rounds_to_target": middle if np.isfinite(middle) else None,
        "diverged": sum(columns["diverged"]),
    }

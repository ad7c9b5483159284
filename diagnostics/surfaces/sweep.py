"""Computes the points of lines and planes, here or on workers, chunk by chunk into a store."""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from diagnostics.surfaces import fast as engines
from diagnostics.surfaces.objective import Objective
from feddual import devices, executors
from feddual.errors import UserError
from feddual.functional.cut import TOLERANCE, mismatch

FEW = 64  # samples by which workers compare their model with the sender's
CHUNK = 16  # points, at least, that are written together


@dataclass(frozen=True)
class Problem:
    """All a process needs to compute points."""

    model: Any
    x: np.ndarray
    y: np.ndarray
    settings: dict[str, Any]  # of the Objective
    engine: str  # auto or plain
    weights: np.ndarray
    planes: tuple[np.ndarray, ...]  # of each, the directions: shape (axes, size)
    centre: np.ndarray | None = None  # for workers: the sums of a few samples at the centre, as the sender has them


@dataclass(frozen=True)
class Task:
    """Points of one plane."""

    folder: str  # where the problem is, for workers
    plane: int
    coordinates: np.ndarray
    count: int  # samples


class Sweep:
    """Computes points of a problem's planes."""

    def __init__(
        self, problem: Problem, objective: Objective, corner: np.ndarray, workers: int = 1, executor: str = "processes"
    ):
        """Args: problem, its objective, the largest coordinates, processes and what runs them."""
        self.problem, self.workers, self._executor = problem, workers, executor
        self.objective = objective
        self._engine, self.facts = engines.choose(objective, problem.weights, problem.planes, problem.engine, corner)
        if objective.prefix_check is not None:
            self.facts["check_prefix"] = objective.prefix_check
        self._plane = 0
        self.group = self._engine.group
        self.chunk = self.group * -(-CHUNK // self.group)

    def sums(self, plane: int, coordinates: np.ndarray, count: int) -> np.ndarray:
        """In this process: sums of points, shape (points, columns)."""
        if plane != self._plane:
            self._engine.place(self.problem.weights, self.problem.planes[plane])
            self._plane = plane
        return _in_groups(self._engine, coordinates, count)

    def run(
        self,
        points: Sequence[tuple[int, str, np.ndarray, int]],
        store: Any,
        done: Callable[[str, np.ndarray, int], None],
    ) -> int:
        """Compute what the store lacks; how many points those were.

        Args:
            points: (plane, name, coordinates, count) of each chunk, at most `self.chunk` points each.
            store: Has `read(name)` and `write(name, sums)`.
            done: Called with each chunk's name, sums and number of points, in order; those found in the store first.
        """
        missing = []
        for chunk in points:
            found = store.read(chunk[1])
            if found is not None and len(found) == len(chunk[2]):
                done(chunk[1], found, len(found))
            else:
                missing.append(chunk)
        for (_, name, _, _), sums in zip(missing, self._compute(missing), strict=True):
            store.write(name, sums)
            done(name, sums, len(sums))
        return sum(len(coordinates) for _, _, coordinates, _ in missing)

    def _compute(self, chunks: Sequence[tuple[int, str, np.ndarray, int]]) -> Iterator[np.ndarray]:
        if self.workers == 1 or len(chunks) < 2:
            for plane, _, coordinates, count in chunks:
                yield self.sums(plane, coordinates, count)
            return
        with self._shared() as folder:
            pool = executors.create(
                SimpleNamespace(executor=self._executor, workers=min(self.workers, len(chunks)), device="auto")
            )
            try:
                tasks = [Task(folder, plane, coordinates, count) for plane, _, coordinates, count in chunks]
                yield from pool.imap("diagnostics.surfaces.sweep:compute", tasks)
            finally:
                pool.close()

    @contextmanager
    def _shared(self) -> Iterator[str]:
        """The problem as files that workers read once; features of a frozen prefix, not the images."""
        objective, problem = self.objective, self.problem
        features = objective.network.prefix is not None
        shared = replace(
            problem,
            x=np.zeros(0),
            y=objective.y.numpy(),
            settings=problem.settings | {"features": features, "cut": features},
            engine="plain" if isinstance(self._engine, engines.Plain) else "unchecked",
            centre=self.sums(0, np.zeros((1, len(problem.planes[0]))), min(FEW, len(objective.x)))[:, :1],
        )
        with tempfile.TemporaryDirectory(prefix="feddual-surface-") as folder:
            np.save(Path(folder) / "x.npy", objective.x.numpy())
            try:
                (Path(folder) / "problem").write_bytes(pickle.dumps(shared))
            except Exception as error:  # whatever a user's layer or function raises
                raise UserError(
                    f"workers: model and loss cannot be sent to other processes ({str(error).splitlines()[0]}); use "
                    "workers=1, or layers and functions that are importable by name"
                ) from error
            yield folder


def compute(task: Task) -> np.ndarray:
    """Executor function: a task's sums."""
    worker = _worker(task.folder)
    return worker.sums(task.plane, task.coordinates, task.count)


class _Worker:
    def __init__(self, problem: Problem):
        self._problem = problem
        objective = Objective(problem.model, problem.x, problem.y, **problem.settings)
        self._engine, _ = engines.choose(objective, problem.weights, problem.planes, problem.engine)
        self._plane = 0
        apart = mismatch(
            problem.centre, self.sums(0, np.zeros((1, len(problem.planes[0]))), min(FEW, len(objective.x)))[:, :1]
        )
        if apart > TOLERANCE:
            raise UserError(
                f"workers: the model is another function in other processes (its losses differ by {apart:.1e}, "
                "relative): Keras could not save all of it; use workers=1"
            )

    def sums(self, plane: int, coordinates: np.ndarray, count: int) -> np.ndarray:
        if plane != self._plane:
            self._engine.place(self._problem.weights, self._problem.planes[plane])
            self._plane = plane
        return _in_groups(self._engine, coordinates, count)


@lru_cache(maxsize=1)
def _worker(folder: str) -> _Worker:
    devices.configure()
    problem = pickle.loads((Path(folder) / "problem").read_bytes())
    return _Worker(replace(problem, x=np.load(Path(folder) / "x.npy")))


def _in_groups(engine: engines.Engine, coordinates: np.ndarray, count: int) -> np.ndarray:
    starts = range(0, len(coordinates), engine.group)
    return np.concatenate([engine.sums(coordinates[a : a + engine.group].astype(np.float32), count) for a in starts])

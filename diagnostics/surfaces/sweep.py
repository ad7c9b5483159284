"""Computes the points of lines and planes, here or on workers, chunk by chunk into a store."""

import pickle
import tempfile
from collections.abc import Iterator, Sequence
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


Chunk = tuple[str, int, np.ndarray, int]  # name, plane, coordinates of the points, samples


class Sweep:
    """Computes points of a problem's planes."""

    def __init__(
        self, problem: Problem, objective: Objective, corner: Any = None, workers: int = 1, executor: str = ""
    ):
        """Args: problem, its objective, the largest coordinates, processes and what runs them."""
        self.problem, self.workers, self._executor = problem, workers, executor
        self.objective = objective
        self._engine, self.facts = engines.choose(objective, problem.weights, problem.planes, problem.engine, corner)
        if objective.prefix_check is not None:
            self.facts["check_prefix"] = objective.prefix_check
        self._plane = 0
        self.chunk = self._engine.group * -(-CHUNK // self._engine.group)

    def sums(self, plane: int, coordinates: np.ndarray, count: int) -> np.ndarray:
        """In this process: sums of points, shape (points, columns)."""
        if plane != self._plane:
            self._engine.place(self.problem.weights, self.problem.planes[plane])
            self._plane = plane
        return engines.in_groups(self._engine, coordinates, count)

    def at_centre(self) -> np.ndarray:
        """Sums of a few samples at the model itself, by which processes compare theirs."""
        return self.sums(0, np.zeros((1, len(self.problem.planes[0]))), min(FEW, len(self.objective.x)))[:, :1]

    def run(self, chunks: Sequence[Chunk], store: Any) -> Iterator[tuple[str, np.ndarray, bool]]:
        """Compute what the store lacks.

        Args:
            chunks: At most `self.chunk` points each.
            store: Has `read(name)` and `write(name, sums)`.

        Yields:
            Each chunk's name, its sums and whether they are new; in order, those found in the store first.
        """
        missing = []
        for chunk in chunks:
            found = store.read(chunk[0])
            if found is not None and len(found) == len(chunk[2]):
                yield chunk[0], found, False
            else:
                missing.append(chunk)
        for (name, *_), sums in zip(missing, self._compute(missing), strict=True):
            store.write(name, sums)
            yield name, sums, True

    def _compute(self, chunks: Sequence[Chunk]) -> Iterator[np.ndarray]:
        workers = min(self.workers, len(chunks))
        if workers < 2:
            yield from (self.sums(*chunk[1:]) for chunk in chunks)
            return
        with self._shared() as folder:
            pool = executors.create(SimpleNamespace(executor=self._executor, workers=workers, device="auto"))
            try:
                yield from pool.imap("diagnostics.surfaces.sweep:compute", [(folder, *chunk[1:]) for chunk in chunks])
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
            settings=problem.settings | {"features": features, "cut": features},
            engine="plain" if isinstance(self._engine, engines.Plain) else "unchecked",
            centre=self.at_centre(),
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


def compute(task: tuple[str, int, np.ndarray, int]) -> np.ndarray:
    """Executor function: the sums of a plane's points, of the problem in a folder."""
    return _worker(task[0]).sums(*task[1:])


@lru_cache(maxsize=1)
def _worker(folder: str) -> Sweep:
    devices.configure()
    problem = pickle.loads((Path(folder) / "problem").read_bytes())
    objective = Objective(problem.model, np.load(Path(folder) / "x.npy"), problem.y, **problem.settings)
    sweep = Sweep(problem, objective)
    apart = mismatch(problem.centre, sweep.at_centre())
    if apart > TOLERANCE:
        raise UserError(
            f"workers: the model is another function in other processes (its losses differ by {apart:.1e}, "
            "relative): Keras could not save all of it; use workers=1"
        )
    return sweep

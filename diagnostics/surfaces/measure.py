"""Filter-normalised loss surfaces and lines: what is computed, what it is of, and where it is kept.

Every point starts from the centre's weights; loss, standard error, accuracy and the loss of each class come from one
pass. What is not computed yet is False in `computed` and NaN elsewhere; a NaN or infinite loss stays what it is.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.progress import PointProgress
from diagnostics.surfaces.checks import inputs_that_fit
from diagnostics.surfaces.directions import Direction, cosine
from diagnostics.surfaces.grid import Grid
from diagnostics.surfaces.losses import Loss
from diagnostics.surfaces.refinement import refine
from diagnostics.surfaces.results import Lines, Plan, Surface, load
from diagnostics.surfaces.sweep import Problem, Sweep
from feddual import devices
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.functional._keras import layers_and_self
from feddual.functional.layout import fingerprint
from feddual.records import measurements as store

if TYPE_CHECKING:
    from diagnostics.landscape import Landscape


@dataclass(frozen=True)
class Running:
    """How a measurement is run, and where it is kept."""

    out: str | os.PathLike[str] | None = None
    workers: int = 1
    executor: str = "processes"
    progress: bool = True
    on_preview: Callable[[Surface], None] | None = None


class Measurement:
    """The points of a grid on one plane, or on several lines, through a landscape's model."""

    def __init__(
        self, landscape: "Landscape", grid: Grid, planes: Sequence[Sequence[Direction]], two_level: int | None = None
    ):
        """Args: the landscape, the points, the directions of each plane, and samples of the first of two levels."""
        self._landscape, self._objective = landscape, landscape.objective
        self._grid, self._planes, self._two_level = grid, planes, two_level
        self._count = len(self._objective.x)

    def run(self, running: Running) -> Any:
        """Compute what is not kept already: a surface of a plane's grid, lines of a line's.

        Raises:
            UserError: For what cannot be computed, before anything is written.
        """
        landscape, weights = self._landscape, self._landscape.weights
        if not np.isfinite(weights).all():  # whether a relu hands NaN on depends on the processor
            raise UserError("the model has weights that are not finite. Has training diverged?")
        if running.workers < 1:
            raise UserError(f"workers: must be at least 1, got {running.workers}")
        plugins.find("executors", running.executor, "executor")
        if running.workers > 1:
            _check_importable(landscape.subject.model, landscape.settings["loss"])
        identity = self._identity()
        folder = None if running.out is None else store.Folder(Path(running.out))
        if folder is not None and folder.check(identity) is not None and (found := _finished(folder.path)) is not None:
            return found
        vectors = tuple(np.stack([direction.vector for direction in plane]) for plane in self._planes)
        model, x, y = landscape.subject.model, landscape.subject.x, landscape.subject.y
        problem = Problem(model, x, y, landscape.settings, landscape.engine, weights, vectors)
        corner = np.array([np.abs(v).max() for v in (self._grid.alphas, self._grid.betas) if v is not None])
        with inputs_that_fit():
            sweep = Sweep(problem, self._objective, corner, running.workers, running.executor)
            facts = self._facts(sweep)
        manifest: dict[str, Any] = {"identity": identity, "facts": facts}
        plan = Plan.of_manifest(manifest)
        if folder is None:
            return _Filling(manifest, sweep, store.Memory(), running).fill(plan)
        with folder.locked():
            known = folder.check(identity)  # again: until now another process could write here
            if known is None:
                folder.begin(manifest)
            elif (found := _finished(folder.path)) is not None:
                return found
            else:
                _warn_of_versions(known["facts"], facts)
                manifest = manifest | {"facts": known["facts"]}
            return _Filling(manifest, sweep, folder, running).fill(plan)

    def _identity(self) -> dict[str, Any]:
        """All that determines the numbers."""
        objective, grid = self._objective, self._grid
        directions = [one for plane in self._planes for one in plane]
        identity = {
            "kind": "lines" if grid.betas is None else "surface",
            "weights": fingerprint(self._landscape.weights), "data": objective.data_hash,
            "directions": [one.sha256 for one in directions], "direction_names": [one.name for one in directions],
            "alphas": grid.alphas.tolist(), "order": grid.order_hash,
            "loss": objective.loss_name, "loss_hash": objective.loss_hash,
            "bn": objective.bn, "batch_size": objective.batch_size, "engine": self._landscape.engine,
        }  # fmt: skip
        if grid.betas is not None:
            two_level = {"images": self._two_level} if self._two_level else None
            identity |= {"betas": grid.betas.tolist(), "two_level": two_level}
        return identity

    def _facts(self, sweep: Sweep) -> dict[str, Any]:
        """What else there is to know: about the model itself, and about how it was computed."""
        objective, count = self._objective, self._count
        centre = objective.measures(sweep.sums(0, np.zeros((1, len(self._planes[0]))), count)[0], count)
        if not np.isfinite(centre.loss):
            raise UserError(
                f"the loss at the model itself is {centre.loss}: there is no surface around it. Has training diverged?"
            )
        counts = {number: objective.class_counts(number).astype(int) for number in {count, self._two_level or count}}
        return {
            **self._landscape.subject.facts,
            "images": count, "loss": float(centre.loss),
            "regularisation": objective.said_of_regularisation,
            "accuracy": None if np.isnan(centre.accuracy) else float(centre.accuracy),
            "gradient_norm": objective.gradient_norm(self._landscape.weights),
            "parameters": self._landscape.space.layout.num_trainable,
            "cosine": cosine(*self._planes[0]) if self._grid.betas is not None else None,
            "chunk": sweep.chunk, "class_counts": {str(number): found.tolist() for number, found in counts.items()},
            **sweep.facts, **versions(),
        }  # fmt: skip


class _Filling:
    """Computes the chunks that a target lacks, and finishes it."""

    def __init__(self, manifest: dict[str, Any], sweep: Sweep, target: store.Memory | store.Folder, running: Running):
        self._manifest, self._sweep, self._target, self._running = manifest, sweep, target, running
        self._label = f"{manifest['identity']['kind']} of {manifest['facts'].get('source', 'the model')}"
        self._found: dict[str, np.ndarray] = {}
        self._computed = 0  # points

    def fill(self, plan: Plan) -> Surface | Lines:
        """All levels, then the files."""
        started, more = time.perf_counter(), {}
        self._compute(plan, 0, self._label, self._running.on_preview)
        if plan.coarse:
            plan, facts = refine(plan, plan.result(self._found, self._manifest))
            self._compute(plan, 1, f"{self._label}, all samples")
            more = facts(self._found)
        seconds = time.perf_counter() - started
        more |= {"seconds": round(seconds, 3), "points_per_second": round(self._computed / seconds, 3)}  # of this call
        manifest = self._manifest | {"facts": self._manifest["facts"] | more}
        result = plan.result(self._found, manifest)
        self._target.finish(manifest, result.arrays())
        return result

    def _compute(self, plan: Plan, level: int, label: str, on_preview: Callable[[Any], None] | None = None) -> None:
        """One level's chunks, with a preview when the coarse grid is there."""
        jobs = [(name, plane, plan.grid.coordinates(flat), n) for name, plane, flat, n in plan.chunks(level)]
        total, coarse = sum(len(coordinates) for _, _, coordinates, _ in jobs), plan.grid.levels[0]
        with PointProgress(label, total, self._running.progress) as bar:
            for name, sums, is_new in self._sweep.run(jobs, self._target):
                self._found[name] = sums
                self._computed += len(sums) if is_new else 0
                bar.advance(len(sums))
                if on_preview is not None and len(coarse) <= len(self._found) * plan.chunk < total:
                    unfinished = plan.result(self._found, self._manifest)
                    if unfinished.computed.flat[coarse].all():  # not so when an early chunk was damaged
                        on_preview(unfinished)
                        on_preview = None


def versions() -> dict[str, Any]:
    """What decides the last bits of a result besides its identity."""
    environment = devices.environment()
    keys = ("feddual", "tensorflow", "keras", "numpy", "cpu_features", "threads", "onednn")
    return {key: environment[key] for key in keys}


def _finished(path: Path) -> Surface | Lines | None:
    """What a folder holds, if nothing is missing; without its last file, a kill came before the end."""
    found = load(path) if (path / store.ARRAYS).exists() else None
    return found if found is not None and found.complete else None


def _check_importable(model: Any, loss: Loss) -> None:
    """Workers are fresh interpreters: they find layers and functions by module and name, or not at all."""
    used: list[Any] = [type(layer) for layer in (model, *layers_and_self(model))]
    for one in (*used, loss if hasattr(loss, "__qualname__") else type(loss)):
        if one.__module__ == "__main__" or "<locals>" in one.__qualname__:
            raise UserError(
                f"workers: model and loss cannot be sent to other processes ({one.__qualname__} is defined in a "
                "script, notebook or function); use workers=1, or layers and functions that are importable by name"
            )


def _warn_of_versions(known: dict[str, Any], now: dict[str, Any]) -> None:
    for key in ("engine", "chunk", *versions()):
        if known.get(key) != now[key]:
            warnings.warn(
                f"continued with {key} = {now[key]!r}, it began with {known.get(key)!r}; the last bits may differ",
                stacklevel=4,
            )

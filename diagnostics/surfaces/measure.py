"""Filter-normalised loss surfaces and lines of any Keras model or run.

    surface = diagnostics.loss_surface(run)                 # or (model, x, y)
    surface.loss[iy, ix]                                    # L(w + alphas[ix] d1 + betas[iy] d2)

Every point starts from the centre's weights; loss, standard error, accuracy and the loss of each class come from one
pass. What is not computed yet is False in `computed` and NaN elsewhere; a NaN or infinite loss stays what it is.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics import subject as samples
from diagnostics.progress import PointProgress
from diagnostics.surfaces.directions import Direction, Norm, Space, cosine
from diagnostics.surfaces.grid import Grid, Range
from diagnostics.surfaces.losses import Loss
from diagnostics.surfaces.objective import BatchNorm, Objective
from diagnostics.surfaces.results import Lines, Plan, Surface, load
from diagnostics.surfaces.sweep import Problem, Sweep
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.functional.layout import fingerprint
from feddual.records import measurements as store


def loss_surface(
    source: Any,
    x: Any = None,
    y: Any = None,
    *,
    grid: int | str | tuple[int, int] = 51,
    range: Range = 1.0,
    images: int | None = 2000,
    split: str = "train",
    round: int | None = None,
    seed: int = 0,
    direction: int = 0,
    norm: Norm = "filter",
    layers: Sequence[str] = (),
    include: Sequence[str] = (),
    directions: Sequence[Direction] | None = None,
    bn: BatchNorm = "frozen",
    loss: Loss = None,
    logit_norm: bool = False,
    frozen: bool = False,
    two_level: int | None = None,
    batch_size: int = 500,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
    executor: str = "processes",
    progress: bool = True,
    on_preview: Callable[[Surface], None] | None = None,
) -> Surface:
    """The loss over a plane through a model's weights.

    The model is read, never changed. Samples are a fixed, stratified subset: the same for every model of a
    comparison.

    Args:
        source: A Keras model (then with `x` and `y`), a run, or a run's folder.
        x: Inputs, shape (n, ...).
        y: Targets: integers, one-hot rows, or what `loss` takes.
        grid: Points along each axis, n or (nx, ny); odd, so that the model stands on one of them.
        range: How far the axes go, in units of the direction: 1 moves every filter by its own norm. A number, (low,
            high), or two such pairs.
        images: How many samples; None for all.
        split: Of a run's data: train (pooled over clients) or test.
        round: Of a run: a kept checkpoint, the last by default.
        seed: Of the directions and of the choice of samples.
        direction: Which pair of random directions.
        norm: filter, layer or model.
        layers: Move only these layers.
        include: Also move `bias`, `norm` (normalisation layers).
        directions: Two directions of your own, from `diagnostics.Space`, instead of random ones.
        bn: Moving statistics: frozen, recalibrate or interpolate; see `Objective`.
        loss: None for cross-entropy from logits, `mse`, or a function from (targets, outputs) to one loss per sample.
        logit_norm: Take confidence out: normalise each sample's logits first.
        frozen: Let directions move frozen layers too.
        two_level: Compute all points on this many samples, then all samples only near contour levels and around the
            centre; `samples` says which, `meta["facts"]["two_level"]` with what error.
        batch_size: Samples at a time.
        engine: auto (exact rewrites, checked against the plain path at nine points) or plain.
        out: A folder to keep the result in; the same call continues an unfinished one.
        workers: Processes.
        executor: What runs them.
        progress: Show a bar, or lines where there is no terminal.
        on_preview: Called with the unfinished surface when the coarse grid (the first 5 %) is there.

    Raises:
        UserError: For input that cannot be used, before anything is written.
    """
    plane = Grid.plane(grid, range)
    measuring = _Measuring(
        samples.resolve(source, x, y, round, split, images, seed), loss, bn, logit_norm, frozen, batch_size, engine
    )
    if directions is None:
        chosen = [measuring.random(seed, 2 * direction + axis, norm, layers, include) for axis in (0, 1)]
    else:
        chosen = measuring.given(directions, 2)
    if two_level is not None and not 1 <= two_level < len(measuring.samples.y):
        raise UserError(f"two_level: must be from 1 to below the {len(measuring.samples.y)} samples, got {two_level}")
    found = measuring.run(plane, [chosen], out, workers, executor, progress, two_level, on_preview)
    assert isinstance(found, Surface)
    return found


def loss_lines(
    source: Any,
    x: Any = None,
    y: Any = None,
    *,
    count: int = 10,
    grid: int = 41,
    range: float | tuple[float, float] = 1.0,
    alphas: Sequence[float] | None = None,
    images: int | None = 2000,
    split: str = "train",
    round: int | None = None,
    seed: int = 0,
    norm: Norm = "filter",
    layers: Sequence[str] = (),
    include: Sequence[str] = (),
    directions: Sequence[Direction] | None = None,
    bn: BatchNorm = "frozen",
    loss: Loss = None,
    logit_norm: bool = False,
    frozen: bool = False,
    batch_size: int = 500,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
    executor: str = "processes",
    progress: bool = True,
) -> Lines:
    """The loss along `count` random directions (or given ones): a bundle of lines through the model.

    Arguments as for `loss_surface`; with `directions=[space.between(a, b)]` and `range=(0, 1)` the line between models.
    `alphas` gives the steps one by one instead of `grid` and `range`; 0 must be one of them.
    """
    line = Grid.line(grid, range) if alphas is None else Grid.at(alphas)
    measuring = _Measuring(
        samples.resolve(source, x, y, round, split, images, seed), loss, bn, logit_norm, frozen, batch_size, engine
    )
    if directions is None:
        if count < 1:
            raise UserError(f"count: at least one direction is needed, got {count}")
        chosen = [measuring.random(seed, index, norm, layers, include) for index in np.arange(count).tolist()]
    else:
        chosen = measuring.given(directions, None)
    found = measuring.run(line, [[one] for one in chosen], out, workers, executor, progress)
    assert isinstance(found, Lines)
    return found


class _Measuring:
    """One call: model, samples and settings together."""

    def __init__(
        self,
        chosen: samples.Samples,
        loss: Loss,
        bn: BatchNorm,
        logit_norm: bool,
        frozen: bool,
        batch_size: int,
        engine: str,
    ):
        if engine not in ("auto", "plain"):
            raise UserError(f"engine: {engine!r} is unknown; allowed: auto, plain")
        self.samples, self.engine = chosen, engine
        self.settings: dict[str, Any] = {
            "loss": loss, "bn": bn, "logit_norm": logit_norm, "frozen": frozen, "batch_size": batch_size,
            "features": chosen.features, "cut": chosen.features or engine != "plain",
        }  # fmt: skip
        key = json.dumps({**self.settings, "loss": id(loss)})
        if key not in chosen.cache:  # the loss itself is kept too, so that its id stays its own
            objective = Objective(chosen.model, chosen.x, chosen.y, **self.settings, originals=chosen.originals)
            chosen.cache[key] = objective, Space(objective.network.whole), loss
        self.objective, self.space, _ = chosen.cache[key]
        self.weights = self.space.checked(self.space.weights if chosen.weights is None else chosen.weights)

    def random(self, seed: int, index: int, norm: Norm, layers: Sequence[str], include: Sequence[str]) -> Direction:
        if self.settings["bn"] == "interpolate":
            raise UserError("bn: 'interpolate' is for directions between models; random ones never move statistics")
        return self.space.random(seed, index, norm, weights=self.weights, layers=layers, include=include)

    def given(self, directions: Sequence[Direction], number: int | None) -> list[Direction]:
        """The user's directions, if lines or a plane can be made of them."""
        directions = [directions] if isinstance(directions, Direction) else list(directions)
        others = [type(one).__name__ for one in directions if not isinstance(one, Direction)]
        if others:
            raise UserError(
                f"directions: expected those that diagnostics.Space makes, got {others[0]}; a vector of your own: "
                "diagnostics.Direction(vector, name)"
            )
        if not directions or (number is not None and len(directions) != number):
            raise UserError(f"directions: expected {number or 'at least one'}, got {len(directions)}")
        found = [replace(one, vector=self.space.checked(one.vector)) for one in directions]
        hashes = [one.sha256 for one in found]
        for place, one in enumerate(found):
            if not np.isfinite(one.vector).all():
                raise UserError(f"directions: {one.name!r} holds values that are not finite")
            if not one.vector.any():
                raise UserError(f"directions: {one.name!r} is zero everywhere, so it leads nowhere")
            if hashes[place] in hashes[:place]:
                raise UserError(f"directions: {one.name!r} is given twice")
        if number == 2 and abs(cosine(*found)) > 1 - 1e-9:
            raise UserError("directions: the two are parallel: there is no plane along them")
        return found

    def run(
        self,
        grid: Grid,
        planes: list[list[Direction]],
        out: str | os.PathLike[str] | None,
        workers: int,
        executor: str,
        progress: bool,
        two_level: int | None = None,
        on_preview: Callable[[Surface], None] | None = None,
    ) -> "Surface | Lines":
        problem = Problem(
            self.samples.model, self.samples.x, self.samples.y, self.settings, self.engine, self.weights,
            tuple(np.stack([direction.vector for direction in plane]) for plane in planes),
        )  # fmt: skip
        if not np.isfinite(self.weights).all():  # whether a relu hands NaN on depends on the processor
            raise UserError("the model has weights that are not finite. Has training diverged?")
        if workers < 1:
            raise UserError(f"workers: must be at least 1, got {workers}")
        plugins.find("executors", executor, "executor")
        if workers > 1:
            _check_importable(self.samples.model, self.settings["loss"])
        objective = self.objective
        count = len(objective.x)
        identity = {
            "kind": "lines" if grid.betas is None else "surface",
            "weights": fingerprint(self.weights),
            "data": objective.data_hash,
            "directions": [one.sha256 for plane in planes for one in plane],
            "direction_names": [one.name for plane in planes for one in plane],
            "alphas": grid.alphas.tolist(),
            "order": grid.order_hash,
            "loss": objective.loss_name,
            "loss_hash": objective.loss_hash,
            "bn": objective.bn,
            "batch_size": objective.batch_size,
            "engine": self.engine,
        }
        if grid.betas is not None:
            identity |= {"betas": grid.betas.tolist(), "two_level": {"images": two_level} if two_level else None}
        folder = None if out is None else store.Folder(Path(out))
        known = folder.check(identity) if folder is not None else None
        if folder is not None and known is not None and (found := _finished(folder.path)) is not None:
            return found
        corner = np.array([np.abs(values).max() for values in (grid.alphas, grid.betas) if values is not None])
        sweep = Sweep(problem, objective, corner, workers, executor)
        centre = objective.measures(sweep.sums(0, np.zeros((1, len(planes[0]))), count)[0], count)
        if not np.isfinite(centre.loss):
            raise UserError(
                f"the loss at the model itself is {centre.loss}: there is no surface around it. Has training diverged?"
            )
        facts = {
            **self.samples.facts,
            "images": count,
            "loss": float(centre.loss),
            "accuracy": None if np.isnan(centre.accuracy) else float(centre.accuracy),
            "gradient_norm": objective.gradient_norm(self.weights),
            "parameters": self.space.layout.num_trainable,
            "cosine": cosine(*planes[0]) if grid.betas is not None else None,
            "chunk": sweep.chunk,
            "class_counts": {
                str(number): objective.class_counts(number).astype(int).tolist()
                for number in {count, two_level or count}
            },
            **sweep.facts,
            **versions(),
        }
        manifest: dict[str, Any] = {"identity": identity, "facts": facts}
        plan = Plan(grid, len(planes), count, sweep.chunk, facts["class_counts"], two_level or 0)
        if folder is None:
            return self._fill(plan, manifest, sweep, store.Memory(), progress, on_preview)
        with folder.locked():
            known = folder.check(identity)  # again: until now another process could write here
            if known is None:
                folder.begin(manifest)
            elif (found := _finished(folder.path)) is not None:
                return found
            else:
                _warn_of_versions(known["facts"], facts)
                manifest = manifest | {"facts": known["facts"]}
            return self._fill(plan, manifest, sweep, folder, progress, on_preview)

    def _fill(
        self,
        plan: Plan,
        manifest: dict[str, Any],
        sweep: Sweep,
        target: Any,
        progress: bool,
        on_preview: Callable[[Surface], None] | None,
    ) -> "Surface | Lines":
        found: dict[str, np.ndarray] = {}
        coordinates = plan.grid.coordinates
        started, waiting = time.perf_counter(), on_preview is not None
        total = plan.grid.order.size * plan.planes
        coarse = plan.grid.levels[0]
        label = f"{manifest['identity']['kind']} of {manifest['facts'].get('source', 'the model')}"
        with PointProgress(label, total, progress) as bar:

            def done(name: str, sums: np.ndarray, points: int) -> None:
                nonlocal waiting
                found[name] = sums
                bar.advance(points)
                if waiting and len(coarse) <= len(found) * plan.chunk < total:
                    unfinished = plan.result(found, manifest)
                    assert on_preview is not None
                    assert isinstance(unfinished, Surface)
                    if unfinished.computed.flat[coarse].all():  # not so when an early chunk was damaged
                        waiting = False
                        on_preview(unfinished)

            jobs = [(plane, name, coordinates(flat), count) for name, plane, flat, count in plan.chunks()]
            computed = sweep.run(jobs, target, done)
        if plan.coarse:
            from diagnostics.surfaces.refinement import refine

            plan, facts = refine(plan, plan.result(found, manifest))
            second = plan.chunks(1)
            with PointProgress(f"{label}, all samples", sum(len(flat) for _, _, flat, _ in second), progress) as bar:

                def refined(name: str, sums: np.ndarray, points: int) -> None:
                    found[name] = sums
                    bar.advance(points)

                jobs = [(plane, name, coordinates(flat), count) for name, plane, flat, count in second]
                computed += sweep.run(jobs, target, refined)
            manifest = manifest | {"facts": manifest["facts"] | facts(found)}
        seconds = time.perf_counter() - started
        pace = {"seconds": round(seconds, 3), "points_per_second": round(computed / seconds, 3)}  # of the last call
        manifest = manifest | {"facts": manifest["facts"] | pace}
        result = plan.result(found, manifest)
        target.finish(manifest, result._arrays())
        return result


def versions() -> dict[str, Any]:
    """What decides the last bits of a result besides its identity."""
    from feddual import devices

    environment = devices.environment()
    return {
        key: environment[key]
        for key in ("feddual", "tensorflow", "keras", "numpy", "cpu_features", "threads", "onednn")
    }


def _finished(path: Path) -> "Surface | Lines | None":
    """What a folder holds, if nothing is missing; without its last file, a kill came before the end."""
    found = load(path) if (path / store.ARRAYS).exists() else None
    return found if found is not None and found.complete else None


def _check_importable(model: Any, loss: Loss) -> None:
    """Workers are fresh interpreters: they find layers and functions by module and name, or not at all."""
    used: list[Any] = [type(layer) for layer in (model, *model._flatten_layers())]
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

"""Filter-normalised loss surfaces and lines of any Keras model or run.

    surface = diagnostics.loss_surface(run)                 # or (model, x, y)
    surface.loss[iy, ix]                                    # L(w + alphas[ix] d1 + betas[iy] d2)

Every point starts from the centre's weights; loss, standard error, accuracy and the loss of each class come from one
pass. What is not computed yet is False in `computed` and NaN elsewhere; a NaN or infinite loss stays what it is.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics import samples, store
from diagnostics.directions import Direction, Norm, Space, cosine
from diagnostics.grid import Grid, Range
from diagnostics.objective import COLUMNS, BatchNorm, Loss, measures
from diagnostics.progress import PointProgress
from diagnostics.sweep import Problem, Sweep
from feddual.errors import UserError
from feddual.weights import fingerprint

FIELDS = ("loss", "sem", "accuracy", "class_loss", "computed", "samples")


@dataclass
class Measured:
    """What lines and surfaces share: arrays over points, and the facts about them."""

    alphas: np.ndarray
    loss: np.ndarray  # mean per sample
    sem: np.ndarray  # standard error of the mean
    accuracy: np.ndarray
    class_loss: np.ndarray  # the last axis is the class; empty without classes
    computed: np.ndarray  # bool
    samples: np.ndarray  # how many samples each point was computed on
    meta: dict[str, Any] = field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a folder: new, or one that holds the same measurement."""
        folder = store.Folder(Path(path))
        folder.check(self.meta["identity"])
        with folder.locked():
            folder.finish(self.meta, self._arrays())
        return folder.path

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"alphas": self.alphas} | {name: getattr(self, name) for name in FIELDS}

    @property
    def complete(self) -> bool:
        """Whether every point is computed."""
        return bool(self.computed.all())

    def caption(self) -> str:
        """The facts in a sentence or two."""
        from diagnostics.plots.surfaces import caption

        return caption(self)


@dataclass
class Surface(Measured):
    """Losses over a plane: `loss[iy, ix]` belongs to (alphas[ix], betas[iy])."""

    betas: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def _arrays(self) -> dict[str, np.ndarray]:
        return super()._arrays() | {"betas": self.betas}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Surface":
        """A surface from its folder, finished or not."""
        loaded = load(path)
        if not isinstance(loaded, Surface):
            raise UserError(f"{path}: holds lines, not a surface; use Lines.load")
        return loaded

    @property
    def centre(self) -> tuple[int, int]:
        """(iy, ix) of the model itself."""
        return int(np.flatnonzero(self.betas == 0)[0]), int(np.flatnonzero(self.alphas == 0)[0])

    def preview(self) -> "Surface":
        """The finest of the nested grids that is complete: what a picture of an unfinished surface shows."""
        if self.complete:
            return self
        grid = Grid(self.alphas, self.betas)
        ready = [level for level in range(3) if self.computed.flat[np.concatenate(grid.levels[: level + 1])].all()]
        if not ready:
            raise UserError("the surface has too few points for a picture yet")
        rows, columns = np.unravel_index(
            grid.levels[0] if ready[-1] == 0 else np.concatenate(grid.levels[:2]), grid.shape
        )
        where = np.ix_(np.unique(rows), np.unique(columns))
        arrays = {name: getattr(self, name)[where] for name in FIELDS}
        return Surface(self.alphas[where[1][0]], **arrays, meta=self.meta, betas=self.betas[where[0][:, 0]])

    def plot(self, **options: Any) -> Any:
        """A contour picture (matplotlib); `kind="heatmap"` for cells."""
        from diagnostics.plots import surfaces

        return surfaces.plot(self, **options)

    def plot3d(self, **options: Any) -> Any:
        """An interactive 3-D picture (plotly); `backend="matplotlib"` for paper."""
        from diagnostics.plots import surfaces

        return surfaces.plot3d(self, **options)

    def _repr_html_(self) -> str:
        from diagnostics.plots import surfaces

        return surfaces.html(self)

    def __repr__(self) -> str:
        return (
            f"Surface({len(self.alphas)} x {len(self.betas)} points, {self.computed.mean():.0%} computed, "
            f"loss {self.loss[self.centre]:.4g} at the centre)"
        )


@dataclass
class Lines(Measured):
    """Losses along K directions: `loss[k, i]` belongs to alphas[i] on direction k."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Lines":
        """Lines from their folder, finished or not."""
        loaded = load(path)
        if not isinstance(loaded, Lines):
            raise UserError(f"{path}: holds a surface, not lines; use Surface.load")
        return loaded

    def plot(self, **options: Any) -> Any:
        """Mean, median and the band of 10 to 90 % over directions (matplotlib)."""
        from diagnostics.plots import surfaces

        return surfaces.plot_lines(self, **options)

    def __repr__(self) -> str:
        return f"Lines({len(self.loss)} directions x {len(self.alphas)} points)"


def load(path: str | os.PathLike[str]) -> "Surface | Lines":
    """What a folder holds."""
    path = Path(path)
    manifest = store.read_manifest(path)
    arrays = store.read_arrays(path)
    if arrays is None:
        plan = Plan.of_manifest(manifest)
        found = {name: values for name, *_ in plan.chunks() if (values := store.read_chunk(path, name)) is not None}
        return plan.result(found, manifest)
    return _assemble(manifest, **arrays)


def _assemble(manifest: dict[str, Any], **arrays: np.ndarray) -> "Surface | Lines":
    return (Surface if "betas" in arrays else Lines)(**arrays, meta=manifest)


# --- what is to be computed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The chunks of a measurement, and how their sums become arrays."""

    grid: Grid
    planes: int
    count: int  # samples
    chunk: int  # points
    class_counts: dict[str, list[int]]  # by number of samples
    coarse: int = 0  # samples of the first level, when there are two
    refined: tuple[int, ...] | None = None  # flat indices of the second level, once known

    @classmethod
    def of_manifest(cls, manifest: dict[str, Any]) -> "Plan":
        identity, facts = manifest["identity"], manifest["facts"]
        betas = identity.get("betas")
        grid = Grid(np.array(identity["alphas"]), None if betas is None else np.array(betas))
        refined = facts.get("refined")
        return cls(
            grid,
            len(identity["directions"]) if betas is None else 1,
            facts["images"],
            facts["chunk"],
            facts["class_counts"],
            (identity.get("two_level") or {}).get("images", 0),
            None if refined is None else tuple(refined),
        )

    def chunks(self, level: int | None = None) -> list[tuple[str, int, np.ndarray, int]]:
        """(name, plane, flat indices, samples), in the order of computation."""
        found = []
        first, order = self.coarse or self.count, self.grid.order
        for plane in range(self.planes):
            for begin in range(0, len(order), self.chunk):
                found.append((f"{plane}-{begin:06d}", plane, order[begin : begin + self.chunk], first))
        refined = order[np.isin(order, self.refined)] if self.refined is not None else order[:0]
        second = [
            (f"fine-{begin:06d}", 0, refined[begin : begin + self.chunk], self.count)
            for begin in range(0, len(refined), self.chunk)
        ]
        return (found + second) if level is None else (found, second)[level]

    def result(self, found: dict[str, np.ndarray], manifest: dict[str, Any]) -> "Surface | Lines":
        """The arrays of the chunks that are there."""
        columns = COLUMNS + len(self.class_counts[str(self.count)])
        size = self.grid.order.size
        sums = np.full((self.planes, size, columns), np.nan)
        taken = np.zeros((self.planes, size), int)
        shift = 0.0
        for name, plane, flat, count in self.chunks():
            if name in found:
                if count > taken[plane, flat[0]] > 0 and flat[0] == self.grid.order[0]:
                    shift = found[name][0, 0] / count - sums[plane, flat[0], 0] / taken[plane, flat[0]]
                sums[plane, flat], taken[plane, flat] = found[name], count
        values = measures(
            sums, np.maximum(taken, 1), lambda n: np.array(self.class_counts.get(str(n), np.zeros(columns - COLUMNS)))
        )
        computed = taken > 0
        # Coarse points take the centre's difference between few and all samples as a control variate.
        loss = values.loss + np.where(computed & (taken < self.count), shift, 0.0)
        is_plane = self.grid.betas is not None
        shape = self.grid.shape if is_plane else (self.planes, *self.grid.shape)
        arrays = {
            "alphas": self.grid.alphas,
            "loss": loss.reshape(shape),
            "sem": values.sem.reshape(shape),
            "accuracy": values.accuracy.reshape(shape),
            "class_loss": values.class_loss.reshape(*shape, -1) if columns > COLUMNS else np.zeros((*shape, 0)),
            "computed": computed.reshape(shape),
            "samples": taken.reshape(shape),
        }
        return _assemble(manifest, **arrays, **({"betas": self.grid.betas} if is_plane else {}))


# --- the two functions ----------------------------------------------------------------------------------------------


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
        chosen = [measuring.random(seed, index, norm, layers, include) for index in np.arange(count)]
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
        self.settings = {
            "loss": loss, "bn": bn, "logit_norm": logit_norm, "frozen": frozen, "batch_size": batch_size,
            "features": chosen.features, "cut": chosen.features or engine != "plain",
        }  # fmt: skip
        from diagnostics.network import Network
        from diagnostics.objective import crosses_entropy

        self.space = Space(Network(chosen.model, crosses_entropy(loss), frozen).whole)
        self.weights = self.space.checked(self.space.weights if chosen.weights is None else chosen.weights)

    def random(self, seed: int, index: int, norm: Norm, layers: Sequence[str], include: Sequence[str]) -> Direction:
        if self.settings["bn"] == "interpolate":
            raise UserError("bn: 'interpolate' is for directions between models; random ones never move statistics")
        return self.space.random(seed, int(index), norm, weights=self.weights, layers=layers, include=include)

    def given(self, directions: Sequence[Direction], number: int | None) -> list[Direction]:
        if not directions or (number is not None and len(directions) != number):
            raise UserError(f"directions: expected {number or 'at least one'}, got {len(directions)}")
        for one in directions:
            self.space.checked(one.vector)
        return list(directions)

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
        corner = np.array([np.abs(values).max() for values in (grid.alphas, grid.betas) if values is not None])
        sweep = Sweep(problem, corner, workers, executor)
        objective = sweep.objective
        count = len(objective.x)
        identity = {
            "kind": "lines" if grid.betas is None else "surface",
            "weights": fingerprint(self.weights),
            "data": objective.data_hash,
            "directions": [one.sha256 for plane in planes for one in plane],
            "direction_names": [one.name for plane in planes for one in plane],
            "alphas": grid.alphas.tolist(),
            "loss": objective.loss_name,
            "bn": objective.bn,
            "batch_size": objective.batch_size,
            "engine": sweep.facts["engine"],
        }
        if grid.betas is not None:
            identity |= {"betas": grid.betas.tolist(), "two_level": {"images": two_level} if two_level else None}
        folder = None if out is None else store.Folder(Path(out))
        known = folder.check(identity) if folder is not None else None
        if folder is not None and known is not None and store.read_arrays(folder.path) is not None:
            return load(folder.path)
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
        if known is not None:
            _warn_of_versions(known["facts"], facts)
            manifest = known
        plan = Plan(grid, len(planes), count, sweep.chunk, facts["class_counts"], two_level or 0)
        if folder is None:
            return self._fill(plan, manifest, sweep, store.Memory(), progress, on_preview)
        with folder.locked():
            if known is None:
                folder.begin(manifest)
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
        preview_after = len(plan.grid.levels[0])
        label = f"{manifest['identity']['kind']} of {manifest['facts'].get('source', 'the model')}"
        with PointProgress(label, total, progress) as bar:

            def done(name: str, sums: np.ndarray, points: int) -> None:
                nonlocal waiting
                found[name] = sums
                bar.advance(points)
                if waiting and len(found) * plan.chunk >= preview_after and len(found) * plan.chunk < total:
                    waiting = False
                    unfinished = plan.result(found, manifest)
                    assert on_preview is not None
                    assert isinstance(unfinished, Surface)
                    on_preview(unfinished)

            jobs = [(plane, name, coordinates(flat), count) for name, plane, flat, count in plan.chunks()]
            sweep.run(jobs, target, done)
        if plan.coarse:
            from diagnostics.refinement import refine

            plan, facts = refine(plan, plan.result(found, manifest))
            second = plan.chunks(1)
            with PointProgress(f"{label}, all samples", sum(len(flat) for _, _, flat, _ in second), progress) as bar:

                def refined(name: str, sums: np.ndarray, points: int) -> None:
                    found[name] = sums
                    bar.advance(points)

                jobs = [(plane, name, coordinates(flat), count) for name, plane, flat, count in second]
                sweep.run(jobs, target, refined)
            manifest = manifest | {"facts": manifest["facts"] | facts(found)}
        seconds = time.perf_counter() - started
        manifest = manifest | {
            "facts": manifest["facts"] | {"seconds": round(seconds, 3), "points_per_second": round(total / seconds, 3)}
        }
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


def _warn_of_versions(known: dict[str, Any], now: dict[str, Any]) -> None:
    for key in versions():
        if known.get(key) != now[key]:
            warnings.warn(
                f"continued with {key} = {now[key]!r}, it began with {known.get(key)!r}; the last bits may differ",
                stacklevel=4,
            )

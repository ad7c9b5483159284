"""What a measurement gives: surfaces and lines, their files, and how sums of points become arrays."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from diagnostics.surfaces.grid import Grid
from diagnostics.surfaces.objective import COLUMNS, measures
from feddual.errors import UserError
from feddual.records import measurements as store

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
    kind: ClassVar[str]  # for people

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """From its folder, finished or not.

        Args:
            path: The folder.

        Returns:
            What was measured so far.
        """
        loaded = load(path)
        if not isinstance(loaded, cls):
            raise UserError(f"{path}: holds {loaded.kind}, not {cls.kind}; use {type(loaded).__name__}.load")
        return loaded

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a folder: new, or one that holds the same measurement and no point that this one lacks.

        Args:
            path: The folder.

        Returns:
            The folder.
        """
        folder = store.Folder(Path(path))
        folder.check(self.meta["identity"])  # a folder of something else is not even locked
        with folder.locked():
            if folder.check(self.meta["identity"]) and (load(folder.path).computed & ~self.computed).any():
                raise UserError(f"{path}: holds points that are not computed here; nothing was changed")
            folder.finish(self.meta, self.arrays())
        return folder.path

    def arrays(self) -> dict[str, np.ndarray]:
        """What is kept in a file."""
        return {"alphas": self.alphas} | {name: getattr(self, name) for name in FIELDS}

    @property
    def complete(self) -> bool:
        """Whether every point is computed; with two levels, on all the samples it should be."""
        half = self.meta["identity"].get("two_level") and "refined" not in self.meta["facts"]
        return bool(self.computed.all()) and not half

    def caption(self) -> str:
        """The facts in a sentence or two."""
        from figures.charts.captions import caption

        return caption(self)


@dataclass
class Surface(Measured):
    """Losses over a plane: `loss[iy, ix]` belongs to (alphas[ix], betas[iy])."""

    betas: np.ndarray = field(default_factory=lambda: np.zeros(0))
    kind = "a surface"

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"betas": self.betas}

    @property
    def centre(self) -> tuple[int, int]:
        """(iy, ix) of the model itself."""
        return int(np.flatnonzero(self.betas == 0)[0]), int(np.flatnonzero(self.alphas == 0)[0])

    def preview(self) -> "Surface":
        """The finest of the nested grids that is complete: what a picture of an unfinished surface shows."""
        if self.computed.all():
            return self
        grid = Grid(self.alphas, self.betas)
        ready = [level for level in range(3) if self.computed.flat[np.concatenate(grid.levels[: level + 1])].all()]
        if not ready:
            raise UserError("the surface has too few points for a picture yet")
        rows, columns = np.unravel_index(np.concatenate(grid.levels[: min(ready[-1], 1) + 1]), grid.shape)
        where = np.ix_(np.unique(rows), np.unique(columns))
        arrays = {name: getattr(self, name)[where] for name in FIELDS}
        return Surface(self.alphas[where[1][0]], **arrays, meta=self.meta, betas=self.betas[where[0][:, 0]])

    def plot(self, **options: Any) -> Any:
        """A contour picture.

        Args:
            **options: `kind="heatmap"` for cells; `cap`, the largest loss to draw; `name`, for the title.

        Returns:
            A matplotlib figure.
        """
        from figures.charts import surfaces

        return surfaces.plot(self, **options).matplotlib()

    def plot3d(self, *, backend: str = "plotly", name: str = "", cap: float | None = None) -> Any:
        """A picture in three dimensions.

        Args:
            backend: plotly, to turn, or matplotlib, for paper.
            name: For the title.
            cap: The largest loss to draw.

        Returns:
            A plotly figure, or a matplotlib one.
        """
        from figures.charts import surfaces

        return surfaces.panels3d({name: self}, cap=cap).draw(backend)

    def _repr_html_(self) -> str:
        from figures.charts import surfaces

        return surfaces.html(self)

    def __repr__(self) -> str:
        return (
            f"Surface({len(self.alphas)} x {len(self.betas)} points, {self.computed.mean():.0%} computed, "
            f"loss {self.loss[self.centre]:.4g} at the centre)"
        )


@dataclass
class Lines(Measured):
    """Losses along K directions: `loss[k, i]` belongs to alphas[i] on direction k."""

    kind = "lines"

    def plot(self, **options: Any) -> Any:
        """Mean, median and the band of 10 to 90 % over directions.

        Args:
            **options: `cap`, the largest loss to draw; `single=False` leaves the single directions out.

        Returns:
            A matplotlib figure.
        """
        from figures.charts.lines import plot_lines

        return plot_lines(self, **options).matplotlib()

    def __repr__(self) -> str:
        return f"Lines({len(self.loss)} directions x {len(self.alphas)} points)"


def load(path: str | os.PathLike[str]) -> "Surface | Lines":
    """What a folder holds."""
    path = Path(path)
    manifest = store.read_manifest(path)
    if manifest["identity"].get("kind") == "spectrum":
        raise UserError(f"{path}: holds a spectrum; use diagnostics.Spectrum.load")
    arrays = store.read_arrays(path)
    if arrays is None:
        plan = Plan.of_manifest(manifest)
        found = {name: values for name, *_ in plan.chunks() if (values := store.read_chunk(path, name)) is not None}
        return plan.result(found, manifest)
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
        if identity["order"] != grid.order_hash:
            raise UserError("the unfinished surface was begun by another version, in another order; compute it anew")
        planes, coarse = len(identity["directions"]) if betas is None else 1, identity.get("two_level") or {}
        refined = None if facts.get("refined") is None else tuple(facts["refined"])
        return cls(
            grid, planes, facts["images"], facts["chunk"], facts["class_counts"], coarse.get("images", 0), refined
        )

    def chunks(self, level: int | None = None) -> list[tuple[str, int, np.ndarray, int]]:
        """(name, plane, flat indices, samples), in the order of computation."""
        order = self.grid.order
        refined = order[np.isin(order, self.refined)] if self.refined is not None else order[:0]

        def cut(label: str, plane: int, flat: np.ndarray, count: int) -> list[tuple[str, int, np.ndarray, int]]:
            starts = range(0, len(flat), self.chunk)
            return [(f"{label}-{begin:06d}", plane, flat[begin : begin + self.chunk], count) for begin in starts]

        first = [one for p in range(self.planes) for one in cut(str(p), p, order, self.coarse or self.count)]
        second = cut("fine", 0, refined, self.count)
        return first + second if level is None else (first, second)[level]

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
        shape = (self.planes, *self.grid.shape) if self.grid.betas is None else self.grid.shape
        class_loss = values.class_loss.reshape(*shape, columns - COLUMNS)
        over_points = (loss, values.sem, values.accuracy, computed, taken)
        loss, sem, accuracy, computed, samples = (array.reshape(shape) for array in over_points)
        arrays = (self.grid.alphas, loss, sem, accuracy, class_loss, computed, samples)
        return Lines(*arrays, manifest) if self.grid.betas is None else Surface(*arrays, manifest, self.grid.betas)

"""A model and the data its loss is looked at on: the one object that surfaces and other measurements start from."""

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics import subject
from diagnostics.curvature.measuring import Effort, Measuring
from diagnostics.curvature.operator import Curvature, Kind
from diagnostics.curvature.spectrum import Spectrum
from diagnostics.subject import Subject
from diagnostics.surfaces.directions import Direction, Norm, Scale, Space, usable
from diagnostics.surfaces.grid import Extent, Grid
from diagnostics.surfaces.losses import Loss, compiled_loss
from diagnostics.surfaces.measure import Measurement, Running
from diagnostics.surfaces.objective import BatchNorm, Measures, Objective
from diagnostics.surfaces.results import Lines, Surface
from feddual.errors import UserError

if TYPE_CHECKING:
    from diagnostics.flatness.sharpness_result import Sharpness


class Landscape:
    """The loss of a model on fixed data, as a function of its weights.

    The model is read, never changed. Samples are a fixed subset, the same for every model of a comparison: stratified
    by class, drawn at random where y has none.

    Args:
        source: A Keras model (then with `x` and `y`), a run, or a run's folder.
        x: Inputs, shape (n, ...).
        y: Targets: integers, one-hot rows, or what `loss` takes.
        images: How many samples; None for all.
        split: Of a run's data: test, or train (what clients hold, pooled; an example that several hold counts once).
        round: Of a run: a kept checkpoint, the last by default.
        client: Of a run: look at the training data of this client alone.
        weights: A vector in the layout of the model's weights, to look at instead of those it holds: a client's own
            model, or one in between.
        seed: Of the choice of samples and of random directions.
        loss: None for the loss the model was compiled with or, without one and for runs, cross-entropy from logits;
            `crossentropy`, `mse`, a Keras loss or its name, or a function from (targets, outputs) to one loss per
            sample.
        regularisation: Add the layers' own losses (weight decay and the like), as `evaluate` does.
        sample_weight: One number per row of x, by which its loss is multiplied; the mean is over rows, as in Keras.
        class_weight: Instead, numbers by class: {0: 1.0, 1: 5.0}; 1 for those left out.
        bn: Moving statistics: frozen, recalibrate or interpolate; see `Objective`.
        logit_norm: Take confidence out: normalise each sample's logits first.
        frozen: Let directions move frozen layers too.
        batch_size: Samples at a time.
        engine: auto (exact rewrites, checked against the plain path at nine points) or plain.

    Raises:
        UserError: For input that cannot be used.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> landscape = diagnostics.Landscape(model, x, y)
        >>> landscape.surface(grid=5, progress=False).loss.shape
        (5, 5)
        >>> landscape.lines(count=3, grid=5, progress=False).loss.shape
        (3, 5)
        >>> landscape.sharpness(["sam"], progress=False).table["measure"].tolist()
        ['gradient_norm', 'sam']
    """

    def __init__(
        self,
        source: Any,
        x: Any = None,
        y: Any = None,
        *,
        images: int | None = 2000,
        split: str = "train",
        round: int | None = None,
        client: int | None = None,
        weights: np.ndarray | None = None,
        seed: int = 0,
        loss: Loss = None,
        regularisation: bool = False,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        bn: BatchNorm = "frozen",
        logit_norm: bool = False,
        frozen: bool = False,
        batch_size: int = 500,
        engine: str = "auto",
    ):
        if engine not in ("auto", "plain"):
            raise UserError(f"engine: {engine!r} is unknown; allowed: auto, plain")
        chosen = subject.resolve(source, x, y, round, split, images, seed, sample_weight, class_weight, client)
        if weights is not None:
            chosen = replace(chosen, weights=np.asarray(weights, np.float32))
        self.subject: Subject = chosen
        self.seed, self.engine = seed, engine
        if loss is None and chosen.is_given:
            loss = chosen.cache.setdefault("compiled", compiled_loss(chosen.model, chosen.y))
        self.settings: dict[str, Any] = {
            "loss": loss, "regularisation": regularisation, "sample_weight": chosen.sample_weight, "bn": bn,
            "logit_norm": logit_norm, "frozen": frozen, "batch_size": batch_size,
            "features": chosen.features, "cut": chosen.features or engine != "plain",
        }  # fmt: skip
        key = json.dumps({**self.settings, "loss": id(loss), "sample_weight": None})
        if key not in chosen.cache:  # the loss itself is kept too, so that its id stays its own
            objective = Objective(chosen.model, chosen.x, chosen.y, **self.settings, originals=chosen.originals)
            chosen.cache[key] = objective, Space(objective.network.whole), loss
        self.objective: Objective
        self.space: Space
        self.objective, self.space, _ = chosen.cache[key]
        self.weights = self.space.checked(self.space.weights if chosen.weights is None else chosen.weights)

    def measures(self) -> Measures:
        """Loss, its standard error, accuracy and the loss of each class at the model itself."""
        return self.objective(self.weights)

    def surface(
        self,
        *,
        grid: int | str | tuple[int, int] = 51,
        extent: Extent = 1.0,
        direction: int = 0,
        norm: Norm = "filter",
        layers: Sequence[str] = (),
        include: Sequence[str] = (),
        directions: Sequence[Direction] | None = None,
        two_level: int | None = None,
        out: str | os.PathLike[str] | None = None,
        workers: int = 1,
        executor: str = "processes",
        progress: bool = True,
        on_preview: Callable[[Surface], None] | None = None,
    ) -> Surface:
        """The loss over a plane through the model's weights.

        Args:
            grid: Points along each axis, n or (nx, ny); odd, so that the model stands on one of them.
            extent: How far the axes go, in units of the direction: 1 moves every filter by its own norm. A number,
                (low, high), or two such pairs.
            direction: Which pair of random directions.
            norm: filter, layer or model.
            layers: Move only these layers.
            include: Also move `bias`, `norm` (normalisation layers).
            directions: Two directions of your own, from `diagnostics.Space`, instead of random ones.
            two_level: Compute all points on this many samples, then all samples only near contour levels and around
                the centre; `samples` says which, `meta["facts"]["two_level"]` with what error.
            out: A folder to keep the result in; the same call continues an unfinished one.
            workers: Processes.
            executor: What runs them.
            progress: Show a bar, or lines where there is no terminal.
            on_preview: Called with the unfinished surface when the coarse grid (the first 5 %) is there.

        Returns:
            The surface; `surface.loss[iy, ix]` belongs to (alphas[ix], betas[iy]).

        Raises:
            UserError: For input that cannot be used, before anything is written.
        """
        plane = Grid.plane(grid, extent)
        if directions is None:
            chosen = [self._random(2 * direction + axis, norm, layers, include) for axis in (0, 1)]
        else:
            chosen = usable(directions, self.space, 2)
        count = len(self.subject.y)
        if two_level is not None and not 1 <= two_level < count:
            raise UserError(f"two_level: must be from 1 to below the {count} samples, got {two_level}")
        running = Running(out, workers, executor, progress, on_preview)
        return Measurement(self, plane, [chosen], two_level).run(running)

    def lines(
        self,
        *,
        count: int = 10,
        grid: int = 41,
        extent: float | tuple[float, float] = 1.0,
        alphas: Sequence[float] | None = None,
        norm: Norm = "filter",
        layers: Sequence[str] = (),
        include: Sequence[str] = (),
        directions: Sequence[Direction] | None = None,
        out: str | os.PathLike[str] | None = None,
        workers: int = 1,
        executor: str = "processes",
        progress: bool = True,
    ) -> Lines:
        """The loss along random directions, or given ones: a bundle of lines through the model.

        With `directions=[space.between(a, b)]` and `extent=(0, 1)` it is the line between two models.

        Args:
            count: How many random directions.
            grid: Points along each.
            extent: How far they go, a number or (low, high).
            alphas: The steps one by one, instead of `grid` and `extent`; 0 must be one of them.
            norm: As for `surface`, like all that follow.
            layers: Move only these layers.
            include: Also move `bias`, `norm`.
            directions: Directions of your own.
            out: A folder to keep the result in.
            workers: Processes.
            executor: What runs them.
            progress: Show a bar.

        Returns:
            The lines; `lines.loss[k, i]` belongs to alphas[i] on direction k.
        """
        line = Grid.line(grid, extent) if alphas is None else Grid.at(alphas)
        if directions is None:
            if count < 1:
                raise UserError(f"count: at least one direction is needed, got {count}")
            chosen = [self._random(index, norm, layers, include) for index in np.arange(count).tolist()]
        else:
            chosen = usable(directions, self.space, None)
        return Measurement(self, line, [[one] for one in chosen]).run(Running(out, workers, executor, progress))

    def sharpness(
        self,
        measures: str | Sequence[str] = "default",
        *,
        budget: str | float = "default",
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        **settings: Any,
    ) -> "Sharpness":
        """How sharp the loss is around the model, by many measures; docs/diagnostics.md says what each is worth.

        Args:
            measures: `default`, what the budget has, or names of `diagnostics.flatness.catalogue.GROUPS`.
            budget: cheap, default, full, or how many passes over the data it may take; what is left out is said.
            out: A folder to keep the result in; the same call continues an unfinished one.
            progress: Show a bar.
            **settings: How: `directions=10` (and draws), `layers`, `include` as for lines, and step sizes and the like,
                as `tau=0.1`, `worst_l2=(0.5,)` (`diagnostics.flatness.readings.Settings`).

        Returns:
            The table of values with errors and costs, the radial profile, and the gradient by layer.
        """
        from diagnostics.flatness.sharpness import measure

        return measure(self, measures, budget=budget, out=out, progress=progress, **settings)

    def curvature(
        self, kind: Kind = "hessian", scale: Scale = "none", layers: Sequence[str] = (), include: Sequence[str] = ()
    ) -> Curvature:
        """The second derivatives at the model, as a linear operator on vectors.

        Args:
            kind: hessian or ggn (which leaves out the curvature of the network itself).
            scale: none, filter (on which a surface's random directions are alike) or abs.
            layers: Only the block of these layers.
            include: With a scale, `bias` and `norm` move too.

        Returns:
            The operator.
        """
        return Curvature(self, kind, scale, layers, include)

    def spectrum(
        self,
        k: int = 5,
        *,
        steps: int = 80,
        draws: int = 10,
        probes: int = 99,
        kind: Kind = "hessian",
        scale: Scale = "none",
        layers: Sequence[str] = (),
        include: Sequence[str] = (),
        layerwise: bool = False,
        tolerance: float = 1e-4,
        budget: int | None = None,
        seed: int | None = None,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Spectrum:
        """The curvature's eigenvalues at both ends, its trace and its density.

        Args:
            k: How many eigenvalues at each end.
            steps: Lanczos steps of each draw; a pass over the samples each, like every product.
            draws: Random starts of the density.
            probes: Products for the trace (Hutch++).
            kind: hessian or ggn.
            scale: none, filter or abs; see `Curvature`.
            layers: Only the block of these layers.
            include: With a scale, `bias` and `norm` move too.
            layerwise: Look for each layer's largest eigenvalue, too; their traces are there in any case.
            tolerance: Of the eigenvalues' residuals, relative to the largest |eigenvalue|.
            budget: Products at most: fewer draws are made, then fewer probes, then fewer steps.
            seed: Of the random vectors; the landscape's by default.
            out: A folder to keep the result in; the same call continues an unfinished one.
            progress: Show a bar.

        Returns:
            The spectrum.
        """
        effort = Effort(k, steps, draws, probes, tolerance, layerwise)
        chosen = self.seed if seed is None else seed
        return Measuring(self, self.curvature(kind, scale, layers, include), effort, budget, chosen).run(out, progress)

    def _random(self, index: int, norm: Norm, layers: Sequence[str], include: Sequence[str]) -> Direction:
        if self.settings["bn"] == "interpolate":
            raise UserError("bn: 'interpolate' is for directions between models; random ones never move statistics")
        return self.space.random(self.seed, index, norm, weights=self.weights, layers=layers, include=include)


def loss_surface(
    source: Any,
    x: Any = None,
    y: Any = None,
    *,
    grid: int | str | tuple[int, int] = 51,
    extent: Extent = 1.0,
    images: int | None = 2000,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **more: Any,
) -> Surface:
    """The loss over a plane through a model's weights: `Landscape(source, x, y, ...).surface(...)` in one call.

    Args:
        source: A Keras model (then with `x` and `y`), a run, or a run's folder.
        x: Inputs, shape (n, ...).
        y: Targets.
        grid: Points along each axis; odd.
        extent: How far the axes go; 1 moves every filter by its own norm.
        images: How many samples; None for all.
        out: A folder to keep the result in; the same call continues an unfinished one.
        progress: Show a bar.
        **more: Any other argument of `Landscape` or of `Landscape.surface`.

    Returns:
        The surface.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> surface = diagnostics.loss_surface(model, x, y, grid=5, extent=0.5, progress=False)
        >>> surface.alphas
        array([-0.5 , -0.25,  0.  ,  0.25,  0.5 ])
        >>> bool(surface.loss[surface.centre] == surface.loss[2, 2])
        True
    """
    about, how = _parted(more, Landscape.surface)
    landscape = Landscape(source, x, y, images=images, **about)
    return landscape.surface(grid=grid, extent=extent, out=out, progress=progress, **how)


def loss_lines(
    source: Any,
    x: Any = None,
    y: Any = None,
    *,
    count: int = 10,
    images: int | None = 2000,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **more: Any,
) -> Lines:
    """The loss along lines through a model's weights: `Landscape(source, x, y, ...).lines(...)` in one call.

    Args:
        source: A Keras model (then with `x` and `y`), a run, or a run's folder.
        x: Inputs, shape (n, ...).
        y: Targets.
        count: How many random directions.
        images: How many samples; None for all.
        out: A folder to keep the result in.
        progress: Show a bar.
        **more: Any other argument of `Landscape` or of `Landscape.lines`.

    Returns:
        The lines.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> diagnostics.loss_lines(model, x, y, count=4, grid=3, progress=False)
        Lines(4 directions x 3 points)
    """
    about, how = _parted(more, Landscape.lines)
    return Landscape(source, x, y, images=images, **about).lines(count=count, out=out, progress=progress, **how)


def _parted(more: dict[str, Any], method: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of a landscape, and those of its method."""
    about, how = (set(inspect.signature(function).parameters) for function in (Landscape, method))
    unknown = set(more) - about - how
    if unknown:
        allowed = ", ".join(sorted((about | how) - {"self", "source", "x", "y"}))
        raise TypeError(f"unexpected argument {', '.join(map(repr, sorted(unknown)))}; allowed: {allowed}")
    return {key: more[key] for key in more if key in about}, {key: more[key] for key in more if key in how}

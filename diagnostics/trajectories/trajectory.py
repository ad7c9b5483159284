"""How training moved through weight space: the checkpoints of one or several runs in the plane where they move most.

Coordinates are projections of θ_t − θ_T on the principal directions of these differences (`surfaces.principal`), with
θ_T the last model of the first run: it lies at zero, and the loss surface through it along the same directions has the
same axes, distances in weight space. A checkpoint does not lie in the plane; how far off it is, and its own loss, stand
beside its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import subject as samples
from diagnostics import tables
from diagnostics.landscape import Landscape
from diagnostics.merging.clients import client_models
from diagnostics.surfaces.measure import versions
from diagnostics.surfaces.principal import Principal, extents_around, principal
from diagnostics.surfaces.results import Surface
from diagnostics.trajectories.walk import walk_shares
from feddual import setting
from feddual.api import Run
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint, read
from feddual.records import measurements as store
from feddual.records.slim import open_run

FILE = "trajectory.json"
SURFACE = "surface"  # the folder of the loss over the plane
GLOBAL, CLIENT = "global", "client"


@dataclass
class Trajectory:
    """Checkpoints in a plane; `diagnostics.trajectory` makes it.

    Attributes:
        points: A row per checkpoint, and per client of the rounds that were asked for: run, round, kind (global or
            client), client, alpha, beta, off (distance from the plane), distance (from the origin), loss and error.
        shares: Of the checkpoints' summed squared distances from the origin, what each direction holds.
        walk: The same of random walks with as many steps, to compare with.
        surface: The loss over the plane, if it was asked for.
        settings: What was asked for, and facts.
        identity: All that determines the numbers.
    """

    points: pd.DataFrame
    shares: np.ndarray
    walk: np.ndarray
    surface: Surface | None = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    identity: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: str | Path) -> "Trajectory":
        """From its folder.

        Args:
            path: The folder.

        Returns:
            What was measured.
        """
        path = Path(path)
        found = tables.read(path / FILE)
        if found is None:
            raise UserError(f"{path}: no trajectory here (no {FILE}); `python -m diagnostics trajectory RUN` makes one")
        surface = Surface.load(path / SURFACE) if found["settings"]["grid"] else None
        points, shares, walk = tables.frame(found["points"]), np.array(found["shares"]), np.array(found["walk"])
        return cls(points, shares, walk, surface, found["settings"], found["identity"])

    def save(self, path: str | Path) -> Path:
        """One JSON file, the points as CSV beside it, and the surface's folder.

        Args:
            path: A folder, new or of the same measurement.

        Returns:
            The folder.
        """
        path = Path(path)
        check(path, self.identity)
        if self.surface is not None and not (path / SURFACE / store.ARRAYS).exists():
            self.surface.save(path / SURFACE)
        numbers = {"shares": self.shares.tolist(), "walk": self.walk.tolist()}
        tables.write(path / FILE, self.identity, {"points": self.points}, settings=self.settings, **numbers)
        return path

    @property
    def runs(self) -> list[str]:
        """Their names."""
        return list(dict.fromkeys(self.points["run"]))

    def of(self, run: str, kind: str = GLOBAL) -> pd.DataFrame:
        """The rows of one run.

        Args:
            run: Its name.
            kind: global or client.

        Returns:
            In the order of rounds.
        """
        rows = self.points[(self.points["run"] == run) & (self.points["kind"] == kind)]
        return rows.sort_values("round", kind="stable")

    def plot(self) -> Any:
        """The paths over the loss, and how far from the plane they are.

        Returns:
            A matplotlib figure.
        """
        from figures.charts import trajectories

        return trajectories.trajectory(self).matplotlib()

    def caption(self) -> str:
        """The facts, and what they do not show."""
        path = self.points[self.points["kind"] == GLOBAL]
        off = path["off"] / path["distance"].where(path["distance"] > 0)
        return (
            f"{self.settings['of']}: {len(path)} checkpoints in the plane of the two principal directions of their "
            f"differences from the last model of {self.runs[0]} (at zero), which hold {self.shares[0]:.0%} and "
            f"{self.shares[1]:.0%} of the summed squared distances; random walks of as many steps would have "
            f"{self.walk[0]:.0%} and {self.walk[1]:.0%}. Axes are distances in weight space. Points are coloured "
            f"by the loss of the checkpoint itself, contours are the loss in the plane; checkpoints lie up to "
            f"{off.max():.0%} of their distance off the plane."
        )


def trajectory(
    *runs: Run | str | Path,
    rounds: Sequence[int] | None = None,
    clients: Sequence[int] = (),
    grid: int | None = 25,
    images: int | None = 2000,
    split: str = "train",
    seed: int = 0,
    bn: Any = "frozen",
    batch_size: int = 500,
    out: str | Path | None = None,
    progress: bool = True,
) -> Trajectory:
    """Where training went, in the plane in which the checkpoints of all runs lie furthest apart.

    Args:
        *runs: Runs of one architecture, or their folders; they are all evaluated on the first one's data. The initial
            model is made again, the others are kept checkpoints.
        rounds: Which checkpoints; by default all that each run has kept.
        clients: Rounds whose clients are shown too, where they can be done again (`run.replayable`); they do not turn
            the plane.
        grid: Points along each axis of the loss over the plane; None for none.
        images: Samples, fixed and stratified; None for all.
        split: train (what clients of all runs hold) or test.
        seed: Of their choice.
        bn: Moving statistics over the plane: frozen (those of the last model) or recalibrate. Points have their own.
        batch_size: Samples at a time.
        out: A folder to keep the result in; the same call continues.
        progress: Show a bar.

    Returns:
        Places, distances from the plane, losses, and the loss over the plane.

    Raises:
        UserError: For runs of different architectures, or with fewer than three different models in all.

    Example:
        >>> import tempfile, diagnostics, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 3, "clients_per_round": 2},
        ...         "checkpoint": {"every": 1, "keep": "all"}}
        >>> run = feddual.run(tiny, out=f"{tempfile.mkdtemp()}/run", progress=False)
        >>> found = diagnostics.trajectory(run, grid=5, progress=False)
        >>> found.points["round"].tolist()
        [0, 1, 2, 3]
        >>> found.points[["alpha", "beta"]].iloc[-1].tolist()  # the last model is the origin
        [0.0, 0.0]
    """
    opened = dict(zip(run_names(runs), map(_opened, runs), strict=True))
    places = _checkpoints(opened, rounds)
    last = [one for one in places if one.run == places[0].run][-1]
    subject = samples.of_run(next(iter(opened.values())), last.round, split, images, seed, among=[*opened.values()])
    layout = Layout.of_model(subject.model)
    places += _satellites(opened, clients)
    _check_layouts(places, layout)
    asked: dict[str, Any] = {"rounds": None if rounds is None else list(rounds), "clients": list(clients), "grid": grid}
    asked |= {"images": images, "split": split, "seed": seed, "bn": bn, "batch_size": batch_size}
    identity = asked | {
        "points": [[one.run, one.round, one.client] for one in places],
        "weights": fingerprint(*(one.weights for one in places)), "data": fingerprint(subject.x, subject.y),
    }  # fmt: skip
    folder = None if out is None else Path(out)
    if folder is not None:
        check(folder, identity)
    path = [one for one in places if one.client is None]
    plane = principal([one.weights for one in path], last.weights, layout.num_trainable)
    landscape = Landscape(subject, weights=last.weights, bn=bn, batch_size=batch_size)
    points = pd.DataFrame(_points(places, plane, landscape))
    surface = None
    if grid is not None:
        extent = extents_around(points[["alpha", "beta"]].to_numpy(float), grid)
        target = None if folder is None else folder / SURFACE
        surface = landscape.surface(
            grid=grid, extent=extent, directions=plane.directions, out=target, progress=progress
        )
    walks = walk_shares([[one.round for one in path if one.run == name] for name in opened])
    settings = asked | {"of": ", ".join(opened), "parameters": layout.num_trainable, **versions()}
    made = Trajectory(points, plane.shares, walks, surface, settings, identity)
    if folder is not None:
        made.save(folder)
    return made


def check(path: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another measurement."""
    if (found := tables.read(path / FILE)) is not None:
        store.refuse_other(path, "measurement", found.get("identity", {}), identity)


@dataclass(frozen=True)
class _Place:
    """A model of a run after a round: the global one, or a client's."""

    run: str
    round: int
    weights: np.ndarray
    layout: Layout
    client: int | None = None


def _opened(run: Any) -> Run:
    if not isinstance(run, (str, Path, Run)):
        raise UserError(f"trajectory: expected runs or their folders, got {type(run).__name__}")
    return run if isinstance(run, Run) else Run(run)


def run_names(runs: Sequence[Any]) -> list[str]:
    """What runs are called: their folders' names, with those above where these are the same."""
    if not runs:
        raise UserError("trajectory: at least one run is needed")
    paths = [_opened(run).path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"trajectory: {paths[0]} is given twice")


def _checkpoints(opened: Mapping[str, Run], rounds: Sequence[int] | None) -> list[_Place]:
    """The global models of all runs, in the order of rounds; the first ones are made again from the config."""
    found = []
    for name, run in opened.items():
        record = open_run(run.path)
        there = sorted({0, *run.checkpoints})
        if rounds is not None and (missing := sorted(set(rounds) - set(there))):
            raise UserError(f"{run.path}: round {missing[0]} was not kept; there are {', '.join(map(str, there))}")
        for number in there if rounds is None else sorted(set(rounds)):
            if number in run.checkpoints:
                kept = record.read_checkpoint(number)
                found.append(_Place(name, number, kept.weights, kept.layout))
            else:
                model = setting.of(run.config).network.model
                found.append(_Place(name, 0, read(model), Layout.of_model(model)))
    return found


def _satellites(opened: Mapping[str, Run], rounds: Sequence[int]) -> list[_Place]:
    """The clients' models of some rounds, of every run."""
    found = []
    for name, run in opened.items():
        for number in rounds:
            clients = client_models(run, number)
            for client, weights in clients.by_client.items():
                found.append(_Place(name, number, weights, clients.layout, client))
    return found


def _check_layouts(places: Sequence[_Place], layout: Layout) -> None:
    for one in places:
        if one.layout != layout:
            raise UserError(f"trajectory: {one.run} has another architecture than {places[0].run}")


def _points(places: Sequence[_Place], plane: Principal, landscape: Landscape) -> list[dict[str, Any]]:
    """Where each model lies, and its own loss."""
    rows = []
    coordinates, off = plane.project([one.weights for one in places])
    for place, (alpha, beta), aside in zip(places, coordinates, off, strict=True):
        found = landscape.objective(place.weights)
        rows.append({
            "run": place.run, "round": place.round, "kind": GLOBAL if place.client is None else CLIENT,
            "client": place.client, "alpha": float(alpha), "beta": float(beta), "off": float(aside),
            "distance": float(np.sqrt(alpha**2 + beta**2 + aside**2)), "loss": float(found.loss),
            "error": 1 - float(found.accuracy),
        })  # fmt: skip
    return rows

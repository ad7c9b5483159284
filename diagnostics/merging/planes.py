"""A plane through the global model near its clients: the loss on all data and on each client's own, clients as points.

The plane is spanned by the two principal directions of the clients' differences from the global model, unit vectors in
weight space, so a step of 1 is a distance of 1 between weights. The clients do not lie in it: their distances from it
stand beside their coordinates, and their losses are their own, not those of their places in the plane.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import subject as samples
from diagnostics import tables
from diagnostics.landscape import Landscape
from diagnostics.merging.clients import ClientModels, client_models
from diagnostics.surfaces.measure import versions
from diagnostics.surfaces.principal import Principal, extents_around, principal
from diagnostics.surfaces.results import Surface
from feddual.api import Run
from feddual.errors import UserError
from feddual.records import measurements as store

FILE = "planes.json"
MARGIN = 0.4  # of the clients' span: a client's data may have their lowest loss beyond its own place
POOLED = "all clients' data"
TABLES = ("clients", "pairs")


@dataclass
class ClientPlanes:
    """Losses over one plane on several data; `diagnostics.client_planes` makes it.

    Attributes:
        surfaces: By data: `all clients' data`, then `client 3`, ...; all over the same plane, whose zero is the global
            model after the round.
        clients: A row per client: alpha and beta (its place in the plane), off (its distance from the plane),
            distance (from the global model) and relative (the same over the norm of the global weights); loss and
            own_loss, of its model on all data and on its own, global_own_loss, of the global model on its data; where
            its own loss is lowest on the grid: min_alpha, min_beta, min_loss, min_distance (from the global model),
            at_edge (the grid ends there, so it may lie further out).
        pairs: Of two clients: distance, relative, and the cosine between their differences from the global model.
        settings: What was asked for, and facts: `shares` is how much of the clients' summed squared distances each
            principal direction holds.
        identity: All that determines the numbers.
    """

    surfaces: dict[str, Surface] = field(repr=False)
    clients: pd.DataFrame
    pairs: pd.DataFrame
    settings: dict[str, Any] = field(repr=False)
    identity: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: str | Path) -> "ClientPlanes":
        """From its folder.

        Args:
            path: The folder.

        Returns:
            What was measured.
        """
        found = tables.read(Path(path) / FILE)
        if found is None:
            raise UserError(f"{path}: no client planes here (no {FILE})")
        surfaces = {name: Surface.load(_folder(Path(path), name)) for name in found["settings"]["on"]}
        clients, pairs = (tables.frame(found[name]) for name in TABLES)
        return cls(surfaces, clients, pairs, found["settings"], found["identity"])

    def save(self, path: str | Path) -> Path:
        """Tables as JSON and CSV, a folder for each surface.

        Args:
            path: A folder, new or of the same measurement.

        Returns:
            The folder.
        """
        path = Path(path)
        _check(path, self.identity)
        for name, surface in self.surfaces.items():
            if not (_folder(path, name) / store.ARRAYS).exists():
                surface.save(_folder(path, name))
        every = {name: getattr(self, name) for name in TABLES}
        tables.write(path / FILE, self.identity, every, settings=self.settings)
        return path

    def plot(self) -> Any:
        """A small plane for each client, its own place marked.

        Returns:
            A matplotlib figure.
        """
        from figures.charts import merging

        return merging.planes(self).matplotlib()

    def caption(self) -> str:
        """The facts in a sentence or two."""
        first, second = self.settings["shares"][:2]
        return (
            f"{self.settings['of']}: loss over the plane of the two principal directions of their differences from the "
            f"global model (+), which hold {first:.0%} and {second:.0%} of the summed squared distances; distances in "
            f"weight space. Clients lie {self.clients['off'].min():.2g} to {self.clients['off'].max():.2g} beside the "
            f"plane and {self.clients['relative'].mean():.1%} of the global model's norm from it on average."
        )


def client_planes(
    run: Run | str | Path,
    round: int | None = None,
    *,
    clients: Sequence[int] | None = None,
    grid: int = 15,
    images: int | None = 1000,
    seed: int = 0,
    bn: Any = "recalibrate",
    batch_size: int = 500,
    out: str | Path | None = None,
    progress: bool = True,
) -> ClientPlanes:
    """The loss near a round's clients, on all data and on each client's own.

    Args:
        run: A run or its folder.
        round: One of `run.replayable`, the last by default.
        clients: Whose own data is looked at; by default that of all clients of the round. All of them are points.
        grid: Points along each axis.
        images: Samples of all clients' data, and at most of each client's; None for all.
        seed: Of their choice.
        bn: Moving statistics: recalibrate or frozen.
        batch_size: Samples at a time.
        out: A folder to keep the result in; the same call continues.
        progress: Show bars.

    Returns:
        A surface for each data, and where the clients lie.

    Raises:
        UserError: For input that cannot be used, before anything is measured.

    Example:
        >>> import tempfile, diagnostics, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 90, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 3}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 1, "clients_per_round": 3}}
        >>> run = feddual.run(tiny, out=f"{tempfile.mkdtemp()}/run", progress=False)
        >>> found = diagnostics.client_planes(run, grid=5, progress=False)
        >>> list(found.surfaces)
        ["all clients' data", 'client 0', 'client 1', 'client 2']
    """
    opened = run if isinstance(run, Run) else Run(run)
    found = client_models(opened, round)
    shown = found.clients.tolist() if clients is None else list(clients)
    if unknown := [client for client in shown if client not in found.clients]:
        raise UserError(
            f"clients: {unknown[0]} is not of round {found.round}, whose clients are "
            f"{', '.join(map(str, found.clients))}"
        )
    about = samples.of_run(opened, None, "train", images, seed)
    pooled = replace(about, facts=about.facts | {"round": found.round}, weights=found.after)
    own = dict(zip(shown, samples.of_clients(opened, shown, pooled, images, seed), strict=True))
    plane = principal(list(found.weights), found.after, found.layout.num_trainable)
    asked = {"round": found.round, "clients": shown, "grid": grid, "images": images, "seed": seed, "bn": bn}
    identity = asked | {"batch_size": batch_size, "weights": found.sha256}
    folder = None if out is None else Path(out)
    if folder is not None:
        _check(folder, identity)
    extent = extents_around(plane.coordinates, grid, margin=MARGIN)
    surfaces, points = {}, {}
    for name, subject in {POOLED: pooled, **{f"client {client}": one for client, one in own.items()}}.items():
        landscape = Landscape(subject, weights=found.after, bn=bn, batch_size=batch_size)
        target = None if folder is None else _folder(folder, name)
        surfaces[name] = landscape.surface(
            grid=grid, extent=extent, directions=plane.directions, out=target, progress=progress
        )
        points[name] = _losses(landscape, found, name)
    rows = [_client(place, client, found, plane, surfaces, points) for place, client in enumerate(found.names)]
    said = f"{opened.config.name}, the {len(found.clients)} clients of round {found.round}"
    settings = asked | {"of": said, "on": list(surfaces), "shares": plane.shares.tolist(), **versions()}
    made = ClientPlanes(surfaces, pd.DataFrame(rows), pd.DataFrame(_pairs(found)), settings, identity)
    if folder is not None:
        made.save(folder)
    return made


def _folder(path: Path, name: str) -> Path:
    return path / ("pooled" if name == POOLED else name.replace(" ", "-"))


def _check(path: Path, identity: dict[str, Any]) -> None:
    if (found := tables.read(path / FILE)) is not None:
        store.refuse_other(path, "measurement", found.get("identity", {}), identity)


def _losses(landscape: Landscape, found: ClientModels, name: str) -> dict[str, float]:
    """Losses of the clients' models on all data; on a client's own, of its model and of the global one."""
    if name == POOLED:
        return {one: float(landscape.objective(w).loss) for one, w in zip(found.names, found.weights, strict=True)}
    mine = found.weights[found.names.index(name)]
    return {"own": float(landscape.objective(mine).loss), "global": float(landscape.objective(found.after).loss)}


def _client(
    place: int, name: str, found: ClientModels, plane: Principal, surfaces: dict[str, Surface],
    points: dict[str, dict[str, float]],
) -> dict[str, Any]:  # fmt: skip
    """A client's row."""
    trained = found.layout.num_trainable
    apart = float(np.linalg.norm(found.weights[place][:trained].astype(np.float64) - found.after[:trained]))
    alpha, beta = plane.coordinates[place]
    row: dict[str, Any] = {
        "client": name, "alpha": float(alpha), "beta": float(beta), "off": float(plane.off[place]),
        "distance": apart, "relative": apart / float(np.linalg.norm(found.after[:trained].astype(np.float64))),
        "loss": points[POOLED][name],
    }  # fmt: skip
    if name in surfaces:
        surface = surfaces[name]
        lowest = np.argmin(np.where(np.isfinite(surface.loss), surface.loss, np.inf))
        iy, ix = np.unravel_index(lowest, surface.loss.shape)
        row |= {"own_loss": points[name]["own"], "global_own_loss": points[name]["global"]}
        row |= {"min_alpha": float(surface.alphas[ix]), "min_beta": float(surface.betas[iy])}
        row |= {"min_loss": float(surface.loss[iy, ix])}
        row |= {"min_distance": float(np.hypot(row["min_alpha"], row["min_beta"]))}
        row["at_edge"] = bool(ix in (0, len(surface.alphas) - 1) or iy in (0, len(surface.betas) - 1))
    return row


def _pairs(found: ClientModels) -> list[dict[str, Any]]:
    """How far the clients' models lie from each other."""
    trained = found.layout.num_trainable
    centre = found.after[:trained].astype(np.float64)
    moved = [one[:trained] - centre for one in found.weights]
    norm, rows = float(np.linalg.norm(centre)), []
    for i, j in itertools.combinations(range(len(moved)), 2):
        apart = float(np.linalg.norm(moved[i] - moved[j]))
        lengths = float(np.linalg.norm(moved[i]) * np.linalg.norm(moved[j]))
        cosine = float(moved[i] @ moved[j]) / lengths if lengths else float("nan")
        names = {"first": found.names[i], "second": found.names[j]}
        rows.append(names | {"distance": apart, "relative": apart / norm, "cosine": cosine})
    return rows

"""How flat models are, from surfaces that are recorded already: no new evaluation.

A run's surfaces lie in its `surfaces/` folder, one for each pair of directions. Compared are those around the last
models, on planes that all runs have: the same noise, points, images and loss.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics import tables
from diagnostics.flatness import measures
from diagnostics.flatness.comparison import AT_CENTRE, FILE, Comparison
from diagnostics.statistics import METHOD
from diagnostics.surfaces.results import Surface, load
from feddual.api import Run
from feddual.errors import UserError
from feddual.records.identity import Replicate, replicate
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_run

FOLDER = "comparison"  # of a study: where the comparison of its runs lies
Planes = Mapping[Replicate, Mapping[str, Surface]]  # by draw and seed, then by the surface's folder


def surfaces_of(run: RunDir, last_round: int) -> dict[str, Surface]:
    """A run's finished surfaces around its last model, by folder."""
    loaded = {path.name: load(path) for path in run.surfaces()}
    return {name: one for name, one in loaded.items() if isinstance(one, Surface) and is_last(one, last_round)}


def is_last(surface: Surface, last_round: int) -> bool:
    """Whether a surface is whole and of the run's last round; a probe leaves those of earlier rounds beside it."""
    return surface.complete and surface.meta["facts"].get("round", last_round) == last_round


def largest(planes: Planes) -> Surface:
    """What is drawn: of the first seed the surface with the most points; the first by name of equals."""
    return max(planes[min(planes)].values(), key=lambda surface: (surface.complete, surface.loss.size))


def comparable(found: Mapping[str, Planes]) -> dict[str, dict[Replicate, dict[str, Surface]]]:
    """The seeds and planes that all groups have, by the folder's name in the first; nothing if there are none."""
    seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
    if not seeds:
        return {}
    planes = {
        label: {seed: {_plane(surface): surface for surface in group[seed].values()} for seed in seeds}
        for label, group in found.items()
    }
    names = {_plane(surface): name for name, surface in next(iter(found.values()))[seeds[0]].items()}
    shared = [plane for plane in names if all(plane in here for group in planes.values() for here in group.values())]
    return {
        label: {seed: {names[plane]: here[plane] for plane in shared} for seed, here in group.items()}
        for label, group in planes.items()
        if shared
    }


def _plane(surface: Surface) -> tuple[Any, ...]:
    """What two surfaces share that can be compared: the noise, the points, the images, the loss."""
    identity = surface.meta["identity"]
    about = [str(identity.get(key)) for key in ("direction_names", "data", "loss", "bn", "two_level")]
    return (*about, surface.alphas.tobytes(), surface.betas.tobytes())


def compare_surfaces(
    found: Mapping[str, Planes], tau: float = measures.TAU, stored: Path | None = None
) -> Comparison | None:
    """Compare models by their surfaces; None when there are no planes that all have.

    Args:
        found: By model, its surfaces.
        tau: Of the flatness radius.
        stored: A folder; the comparison in it is taken if it is of these surfaces.
    """
    shared = comparable(found)
    if not shared:
        return None
    hashes = [[_hash(one) for planes in group.values() for one in planes.values()] for group in shared.values()]
    identity = {"from": "surfaces", "tau": tau, "surfaces": hashes, "intervals": METHOD}
    if kept := tables.stored(stored and stored / FILE, identity):
        made = Comparison.of_file(kept).renamed(list(shared))
    else:
        measured = {
            ("round", "plain", name, place): list(planes.values())
            for name, group in shared.items()
            for place, planes in enumerate(group.values())
        }
        planes = list(next(iter(next(iter(shared.values())).values())))
        settings = {"models": {name: len(group) for name, group in shared.items()}, "tau": tau, "planes": planes}
        made = Comparison.of(measured, settings, identity, (*AT_CENTRE, *measures.QUANTITIES))
    made.surfaces = {name: largest(group) for name, group in shared.items()}
    return made


def _hash(surface: Surface) -> str:
    return hashlib.sha256(json.dumps(surface.meta["identity"], sort_keys=True).encode()).hexdigest()[:16]


def compare_recorded(groups: Mapping[str, Sequence[Path]], tau: float = measures.TAU) -> Comparison:
    """`compare_surfaces` of runs, one or several (seeds) by name.

    Raises:
        UserError: When a run has no finished surface, or the runs have no plane in common.
    """
    found: dict[str, dict[Replicate, dict[str, Surface]]] = {}
    for name, paths in groups.items():
        for run in map(Run, paths):
            surfaces = surfaces_of(open_run(run.path), run.summary()["rounds"])
            if not surfaces:
                raise UserError(
                    f"{run.path}: no finished surface around its last model; `python -m diagnostics surface {run.path}`"
                )
            found.setdefault(name, {})[replicate(run.config.to_dict())] = surfaces
    made = compare_surfaces(found, tau)
    if made is None:
        raise UserError("compare: the runs have no surface in common (seed, noise, points, images and loss)")
    return made

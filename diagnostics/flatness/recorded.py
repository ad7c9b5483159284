"""How flat models are, from surfaces that are recorded already: no new evaluation.

A run's surfaces lie in its `surfaces/` folder, one for each pair of directions. Compared are those around the last
models, on planes that all runs have: the same noise, points, images and loss; and where they are recorded, those with
normalised logits and those at a common training loss (`recording.py` records them). Numbers are of one step h and one
set of images.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics import tables
from diagnostics.flatness import measures
from diagnostics.flatness.comparison import AT_CENTRE, FILE, Comparison
from diagnostics.flatness.footing import Case, Footing, case_of, common
from diagnostics.statistics import METHOD
from diagnostics.surfaces.results import Surface, load
from feddual.api import Run
from feddual.errors import UserError
from feddual.records.identity import Replicate, replicate
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_run

FOLDER = "comparison"  # of a study: where the comparison of its runs lies
Planes = Mapping[Replicate, Mapping[str, Surface]]  # by draw and seed, then by the surface's folder
Cases = Mapping[Case, Mapping[str, Planes]]  # by case, then by model
ORDER = (("round", "plain"), ("round", "logit-normalised"), ("loss", "plain"), ("loss", "logit-normalised"))


def surfaces_of(run: RunDir, last_round: int) -> dict[str, Surface]:
    """A run's finished surfaces around its last model, or at a common training loss, by folder."""
    loaded = {path.name: load(path) for path in run.surfaces()}
    return {name: one for name, one in loaded.items() if isinstance(one, Surface) and counts(one, last_round)}


def counts(surface: Surface, last_round: int) -> bool:
    """Whether a surface is whole and of a model that is compared; a probe leaves those of earlier rounds beside it."""
    chosen = surface.meta["facts"].get("round", last_round) == last_round or case_of(surface)[0] == "loss"
    return surface.complete and chosen


def largest(planes: Planes) -> Surface:
    """What is drawn: of the first seed the surface with the most points; the first by name of equals."""
    return max(planes[min(planes)].values(), key=lambda surface: (surface.complete, surface.loss.size))


def of_case(planes: Planes, case: Case) -> dict[Replicate, dict[str, Surface]]:
    """The surfaces of one case; runs without any are left out."""
    parts = {seed: {name: one for name, one in here.items() if case_of(one) == case} for seed, here in planes.items()}
    return {seed: here for seed, here in parts.items() if here}


def comparable(found: Mapping[str, Planes]) -> Cases:
    """By case, the seeds and planes that all groups have, by the folder's name in the first; empty without any."""
    made = {}
    for case in ORDER:
        groups = {label: of_case(planes, case) for label, planes in found.items()}
        if shared := _shared(groups):
            made[case] = shared
    return made


def _shared(found: Mapping[str, Planes]) -> dict[str, dict[Replicate, dict[str, Surface]]]:
    seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
    if not seeds:
        return {}
    planes = {
        label: {seed: {_plane(surface): surface for surface in group[seed].values()} for seed in seeds}
        for label, group in found.items()
    }
    names = {_plane(surface): name for name, surface in next(iter(found.values()))[seeds[0]].items()}
    shared = [plane for plane in names if all(plane in here for group in planes.values() for here in group.values())]
    lowest = min((plane[0] for plane in shared), default=None)  # of several common losses the one furthest down
    shared = [plane for plane in shared if plane[0] == lowest]
    return {
        label: {seed: {names[plane]: here[plane] for plane in shared} for seed, here in group.items()}
        for label, group in planes.items()
        if shared
    }


def _plane(surface: Surface) -> tuple[Any, ...]:
    """What two surfaces share that can be compared: the level, the noise, the points, the images, the loss."""
    identity = surface.meta["identity"]
    level = surface.meta["facts"].get("level", 0.0) if case_of(surface)[0] == "loss" else 0.0
    about = [str(identity.get(key)) for key in ("direction_names", "data", "loss", "bn", "two_level")]
    return (level, *about, surface.alphas.tobytes(), surface.betas.tobytes())


def on_one_footing(cases: Cases) -> tuple[Cases, list[str]]:
    """The planes of one step h and one set of images, those that most of the first case's have, and what is left out.

    One table holds curvatures of one h on the same images only: a finer surface for a picture does not count.
    """
    first = next(iter(next(iter(next(iter(cases.values())).values())).values()))
    seen = Counter(Footing.of(one) for one in first.values() if len(Footing.of(one).steps) == 1)
    if not seen:
        common(first)
    (chosen, _), *_ = seen.most_common(1)
    kept: dict[Case, dict[str, dict[Replicate, dict[str, Surface]]]] = {}
    out: dict[str, Footing] = {}
    for case, groups in cases.items():
        for label, group in groups.items():
            for seed, planes in group.items():
                out |= {name: Footing.of(one) for name, one in planes.items() if Footing.of(one) != chosen}
                fitting = {name: one for name, one in planes.items() if name not in out}
                if fitting:
                    kept.setdefault(case, {}).setdefault(label, {})[seed] = fitting
    return kept, [f"{name} ({found})" for name, found in out.items()]


def compare_surfaces(
    found: Mapping[str, Planes], tau: float = measures.TAU, stored: Path | None = None
) -> Comparison | None:
    """Compare models by their surfaces; None when there are no planes that all have.

    Args:
        found: By model, its surfaces.
        tau: Of the flatness radius.
        stored: A folder; the comparison in it is taken if it is of these surfaces.

    Raises:
        UserError: When no plane has one step along both axes.
    """
    shared = comparable(found)
    if not shared:
        return None
    cases, left_out = on_one_footing(shared)
    measured = {
        (*case, name, place): list(planes.values())
        for case, groups in cases.items()
        for name, group in groups.items()
        for place, planes in enumerate(group.values())
    }
    hashes = [[_hash(one) for key, several in measured.items() if key[2] == name for one in several] for name in found]
    identity = {"from": "surfaces", "tau": tau, "surfaces": hashes, "intervals": METHOD}
    if kept := tables.stored(stored and stored / FILE, identity):
        made = Comparison.of_file(kept).renamed(list(found))
    else:
        groups = next(iter(cases.values()))
        planes = list(next(iter(next(iter(groups.values())).values())))
        settings = {"models": {name: len(group) for name, group in groups.items()}, "tau": tau, "planes": planes}
        settings |= {"left_out": left_out} if left_out else {}
        settings["repetitions"] = [list(which) for which in next(iter(groups.values()))]
        made = Comparison.of(measured, settings, identity, (*AT_CENTRE, *measures.QUANTITIES))
    made.planes = {case: {name: largest(group) for name, group in groups.items()} for case, groups in shared.items()}
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
        raise UserError(
            "compare: the runs have no surface in common (seed, noise, points, images and loss):\n"
            + "\n".join(
                f"  {name}, seed {which.seed} of draw {which.draw}: {_told(here)}"
                for name, group in found.items()
                for which, here in group.items()
            )
            + "\nRecord them with the same --grid, --range, --images, --split, --seed and --direction"
        )
    return made


def _told(planes: Mapping[str, Surface]) -> str:
    return ", ".join(f"{name} (axes to {one.alphas[-1]:g}, {Footing.of(one)})" for name, one in planes.items())

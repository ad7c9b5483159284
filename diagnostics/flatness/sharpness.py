"""Sharpness of a model, by many measures at once; `catalogue.py` has them by name."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from diagnostics import tables
from diagnostics.flatness.around import GRADIENT, Around
from diagnostics.flatness.catalogue import ALWAYS, DIRECTIONS, GROUPS, chosen
from diagnostics.flatness.readings import Found, Settings
from diagnostics.flatness.sharpness_result import TABLES, Sharpness
from diagnostics.progress import PointProgress
from diagnostics.surfaces.measure import versions
from feddual.errors import UserError
from feddual.functional.layout import fingerprint, layer_norms
from feddual.records import measurements as store

if TYPE_CHECKING:
    from diagnostics.landscape import Landscape

PARTS = "parts"  # of a folder: what is measured already
FREE = ("directions", "seed")  # settings with a place of their own


def measure(
    landscape: "Landscape",
    measures: str | Sequence[str] = "default",
    *,
    budget: str | float = "default",
    directions: int | None = None,
    layers: Sequence[str] = (),
    include: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Sharpness:
    """Measure a landscape.

    Args:
        landscape: The model and the samples.
        measures: `default`, what the budget has, or names of `catalogue.GROUPS`.
        budget: cheap, default, full, or a number of passes: a gradient counts as three, a product with the Hessian as
            six.
        directions: Random directions, and draws; by default 5, 10 or 20, as the budget says.
        layers: Of these layers only.
        include: Also move `bias`, `norm`. Measures without a scale (sam, lambda_1, trace, keskar) always do.
        out: A folder to keep the result in.
        progress: Show a bar.
        **settings: The other fields of `readings.Settings`.

    Returns:
        What was measured.

    Raises:
        UserError: For input that cannot be used, before anything is written.
    """
    asked = _settings(landscape, budget, directions, settings)
    around = Around(landscape, layers, include)
    names, left_out = chosen(measures, budget, asked, around.count)
    identity = _identity(around, asked, names)
    folder = None if out is None else store.Folder(Path(out))
    if folder is not None and (found := Sharpness.stored(folder.path, identity)) is not None:
        return found
    if not np.isfinite(around.centre[0]):
        raise UserError(
            f"the loss at the model itself is {around.centre[0]}: nothing is near it. Has training diverged?"
        )
    facts = {"budget": budget, "left_out": left_out, "named": measures != "default"}
    if folder is None:
        return _measured(around, asked, names, identity, facts, None, progress)
    with folder.locked():
        made = _measured(around, asked, names, identity, facts, folder.path, progress)
        made.write(folder.path)
        shutil.rmtree(folder.path / PARTS, ignore_errors=True)
    return made


def _settings(
    landscape: "Landscape", budget: str | float, directions: int | None, given: Mapping[str, Any]
) -> Settings:
    known = [one.name for one in fields(Settings) if one.name not in FREE]
    if unknown := sorted(set(given) - set(known)):
        raise UserError(f"sharpness: {', '.join(unknown)} unknown; allowed: {', '.join(known)}")
    usual = DIRECTIONS[budget] if isinstance(budget, str) and budget in DIRECTIONS else Settings.directions
    count = usual if directions is None else directions
    if count < 1:
        raise UserError(f"directions: at least one is needed, got {count}")
    levels: dict[str, Any] = {
        name: tuple(float(one) for one in value) if isinstance(getattr(Settings, name), tuple) else value
        for name, value in given.items()
    }
    for name, value in levels.items():
        if not np.size(value) or not (np.asarray(value) > 0).all():
            raise UserError(f"{name}: must be above 0, got {given[name]!r}")
    return replace(Settings(directions=count, seed=landscape.seed), **levels)


def _identity(around: Around, settings: Settings, names: Sequence[str]) -> dict[str, Any]:
    """All that determines the numbers."""
    objective = around.landscape.objective
    return {
        "kind": "sharpness", "weights": fingerprint(around.landscape.weights), "data": objective.data_hash,
        "loss": objective.loss_name, "loss_hash": objective.loss_hash, "bn": objective.bn,
        "batch_size": objective.batch_size, "engine": around.landscape.engine, "measures": list(names),
        "layers": list(around.layers), "include": list(around.include),
        "settings": {key: list(one) if isinstance(one, tuple) else one for key, one in asdict(settings).items()},
    }  # fmt: skip


def _measured(
    around: Around, settings: Settings, names: Sequence[str], identity: Mapping[str, Any], facts: dict[str, Any],
    folder: Path | None, progress: bool,
) -> Sharpness:  # fmt: skip
    started, whole = time.perf_counter(), _at_the_model(around)
    label = f"sharpness of {around.landscape.subject.facts.get('source', 'the model')}"
    with PointProgress(label, len(names), progress, unit="measures") as bar:
        for name in names:
            place = None if folder is None else folder / PARTS / f"{name}.json"
            if kept := tables.stored(place, identity):
                found = Found(**{key: kept[key] for key in TABLES})
            else:
                found = _run(name, around, settings, facts)
                if place is not None:
                    tables.write(place, identity, {key: pd.DataFrame(getattr(found, key)) for key in TABLES})
            for key in TABLES:
                getattr(whole, key).extend(getattr(found, key))
            bar.advance(1)
    facts |= {
        **around.landscape.subject.facts, "images": around.count, "few": around.few,
        "loss": around.centre[0], "accuracy": None if np.isnan(around.centre[1]) else around.centre[1],
        "gradient_norm": float(np.linalg.norm(around.gradient)),
        "parameters": around.landscape.space.layout.num_trainable,
        "moved": len(around.scale("abs")[0]), "regularisation": around.landscape.objective.said_of_regularisation,
        "passes": float(sum(row["passes"] for row in whole.table)) + ALWAYS - GRADIENT,
        "seconds": round(time.perf_counter() - started, 3), **versions(),
    }  # fmt: skip
    frames = {key: tables.frame(getattr(whole, key)) for key in TABLES}
    return Sharpness(**frames, meta={"identity": dict(identity), "facts": facts})


def _run(name: str, around: Around, settings: Settings, facts: dict[str, Any]) -> Found:
    """A group; what this model or loss has not is left out, unless it was asked for by name."""
    try:
        return GROUPS[name].run(around, settings)
    except UserError as error:
        if facts["named"]:
            raise
        facts["left_out"] = facts["left_out"] | {name: str(error)}
        return Found()


def _at_the_model(around: Around) -> Found:
    """The gradient's norm, and of each layer its product with the weights' norm."""
    found, layout = Found(), around.landscape.space.layout
    found.add("gradient_norm", np.nan, float(np.linalg.norm(around.gradient)), GRADIENT)
    slopes = layer_norms(layout, around.gradient)
    sizes = layer_norms(layout, around.landscape.weights)
    found.layers = [
        {
            "layer": name,
            "gradient_norm": slopes[name],
            "weight_norm": sizes[name],
            "product": slopes[name] * sizes[name],
        }
        for name in layout.layers
    ]
    return found

"""Which models are compared: runs that belong together, and of each the checkpoint at which something is equal."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics import subject as samples
from feddual.api import Run
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint, frozen_weights, read
from feddual.records.identity import by_experiment
from feddual.records.slim import open_run

Settings = Mapping[str, Any]
UNEQUAL = 0.1  # matched losses that differ by a larger share are warned of


def cases(
    groups: Mapping[str, list[Any]], x: Any, y: Any, matches: Sequence[str], rows: Settings, evaluation: Settings
) -> list[tuple[str, str, int, samples.Subject]]:
    """(match, model, place of the seed, samples) of all that is measured.

    Args:
        groups: By model, one of each training seed.
        x: Inputs, for Keras models.
        y: Targets.
        matches: Of runs, what is equal: `round`, `loss`.
        rows: Which samples: images, split, seed.
        evaluation: What the loss is.
    """
    every = {(name, place): item for name, group in groups.items() for place, item in enumerate(group)}
    if not all(isinstance(item, (str, Path, Run)) for item in every.values()):
        return [("given", *key, samples.resolve(item, x, y, None, **rows)) for key, item in every.items()]
    if not matches or set(matches) - {"round", "loss"}:
        raise UserError(f"matches: expected round, loss or both, got {list(matches)}")
    runs = {key: item if isinstance(item, Run) else Run(item) for key, item in every.items()}
    base = _shared({key: samples.of_run(run, among=[*runs.values()], **rows) for key, run in runs.items()})
    found = []
    for match in matches:
        rounds = _same_round(runs) if match == "round" else _same_loss(runs, base, evaluation)
        for key, run in runs.items():
            checkpoint = open_run(run.path).read_checkpoint(rounds[key])
            facts = base[key].facts | {"round": checkpoint.round_index, "match": match}
            found.append((match, *key, replace(base[key], facts=facts, weights=checkpoint.weights)))
    return found


def _shared(several: dict[Any, samples.Subject]) -> dict[Any, samples.Subject]:
    """The same samples with one model where architectures and frozen weights agree: compiled once for all."""
    first: dict[str, samples.Subject] = {}
    for key, one in several.items():
        what = fingerprint(one.x, one.y, *map(np.asarray, frozen_weights(one.model)))
        shared = first.setdefault(json.dumps([what, Layout.of_model(one.model).to_list()]), one)
        several[key] = replace(shared, facts=one.facts, weights=read(one.model))
    return several


def _same_round(runs: Mapping[Any, Run]) -> dict[Any, int]:
    common = set.intersection(*(set(run.checkpoints) for run in runs.values()))
    if common:
        return dict.fromkeys(runs, max(common))
    last = {key: run.checkpoints[-1] for key, run in runs.items()}
    warnings.warn(f"the runs have kept no round in common; comparing rounds {sorted(last.values())}", stacklevel=4)
    return last


def _same_loss(runs: Mapping[Any, Run], base: Mapping[Any, samples.Subject], evaluation: Settings) -> dict[Any, int]:
    """Of each run the kept checkpoint whose loss is nearest to the largest of the last ones."""
    from diagnostics.surfaces.objective import Objective

    losses: dict[Any, dict[int, float]] = {}
    for key, run in runs.items():
        one = base[key]
        if "loss" not in one.cache:
            one.cache["loss"] = Objective(one.model, one.x, one.y, features=one.features, **evaluation)
        weights = ((kept, open_run(run.path).read_checkpoint(kept).weights) for kept in run.checkpoints)  # one by one
        losses[key] = {kept: float(one.cache["loss"](vector).loss) for kept, vector in weights}
    target = max(by_round[max(by_round)] for by_round in losses.values())
    chosen = {key: min(kept, key=lambda number: abs(kept[number] - target)) for key, kept in losses.items()}
    reached = {key: losses[key][number] for key, number in chosen.items()}
    largest = max(map(abs, reached.values()))
    apart = max(reached.values()) - min(reached.values())
    if apart > UNEQUAL * largest:
        listed = ", ".join(f"{name} (seed {place}) {loss:.3g}" for (name, place), loss in reached.items())
        warnings.warn(
            f"equal loss: the nearest kept checkpoints differ by {apart / largest:.0%}: {listed}; more kept "
            "checkpoints would come nearer",
            stacklevel=4,
        )
    return chosen


def group_runs(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ in their seed alone, together, ordered by seed; named by what tells the groups apart."""
    groups = by_experiment({path: Run(path).config.to_dict() for path in paths})
    if len(groups) == 1:  # seeds of one experiment: compare them with each other
        return {name: [path] for name, path in zip(_names(paths), paths, strict=True)}
    return dict(zip(_names([members[0] for members in groups]), groups, strict=True))


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of their parents as tell equal ones apart; good in file names too."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UserError(f"compare: a run is given twice: {', '.join(map(str, paths))}")
    names = [one[-1] for one in parts]
    for depth in range(2, max(map(len, parts)) + 1):
        pairs = zip(parts, names, strict=True)
        names = ["-".join(one[-depth:]) if names.count(name) > 1 else name for one, name in pairs]
    return names

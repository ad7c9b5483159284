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
Chosen = dict[Any, tuple[int, dict[str, Any]]]  # of each run the round, and facts about the choice
MATCHES = ("round", "loss")
UNEQUAL = 0.1  # a training loss further from the level than this share of it is not equal


class OutOfReach(UserError):
    """Runs have kept no checkpoints at which their training losses are equal."""


def cases(
    groups: Mapping[str, list[Any]],
    x: Any,
    y: Any,
    matches: str | Sequence[str] | None,
    rows: Settings,
    evaluation: Settings,
) -> list[tuple[str, str, int, samples.Subject]]:
    """(match, model, place of the seed, samples) of all that is measured.

    Args:
        groups: By model, one of each training seed.
        x: Inputs, for Keras models.
        y: Targets.
        matches: Of runs, what is equal: `round`, `loss`; None for both, the second only where it can be had.
        rows: Which samples: images, split, seed.
        evaluation: What the loss is.
    """
    every = {(name, place): item for name, group in groups.items() for place, item in enumerate(group)}
    if not all(isinstance(item, (str, Path, Run)) for item in every.values()):
        return [("given", *key, samples.resolve(item, x, y, None, **rows)) for key, item in every.items()]
    wanted = [matches] if isinstance(matches, str) else list(MATCHES if matches is None else matches)
    if not wanted or set(wanted) - set(MATCHES):
        raise UserError(f"matches: expected round, loss or both, got {wanted}")
    runs = {key: item if isinstance(item, Run) else Run(item) for key, item in every.items()}
    base = _shared({key: samples.of_run(run, among=[*runs.values()], **rows) for key, run in runs.items()})
    _check_images(base)
    found = []
    for match in wanted:
        try:
            chosen = _same_round(runs) if match == "round" else _same_loss(runs, base, rows, evaluation)
        except OutOfReach as reason:
            if matches is not None:
                raise
            warnings.warn(f"left out: {reason}", stacklevel=3)
            continue
        for key, run in runs.items():
            number, about = chosen[key]
            facts = base[key].facts | {"round": number, "match": match} | about
            weights = open_run(run.path).read_checkpoint(number).weights
            found.append((match, *key, replace(base[key], facts=facts, weights=weights)))
    return found


def _shared(several: dict[Any, samples.Subject]) -> dict[Any, samples.Subject]:
    """The same samples with one model where architectures and frozen weights agree: compiled once for all."""
    first: dict[str, samples.Subject] = {}
    for key, one in several.items():
        what = fingerprint(one.x, one.y, *map(np.asarray, frozen_weights(one.model)))
        shared = first.setdefault(json.dumps([what, Layout.of_model(one.model).to_list()]), one)
        several[key] = replace(shared, facts=one.facts, weights=read(one.model))
    return several


def _check_images(several: Mapping[Any, samples.Subject]) -> None:
    """Refuse runs on different data before anything is computed."""
    seen: dict[Any, list[str]] = {}
    for (name, place), one in several.items():
        seen.setdefault((one.facts["dataset"], len(one.y), one.facts["rows"]), []).append(f"{name} (seed {place})")
    if len(seen) > 1:
        listed = (f"{', '.join(names)}: {count} of {data} ({rows[:8]})" for (data, count, rows), names in seen.items())
        raise UserError(
            f"compare: models are compared on one set of images, these runs have several: {'; '.join(listed)}"
        )


def _same_round(runs: Mapping[Any, Run]) -> Chosen:
    common = set.intersection(*(set(run.checkpoints) for run in runs.values()))
    if common:
        return {key: (max(common), {}) for key in runs}
    last = {key: run.checkpoints[-1] for key, run in runs.items()}
    warnings.warn(f"the runs have kept no round in common; comparing rounds {sorted(last.values())}", stacklevel=4)
    return {key: (number, {}) for key, number in last.items()}


def _same_loss(
    runs: Mapping[Any, Run], base: Mapping[Any, samples.Subject], rows: Settings, evaluation: Settings
) -> Chosen:
    """Of each run the kept checkpoint whose training loss is nearest to the largest of the last ones.

    Every run has come down to that level, so a checkpoint near it exists if enough of them were kept.

    Raises:
        OutOfReach: When a run's nearest one is not near.
    """
    if rows["split"] != "train":
        base = _shared({key: samples.of_run(run, **{**rows, "split": "train"}) for key, run in runs.items()})
    losses = {key: _training_losses(run, base[key], evaluation) for key, run in runs.items()}
    level = max(by_round[max(by_round)] for by_round in losses.values())
    nearest = {key: min(kept, key=lambda number: abs(kept[number] - level)) for key, kept in losses.items()}
    reached = {key: losses[key][number] for key, number in nearest.items()}
    far = [key for key, loss in reached.items() if not abs(loss - level) <= UNEQUAL * abs(level)]
    if far:
        listed = (
            f"{name} (seed {place}; nearest {reached[name, place]:.3g}, after round {nearest[name, place]})"
            for name, place in far
        )
        raise OutOfReach(
            f"matches: equal training loss: all runs reach {level:.3g}, but no checkpoint within {UNEQUAL:.0%} of it "
            f"was kept of {', '.join(listed)}. Train with checkpoint.keep=all and a small checkpoint.every, or with "
            "the rounds around that loss in checkpoint.rounds; or compare at equal rounds alone (matches=round)"
        )
    about = {key: {"level": level, "training_loss": loss} for key, loss in reached.items()}
    return {key: (number, about[key]) for key, number in nearest.items()}


def _training_losses(run: Run, one: samples.Subject, evaluation: Settings) -> dict[int, float]:
    """By kept round; checkpoints are read one by one."""
    from diagnostics.surfaces.objective import Objective

    if "loss" not in one.cache:
        one.cache["loss"] = Objective(one.model, one.x, one.y, features=one.features, **evaluation)
    weights = ((kept, open_run(run.path).read_checkpoint(kept).weights) for kept in run.checkpoints)
    return {kept: float(one.cache["loss"](vector).loss) for kept, vector in weights}


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

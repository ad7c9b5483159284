"""The samples a model is looked at on: fixed, stratified, the same for all models of a comparison."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feddual import seeding, setting
from feddual.api import Run
from feddual.data import datasets
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.records.slim import open_run

SPLITS = ("train", "test")
FEW = 4  # samples by which copies and features are compared with the model itself


@dataclass(frozen=True)
class Subject:
    """A model and what it is evaluated on."""

    model: Any
    x: np.ndarray
    y: np.ndarray
    features: bool = False  # x is the output of the model's frozen prefix
    facts: dict[str, Any] = field(default_factory=dict)  # where they come from, for the manifest
    weights: np.ndarray | None = None  # the centre, if it is not what the model holds now
    originals: np.ndarray | None = None  # of features, the first few inputs themselves, to check them by
    cache: dict[str, Any] = field(default_factory=dict, repr=False)  # what was compiled for them; kept by `replace`


def stratified_rows(labels: np.ndarray, images: int | None, seed: int = 0) -> np.ndarray:
    """Rows of a fixed subset with the classes in their proportions, in an order whose every beginning has them too."""
    if images is not None and images < 1:
        raise UserError(f"images: must be at least 1 (or None for all), got {images}")
    labels = np.asarray(labels)
    order = np.empty(len(labels))
    for number, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        shuffled = seeding.generator(seed, "evaluation rows", number).permutation(rows)
        # A class of n takes the places (1/2)/n, (3/2)/n, ...: sorting them all deals the classes out evenly.
        order[shuffled] = (np.arange(len(rows)) + 0.5) / len(rows)
    return np.argsort(order, kind="stable")[: len(labels) if images is None else images]


def of_arrays(model: Any, x: Any, y: Any, images: int | None, seed: int) -> Subject:
    """A subset of a user's own data."""
    if x is None or y is None:
        raise UserError("x, y: a Keras model needs data to be evaluated on, as arrays: loss_surface(model, x, y)")
    x, y = checked_arrays(x, y)
    if y.ndim == 1 and (np.issubdtype(y.dtype, np.integer) or len(np.unique(y)) <= 1000):
        labels = y
    elif y.ndim == 2 and y.shape[1] > 1 and ((y == 0) | (y == 1)).all():
        labels = y.argmax(1)
    else:
        labels = np.zeros(len(y), int)  # nothing to stratify by
    rows = stratified_rows(labels, images, seed)
    return Subject(model, x[rows], y[rows], facts={"source": model.name, "split": "given", "seed": seed})


def checked_arrays(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets as arrays, if they can be."""
    found = []
    for name, value in (("x", x), ("y", y)):
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            array = np.empty((), object)
        if array.ndim == 0 or array.dtype == object:
            raise UserError(
                f"{name}: expected an array with one row per sample, got {type(value).__name__}; a data set must be "
                "collected into arrays first"
            )
        found.append(array)
    x, y = found
    if y.dtype.kind in "SU":
        raise UserError("y: expected numbers, got text; np.unique(y, return_inverse=True)[1] makes integer labels")
    if len(x) == 0 or len(x) != len(y):
        raise UserError(f"x, y: expected as many inputs as targets and at least one, got {x.shape} and {y.shape}")
    return x, y


def of_run(
    run: Run, round_index: int | None = None, split: str = "train", images: int | None = 2000, seed: int = 0
) -> Subject:
    """A run's global model and a subset of its pooled training (or test) data."""
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is unknown; allowed: {', '.join(SPLITS)}")
    directory = open_run(run.path)
    checkpoint = directory.last_good_checkpoint() if round_index is None else directory.read_checkpoint(round_index)
    if checkpoint is None:
        raise UserError(f"{run.path}: no checkpoint yet")
    found = setting.of(run.config, checkpoint)
    images_of, labels = found.images(split)
    rows = stratified_rows(labels, images, seed)
    network = found.network
    features = network.prefix is not None
    originals = datasets.preprocess(images_of[rows[:FEW]], network.preprocess) if features else None
    facts = facts_of(run.config, checkpoint.round_index, found.dataset.name, split, seed, rows)
    x, y = found.inputs(split, rows), labels[rows].astype(np.int32)
    return Subject(network.model, x, y, features, facts, originals=originals)


def facts_of(experiment: Any, round_index: int, data: str, split: str, seed: int, rows: np.ndarray) -> dict[str, Any]:
    """Which model and which samples a measurement is of."""
    about = {"source": experiment.name, "algorithm": experiment.algorithm.name, "round": round_index}
    return about | {"dataset": data, "split": split, "seed": seed, "rows": fingerprint(rows.astype(np.int64))}


def resolve(source: Any, x: Any, y: Any, round_index: int | None, split: str, images: int | None, seed: int) -> Subject:
    """Model and samples of what a user gave: a run, its folder, or a Keras model with data."""
    if isinstance(source, Subject):
        return source
    if isinstance(source, (str, Path)):
        source = Run(source)
    if isinstance(source, Run):
        if x is not None or y is not None:
            raise UserError("x, y: a run brings its own data; give run.model() to use other data")
        return of_run(source, round_index, split, images, seed)
    from feddual.functional.evaluated import check

    check(source)
    return of_arrays(source, x, y, images, seed)

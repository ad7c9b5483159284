"""The samples a model is looked at on: fixed, stratified, the same for all models of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feddual import seeding, setting
from feddual.api import Run
from feddual.data import datasets, partition
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.probes import RoundView
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
    sample_weight: np.ndarray | None = None
    is_given: bool = False  # by a user: without a loss, the one that the model was compiled with is meant
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


def of_arrays(
    model: Any, x: Any, y: Any, images: int | None, seed: int, sample_weight: Any = None, class_weight: Any = None
) -> Subject:
    """A subset of a user's own data: stratified by classes, or drawn at random where there are none."""
    if x is None or y is None:
        raise UserError("x, y: a Keras model needs data to be evaluated on, as arrays: loss_surface(model, x, y)")
    x, y = checked_arrays(x, y)
    labels = _labels(y)
    alike = labels is not None and 2 * len(np.unique(labels)) <= len(y)  # else there is nothing to stratify by
    rows = stratified_rows(np.asarray(labels) if alike else np.zeros(len(y), int), images, seed)
    weights, facts = _weights(labels, len(y), sample_weight, class_weight)
    for name, values in (("x", x[rows]), ("y", y[rows])):
        odd = 0 if values.dtype.kind not in "fc" else int((~np.isfinite(values)).reshape(len(rows), -1).any(1).sum())
        if odd:
            raise UserError(
                f"{name}: {odd} of {len(rows)} samples hold NaN or infinite values; leave them out or fill them in"
            )
    facts = {"source": model.name, "split": "given", "seed": seed} | facts
    weights = None if weights is None else weights[rows]
    return Subject(model, x[rows], y[rows], facts=facts, sample_weight=weights, is_given=True)


def _labels(y: np.ndarray) -> np.ndarray | None:
    """The class of each target; None where they are measurements."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and ((y == 0) | (y == 1)).all():
        return np.asarray(y.argmax(1))
    whole = y.ndim == 1 and (y.dtype.kind in "iub" or bool((y == np.round(y)).all()))
    return y.astype(np.int64) if whole else None


def _weights(
    labels: np.ndarray | None, count: int, sample_weight: Any, class_weight: Any
) -> tuple[np.ndarray | None, dict[str, Any]]:
    """The weight of each sample, and what the manifest says of it."""
    if sample_weight is not None and class_weight is not None:
        raise UserError("sample_weight, class_weight: pass one of them")
    if class_weight is not None:
        if labels is None:
            raise UserError("class_weight: y has no classes; pass sample_weight, one number per sample")
        try:
            by_class = {int(label): float(weight) for label, weight in dict(class_weight).items()}
        except (TypeError, ValueError):
            raise UserError(
                f"class_weight: expected numbers by class, as {{0: 1.0, 1: 5.0}}, got {class_weight!r}"
            ) from None
        sample_weight = [by_class.get(int(label), 1.0) for label in labels]  # of other classes 1, as Keras does
        return np.asarray(sample_weight), {"class_weight": {str(label): one for label, one in by_class.items()}}
    if sample_weight is None:
        return None, {}
    weights = np.asarray(sample_weight)
    if weights.shape != (count,) or weights.dtype.kind not in "iufb" or not np.isfinite(weights).all():
        raise UserError(
            f"sample_weight: expected {count} finite numbers, one per sample, got {weights.dtype} {weights.shape}"
        )
    return weights.astype(np.float64), {"sample_weight": fingerprint(weights)}


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
    run: Run, round_index: int | None = None, split: str = "train", images: int | None = 2000, seed: int = 0,
    among: Sequence[Run] = (), class_weight: Any = None, client: int | None = None,
) -> Subject:  # fmt: skip
    """A run's global model and a subset of its pooled training (or test) data, or of one client's.

    Args:
        run: The run.
        round_index: A kept checkpoint, the last by default.
        split: train or test.
        images: How many samples; None for all.
        seed: Of their choice.
        among: Runs it is compared with: of the training data only what clients of all of them hold.
        class_weight: By class, for the loss.
        client: The training data that this client holds, instead of all clients'.
    """
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is unknown; allowed: {', '.join(SPLITS)}")
    if client is not None and (split != "train" or among):
        raise UserError("client: clients hold training data, and each its own; use split='train' and one run")
    directory = open_run(run.path)
    checkpoint = directory.last_good_checkpoint() if round_index is None else directory.read_checkpoint(round_index)
    if checkpoint is None:
        raise UserError(f"{run.path}: no checkpoint yet")
    found = setting.of(run.config, checkpoint)
    images_of, labels = found.images(split)
    about: dict[str, Any] = {}
    pool = np.arange(len(labels))
    if split == "train":
        division = partition.split(labels, run.config.partition)
        pool = pooled(division) if client is None else _held_by(division, client)
        about = pool_facts(pool, len(labels)) if client is None else {"client": client, "held": len(pool)}
        pool = _shared(pool, labels, run.config, [one.config for one in among])
    rows = pool[stratified_rows(labels[pool], images, seed)]
    network = found.network
    features = network.prefix is not None
    originals = datasets.preprocess(images_of[rows[:FEW]], network.preprocess) if features else None
    facts = facts_of(run.config, checkpoint.round_index, found.dataset.name, split, seed, rows)
    weights, more = _weights(labels[rows], len(rows), None, class_weight)
    x, y = found.inputs(split, rows), labels[rows].astype(np.int32)
    return Subject(network.model, x, y, features, facts | about | more, originals=originals, sample_weight=weights)


def of_clients(
    run: Run, clients: Sequence[int], like: Subject, images: int | None = 2000, seed: int = 0
) -> list[Subject]:
    """What each of several clients holds, with the model of another subject of the run.

    Args:
        run: The run.
        clients: Their ids.
        like: Of the same run.
        images: How many samples of each; None for all.
        seed: Of their choice.
    """
    found = setting.of(run.config, open_run(run.path).last_good_checkpoint())
    labels = found.images("train")[1]
    division, made = partition.split(labels, run.config.partition), []
    for client in clients:
        pool = _held_by(division, client)
        rows = pool[stratified_rows(labels[pool], images, seed)]
        facts = facts_of(run.config, like.facts["round"], found.dataset.name, "train", seed, rows)
        facts |= {"client": client, "held": len(pool)}
        x, y = found.inputs("train", rows), labels[rows].astype(np.int32)
        made.append(Subject(like.model, x, y, like.features, facts))
    return made


def of_round(view: RoundView, images: int | None, seed: int, probe: str) -> Subject:
    """The global model after a round and a subset of the pooled training data, for a probe of this name."""
    federation = view.federation
    labels, pool = federation.dataset.y_train, pooled(federation.partition)
    rows = pool[stratified_rows(labels[pool], images, seed)]
    x, y = federation.train(rows)
    facts = facts_of(view.experiment, view.round_index, federation.dataset.name, "train", seed, rows)
    facts = {"probe": probe, **facts, **pool_facts(pool, len(labels))}
    return Subject(view.model, x, y, federation.train_features is not None, facts, view.weights)


def _shared(pool: np.ndarray, labels: np.ndarray, config: Any, others: Sequence[Any]) -> np.ndarray:
    """Of a pool, what clients of all these experiments hold that have the same data."""
    key = (config.dataset, config.evaluation.held_out)
    same = [one for one in others if (one.dataset, one.evaluation.held_out) == key]
    for division in {repr(one.partition): one.partition for one in same}.values():
        pool = np.intersect1d(pool, pooled(partition.split(labels, division)))
    if not len(pool):
        raise UserError("split: no training example is held by clients of all these runs; compare them on split='test'")
    return pool


def clients_of(run: Run) -> list[int]:
    """The clients of a run that hold training examples.

    Raises:
        UserError: When the run did not record who holds what.
    """
    directory = open_run(run.path)
    if not directory.has_partition:
        raise UserError(f"{run.path}: who holds which example was not recorded (no partition.npz in it)")
    return [int(client) for client in np.flatnonzero(directory.read_partition()["histograms"].sum(1))]


def _held_by(division: partition.Partition, client: int) -> np.ndarray:
    """The training examples that one client holds, in order, each once."""
    if not 0 <= client < division.num_clients:
        raise UserError(f"client: must be from 0 to {division.num_clients - 1}, got {client}")
    pool = np.unique(division.client(client))
    if not len(pool):
        raise UserError(f"client: {client} holds no training example")
    return pool


def pooled(division: partition.Partition) -> np.ndarray:
    """The training examples that any client holds, in order; one that several hold counts once."""
    return np.unique(division.indices)


def pool_facts(pool: np.ndarray, count: int) -> dict[str, Any]:
    """How much of the training data clients hold, for the manifest."""
    return {"pool": len(pool), "held_by_nobody": count - len(pool)}


def facts_of(experiment: Any, round_index: int, data: str, split: str, seed: int, rows: np.ndarray) -> dict[str, Any]:
    """Which model and which samples a measurement is of."""
    about = {"source": experiment.name, "algorithm": experiment.algorithm.name, "round": round_index}
    return about | {"dataset": data, "split": split, "seed": seed, "rows": fingerprint(rows.astype(np.int64))}


def resolve(
    source: Any, x: Any, y: Any, round_index: int | None, split: str, images: int | None, seed: int,
    sample_weight: Any = None, class_weight: Any = None, client: int | None = None,
) -> Subject:  # fmt: skip
    """Model and samples of what a user gave: a run, its folder, or a Keras model with data."""
    if client is not None and not isinstance(source, (str, Path, Run)):
        raise UserError("client: only a run has clients; pass the run, or x and y of the client")
    if isinstance(source, Subject):
        return source
    if isinstance(source, (str, Path)):
        source = Run(source)
    if isinstance(source, Run):
        if x is not None or y is not None:
            raise UserError("x, y: a run brings its own data; give run.model() to use other data")
        if sample_weight is not None:
            raise UserError("sample_weight: a run brings its own data; pass class_weight, or run.model() with x and y")
        return of_run(source, round_index, split, images, seed, class_weight=class_weight, client=client)
    from feddual.functional.evaluated import check

    check(source)
    return of_arrays(source, x, y, images, seed, sample_weight, class_weight)

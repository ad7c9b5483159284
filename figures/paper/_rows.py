"""The rows of the tables, and the experiments that stand behind them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from feddual.errors import UserError
from feddual.experiment import config

ALGORITHMS = (
    "fedavg",
    "fedprox",
    "fednova",
    "fedbn",
    "feddyn",
    "moon",
    "scaffold",
    "fedpvr",
    "feddual",
)  # as in Table 1
VARIANTS = ("feddual-published", "feddual-consistent", "feddual-frozen_head", "feddual-mean")
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}

# What a reader of a comparison should know.
SAME_RUNS = (
    "Neither network has batch normalisation, so FedBN is FedAvg; VGG16's head has two trained layers, the two that "
    "FedPVR corrects, so FedPVR is SCAFFOLD on CIFAR."
)
TUNED_NOTE = "tuned: learning rate and settings chosen on held-out data, all others at 1e-3"

# What may differ between two runs of the same experiment: its label, its place and pace, and the seed.
INCIDENTAL = ("name", "seed", "probes", "sinks", "checkpoint", "runtime")


@dataclass(frozen=True)
class Identity:
    """What is the same in all runs, over seeds, of one experiment."""

    text: str
    without_rounds: str  # a timing needs no full run


def overrides(row: str) -> dict[str, Any]:
    """The settings that make a paper experiment the row of this name."""
    algorithm, _, preset = row.partition("-")
    return {"algorithm.name": algorithm} | ({"algorithm.preset": preset} if preset else {})


def identity(values: Mapping[str, Any]) -> Identity:
    """The identity of a resolved config. The preset is a name for parameters; these count, not the name."""
    kept = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for key in INCIDENTAL:
        kept.pop(key, None)
    kept["algorithm"].pop("preset", None)
    kept.get("evaluation", {}).pop("batch_size", None)
    text = json.dumps(kept, sort_keys=True)
    kept["training"] = {key: value for key, value in kept["training"].items() if key != "rounds"}
    return Identity(text, json.dumps(kept, sort_keys=True))


@cache
def paper_identity(dataset: str, row: str) -> Identity | None:
    """The identity of a row's runs in the paper's setting; None when there is no such preset."""
    try:
        return identity(config.resolve(f"paper-{dataset}", overrides(row)).to_dict())
    except UserError:
        return None


@cache
def paper_settings(dataset: str, row: str) -> dict[str, Any] | None:
    """What a row's preset changes of its algorithm in the paper's setting; None when there is no such preset."""
    try:
        return differences(config.resolve(f"paper-{dataset}", overrides(row)).to_dict())
    except UserError:
        return None


@cache
def paper_rounds(dataset: str) -> int:
    """The rounds of the paper's experiment."""
    return config.resolve(f"paper-{dataset}").training.rounds


def differences(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys in which a config differs from the paper's experiment with the same data and algorithm.

    Where the paper has none, in which it differs from the defaults for its data, partition and model.
    """
    experiment = f"paper-{values['dataset'].get('name')}"
    own = {key: values[key] for key in ("dataset", "partition", "model")}
    own["training"] = {"clients_per_round": values["training"]["clients_per_round"]}  # belongs to the partition
    source = experiment if experiment in config.preset_names() else own
    base = config.resolve(source, {"algorithm.name": values["algorithm"]["name"]}).to_dict()
    skipped = (*INCIDENTAL, "evaluation")
    return {
        f"{section}.{key}": value
        for section, part in values.items()
        if section not in skipped and isinstance(part, Mapping)
        for key, value in part.items()
        if f"{section}.{key}" not in ("training.rounds", "algorithm.preset") and base[section].get(key) != value
    }

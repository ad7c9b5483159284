"""The rows of the tables, and the experiments that stand behind them."""

from functools import cache
from typing import Any

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Identity, differences, identity

# As in Table 1.
ALGORITHMS = ("fedavg", "fedprox", "fednova", "fedbn", "feddyn", "moon", "scaffold", "fedpvr", "feddual")
ROWS = (*ALGORITHMS, "feddual-tuned")
VARIANTS = ("feddual-published", "feddual-consistent", "feddual-frozen_head", "feddual-mean")
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}

# What a reader of a comparison should know.
SAME_RUNS = (
    "Neither network has batch normalisation, so FedBN is FedAvg; VGG16's head has two trained layers, the two that "
    "FedPVR corrects, so FedPVR is SCAFFOLD on CIFAR."
)
TUNED_NOTE = "tuned: learning rate and settings chosen on held-out data, all others at 1e-3"


def overrides(row: str) -> dict[str, Any]:
    """The settings that make a paper experiment the row of this name."""
    algorithm, _, preset = row.partition("-")
    return {"algorithm.name": algorithm} | ({"algorithm.preset": preset} if preset else {})


@cache
def _paper_config(dataset: str, row: str) -> dict[str, Any] | None:
    try:
        return config.resolve(f"paper-{dataset}", overrides(row)).to_dict()
    except UserError:
        return None


@cache
def paper_identity(dataset: str, row: str) -> Identity | None:
    """The identity of a row's runs in the paper's setting; None when there is no such preset."""
    found = _paper_config(dataset, row)
    return None if found is None else identity(found)


def paper_settings(dataset: str, row: str) -> dict[str, Any] | None:
    """What a row's preset changes of its algorithm in the paper's setting; None when there is no such preset."""
    found = _paper_config(dataset, row)
    return None if found is None else differences(found)


@cache
def paper_rounds(dataset: str) -> int:
    """The rounds of the paper's experiment."""
    return config.resolve(f"paper-{dataset}").training.rounds

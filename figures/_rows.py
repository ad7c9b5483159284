"""The rows of the tables, and the experiments that stand behind them."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Identity, differences, identity
from feddual.records.results import Recorded

# As in Table 1.
ALGORITHMS = ("fedavg", "fedprox", "fednova", "fedbn", "feddyn", "moon", "scaffold", "fedpvr", "feddual")
ROWS = (*ALGORITHMS, "feddual-tuned")
VARIANTS = ("feddual-published", "feddual-consistent", "feddual-frozen_head", "feddual-mean")
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}

# What becomes of an algorithm on a network that leaves nothing to its own idea.
GENERAL = {"fedbn": "fedavg", "fedpvr": "scaffold"}

# What a reader of a comparison should know.
SAME_RUNS = (
    "= the same algorithm on this network, so its runs are shown once: FedBN without batch normalisation is FedAvg, "
    "FedPVR that corrects all trained layers is SCAFFOLD."
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


def found_once(row: str, find: Callable[[str], list[Recorded]]) -> list[Recorded]:
    """A row's runs; those of its general algorithm where the two are the same one on this network.

    Bits differ between processors, so runs of both need not agree in the last digits: one of them is shown.

    Args:
        row: A row of a table.
        find: The runs that were recorded for a row.
    """
    mine, general = find(row), find(GENERAL[row]) if row in GENERAL else []
    return general if mine and general and _is_same(mine[0], general[0]) else mine


def _is_same(one: Recorded, general: Recorded) -> bool:
    """The same settings, and as many bytes: FedBN keeps batch normalisation back, FedPVR sends what it corrects."""
    mine, theirs = (json.loads(run.identity.without_rounds) for run in (one, general))
    own, shared = mine.pop("algorithm"), theirs.pop("algorithm")
    sent = [[run.metrics[0].get(key) for key in ("bytes_up", "bytes_down")] for run in (one, general)]
    return mine == theirs and {**own, "name": ""}.items() >= {**shared, "name": ""}.items() and sent[0] == sent[1]


def same_as(row: str, runs: Sequence[Recorded]) -> str:
    """The row whose runs stand for this one's; empty where they are its own.

    Args:
        row: A row of a table.
        runs: What was found for it.
    """
    return GENERAL[row] if runs and runs[0].config["algorithm"]["name"] == GENERAL.get(row) else ""


@cache
def paper_rounds(dataset: str) -> int:
    """The rounds of the paper's experiment."""
    return config.resolve(f"paper-{dataset}").training.rounds

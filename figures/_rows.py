"""The rows of the tables, and the experiments that stand behind them."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from feddual.errors import UserError
from feddual.experiment import config
from feddual.records.identity import Identity, identity
from feddual.records.results import Recorded

# As in Table 1.
ALGORITHMS = ("fedavg", "fedprox", "fednova", "fedbn", "feddyn", "moon", "scaffold", "fedpvr", "feddual")
BY_EXAMPLES = ("fedavg-nk", "fednova-nk")  # weighted by the clients' examples
READINGS = ("feddual-literal", "feddual-published", "feddual-frozen_head", "feddual-mean")
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}

# The experiments' names begin so; what they are.
SETTINGS = {"paper-": "the authors' setting (raw pixels)", "": "good practice (scaled input)"}

# What becomes of an algorithm on a network that leaves nothing to its own idea.
GENERAL = {"fedbn": "fedavg", "fedpvr": "scaffold"}

# What a reader of a comparison should know.
SAME_RUNS = (
    "= the same algorithm on this network, so its runs are shown once: FedBN without batch normalisation is FedAvg, "
    "FedPVR that corrects all trained layers is SCAFFOLD."
)
AUTHORS_NOTE = "the authors' setting: raw pixels, Adam 1e-3, nothing tuned"


def overrides(row: str) -> dict[str, Any]:
    """The settings that make an experiment the row of this name."""
    algorithm, _, variant = row.partition("-")
    more = {"training.weighting": "num_examples"} if variant == "nk" else {"algorithm.preset": variant or None}
    return {"algorithm.name": algorithm} | {key: value for key, value in more.items() if value}


@cache
def row_identity(experiment: str, row: str) -> Identity | None:
    """The identity of a row's runs in an experiment; None when there is no such preset."""
    try:
        return identity(config.resolve(experiment, overrides(row)).to_dict())
    except UserError:
        return None


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

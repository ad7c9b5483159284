"""What a server remembers of clients that are away: rows by client, in the order of their ids.

Gu, Huang, Zhang, Huang, Fast Federated Learning in the Presence of Arbitrary Device Unavailability, NeurIPS 2021,
https://arxiv.org/abs/2106.04159, average so over all clients where FedAvg averages over those of the round.
"""

from collections.abc import Sequence

import numpy as np

from feddual.algorithms._base import Slots

NAMES = ("remembered", "shares", "displacements")


def empty(size: int) -> Slots:
    """No client yet: their ids, their weights in averages, and how far each moved when it last took part."""
    return {
        "remembered": np.zeros(0, np.int64),
        "shares": np.zeros(0),
        "displacements": np.zeros((0, size), np.float32),
    }


def renew(slots: Slots, clients: Sequence[int], shares: Sequence[float], displacements: Sequence[np.ndarray]) -> Slots:
    """The memory with what these clients sent in place of what was known of them."""
    stay = ~np.isin(slots["remembered"], clients)
    fresh = (np.array(clients, np.int64), np.array(shares, np.float64), np.array(displacements, np.float32))
    rows = {name: np.concatenate([slots[name][stay], new]) for name, new in zip(NAMES, fresh, strict=True)}
    order = np.argsort(rows["remembered"])
    return {name: values[order] for name, values in rows.items()}

"""D: how far local training leads away."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, AtClient, Definition, OfRound


def at_client(client: AtClient) -> np.ndarray:
    """||w - w_k||."""
    return client.drift


def of_all(seen: OfRound) -> np.ndarray:
    """||sum_k p_k (w - w_k)||."""
    return seen.groups.norms(seen.gathered.weighted / np.sum(seen.gathered.weights))


DEFINITION = Definition(
    "D", "||w - w_k||, and of all clients ||sum_k p_k (w - w_k)||",
    BY_PRODUCT,
    at_client=at_client, of_all=of_all,
)  # fmt: skip

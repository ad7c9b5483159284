"""E: whether clients drift the same way."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, Definition, OfRound


def drift_diversity(client_squares: np.ndarray, sum_squares: np.ndarray) -> np.ndarray:
    """sum_k ||Delta_k||^2 / ||sum_k Delta_k||^2, of each layer; 1/K when all clients move alike."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(client_squares.sum(0) / sum_squares)


def of_all(seen: OfRound) -> np.ndarray:
    """Of a round."""
    return drift_diversity(seen.values("drift") ** 2, seen.groups.squares(seen.gathered.moved))


DEFINITION = Definition(
    "E", "sum_k ||w - w_k||^2 / ||sum_k (w - w_k)||^2; 1/K when all agree", BY_PRODUCT,
    is_norm=False, of_all=of_all,
)  # fmt: skip

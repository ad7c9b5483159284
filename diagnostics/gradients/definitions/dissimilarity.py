"""C: how much the clients' gradients disagree."""

import numpy as np

from diagnostics.gradients.contract import Definition, OfRound, gradient


def dissimilarity(shares: np.ndarray, client_squares: np.ndarray, mean_squares: np.ndarray) -> np.ndarray:
    """sum_k p_k ||g_k||^2 / ||sum_k p_k g_k||^2, of each layer; 1 when all clients have the same gradient.

    Args:
        shares: p_k, summing to one.
        client_squares: ||g_k||^2, shape (clients, layers).
        mean_squares: ||sum_k p_k g_k||^2, shape (layers,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((shares @ client_squares) / mean_squares)


def of_all(seen: OfRound) -> np.ndarray:
    """Of a round."""
    squares = seen.groups.squares(seen.mean_gradient)
    return dissimilarity(seen.shares, seen.values("client_at_global") ** 2, squares)


DEFINITION = Definition(
    "C", "sum_k p_k ||g_k||^2 / ||sum_k p_k g_k||^2, at least 1", "with A",
    is_norm=False, of_all=of_all, sends=gradient, shares="client_at_global", place=1,
)  # fmt: skip

"""I: whether a client's gradient points where all clients' does."""

import numpy as np

from diagnostics.gradients.contract import Definition, OfRound, gradient


def across_clients(seen: OfRound) -> list[np.ndarray]:
    """cos(g_k, sum_j p_j g_j) of each client."""
    groups, mean = seen.groups, seen.mean_gradient
    with np.errstate(divide="ignore", invalid="ignore"):
        return [groups.inner(one, mean) / (groups.norms(one) * groups.norms(mean)) for one in seen.sent("gradient")]


DEFINITION = Definition(
    "I", "cos(g_k, sum_j p_j g_j)", "with A",
    is_norm=False, across_clients=across_clients, sends=gradient, shares="client_at_global", place=2,
)  # fmt: skip

"""B: the gradient of all clients together."""

import numpy as np

from diagnostics.gradients.contract import Definition, OfRound, gradient


def of_all(seen: OfRound) -> np.ndarray:
    """||sum_k p_k g_k||."""
    return seen.groups.norms(seen.mean_gradient)


DEFINITION = Definition(
    "B", "||sum_k p_k g_k||: progress of the optimisation",
    "with A",
    of_all=of_all, sends=gradient, shares="client_at_global", place=1,
)  # fmt: skip

"""J: the gradient on the server's own data."""

import numpy as np

from diagnostics.gradients.contract import Definition, OfRound


def of_all(seen: OfRound) -> np.ndarray:
    """||grad F(w)|| over a fixed part of the test data."""
    view = seen.view
    return seen.groups.norms(view.gradient(view.previous, *view.test(seen.server_samples)))


DEFINITION = Definition(
    "J", "||grad F(w)|| with F the loss on a fixed part of the server's test data",
    "a backward pass over it", of_all=of_all, place=2,
)  # fmt: skip

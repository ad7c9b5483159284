"""J: the gradient on the server's own data."""

import numpy as np

from diagnostics.gradients.contract import Definition, OfRound, server_examples


def of_all(seen: OfRound) -> np.ndarray:
    """||grad F(w)|| over a fixed part of the test data."""
    inputs, labels = server_examples(seen.bench, seen.server_samples)
    return seen.groups.norms(seen.bench.gradient(seen.previous, inputs, labels))


DEFINITION = Definition(
    "J", "||grad F(w)|| with F the loss on a fixed part of the server's test data",
    "a backward pass over it",
    of_all=of_all, place=2,
)  # fmt: skip

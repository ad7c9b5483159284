"""A2: the square behind A', with its sign."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray | None:
    """The inner product of two halves' gradients; a single example has no halves."""
    found = client.halves.without_noise
    return None if found is None else found[0]


DEFINITION = Definition(
    "A2", "<g_k', g_k''>, with its sign: right on average, so that means are taken of this one, and then the root",
    "with A", is_norm=False, is_signed=True, at_client=at_client, shares="client_at_global", place=1,
)  # fmt: skip

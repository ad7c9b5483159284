"""A': the same without the noise of a finite probe set."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray | None:
    """The root of the inner product of two halves' gradients; a single example has no halves."""
    found = client.halves.without_noise
    return None if found is None else np.sqrt(np.maximum(found[0], 0))


DEFINITION = Definition(
    "A'", "sqrt(max(0, <g_k', g_k''>)) of two halves of the probe set: without the noise that inflates the norm",
    "with A", at_client=at_client, shares="client_at_global", place=1,
)  # fmt: skip

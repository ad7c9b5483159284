"""A': the same without the noise of a finite probe set.

The square below the root is right on average (A2), the root is not: cut off at zero it is too large on average where
noise outweighs the gradient, and its bend makes it too small elsewhere.
"""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray | None:
    """The root of the inner product of two halves' gradients; a single example has no halves."""
    found = client.halves.without_noise
    return None if found is None else np.sqrt(np.maximum(found[0], 0))


DEFINITION = Definition(
    "A'", "sqrt(max(0, <g_k', g_k''>)) of two random halves of the probe set: without the noise that inflates A; for "
    "means see A2", "with A", at_client=at_client, shares="client_at_global", place=1,
)  # fmt: skip

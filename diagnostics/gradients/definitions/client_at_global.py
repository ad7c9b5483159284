"""A: what each client's gradient is at the model it is given."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray:
    """||g_k|| over the probe set."""
    return client.groups.norms(client.halves.mean)


DEFINITION = Definition(
    "A", "||g_k||: heterogeneity as the global model sees it, before local steps",
    "a backward pass over the probe set of each client",
    at_client=at_client,
)  # fmt: skip

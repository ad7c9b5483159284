"""F: what local training has left of a client's own gradient."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray:
    """||grad F_k(w_k)|| over the probe set."""
    return client.groups.norms(client.gradient(client.probe_set))


DEFINITION = Definition(
    "F", "||grad F_k(w_k)||: what is left of the client's own gradient",
    "a backward pass over the probe set",
    at_client=at_client, at_local=True,
)  # fmt: skip

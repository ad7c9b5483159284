"""G: the gradient the public FedDUAL code takes."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray:
    """||n_k grad F_k(w_k)|| over all the client's data."""
    return client.num_examples * client.groups.norms(client.gradient())


DEFINITION = Definition(
    "G", "||n_k grad F_k(w_k)||, the sum over all the client's data: the public code's",
    "a backward pass over all the client's data; scales with n_k",
    at_client=at_client, at_local=True,
)  # fmt: skip

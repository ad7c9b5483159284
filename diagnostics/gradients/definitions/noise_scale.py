"""N: how noisy a client's gradient is."""

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition


def at_client(client: AtClient) -> np.ndarray | None:
    """tr(Sigma) / ||g_k||^2 from two halves of the probe set; none where the square is not positive."""
    found = client.halves.without_noise
    if found is None:
        return None
    square, trace = found
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(square > 0, trace / square, np.nan)


DEFINITION = Definition(
    "N", "tr(Sigma) / ||g_k||^2 from the same halves: the batch size at which noise and gradient are equal", "with A",
    is_norm=False, at_client=at_client, shares="client_at_global", place=1,
)  # fmt: skip

"""D: how far local training leads away."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "D", "||w - w_k||, and of all clients ||sum_k p_k (w - w_k)||", BY_PRODUCT,
    at_client=lambda client: client.drift,
    of_all=lambda seen: seen.groups.norms(seen.gathered.weighted / np.sum(seen.gathered.weights)),
)  # fmt: skip

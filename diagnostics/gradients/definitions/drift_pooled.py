"""D+: how far the clients lead away together, which is what moves the server."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "D+", "||sum_k p_k (w - w_k)||: what is left of the drift when clients are averaged", BY_PRODUCT,
    of_all=lambda seen: seen.groups.norms(seen.gathered.weighted / np.sum(seen.gathered.weights)),
)  # fmt: skip

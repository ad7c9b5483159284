"""H: the gradients that training itself steps along."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "H", "root mean square over the steps of the norm of the step's gradient; holds the noise of the batch, so "
    "compare at equal batch sizes only", BY_PRODUCT,
    at_client=lambda client: np.sqrt(client.groups.of_steps(client.trained.square_sums) / client.steps),
)  # fmt: skip

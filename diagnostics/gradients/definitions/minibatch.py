"""H: cross-entropy's gradient in the steps of training, whatever else the algorithm minimises."""

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "H", "root mean square over the steps of the norm of cross-entropy's gradient on the step's batch; holds the noise "
    "of the batch, so compare at equal batch sizes only", BY_PRODUCT,
    at_client=lambda client: client.over_steps(0),
)  # fmt: skip

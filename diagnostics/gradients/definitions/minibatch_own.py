"""H': the gradients that the steps are taken along."""

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "H'", "as H, of the gradient the optimizer is given: of the algorithm's own loss, with its terms and corrections",
    BY_PRODUCT, at_client=lambda client: client.over_steps(1),
)  # fmt: skip

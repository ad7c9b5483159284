"""D/: the drift in units of a step."""

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition(
    "D/", "||w - w_k|| / (learning rate x steps)", BY_PRODUCT,
    at_client=lambda client: client.drift / (client.learning_rate * client.steps),
)  # fmt: skip

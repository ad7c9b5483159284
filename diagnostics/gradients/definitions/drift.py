"""D: how far local training leads a client away."""

from diagnostics.gradients.contract import BY_PRODUCT, Definition

DEFINITION = Definition("D", "||w - w_k||", BY_PRODUCT, at_client=lambda client: client.drift)

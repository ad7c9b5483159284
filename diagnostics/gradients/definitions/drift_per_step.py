"""D/: the drift in units of a step."""

import numpy as np

from diagnostics.gradients.contract import BY_PRODUCT, AtClient, Definition


def at_client(client: AtClient) -> np.ndarray:
    """||w - w_k|| / (learning rate x steps)."""
    return client.drift / (client.learning_rate * client.steps)


DEFINITION = Definition("D/", "||w - w_k|| / (learning rate x steps)", BY_PRODUCT, at_client=at_client)

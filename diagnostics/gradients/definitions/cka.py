"""I': whether the clients' layers represent the same inputs alike."""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition, OfRound

COMMON = 128  # inputs on which the layers of two clients' models are compared


def gram(activations: np.ndarray) -> np.ndarray:
    """The centred Gram matrix of a layer's outputs, of norm one: the inner product of two of them is linear CKA."""
    centred = activations.astype(np.float64) - activations.mean(0)
    product = centred @ centred.T
    return np.asarray(product / (np.linalg.norm(product) or 1.0))


def grams(client: AtClient) -> dict[str, np.ndarray]:
    """To be sent: a matrix of each layer, on common inputs."""
    inputs, _ = client.view.test(COMMON)
    outputs = client.view.activations(client.trained.weights, inputs)
    return {layer: gram(value).astype(np.float32) for layer, value in outputs.items()}


def mean_cka(several: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Of Gram matrices of norm one: the mean inner product of two different ones is (||sum||^2 - K) / (K (K - 1))."""
    count = len(several)
    if count < 2:
        return {}
    totals = {layer: sum(one[layer].astype(np.float64) for one in several) for layer in several[0]}
    return {layer: float((np.sum(total**2) - count) / (count * (count - 1))) for layer, total in totals.items()}


def of_all(seen: OfRound) -> dict[str, float]:
    """By layer, of those that are layers of the picture: variables have no outputs."""
    found = mean_cka(seen.sent("grams"))
    return {layer: round(value, 6) for layer, value in found.items() if layer in seen.groups.names}


DEFINITION = Definition(
    "I'", "linear CKA of the layer's outputs by two clients' models on common inputs, the mean over pairs",
    "a forward pass over the common inputs", is_norm=False, of_all=of_all, sends=grams, by_default=False, place=2,
)  # fmt: skip

"""Server arithmetic shared by algorithms: streaming weighted means in float64."""

import numpy as np


class WeightedSum:
    """A running sum of weight * vector, and of the weights. `add` changes it: only one vector is ever held."""

    def __init__(self, vector: np.ndarray, weight: float):
        """Begin with one vector."""
        self.total = vector.astype(np.float64) * weight
        self.weight = weight

    def add(self, vector: np.ndarray, weight: float) -> None:
        """Take one more vector in."""
        np.add(self.total, vector * np.float64(weight), out=self.total)
        self.weight += weight


def add(acc: WeightedSum | None, vector: np.ndarray, weight: float) -> WeightedSum:
    """The sum with one more vector in it: the same object, changed; a new one when there was none."""
    if acc is None:
        return WeightedSum(vector, weight)
    acc.add(vector, weight)
    return acc


def mean(acc: WeightedSum) -> np.ndarray:
    """The weighted mean, as float32."""
    return (acc.total / acc.weight).astype(np.float32)

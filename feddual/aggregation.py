"""Server arithmetic shared by algorithms: streaming weighted means in float64."""

from dataclasses import dataclass

import numpy as np


@dataclass
class WeightedSum:
    """A running sum of weight * vector, and of the weights. `add` changes it: only one vector is ever held."""

    total: np.ndarray
    weight: float


def add(acc: WeightedSum | None, vector: np.ndarray, weight: float) -> WeightedSum:
    """The sum with one more vector in it: the same object, changed; a new one when there was none."""
    if acc is None:
        return WeightedSum(vector.astype(np.float64) * weight, weight)
    np.add(acc.total, vector * np.float64(weight), out=acc.total)
    acc.weight += weight
    return acc


def mean(acc: WeightedSum) -> np.ndarray:
    """The weighted mean, as float32."""
    return (acc.total / acc.weight).astype(np.float32)

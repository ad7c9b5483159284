"""Server arithmetic shared by algorithms: streaming weighted means in float64."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WeightedSum:
    """Sum of weight * vector, and of the weights."""

    total: np.ndarray  # float64
    weight: float


def add(acc: WeightedSum | None, vector: np.ndarray, weight: float) -> WeightedSum:
    """Take one more vector in. The sum is updated in place, so only one vector is ever held."""
    if acc is None:
        return WeightedSum(vector.astype(np.float64) * weight, weight)
    np.add(acc.total, vector * np.float64(weight), out=acc.total)
    return WeightedSum(acc.total, acc.weight + weight)


def mean(acc: WeightedSum) -> np.ndarray:
    """The weighted mean, as float32."""
    return (acc.total / acc.weight).astype(np.float32)

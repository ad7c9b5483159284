"""Intervals over training seeds and directions."""

import numpy as np

from feddual import seeding


def hierarchical(values: np.ndarray, draws: int = 2000, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The interval of a mean by the hierarchical bootstrap: seeds are drawn again, then directions within each.

    Directions of one trained model share that model's luck, so drawing from all values alike would make intervals too
    short. With one seed only the directions vary, and the interval says nothing about training.

    Args:
        values: Shape (seeds, directions).
        draws: How often.
        level: Of the interval.
        seed: Of the draws.
    """
    rng = seeding.generator(seed, "bootstrap")
    seeds, directions = values.shape
    chosen = rng.integers(0, seeds, (draws, seeds))
    within = rng.integers(0, directions, (draws, seeds, directions))
    means = values[chosen[:, :, None], within].mean((1, 2))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

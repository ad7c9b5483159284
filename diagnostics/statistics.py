"""Every interval and spread of the project: over training seeds, directions, rounds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from feddual import seeding


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws; those that are not a number do not count."""
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)


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


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean of values of shape (seeds, directions), and its interval by `hierarchical`."""
    return float(values.mean()), *hierarchical(values)


def block_bootstrap(runs: Sequence[np.ndarray], samples: int, rng: np.random.Generator) -> np.ndarray:
    """Means over resampled runs, and within each over resampled blocks of rounds.

    Args:
        runs: An array of each run, shape (rounds, layers).
        samples: How often.
        rng: Of the draws.

    Returns:
        Shape (samples, layers).
    """
    total = np.zeros((samples, runs[0].shape[1]))
    for _ in runs:
        drawn = rng.integers(len(runs), size=samples)
        for index, rows in enumerate(runs):
            mine = drawn == index
            block = max(1, round(len(rows) ** (1 / 3)))  # the usual length for blocks that shall keep the correlation
            starts = rng.integers(len(rows) - block + 1, size=(mine.sum(), -(-len(rows) // block)))
            picked = (starts[:, :, None] + np.arange(block)).reshape(mine.sum(), -1)[:, : len(rows)]
            total[mine] += np.nanmean(rows[picked], axis=1)
    return total / len(runs)


def over_seeds(values: Sequence[float | None]) -> tuple[float, float]:
    """Mean and sample standard deviation of what is known; NaN where there are too few values."""
    known = np.array([value for value in values if value is not None], float)
    mean = float(known.mean()) if len(known) else np.nan
    return mean, float(known.std(ddof=1)) if len(known) > 1 else np.nan


def band(seeds: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series]:
    """The mean over seeds (columns) of each row, and one standard deviation below and above; one seed has none."""
    mean, std = seeds.mean(axis=1), seeds.std(axis=1, ddof=1).fillna(0)
    return mean, mean - std, mean + std


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of the mean over the first axis, which holds independent (paired) differences."""
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values))

"""How often each interval covers what it is of, in simulated designs like the recorded ones; no timing.

python benchmarks/coverage.py

Beside each stands the percentile bootstrap that draws seeds, then directions (or rounds) within each, which was used
before. A design whose name begins with `not_` says why another way is recommended.
"""

from collections.abc import Callable

import numpy as np
from _common import report, say

from diagnostics.statistics import LEVEL, crossed, over_runs, repeated, simultaneous
from feddual.records.identity import Replicate

TRIALS = 40_000  # 95 % is known to ± 0.2
RESAMPLED = 2_000  # trials of the bootstrap, which is slow; ± 1
DRAWS = 400
RNG = np.random.default_rng(0)
Design = tuple[np.ndarray, float, bool]  # values (seeds, directions or rounds, trials), the truth, whether crossed


def effects(seed: float, direction: float, rest: float, seeds: int = 3, directions: int = 5) -> np.ndarray:
    """Normal effects with these standard deviations, around 0."""
    parts = ((seed, (seeds, 1)), (direction, (1, directions)), (rest, (seeds, directions)))
    return np.asarray(sum(sd * RNG.normal(size=(*shape, TRIALS)) for sd, shape in parts))


def rounds(seeds: int = 3, count: int = 36, correlation: float = 0.7) -> np.ndarray:
    """Log ratios of a run's measured rounds: the seed's luck, and noise that goes on from round to round."""
    noise = RNG.normal(size=(seeds, count, TRIALS))
    for place in range(1, count):
        noise[:, place] = correlation * noise[:, place - 1] + (1 - correlation**2) ** 0.5 * noise[:, place]
    return np.asarray(0.2 * noise + 0.1 * RNG.normal(size=(seeds, 1, TRIALS)))


def accuracies(seeds: int) -> np.ndarray:
    """Of two algorithms, which share much of a seed's luck: bounded, skewed to the left."""
    shared, own = RNG.beta(20, 3, size=(seeds, 1, TRIALS)), RNG.beta(20, 3, size=(2, seeds, 1, TRIALS))
    return np.asarray(0.5 * shared + 0.5 * own)


def skewed_means() -> Design:
    logs = effects(0.6, 0.2, 0.5)  # as recorded of FedAvg's curvatures with the VGG16 head
    return np.exp(logs), float(np.exp((0.6**2 + 0.2**2 + 0.5**2) / 2)), True


BETA = 20 / 23
DESIGNS: dict[str, Callable[[], Design]] = {
    "seeds_dominate": lambda: (effects(1, 0.2, 0.2), 0, True),
    "directions_dominate": lambda: (effects(0.2, 1, 0.2), 0, True),
    "both": lambda: (effects(1, 1, 0.5), 0, True),
    "interaction_dominates": lambda: (effects(0.5, 0.5, 1), 0, True),
    "only_interaction": lambda: (effects(0, 0, 1), 0, True),
    "twenty_directions": lambda: (effects(1, 1, 0.5, directions=20), 0, True),
    "ten_seeds": lambda: (effects(1, 1, 0.5, seeds=10), 0, True),
    "skewed_as_logarithms": lambda: (effects(0.6, 0.2, 0.5), 0, True),
    "not_skewed_as_they_are": skewed_means,
    "paired_ratios": lambda: (effects(0.6, 0.2, 0.5) - effects(0.3, 0.2, 0.4), 0, True),
    "gradient_ratios_3_seeds": lambda: (rounds(), 0, False),
    "accuracies_10_seeds": lambda: (accuracies(10)[0], BETA, False),
    "accuracies_3_seeds": lambda: (accuracies(3)[0], BETA, False),
    "margins_10_seeds": lambda: (np.subtract(*accuracies(10)), 0, False),
    "margins_3_seeds": lambda: (np.subtract(*accuracies(3)), 0, False),
    "four_directions": lambda: (effects(0.6, 0.2, 0.5, directions=4), 0, True),
    "draws_5_seeds_3": lambda: (effects(0.6, 0, 0.8, seeds=5, directions=3), 0, True),  # as FedAvg's on CIFAR-10
    "draws_5_seeds_2": lambda: (effects(0.6, 0, 0.8, seeds=5, directions=2), 0, True),
    "two_seeds": lambda: (effects(0.5, 0.5, 1, seeds=2), 0, True),
}


def of_draws(draw: float, seed: float, direction: float, rest: float) -> np.ndarray:
    """Two draws of the clients with three seeds each, and two directions; the truth is 0."""
    shapes = ((draw, (2, 1, 1)), (seed, (1, 3, 1)), (rest, (2, 3, 1)), (direction, (1, 1, 2)), (rest, (2, 3, 2)))
    found = sum(sd * RNG.normal(size=(*shape, TRIALS)) for sd, shape in shapes)
    return np.asarray(found).reshape(6, 2, TRIALS)


# As recorded of Figs. 1 and 6: standard deviations of draw, seed, direction, and of what is left.
OVER_DRAWS = {
    "draws_dominate": (1, 0.2, 0.2, 0.2), "seeds_dominate": (0.2, 1, 0.2, 0.2), "runs_dominate": (0, 0, 0.2, 1),
    "draws_and_directions": (0.6, 0.3, 0.6, 0.5),
}  # fmt: skip


def percent(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    return round(100 * float(((low <= truth) & (truth <= high)).mean()), 1)


def resampled(values: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the bootstrap over seeds, then over blocks within each."""
    seeds, size, trials = values.shape
    chosen = RNG.integers(seeds, size=(trials, DRAWS, seeds))
    starts = RNG.integers(size - block + 1, size=(trials, DRAWS, seeds, -(-size // block)))
    ends = []
    for trial in range(trials):
        places = (starts[trial, ..., None] + np.arange(block)).reshape(DRAWS, seeds, -1)[..., :size]
        ends.append(np.quantile(values[chosen[trial][..., None], places, trial].mean((1, 2)), [0.025, 0.975]))
    low, high = np.transpose(ends)
    return low, high


def together(comparisons: int = 7) -> float:
    """How often all of several correlated comparisons hold: quantities read off the same planes."""
    common, level = effects(1, 0.5, 0.5), simultaneous(comparisons)
    held = np.ones(TRIALS, bool)
    for _ in range(comparisons):
        _, low, high = crossed(0.8 * common + 0.6 * effects(1, 0.5, 0.5), level)
        held &= (low <= 0) & (high >= 0)
    return round(100 * float(held.mean()), 1)


def main() -> None:
    """Simulate every design."""
    found = {}
    for name, draw in DESIGNS.items():
        values, truth, is_crossed = draw()
        _, low, high = crossed(values) if is_crossed else over_runs(values.mean(1))
        block = 1 if is_crossed else max(1, round(values.shape[1] ** (1 / 3)))
        before = resampled(values[..., :RESAMPLED], block)
        found[name] = {"percent": percent(low, high, truth), "bootstrap_percent": percent(*before, truth)}
        found[name] |= {"seeds": values.shape[0], "each": values.shape[1]}
        say(f"{name}: {found[name]}")
    which = [Replicate(draw, seed) for draw in range(2) for seed in range(3)]
    for name, sds in OVER_DRAWS.items():
        values = of_draws(*sds)
        ends = {"percent": repeated(which, values), "as_six_runs_percent": crossed(values)}
        key = f"two_draws_{name}"
        found[key] = {what: percent(one.low, one.high, 0) for what, one in ends.items()} | {"seeds": 6, "each": 2}
        say(f"{key}: {found[key]}")
    result = {"level": LEVEL, "trials": TRIALS, "bootstrap_trials": RESAMPLED, "designs": found}
    report("coverage", result | {"seven_at_once_percent": together()})


if __name__ == "__main__":
    main()

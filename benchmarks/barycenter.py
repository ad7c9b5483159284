"""FedDUAL's server: the fixed point of Eqs. 15-16 against the public code's loop, and its growth with the layer.

    python benchmarks/barycenter.py [--largest 17000000]

The public loop calls SciPy's distance for each client in each iteration. Ours sorts the clients once and stops when it
has converged. Epsilon is the median distance, where the public loop does not underflow and both have one fixed point.
"""

import argparse
import time
import tracemalloc
from typing import Any

import numpy as np
from _common import report, say
from scipy.stats import wasserstein_distance

from feddual import barycenter


def public_loop(rows: np.ndarray, weights: np.ndarray, iterations: int, epsilon: float) -> np.ndarray:
    """In the manner of the public code."""
    center = np.mean(rows, axis=0)
    for _ in range(iterations):
        new, total = np.zeros_like(center), np.zeros_like(center)
        for row, weight in zip(rows, weights, strict=True):
            gamma = np.exp(-wasserstein_distance(center, row) / epsilon)
            new += weight * gamma * row
            total += weight * gamma
        center = new / (total + 1e-10)
    return center


def clock(function: Any, repeats: int) -> tuple[float, Any]:
    """The fastest of several calls."""
    best, result = np.inf, None
    for _ in range(repeats):
        started = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - started)
    return best, result


def main() -> None:
    """Measure ratio, growth and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=17_000_000)
    largest = parser.parse_args().largest
    rng = np.random.default_rng(0)
    weights = np.full(10, 0.1)

    rows = rng.normal(size=(10, 850)) * rng.uniform(0.5, 2, (10, 1))
    epsilon = float(np.median(barycenter.sorted_distances(rows.mean(0), np.sort(rows, 1))))
    slow, theirs = clock(lambda: public_loop(rows, weights, 150, epsilon), 3)
    fast, ours = clock(lambda: barycenter.gibbs(rows, weights, epsilon), 20)
    difference = float(np.abs(ours.vector - theirs).max() / np.abs(theirs).max())
    say(f"n = 850: {1000 * slow:.1f} ms against {1000 * fast:.2f} ms")

    seconds = {}
    size = 850
    while size <= largest:
        rows = rng.normal(size=(10, size)).astype(np.float32) * rng.uniform(0.5, 2, (10, 1)).astype(np.float32)
        seconds[size] = clock(
            lambda rows=rows: barycenter.gibbs(rows, weights, 0.5, relative=True, max_iter=10, tol=0), 1
        )[0]
        say(f"n = {size}: {seconds[size]:.4f} s for 10 iterations")
        size = min(size * 20, largest) if size < largest else largest + 1
    sizes = sorted(seconds)
    growth = (seconds[sizes[-1]] / seconds[sizes[1]]) / (
        sizes[-1] * np.log(sizes[-1]) / (sizes[1] * np.log(sizes[1]))
    )  # fmt: skip
    rows = rng.normal(size=(10, 1_000_000)).astype(np.float32)
    tracemalloc.start()
    barycenter.gibbs(rows, weights, 0.5, relative=True, max_iter=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report("barycenter", {
        "ratio_850": round(slow / fast, 1),
        "relative_difference_850": difference,
        "iterations_850": ours.iterations,
        "seconds": {str(size): round(value, 5) for size, value in seconds.items()},
        "growth_over_n_log_n": round(float(growth), 3),
        "allocated_over_input": round(peak / rows.nbytes, 2),
    })  # fmt: skip


if __name__ == "__main__":
    main()

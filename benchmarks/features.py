"""Frozen VGG16: how much faster a round is on cached features than through the whole network.

    python benchmarks/features.py

Random weights and synthetic images serve as well as real ones: the arithmetic is the same. The plain path is timed on a
few steps of one client, since a round of it takes minutes.
"""

import os
import tempfile

from _common import report, say

os.environ.setdefault("FEDDUAL_CACHE", tempfile.mkdtemp())

import numpy as np

from feddual.experiment import config
from feddual.training import engine
from feddual.training.local import ClientTask
from feddual.training.workbench import train_client, workbench

SETTINGS = {
    "dataset": {"name": "synthetic", "num_train": 1000, "num_test": 10, "shape": [32, 32, 3]},
    "partition": {"name": "iid", "num_clients": 10},
    "model": {"name": "vgg16", "weights": "random"},
    "algorithm": {"name": "fedavg"},
    "training": {"local_epochs": 1, "clients_per_round": 10},
}


def seconds_per_step(cached: bool, repeats: int) -> float:
    """The fastest client's time for a step."""
    experiment = config.resolve(SETTINGS, {"dataset.preprocess": "raw", "runtime.cache_features": cached})
    view = engine.worker_view(experiment)
    bench = workbench(view)
    weights = bench.initial_weights()
    train_client(ClientTask(view, 1, 0, weights))  # compiles
    found = []
    for _ in range(repeats):
        result = train_client(ClientTask(view, 1, 0, weights))
        found.append(result.seconds / result.metrics["steps"])
    say(f"{'cached' if cached else 'plain'}: {1000 * min(found):.2f} ms a step")
    return min(found)


def main() -> None:
    """Time both, twice, alternating."""
    cached, plain = [], []
    for _ in range(2):
        cached.append(seconds_per_step(True, 20))
        plain.append(seconds_per_step(False, 2))
    report("features", {
        "milliseconds_per_step": {"cached": 1000 * min(cached), "plain": 1000 * min(plain)},
        "ratio": round(float(np.min(plain) / np.min(cached)), 1),
    })  # fmt: skip


if __name__ == "__main__":
    main()

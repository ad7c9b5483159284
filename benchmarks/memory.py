"""Resident memory over 200 rounds, and a federation of 10,000 clients.

python benchmarks/memory.py
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import report, say

from feddual import api
from feddual.experiment import config


def resident() -> int:
    """This process's resident size in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run(overrides: dict[str, Any], marks: tuple[int, ...]) -> dict[str, Any]:
    """A run's resident size after the rounds in `marks`, and the seconds until its first round ended."""
    experiment = config.resolve("quickstart", overrides)
    sizes, first = {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        for record in api.rounds(experiment, out=Path(folder) / "run"):
            first = first or time.perf_counter() - started
            if record.round_index in marks:
                sizes[record.round_index] = resident()
                say(f"round {record.round_index}: {sizes[record.round_index] / 2**20:.0f} MiB")
    return {"mebibytes": {index: round(size / 2**20, 1) for index, size in sizes.items()}, "first_round_seconds": first}


def main() -> None:
    """Measure both."""
    long = run({"training.rounds": 200, "training.clients_per_round": 4}, (20, 200))
    ratio = long["mebibytes"][200] / long["mebibytes"][20]
    many = run({
        "dataset.name": "synthetic", "dataset.num_train": 100_000, "dataset.shape": [28, 28, 1],
        "partition.num_clients": 10_000, "training.rounds": 20,
    }, (1, 20))  # fmt: skip
    report("memory", {"rounds_200": long, "ratio_200_to_20": round(ratio, 4), "clients_10000": many})


if __name__ == "__main__":
    main()

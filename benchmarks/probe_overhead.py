"""What the gradient-norm probe costs: rounds with and without it, taking turns in one process.

python benchmarks/probe_overhead.py
"""

import statistics
import tempfile
from pathlib import Path

from _common import report, say

from diagnostics import GradientNormProbe
from feddual import api, config

ROUNDS = 22
SCHEDULED = ("client_at_global", "local_end", "published", "server", "cka")


def main() -> None:
    """Ratios of each round to its neighbour without probe, the median over rounds; the first two compile."""
    contestants = {"plain": [], "by-products": [GradientNormProbe()]}
    for name in SCHEDULED:
        contestants[name] = [GradientNormProbe(every=1, definitions=[name])]
    with tempfile.TemporaryDirectory() as folder:
        experiment = config.resolve(
            "quickstart", {"partition.name": "iid", "partition.num_clients": 10, "training.rounds": ROUNDS}
        )
        runs = {
            name: api.rounds(experiment, out=Path(folder) / name, probes=probes) for name, probes in contestants.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, rounds in runs.items():
                seconds[name].append(next(rounds).timings["seconds"])
            say("  ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items()))
        for rounds in runs.values():
            rounds.close()
    turns = {
        name: [ours / plain for ours, plain in zip(values[2:], seconds["plain"][2:], strict=True)]
        for name, values in seconds.items()
        if name != "plain"
    }
    report("probe_overhead", {
        "seconds_per_round": {name: round(statistics.median(values[2:]), 4) for name, values in seconds.items()},
        "percent": {name: round(100 * (statistics.median(values) - 1), 1) for name, values in turns.items()},
    })  # fmt: skip


if __name__ == "__main__":
    main()

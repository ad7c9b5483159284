"""What the gradient-norm probe costs: rounds with and without it, taking turns in one process.

python benchmarks/probe_overhead.py
"""

import statistics
import tempfile
from pathlib import Path

from _common import report, say

from diagnostics import GradientNormProbe
from feddual import api, config

ROUNDS = 16
SCHEDULED = ("client_at_global", "local_end", "published", "server", "cka")


def main() -> None:
    """Ratios of each round to its neighbour without probe, the median over rounds; the first rounds compile."""
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
    best = {name: min(values[2:]) for name, values in seconds.items()}
    medians = {name: statistics.median(values[2:]) for name, values in seconds.items()}
    report("probe_overhead", {
        "seconds_per_round": {name: round(value, 4) for name, value in best.items()},
        "percent": {name: round(100 * (best[name] / best["plain"] - 1), 1) for name in best if name != "plain"},
        "percent_of_medians": {
            name: round(100 * (medians[name] / medians["plain"] - 1), 1) for name in best if name != "plain"
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()

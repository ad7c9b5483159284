"""FedDUAL's whole round against FedAvg's, in alternating rounds of one process.

Rounds of ten clients with 600 images each, without evaluation.

python benchmarks/algorithm.py
"""

import statistics
import tempfile
from pathlib import Path

from _common import report, say

from feddual import api
from feddual.experiment import config

REPEATS, ROUNDS = 5, 8  # of each
TOTAL = REPEATS * ROUNDS + 2  # the first round compiles, the last evaluates
CONTESTANTS = {
    "fedavg": {"algorithm.name": "fedavg"},
    "running": {"algorithm.beta_mode": "running"},
    "per_epoch": {"algorithm.beta_mode": "per_epoch"},
}


def main() -> None:
    """Take turns, a round each; compared are the better of the repeats, and the median over turns."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name, overrides in CONTESTANTS.items():
            experiment = config.resolve("quickstart", {
                "algorithm.name": "feddual", "partition.name": "iid", "partition.num_clients": 10,
                "training.clients_per_round": 10, "training.rounds": TOTAL, "evaluation.every": TOTAL, **overrides,
            })  # fmt: skip
            runs[name] = api.rounds(experiment, out=Path(folder) / name)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        names = list(runs)
        for turn in range(TOTAL):
            for name in names[turn % 3 :] + names[: turn % 3]:  # each follows each other
                seconds[name].append(next(runs[name]).timings["seconds"])
            if turn % 10 == 9:
                say("  ".join(f"{name} {min(values[1:]):.3f} s" for name, values in seconds.items()))
        for rounds in runs.values():
            rounds.close()
    turns = {
        name: [ours / plain for ours, plain in zip(values[1:-1], seconds["fedavg"][1:-1], strict=True)]
        for name, values in seconds.items()
    }
    best = {
        name: min(sum(values[1 + start : 1 + start + ROUNDS]) for start in range(0, REPEATS * ROUNDS, ROUNDS))
        for name, values in seconds.items()
    }
    report("algorithm", {
        "seconds_per_round": {name: round(statistics.median(values[1:-1]), 4) for name, values in seconds.items()},
        "ratios": {name: round(best[name] / best["fedavg"], 3) for name in ("running", "per_epoch")},
        "ratios_of_turns": {name: round(statistics.median(turns[name]), 3) for name in ("running", "per_epoch")},
    })  # fmt: skip


if __name__ == "__main__":
    main()

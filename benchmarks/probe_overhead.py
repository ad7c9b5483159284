"""What the gradient-norm probe costs: rounds with and without it, taking turns in one process.

python benchmarks/probe_overhead.py
"""

import statistics
import tempfile
from pathlib import Path

from _common import report, say

from diagnostics import GradientNormProbe
from feddual import Probe, api
from feddual.experiment import config

SCHEDULED = ("client_at_global", "local_end", "published", "cka")


def percent(folder: Path, probe: Probe, rounds: int) -> tuple[float, float]:
    """By how much the median round with the probe is longer, and the median seconds of one without.

    The two change places in every turn, so that neither always runs on what the other left in the caches. The first
    two rounds compile.
    """
    experiment = config.resolve(
        "quickstart", {"partition.name": "iid", "partition.num_clients": 10, "training.rounds": rounds}
    )
    runs = {
        "plain": api.rounds(experiment, out=folder / "plain"),
        "probed": api.rounds(experiment, out=folder / "probed", probes=[probe]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in ("plain", "probed") if turn % 2 else ("probed", "plain"):
            seconds[name].append(next(runs[name]).timings["seconds"])
    for run in runs.values():
        run.close()
    ratios = [b / a for a, b in zip(seconds["plain"][2:], seconds["probed"][2:], strict=True)]
    return 100 * (statistics.median(ratios) - 1), statistics.median(seconds["plain"][2:])


def main() -> None:
    """By-products with many turns, since they cost little; each scheduled definition with a few."""
    probes = {"by-products": GradientNormProbe()}
    probes |= {name: GradientNormProbe(every=1, definitions=[name]) for name in SCHEDULED}
    found, plain = {}, {}
    for name, probe in probes.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name], plain[name] = percent(Path(folder), probe, 42 if name == "by-products" else 12)
        say(f"{name}: {found[name]:.1f} %")
    report("probe_overhead", {
        "seconds_per_round": round(plain["by-products"], 4),
        "percent": {name: round(value, 1) for name, value in found.items()},
    })  # fmt: skip


if __name__ == "__main__":
    main()

"""What the forgetting probe costs: rounds with and without it, taking turns in one process.

python benchmarks/forgetting_overhead.py
"""

import tempfile
from pathlib import Path

from _common import report, say
from probe_overhead import percent

from diagnostics import ForgettingProbe

ROUNDS = 22
BUDGETS = {"default": {}, "samples_200": {"samples": 200, "own_samples": 20}}


def main() -> None:
    """Every round measured, with the default budget and with a fifth of it."""
    found, plain = {}, {}
    for name, budget in BUDGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name], plain[name] = percent(Path(folder), ForgettingProbe(**budget), ROUNDS)
        say(f"{name}: {found[name]:.1f} %")
    report("forgetting_overhead", {
        "seconds_per_round": round(plain["default"], 4),
        "percent": {name: round(value, 1) for name, value in found.items()},
    })  # fmt: skip


if __name__ == "__main__":
    main()

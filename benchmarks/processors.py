"""How far the same run parts on other processors: instruction sets of oneDNN stand in for them.

The same experiment and seeds, run with the widest instructions of this machine (twice), with narrower ones, and without
oneDNN's own operations. Where sums are taken in another order, training amplifies the last digits.

python benchmarks/processors.py                                            # the built-in data
python benchmarks/processors.py --experiment paper-cifar10 --seeds 10      # results/processors-paper-cifar10.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import report, say

PROCESSORS = {
    "widest": {},
    "widest again": {},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "no oneDNN operations": {"TF_ENABLE_ONEDNN_OPTS": "0"},
}
Found = dict[str, Any]  # of a run: accuracies by round, the run's accuracy, a hash of its weights


def main() -> None:
    """Train each seed on each processor, and compare with the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="quickstart")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        asked.child.write_text(json.dumps([_train(asked.experiment, seed) for seed in range(asked.seeds)]))
        return
    found: dict[str, list[Found]] = {}
    for processor, environment in PROCESSORS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            command = [sys.executable, __file__, "--experiment", asked.experiment, "--seeds", str(asked.seeds)]
            subprocess.run([*command, "--child", str(out)], env=os.environ | environment, check=True)
            found[processor] = json.loads(out.read_text())
        say(f"{processor}: {[round(100 * run['late'], 2) for run in found[processor]]}")
    first = found["widest"]
    report(f"processors-{asked.experiment}", {
        "experiment": asked.experiment, "algorithm": "fedavg", "seeds": asked.seeds,
        "accuracy": [round(100 * run["late"], 3) for run in first],
        "std_over_seeds": round(100 * float(np.std([run["late"] for run in first], ddof=1)), 3),
        "against_widest": {name: _apart(first, runs) for name, runs in found.items() if name != "widest"},
    })  # fmt: skip


def _train(experiment: str, seed: int) -> Found:
    """A run in this process."""
    import feddual
    from feddual.functional.layout import fingerprint

    with tempfile.TemporaryDirectory() as folder:
        overrides = {"algorithm.name": "fedavg", "seed": seed}
        run = feddual.run(experiment, overrides, out=Path(folder) / "run", progress=False)
        weights = fingerprint(*run.weights().values())
        return {"accuracies": run.metrics["accuracy"].to_list(), "late": run.summary()["accuracy"], "weights": weights}


def _apart(first: list[Found], second: list[Found]) -> dict[str, Any]:
    """How two processors differ, over seeds, in points: of a run's accuracy, and of any one round."""
    late = [100 * (b["late"] - a["late"]) for a, b in zip(first, second, strict=True)]
    rounds = [
        100 * np.abs(np.subtract(b["accuracies"], a["accuracies"])).max() for a, b in zip(first, second, strict=True)
    ]
    return {
        "same_bits": sum(a["weights"] == b["weights"] for a, b in zip(first, second, strict=True)),
        "largest_difference": round(float(np.abs(late).max()), 3),
        "rms_difference": round(float(np.sqrt(np.mean(np.square(late)))), 3),
        "largest_in_a_round": round(float(np.max(rounds)), 3),
    }


if __name__ == "__main__":
    main()

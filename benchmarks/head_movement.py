"""How far each kernel has moved from its start, at the kept rounds of a run; no timing.

feddual run published-fmnist --set "checkpoint.rounds=[0,1,2,5,10,20,40,60,90,120,150,180]" --out runs/published
python benchmarks/head_movement.py runs/published
"""

import sys

import numpy as np
from _common import report

import feddual


def main() -> None:
    """Relative changes of kernels, the largest change of a value in the output layer, the largest barycenter."""
    if len(sys.argv) != 2:
        print(__doc__)
        return
    run = feddual.open(sys.argv[1])
    start = run.weights(0)
    moved: dict[str, dict[str, float]] = {}
    largest = 0.0
    for index in run.checkpoints:
        weights = run.weights(index)
        for path in weights:
            if path.startswith("output/"):
                largest = max(largest, float(np.abs(weights[path] - start[path]).max()))
            if path.endswith("kernel"):
                change = np.linalg.norm(weights[path] - start[path]) / np.linalg.norm(start[path])
                moved.setdefault(path.partition("/")[0], {})[str(index)] = round(float(change), 4)
    norms = [facts["norm"] for row in run.metrics["barycenter"] for facts in row.values()]
    summary = run.summary()
    report("head_movement", {
        "relative_change": moved,
        "largest_change_in_output_layer": largest,
        "largest_barycenter_norm": max(norms),
        "rounds": summary["rounds"],
        "accuracy_percent": round(100 * summary["accuracy"], 2),
        "final_percent": round(100 * summary["final"], 2),
    })  # fmt: skip


if __name__ == "__main__":
    main()

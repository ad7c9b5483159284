"""What is said of a run in a line: the accuracy, when it reached a target, whether it diverged."""

from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, Any]]
TARGETS = {"fmnist": 0.70, "cifar10": 0.40, "cifar100": 0.20}  # the paper's; the last one chosen by us


def summarise(
    config: Mapping[str, Any], metrics: Rows, timings: Rows = (), target: float | None = None
) -> dict[str, Any]:
    """A run's numbers.

    `accuracy` is the mean test accuracy over the last 10 % of rounds: with very skewed clients one round swings by
    points, so a single round is no statistic. The final and the best round stand beside it.

    Args:
        config: The resolved config.
        metrics: Rows of metrics.jsonl.
        timings: Rows of timings.jsonl.
        target: Accuracy to reach; by default the paper's for the data set.
    """
    total = config["training"]["rounds"]
    dataset = config["dataset"].get("name") or config["dataset"].get("path")
    target = TARGETS.get(dataset) if target is None else target
    tested = [(row["round"], row["accuracy"]) for row in metrics if row.get("accuracy") is not None]
    done = metrics[-1]["round"] if metrics else 0
    late = [accuracy for index, accuracy in tested if index > total - ceil(total / 10)]
    seconds = {row["round"]: row["seconds"] for row in timings}
    reached = next((index for index, accuracy in tested if target is not None and accuracy >= target), None)
    windows = (tested[i - 4 : i + 1] for i in range(4, len(tested)))
    means = ((window[-1][0], np.mean([accuracy for _, accuracy in window])) for window in windows)
    smooth = next((index for index, accuracy in means if target is not None and accuracy >= target), None)
    return {
        "name": config["name"],
        "algorithm": config["algorithm"]["name"],
        "preset": config["algorithm"].get("preset"),
        "dataset": dataset,
        "partition": config["partition"]["name"],
        "alpha": config["partition"].get("alpha"),
        "draw": config["partition"].get("seed"),
        "seed": config["seed"],
        "rounds": done,
        "finished": done >= total,
        "accuracy": float(np.mean(late)) if late else None,
        "final": tested[-1][1] if tested else None,
        "best": max((accuracy for _, accuracy in tested), default=None),
        "best_round": max(tested, key=lambda pair: pair[1])[0] if tested else None,
        "loss": metrics[-1].get("loss") if metrics else None,
        "target": target,
        "rounds_to_target": reached,
        "rounds_to_target_mean5": smooth,
        "seconds_to_target": sum(seconds.get(i, 0.0) for i in range(1, reached + 1)) if reached and seconds else None,
        "seconds": sum(seconds.values()) if seconds else None,
        "diverged": diverged(metrics, late),
    }


def late_mean(curve: Sequence[float | None], rounds: int) -> float:
    """The mean over the last tenth of the first so many rounds; NaN when there are not so many, or none was tested."""
    late = curve[rounds - ceil(rounds / 10) : rounds] if len(curve) >= rounds else ()
    tested = [accuracy for accuracy in late if accuracy is not None]
    return float(np.mean(tested)) if tested else float("nan")


def diverged(metrics: Rows, late: Sequence[float]) -> bool:
    """Non-finite weights, or accuracy within a point of chance over the last rounds."""
    if not metrics:
        return False
    norm = metrics[-1].get("update_norm")
    if (norm is not None and not isfinite(norm)) or metrics[-1]["num_set_aside"] == metrics[-1]["num_clients"]:
        return True
    classes = next((len(row["per_class_accuracy"]) for row in reversed(metrics) if row.get("per_class_accuracy")), None)
    return bool(late and classes and abs(float(np.mean(late)) - 1 / classes) < 0.01)

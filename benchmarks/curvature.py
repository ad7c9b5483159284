"""How fast products with the curvature are, against curvlinops, and whether both find the same.

    python benchmarks/curvature.py

LeNet-5 (44,426 parameters), trained for an epoch, on 2,000 training images of Fashion-MNIST; the weights are converted
one by one, so that both have the same function. Both run on one thread in processes of their own, curvlinops (PyTorch)
in a virtual environment of its own, and take turns: a product with the Hessian and one with the GGN each. A time is
the best of all turns. curvlinops can multiply several vectors at once; of eight at a time it has `block` times.

Also: each measure's cost in products and seconds.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import engine
import numpy as np
from _common import report, say

from feddual import devices
from feddual._lazy import keras
from feddual.data import datasets

engine.CONTESTANTS |= {
    "curvature": ("ours_curvature.py", None),
    "curvlinops": ("curvlinops_peer.py", ["curvlinops-for-pytorch==3.0.1", "torch==2.13.0", "scipy"]),
}


def prepare(folder: Path, images: int, batch: int) -> str:
    """Weights of a trained network and data, as one file that both read; returns the data's name."""
    from peers._model import initial_weights, lenet5

    data = datasets.fmnist() if datasets.locate("fmnist") else datasets.fmnist_mini()
    x, y = data.x_train.astype(np.float32) / np.float32(255), data.y_train.astype(np.int32)
    keras.utils.set_random_seed(0)
    model = lenet5(keras)
    model.set_weights(initial_weights(keras))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x[:20000], y[:20000], batch_size=32, epochs=1, verbose=0)
    weights = {f"w{number}": value for number, value in enumerate(model.get_weights())}
    np.savez(folder / "work.npz", x=x[:images], y=y[:images], batch=np.array(batch), **weights)
    return data.name


def main() -> None:
    """Let both take turns, compare what they find, and report ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=500)
    options = parser.parse_args()
    devices.configure()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = prepare(folder, options.images, options.batch)
        running = [
            engine.Contestant(one, python, folder)
            for one in ("curvature", "curvlinops")
            if (python := engine.interpreter(one)) is not None
        ]
        found: dict[str, list[dict[str, float]]] = {one.name: [] for one in running}
        for _ in range(options.turns):
            for one in running:
                found[one.name].append(one.ask("go"))
                say(f"{one.name}: " + ", ".join(f"{key} {value:.3f}" for key, value in found[one.name][-1].items()))
        answers = {one.name: one.stop() for one in running}
    best = {
        name: {key: round(min(turn[key] for turn in turns), 4) for key in turns[0]} for name, turns in found.items()
    }
    result: dict[str, Any] = {
        "dataset": dataset, "images": options.images, "batch": options.batch, "turns": options.turns,
        "seconds_per_product": best, "answers": answers,
    }  # fmt: skip
    if "curvlinops" in best:
        result |= compared(best, answers)
    report("curvature", result)


def compared(best: dict[str, dict[str, float]], answers: dict[str, Any]) -> dict[str, Any]:
    """The ratios of times, and how far apart what both found is."""
    ours, theirs = best["curvature"], best["curvlinops"]
    ratios = {key: round(theirs[key] / ours[key.replace("_block", "")], 2) for key in theirs}
    agreement: dict[str, Any] = {}
    for kind in ("hessian", "ggn"):
        one, other = (
            {key.removeprefix(f"{kind}_"): value for key, value in answers[name].items()}
            for name in ("curvature", "curvlinops")
        )
        apart = np.abs(np.array(one["largest"]) / np.array(other["largest"]) - 1)
        errors = np.hypot(one["trace_error"], other["trace_error"])
        agreement[kind] = {
            "eigenvalues_apart": float(apart.max()), "within_a_thousandth": bool(apart.max() < 1e-3),
            "traces": [one["trace"], other["trace"]], "standard_error": float(errors),
            "within_two_errors": bool(abs(one["trace"] - other["trace"]) < 2 * errors),
        }  # fmt: skip
    loss = [answers[name]["loss"] for name in ("curvature", "curvlinops")]
    return {"curvlinops / ours": ratios, "agreement": agreement | {"loss": loss}}


if __name__ == "__main__":
    main()

"""How fast loss surfaces are, against loss-landscapes and against evaluating a whole frozen network.

    python benchmarks/surface.py

LeNet-5: a filter-normalised plane on 10,000 test images of Fashion-MNIST, the same grid for all, in turns, a surface
each. loss-landscapes (PyTorch, two threads) runs in its own virtual environment. The ratio is of whole calls, compiling
and starting workers included; `steady` has the grid alone.

Frozen VGG16: a surface of a fresh head on 10,000 images of CIFAR-10, once from cached features, against the whole
network at every point, which is timed on a few points. Needs the data (FEDDUAL_DATA); without, synthetic images and
random weights serve, the arithmetic being the same.
"""

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine
import numpy as np
from _common import report, say

from feddual import devices, models
from feddual.data import datasets
from feddual.functional import features as kept

engine.CONTESTANTS |= {
    "surface-1": ("ours_surface.py", None),
    "surface-2": ("ours_surface.py", None),
    "losslandscapes": ("losslandscapes.py", ["loss-landscapes==3.0.6", "torch==2.13.0", "tqdm"]),
}


def lenet(side: int, turns: int, images: int) -> dict[str, Any]:
    """Seconds of a surface of `side` x `side` points, each contestant's best of `turns`."""
    data = datasets.fmnist() if datasets.locate("fmnist") else datasets.fmnist_mini()
    x, y = (np.concatenate([data.x_test, data.x_train])[:images], np.concatenate([data.y_test, data.y_train])[:images])
    names = ("losslandscapes", "surface-1", "surface-2")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pixels = x.astype(np.float32) / np.float32(255)
        np.savez(folder / "work.npz", x=pixels, y=y.astype(np.int32), side=np.array(side))
        running = [
            engine.Contestant(name, python, folder)
            for name in names
            if (python := engine.interpreter(name)) is not None
        ]
        found: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in running}
        for _ in range(turns):
            for contestant in running:
                found[contestant.name].append(contestant.ask("go"))
                say(f"{contestant.name}: {found[contestant.name][-1]['seconds']:.2f} s")
        for contestant in running:
            contestant.stop()
    whole = {name: min(value["seconds"] for value in values) for name, values in found.items()}
    steady = {name: min(value["seconds_per_point"] for value in values) for name, values in found.items()}
    result: dict[str, Any] = {
        "dataset": data.name, "images": len(x), "points": side**2,
        "seconds": {name: round(value, 3) for name, value in whole.items()},
        "seconds_per_point": {name: round(value, 5) for name, value in steady.items()},
        "engine": found["surface-1"][-1]["engine"], "check": found["surface-1"][-1]["check"],
    }  # fmt: skip
    if "losslandscapes" in whole:
        peer = "losslandscapes"
        for kind, values in (("whole", whole), ("steady", steady)):
            result[kind] = {
                f"loss-landscapes / {ours}": round(values[peer] / values[ours], 2)
                for ours in ("surface-1", "surface-2")
            }
    return result


def frozen_head(side: int, images: int, slow_points: int) -> dict[str, Any]:
    """A surface from cached features, against the whole network at `slow_points` points."""
    from diagnostics.landscape import loss_surface
    from diagnostics.subject import Subject
    from diagnostics.surfaces.objective import Objective

    real = datasets.locate("cifar10") is not None
    if real:
        data = datasets.cifar10()
        x, y = data.x_test[:images], data.y_test[:images]
    else:
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (images, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, images)
    weights = "imagenet" if real and datasets.find_file(models.VGG16_FILE) else "random"
    section = SimpleNamespace(model_dump=lambda: {"name": "vgg16", "weights": weights, "hidden": 64})
    network = models.build(section, (32, 32, 3), 10, seed=0)
    started = time.perf_counter()
    features = np.asarray(kept.features(network, x))
    extraction = time.perf_counter() - started
    say(f"features: {extraction:.1f} s (0 if cached)")
    started = time.perf_counter()
    surface = loss_surface(
        Subject(network.model, features, y.astype(np.int32), features=True, facts={"source": "vgg16"}), grid=side
    )
    fast = time.perf_counter() - started
    say(f"{side} x {side} from features: {fast:.1f} s")
    plain = Objective(network.model, datasets.preprocess(x, network.preprocess), y, cut=False)
    plain_loss = float(plain().loss)  # compiles
    seconds = []
    for _ in range(slow_points):
        started = time.perf_counter()
        plain()
        seconds.append(time.perf_counter() - started)
        say(f"whole network: {seconds[-1]:.1f} s a point")
    return {
        "dataset": "cifar10" if real else "synthetic", "images": len(x), "points": side**2, "weights": weights,
        "seconds": round(fast, 2), "grid_seconds": surface.meta["facts"]["seconds"],
        "feature_seconds": round(extraction, 2), "whole_network_seconds_per_point": round(min(seconds), 3),
        "engine": surface.meta["facts"]["engine"],
        "centre_difference": abs(plain_loss - surface.meta["facts"]["loss"]) / plain_loss,
        "ratio": round(min(seconds) * side**2 / fast, 1),
        "ratio_with_extraction": round(min(seconds) * side**2 / (fast + extraction), 1),
    }  # fmt: skip


def main() -> None:
    """Both claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("lenet5", "frozen_vgg16"), help="only this one")
    parser.add_argument("--grid", type=int, default=21, help="points along each axis of LeNet's plane; odd")
    parser.add_argument("--turns", type=int, default=2, help="surfaces of each contestant; the best counts")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--head-grid", type=int, default=51, help="of the frozen network's surface")
    parser.add_argument("--slow-points", type=int, default=2, help="of the whole frozen network")
    parser.add_argument("--try-out", action="store_true", help="print the result, keep nothing")
    options = parser.parse_args()
    devices.configure()
    parts = {
        "lenet5": lambda: lenet(options.grid, options.turns, options.images),
        "frozen_vgg16": lambda: frozen_head(options.head_grid, options.images, options.slow_points),
    }
    for name, measure in parts.items():
        if options.part in (None, name):
            result = measure()
            print(result) if options.try_out else report(f"surface_{name}", result)


if __name__ == "__main__":
    main()

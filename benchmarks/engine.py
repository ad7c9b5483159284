"""How fast a round of federated training is, against the alternatives.

    python benchmarks/engine.py [--rounds 5] [--repeats 2] [--only ours-1 keras-loop ...]

The work is the same for all: LeNet-5 (44,426 parameters), Fashion-MNIST in 100 even clients of 600, ten of them a
round, 3 local epochs, batch 32, Adam 1e-3: 570 optimizer steps a round. All start from the same weights. A contestant's
time is its fastest round after the first (which compiles), over repeats that alternate between the contestants;
evaluation is not part of it. Each must end within two accuracy points of ours after the same rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
from _common import report, say

from feddual import datasets, seeding

HERE = Path(__file__).parent
TENSORFLOW = "tensorflow==2.21.0"
# name: (script, packages of its own virtual environment, or None for ours)
CONTESTANTS: dict[str, tuple[str, list[str] | None]] = {
    "ours-1": ("ours.py", None),
    "ours-2": ("ours.py", None),
    "keras-loop": ("keras_loop.py", None),
    "pfl": ("pfl_research.py", ["pfl[tf]==0.6.0", TENSORFLOW]),
    "flower": ("flower.py", ["flwr[simulation]==1.41.0", TENSORFLOW]),
    "published": ("published.py", None),
}


def prepare(folder: Path, rounds: int) -> None:
    """The data, the clients of each round and the initial weights, as one file that every contestant reads."""
    place = datasets.locate("fmnist")
    data = datasets.fmnist() if place else datasets.fmnist_mini()
    clients = len(data.x_train) // 600
    order = np.random.default_rng(0).permutation(len(data.x_train)).reshape(clients, 600)
    cohorts = [seeding.sample_clients(0, index, clients, min(10, clients)) for index in range(1, rounds + 1)]
    unit = np.float32(1 / 255)
    np.savez(
        folder / "work.npz",
        x=data.x_train[order].astype(np.float32) * unit, y=data.y_train[order].astype(np.int32),
        x_test=data.x_test.astype(np.float32) * unit, y_test=data.y_test.astype(np.int32),
        cohorts=np.array(cohorts), dataset=np.array(data.name),
    )  # fmt: skip


def interpreter(name: str, packages: list[str] | None) -> str | None:
    """The contestant's Python; None if its packages cannot be installed."""
    if packages is None:
        return sys.executable
    folder = datasets.cache_dir() / "benchmarks" / name
    python = folder / "bin" / "python"
    marker = folder / ".installed"
    if not marker.exists() or marker.read_text() != " ".join(packages):
        say(f"installing {' '.join(packages)} into {folder}")
        venv.create(folder, with_pip=True)
        if subprocess.run([python, "-m", "pip", "install", "--quiet", *packages]).returncode:
            return None
        marker.write_text(" ".join(packages))
    return str(python)


def run(name: str, python: str, folder: Path, rounds: int) -> dict[str, Any]:
    """One repeat of a contestant: seconds of each round and the final accuracy."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    script = HERE / "peers" / CONTESTANTS[name][0]
    done = subprocess.run(
        [python, str(script), str(folder / "work.npz"), str(rounds), name],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def main() -> None:
    """Time all contestants and report ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    accuracy: dict[str, float] = {}
    facts: dict[str, Any] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options.rounds)
        for repeat in range(options.repeats):
            for contestant in options.only:
                python = interpreter(contestant, CONTESTANTS[contestant][1])
                if python is None:
                    missing[contestant] = "could not be installed"
                    continue
                found = run(contestant, python, folder, options.rounds)
                seconds.setdefault(contestant, []).append(min(found["seconds"][1:]))
                accuracy[contestant] = found["accuracy"]
                facts |= {f"{contestant}: {key}": value for key, value in found.get("facts", {}).items()}
                say(f"repeat {repeat + 1}  {contestant:11} {seconds[contestant][-1]:7.2f} s a round, "
                    f"accuracy {accuracy[contestant]:.3f}")  # fmt: skip
    best = {name: min(values) for name, values in seconds.items()}
    off = {name: accuracy[name] - accuracy["ours-1"] for name in best if "ours-1" in best}
    report("engine", {
        "seconds_per_round": {name: round(value, 4) for name, value in best.items()},
        "all_repeats": seconds,
        "ratios": {
            f"{name} / {ours}": round(best[name] / best[ours], 2)
            for ours in ("ours-1", "ours-2") if ours in best for name in best if name not in ("ours-1", "ours-2")
        },
        "accuracy": accuracy,
        "within_two_points": {name: bool(abs(value) <= 0.02) for name, value in off.items()},
        "facts": facts,
        "missing": missing,
        "rounds": options.rounds,
    })  # fmt: skip


if __name__ == "__main__":
    main()

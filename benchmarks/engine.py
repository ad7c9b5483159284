"""How fast a round of federated training is, against the alternatives.

    python benchmarks/engine.py

The work is the same for all: LeNet-5 (44,426 parameters), Fashion-MNIST in 100 even clients of 600, ten of them a
round, 3 local epochs, batch 32, Adam 1e-3: 570 optimizer steps a round. All start from the same weights and take turns,
a round each, so that a busy machine slows them all. A contestant's time is its fastest round after the first (which
compiles); evaluation is not part of it. Each must end within two accuracy points of ours after the same rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _common import report, say

from feddual import seeding
from feddual.data import datasets

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


FAST, SLOW = ["ours-1", "ours-2", "keras-loop", "pfl"], ["ours-2", "flower", "published"]


@cache
def interpreter(name: str) -> str | None:
    """The contestant's Python; None if its packages cannot be installed."""
    packages = CONTESTANTS[name][1]
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


class Contestant:
    """A process that does one round when told to."""

    def __init__(self, name: str, python: str, folder: Path):
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self.name = name
        self.log = open(folder / f"{name}.log", "w+")
        self.process = subprocess.Popen(
            [python, str(HERE / "peers" / CONTESTANTS[name][0]), str(folder / "work.npz"), name],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip

    def ask(self, word: str) -> dict[str, Any]:
        """Say `go` or `stop`, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.log.seek(0)
        raise RuntimeError(f"{self.name} failed:\n{self.log.read()[-3000:]}")

    def stop(self) -> dict[str, Any]:
        answer = self.ask("stop")
        self.process.communicate()
        self.log.close()
        return answer


def race(names: list[str], rounds: int) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """All contestants in turn, a round each: what they measured after the first, and their accuracy at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, rounds)
        running = [Contestant(name, python, folder) for name in names if (python := interpreter(name)) is not None]
        for contestant in running:
            contestant.ask("go")  # compiles
        found: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in running}
        for _ in range(rounds - 1):
            for contestant in running:
                found[contestant.name].append(contestant.ask("go"))
            say("  ".join(f"{name} {values[-1]['seconds']:.2f} s" for name, values in found.items()))
        return found, {contestant.name: contestant.stop()["accuracy"] for contestant in running}


def main() -> None:
    """Race the contestants in two groups, since the slow ones take minutes, and report ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of the fast group, the first of which does not count")
    parser.add_argument("--slow-rounds", type=int, default=4, help="of the slow group; 0 leaves it out")
    options = parser.parse_args()
    result: dict[str, Any] = {"ratios": {}, "seconds_per_round": {}, "accuracy": {}, "within_two_points": {}}
    facts: dict[str, float] = {}
    for group, rounds in ((FAST, options.rounds), (SLOW, options.slow_rounds)):
        if rounds < 2:
            continue
        found, accuracy = race(group, rounds)
        best = {name: min(value["seconds"] for value in values) for name, values in found.items()}
        label = f"{rounds} rounds"
        result["seconds_per_round"][label] = {name: round(value, 4) for name, value in best.items()}
        result["accuracy"][label] = accuracy
        for ours in ("ours-1", "ours-2"):
            peers = [name for name in best if ours in best and name not in ("ours-1", "ours-2")]
            result["ratios"] |= {f"{name} / {ours}": round(best[name] / best[ours], 2) for name in peers}
        reference = accuracy["ours-2"]
        result["within_two_points"] |= {name: bool(abs(value - reference) <= 0.02) for name, value in accuracy.items()}
        if "ours-1" in found:
            outside = [
                1 - (v["client_seconds"] + v["evaluation_seconds"]) / v["round_seconds"] for v in found["ours-1"]
            ]
            facts["overhead"] = round(float(np.median(outside)), 4)
            facts["evaluation_seconds"] = round(min(v["evaluation_seconds"] for v in found["ours-1"]), 4)
    missing = [name for name in CONTESTANTS if interpreter(name) is None]
    report("engine", {**result, "ours": facts, "could_not_be_installed": missing})


if __name__ == "__main__":
    main()

"""What the engine and the diagnostics gave when the hashes were recorded: `python -m tests.golden.record OUT.json`.

Everything goes through the public interface, so that the rooms behind it may be rebuilt. Hashes hold for one kind of
processor and one set of versions; beside them stand the losses, which agree everywhere to some digits.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diagnostics
import feddual

BASE: dict[str, Any] = {
    "name": "golden",
    "dataset": {"name": "synthetic", "num_train": 400, "num_test": 100, "num_classes": 4, "shape": [16, 16, 1]},
    "partition": {"name": "dirichlet_classes", "alpha": 0.5, "num_clients": 8, "min_size": 6},
    "model": {"name": "lenet5"},
    "algorithm": {"name": "fedavg"},
    "training": {"rounds": 4, "clients_per_round": 3, "local_epochs": 2, "batch_size": 16},
    "checkpoint": {"every": 2, "keep": "all"},
}
ALGORITHMS = ("fedavg", "fedbn", "feddyn", "fednova", "fedprox", "fedpvr", "moon", "scaffold")
PRESETS = ("published", "consistent")
LITERAL = {"algorithm.name": "feddual", "algorithm.preset": "literal"}
NORMALISED = {"model.name": "tests.helpers:user_model", "dataset.shape": [8]}
READING = "paper"  # FedDUAL's literal reading, under the name it had
RUNS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm.name": name} for name in ALGORITHMS},
    "fednova": {"algorithm.name": "fednova", "training.weighting": "num_examples"},
    "fedpvr": {"algorithm.name": "fedpvr", "algorithm.mask": "last_layers:2"},
    f"feddual-{READING}": LITERAL,
    **{f"feddual-{name}": {"algorithm.name": "feddual", "algorithm.preset": name} for name in PRESETS},
    "feddual-tuned": {
        "algorithm.name": "feddual",
        "algorithm.kl_scale": 0.03,
        "algorithm.server_lr": 0.2,
        "training.learning_rate": 0.002,
    },
    "feddual-frozen_head": {**LITERAL, "algorithm.barycenter": "zero", "algorithm.mask": "last_tensors:2"},
    "feddual-mean": {**LITERAL, "algorithm.barycenter": "mean"},
    "scaffold-normalised": {
        "algorithm.name": "scaffold",
        "model.name": "tests.helpers:user_model",
        "dataset.shape": [8],
    },
    "fedbn-normalised": {"algorithm.name": "fedbn", **NORMALISED},
    "frozen": {"model.name": "tests.helpers:frozen_model"},
    "held-out": {"evaluation.held_out": 0.2},
    "plain": {"runtime.accelerate": False, "runtime.cache_features": False},
}
PROCESSES = ("scaffold", f"feddual-{READING}")  # also on two workers
KILLED = ("scaffold", "feddyn", "moon", f"feddual-{READING}")  # also stopped after round 3, and resumed
PROBE = {"name": "gradient-norms", "every": 2, "definitions": ["A", "A'", "B", "C", "F", "G", "I", "J", "N", "cka"]}


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:24]


def of_run(path: Path) -> dict[str, Any]:
    """The last weights, the rows, and the losses for people and other processors."""
    run = feddual.open(path)
    weights = run.weights()
    return {
        "weights": sha(*(name.encode() + weights[name].tobytes() for name in sorted(weights))),
        "metrics": sha((path / "metrics.jsonl").read_bytes()),
        "clients": sha((path / "clients.jsonl").read_bytes()),
        "losses": [float(f"{value:.6g}") for value in run.metrics["loss"]],
    }


def arrays(measured: Any) -> str:
    names = ("alphas", "loss", "sem", "accuracy", "class_loss", "computed", "samples")
    return sha(*(np.ascontiguousarray(getattr(measured, name)).tobytes() for name in names))


def record(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case's name and what came out; runs go to folders of their names."""
    for name, overrides in RUNS.items():
        feddual.run(BASE, overrides, out=out / name, progress=False)
        yield name, of_run(out / name)
    for name in PROCESSES:
        path = out / f"{name}, processes"
        more = {"runtime.executor": "processes", "runtime.workers": 2}
        feddual.run(BASE, RUNS[name] | more, out=path, progress=False)
        yield path.name, of_run(path)
    for name in KILLED:
        path = out / f"{name}, resumed"
        for found in (rounds := feddual.rounds(BASE, RUNS[name], out=path)):
            if found.round_index == 3:
                rounds.close()
        feddual.run(BASE, RUNS[name], out=path, resume=True, progress=False)
        yield path.name, of_run(path)
    yield from _diagnostics(out)


def _diagnostics(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    path = out / "probed"
    feddual.run(BASE, {"probes": [PROBE]}, out=path, progress=False)
    rows = (path / "probes" / "gradient-norms" / "rounds.jsonl").read_bytes()
    yield "gradient norms", {"rows": sha(rows), **of_run(path)}
    for name, settings in {
        "surface": {"grid": 7, "images": 150},
        "surface, plain": {"grid": 5, "images": 150, "engine": "plain"},
        "surface, two levels": {"grid": 7, "images": 200, "two_level": 60},
        "surface, other norm": {"grid": 5, "images": 150, "norm": "layer", "split": "test", "direction": 1},
    }.items():
        found = diagnostics.loss_surface(out / "fedavg", progress=False, **settings)
        losses = [float(f"{value:.5g}") for value in found.loss.ravel()]
        yield name, {"arrays": arrays(found), "losses": losses}
    found = diagnostics.loss_surface(out / "frozen", grid=5, images=150, progress=False)
    yield "surface of a head", {"arrays": arrays(found), "losses": [float(f"{v:.5g}") for v in found.loss.ravel()]}
    found = diagnostics.loss_surface(out / "scaffold-normalised", grid=5, images=100, bn="recalibrate", progress=False)
    yield "surface, recalibrated", {"arrays": arrays(found), "losses": [float(f"{v:.4g}") for v in found.loss.ravel()]}
    models = {"one": out / "fedavg", "two": out / "scaffold"}
    made = diagnostics.compare_models(models, directions=3, images=150, grid=5, progress=False)
    tables = {name: getattr(made, name).to_csv(index=False).encode() for name in ("values", "profiles", "summary")}
    yield (
        "comparison",
        {
            **{name: sha(table) for name, table in tables.items()},
            "differences": sha(made.differences.to_csv(index=False).encode()),
            "losses": [float(f"{value:.4g}") for value in made.summary["mean"]],
        },
    )


def environment() -> dict[str, Any]:
    """What decides the last bits."""
    from feddual.devices import environment as whole

    found = whole()
    return {key: found[key] for key in ("tensorflow", "keras", "numpy", "machine", "cpu_features", "threads", "onednn")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        cases = dict(record(Path(folder)))
    Path(sys.argv[1]).write_text(json.dumps({"environment": environment(), "cases": cases}, indent=1) + "\n")

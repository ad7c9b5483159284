"""Figures: every one draws from slim results and from none, without TensorFlow; the numbers are the runs' own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import feddual
import figures
from feddual import config
from feddual.errors import UserError
from feddual.run_dir import RunDir
from figures import _collect, _paper, _rows
from figures.__main__ import app
from figures._results import Results

CLASSES = {"cifar10": 10, "cifar100": 100, "fmnist": 10}
LEVEL = {"cifar10": 0.5, "cifar100": 0.3, "fmnist": 0.8}


def make_run(folder, dataset, row, seed, rounds=None, **overrides):
    """A run that was never trained: a rising curve whose level depends on the row and the seed."""
    settings = {**_rows.overrides(row), "seed": seed, **{key.replace("__", "."): v for key, v in overrides.items()}}
    if rounds is not None:
        settings["training.rounds"] = rounds
    experiment = config.resolve(f"paper-{dataset}", settings)
    total = experiment.training.rounds
    noise = np.random.default_rng([seed, *row.encode()])
    level = LEVEL[dataset] * noise.uniform(0.75, 1.1)
    accuracy = level * (1 - np.exp(-np.arange(1, total + 1) / 12)) + noise.normal(0, 0.02, total)
    run = RunDir(folder)
    run.create()
    metrics, timings = [], []
    for number in range(1, total + 1):
        line = {
            "round": number,
            "accuracy": round(float(np.clip(accuracy[number - 1], 0, 1)), 4),
            "loss": float(noise.uniform(1, 2)),
            "macro_f1": float(noise.uniform()),
            "per_class_accuracy": [0.5] * CLASSES[dataset],
            "num_clients": 10,
            "num_set_aside": 0,
            "bytes_down": 1_000_000,
            "bytes_up": 2_000_000 if row == "scaffold" else 1_000_000,
            "update_norm": 1.0,
        }
        if row.startswith("feddual"):
            facts = {"iterations": 3, "residual": 0.0, "effective_clients": float(noise.uniform(1, 10))}
            line["barycenter"] = {"output/kernel": {**facts, "client_weights": [0.1] * 10}}
        metrics.append(line)
        seconds = {"seconds": 2.0, "client_seconds": 1.5, "server_seconds": 0.25, "peak_memory_bytes": 10**9}
        timings.append({"round": number, **seconds, "evaluation_seconds": 0.123456789})
    run.append("metrics", metrics)
    run.append("timings", timings)
    run.append("clients", [{"round": 1, "client": 0}])
    run.write_json("environment.json", {"cpu": "none"})
    histograms = noise.integers(1, 500, (100, CLASSES[dataset]))
    run.write_partition(np.arange(5), np.arange(6), histograms, f"{dataset}-partition")
    run.write_config(experiment.to_yaml())
    return run


def write_study(folder, name, **more):
    folder.mkdir(parents=True, exist_ok=True)
    study = {"name": name, "rows": {row: {"algorithm.name": row} for row in ("fedavg", "fedprox")}, **more}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))


def make_studies(root, rows=("fedavg", "fednova", "scaffold", "feddual", "feddual-mean"), seeds=2):
    """Runs as studies leave them: a headline, tuned rows, and timings."""
    for dataset in _rows.DATASETS:
        for row in rows:
            for seed in range(seeds):
                make_run(root / f"a-{dataset}" / f"{row}-{seed}", dataset, row, seed)
    tuned = root / "a-cifar10"
    write_study(tuned, "paper-cifar10")
    make_run(tuned / "x", "cifar10", "fedprox", 0, training__learning_rate=0.01, algorithm__proximal_weight=0.4)
    make_run(tuned / "tuning" / "one", "cifar10", "fedprox", 0, rounds=5, evaluation__held_out=0.1)
    chosen = {"training.learning_rate": 0.01, "algorithm.proximal_weight": 0.4}
    entry = {"experiment": "paper-cifar10", "row": "fedprox", "accuracy": 0.5, "trials": {}, "settings": chosen}
    (tuned / "tuned.yaml").write_text(yaml.safe_dump({"fedprox": entry}))
    for row in ("fedavg", "feddual"):
        write_study(root / "t", "timing")
        make_run(root / "t" / f"c-{row}", "cifar10", row, 0)
        make_run(root / "t" / f"f-{row}", "fmnist", row, 0)
        write_study(root / "p", "timing-plain")
        make_run(root / "p" / row, "cifar10", row, 0, rounds=4, runtime__cache_features=False)


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    root = tmp_path_factory.mktemp("studies")
    make_studies(root)
    return root


@pytest.fixture(scope="module")
def slim(studies, tmp_path_factory):
    """The same, collected."""
    root = tmp_path_factory.mktemp("slim")
    _collect.collect([studies], root)
    return root

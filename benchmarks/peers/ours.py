"""feddual's own engine, one process (ours-1) or two worker processes (ours-2): the rounds of `feddual run`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from _model import initial_weights

from feddual import api, config, workbench
from feddual._lazy import keras

work, rounds, name = np.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
clients = len(work["x"])
# The partition must be the others': examples in client order, dealt by index.
np.savez(
    "data.npz",
    x_train=work["x"].reshape(-1, 28, 28, 1),
    y_train=work["y"].ravel(),
    x_test=work["x_test"],
    y_test=work["y_test"],
)
start = np.concatenate([value.ravel() for value in initial_weights(keras)])
workbench.Workbench.initial_weights = lambda self: start
experiment = config.resolve(
    {
        "name": name,
        "dataset": {"path": str(Path("data.npz").resolve())},
        "partition": {"name": "iid", "num_clients": clients},
        "model": {"name": "lenet5"},
        "algorithm": {"name": "fedavg"},
        "training": {"rounds": rounds, "clients_per_round": len(work["cohorts"][0])},
        "checkpoint": {"every": 1},
        "runtime": {"executor": "inline" if name == "ours-1" else "processes", "workers": 1 if name == "ours-1" else 2},
    }
)
records = [record.timings for record in api.rounds(experiment, out=f"run-{name}")]
run = api.open(f"run-{name}")
overhead = [1 - (t["client_seconds"] + t["evaluation_seconds"]) / t["seconds"] for t in records[1:]]
facts = {"evaluation_seconds": min(t["evaluation_seconds"] for t in records[1:])}
if name == "ours-1":
    facts["overhead"] = float(np.median(overhead))
print(json.dumps({
    "seconds": [t["seconds"] - t["evaluation_seconds"] for t in records],
    "accuracy": float(run.metrics["accuracy"].iloc[-1]),
    "facts": facts,
}))  # fmt: skip

shutil.rmtree(f"run-{name}")

"""feddual's own engine, one process (ours-1) or two worker processes (ours-2): the rounds of `feddual run`."""

import shutil
import sys
from pathlib import Path

import numpy as np
from _model import initial_weights, tell, wait_for_turn

from feddual import api
from feddual._lazy import keras
from feddual.experiment import config
from feddual.training import workbench

work, name = np.load(sys.argv[1]), sys.argv[2]
data = f"{name}.npz"
np.savez(
    data,
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
        "dataset": {"path": str(Path(data).resolve())},
        "partition": {"name": "iid", "num_clients": len(work["x"])},
        "model": {"name": "lenet5"},
        "algorithm": {"name": "fedavg"},
        "training": {"rounds": len(work["cohorts"]), "clients_per_round": len(work["cohorts"][0])},
        "checkpoint": {"every": 1},
        "runtime": {"executor": "inline" if name == "ours-1" else "processes", "workers": 1 if name == "ours-1" else 2},
    }
)
rounds = api.rounds(experiment, out=f"run-{name}")
accuracy = 0.0
while wait_for_turn():
    record = next(rounds)
    timings, accuracy = record.timings, record.metrics["accuracy"]
    tell(
        seconds=timings["seconds"] - timings["evaluation_seconds"],
        client_seconds=timings["client_seconds"],
        evaluation_seconds=timings["evaluation_seconds"],
        round_seconds=timings["seconds"],
    )
rounds.close()
shutil.rmtree(f"run-{name}")
tell(accuracy=accuracy)

"""For the owner of a GPU: does it compute the same, how much faster, in how much memory?

    python benchmarks/gpu.py

One client's round of LeNet-5 and of vgg_small on the CPU, on the GPU, and on the GPU with XLA.
"""

import sys
from typing import Any

import numpy as np
from _common import report, say

from feddual import devices
from feddual._lazy import tf
from feddual.experiment import config
from feddual.training import engine
from feddual.training.local import ClientTask
from feddual.training.workbench import train_client, workbench


def measure(model: str, device: str, jit: bool) -> dict[str, Any]:
    """The fastest of five rounds of one client, and its weights."""
    experiment = config.resolve("quickstart", {
        "model.name": model, "partition.name": "iid", "partition.num_clients": 10,
        "training.optimizer": "sgd", "training.learning_rate": 0.01, "runtime.device": device, "runtime.jit": jit,
    })  # fmt: skip
    view = engine.worker_view(experiment)
    weights = workbench(view).initial_weights()
    results = [train_client(ClientTask(view, 1, 0, weights)) for _ in range(6)]
    return {"seconds": min(result.seconds for result in results[1:]), "weights": results[-1].weights}


def main() -> None:
    """Compare the devices."""
    devices.configure()
    if not tf.config.list_physical_devices("GPU"):
        say("no GPU here: nothing to measure")
        sys.exit(0)
    found: dict[str, Any] = {}
    for model in ("lenet5", "vgg_small"):
        cpu = measure(model, "cpu", False)
        for jit in (False, True):
            gpu = measure(model, "gpu", jit)
            found[f"{model}{' with XLA' if jit else ''}"] = {
                "ratio": cpu["seconds"] / gpu["seconds"],
                "largest_difference": float(np.abs(cpu["weights"] - gpu["weights"]).max()),
            }
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    report("gpu", {"models": found, "peak_mebibytes": peak})


if __name__ == "__main__":
    main()

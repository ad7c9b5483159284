"""Small experiments, and plug-ins named by import path."""

from typing import Any

import numpy as np

from feddual._lazy import keras
from feddual.algorithms._base import Algorithm
from feddual.experiment import config
from feddual.probes import Probe

TINY: dict[str, Any] = {
    "name": "tiny",
    "dataset": {"name": "synthetic", "num_train": 240, "num_test": 60, "num_classes": 4, "shape": [6]},
    "partition": {"name": "dirichlet_classes", "alpha": 0.5, "num_clients": 6, "min_size": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg"},
    "training": {"rounds": 3, "clients_per_round": 3, "local_epochs": 2, "batch_size": 16},
    "checkpoint": {"every": 2},
}


def tiny(**overrides: Any) -> config.Experiment:
    """A run of a second; keywords are dotted keys with `__` for the dot."""
    return config.resolve(TINY, {key.replace("__", "."): value for key, value in overrides.items()})


class Counting(Algorithm):
    """FedAvg whose server and clients count their rounds: the smallest algorithm with state."""

    def init_server(self, layout, weights):
        return {"rounds": np.zeros(1, np.float32)}

    def init_client(self, layout, weights):
        return {"rounds": np.zeros(1, np.float32), "last": np.zeros(layout.size, np.float32)}

    def finish_client(self, ctx, trained):
        return {}, {"rounds": ctx.client["rounds"] + 1, "last": trained.weights}

    def start_weights(self, layout, weights, client):
        # State must matter to the result, or a resume that loses it would go unnoticed.
        return (weights + np.float32(0.01) * client["last"]).astype(np.float32)

    def finish(self, server, acc, layout, num_clients):
        state, _ = super().finish(server, acc, layout, num_clients)
        rounds = server.slots["rounds"] + 1
        return type(state)(state.weights, {"rounds": rounds}), {"server_rounds": float(rounds[0])}

    @classmethod
    def fedavg_case(cls):
        return "its clients start from a mixture"


class Breaking(Algorithm):
    """Client 0 always returns NaN."""

    def finish_client(self, ctx, trained):
        if len(ctx.y) == BREAKING_SIZE[0]:
            trained.weights[:] = np.nan
        return {}, ctx.client


BREAKING_SIZE = [0]


class NormProbe(Probe):
    """Records the norm of each client's update."""

    name = "norm"

    def client_measure(self, view):
        return {"norm": float(np.linalg.norm(view.trained.weights - view.global_weights))}

    def record(self, view, measured, acc):
        view.folder.mkdir(parents=True, exist_ok=True)
        with open(view.folder / "norms.jsonl", "a") as file:
            for client, values in measured.items():
                file.write(f'{{"round": {view.round_index}, "client": {client}, "norm": {values["norm"]}}}\n')


def user_model(input_shape, num_classes, width: int = 5):
    """A model as users write them: nested, unnamed layers, batch normalisation and dropout."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(width),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Dropout(0.3),
            layers.Dense(width, activation="relu"),
            layers.Dense(num_classes),
        ]
    )


def softmax_model(input_shape, num_classes):
    """Wrong: probabilities instead of logits."""
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(num_classes, activation="softmax")])


def frozen_model(input_shape, num_classes):
    """A frozen convolution, pooling, and a trained head."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(3, 3, activation="relu", trainable=False, name="frozen"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(6, activation="relu", name="hidden"),
            layers.Dense(num_classes, name="output"),
        ]
    )


def serve(algorithm, server, results, layout, num_clients):
    """The server's half of a round: take the results in, and finish."""
    acc = None
    for result in results:
        acc = algorithm.accumulate(acc, result, server)
    return algorithm.finish(server, acc, layout, num_clients)[0]


# The quickstart's story on data of a second.
TINY_STORY: dict[str, Any] = {
    "dataset.name": "synthetic",
    **{f"dataset.{key}": value for key, value in TINY["dataset"].items() if key != "name"},
    "partition.num_clients": 6,
    "model.name": "mlp",
    "model.hidden": [8],
    "training.rounds": 4,
    "training.clients_per_round": 3,
    "training.local_epochs": 1,
    "training.batch_size": 16,
}


def tell_tiny_story(out: Any) -> Any:
    """Three runs, gradient norms, surfaces, figures and a report, in this process."""
    from feddual.cli import quickstart

    return quickstart.tell(out, TINY_STORY, grid=5, workers=1, progress=False)


def natural_order(labels: np.ndarray, num_clients: int = 6) -> list[np.ndarray]:
    """A partition that draws nothing: the examples in their order, cut into equal parts."""
    return np.array_split(np.arange(len(labels)), num_clients)

"""Flower's simulation engine with Keras clients, as its TensorFlow quickstart writes them: a model per message."""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WORK = sys.argv[1]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    """A client's round."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    from _model import lenet5

    keras.backend.clear_session()
    work = np.load(WORK, mmap_mode="r")
    client = int(context.node_config["partition-id"])
    model = lenet5(keras)
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.set_weights(message.content["arrays"].to_numpy_ndarrays())
    x, y = _client_data(work, client)
    model.fit(x, y, epochs=3, batch_size=32, verbose=0)
    reply = {"arrays": ArrayRecord(model.get_weights()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(reply), reply_to=message)


_cache = {}


def _client_data(work, client):
    if "x" not in _cache:
        _cache.update(x=work["x"], y=work["y"])
    return _cache["x"][client], _cache["y"][client]


class Stop(Exception):
    """Enough rounds; carries the arrays."""


@server_app.main()
def main(grid, context):
    """Rounds of FedAvg, timed between the calls of the central evaluation."""
    import keras
    from _model import accuracy, initial_weights, lenet5, tell, wait_for_turn

    work = np.load(WORK)
    clients, cohort = len(work["x"]), len(work["cohorts"][0])
    marks = [0.0]

    def clock(server_round, arrays):
        if server_round:
            tell(seconds=time.perf_counter() - marks[0])
        if not wait_for_turn():
            raise Stop(arrays)
        marks[0] = time.perf_counter()
        return MetricRecord({"round": server_round})

    strategy = FedAvg(
        fraction_train=cohort / clients, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=clients
    )
    try:
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(initial_weights(keras)), num_rounds=10**6, evaluate_fn=clock
        )
    except Stop as stop:
        arrays = stop.args[0]
    model = lenet5(keras)
    model.set_weights(arrays.to_numpy_ndarrays())
    logits = model.predict(work["x_test"], batch_size=500, verbose=0)
    tell(accuracy=accuracy(logits, work["y_test"]))


run_simulation(
    server_app=server_app, client_app=client_app, num_supernodes=len(np.load(WORK)["x"]),
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)  # fmt: skip

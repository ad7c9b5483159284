"""pfl-research (Apple): its simulated backend with a TensorFlow model, as its documentation sets it up.

pfl keys variables by name, which is unique in Keras 2 only, so Keras 2 (tf_keras) is what it runs on.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import sys
import time

import numpy as np
import tensorflow as tf
from _model import accuracy, initial_weights, lenet5, tell, wait_for_turn
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.tensorflow import TFModel

keras = tf.keras
work = np.load(sys.argv[1])
data = {key: work[key] for key in ("x", "y", "x_test", "y_test", "cohorts")}
model = lenet5(keras)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
)
model.set_weights(initial_weights(keras))
tensors = [(tf.constant(x), tf.constant(y)) for x, y in zip(data["x"], data["y"], strict=True)]
sequence = iter(np.concatenate([*data["cohorts"], data["cohorts"][0]]).tolist() * 2)
rng = np.random.default_rng(0)


def client(identifier):
    """A client's data, in a new order each time it is sampled."""
    order = rng.permutation(600)
    return Dataset([tf.gather(part, order) for part in tensors[identifier]])


train_data = FederatedDataset(client, lambda: next(sequence))
backend = SimulatedBackend(training_data=train_data, val_data=train_data)
marks = [0.0]


class Clock(TrainingProcessCallback):
    """Times the rounds."""

    def on_train_begin(self, *, model):
        wait_for_turn()
        marks[0] = time.perf_counter()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        tell(seconds=time.perf_counter() - marks[0])
        again = wait_for_turn()
        marks[0] = time.perf_counter()
        return not again, Metrics()


class Model(TFModel):
    """pfl means to reset the local optimizer for each client, but with this Keras it leaves Adam's moments as they are.

    Then clients train with each other's moments and the accuracy falls behind; resetting them makes it the same work.
    """

    def _reset_local_optimizer(self, optimizer, learning_rate):
        for name in ("_momentums", "_velocities"):
            for variable in getattr(optimizer, name, []):  # they exist from the first step on
                variable.assign(tf.zeros_like(variable))
        super()._reset_local_optimizer(optimizer, learning_rate)


wrapped = Model(model=model, metrics={}, central_optimizer=keras.optimizers.SGD(1.0))
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=10**6, evaluation_frequency=10**6,
        train_cohort_size=len(data["cohorts"][0]), val_cohort_size=0),
    backend=backend,
    model=wrapped,
    model_train_params=NNTrainHyperParams(local_num_epochs=3, local_learning_rate=1e-3, local_batch_size=32),
    model_eval_params=None,
    callbacks=[Clock()],
)  # fmt: skip
logits = model.predict(data["x_test"], batch_size=500, verbose=0)
tell(accuracy=accuracy(logits, data["y_test"]))

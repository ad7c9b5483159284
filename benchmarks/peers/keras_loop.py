"""The honest baseline: one Keras model, one compiled function over a client's epochs, Keras' Adam reset per client."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf
from _model import accuracy, initial_weights, lenet5, tell, wait_for_turn

work = np.load(sys.argv[1])
data = {key: work[key] for key in ("x", "y", "x_test", "y_test", "cohorts")}
model = lenet5(keras)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)


@tf.function
def train(x, y, orders):
    """A client's epochs."""
    for epoch in tf.range(3):
        for begin in tf.range(0, tf.shape(y)[0], 32):
            rows = orders[epoch, begin : begin + 32]
            with tf.GradientTape() as tape:
                value = loss(tf.gather(y, rows), model(tf.gather(x, rows), training=True))
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)


rng = np.random.default_rng(0)
weights = initial_weights(keras)
cohorts = iter(data["cohorts"])
while wait_for_turn():
    cohort = next(cohorts)
    started = time.perf_counter()
    total = [np.zeros_like(value, dtype=np.float64) for value in weights]
    for client in cohort:
        for variable, value in zip(model.trainable_variables, weights, strict=True):
            variable.assign(value)
        for variable in optimizer.variables:
            if "learning_rate" not in variable.path:
                variable.assign(tf.zeros_like(variable))
        orders = np.stack([rng.permutation(600) for _ in range(3)]).astype(np.int32)
        train(tf.constant(data["x"][client]), tf.constant(data["y"][client]), tf.constant(orders))
        for sum_, variable in zip(total, model.trainable_variables, strict=True):
            sum_ += variable.numpy()
    weights = [(value / len(cohort)).astype(np.float32) for value in total]
    tell(seconds=time.perf_counter() - started)
model.set_weights(weights)
logits = model.predict(data["x_test"], batch_size=500, verbose=0)
tell(accuracy=accuracy(logits, data["y_test"]))

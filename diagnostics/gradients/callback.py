"""Gradient norms in plain Keras training: the same quantities, measured on a fixed probe batch."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.gradients.contract import Halves, random_halves
from diagnostics.gradients.definitions import DEFINITIONS
from diagnostics.gradients.layers import NORMALISATIONS, Groups, normalise
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import Layout, read
from feddual.probes import Schedule

# What one model on one set of examples can show: A and what shares its pass.
MEASURED: list[Any] = [one for one in DEFINITIONS.values() if one.family == "client_at_global" and one.at_client]


def __getattr__(name: str) -> Any:
    """The class is made when it is first asked for: its other base needs Keras."""
    if name != "GradientNormCallback":
        raise AttributeError(name)
    about = {"__doc__": Recording.__doc__, "__module__": __name__}
    return globals().setdefault(name, type(name, (Recording, keras.callbacks.Callback), about))


class Recording:
    """Records per-layer gradient norms of the loss on a fixed batch, in inference mode, after epochs.

    Training is not touched: no weight, no optimizer state and no random number differs with the callback on.

    Example:
        >>> import diagnostics, keras, numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="logits")])
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> model.compile("sgd", loss)
        >>> x, y = keras.random.normal((60, 4)).numpy(), np.arange(60) % 3
        >>> norms = diagnostics.GradientNormCallback(x[:20], y[:20])
        >>> history = model.fit(x, y, epochs=2, callbacks=[norms], verbose=0)
        >>> norms.frame().query("definition == 'client_at_global' and normalisation == 'raw'")["epoch"].tolist()
        [1, 2]
    """

    model: Any  # given by Keras, like what follows
    params: Any

    def __init__(self, x: Any, y: Any, every: int = 1, epochs: tuple[int, ...] = (), split: bool = False):
        """Say where and when.

        Args:
            x: Inputs of the probe batch, at least two.
            y: Their targets, as in `fit`.
            every: Epochs between measurements.
            epochs: Instead, the epochs to measure, from 1.
            split: Kernel and bias apart.
        """
        super().__init__()
        if len(x) < 2 or len(x) != len(y):
            raise UserError(f"the probe batch needs at least two examples with targets, got {len(x)} and {len(y)}")
        self._x, self._y, self._split = x, y, split
        self._schedule = Schedule(every, tuple(epochs))
        self._rows: list[tuple[Any, ...]] = []
        self._gradient: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Compile the gradient of the model's loss; Keras calls it.

        Args:
            logs: Not looked at.
        """
        self._groups = Groups(Layout.of_model(self.model), self._split)
        model = self.model

        def gradient(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.get(model.loss)(y, model(x, training=False)))
            found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
            return tf.concat([tf.reshape(tf.convert_to_tensor(part), [-1]) for part in found], 0)

        self._gradient = tf.function(gradient, autograph=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Measure if it is time; Keras calls it.

        Args:
            epoch: The epoch that has ended, from 0.
            logs: Not looked at.
        """
        if self._schedule.due(epoch + 1, self.params.get("epochs") or 0):
            self.measure(epoch + 1)

    def measure(self, epoch: int) -> None:
        """Measure now, for instance between two calls of `train_on_batch`.

        Args:
            epoch: What the rows are recorded under.
        """
        one, two = random_halves(np.arange(len(self._x)), 0, epoch)
        first, second = (
            self._gradient(tf.gather(self._x, rows), tf.gather(self._y, rows)).numpy().astype(np.float64)
            for rows in (one, two)
        )
        groups = self._groups
        seen = SimpleNamespace(groups=groups, halves=Halves(groups, first, second, (len(one), len(two))))
        weights = groups.norms(read(self.model))
        for one in MEASURED:
            raw = one.at_client(seen)
            for how in NORMALISATIONS if one.is_norm else ("raw",):
                values = normalise(raw, how, groups.sizes, weights)
                pairs = zip(groups.names, map(float, values), strict=True)
                self._rows += [(epoch, layer, one.name, how, value) for layer, value in pairs]

    def frame(self) -> pd.DataFrame:
        """The tidy table: epoch, layer, definition, normalisation, value."""
        return pd.DataFrame(self._rows, columns=["epoch", "layer", "definition", "normalisation", "value"])

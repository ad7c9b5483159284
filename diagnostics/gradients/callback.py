"""Gradient norms in plain Keras training: the same quantities, measured on a fixed probe batch."""

from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.gradients import definitions as gradients
from diagnostics.gradients.definitions import Groups
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import Layout, read
from feddual.probes import Schedule

if TYPE_CHECKING:
    import pandas as pd


def __getattr__(name: str) -> Any:
    if name == "GradientNormCallback":
        globals()[name] = _make()
        return globals()[name]
    raise AttributeError(name)


def _make() -> type:
    """The class, made when it is first asked for: its base needs Keras."""

    class GradientNormCallback(keras.callbacks.Callback):
        """Records per-layer gradient norms of the loss on a fixed batch, in inference mode, after epochs.

        Training is not touched: no weight, no optimizer state and no random number differs with the callback on.
        """

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
            self._groups = Groups(Layout.of_model(self.model), self._split)
            model = self.model

            def gradient(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(keras.losses.get(model.loss)(y, model(x, training=False)))
                found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
                return tf.concat([tf.reshape(tf.convert_to_tensor(part), [-1]) for part in found], 0)

            self._gradient = tf.function(gradient, autograph=False)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._schedule.due(epoch + 1, self.params.get("epochs") or 0):
                self.measure(epoch + 1)

        def measure(self, epoch: int) -> None:
            """Measure now, as of an epoch."""
            half = len(self._x) // 2
            first, second = (
                self._gradient(self._x[part], self._y[part]).numpy().astype(np.float64)
                for part in (slice(None, half), slice(half, None))
            )
            count = len(self._x)
            groups, mean = self._groups, (first * half + second * (count - half)) / count
            square, trace = gradients.two_halves(groups, first, second, half)
            weights = groups.norms(read(self.model))
            with np.errstate(divide="ignore", invalid="ignore"):
                found = {
                    "client_at_global": groups.norms(mean),
                    "client_at_global_unbiased": np.sqrt(np.maximum(square, 0)),
                    "noise_scale": np.where(square > 0, trace / square, np.nan),
                }
            for name, raw in found.items():
                for how in gradients.NORMALISATIONS if gradients.DEFINITIONS[name].is_norm else ("raw",):
                    values = gradients.normalise(raw, how, groups.sizes, weights)
                    pairs = zip(groups.names, map(float, values), strict=True)
                    self._rows += [(epoch, layer, name, how, value) for layer, value in pairs]

        def frame(self) -> "pd.DataFrame":
            """The tidy table: epoch, layer, definition, normalisation, value."""
            import pandas as pd

            return pd.DataFrame(self._rows, columns=["epoch", "layer", "definition", "normalisation", "value"])

    return GradientNormCallback

"""The network as a function of one weight vector."""

from typing import Any

import numpy as np

from feddual._lazy import tf
from feddual.algorithms._base import Outputs
from feddual.functional import rewrites as acceleration
from feddual.functional.layout import moving_statistics
from feddual.models import Network


class Forward:
    """The network as a function of a weight vector."""

    def __init__(self, network: Network, on_features: bool, accelerate: bool = True):
        """Args: network, whether inputs are the prefix's features already, and whether exact rewrites are used."""
        self.layout = network.layout
        self.num_classes = network.model.output_shape[-1]
        self.feature_shape = tuple(network.trained.outputs[0].shape[1:])
        self.input_shape = tuple((network.trained if on_features else network.model).inputs[0].shape[1:])
        self.prefix = None if on_features else network.prefix
        first = acceleration.Convolutions.of(network.model) if accelerate and network.prefix is None else None
        self.first = first
        self.trained = network.trained if first is None else first.rest
        statistics = {id(variable): number for number, variable in enumerate(moving_statistics(network.model))}
        # Keras hands out and takes back all non-trainable variables in one list: which of them are ours, which are the
        # random state of dropout, and which stay as they are.
        self._places = [statistics.get(id(variable)) for variable in self.trained.non_trainable_variables]
        self._is_seed = ["seed_generator" in variable.path for variable in self.trained.non_trainable_variables]
        self._num_first = len(network.model.trainable_variables) - len(self.trained.trainable_variables)
        rest = [id(variable) for variable in network.model.trainable_variables[self._num_first :]]
        if rest != [id(variable) for variable in self.trained.trainable_variables]:
            raise ValueError("the trained part does not hold the model's trainable variables in their order")

    def tensors(self, weights: Any) -> list[Any]:
        """Traced: the vector as tensors, in the layout's order."""
        entries = self.layout.entries
        parts = tf.split(weights, [entry.stop - entry.start for entry in entries])
        return [tf.reshape(part, entry.shape) for part, entry in zip(parts, entries, strict=True)]

    def __call__(
        self, weights: Any, x: Any, training: bool = False, seed: Any = None
    ) -> tuple[Outputs, Any, list[Any]]:
        """Traced: `apply` on the whole vector."""
        return self.apply(self.tensors(weights), x, training, seed)

    def lay_out(self, x: Any) -> Any:
        """Traced: inputs in the order in which the network takes them fastest, for several passes over them."""
        return x if self.first is None else self.first.lay_out(x)

    def part(self, laid_out: Any, begin: Any, end: Any) -> Any:
        """Traced: some examples of what `lay_out` returned."""
        return laid_out[begin:end] if self.first is None else laid_out[:, begin:end]

    def apply(
        self, tensors: list[Any], x: Any, training: bool = False, seed: Any = None, laid_out: bool = False
    ) -> tuple[Outputs, Any, list[Any]]:
        """Traced.

        Args:
            tensors: One for each entry of the layout.
            x: Inputs.
            training: Whether dropout and batch statistics are on.
            laid_out: Whether the inputs come from `lay_out`.
            seed: Two integers (a key, the step) for dropout; each layer that draws gets a key of its own.

        Returns:
            Outputs, the new moving statistics as a vector, and the layers' own losses (regularisers).
        """
        entries = self.layout.entries
        trainable = [tensor for tensor, entry in zip(tensors, entries, strict=True) if entry.trainable]
        statistics = tensors[len(trainable) :]
        rest = []
        for number, variable in enumerate(self.trained.non_trainable_variables):
            place = self._places[number]
            if place is not None:
                rest.append(statistics[place])
            elif self._is_seed[number] and seed is not None:
                rest.append(tf.cast(seed + np.array([7919 * number, 0]), variable.dtype))
            else:
                rest.append(variable.value)
        if self.prefix is not None:
            x = tf.stop_gradient(self.prefix(x, training=False))
        if self.first is not None:
            first = self.first.on_rows if laid_out else self.first
            x = first(trainable[: self._num_first], x)
        (features, logits), rest, losses = self.trained.stateless_call(
            trainable[self._num_first :], rest, x, training=training, return_losses=True
        )
        moved = [(place, value) for place, value in zip(self._places, rest, strict=True) if place is not None]
        moved.sort(key=lambda pair: pair[0])
        new_statistics = tf.concat([tf.reshape(value, [-1]) for _, value in moved], 0) if moved else tf.zeros([0])
        return Outputs(logits, features), new_statistics, losses

"""The network as a function of one weight vector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from feddual._lazy import tf
from feddual.functional import _keras, cut
from feddual.functional.layout import Entry, Layout, fingerprint, frozen_weights, moving_statistics, variables_of
from feddual.functional.rewrites import Convolutions

Values = Callable[[Entry], Any]  # from an entry of the layout to its tensor


@dataclass(frozen=True)
class Outputs:
    """What a network says of a batch."""

    logits: Any  # (batch, classes)
    features: Any  # (batch, ...), the last layer's input


def taken(weights: Any, entry: Entry) -> Any:
    """Traced: one tensor out of a weight vector."""
    return tf.reshape(weights[entry.start : entry.stop], entry.shape)


class Bound:
    """A model or layer that takes slices of the weight vector where its variables stand."""

    def __init__(self, part: Any, entries: Mapping[int, Entry], snapshot: bool = True):
        """Bind it.

        Args:
            part: A Keras model or layer.
            entries: The entry of each variable that is in the vector, by the variable's id.
            snapshot: What is not in the vector stays as it is now, whatever happens to the model later.
        """
        self.part = part
        self._takes_training = _keras.takes_training(part)
        self._trainable, self._others = (
            [entries.get(id(v)) or (tf.constant(v.numpy()) if snapshot else v) for v in variables]
            for variables in (part.trainable_variables, part.non_trainable_variables)
        )
        self._seeds = [_keras.is_random_state(variable) for variable in part.non_trainable_variables]

    def __call__(self, weights: Any, x: Any, training: bool = False) -> tuple[Any, list[Any]]:
        """Traced: the outputs at a weight vector, and the non-trainable variables after them."""
        return self.call(lambda entry: taken(weights, entry), x, training)[:2]

    def call(
        self, values: Values, x: Any, training: bool = False, seed: Any = None, losses: bool = False
    ) -> tuple[Any, ...]:
        """Traced: the outputs, the non-trainable variables after them, and the layers' own losses if asked for.

        Args:
            values: From an entry to its tensor.
            x: Inputs.
            training: Whether dropout and batch statistics are on.
            seed: Two integers (a key, the step) for dropout; each layer that draws gets a key of its own.
            losses: Whether the layers' own losses (regularisers) are returned too.
        """
        trainable = self._tensors(self._trainable, self.part.trainable_variables, values)
        others = self._tensors(self._others, self.part.non_trainable_variables, values)
        if seed is not None:
            for number, variable in enumerate(self.part.non_trainable_variables):
                if self._seeds[number]:
                    others[number] = tf.cast(seed + np.array([7919 * number, 0]), variable.dtype)
        arguments: dict[str, Any] = {"training": training} if self._takes_training else {}
        if losses:
            arguments["return_losses"] = True
        return self.part.stateless_call(trainable, others, x, **arguments)

    @staticmethod
    def _tensors(sources: list[Any], variables: list[Any], values: Values) -> list[Any]:
        def tensor(source: Any, variable: Any) -> Any:
            if isinstance(source, Entry):
                return tf.cast(values(source), variable.dtype)
            return source if tf.is_tensor(source) else source.value

        return list(map(tensor, sources, variables))

    def statistics(self, others: list[Any]) -> list[tuple[Entry, Any]]:
        """Of the non-trainable variables that a call returned, those in the vector, in its order."""
        moved = [(place, value) for place, value in zip(self._others, others, strict=True) if isinstance(place, Entry)]
        return sorted(moved, key=lambda pair: pair[0].start)


def last_entries(part: Any, layout: Layout) -> dict[int, Entry]:
    """The entry of each variable of a copy of what comes after a cut: it holds the last ones in their order."""
    found: dict[int, Entry] = {}
    for variables, trainable in ((part.trainable_variables, True), (moving_statistics(part), False)):
        entries = [entry for entry in layout.entries if entry.trainable == trainable]
        entries = entries[len(entries) - len(variables) :]
        for variable, entry in zip(variables, entries, strict=True):
            if tuple(variable.shape) != entry.shape:
                raise ValueError("the part does not hold the last of the model's weights in their order")
            found[id(variable)] = entry
    return found


class Network:
    """A model, cut where training begins: what comes before the cut never changes."""

    def __init__(self, model: Any, preprocess: str = "unit"):
        """Cut a model; its layers get further nodes.

        Args:
            model: A built Keras model from inputs to logits.
            preprocess: How images become its inputs; see `data.datasets.preprocess`.
        """
        self.model, self.preprocess = model, preprocess
        # Images to features through the leading frozen layers, None if there are none with weights; and what comes
        # after them, to penultimate activations and logits.
        self.prefix: Any
        self.prefix, self.trained = cut.split(model)
        self.layout = Layout.of_model(model)
        self.entries = {id(v): e for v, e in zip(variables_of(model), self.layout.entries, strict=True)}

    @cached_property
    def frozen_hash(self) -> str:
        """Identifies the prefix's weights."""
        weights = frozen_weights(self.model)
        return fingerprint(*map(np.asarray, weights)) if weights else ""

    def activations(self, on_features: bool) -> tuple[list[str], Bound]:
        """The names of the layers that have trained weights, and the part that gives their outputs."""
        base = self.trained if on_features else self.model
        trained = [layer for layer in base.layers if layer.trainable_variables]
        layers = {self.entries[id(layer.trainable_variables[0])].layer: layer for layer in trained}
        return list(layers), Bound(cut.to_layers(base, list(layers.values())), self.entries, snapshot=False)


class Forward:
    """A network as training uses it: from a weight vector and inputs to outputs, statistics and losses."""

    def __init__(self, network: Network, on_features: bool, accelerate: bool = True):
        """Args: network, whether inputs are the prefix's features already, and whether exact rewrites are used."""
        self.layout = network.layout
        self.num_classes = network.model.output_shape[-1]
        self.feature_shape = tuple(network.trained.outputs[0].shape[1:])
        self.input_shape = tuple((network.trained if on_features else network.model).inputs[0].shape[1:])
        self.prefix = None if on_features else network.prefix
        self.first = Convolutions.of(network.model) if accelerate and network.prefix is None else None
        self._rest = Bound(network.trained if self.first is None else self.first.rest, network.entries, snapshot=False)
        variables = self.first.variables if self.first is not None else []
        self._first_entries = [network.entries[id(variable)] for variable in variables]
        self._places = {entry.path: place for place, entry in enumerate(self.layout.entries)}

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
            seed: Two integers (a key, the step) for dropout; see `Bound.call`.
            laid_out: Whether the inputs come from `lay_out`.

        Returns:
            Outputs, the new moving statistics as a vector, and the layers' own losses (regularisers).
        """
        if self.prefix is not None:
            x = tf.stop_gradient(self.prefix(x, training=False))
        if self.first is not None:
            first = self.first.on_rows if laid_out else self.first
            x = first([tensors[self._places[entry.path]] for entry in self._first_entries], x)
        values: Values = lambda entry: tensors[self._places[entry.path]]  # noqa: E731
        (features, logits), others, losses = self._rest.call(values, x, training, seed, losses=True)
        moved = [tf.reshape(value, [-1]) for _, value in self._rest.statistics(others)]
        return Outputs(logits, features), tf.concat(moved, 0) if moved else tf.zeros([0]), losses

"""Weights as one float32 vector, and the layout that says what is where.

Everything that crosses a boundary (server, client, worker, file) is one vector: a mask is a slice, an average one
product, a hash and a checkpoint are trivial. The names in the layout are for people.

The trainable entries come first, the non-trainable ones (moving statistics of batch normalisation) after them, so
`vector[:layout.num_trainable]` is what an optimizer moves. Frozen weights are not part of the vector.

The sign of an update is fixed here: `update = local - global`.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from feddual.functional import _keras


@dataclass(frozen=True)
class Entry:
    """One tensor in the vector."""

    path: str  # "conv1/kernel"
    layer: str  # "conv1"
    layer_type: str  # "Conv2D"
    role: str  # "kernel", "bias", "gamma", ...
    shape: tuple[int, ...]
    start: int
    trainable: bool

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


class Layout:
    """Which slice of the vector is which tensor."""

    def __init__(self, entries: Sequence[Entry]):
        """Take the tensors as they lie in the vector.

        Args:
            entries: Trainable ones first; their paths must differ.
        """
        self.entries = tuple(entries)
        paths = [entry.path for entry in self.entries]
        repeated = sorted({path for path in paths if paths.count(path) > 1})
        if repeated:
            raise ValueError(f"layout keys must be unique, but {', '.join(repeated)} occur more than once")
        self.size = self.entries[-1].stop if self.entries else 0
        self.num_trainable = max((entry.stop for entry in self.entries if entry.trainable), default=0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"Layout({len(self.entries)} tensors, {self.size} values, {self.num_trainable} trainable)"

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def layers(self) -> dict[str, tuple[Entry, ...]]:
        """Trainable entries by layer, in the model's order."""
        layers: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.trainable:
                layers.setdefault(entry.layer, []).append(entry)
        return {name: tuple(entries) for name, entries in layers.items()}

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Cut a vector into tensors.

        Args:
            vector: Shape (size,).

        Returns:
            Its tensors by path, as views.
        """
        return {entry.path: vector[entry.slice].reshape(entry.shape) for entry in self.entries}

    def join(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """The inverse of `split`.

        Args:
            tensors: By path, all of them.

        Returns:
            A float32 vector, (size,).
        """
        if set(tensors) != set(self.by_path):
            raise ValueError(f"expected the tensors {sorted(self.by_path)}, got {sorted(tensors)}")
        return np.concatenate([np.asarray(tensors[entry.path], np.float32).ravel() for entry in self.entries])

    def to_list(self) -> list[dict[str, Any]]:
        """The entries as plain values, for a file."""
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_list(cls, entries: Sequence[Mapping[str, Any]]) -> "Layout":
        """The inverse of `to_list`.

        Args:
            entries: As `to_list` returned them.

        Returns:
            The layout.
        """
        return cls([Entry(**{**entry, "shape": tuple(entry["shape"])}) for entry in entries])

    @classmethod
    def of_model(cls, model: Any) -> "Layout":
        """The layout of a Keras model: its trainable weights, then its non-trainable ones that training moves.

        Args:
            model: A built model.

        Returns:
            The layout; the same for every build of the model.
        """
        entries: list[Entry] = []
        position = 0
        for trainable, variables in ((True, model.trainable_variables), (False, moving_statistics(model))):
            owned = owners(model)
            for variable in variables:
                layer, key = owned[id(variable)]
                role = variable.name
                entries.append(
                    Entry(f"{key}/{role}", key, type(layer).__name__, role, tuple(variable.shape), position, trainable)
                )
                position = entries[-1].stop
        return cls(entries)


def moving_statistics(model: Any) -> list[Any]:
    """The non-trainable weights of the layers that are not frozen."""
    return [weight for weight, layer in _leaf_weights(model) if layer.trainable and not weight.trainable]


def frozen_weights(model: Any) -> list[Any]:
    """The weights that belong to frozen layers."""
    return [weight for weight, layer in _leaf_weights(model) if not layer.trainable]


def _leaf_weights(model: Any) -> list[tuple[Any, Any]]:
    # Nested models are walked too; a composite layer's weights appear under the leaf that owns them.
    pairs: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    for layer in _keras.layers_within(model):
        for weight in _keras.own_variables(layer):
            if id(weight) not in seen:
                seen.add(id(weight))
                pairs.append((weight, layer))
    return pairs


def owners(model: Any) -> dict[int, tuple[Any, str]]:
    """For each weight its layer and that layer's key.

    Keras numbers unnamed layers over the whole process ("dense_7"); the key numbers them within the model, so that
    it is the same for every build. Parts of composite layers may share a name (the "query" of two attention layers):
    the later ones get a number too.
    """
    owned: dict[int, tuple[Any, str]] = {}
    keys: dict[int, str] = {}
    counts: dict[str, int] = {}
    for weight, layer in _leaf_weights(model):
        if id(layer) not in keys:
            # Keras' own rule for names: MaxPooling2D is max_pooling2d, Conv2DTranspose conv2d_transpose.
            stem = re.sub(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", type(layer).__name__).lower()
            if re.fullmatch(rf"{stem}(_\d+)?", layer.name):
                number = counts.get(stem, 0)
                counts[stem] = number + 1
                keys[id(layer)] = f"{stem}_{number}" if number else stem
            else:
                repeats = sum(key.partition("#")[0] == layer.name for key in keys.values())
                keys[id(layer)] = f"{layer.name}#{repeats + 1}" if repeats else layer.name
        owned[id(weight)] = (layer, keys[id(layer)])
    return owned


def variables_of(model: Any) -> list[Any]:
    """The variables behind the entries of `Layout.of_model`, in their order."""
    return [*model.trainable_variables, *moving_statistics(model)]


def read(model: Any) -> np.ndarray:
    """The model's current weights as a vector."""
    variables = variables_of(model)
    if not variables:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(variable, np.float32).ravel() for variable in variables])


def assign(model: Any, vector: np.ndarray) -> None:
    """Put a vector into the model's variables."""
    position = 0
    for variable in variables_of(model):
        size = prod(variable.shape)
        variable.assign(np.reshape(vector[position : position + size], variable.shape))
        position += size
    if position != len(vector):
        raise ValueError(f"the model holds {position} weights, the vector {len(vector)}")


def update(local_weights: np.ndarray, global_weights: np.ndarray) -> np.ndarray:
    """What a client's training changed: local - global, in float64."""
    return local_weights.astype(np.float64) - global_weights


def layer_norms(layout: Layout, vector: np.ndarray) -> dict[str, float]:
    """The L2 norm of each layer's trainable entries, kernel and bias together."""
    squares = {
        name: sum(float(np.sum(np.square(vector[e.slice], dtype=np.float64))) for e in entries)
        for name, entries in layout.layers.items()
    }
    return {name: square**0.5 for name, square in squares.items()}


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256 over the arrays' types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()

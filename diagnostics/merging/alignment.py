"""Two networks of one architecture brought into the same order of units, without changing what either computes.

Hidden units have no order: a permutation of a layer's outputs, undone at the next layer's inputs, is the same function.
Two trainings may differ by little else, and a straight line between them then leads over a hill that is not there. The
order of the second network is chosen so that its weights lie nearest to the first's ("weight matching": Ainsworth,
Hayase, Srinivasa, "Git Re-Basin: Merging Models modulo Permutation Symmetries", ICLR 2023): of each layer the best
assignment given all others, again and again until none improves.

A chain of dense and convolutional layers can be permuted, with batch normalisation, pooling, flattening and activations
between them. What cannot is refused with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from feddual._lazy import keras
from feddual.errors import UserError
from feddual.functional import _keras
from feddual.functional.layout import Entry, Layout, moving_statistics, owners

SWEEPS = 100  # over all layers; a handful is enough, since each makes the distance smaller
# Activations that treat all units alike, by Keras' names: units may be exchanged before or after them.
EQUIVARIANT = {
    "linear", "relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "swish", "mish", "tanh", "sigmoid",
    "hard_sigmoid", "hard_silu", "hard_tanh", "softplus", "softsign", "exponential", "celu",
    "softmax", "log_softmax",
}  # fmt: skip
# Layers that leave the last axis in its order and treat its places alike.
ALIKE = {
    "ReLU", "LeakyReLU", "ELU", "Identity", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise",
    *(f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)),
    *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
}  # fmt: skip


@dataclass(frozen=True)
class Carrier:
    """A tensor of the vector seen as (before, units, after): permuting units reorders its middle axis."""

    entry: Entry
    shape: tuple[int, int, int]

    def of(self, vector: np.ndarray) -> np.ndarray:
        """This tensor of a vector, so shaped; a view."""
        return vector[self.entry.slice].reshape(self.shape)


@dataclass(frozen=True)
class Units:
    """The hidden units of one layer: everything that carries one value, filter or column for each of them."""

    layer: str
    count: int
    incoming: tuple[Carrier, ...]  # the layer's own weights, and of a normalisation behind it
    outgoing: tuple[Carrier, ...]  # the next layer's kernel

    @property
    def parts(self) -> tuple[Carrier, ...]:
        return self.incoming + self.outgoing


def units_of(model: Any) -> list[Units]:
    """The hidden units of a network that can be permuted, from the input to the output.

    Args:
        model: A built Keras model.

    Returns:
        One for each layer whose units are trained on both sides.

    Raises:
        UserError: When the network is no chain of layers of the kinds above; it names what stands in the way.
    """
    layout, owned = Layout.of_model(model), owners(model)
    variables = (*model.trainable_variables, *moving_statistics(model))
    by_layer: dict[int, dict[str, Entry]] = {}
    for variable, entry in zip(variables, layout.entries, strict=True):
        by_layer.setdefault(id(owned[id(variable)][0]), {})[entry.role] = entry
    found: list[Units] = []
    open_: Units | None = None  # whose next layer has not come yet
    for layer in _chain(model):
        entries, kind = by_layer.get(id(layer), {}), type(layer).__name__
        if _is_weighted(layer):
            kernel = layer.kernel
            if open_ is not None and "kernel" in entries:
                inputs = int(kernel.shape[-2])
                part = Carrier(entries["kernel"], _shape(kernel, inputs, open_.count, layer.name))
                found.append(Units(open_.layer, open_.count, open_.incoming, (part,)))
            _check_activation(layer)
            count = int(kernel.shape[-1])
            mine = tuple(Carrier(one, (prod(one.shape) // count, count, 1)) for one in entries.values())
            open_ = Units(next(iter(entries.values())).layer, count, mine, ()) if entries else None
        elif open_ is None:
            continue  # before the first trained layer nothing is permuted
        elif kind == "BatchNormalization":
            open_ = _normalised(layer, entries, open_)
        elif kind == "Activation":
            _check_activation(layer)
        elif kind == "Flatten":
            _check_order(layer)
        elif kind not in ALIKE:
            raise UserError(f"align: units cannot be exchanged across {layer.name!r} ({kind})")
    return found


def _is_weighted(layer: Any) -> bool:
    """Whether it is a dense layer or a plain convolution; others with weights are refused."""
    if isinstance(layer, keras.layers.Dense):
        return True
    if _keras.CONVOLUTION not in {cls.__name__ for cls in type(layer).__mro__}:
        return False
    _check_order(layer)
    if layer.groups != 1:
        raise UserError(f"align: {layer.name!r} has {layer.groups} groups; units cannot be exchanged between groups")
    return True


def _check_order(layer: Any) -> None:
    if getattr(layer, "data_format", "channels_last") not in (None, "channels_last"):
        raise UserError(f"align: {layer.name!r} has its channels first; only channels_last can be permuted")


def _check_activation(layer: Any) -> None:
    name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
    if name not in EQUIVARIANT:
        raise UserError(f"align: the activation {name!r} of {layer.name!r} is not known to treat all units alike")


def _normalised(layer: Any, entries: dict[str, Entry], before: Units) -> Units:
    mine = tuple(Carrier(one, (1, before.count, 1)) for one in entries.values())
    if not entries or any(prod(part.entry.shape) != before.count for part in mine):
        raise UserError(f"align: {layer.name!r} does not normalise the units of {before.layer!r}")
    return Units(before.layer, before.count, before.incoming + mine, ())


def _shape(kernel: Any, inputs: int, units: int, name: str) -> tuple[int, int, int]:
    """Of a kernel with the units along its input axis; after flattening each unit has several places."""
    places, left = divmod(inputs, units)
    if left:
        raise UserError(f"align: {name!r} takes {inputs} values, which are not places of {units} units")
    return prod(kernel.shape[:-2]) * places, units, int(kernel.shape[-1])


def _chain(model: Any) -> list[Any]:
    """The layers from the input to the output, nested models opened up."""
    if not _keras.is_functional(model):
        raise UserError(
            f"align: Keras does not know the graph of {model.name!r}; only chains of layers can be permuted"
        )
    tensor, found = model.outputs[0], []
    starts = {id(one) for one in model.inputs}
    while id(tensor) not in starts:
        layer, inputs = _keras.origin(tensor)
        if len(inputs) != 1:
            if not inputs:
                break
            raise UserError(
                f"align: {layer.name!r} ({type(layer).__name__}) joins {len(inputs)} paths; along a skip units must "
                "keep one order, which is not supported"
            )
        found.append(layer)
        tensor = inputs[0]
    chain = [one for layer in reversed(found) for one in (_chain(layer) if hasattr(layer, "layers") else [layer])]
    twice = {layer.name for layer in chain if sum(layer is other for other in chain) > 1}
    if twice:
        raise UserError(f"align: {', '.join(sorted(twice))} is used more than once")
    return [layer for layer in chain if type(layer).__name__ != "InputLayer"]


# --- matching ---------------------------------------------------------------------------------------------------------


def permuted(vector: np.ndarray, units: Sequence[Units], orders: Sequence[np.ndarray]) -> np.ndarray:
    """The same network with its hidden units in other orders.

    Args:
        vector: Weights, (size,).
        units: Of `units_of`.
        orders: For each, which unit comes first, second, ...: (count,).

    Returns:
        Weights, (size,), of the same function.
    """
    made = np.array(vector)
    for one, order in zip(units, orders, strict=True):
        for part in one.parts:
            part.of(made)[:] = part.of(made)[:, order]
    return made


def align(vector: np.ndarray, to: np.ndarray, units: Sequence[Units]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Reorder a network's hidden units so that its trained weights lie near another's.

    Two beginnings are tried, the order as it is and the one that incoming weights alone suggest, layer by layer from
    the input; the nearer end is taken, so the distance never grows.

    Args:
        vector: Weights, (size,).
        to: The other's.
        units: Of `units_of`.

    Returns:
        The reordered weights, (size,), and the orders, as `permuted` takes them.
    """
    if not units:
        return np.array(vector), []
    as_they_are = [np.arange(one.count) for one in units]
    ends = [_descend(vector, to, units, orders) for orders in (as_they_are, _forward(vector, to, units))]
    orders = min(ends, key=lambda orders: _distance(permuted(vector, units, orders), to))
    return permuted(vector, units, orders), orders


def _distance(vector: np.ndarray, to: np.ndarray) -> float:
    return float(np.linalg.norm(vector.astype(np.float64) - to))


def _best(vector: np.ndarray, to: np.ndarray, parts: Sequence[Carrier], count: int) -> tuple[np.ndarray, float]:
    """The order of the second axis that brings these parts nearest, and how much it gains over the present one."""
    from scipy.optimize import linear_sum_assignment

    products = np.zeros((count, count))
    for part in parts:
        if part.entry.trainable:
            first, second = (part.of(one).astype(np.float64) for one in (to, vector))
            products += np.einsum("aib,ajb->ij", first, second, optimize=True)
    rows, order = linear_sum_assignment(products, maximize=True)
    return order, float(products[rows, order].sum() - np.trace(products))


def _forward(vector: np.ndarray, to: np.ndarray, units: Sequence[Units]) -> list[np.ndarray]:
    """From the input on: each layer's units by what comes in, those before it matched already."""
    made, orders = np.array(vector), []
    for one in units:
        order, _ = _best(made, to, one.incoming, one.count)
        orders.append(order)
        for part in one.parts:
            part.of(made)[:] = part.of(made)[:, order]
    return orders


def _descend(
    vector: np.ndarray, to: np.ndarray, units: Sequence[Units], orders: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Each layer's best order given all others, until none gains."""
    made, found = permuted(vector, units, orders), list(orders)
    for _ in range(SWEEPS):
        moved = False
        for place, one in enumerate(units):
            order, gain = _best(made, to, one.parts, one.count)
            if gain > 1e-9 * max(1.0, float(np.square(to, dtype=np.float64).sum())):
                found[place] = found[place][order]
                made = permuted(made, [one], [order])
                moved = True
        if not moved:
            break
    return found

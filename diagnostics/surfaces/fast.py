"""How the points of a surface are computed: plainly, or by exact rewrites that give the same numbers sooner.

Prefix: what comes before the first layer that a direction moves is computed once; frozen layers by the objective,
    for the plain path too, which compares a few samples with the whole network itself.
Linearity: that layer, if dense or a convolution, is linear in its weights: z(a, b) = z0 + a z1 + b z2, before the
    activation, from three tensors computed once.
Patches: narrow convolutions as products over patches (`feddual.functional.rewrites`).
Dense suffix: where all further moved layers are dense, several points go through as one batched product.

`choose` takes the best that applies and compares it with the plain path at nine points.
"""

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from diagnostics.surfaces.objective import Objective
from feddual._lazy import keras, tf
from feddual.functional import cut
from feddual.functional._keras import is_functional
from feddual.functional.cut import TOLERANCE
from feddual.functional.graphs import compiled, in_batches
from feddual.functional.network import Bound, last_entries, taken
from feddual.functional.rewrites import Convolutions

CHECK_IMAGES = 256  # samples of the nine points' comparison
MEMORY = 2**30  # bytes the tensors of the first layer may take
TILE = 2**19  # values of one layer's outputs at a time: they stay in the cache
POINTS = 16  # at a time, through a dense suffix


class Plain:
    """The whole network at w0 + a d1 + b d2, point by point: what all others must equal."""

    group = 1  # points computed together; the same groups give the same bits

    def __init__(self, objective: Objective, axes: int):
        self._objective = objective
        self.name = "plain" if objective.network.prefix is None else "prefix"
        size = objective.layout.size
        self._run = compiled(
            lambda weights, directions, point, count: objective.point_sums(
                weights + tf.linalg.matvec(directions, point, transpose_a=True), count
            ),
            ([size], tf.float32), ([axes, size], tf.float32), ([axes], tf.float32), ([], tf.int32),
        )  # fmt: skip

    def place(self, weights: np.ndarray, directions: np.ndarray) -> None:
        """Go to a centre, shape (size,), and its directions, shape (axes, size)."""
        self._weights, self._directions = tf.constant(weights), _moving(self._objective, directions)

    def sums(self, coordinates: np.ndarray, count: int) -> np.ndarray:
        """Sums over the first `count` samples at up to `group` points, shape (points, columns)."""
        return np.concatenate([self._run(self._weights, self._directions, p, count) for p in coordinates])


class Fast:
    """A chain cut at the first moved layer."""

    def __init__(self, objective: Objective, moved: Sequence[bool], axes: int):
        """Raises ValueError where no rewrite applies."""
        self._objective, self._axes = objective, axes
        layout = objective.layout
        model = objective.network.rest
        if objective.bn == "recalibrate" or objective.regularisation:
            raise ValueError("the whole network is needed")
        if not objective.network.is_copy or not is_functional(model):
            raise ValueError("the network cannot be cut")
        entries = last_entries(model, layout)
        before, body = cut.at_first(model, _moved(entries, layout, moved))
        if body.inputs[0].dtype != "float32":
            raise ValueError("features are kept in float32 only")
        self._before = None if before is None else self._prefix(Bound(before, entries))
        ahead = objective.network.prefix is not None or (before is not None and before.weights)
        applied = ["prefix"] if ahead else []
        self._layers, self._entries = cut.chain(body), last_entries(body, layout)
        self._body, self._bound = body, Bound(body, self._entries)
        here = _moved(self._entries, layout, moved)
        self._first, *others = [one for one in self._layers if any(id(v) in here for v in one.variables)]
        ends = self._layers[-1].output is body.outputs[0]
        linear = _is_linear(self._first)
        dense = linear and ends and all(type(layer) is keras.layers.Dense for layer in others)
        patches = Convolutions.of(body) if not dense else None
        shape = self._first.output.shape[1:]
        fits = None not in shape and 4 * (axes + 1) * len(objective.x) * prod(shape) <= MEMORY
        if dense and fits:
            self._dense_suffix(others)
            applied += ["linearity", "dense suffix"]
        elif patches is not None:
            self._patches(patches, keep=fits)
            applied += ["linearity", "patches"] if fits else ["patches"]
        elif linear and fits:
            self._single()
            applied.append("linearity")
        elif before is not None:
            self._after_prefix()
        else:
            raise ValueError("no rewrite applies")
        self.name = " + ".join(applied) or "plain"

    # --- the ways; each sets group, batch, and the functions `_prepare` (once per plane) and `_run`

    def _prefix(self, before: Bound) -> Any:
        x = self._objective.x
        return compiled(
            lambda batch, weights: before(weights, batch)[0],
            ([None, *x.shape[1:]], x.dtype), ([self._objective.layout.size], tf.float32),
        )  # fmt: skip

    def _after_prefix(self) -> None:
        self.group, self._size = 1, self._objective.batch_size
        self._prepare: Any = lambda weights, directions, x: [x]
        self._compile(
            lambda weights, points, kept, number, begin, end: self._bound(weights[0], kept[0][begin:end])[0],
            [[None, *self._body.inputs[0].shape[1:]]],
        )

    def _single(self) -> None:
        """Linearity, then the rest of the network point by point."""
        self.group, self._size = 1, self._objective.batch_size
        after = cut.after(self._body, self._first)
        rest = Bound(after, last_entries(after, self._objective.layout))
        self._prepare = self._linear_parts()

        def outputs(weights: Any, points: Any, kept: Any, number: Any, begin: Any, end: Any) -> Any:
            values = _mixed(points, [part[begin:end] for part in kept])[0]
            return rest(weights[0], self._first.activation(values))[0]

        self._compile(outputs, [[None, *self._first.output.shape[1:]]] * (self._axes + 1))

    def _patches(self, patches: Convolutions, keep: bool) -> None:
        """Narrow convolutions as products; whole batches, since theirs is the innermost axis."""
        objective = self._objective
        self.group, self._size = 1, min(250, objective.batch_size, len(objective.x))
        size, rest = self._size, Bound(patches.rest, last_entries(patches.rest, objective.layout))
        first = [self._entries[id(v)] for v in self._body.trainable_variables[: len(patches.variables)]]
        shape = [size, *self._body.inputs[0].shape[1:]]
        linear = compiled(
            lambda weights, x: patches.linear([taken(weights, entry) for entry in first], x),
            ([objective.layout.size], tf.float32), (shape, tf.float32),
        )  # fmt: skip

        def prepare(weights: Any, directions: Any, x: Any) -> Any:
            padded = tf.pad(x, [[0, -len(x) % size], *([[0, 0]] * (len(shape) - 1))])
            batches = tf.reshape(padded, [-1, *shape])
            if not keep:
                return [batches]
            return [tf.stack([linear(vector, x) for x in batches]) for vector in (weights, *directions)]

        def outputs(weights: Any, points: Any, kept: Any, number: Any, begin: Any, end: Any) -> Any:
            tensors = [taken(weights[0], entry) for entry in first]
            values = kept[0][number]
            if not keep:
                values = patches.linear(tensors, values)
            for axis, part in enumerate(kept[1:]):
                values += points[0, axis] * part[number]
            return rest(weights[0], patches.finish(tensors, values, size))[0][1][: end - begin]

        self._prepare = prepare
        stored = [None, patches.stages[0].filters, None, None, size]
        self._compile(outputs, [stored] * (self._axes + 1) if keep else [[None, *shape]])

    def _dense_suffix(self, others: list[Any]) -> None:
        """Linearity, then several points at once through layers of which only dense ones move."""
        objective, layers = self._objective, self._layers
        self.group = max(1, min(POINTS, MEMORY // (8 * objective.layout.size)))
        width = max(prod(layer.output.shape[1:]) for layer in layers)
        self._size = int(np.clip(TILE // (self.group * width), 16, len(objective.x)))
        still = {id(layer): Bound(layer, self._entries) for layer in layers[1:] if layer not in others}
        self._prepare = self._linear_parts()

        def outputs(weights: Any, points: Any, kept: Any, number: Any, begin: Any, end: Any) -> Any:
            count = end - begin
            values = self._first.activation(_mixed(points, [part[begin:end] for part in kept]))
            for layer in layers[1:]:
                if layer in others:
                    values = self._dense(layer, weights, values, count)
                else:
                    merged = still[id(layer)](weights[0], tf.reshape(values, [-1, *values.shape[2:]]))[0]
                    values = tf.reshape(merged, [self.group, count, *merged.shape[1:]])
            return tf.reshape(values, [-1, *values.shape[2:]])

        self._compile(outputs, [[None, *self._first.output.shape[1:]]] * (self._axes + 1))

    def _dense(self, layer: Any, weights: Any, values: Any, count: Any) -> Any:
        inside, outside = layer.kernel.shape
        shape = values.shape[2:-1]
        kernel = self._entries[id(layer.kernel)]
        kernels = tf.reshape(weights[:, kernel.start : kernel.stop], [self.group, inside, outside])
        values = tf.matmul(tf.reshape(values, [self.group, -1, inside]), kernels)
        if layer.use_bias:
            bias = self._entries[id(layer.bias)]
            values += weights[:, None, bias.start : bias.stop]
        return layer.activation(tf.reshape(values, [self.group, count, *shape, outside]))

    def _linear_parts(self) -> Any:
        """The function to the first layer before its activation, at the centre's weights and at each direction's."""
        kernel, bias = self._entries[id(self._first.kernel)], self._entries.get(id(self._first.bias))
        size = self._objective.batch_size

        def linear(x: Any, vector: Any) -> Any:
            return _linear(self._first, taken(vector, kernel), None if bias is None else taken(vector, bias), x)

        graph = compiled(linear, (self._body.inputs[0].shape, tf.float32), ([self._objective.layout.size], tf.float32))
        return lambda weights, directions, x: [in_batches(graph, size, x, vector) for vector in (weights, *directions)]

    def _compile(self, outputs: Any, kept: list[Any]) -> None:
        """Args: traced function to a batch's outputs; shapes of the tensors that `_prepare` makes for a plane."""
        objective, axes, size = self._objective, self._axes, self._objective.layout.size

        def run(weights: Any, directions: Any, points: Any, count: Any, *kept: Any) -> Any:
            moved = weights + tf.matmul(points, directions)

            def batch(number: Any, begin: Any, end: Any) -> Any:
                answers = outputs(moved, points, kept, number, begin, end)
                labels = objective.y[begin:end]
                if self.group > 1:
                    labels = tf.tile(labels, [self.group, *([1] * (len(labels.shape) - 1))])
                found = objective.sample_losses(answers, labels)
                losses, right = (tf.reshape(value, [self.group, end - begin]) for value in found)
                return objective.reduce(objective.weighted(losses, begin), right, begin)

            return objective.over_batches(count, self._size, self.group, batch)

        self._run = compiled(
            run, ([size], tf.float32), ([axes, size], tf.float32), ([self.group, axes], tf.float32),
            ([], tf.int32), *((shape, tf.float32) for shape in kept),
        )  # fmt: skip

    def place(self, weights: np.ndarray, directions: np.ndarray) -> None:
        """Go to a centre and its directions; what is linear in the weights is computed here, once."""
        self._weights, self._directions = tf.constant(weights), _moving(self._objective, directions)
        x = self._objective.x
        if self._before is not None:
            x = in_batches(self._before, self._objective.batch_size, x, self._weights)
        self._kept = self._prepare(self._weights, self._directions, x)

    def sums(self, coordinates: np.ndarray, count: int) -> np.ndarray:
        """Sums at up to `group` points; a short group is filled up, so that its bits do not depend on its size."""
        full = np.zeros((self.group, self._axes), np.float32)
        full[: len(coordinates)] = coordinates
        found = self._run(self._weights, self._directions, full, count, *self._kept)
        return found.numpy()[: len(coordinates)]


Engine = Plain | Fast


def choose(
    objective: Objective, weights: np.ndarray, planes: Sequence[np.ndarray], wish: str = "auto", corner: Any = None
) -> tuple[Engine, dict[str, Any]]:
    """An engine that can go to all of these planes, placed at the first, and the facts about it.

    Args:
        objective: What is computed.
        weights: The centre.
        planes: The directions of each, shape (axes, size); what only one of them moves counts as moved.
        wish: `auto`, `plain` for no rewrite, or `unchecked` for what `auto` chose elsewhere.
        corner: The largest coordinates, (axes,); nine points up to there are compared with the plain path.
    """
    directions = planes[0]
    axes, kept = len(directions), objective.engines
    moved = tuple(any(plane[:, entry.slice].any() for plane in planes) for entry in objective.layout.entries)
    if wish != "plain" and ("fast", axes, moved) not in kept:
        try:
            kept["fast", axes, moved] = Fast(objective, moved, axes)
        except ValueError:  # no rewrite applies
            kept["fast", axes, moved] = None
    fast = None if wish == "plain" else kept["fast", axes, moved]
    if fast is None or wish != "unchecked":
        plain = kept["plain", axes] = kept.get(("plain", axes)) or Plain(objective, axes)
        plain.place(weights, directions)
    if fast is None:
        return plain, {"engine": plain.name}
    fast.place(weights, directions)
    if wish == "unchecked":
        return fast, {"engine": fast.name}
    count = min(len(objective.x), CHECK_IMAGES)
    difference = compare(fast, plain, nine_points(np.ones(axes) if corner is None else corner), count)
    if difference > TOLERANCE:
        warnings.warn(
            f"the fast path ({fast.name}) differs from the plain one by {difference:.1e} (relative); taking the plain "
            "one. Please report the model.",
            stacklevel=2,
        )
        return plain, {"engine": plain.name, "refused": fast.name, "check": difference}
    return fast, {"engine": fast.name, "check": difference, "check_points": 9, "check_images": count}


def compare(one: Engine, other: Engine, points: np.ndarray, count: int) -> float:
    """The largest relative difference of mean losses; what is not finite must be so in both."""
    a, b = (in_groups(engine, points, count)[:, 0] / count for engine in (one, other))
    finite = np.isfinite(a) & np.isfinite(b)
    if (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    return float(np.max(np.abs(a[finite] - b[finite]) / (np.abs(b[finite]) + 1e-6), initial=0.0))


def in_groups(engine: Engine, coordinates: np.ndarray, count: int) -> np.ndarray:
    """The sums of any number of points."""
    starts = range(0, len(coordinates), engine.group)
    return np.concatenate([engine.sums(coordinates[a : a + engine.group].astype(np.float32), count) for a in starts])


def nine_points(corner: np.ndarray) -> np.ndarray:
    """The centre, and eight points around it out to the corner; on a line, nine along it."""
    steps = np.linspace(-1, 1, 9)
    if len(corner) == 1:
        return (steps[:, None] * corner).astype(np.float32)
    around = [(0.0, 0.0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)]
    return (np.array(around) * corner).astype(np.float32)


# --- taking chains apart --------------------------------------------------------------------------------------------


def _moved(entries: dict[int, Any], layout: Any, moved: Sequence[bool]) -> set[int]:
    """The ids of the variables that directions move."""
    flags = dict(zip((entry.path for entry in layout.entries), moved, strict=True))
    return {variable for variable, entry in entries.items() if flags[entry.path]}


def _moving(objective: Objective, directions: np.ndarray) -> Any:
    """Directions as a tensor; moving statistics, the last of a vector, stay unless they are interpolated."""
    still = np.arange(objective.layout.size) >= objective.layout.num_trainable
    return tf.constant(np.where(still & (objective.bn != "interpolate"), np.float32(0), directions))


def _is_linear(layer: Any) -> bool:
    plain = (keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
    return type(layer) in plain and not getattr(layer, "lora_enabled", False) and layer.dtype_policy.name == "float32"


def _linear(layer: Any, kernel: Any, bias: Any, x: Any) -> Any:
    """A dense layer or convolution before its activation."""
    values = (keras.ops.matmul if type(layer) is keras.layers.Dense else layer.convolution_op)(x, kernel)
    if bias is None:
        return values
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        bias = tf.reshape(bias, [-1, *([1] * layer.rank)])
    return values + bias


def _mixed(points: Any, parts: list[Any]) -> Any:
    """z0 + a z1 + b z2 for several points, as one product: shape (points, samples, ...)."""
    flat = tf.stack([tf.reshape(part, [-1]) for part in parts])
    factors = tf.concat([tf.ones_like(points[:, :1]), points], 1)
    return tf.reshape(tf.matmul(factors, flat), tf.concat([tf.shape(points)[:1], tf.shape(parts[0])], 0))

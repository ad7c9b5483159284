"""Exact rewrites that make training faster and leave its results alone.

Patches: TensorFlow's convolution kernels are slow for a few input channels, matrix products are not. The leading
convolutions become products over patches, and the pooling behind the first one a mean over a leading axis.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from feddual._lazy import keras, tf
from feddual.functional.cut import tail

ACTIVATIONS = ("linear", "relu", "tanh", "sigmoid")  # elementwise, so the layout does not matter to them
FEW_CHANNELS = 8  # up to here a product over patches beats TensorFlow's convolution kernels, forward and backward


class Convolutions:
    """The leading narrow convolutions of a chain, with the average pooling behind them, as products over patches.

    Everything is laid out with the batch innermost, rows by (channel, position): a value of a whole batch is one
    contiguous row, so gathering patches is copying rows.
    """

    def __init__(self, stages: list[tuple[Any, Any | None]], rest: Any):
        """Args: (convolution, pooling) pairs, and the model of what comes after them."""
        self.rest = rest
        self.variables = [variable for layer, _ in stages for variable in layer.trainable_variables]
        self.stages = [_Convolution(*stage, images=not number) for number, stage in enumerate(stages)]

    @classmethod
    def of(cls, model: Any) -> "Convolutions | None":
        """The rewrite of a model; None where it does not apply: no chain, or no plain narrow convolution first."""
        layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
        stages: list[tuple[Any, Any | None]] = []
        position, last = 0, None
        while position < len(layers) and _is_plain(layers[position], first=not stages):
            convolution = last = layers[position]
            position += 1
            pooling = layers[position] if position < len(layers) and _tiles(layers[position], convolution) else None
            if pooling is not None:
                position, last = position + 1, pooling
            stages.append((convolution, pooling))
        rest = tail(model, last) if stages else None
        return cls(stages, rest) if rest is not None else None

    def __call__(self, weights: list[Any], x: Any) -> Any:
        """Traced: from these layers' weights and images (batch, height, width, channels) to what `rest` takes."""
        return self.on_rows(weights, self.lay_out(x))

    def lay_out(self, x: Any) -> Any:
        """Traced: images as these layers take them, a column for each; once for several passes over them."""
        return tf.transpose(tf.reshape(x, [-1, int(np.prod(x.shape[1:]))]))

    def on_rows(self, weights: list[Any], rows: Any) -> Any:
        """Traced: the same from images that are laid out."""
        batch = tf.shape(rows)[1]
        return self.finish(weights, self.stages[0].linear(weights, rows, batch), batch)

    def linear(self, weights: list[Any], x: Any) -> Any:
        """Traced: the first convolution before its activation, which is linear in its weights."""
        return self.stages[0].linear(weights, self.lay_out(x), tf.shape(x)[0])

    def finish(self, weights: list[Any], values: Any, batch: Any) -> Any:
        """Traced: from what `linear` returned to what `rest` takes."""
        rows = self.stages[0].activate(values, batch)
        for before, stage in pairwise(self.stages):
            weights = weights[before.num_variables :]
            rows = stage(weights, rows, batch)
        stage = self.stages[-1]
        positions = tf.transpose(tf.reshape(rows, [stage.filters, stage.out[0] * stage.out[1], batch]))
        return tf.reshape(positions, [-1, *stage.out, stage.filters])


class _Convolution:
    """One convolution over rows of batches, with its activation and pooling.

    A patch covers what a whole pooling window sees, and the kernel is spread out to one copy per place in the window:
    fewer rows to gather and a better shaped product, for some multiplications by zero.
    """

    def __init__(self, layer: Any, pooling: Any | None, images: bool):
        pool = (1, 1) if pooling is None else tuple(pooling.pool_size)
        self.filters = layer.filters
        self.num_variables = len(layer.trainable_variables)
        self._activation, self._use_bias = layer.activation, layer.use_bias
        self._images = images  # rows come by (row, column, channel) and need no gradient
        self._size = height, width, channels = layer.input.shape[1:]
        self._kernel = layer.kernel_size
        self._whole = tuple(layer.output.shape[1:3])
        self.out = (self._whole[0] // pool[0], self._whole[1] // pool[1])
        self._pool = pool
        self._window = pool[0] * pool[1]
        steps = list(zip(layer.strides, layer.dilation_rate, self._kernel, pool, strict=True))
        reach = [(place - 1) * stride + (size - 1) * dilation + 1 for stride, dilation, size, place in steps]
        self._before = [
            max((whole - 1) * stride + (size - 1) * dilation + 1 - extent, 0) // 2 if layer.padding == "same" else 0
            for (stride, dilation, size, _), whole, extent in zip(steps, self._whole, (height, width), strict=True)
        ]
        self._reach = reach
        self._depth = reach[0] * reach[1] * channels

        # Where each value of each patch comes from: (row and column in it, channel, output row, output column).
        def sources(axis: int, extent: int) -> np.ndarray:
            offset, position = np.ogrid[: reach[axis], : self.out[axis]]
            where = position * pool[axis] * steps[axis][0] + offset - self._before[axis]
            return np.where((where >= 0) & (where < extent), where, -1)

        row, column = sources(0, height)[:, None, None, :, None], sources(1, width)[None, :, None, None, :]
        channel = np.arange(channels)[None, None, :, None, None]
        inside = (row * width + column) * channels + channel if images else (channel * height + row) * width + column
        self._zero_row = height * width * channels  # behind the others, for the padding
        self._patch_index = np.where((row < 0) | (column < 0), self._zero_row, inside).astype(np.int32).ravel()

        # Where each value of the kernel (row, column, channel, filter) goes for each place in the window, and back.
        places = np.indices((*pool, *self._kernel, channels, self.filters))
        rows = places[0] * steps[0][0] + places[2] * steps[0][1]
        columns = places[1] * steps[1][0] + places[3] * steps[1][1]
        depth = (rows * reach[1] + columns) * channels + places[4]
        copies = (places[5] * self._window + places[0] * pool[1] + places[1]) * self._depth
        target = (copies + depth).reshape(self._window, -1)
        self._kernel_index = np.full(self.filters * self._window * self._depth, target.shape[1], np.int32)
        self._kernel_index[target] = np.arange(target.shape[1])
        self._kernel_back = target.astype(np.int32)

    def __call__(self, weights: list[Any], rows: Any, batch: Any) -> Any:
        return self.activate(self.linear(weights, rows, batch), batch)

    def linear(self, weights: list[Any], rows: Any, batch: Any) -> Any:
        """Traced: before the activation, shape (filters, places in the pooling window, outputs, batch)."""
        shape = [self.filters, self._window, self.out[0] * self.out[1], batch]
        values = tf.reshape(self._product(weights[0], rows, batch), shape)
        if self._use_bias:
            values += tf.reshape(weights[1], [self.filters, 1, 1, 1])
        return values

    def activate(self, values: Any, batch: Any) -> Any:
        """Traced: activation and pooling."""
        values = self._activation(values)
        if self._window > 1:
            values = tf.reduce_mean(values, 1)
        return tf.reshape(values, [self.filters * self.out[0] * self.out[1], batch])

    def _product(self, kernel: Any, rows: Any, batch: Any) -> Any:
        """The kernel times the patches, with gradients in the form that is fast on a CPU."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def multiply(kernel: Any, rows: Any) -> Any:
            padded = tf.pad(rows, [[0, 1], [0, 0]]) if self._zero_row in self._patch_index else rows
            patches = tf.reshape(tf.gather(padded, self._patch_index), [self._depth, -1])
            spread = tf.gather(tf.pad(tf.reshape(kernel, [-1]), [[0, 1]]), self._kernel_index)
            spread = tf.reshape(spread, [self.filters * self._window, self._depth])

            def gradients(change: Any) -> tuple[Any, Any]:
                change = tf.reshape(change, [self.filters * self._window, -1])
                product = tf.transpose(tf.matmul(patches, change, transpose_b=True))
                collected = tf.gather(tf.reshape(product, [-1]), self._kernel_back)
                for_kernel = tf.reshape(tf.reduce_sum(collected, 0), kernel.shape)
                if self._images:
                    return for_kernel, None
                return for_kernel, self._add_up(tf.matmul(spread, change, transpose_a=True), batch)

            return tf.matmul(spread, patches), gradients

        return multiply(kernel, tf.stop_gradient(rows) if self._images else rows)

    def _add_up(self, patches: Any, batch: Any) -> Any:
        """Patches back to rows, adding what came from one place; for convolutions with steps of one.

        Patches lie a pooling step apart, so within the patch the offset is cut into whole steps, which shift, and the
        rest, which stays an axis of its own until it is interleaved at the end.
        """
        height, width, channels = self._size
        down, right = self._pool
        rows, columns = (-(-reach // step) for reach, step in zip(self._reach, self._pool, strict=True))
        parts = tf.reshape(patches, [*self._reach, channels, *self.out, batch])
        missing = [rows * down - self._reach[0], columns * right - self._reach[1]]
        if any(missing):
            parts = tf.pad(parts, [[0, missing[0]], [0, missing[1]], [0, 0], [0, 0], [0, 0], [0, 0]])
        parts = tf.reshape(parts, [rows, down, columns, right, channels, *self.out, batch])
        wide = [
            tf.pad(parts[:, :, a], [[0, 0]] * 5 + [[a, columns - 1 - a], [0, 0]]) for a in range(columns)
        ]  # (rows, down, right, channels, out, columns + out - 1, batch)
        high = [
            tf.pad(part, [[0, 0]] * 3 + [[a, rows - 1 - a], [0, 0], [0, 0]])
            for a, part in enumerate(tf.unstack(tf.add_n(wide)))
        ]
        whole = tf.add_n(high)
        if self._window > 1:
            whole = tf.transpose(whole, [2, 3, 0, 4, 1, 5])
        tall, broad = (rows - 1 + self.out[0]) * down, (columns - 1 + self.out[1]) * right
        whole = tf.reshape(whole, [channels, tall, broad, batch])
        top, start = self._before
        return tf.reshape(whole[:, top : top + height, start : start + width], [height * width * channels, batch])


def _is_plain(layer: Any, first: bool) -> bool:
    return (
        type(layer) is keras.layers.Conv2D
        and layer.groups == 1
        and layer.data_format == "channels_last"
        and layer.trainable
        and layer.activation.__name__ in ACTIVATIONS
        and not (layer.kernel_regularizer or layer.bias_regularizer or layer.activity_regularizer)
        and None not in layer.output.shape[1:]
        and layer.input.shape[-1] <= FEW_CHANNELS
        and (first or (tuple(layer.strides) == (1, 1) and tuple(layer.dilation_rate) == (1, 1)))
    )


def _tiles(layer: Any, convolution: Any) -> bool:
    """Whether a layer is an average pooling whose windows cover the convolution's output without a rest."""
    return (
        type(layer) is keras.layers.AveragePooling2D
        and tuple(layer.strides) == tuple(layer.pool_size)
        and layer.data_format == "channels_last"
        and all(size % step == 0 for size, step in zip(convolution.output.shape[1:3], layer.pool_size, strict=True))
    )

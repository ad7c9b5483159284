"""Exact rewrites that make training faster and leave its results alone.

First-layer patches: the input of the first convolution needs no gradient, so the convolution is one matrix product over
patches; the pooling behind it becomes a mean over a leading axis. TensorFlow's convolution kernels are slow for one or
three input channels, a product is not.

Frozen-prefix features: where a network begins with frozen layers, their output for an image never changes. It is
computed once, kept on disk, and the trained part sees features instead of images.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from feddual import datasets
from feddual._lazy import keras, tf
from feddual.models import Network, tail

CHUNK = 500  # images through the prefix at a time
Progress = Callable[[str, int, int], None]


def features(network: Network, images: np.ndarray, progress: Progress | None = None) -> np.ndarray:
    """The prefix's output for each image, from the cache or computed now: float32, read-only, mapped from its file.

    The file's name is a hash of the prefix's weights, the preprocessing and the images, so a change of any of them
    makes another file.
    """
    key = hashlib.sha256(
        f"{network.frozen_hash}:{network.prefix.output_shape}:{network.preprocess}:{images.dtype}{images.shape}".encode()
    )
    key.update(np.ascontiguousarray(images).data)
    path = datasets.cache_dir() / "features" / f"{key.hexdigest()[:40]}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with filelock.FileLock(f"{path}.lock"):  # one process computes, the others wait for it
            if not path.exists():
                _write(path, network, images, progress)
    return np.load(path, mmap_mode="r")


def _write(path: Path, network: Network, images: np.ndarray, progress: Progress | None) -> None:
    prefix = tf.function(
        lambda x: network.prefix(x, training=False),
        autograph=False,
        input_signature=[tf.TensorSpec([None, *images.shape[1:]])],
    )
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    os.close(descriptor)
    try:
        shape = (len(images), *network.prefix.output_shape[1:])
        out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        for start in range(0, len(images), CHUNK):
            out[start : start + CHUNK] = prefix(datasets.preprocess(images[start : start + CHUNK], network.preprocess))
            if progress is not None:
                progress("extracting features of the frozen layers", min(start + CHUNK, len(images)), len(images))
        out.flush()
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


class FirstConvolution:
    """The first convolution, its activation and the average pooling behind it, as a product over patches.

    Everything is laid out with the batch innermost: a patch value of a whole batch is one contiguous row, so gathering
    patches is copying rows. Rows are ordered (kernel position and channel, place in the pooling window, output
    position), so that pooling is a mean over one leading axis.
    """

    ACTIVATIONS = ("linear", "relu", "tanh", "sigmoid")

    def __init__(self, convolution: Any, pooling: Any | None, rest: Any):
        self.rest = rest
        self._activation = convolution.activation
        self._use_bias = convolution.use_bias
        self._filters = convolution.filters
        height, width, channels = convolution.input.shape[1:]
        kernel = convolution.kernel_size
        out = tuple(convolution.output.shape[1:3])
        pool = tuple(pooling.pool_size) if pooling is not None else (1, 1)
        self._out = (out[0] // pool[0], out[1] // pool[1])
        self._window = pool[0] * pool[1]
        self._depth = kernel[0] * kernel[1] * channels

        def sources(axis: int, size: int) -> np.ndarray:
            """The input coordinate under each (kernel offset, pool offset, output position); -1 in the padding."""
            stride, dilation = convolution.strides[axis], convolution.dilation_rate[axis]
            reach = (out[axis] - 1) * stride + (kernel[axis] - 1) * dilation + 1
            before = max(reach - size, 0) // 2 if convolution.padding == "same" else 0
            offset, inner, position = np.ogrid[: kernel[axis], : pool[axis], : self._out[axis]]
            where = (position * pool[axis] + inner) * stride + offset * dilation - before
            return np.where((where >= 0) & (where < size), where, -1)

        rows, columns = sources(0, height), sources(1, width)
        # (kernel row, kernel column, channel, pool row, pool column, row, column)
        row = rows[:, None, None, :, None, :, None]
        column = columns[None, :, None, None, :, None, :]
        index = (row * width + column) * channels + np.arange(channels)[None, None, :, None, None, None, None]
        padding = height * width * channels  # a row of zeros behind the image
        self._index = np.where((row < 0) | (column < 0), padding, index).astype(np.int32).ravel()
        self._padded = bool((self._index == padding).any())

    @classmethod
    def of(cls, model: Any) -> "FirstConvolution | None":
        """The rewrite of a model, None where it does not apply: no chain, or no plain convolution at its start."""
        layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
        if not layers or type(layers[0]) is not keras.layers.Conv2D:
            return None
        first = layers[0]
        plain = (
            first.groups == 1
            and first.data_format == "channels_last"
            and first.trainable
            and None not in first.output.shape[1:]
        )
        if (
            not plain
            or first.activation.__name__ not in cls.ACTIVATIONS
            or first.kernel_regularizer
            or first.bias_regularizer
        ):
            return None
        pooling = layers[1] if len(layers) > 1 and type(layers[1]) is keras.layers.AveragePooling2D else None
        if pooling is not None:
            size = pooling.pool_size
            tiles = all(extent % step == 0 for extent, step in zip(first.output.shape[1:3], size, strict=True))
            if pooling.strides != size or pooling.data_format != "channels_last" or not tiles:
                pooling = None
        rest = tail(model, pooling or first)
        return cls(first, pooling, rest) if rest is not None else None

    def __call__(self, weights: list[Any], x: Any) -> Any:
        """Traced: from the first layer's weights and images (batch, height, width, channels) to what `rest` takes."""
        kernel = tf.transpose(tf.reshape(weights[0], [self._depth, self._filters]))
        flat = tf.transpose(tf.reshape(x, [-1, int(np.prod(x.shape[1:]))]))
        if self._padded:
            flat = tf.pad(flat, [[0, 1], [0, 0]])
        patches = tf.reshape(tf.gather(flat, self._index), [self._depth, -1])
        values = tf.reshape(
            _product(kernel, patches), [self._filters, self._window, self._out[0] * self._out[1], tf.shape(x)[0]]
        )
        if self._use_bias:
            values += tf.reshape(weights[1], [self._filters, 1, 1, 1])
        values = self._activation(values)
        if self._window > 1:
            values = tf.reduce_mean(values, 1)
        return tf.reshape(
            tf.transpose(tf.reshape(values, [self._filters, -1, tf.shape(x)[0]])), [-1, *self._out, self._filters]
        )


def _product(kernel: Any, patches: Any) -> Any:
    """`kernel @ patches`, with the gradient for the kernel alone, in the order of factors that is fast."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def multiply(kernel: Any) -> Any:
        return tf.matmul(kernel, patches), lambda change: tf.transpose(tf.matmul(patches, change, transpose_b=True))

    return multiply(kernel)

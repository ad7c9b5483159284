"""The output of a network's frozen beginning, computed once for each image and kept on disk.

Where a network begins with frozen layers, their output for an image never changes: the trained part sees features
instead of images.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import filelock
import numpy as np

from feddual._lazy import tf
from feddual.data import datasets
from feddual.data.files import whole_file
from feddual.functional.graphs import compiled
from feddual.functional.network import Network

CHUNK = 500  # images through the prefix at a time
Progress = Callable[[str, int, int], None]


def features(network: Network, images: np.ndarray, progress: Progress | None = None) -> np.ndarray:
    """The prefix's output for each image, from the cache or computed now: float32, read-only, mapped from its file.

    The file's name is a hash of the prefix's weights, the preprocessing and the images, so a change of any of them
    makes another file.
    """
    path = feature_path(network, images)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with filelock.FileLock(f"{path}.lock"):  # one process computes, the others wait for it
            if not path.exists():
                _write(path, network, images, progress)
    return np.load(path, mmap_mode="r")


def feature_path(network: Network, images: np.ndarray) -> Path:
    """Where the features of these images are kept, whether they are there yet or not."""
    key = hashlib.sha256(
        f"{network.frozen_hash}:{network.prefix.output_shape}:{network.preprocess}:{images.dtype}{images.shape}".encode()
    )
    key.update(np.ascontiguousarray(images).data)
    return datasets.cache_dir() / "features" / f"{key.hexdigest()[:40]}.npy"


def _write(path: Path, network: Network, images: np.ndarray, progress: Progress | None) -> None:
    prefix = compiled(lambda x: network.prefix(x, training=False), ([None, *images.shape[1:]], tf.float32))
    with whole_file(path) as partial:
        shape = (len(images), *network.prefix.output_shape[1:])
        out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        for start in range(0, len(images), CHUNK):
            out[start : start + CHUNK] = prefix(datasets.preprocess(images[start : start + CHUNK], network.preprocess))
            if progress is not None:
                progress("extracting features of the frozen layers", min(start + CHUNK, len(images)), len(images))
        out.flush()

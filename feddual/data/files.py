"""Reading the files in which the real data sets usually lie: npz, idx, CIFAR's pickles, plain or in their archives."""

import gzip
import io
import os
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from feddual.errors import UserError

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Reader = Callable[[bool], Arrays]  # told whether to open the test part; without it, its arrays are empty


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes `target` when all went well and vanishes when not: whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=f".partial{target.suffix}")
    os.close(descriptor)
    try:
        yield Path(name)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def read_npz(path: Path, with_test: bool = True) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in archive]
            if missing:
                raise UserError(f"{path}: lacks the arrays {', '.join(missing)}; it holds {', '.join(archive.files)}")
            x, y = archive["x_train"], archive["y_train"]
            return (x, y, archive["x_test"], archive["y_test"]) if with_test else (x, y, x[:0], y[:0])
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a readable .npz file of plain arrays ({error})") from error


def _read_idx(path: Path) -> np.ndarray:
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        data = file.read()
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _read_idx_files(files: list[Path], with_test: bool) -> Arrays:
    x, y = _read_idx(files[0]), _read_idx(files[1])
    return (x, y, _read_idx(files[2]), _read_idx(files[3])) if with_test else (x, y, x[:0], y[:0])


def _fmnist_layouts(folder: Path) -> Iterator[tuple[Path, Reader]]:
    for sub in ("fashion-mnist", "FashionMNIST/raw", "fmnist", "fashion_mnist", "."):
        for ending in ("", ".gz"):
            files = [
                folder / sub / f"{part}-ubyte{ending}"
                for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
            ]
            if all(file.is_file() for file in files):
                yield folder / sub, partial(_read_idx_files, files)


class _ArraysOnly(pickle.Unpickler):
    """Reads the arrays and texts of CIFAR's pickles and refuses anything else."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")
        arrays = ("numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")
        if f"{module}.{name}" not in (*arrays, "_codecs.encode"):  # which Python 3 writes bytes with for old readers
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a data set")
        return super().find_class(module, name)


def _cifar(place: Path, inner: str, train: list[str], test: str, key: bytes, with_test: bool) -> Arrays:
    """The batches in a folder, or in an archive of the folder `inner`."""

    def images(parts: list[str], archive: Any) -> tuple[np.ndarray, np.ndarray]:
        files = [archive.extractfile(f"{inner}/{part}") if archive else _opened(place / part) for part in parts]
        batches = [_ArraysOnly(file, encoding="bytes").load() for file in files]
        pixels = np.concatenate([np.asarray(batch[b"data"], np.uint8) for batch in batches])
        labels = np.concatenate([np.asarray(batch[key], np.int64) for batch in batches])
        return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels

    with tarfile.open(place) if place.is_file() else nullcontext() as archive:
        x, y = images(train, archive)
        return (x, y, *images([test], archive)) if with_test else (x, y, x[:0], y[:0])


def _opened(path: Path) -> io.BytesIO:
    return io.BytesIO(path.read_bytes())


def _cifar_layouts(
    folder: Path, inner: str, archive: str, train: list[str], test: str, key: bytes
) -> Iterator[tuple[Path, Reader]]:
    for sub in (".", f"{inner}-target", archive.removesuffix(".tar.gz"), "cifar10", "cifar100"):
        unpacked, packed = folder / sub / inner, folder / sub / archive
        if (unpacked / test).is_file():
            yield unpacked, partial(_cifar, unpacked, inner, train, test, key)
        if packed.is_file():
            yield packed, partial(_cifar, packed, inner, train, test, key)


def layouts(name: str, folder: Path) -> Iterator[tuple[Path, Reader]]:
    """Every place in a folder where the data set lies, with a function that reads it."""
    if (folder / f"{name}.npz").is_file():
        yield folder / f"{name}.npz", partial(read_npz, folder / f"{name}.npz")
    if name == "fmnist":
        yield from _fmnist_layouts(folder)
    elif name == "cifar10":
        batches = [f"data_batch_{number}" for number in range(1, 6)]
        yield from _cifar_layouts(
            folder, "cifar-10-batches-py", "cifar-10-python.tar.gz", batches, "test_batch", b"labels"
        )
    else:
        yield from _cifar_layouts(
            folder, "cifar-100-python", "cifar-100-python.tar.gz", ["train"], "test", b"fine_labels"
        )

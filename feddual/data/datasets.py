"""The data sets: found on this machine, read from whatever layout they lie in, verified, downloaded only at last.

Each is a function `load(...) -> Dataset`; its parameters are keys of the config's `dataset` section, its name (with
dashes) the value of `dataset.name`. Where it has parameters `data_dir` and `with_test`, it is given a folder to search
first, and told whether the test part is wanted. A user's own is `module:name`, or `dataset: {path: mine.npz}`.
"""

import hashlib
import inspect
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from feddual.data.files import Reader, layouts, read_npz, whole_file
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.experiment.schema import Seed

FMNIST_CLASSES = tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","))
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Dataset:
    """Images (uint8 or float32, shape (n, ...)) and integer labels, for training and for the server's test."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...] = field(default=())
    source: str = ""

    @property
    def num_classes(self) -> int:
        return len(self.class_names) or int(max(self.y_train.max(), self.y_test.max(initial=0))) + 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    def held_out(self, kept: np.ndarray, held: np.ndarray) -> "Dataset":
        """The data set that trains on some of its training rows and tests on others.

        Args:
            kept: Rows of the training part to train on.
            held: Rows of it to test on.

        Returns:
            A data set without the test part.
        """
        x, y = self.x_train, self.y_train
        names = self.class_names or tuple(map(str, range(self.num_classes)))
        return replace(self, x_train=x[kept], y_train=y[kept], x_test=x[held], y_test=y[held], class_names=names)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that does not depend on the order of the examples, nor on the file they came from."""
        return content_hash(self.x_train, self.y_train)[:32] + content_hash(self.x_test, self.y_test)[:32]


def content_hash(images: np.ndarray, labels: np.ndarray) -> str:
    """SHA-256 over the sorted hashes of (image, label) pairs."""
    labels = np.asarray(labels, np.int64)
    rows = sorted(
        hashlib.sha256(np.ascontiguousarray(image).tobytes() + label.tobytes()).digest()
        for image, label in zip(images, labels, strict=True)
    )
    return hashlib.sha256(b"".join(rows)).hexdigest()


# The real data sets, by what they contain.
FINGERPRINTS = {
    "fmnist": "9b59105b0403efb11e8b880a02c4689442d9ee570837aba1cd0b32741e8c1a09",
    "cifar10": "6c3d94351344c6460973c9795f4a4fcc7742db831caeba84ea1d4663e0d07ca1",
    "cifar100": "f21948361e3a1c94d1f14ec03fe68237dc83e74dc0797ec7de75164abeb59d8c",
}


# --- where data lies ------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The folder this package writes to: data sets, extracted features."""
    import platformdirs

    return Path(os.environ.get("FEDDUAL_CACHE") or platformdirs.user_cache_dir("feddual", appauthor=False))


def search_dirs(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders in which data sets and pretrained weights are looked for, the first one winning."""
    keras_home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    given = [Path(folder) for folder in (data_dir, os.environ.get("FEDDUAL_DATA")) if folder]
    shared = Path("/usr/share/datasets")
    return [*given, cache_dir() / "data", keras_home / "datasets", keras_home / "models", shared]


def find_file(name: str, data_dir: str | None = None) -> Path | None:
    """The first file of that name in the search folders."""
    return next((folder / name for folder in search_dirs(data_dir) if (folder / name).is_file()), None)


# --- the data sets --------------------------------------------------------------------------------------------------


def locate(name: str, data_dir: str | None = None) -> Path | None:
    """Where a real data set lies on this machine, unread; None if it does not."""
    return next((place for folder in search_dirs(data_dir) for place, _ in layouts(name, folder)), None)


def _real(name: str, class_names: tuple[str, ...], data_dir: str | None, with_test: bool) -> Dataset:
    for folder in search_dirs(data_dir):
        for place, read in layouts(name, folder):
            return _checked(name, place, read, class_names, with_test)
    return _download(name, class_names, with_test)


def _checked(name: str, place: Path, read: Reader, class_names: tuple[str, ...], with_test: bool = True) -> Dataset:
    try:
        arrays = read(with_test)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, EOFError, IndexError, pickle.UnpicklingError, tarfile.TarError) as error:
        raise UserError(f"dataset {name}: {place} cannot be read ({error}); delete or replace it") from error
    x_train, y_train, x_test, y_test = arrays
    if x_train.ndim == 3:
        x_train, x_test = x_train[..., None], x_test[..., None]
    y_train, y_test = y_train.ravel().astype(np.int64), y_test.ravel().astype(np.int64)
    dataset = Dataset(name, x_train, y_train, x_test, y_test, class_names, str(place))
    if len(x_train) != len(dataset.y_train) or len(x_test) != len(dataset.y_test):
        raise UserError(
            f"dataset {name}: {place} has {len(x_train)} + {len(x_test)} images but {len(dataset.y_train)} "
            f"+ {len(dataset.y_test)} labels"
        )
    known = slice(None) if with_test else slice(32)  # the first half is the training part's
    if dataset.fingerprint[known] != FINGERPRINTS[name][known]:
        raise UserError(
            f"dataset {name}: {place} does not hold the original images and labels (content hash "
            f"{dataset.fingerprint[:12]}…, expected {FINGERPRINTS[name][:12]}…); delete or replace it"
        )
    return dataset


def _download(name: str, class_names: tuple[str, ...], with_test: bool) -> Dataset:
    import filelock

    from feddual._lazy import keras

    target = cache_dir() / "data" / f"{name}.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{target}.lock"):  # two processes must not download into one file
        if not target.exists():
            loader = getattr(keras.datasets, "fashion_mnist" if name == "fmnist" else name)
            try:
                (x_train, y_train), (x_test, y_test) = loader.load_data()
            except Exception as error:  # Keras raises a bare Exception when a host cannot be reached
                raise UserError(_how_to_get(name, error)) from error
            save_npz(target, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return _checked(name, target, partial(read_npz, target), class_names, with_test)


def _how_to_get(name: str, error: Exception) -> str:
    debian = " (Debian: apt install dataset-fashion-mnist)" if name == "fmnist" else ""
    return (
        f"dataset {name}: not on this machine, and the download failed ({str(error).splitlines()[0][:120]}).\n"
        f"Three ways to get it:\n"
        f"  1. with a connection: feddual data fetch {name}\n"
        f"  2. from a file or folder you have: feddual data import PATH --name {name}{debian}\n"
        f"  3. put {name}.npz (x_train, y_train, x_test, y_test), or the Keras or torchvision files, into a folder "
        f"and pass --data-dir FOLDER or set FEDDUAL_DATA"
    )


def import_data(name: str, path: Path) -> Path:
    """Verify the data set at `path` (a file, or a folder in a usual layout) and copy it into the user cache."""
    if name not in FINGERPRINTS:
        raise UserError(f"--name: {name!r} is unknown; allowed: {', '.join(sorted(FINGERPRINTS))}")
    if path.suffix == ".npz":
        found: list[tuple[Path, Reader]] = [(path, partial(read_npz, path))]
    else:
        folders = [path.parent, path.parent.parent] if path.is_file() else [path, path.parent]
        found = [layout for folder in folders for layout in layouts(name, folder)]
    if not found:
        raise UserError(f"{path}: no {name} there in a known layout ({name}.npz, idx, Keras or torchvision files)")
    dataset = _checked(name, *found[0], ())
    target = cache_dir() / "data" / f"{name}.npz"
    save_npz(target, x_train=dataset.x_train, y_train=dataset.y_train, x_test=dataset.x_test, y_test=dataset.y_test)
    return target


def save_npz(target: Path, **arrays: np.ndarray) -> None:
    """Write an .npz whole or not at all."""
    with whole_file(target) as partial, open(partial, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def fmnist(
    data_dir: str | None = None,
    padded: Annotated[bool, Field(description="as 32 x 32 x 3: a black margin, the grey value three times")] = False,
    *,
    with_test: bool = True,
) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28, 10 classes (Xiao et al., 2017)."""
    found = _real("fmnist", FMNIST_CLASSES, data_dir, with_test)
    if not padded:
        return found
    return replace(found, x_train=_as_colour(found.x_train), x_test=_as_colour(found.x_test))


def _as_colour(images: np.ndarray) -> np.ndarray:
    """Grey images of 28 x 28 as networks for 32 x 32 colour images take them."""
    return np.repeat(np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=-1)


def cifar10(data_dir: str | None = None, *, with_test: bool = True) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour images of 32 x 32, 10 classes (Krizhevsky, 2009)."""
    return _real("cifar10", CIFAR10_CLASSES, data_dir, with_test)


def cifar100(data_dir: str | None = None, *, with_test: bool = True) -> Dataset:
    """CIFAR-100 with its 100 fine labels: 50,000 + 10,000 colour images of 32 x 32 (Krizhevsky, 2009)."""
    return _real("cifar100", (), data_dir, with_test)


def fmnist_mini() -> Dataset:
    """6,000 + 1,000 images of Fashion-MNIST, stratified, inside the package: no download, ever."""
    with resources.as_file(resources.files("feddual") / "data" / "fmnist_mini.npz") as path:
        found = from_arrays(*read_npz(path), field="fmnist-mini")
    return replace(found, name="fmnist-mini", class_names=FMNIST_CLASSES, source="inside the package")


def synthetic(
    num_train: Annotated[int, Field(ge=1, description="training examples")] = 2000,
    num_test: Annotated[int, Field(ge=1, description="test examples")] = 500,
    num_classes: Annotated[int, Field(ge=2)] = 10,
    shape: Annotated[list[int], Field(min_length=1, description="of one example")] = [8, 8, 1],  # noqa: B006
    noise: Annotated[float, Field(ge=0, description="spread around the class centres, which are about 1 apart")] = 0.5,
    seed: Seed = 0,
) -> Dataset:
    """Gaussian clouds around one random centre per class, for tests and for trying things out."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num_classes, *shape)).astype(np.float32)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.permutation(np.arange(count) % num_classes)
        return centres[labels] + noise * rng.normal(size=(count, *shape)).astype(np.float32), labels

    return Dataset("synthetic", *draw(num_train), *draw(num_test), source="made from its seed")


def from_file(path: Annotated[str, Field(description=".npz with x_train, y_train, x_test, y_test")]) -> Dataset:
    """A user's own data: images or vectors (uint8 or float) and integer labels from 0."""
    return replace(from_arrays(*read_npz(Path(path)), field=f"dataset.path: {path}"), name=Path(path).stem, source=path)


def from_arrays(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, *, field: str
) -> Dataset:
    """A user's arrays, if they pair up: grey images get a channel, pixels stay bytes, all else becomes float32."""
    for images, labels, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(images) == 0 or len(images) != labels.size or images.ndim < 2:
            raise UserError(
                f"{field}: x_{part} of shape {images.shape} and y_{part} of shape "
                f"{labels.shape} do not pair up; expected (n, ...) and (n,) with n > 0"
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise UserError(f"{field}: y_{part} must be integers from 0, got {labels.dtype} from {labels.min()}")
        if np.issubdtype(images.dtype, np.floating) and not np.isfinite(images).all():
            raise UserError(f"{field}: x_{part} has NaN or infinite values")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(f"{field}: x_train and x_test differ in shape: {x_train.shape[1:]}, {x_test.shape[1:]}")
    if x_train.ndim == 3:
        x_train, x_test = x_train[..., None], x_test[..., None]
    kind = np.uint8 if x_train.dtype == np.uint8 else np.float32
    y_train, y_test = y_train.ravel().astype(np.int64), y_test.ravel().astype(np.int64)
    return Dataset("arrays", x_train.astype(kind), y_train, x_test.astype(kind), y_test)


def load(config: Any, data_dir: str | None = None, with_test: bool = True) -> Dataset:
    """The data set of a config's `dataset` section.

    Args:
        config: The section.
        data_dir: A folder that is searched first.
        with_test: Off, the real data sets leave their test part unopened; its arrays are empty.
    """
    parameters = config.model_dump()
    parameters.pop("preprocess")
    if "path" in parameters:
        return from_file(parameters["path"])
    name = parameters.pop("name")
    function = plugins.find("datasets", name, "dataset.name")
    offered = {"data_dir": data_dir, "with_test": with_test}
    taken = {key: value for key, value in offered.items() if key in inspect.signature(function).parameters}
    found = function(**taken, **parameters)
    if isinstance(found, Dataset):
        return found
    if not (isinstance(found, tuple) and len(found) == 4):
        raise UserError(
            f"dataset.name: {name!r} returned {type(found).__name__}; expected a feddual.Dataset, or x_train, y_train, "
            "x_test, y_test"
        )
    return replace(from_arrays(*map(np.asarray, found), field=f"dataset.name: {name!r}"), name=name)


def held_out_rows(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The rows that stay and the rows that are held out: the same share of every class, the same rows every time."""
    rng = np.random.default_rng(2025)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held[rng.permutation(rows)[: max(1, round(share * len(rows)))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


_ALL = (cifar10, cifar100, fmnist, fmnist_mini, synthetic)
DATASETS: dict[str, Callable[..., Dataset]] = {made.__name__.replace("_", "-"): made for made in _ALL}


def preprocess(images: np.ndarray, how: str) -> np.ndarray:
    """Images as a network takes them, float32.

    Args:
        images: uint8 or float, shape (n, ...).
        how: `unit` divides uint8 by 255, `raw` only converts, `vgg16` is Keras' `vgg16.preprocess_input`. Floats are
            the user's own scaling and stay as they are, unless `vgg16` is asked for.
    """
    values = images.astype(np.float32)
    if how == "unit" and images.dtype == np.uint8:
        values *= np.float32(1 / 255)
    elif how == "vgg16":
        if values.shape[-1] != 3:
            raise UserError(
                f"dataset.preprocess: 'vgg16' needs three colour channels, got images of shape {values.shape[1:]}"
            )
        values = values[..., ::-1] - np.array([103.939, 116.779, 123.68], np.float32)
    return values

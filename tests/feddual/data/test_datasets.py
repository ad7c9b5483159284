import gzip
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from feddual.data import datasets
from feddual.errors import UserError
from feddual.experiment import config

RNG = np.random.default_rng(0)
GREY = {"x_train": RNG.integers(0, 256, (12, 28, 28), np.uint8), "y_train": np.arange(12, dtype=np.uint8) % 10,
        "x_test": RNG.integers(0, 256, (4, 28, 28), np.uint8), "y_test": np.arange(4, dtype=np.uint8)}  # fmt: skip
COLOUR = {"x_train": RNG.integers(0, 256, (10, 32, 32, 3), np.uint8), "y_train": np.arange(10, dtype=np.int64),
          "x_test": RNG.integers(0, 256, (5, 32, 32, 3), np.uint8), "y_test": np.arange(5, dtype=np.int64)}  # fmt: skip


def arrays_of(name):
    return GREY if name == "fmnist" else COLOUR


@pytest.fixture(autouse=True)
def _small_originals(monkeypatch, tmp_path):
    """Let the small arrays above pass for the originals, and hide what the machine has."""
    monkeypatch.setenv("FEDDUAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    real = datasets.search_dirs
    monkeypatch.setattr(datasets, "search_dirs", lambda folder=None: [f for f in real(folder) if "/usr/" not in str(f)])
    for name in datasets.FINGERPRINTS:
        a = arrays_of(name)
        images = (a["x_train"], a["x_test"]) if name != "fmnist" else (a["x_train"][..., None], a["x_test"][..., None])
        small = datasets.Dataset(name, images[0], a["y_train"], images[1], a["y_test"])
        monkeypatch.setitem(datasets.FINGERPRINTS, name, small.fingerprint)


def write_idx(path: Path, array: np.ndarray) -> None:
    data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_files(folder: Path, ending: str) -> None:
    for part, key in (("train-images-idx3", "x_train"), ("train-labels-idx1", "y_train"),
                      ("t10k-images-idx3", "x_test"), ("t10k-labels-idx1", "y_test")):  # fmt: skip
        write_idx(folder / f"{part}-ubyte{ending}", GREY[key])


def cifar_files(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    key = b"labels" if name == "cifar10" else b"fine_labels"

    def dump(file: str, x: np.ndarray, y: np.ndarray) -> None:
        pixels = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        (folder / file).write_bytes(pickle.dumps({b"data": pixels, key: y.tolist()}, protocol=2))

    if name == "cifar10":
        for number in range(5):
            part = slice(2 * number, 2 * number + 2)
            dump(f"data_batch_{number + 1}", COLOUR["x_train"][part], COLOUR["y_train"][part])
        dump("test_batch", COLOUR["x_test"], COLOUR["y_test"])
    else:
        dump("train", COLOUR["x_train"], COLOUR["y_train"])
        dump("test", COLOUR["x_test"], COLOUR["y_test"])


def archive(folder: Path, inner: str, file: str) -> None:
    with tarfile.open(folder / file, "w:gz") as tar:
        tar.add(folder / inner, inner)
    for path in (folder / inner).iterdir():
        path.unlink()
    (folder / inner).rmdir()


LAYOUTS = {
    "npz": ("fmnist", lambda d: np.savez(d / "fmnist.npz", **GREY)),
    "npz with a column of labels": ("cifar10", lambda d: np.savez(
        d / "cifar10.npz", **{k: v[:, None] if k.startswith("y") else v for k, v in COLOUR.items()})),
    "Keras and Debian idx.gz": ("fmnist", lambda d: idx_files(d / "fashion-mnist", ".gz")),
    "torchvision idx": ("fmnist", lambda d: idx_files(d / "FashionMNIST" / "raw", "")),
    "idx in the folder itself": ("fmnist", lambda d: idx_files(d, "")),
    "torchvision CIFAR-10": ("cifar10", lambda d: cifar_files(d / "cifar-10-batches-py", "cifar10")),
    "Keras CIFAR-10": ("cifar10", lambda d: cifar_files(
        d / "cifar-10-batches-py-target" / "cifar-10-batches-py", "cifar10")),
    "CIFAR-10 archive": ("cifar10", lambda d: (cifar_files(d / "cifar-10-batches-py", "cifar10"),
                                               archive(d, "cifar-10-batches-py", "cifar-10-python.tar.gz"))),
    "torchvision CIFAR-100": ("cifar100", lambda d: cifar_files(d / "cifar-100-python", "cifar100")),
    "CIFAR-100 archive": ("cifar100", lambda d: (cifar_files(d / "cifar-100-python", "cifar100"),
                                                 archive(d, "cifar-100-python", "cifar-100-python.tar.gz"))),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["data_dir", "FEDDUAL_DATA", "cache", "keras"])
def test_every_layout_is_found_everywhere_and_gives_the_same_arrays(layout, how, tmp_path, monkeypatch):
    name, write = LAYOUTS[layout]
    folder = {"cache": tmp_path / "cache" / "data", "keras": tmp_path / "keras" / "datasets"}.get(
        how, tmp_path / "mine"
    )
    folder.mkdir(parents=True)
    write(folder)
    if how == "FEDDUAL_DATA":
        monkeypatch.setenv("FEDDUAL_DATA", str(folder))
    found = datasets.DATASETS[name](str(folder) if how == "data_dir" else None)
    expected = arrays_of(name)
    assert (found.x_train.reshape(expected["x_train"].shape) == expected["x_train"]).all()
    assert found.y_train.tolist() == expected["y_train"].tolist()
    assert (found.x_test.reshape(expected["x_test"].shape) == expected["x_test"]).all()
    assert found.input_shape == ((28, 28, 1) if name == "fmnist" else (32, 32, 3))
    assert found.y_test.dtype == np.int64


def test_the_hash_ignores_order_and_sees_content():
    order = np.random.default_rng(1).permutation(10)
    x, y = COLOUR["x_train"], COLOUR["y_train"]
    assert datasets.content_hash(x, y) == datasets.content_hash(x[order], y[order])
    assert datasets.content_hash(x, y) != datasets.content_hash(x, y[order])
    changed = x.copy()
    changed[0, 0, 0, 0] ^= 1
    assert datasets.content_hash(x, y) != datasets.content_hash(changed, y)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: p.write_bytes(b"not a zip"), "not a readable .npz"),
        (lambda p: np.savez(p, x_train=GREY["x_train"]), "lacks the arrays y_train, x_test, y_test"),
        (lambda p: np.savez(p, **(GREY | {"x_train": GREY["x_train"] ^ 1})), "does not hold the original images"),
        (lambda p: np.savez(p, **(GREY | {"y_train": GREY["y_train"][:3]})), "12 \\+ 4 images but 3 \\+ 4 labels"),
    ],
)
def test_a_wrong_file_is_refused_by_name(write, message, tmp_path):
    write(tmp_path / "fmnist.npz")
    with pytest.raises(UserError, match=message) as caught:
        datasets.fmnist(str(tmp_path))
    assert "fmnist.npz" in str(caught.value)


def test_a_pickle_with_code_in_it_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("owned",)

    cifar_files(tmp_path / "cifar-10-batches-py", "cifar10")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="does not belong in a data set"):
        datasets.cifar10(str(tmp_path))


def test_offline_and_absent_says_three_ways(monkeypatch):
    from feddual._lazy import keras

    def fail():
        raise Exception("URL fetch failure on https://host: offline")

    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", fail)
    with pytest.raises(UserError, match="feddual data fetch fmnist") as caught:
        datasets.fmnist()
    assert "feddual data import" in str(caught.value)
    assert "FEDDUAL_DATA" in str(caught.value)


def test_a_download_is_kept_and_verified(monkeypatch):
    from feddual._lazy import keras

    calls = []

    def download():
        calls.append(1)
        return (GREY["x_train"], GREY["y_train"]), (GREY["x_test"], GREY["y_test"])

    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", download)
    assert datasets.fmnist().fingerprint == datasets.fmnist().fingerprint
    assert len(calls) == 1


def test_import_copies_into_the_cache(tmp_path):
    source = tmp_path / "elsewhere"
    idx_files(source / "fashion-mnist", ".gz")
    target = datasets.import_data("fmnist", source)
    assert target.parent == tmp_path / "cache" / "data"
    assert datasets.fmnist().source == str(target)
    with pytest.raises(UserError, match="no cifar10 there"):
        datasets.import_data("cifar10", source)
    with pytest.raises(UserError, match="'mnist' is unknown"):
        datasets.import_data("mnist", source)


def section(**values):
    return config.section_class("dataset", values).model_validate(values)


def test_a_users_own_file(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=np.zeros((6, 5)), y_train=np.arange(6) % 3, x_test=np.zeros((2, 5)), y_test=np.array([0, 2]))
    found = datasets.load(section(path=str(path)))
    assert (found.input_shape, found.num_classes, found.x_train.dtype) == ((5,), 3, np.float32)
    for key, value, message in (
        ("y_train", np.arange(5), "do not pair up"),
        ("y_train", np.linspace(0, 1, 6), "must be integers from 0"),
        ("y_train", np.arange(6) - 1, "must be integers from 0"),
        ("x_train", np.full((6, 5), np.nan), "NaN or infinite"),
        ("x_test", np.zeros((2, 4)), "differ in shape"),
    ):
        good = dict(np.load(path))
        np.savez(tmp_path / "bad.npz", **(good | {key: value}))
        with pytest.raises(UserError, match=message):
            datasets.load(section(path=str(tmp_path / "bad.npz")))


def test_the_built_in_data():
    mini = datasets.fmnist_mini()
    assert (mini.x_train.shape, mini.x_test.shape) == ((6000, 28, 28, 1), (1000, 28, 28, 1))
    assert np.bincount(mini.y_train).tolist() == [600] * 10
    assert np.bincount(mini.y_test).tolist() == [100] * 10
    assert mini.fingerprint == "d9a4c8ab28527d5fa341681d3c663951c76a2b25702a3a6dd4568193a987477c"


def test_synthetic_data_follow_from_their_seed():
    a, b, c = (datasets.synthetic(seed=seed) for seed in (1, 1, 2))
    assert (a.x_train == b.x_train).all()
    assert not (a.x_train == c.x_train).all()


def test_preprocessing_by_hand():
    pixels = np.array([[[[0, 51, 255]]]], np.uint8)
    assert datasets.preprocess(pixels, "unit").ravel().tolist() == pytest.approx([0, 0.2, 1])
    assert datasets.preprocess(pixels, "raw").ravel().tolist() == [0, 51, 255]
    vgg = datasets.preprocess(pixels, "vgg16").ravel()
    assert vgg.tolist() == pytest.approx([255 - 103.939, 51 - 116.779, -123.68])
    assert datasets.preprocess(np.float32([[0.5]]), "unit").tolist() == [[0.5]]
    with pytest.raises(UserError, match="three colour channels"):
        datasets.preprocess(pixels[..., :1], "vgg16")


def test_vgg16_preprocessing_is_keras_own():
    from feddual._lazy import keras

    expected = keras.applications.vgg16.preprocess_input(COLOUR["x_test"].astype(np.float32))
    np.testing.assert_allclose(datasets.preprocess(COLOUR["x_test"], "vgg16"), expected, rtol=1e-6, atol=1e-4)


def test_padded_images_are_grey_in_a_black_margin():
    images = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28, 1)
    padded = datasets._as_colour(images)
    assert padded.shape == (2, 32, 32, 3)
    for channel in range(3):
        np.testing.assert_array_equal(padded[:, 2:30, 2:30, channel], images[..., 0])
    assert padded[:, :2].max() == padded[:, :, -2:].max() == 0

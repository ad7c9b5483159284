"""Every test sees an empty cache and no data folder, so none depends on what a machine happens to hold."""

import os
import tempfile

import pytest

os.environ["FEDDUAL_CACHE"] = tempfile.mkdtemp(prefix="feddual-test-cache-")
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="feddual-test-keras-")
os.environ["MPLBACKEND"] = "agg"
os.environ.pop("FEDDUAL_DATA", None)


# What `make test-fast` leaves out: files whose tests train or compute for long.
HEAVY = ("tests/golden",)


def pytest_collection_modifyitems(items):
    """Mark the tests of heavy files."""
    for item in items:
        if item.nodeid.startswith(HEAVY):
            item.add_marker("heavy")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """TensorFlow takes its thread count before it first runs, whichever test that is in."""
    from feddual import devices

    devices.configure()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

"""Every test sees an empty cache and no data folder, so none depends on what a machine happens to hold."""

import os
import tempfile

import pytest

os.environ["FEDDUAL_CACHE"] = tempfile.mkdtemp(prefix="feddual-test-cache-")
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="feddual-test-keras-")
os.environ["MPLBACKEND"] = "agg"
os.environ.pop("FEDDUAL_DATA", None)


# What `make test-fast` leaves out: files whose tests train or compute for long.
HEAVY = (
    "tests/golden",
    "tests/test_extending.py",
    "tests/test_help.py",
    "tests/test_wheel.py",
    "tests/feddual/algorithms",
    "tests/feddual/cli/test_quickstart.py",
    "tests/feddual/executors",
    "tests/feddual/experiment/test_plugins.py",
    "tests/feddual/studies",
    "tests/feddual/training/test_local.py",
    "tests/feddual/training/test_resume.py",
    "tests/diagnostics/commands",
    "tests/diagnostics/curvature/test_operator.py",
    "tests/diagnostics/curvature/test_spectrum.py",
    "tests/diagnostics/flatness",
    "tests/diagnostics/forgetting/test_model.py",
    "tests/diagnostics/forgetting/test_probe.py",
    "tests/diagnostics/gradients",
    "tests/diagnostics/surfaces/test_directions.py::test_a_direction_of_unnamed_layers_is_the_same_in_another_process",
    "tests/diagnostics/probes",
    "tests/diagnostics/merging",
    "tests/diagnostics/trajectories",
    "tests/diagnostics/surfaces/test_fast.py",
    "tests/diagnostics/surfaces/test_kinds_of_model.py",
    "tests/diagnostics/surfaces/test_losses.py",
    "tests/diagnostics/surfaces/test_measure.py",
    "tests/figures/report",
    "tests/figures/test_merging_charts.py",
    "tests/figures/test_figures.py",
)


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

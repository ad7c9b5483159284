"""Is this machine ready? Versions, devices, data, write access, and advice."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from feddual import __version__, devices
from feddual.data import datasets
from feddual.errors import UserError
from feddual.models import VGG16_FILE

CPU_ONLY = "runs on the CPU; for NVIDIA: pip install 'feddual[gpu]'"


def data_status(data_dir: str | None = None) -> list[dict[str, str]]:
    """Each data set: its state and where it lies."""
    rows = [{"name": "fmnist-mini", "state": "ready", "where": "inside the package"}]
    for name in sorted(datasets.FINGERPRINTS):
        place = datasets.locate(name, data_dir)
        state, where = "absent", f"feddual data fetch {name}, or feddual data import"
        if place is not None:
            try:
                datasets.DATASETS[name](data_dir)
                state, where = "verified", str(place)
            except UserError as error:
                state, where = "damaged", str(error)
        rows.append({"name": name, "state": state, "where": where})
    weights = datasets.find_file(VGG16_FILE, data_dir)
    advice = f"downloaded by Keras when needed, or put {VGG16_FILE} into FEDDUAL_DATA"
    rows.append({"name": "vgg16 weights", "state": "found" if weights else "absent", "where": str(weights or advice)})
    return rows


def examine(data_dir: str | None = None) -> list[dict[str, Any]]:
    """All checks: `ok` is True, False (must be mended) or None (worth knowing)."""
    checks = [_check("feddual", True, __version__), _python(), *_tensorflow()]
    for row in data_status(data_dir):
        ok = {"damaged": False, "absent": None}.get(row["state"], True)
        found, advice = (f"{row['state']}: {row['where']}", "") if ok else (row["state"], row["where"])
        checks.append(_check(f"data {row['name']}", ok, found, advice))
    return [*checks, _writable("current folder", Path.cwd()), _writable("cache folder", datasets.cache_dir())]


def _check(name: str, ok: bool | None, found: str, advice: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "advice": advice}


def _python() -> dict[str, Any]:
    ok = sys.version_info >= (3, 11)
    return _check("Python", ok, sys.version.split()[0], "" if ok else "use 3.11 or newer")


def _tensorflow() -> list[dict[str, Any]]:
    try:
        found = devices.environment()
    except ImportError as error:
        return [_check("TensorFlow", False, str(error), "pip install feddual")]
    gpus = ", ".join(found["gpus"])
    return [
        _check("TensorFlow", True, f"{found['tensorflow']} with Keras {found['keras']}, numpy {found['numpy']}"),
        _check("CPU", True, f"{found['cpu']}, {found['cores']} cores, {' '.join(found['cpu_features'])}"),
        _check("GPU", bool(gpus) or None, gpus or "none seen", "" if gpus else CPU_ONLY),
    ]


def _writable(name: str, folder: Path) -> dict[str, Any]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        return _check(name, True, f"{folder}, writable")
    except OSError as error:
        here = os.fspath(folder) == os.getcwd()
        advice = "go to a folder you may write to" if here else "change its permissions, or set FEDDUAL_CACHE"
        return _check(name, False, f"{folder}: {error.strerror}", advice)

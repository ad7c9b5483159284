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


def data_status(data_dir: str | None = None) -> list[dict[str, str]]:
    """Each data set: its state and where it lies."""
    rows = [{"name": "fmnist-mini", "state": "ready", "where": "inside the package"}]
    for name in sorted(datasets.FINGERPRINTS):
        place = datasets.locate(name, data_dir)
        if place is None:
            rows.append(
                {"name": name, "state": "absent", "where": f"feddual data fetch {name}, or feddual data import"}
            )
            continue
        try:
            datasets.DATASETS[name](data_dir)
            rows.append({"name": name, "state": "verified", "where": str(place)})
        except UserError as error:
            rows.append({"name": name, "state": "damaged", "where": str(error)})
    weights = datasets.find_file(VGG16_FILE, data_dir)
    rows.append(
        {
            "name": "vgg16 weights",
            "state": "found" if weights else "absent",
            "where": str(weights)
            if weights
            else f"downloaded by Keras when needed, or put {VGG16_FILE} into FEDDUAL_DATA",
        }
    )
    return rows


def examine(data_dir: str | None = None) -> list[dict[str, Any]]:
    """All checks: `ok` is True, False (must be mended) or None (worth knowing)."""
    checks = [_check("feddual", True, __version__), _python(), *_tensorflow()]
    for row in data_status(data_dir):
        ok = {"damaged": False, "absent": None}.get(row["state"], True)
        checks.append(
            _check(
                f"data {row['name']}",
                ok,
                f"{row['state']}: {row['where']}" if ok else row["state"],
                "" if ok else row["where"],
            )
        )
    checks.append(_writable("current folder", Path.cwd()))
    checks.append(_writable("cache folder", datasets.cache_dir()))
    return checks


def _check(name: str, ok: bool | None, found: str, advice: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "advice": advice}


def _python() -> dict[str, Any]:
    version = sys.version.split()[0]
    return _check(
        "Python", sys.version_info >= (3, 11), version, "" if sys.version_info >= (3, 11) else "use 3.11 or newer"
    )


def _tensorflow() -> list[dict[str, Any]]:
    try:
        found = devices.environment()
    except ImportError as error:
        return [_check("TensorFlow", False, str(error), "pip install feddual")]
    gpus = ", ".join(found["gpus"])
    return [
        _check("TensorFlow", True, f"{found['tensorflow']} with Keras {found['keras']}, numpy {found['numpy']}"),
        _check("CPU", True, f"{found['cpu']}, {found['cores']} cores, {' '.join(found['cpu_features'])}"),
        _check(
            "GPU",
            True if gpus else None,
            gpus or "none seen",
            "" if gpus else "runs on the CPU; for NVIDIA: pip install 'feddual[gpu]'",
        ),
    ]


def _writable(name: str, folder: Path) -> dict[str, Any]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        return _check(name, True, f"{folder}, writable")
    except OSError as error:
        return _check(
            name,
            False,
            f"{folder}: {error.strerror}",
            "change its permissions, or set FEDDUAL_CACHE"
            if os.fspath(folder) != os.getcwd()
            else "go to a folder you may write to",
        )

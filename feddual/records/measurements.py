"""A measurement on disk that survives a kill: a manifest, chunks written whole or not at all, arrays at the end.

    manifest.json     what the numbers are of (identity), and the facts about them
    chunks/*.npy      sums of finished points; gone when the whole is done
    surface.npz       the arrays (spectrum.npz of a spectrum)

A folder is continued only by the same identity; anything else is refused and nothing in it is touched.
"""

import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from feddual.errors import UserError
from feddual.records.run_dir import RunDir, atomic_write, npz_arrays, npz_bytes
from feddual.records.slim import kept_surface

ARRAYS = "surface.npz"
MANIFEST = "manifest.json"


class Memory:
    """The same without a disk."""

    def __init__(self) -> None:
        self._chunks: dict[str, np.ndarray] = {}

    def read(self, name: str) -> np.ndarray | None:
        return self._chunks.get(name)

    def write(self, name: str, values: np.ndarray) -> None:
        self._chunks[name] = values

    def finish(self, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Nothing to write."""


class Folder:
    """One measurement's files."""

    def __init__(self, path: Path, arrays: str = ARRAYS):
        self.path, self._arrays = path, arrays
        self._begun: Mapping[str, Any] | None = None  # a manifest to be written with the first chunk

    def check(self, identity: Mapping[str, Any]) -> dict[str, Any] | None:
        """The manifest found here, if it has this identity; None if the folder is new.

        Raises:
            UserError: If the folder holds something else.
        """
        self._refuse_file()
        if not self.path.exists() or all(_passing(file.name) for file in self.path.iterdir()):
            return None
        manifest = read_manifest(self.path)
        asked = dict(identity)
        if (self.path / self._arrays).exists():  # no chunks are left to be put in order
            asked["order"] = manifest["identity"].get("order")
        refuse_other(self.path, "measurement", manifest["identity"], asked)
        return manifest

    def _refuse_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"out: {self.path} is a file; a folder is needed")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out."""
        self._refuse_file()
        created = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out: cannot write to {self.path} ({error.strerror})") from error
        lock = filelock.FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserError(f"out: {self.path} is being written by another process") from None
        try:
            yield
        finally:
            with suppress(OSError):  # gone before it is free, so that nobody's next lock is deleted
                (self.path / ".lock").unlink()
            lock.release()
            if created and not any(self.path.iterdir()):
                self.path.rmdir()

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """The manifest comes with the first chunk: what fails before that has left nothing behind."""
        self._begun = manifest

    def read(self, name: str) -> np.ndarray | None:
        """A finished chunk; a damaged one counts as not there."""
        return read_chunk(self.path, name)

    def write(self, name: str, values: np.ndarray) -> None:
        """A chunk, whole or not at all."""
        if self._begun is not None:
            RunDir(self.path).write_json(MANIFEST, self._begun)
            self._begun = None
        buffer = io.BytesIO()
        np.save(buffer, values)
        atomic_write(self.path / "chunks" / f"{name}.npy", buffer.getvalue())

    def finish(self, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays, then the manifest; the chunks are no longer needed."""
        atomic_write(self.path / self._arrays, npz_bytes(**arrays))
        RunDir(self.path).write_json(MANIFEST, manifest)
        shutil.rmtree(self.path / "chunks", ignore_errors=True)


def is_begun(path: Path) -> bool:
    """Whether there is a measurement in a folder, finished or not."""
    return (path / MANIFEST).is_file()


def read_chunk(path: Path, name: str) -> np.ndarray | None:
    """A chunk of a folder; None if it is not there or damaged."""
    try:
        return np.load(io.BytesIO((path / "chunks" / f"{name}.npy").read_bytes()))
    except (OSError, ValueError, EOFError):
        return None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder, or of a surface that a slim study keeps."""
    kept = kept_surface(path)
    if kept is not None:
        return kept["manifest"]
    with suppress(OSError, ValueError):
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and "identity" in manifest:
            return manifest
    raise UserError(f"{path}: not a surface (no readable {MANIFEST} in it)")


def read_arrays(path: Path, name: str = ARRAYS) -> dict[str, np.ndarray] | None:
    """The finished arrays of a folder, or of what a slim study keeps; None if they are not there yet."""
    kept = kept_surface(path)
    if kept is not None:
        return {key: array for key, array in kept.items() if key != "manifest"}
    try:
        return npz_arrays((path / name).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path / name}: damaged ({error})") from error


def refuse_other(path: Path, what: str, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise a UserError that says how the identity found in a folder differs from the one asked for, if it does."""
    asked = json.loads(json.dumps(asked))
    other = [key for key in {**found, **asked} if found.get(key) != asked.get(key)]
    differences = [f"  {key}: it has {_brief(found.get(key))}, asked for {_brief(asked.get(key))}" for key in other]
    if differences:
        lines = [f"out: {path} holds another {what}:", *differences, "Choose another folder; nothing was changed"]
        raise UserError("\n".join(lines))


def _passing(name: str) -> bool:
    """Whether a file is no result: a lock, or what a kill left half written."""
    return name == ".lock" or (name.startswith(".") and name.endswith(".partial"))


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:28]} … {text[-28:]}"

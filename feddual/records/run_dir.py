"""The run directory: what lies where in it. Needs numpy, PyYAML and the standard library.

    config.yaml  environment.json  partition.npz
    metrics.jsonl  clients.jsonl      a row per round, a row per client and round: only what config and seed determine
    timings.jsonl                     seconds and bytes of memory: what the machine determines
    checkpoints/round-00050.npz       weights, layout, server/<slot>, optimizer/<slot>, hashes of client states
    client_state/<client>-<hash>.npz  slots of a client, as a checkpoint refers to them
    probes/  surfaces/  sharpness/  barriers/  trajectories/      measurements
    events/                           TensorBoard

A file is written to a temporary name, synced and renamed. The .jsonl files grow by whole lines; a line cut short by a
kill is not read, and resuming cuts the files back to the checkpoint it starts from.
"""

import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from feddual.errors import UserError
from feddual.functional.layout import Layout
from feddual.records.summary import summarise

LOGS = ("metrics", "clients", "timings")
SHARPNESS = "sharpness.json"  # all of a measurement


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round."""

    round_index: int
    weights: np.ndarray
    layout: Layout
    server_slots: dict[str, np.ndarray]
    client_states: dict[int, str]  # client -> hash of its state
    optimizer_slots: dict[str, np.ndarray] = field(default_factory=dict)  # of the server's optimizer


class RunDir:
    """One run's files. `slim.SlimRun` has the same for reading, of a run whose directory is not kept."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    @property
    def lock_path(self) -> Path:
        return self.path / ".lock"

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").is_file()

    # --- facts about the run

    def create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".writable").touch()
            (self.path / ".writable").unlink()
        except OSError as error:
            raise UserError(f"--out: cannot write to {self.path} ({error.strerror}); choose another folder") from error

    def write_config(self, text: str) -> None:
        atomic_write(self.path / "config.yaml", text.encode())

    def read_config(self) -> dict[str, Any]:
        """The config, as it was written."""
        if not self.exists:
            raise UserError(f"{self.path}: not a run directory (no config.yaml in it)")
        path = self.path / "config.yaml"
        try:
            return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise UserError(f"{path}: not valid YAML; mend it or remove the folder") from error

    def write_json(self, name: str, value: Any) -> None:
        atomic_write(self.path / name, (json.dumps(value, indent=1) + "\n").encode())

    def read_json(self, name: str) -> Any:
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def environment(self) -> dict[str, Any] | None:
        """Versions and hardware, if they were recorded."""
        return self.read_json("environment.json")

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        self.write_json("environment.json", environment)

    def write_partition(
        self, indices: np.ndarray, offsets: np.ndarray, histograms: np.ndarray, fingerprint: str
    ) -> None:
        arrays = {"indices": indices, "offsets": offsets, "histograms": histograms, "fingerprint": fingerprint}
        atomic_write(self.path / "partition.npz", npz_bytes(**arrays))

    @property
    def has_partition(self) -> bool:
        """Whether it was recorded which client holds what."""
        return (self.path / "partition.npz").is_file()

    def read_partition(self) -> dict[str, np.ndarray]:
        """`histograms`, `fingerprint`, and where they are kept `indices` and `offsets`.

        Raises:
            FileNotFoundError: If it was not recorded.
        """
        return npz_arrays((self.path / "partition.npz").read_bytes())

    # --- rows

    def append(self, log: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a log, in one write."""
        data = _lines(rows).encode()
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / f"{log}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def rows(self, log: str) -> list[dict[str, Any]]:
        """The whole rows of a log."""
        path = self.path / f"{log}.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n")]

    def logs(self) -> list[str]:
        """The logs that are here."""
        return sorted(path.stem for path in self.path.glob("*.jsonl"))

    def rounds_done(self) -> int:
        """How many rounds were recorded, from the number of lines: cheap enough to ask often."""
        log = self.path / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.is_file() else 0

    def write_rows(self, log: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace a log."""
        atomic_write(self.path / f"{log}.jsonl", _lines(rows).encode())

    def cut_back(self, round_index: int, logs: Sequence[str] = LOGS) -> None:
        """Forget all rows after a round."""
        for log in logs:
            if (self.path / f"{log}.jsonl").is_file():
                self.write_rows(log, [row for row in self.rows(log) if row["round"] <= round_index])

    def summary(self, target: float | None = None) -> dict[str, Any]:
        """The run in a line; see `summarise`."""
        return summarise(self.read_config(), self.rows("metrics"), self.rows("timings"), target)

    # --- state

    def checkpoint_path(self, round_index: int) -> Path:
        return self.path / "checkpoints" / f"round-{round_index:05d}.npz"

    def checkpoint_rounds(self) -> list[int]:
        """The rounds that have a checkpoint, ascending."""
        found = (self.path / "checkpoints").glob("round-*.npz")
        return sorted(int(path.stem.removeprefix("round-")) for path in found)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        arrays: dict[str, Any] = {
            "weights": checkpoint.weights,
            "layout": np.array(json.dumps(checkpoint.layout.to_list())),
            "client_states": np.array(json.dumps(dict(sorted(checkpoint.client_states.items())))),
        }
        for owner, slots in (("server", checkpoint.server_slots), ("optimizer", checkpoint.optimizer_slots)):
            arrays |= {f"{owner}/{name}": value for name, value in slots.items()}
        atomic_write(self.checkpoint_path(checkpoint.round_index), npz_bytes(**arrays))

    def read_checkpoint(self, round_index: int) -> Checkpoint:
        """A round's checkpoint.

        Raises:
            UserError: If it is missing or damaged, or if a client state it needs is.
        """
        path = self.checkpoint_path(round_index)
        try:
            values = npz_arrays(path.read_bytes())
            layout = Layout.from_list(json.loads(str(values.pop("layout"))))
            states = {int(client): digest for client, digest in json.loads(str(values.pop("client_states"))).items()}
            weights = values.pop("weights")
        except FileNotFoundError as error:
            there = ", ".join(map(str, self.checkpoint_rounds())) or "none"
            raise UserError(f"{self.path}: no checkpoint of round {round_index}; there are: {there}") from error
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(f"{path}: damaged checkpoint ({error})") from error
        for client, digest in states.items():
            if not self.client_state_path(client, digest).is_file():
                raise UserError(f"{path}: the state of client {client} it refers to is missing")
        slots: dict[str, dict[str, np.ndarray]] = {"server": {}, "optimizer": {}}
        for name, value in values.items():
            owner, _, slot = name.partition("/")
            slots[owner][slot] = value
        return Checkpoint(round_index, weights, layout, slots["server"], states, slots["optimizer"])

    def last_good_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; damaged ones are named in a warning.

        Raises:
            UserError: If there are checkpoints and none of them is good.
        """
        rounds = self.checkpoint_rounds()
        for round_index in reversed(rounds):
            try:
                return self.read_checkpoint(round_index)
            except UserError as error:
                warnings.warn(f"{error}; trying the one before it", stacklevel=2)
        if rounds:
            said = f"{self.path}: none of its {len(rounds)} checkpoints can be read"
            raise UserError(f"{said}; start anew in another folder, or restore one of them")
        return None

    def probe_path(self, name: str) -> Path:
        """Where a probe of this name records."""
        return self.path / "probes" / name

    def surface_path(self, name: str) -> Path:
        """Where the surface of this name is."""
        return self.path / "surfaces" / name

    def sharpness_path(self, name: str) -> Path:
        """Where the measured sharpness of this name is."""
        return self.path / "sharpness" / name

    def sharpness(self) -> list[Path]:
        """Where its measured sharpness is, by name."""
        return sorted(path.parent for path in self.path.glob(f"sharpness/*/{SHARPNESS}"))

    def spectrum_path(self, name: str) -> Path:
        """Where the curvature's spectrum of this name is."""
        return self.path / "spectra" / name

    def barriers_path(self, name: str) -> Path:
        """Where the barriers of this name are."""
        return self.path / "barriers" / name

    def barriers(self) -> list[Path]:
        """Where its measured barriers are, by name."""
        return sorted(path.parent for path in self.path.glob("barriers/*/barriers.json"))

    def trajectory_path(self, name: str) -> Path:
        """Where the trajectory of this name is."""
        return self.path / "trajectories" / name

    def has_probe(self, name: str) -> bool:
        """Whether a probe of this name recorded something."""
        return self.probe_path(name).is_dir()

    def surfaces(self) -> list[Path]:
        """Where its surfaces are, finished or not, by name; `measurements` reads them."""
        return sorted(path.parent for path in self.path.glob("surfaces/*/manifest.json"))

    def client_state_path(self, client: int, digest: str) -> Path:
        return self.path / "client_state" / f"{client:05d}-{digest}.npz"

    def write_client_state(self, client: int, slots: Mapping[str, np.ndarray]) -> str:
        """Save a client's slots and return their hash."""
        data = npz_bytes(**slots)
        digest = hashlib.sha256(data).hexdigest()[:32]
        if not self.client_state_path(client, digest).is_file():
            atomic_write(self.client_state_path(client, digest), data)
        return digest

    def read_client_state(self, client: int, digest: str) -> dict[str, np.ndarray]:
        path = self.client_state_path(client, digest)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest()[:32] != digest:
            raise UserError(f"{path}: damaged client state (its content is not what its name says)")
        return npz_arrays(data)

    def prune(self, keep: int | str, rounds: Iterable[int]) -> None:
        """Remove checkpoints beyond the newest `keep`, except `rounds`, and client states nothing refers to."""
        there = self.checkpoint_rounds()
        wanted = set(there if keep == "all" else there[-int(keep) :]) | set(rounds)
        for round_index in set(there) - wanted:
            self.checkpoint_path(round_index).unlink()
        states = self.path / "client_state"
        if states.is_dir():
            needed: set[str] = set()
            for round_index in sorted(set(there) & wanted):
                with suppress(UserError):  # a damaged one: resuming will name it
                    refers = self.read_checkpoint(round_index).client_states
                    needed |= {self.client_state_path(client, digest).name for client, digest in refers.items()}
            for path in states.iterdir():
                if path.name not in needed:
                    path.unlink()


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def npz_bytes(compression: int = zipfile.ZIP_STORED, /, **arrays: Any) -> bytes:
    """Arrays as the bytes of an .npz file: the same arrays give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), compression)
    return buffer.getvalue()


def npz_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays in the bytes of an .npz file."""
    with np.load(io.BytesIO(data)) as archive:
        return {name: archive[name] for name in archive.files}


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and make it survive a power cut."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"out: cannot write to {path} ({error.strerror}); choose another folder") from error

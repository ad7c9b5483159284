"""A study's folder: what lies where in it.

study.yaml            the study
<cell>/               a run directory each; or all of them in Parquet files, see `slim`
tuning/<cell>/        runs that only choose settings
tuned.yaml            what they chose
failed/<cell>.txt     the errors of cells that failed
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from feddual.errors import UserError
from feddual.records.run_dir import RunDir, atomic_write
from feddual.records.slim import open_run, open_slim, slim_runs

TUNING = "tuning/"  # before the names of runs that only choose settings
FILES = ("study.yaml", "tuned.yaml")


def is_trial(path: Path) -> bool:
    """Whether a path within a study is that of a run which only chose settings."""
    return "tuning" in path.parts[:-1]


class StudyDir:
    """The files of a study."""

    def __init__(self, path: Path):
        self.path = path
        self.file, self._choices = (path / name for name in FILES)

    @property
    def exists(self) -> bool:
        """Whether a study was started here."""
        return self.file.is_file()

    def read(self) -> dict[str, Any]:
        """The study as it was written; empty where there is none."""
        return _mapping(self.file)

    def write(self, study: Mapping[str, Any]) -> None:
        _write(self.file, study)

    def run(self, cell: str) -> RunDir:
        """A cell's run; it may not exist."""
        return open_run(self.path / cell)

    def run_names(self) -> list[str]:
        """The cells that have a run, trials aside."""
        there = {path.name for path in self.path.iterdir() if open_run(path).exists}
        return sorted(there | set(open_slim(self.path).runs))

    def choices(self) -> dict[str, Any]:
        """The settings that trials chose, by row."""
        return _mapping(self._choices)

    def write_choices(self, choices: Mapping[str, Any]) -> None:
        _write(self._choices, choices)

    def trials(self) -> dict[str, dict[str, Any]]:
        """What was collected of trials whose runs need not be here any more, by their cells' names."""
        return {TUNING + name: facts for name, facts in open_slim(self.path).trials.items()}

    def failures(self) -> dict[str, str]:
        """The errors of the cells that failed."""
        found = sorted(self.path.glob("failed/*.txt"))
        return {path.stem: path.read_text(encoding="utf-8").strip() for path in found}

    def record_failure(self, cell: str, error: str | None) -> None:
        """Keep a cell's error; None says that it went well."""
        path = self.path / "failed" / f"{cell.replace('/', '-')}.txt"
        if error is not None:
            atomic_write(path, error.encode())
        else:
            path.unlink(missing_ok=True)


def all_runs(root: Path) -> list[RunDir]:
    """Every run under a folder, or the one at a path, whether in its directory or slim; sorted by path."""
    if not root.is_dir():
        return [run] if (run := open_run(root)).exists else []
    found: dict[Path, RunDir] = {run.path: run for run in slim_runs(root)}
    found |= {path.parent: open_run(path.parent) for path in root.rglob("config.yaml")}
    return [found[path] for path in sorted(found)]


def study_of(path: Path, root: Path) -> StudyDir | None:
    """The study to which what lies at a path belongs, looking no higher than a folder."""
    for folder in (path, *path.parents):
        if StudyDir(folder).exists:
            return StudyDir(folder)
        if folder == root:
            break
    return None


def all_choices(root: Path) -> dict[Path, StudyDir]:
    """The studies under a folder that chose settings, by the file that says so."""
    return {path: StudyDir(path.parent) for path in sorted(root.rglob(FILES[1]))}


def _mapping(path: Path) -> dict[str, Any]:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML; collect it again or remove it") from error


def _write(path: Path, values: Mapping[str, Any]) -> None:
    atomic_write(path, yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).encode())

"""Studies in a notebook: `feddual.run_study`, `feddual.open_study`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddual import display
from feddual.api import Folder, Overrides, Run
from feddual.cli.progress import StudyProgress
from feddual.errors import UserError
from feddual.records.study_dir import StudyDir
from feddual.studies import grid as studies

if TYPE_CHECKING:
    import pandas as pd


class StudyRuns:
    """The runs of a study on disk, finished or not."""

    def __init__(self, path: Folder):
        """Open a study.

        Args:
            path: Its folder.

        Raises:
            UserError: When there is no study there.
        """
        self.path = Path(path)
        self._files = StudyDir(self.path)
        if not self._files.exists:
            raise UserError(f"{self.path}: no study here (study.yaml is missing)")
        self.study = studies.load(self._files.file)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """The runs by row, one per draw and seed, in the study's order of rows."""
        found: dict[str, list[Run]] = {}
        for cell in self._cells:
            found.setdefault(studies.group(cell), []).append(Run(self.path / cell))
        return found

    @property
    def table(self) -> "pd.DataFrame":
        """A line per row: accuracy over the seeds, its standard deviation, the final round, rounds to the target."""
        import pandas as pd

        lines = studies.table(self._cells, self.path)
        return pd.DataFrame(lines).set_index("row") if lines else pd.DataFrame()

    @cached_property
    def _cells(self) -> list[str]:
        groups = dict.fromkeys(studies.group(cell.name) for cell in studies.cells(self.study))
        order = {name: place for place, name in enumerate(groups)}
        return sorted(self._files.run_names(), key=lambda cell: (order.get(studies.group(cell), len(order)), cell))

    def __repr__(self) -> str:
        return f"StudyRuns({str(self.path)!r}: {len(self._cells)} runs of {len(self.runs)} rows)"

    def _repr_html_(self) -> str:
        facts = {"runs": len(self._cells), "rows": len(self.runs)}
        table = self.table.to_html(float_format="{:.4g}".format) if self._cells else ""
        return display.facts(str(self.path), facts) + table


def run_study(
    source: str | Path | Mapping[str, Any], overrides: Overrides = None, *, algorithms: Sequence[str] = (),
    seeds: int | None = None, draws: studies.Draws | None = None, out: Folder | None = None,
    workers: int | None = None, executor: str = "processes", progress: bool = True,
) -> StudyRuns:  # fmt: skip
    """Run a grid of experiments; the same call goes on where it stopped.

    Args:
        source: A shipped study's name, a YAML file, or a mapping with the keys of one and a `name`.
        overrides: Dotted keys for all runs.
        algorithms: Only rows of these names or algorithms.
        seeds: Instead of the study's number.
        draws: Of the clients, instead of the study's: each with every seed, or "each" for one of its own.
        out: The study's folder; by default `runs/<study>`.
        workers: Runs at a time; by default one per core.
        executor: Who runs them.
        progress: Show a bar, or lines where there is no terminal.

    Returns:
        The study's runs.

    Raises:
        UserError: When a run failed; the others are finished.

    Example:
        >>> import tempfile, feddual
        >>> base = {"name": "tiny", "dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 1, "clients_per_round": 2}}
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/tiny.yaml", "w") as file:
        ...     _ = file.write(feddual.resolve(base).to_yaml())
        >>> study = {"name": "two", "experiments": [f"{folder}/tiny.yaml"],
        ...          "rows": {"fedavg": {}, "fedprox": {"algorithm.name": "fedprox"}}}
        >>> found = feddual.run_study(study, out=f"{folder}/study", executor="inline", progress=False)
        >>> list(found.table.index)
        ['fedavg', 'fedprox']
    """
    study = studies.load(source, seeds, draws)
    path = Path(out) if out is not None else Path("runs") / study.name
    runner = studies.Runner(study, path, workers, executor)
    runner.prepare()
    failures = []
    with StudyProgress(runner, enabled=progress) as shown:
        for cell, error in runner.run(studies.cells(study, algorithms), dict(overrides or {})):
            if error is not None:
                shown.ended(cell.name, error)
                failures.append(cell.name)
    if failures:
        raise UserError(f"{len(failures)} runs failed: {', '.join(failures)}; their errors are in {path / 'failed'}")
    return StudyRuns(path)


def open_study(path: Folder) -> StudyRuns:
    """The study in a folder.

    Args:
        path: The folder.

    Returns:
        Its runs, finished or not.
    """
    return StudyRuns(path)

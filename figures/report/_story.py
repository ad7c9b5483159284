"""What a report is about: the runs under a folder, together where only the seed differs, and what failed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from diagnostics.forgetting.probe import ForgettingProbe
from diagnostics.gradients.probe import GradientNormProbe
from diagnostics.surfaces.results import Surface, load
from feddual.errors import UserError
from feddual.records.identity import Replicate
from feddual.records.results import Recorded, RunSet
from feddual.records.slim import open_run
from feddual.records.study_dir import StudyDir, is_trial
from figures._results import grouped, is_iid, task
from figures.charts.style import COLOURS, DASHES, Look

UNITS = "rms"  # of gradient norms


@dataclass(frozen=True, eq=False)  # a key of dictionaries
class Group:
    """Runs of one experiment, which differ in their seed alone."""

    key: str
    look: Look
    runs: tuple[Recorded, ...]

    @property
    def label(self) -> str:
        return self.look.label

    @property
    def first(self) -> Recorded:
        return self.runs[0]

    @property
    def unfinished(self) -> list[Recorded]:
        return [run for run in self.runs if not run.summary["finished"]]

    @cached_property
    def gradient_norms(self) -> dict[Replicate, pd.DataFrame]:
        """What the probe recorded, by draw and seed: over √size, and a mean over each round's clients."""
        name = GradientNormProbe.name
        folders = {run.replicate: run.record.probe_path(name) for run in self.runs if run.record.has_probe(name)}
        frames = {which: GradientNormProbe.read(path, [UNITS]) for which, path in folders.items()}
        return {which: _over_clients(frame) for which, frame in frames.items() if len(frame)}

    @cached_property
    def forgetting(self) -> dict[Replicate, tuple[pd.DataFrame, pd.DataFrame]]:
        """What the probe `forgetting` recorded, by draw and seed: its table, and the bins of calibration."""
        name = ForgettingProbe.name
        folders = {run.replicate: run.record.probe_path(name) for run in self.runs if run.record.has_probe(name)}
        frames = {which: ForgettingProbe.read(path) for which, path in folders.items()}
        return {which: (one, ForgettingProbe.reliability(folders[which])) for which, one in frames.items() if len(one)}


@dataclass(frozen=True)
class Story:
    """Everything the page tells."""

    root: Path
    study: str | None
    groups: tuple[Group, ...]
    failed: dict[str, str]  # cell -> error
    trials: int  # runs that chose settings; they are not shown
    troubles: list[str] = field(default_factory=list)  # what could not be read

    @classmethod
    def read(cls, root: Path) -> "Story":
        """Read a folder.

        Raises:
            UserError: When it holds neither a run nor a study.
        """
        if not root.is_dir() and not open_run(root).exists:
            raise UserError(f"{root}: no such folder; name a run directory or a study's folder")
        every, files = RunSet(root).every, StudyDir(root)
        runs = [run for run in every if not is_trial(run.path.relative_to(root))]
        failed = files.failures()
        if not runs and not failed and not files.exists:
            raise UserError(f"{root}: neither a run directory (config.yaml) nor a folder with some in it")
        study = next((run.study for run in runs if run.study), None) if files.exists else None
        return cls(root, study, _groups(runs), failed, len(every) - len(runs))

    @property
    def title(self) -> str:
        if len(self.runs) == 1:
            return str(self.runs[0].config["name"])
        return self.study or self.root.resolve().name

    @property
    def lead(self) -> str:
        """What was run, in a sentence."""
        if not self.groups:
            return "Nothing has run yet."
        config = self.groups[0].first.config
        training, partition = config["training"], config["partition"]
        count = len(self.runs)
        what = f"{count} runs" if count > 1 else "One run"
        data = ", ".join(dict.fromkeys(run.dataset for run in self.runs))
        models = ", ".join(dict.fromkeys(str(run.config["model"]["name"]) for run in self.runs))
        chosen = f" {self.trials} runs that chose settings are not shown." if self.trials else ""
        return (
            f"{what} on {data} with {models}: {training['rounds']} rounds, {training['clients_per_round']} of "
            f"{partition.get('num_clients', '?')} clients a round, {training['local_epochs']} local epochs.{chosen}"
        )

    @property
    def runs(self) -> list[Recorded]:
        return [run for group in self.groups for run in group.runs]

    def base_of(self, group: Group) -> Group:
        """What a group is compared with: IID clients of the same data and model if there are some, else the first."""
        same = [other for other in self.groups if task(other.first) == task(group.first)]
        return next((other for other in same if is_iid(other.first)), same[0])

    @cached_property
    def surfaces(self) -> dict[str, dict[Replicate, dict[str, Surface]]]:
        """By group's key, repetition and the surface's folder; what cannot be read is said in `troubles`."""
        found: dict[str, dict[Replicate, dict[str, Surface]]] = {}
        for group in self.groups:
            for run in group.runs:
                loaded = dict(self._surfaces_of(run))
                if loaded:
                    found.setdefault(group.key, {})[run.replicate] = loaded
        return found

    def _surfaces_of(self, run: Recorded) -> Iterator[tuple[str, Surface]]:
        for folder in run.record.surfaces():
            try:
                surface = load(folder)
                if isinstance(surface, Surface):
                    surface.preview()  # enough points for a picture
                    yield folder.name, surface
            except (UserError, OSError, ValueError, KeyError) as error:
                self.troubles.append(f"{run.path.name}, surface {folder.name}: {error}")


def _over_clients(frame: pd.DataFrame) -> pd.DataFrame:
    """One row in place of those of all clients; rows about all clients stay."""
    of_clients = frame["client"].notna()
    mean = frame[of_clients].groupby(["round", "layer", "definition", "normalisation"], sort=False)["value"].mean()
    return pd.concat([mean.reset_index().assign(client=0), frame[~of_clients]], ignore_index=True)


def _groups(runs: list[Recorded]) -> tuple[Group, ...]:
    groups = []
    for number, (label, members) in enumerate(grouped(runs).items()):
        turn, place = divmod(number, len(COLOURS))
        look = Look(label, COLOURS[place], dash=DASHES[turn % len(DASHES)], width=1.6)
        groups.append(Group(f"g{number}", look, tuple(members)))
    return tuple(groups)

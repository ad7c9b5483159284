"""What a notebook uses: `feddual.run`, `feddual.rounds`, `feddual.open`, `feddual.compare`."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddual import display
from feddual.data.partition import Partition
from feddual.errors import UserError
from feddual.experiment import config as configs
from feddual.experiment.config import Source
from feddual.probes import Probe
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_run
from feddual.records.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

    from feddual.training.engine import RoundRecord

Folder = str | os.PathLike[str]
Overrides = Mapping[str, Any] | None
Probes = Sequence[Probe]


class Run:
    """A run on disk, finished or not. Tables are read when asked for, and again after `refresh()`."""

    def __init__(self, path: Folder):
        """Open a run.

        Args:
            path: Its directory, or where it stands in slim results.

        Raises:
            UserError: When there is no run there.
        """
        self._dir = open_run(path)
        self.path = Path(path)
        _ = self.config  # a folder without a run is refused now

    def refresh(self) -> "Run":
        """Forget what was read, so that the tables show the present state of a run under way; the run itself."""
        for name, kept in vars(Run).items():
            if isinstance(kept, cached_property):
                vars(self).pop(name, None)
        return self

    @cached_property
    def config(self) -> configs.Experiment:
        """The experiment, resolved: every setting with its value."""
        return configs.resolve(self._dir.read_config())

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """A row per round."""
        return self._frame("metrics")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """A row per client and round."""
        return self._frame("clients")

    @cached_property
    def timings(self) -> "pd.DataFrame":
        """Seconds and memory per round."""
        return self._frame("timings")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and hardware."""
        return self._dir.environment or {}

    @cached_property
    def partition(self) -> Partition:
        """Who holds which example."""
        arrays = self._dir.read_partition()
        if "indices" not in arrays:
            raise UserError(f"{self.path}: a slim copy of a run, without its clients' index lists; it has .histograms")
        return Partition(arrays["indices"], arrays["offsets"])

    @cached_property
    def histograms(self) -> np.ndarray:
        """Examples of each class at each client."""
        return self._dir.read_partition()["histograms"]

    @property
    def checkpoints(self) -> list[int]:
        """The rounds whose weights are kept."""
        return self._dir.checkpoint_rounds()

    @property
    def replayable(self) -> list[int]:
        """The rounds that `replay` can do again: the state before them is kept."""
        return sorted({1, *(index + 1 for index in self.checkpoints if index < self.config.training.rounds)})

    def check_replayable(self, *rounds: int) -> None:
        """Refuse rounds whose start was not kept.

        Args:
            *rounds: From 1.

        Raises:
            UserError: It names those that can be done again.
        """
        possible = self.replayable
        missing = sorted(set(rounds) - set(possible))
        if missing:
            raise UserError(
                f"{self.path}: the start of round {missing[0]} was not kept; rounds that can be measured: "
                f"{', '.join(map(str, possible))} (set checkpoint.rounds before a run to keep others)"
            )

    def summary(self, target: float | None = None) -> dict[str, Any]:
        """The run in a line: accuracy over the last 10 % of rounds, final, best, rounds and seconds to a target.

        Args:
            target: Accuracy to reach; by default the paper's for the data set.

        Returns:
            Numbers by name; None where there is nothing to tell.
        """
        return summarise(self.config.to_dict(), self._dir.rows("metrics"), self._dir.rows("timings"), target)

    def weights(self, round_index: int | None = None) -> dict[str, np.ndarray]:
        """The global weights after a round.

        Args:
            round_index: One of `checkpoints`; the last by default.

        Returns:
            Arrays by path, such as `dense1/kernel`.
        """
        checkpoint = self._checkpoint(round_index)
        return checkpoint.layout.split(checkpoint.weights)

    def model(self, round_index: int | None = None) -> Any:
        """The global model after a round.

        Args:
            round_index: One of `checkpoints`; the last by default.

        Returns:
            A keras.Model, from preprocessed images to logits.
        """
        from feddual import setting

        return setting.of(self.config, self._checkpoint(round_index)).network.model

    def probe(self, name: str) -> "pd.DataFrame":
        """What a probe recorded.

        Args:
            name: The probe's, such as `gradient-norms`.

        Returns:
            A tidy table.
        """
        from feddual import probes

        folder = self._dir.probe_path(name)
        if not self._dir.has_probe(name):
            raise UserError(f"{self.path}: no probe {name!r} recorded here")
        try:
            return probes.find(name).read(folder)
        except UserError:  # a user's own probe, whose class the name alone does not tell
            return probes.Probe.read(folder)

    def _checkpoint(self, round_index: int | None) -> Any:
        if round_index is not None:
            return self._dir.read_checkpoint(round_index)
        checkpoint = self._dir.last_good_checkpoint()
        if checkpoint is None:
            raise UserError(f"{self.path}: no checkpoint yet")
        return checkpoint

    def _frame(self, log: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(self._dir.rows(log))

    def __repr__(self) -> str:
        facts = self.summary()
        accuracy = "no accuracy yet" if facts["final"] is None else f"accuracy {facts['final']:.1%}"
        what = f"{facts['algorithm']} on {facts['dataset']}, round {facts['rounds']}, {accuracy}"
        return f"Run({str(self.path)!r}: {what})"

    def _repr_html_(self) -> str:
        cells = {key.replace("_", " "): value for key, value in self.summary().items()}
        curve = display.sparkline([row.get("accuracy") for row in self._dir.rows("metrics")])
        return display.facts(str(self.path), cells, curve)


def rounds(
    source: Source, overrides: Overrides = None, *, out: Folder | None = None, resume: bool = False, probes: Probes = ()
) -> "Iterator[RoundRecord]":
    """Run an experiment and yield each round as it ends.

    Args:
        source: A preset's name, a YAML file, a mapping or an experiment.
        overrides: Dotted keys, such as `{"training.rounds": 5}`.
        out: The run directory; by default `runs/<name>`, with a number when that is taken.
        resume: Continue a run in `out`.
        probes: Probe objects, besides those of the config.

    Yields:
        What happened in each round.

    Example:
        >>> import tempfile, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 2, "clients_per_round": 2}}
        >>> for record in feddual.rounds(tiny, out=f"{tempfile.mkdtemp()}/run"):
        ...     print(record.round_index, record.metrics["num_clients"])
        1 2
        2 2
    """
    from feddual.training import engine

    experiment = configs.resolve(source, overrides)
    yield from engine.rounds(experiment, out or free_directory(experiment.name), resume, probes)


def run(
    source: Source, overrides: Overrides = None, *, out: Folder | None = None, resume: bool = False,
    probes: Probes = (), progress: bool = True,
) -> Run:  # fmt: skip
    """Run an experiment to its end.

    Args:
        source: A preset's name, a YAML file, a mapping or an experiment.
        overrides: Dotted keys, such as `{"training.rounds": 5}`.
        out: The run directory; by default `runs/<name>`, with a number when that is taken.
        resume: Continue a run in `out`.
        probes: Probe objects, besides those of the config.
        progress: Show a bar, or lines where there is no terminal.

    Returns:
        The run.

    Example:
        >>> import tempfile, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 2, "clients_per_round": 2}}
        >>> run = feddual.run(tiny, out=f"{tempfile.mkdtemp()}/run", progress=False)
        >>> list(run.metrics["round"])
        [1, 2]
        >>> run.weights()["dense1/kernel"].shape
        (64, 4)
    """
    from feddual.cli.progress import RunProgress
    from feddual.training import engine

    experiment = configs.resolve(source, overrides)
    path = Path(out) if out is not None else free_directory(experiment.name)
    with RunProgress(experiment, enabled=progress) as shown:
        for record in engine.rounds(experiment, path, resume, probes, shown.preparing):
            shown.update(record)
    return Run(path)


def replay(item: Run | Folder, round_index: int, probes: Probes, out: Path) -> None:
    """Do one round of a run again, with probes: the same clients, batches and bits, from the checkpoint before it.

    Args:
        item: The run; nothing in it changes.
        round_index: The round; the checkpoint of the one before must be there, unless it is the first.
        probes: They measure this round.
        out: A folder that does not exist yet; the probes' files are in its `probes/`.
    """
    from feddual.training import engine

    run_ = item if isinstance(item, Run) else Run(item)
    experiment = configs.resolve(run_.config, {"training.rounds": round_index, "probes": [], "sinks": []})
    copy = RunDir(out)
    copy.create()
    if round_index > 1:
        checkpoint = run_._dir.read_checkpoint(round_index - 1)
        for client, digest in checkpoint.client_states.items():
            copy.write_client_state(client, RunDir(run_.path).read_client_state(client, digest))
        copy.write_checkpoint(checkpoint)
        copy.write_config(experiment.to_yaml())
    for _ in engine.rounds(experiment, out, resume=True, extra_probes=probes):
        pass


def open(path: Folder) -> Run:
    """The run in a directory.

    Args:
        path: The directory, or where a run stands in slim results.

    Returns:
        The run, finished or not.

    Example:
        >>> import tempfile, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 2, "clients_per_round": 2}}
        >>> made = feddual.run(tiny, out=f"{tempfile.mkdtemp()}/run", progress=False)
        >>> feddual.open(made.path).checkpoints
        [2]
    """
    return Run(path)


def compare(*runs: Run | Folder, target: float | None = None) -> "pd.DataFrame":
    """Runs side by side.

    Args:
        *runs: Runs, or their directories.
        target: Accuracy to reach; by default the paper's for the data set.

    Returns:
        A row per run: accuracy, final and best round, rounds and seconds to the target.

    Example:
        >>> import tempfile, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 2, "clients_per_round": 2}}
        >>> runs = [feddual.run(tiny, {"algorithm.name": name}, out=f"{tempfile.mkdtemp()}/{name}", progress=False)
        ...         for name in ("fedavg", "fedprox")]
        >>> list(feddual.compare(*runs)["algorithm"])
        ['fedavg', 'fedprox']
    """
    import pandas as pd

    opened = [item if isinstance(item, Run) else Run(item) for item in runs]
    return pd.DataFrame([{"run": str(item.path), **item.summary(target)} for item in opened]).set_index("run")


def free_directory(name: str) -> Path:
    """`runs/<name>`, or the first of `runs/<name>-2`, `-3`, ... that does not exist."""
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path("runs").joinpath, candidates) if not path.exists())

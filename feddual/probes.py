"""Probes: measurements during training that never change it.

A probe has a client half, which runs where the client trains and returns small arrays, and a host half, which only
records. Each sees a view with what it may know. Which rounds it measures follows from its config alone, so a resumed
run measures the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.records.run_dir import RunDir

if TYPE_CHECKING:
    import pandas as pd

    from feddual.algorithms._base import ClientResult, Trained
    from feddual.data.federation import Federation
    from feddual.experiment.config import Experiment
    from feddual.functional.layout import Layout

LOG = "rounds"  # rounds.jsonl, where a probe's rows go unless it says otherwise


@dataclass(frozen=True)
class Schedule:
    """The rounds a probe measures: every n-th, a list, or about `log_spaced` rounds spread over the logarithm."""

    every: int = 1
    rounds: tuple[int, ...] = ()
    log_spaced: int = 0

    def __post_init__(self) -> None:
        if self.every < 1 or self.log_spaced < 0 or any(index < 1 for index in self.rounds):
            got = f"every={self.every}, log_spaced={self.log_spaced}, rounds={list(self.rounds)}"
            raise UserError(f"probes: every must be at least 1, log_spaced at least 0 and rounds at least 1, got {got}")

    def due(self, round_index: int, num_rounds: int) -> bool:
        """Whether round `round_index` (from 1) of `num_rounds` is measured."""
        if self.rounds:
            return round_index in self.rounds
        if self.log_spaced:
            return round_index in np.unique(np.geomspace(1, num_rounds, self.log_spaced).round().astype(int))
        return round_index % self.every == 0


@dataclass(frozen=True)
class View:
    """What both halves of a probe may know of the round and of the network."""

    _bench: Any  # this process's workbench: the network and the data
    experiment: "Experiment"  # the settings; at a client without what concerns the host alone (name, probes, sinks)
    round_index: int  # from 1
    num_rounds: int

    @property
    def layout(self) -> "Layout":
        """Which part of a weight vector is which variable."""
        return self._bench.network.layout

    @property
    def test_labels(self) -> np.ndarray:
        """The labels of the server's test data (of held-out training data, where the run tests on that)."""
        return self._bench.evaluator.labels

    def test_logits(self, weights: np.ndarray) -> np.ndarray:
        """The network's answers to the server's test data.

        Args:
            weights: A weight vector, (layout.size,).

        Returns:
            Logits, (examples, classes).
        """
        return self._bench.evaluator.logits(weights)

    def test(self, count: int) -> tuple[Any, np.ndarray]:
        """Some of the server's test examples, the same ones every time.

        Args:
            count: How many, at most.

        Returns:
            Inputs as the network takes them, and labels.
        """
        return self.test_at(np.random.default_rng(0).permutation(len(self.test_labels))[:count])

    def test_at(self, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        """The server's test examples at some positions.

        Args:
            rows: Positions in `test_labels`.

        Returns:
            Inputs as the network takes them, and labels.
        """
        from feddual._lazy import tf

        return tf.gather(self._bench.evaluator.inputs, rows), self.test_labels[rows]

    def outputs(self, weights: np.ndarray, inputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """What the network says of some inputs, in inference mode.

        Args:
            weights: A weight vector, (layout.size,).
            inputs: As the network takes them.

        Returns:
            The last layer's input, (examples, width), and the logits, (examples, classes).
        """
        found: tuple[np.ndarray, np.ndarray] = self._bench.outputs(weights, inputs)
        return found

    def activations(self, weights: np.ndarray, inputs: Any) -> dict[str, np.ndarray]:
        """The output of each layer that has trained weights.

        Args:
            weights: A weight vector, (layout.size,).
            inputs: As the network takes them.

        Returns:
            Arrays (examples, values) by the layer's name.
        """
        return self._bench.activations(weights, inputs)


@dataclass(frozen=True)
class ClientView(View):
    """What `client_measure` may look at, after a client has trained."""

    client_id: int
    global_weights: np.ndarray  # what the server sent, (layout.size,)
    trained: "Trained"  # `.weights` after training, `.steps`, `.gradient_sum`, ...
    x: Any  # the client's inputs as the network takes them
    y: np.ndarray  # and labels

    @property
    def learning_rate(self) -> float:
        """Of the client's optimizer."""
        return self.experiment.training.learning_rate

    def gradient(self, weights: np.ndarray, rows: Any = None) -> np.ndarray:
        """The gradient of the mean cross-entropy over the client's data, without dropout.

        Args:
            weights: Where, a weight vector.
            rows: Positions in the client's data; all of it by default.

        Returns:
            The gradient, (layout.num_trainable,).
        """
        from feddual._lazy import tf

        x, y = (self.x, self.y) if rows is None else (tf.gather(self.x, rows), self.y[rows])
        return self._bench.gradient(weights, x, y)


@dataclass(frozen=True)
class RoundView(View):
    """What the host half may look at: the round, its weights, and the folder it records in."""

    folder: Path  # probes/<name>/ of the run
    previous: np.ndarray  # the global weights before the round
    weights: np.ndarray  # and after it

    @property
    def run_folder(self) -> Path:
        """The run directory."""
        return self.folder.parents[1]

    @property
    def sizes(self) -> np.ndarray:
        """How many examples each client holds."""
        return self.federation.partition.sizes

    @property
    def federation(self) -> "Federation":
        """All data, and who holds which example."""
        return self._bench.federation

    @property
    def model(self) -> Any:
        """The Keras model, from preprocessed images to logits. It is shared: give it no other weights."""
        return self._bench.network.model

    def gradient(self, weights: np.ndarray, inputs: Any, labels: np.ndarray) -> np.ndarray:
        """The gradient of the mean cross-entropy over given examples.

        Args:
            weights: Where, a weight vector.
            inputs: As the network takes them.
            labels: Of the same examples.

        Returns:
            The gradient, (layout.num_trainable,).
        """
        return self._bench.gradient(weights, inputs, labels)

    def append(self, rows: Sequence[Mapping[str, Any]], log: str = LOG) -> None:
        """Add rows to a log in the probe's folder.

        Args:
            rows: Each needs a key `round`; those that tell nothing beside round and client are left out.
            log: The file's name without `.jsonl`.
        """
        told = [row for row in rows if row.keys() - {"round", "client"}]
        if told:
            RunDir(self.folder).append(log, [{key: _plain(value) for key, value in row.items()} for row in told])

    def cut_back(self, log: str = LOG) -> None:
        """Forget the rows of rounds after this one, which a resumed run does again.

        Args:
            log: The file's name without `.jsonl`.
        """
        RunDir(self.folder).cut_back(self.round_index, [log])


class Probe:
    """The base of all probes: measures nothing, and records a row for each client that has something to tell.

    Constructor keywords are the probe's keys in the config. An instance travels to the workers, so it holds settings
    only; what it records lives in files under `probes/<name>/` of the run.

    Example:
        >>> import numpy as np
        >>> from feddual import Probe
        >>> class Moved(Probe):
        ...     name = "moved"
        ...
        ...     def client_measure(self, view):
        ...         return {"norm": float(np.linalg.norm(view.trained.weights - view.global_weights))}
        >>> Moved(every=5).schedule.due(10, num_rounds=20)
        True
    """

    name = "probe"
    # Whether the local loop adds up the squared norms of its steps' gradients: "" for no, or over "layers" (those
    # whose variables lie together in the vector, in order) or "variables".
    step_norms: Literal["", "layers", "variables"] = ""

    def __init__(self, every: int = 1, rounds: Sequence[int] = (), log_spaced: int = 0):
        """Choose the rounds to measure.

        Args:
            every: Each n-th round.
            rounds: These rounds instead.
            log_spaced: About so many rounds instead, spread over the logarithm.
        """
        self.schedule = Schedule(every, tuple(rounds), log_spaced)

    def client_measure(self, view: ClientView) -> dict[str, Any]:
        """Runs in the worker after a client has trained.

        Args:
            view: The client's data and weights, before and after.

        Returns:
            Arrays and numbers by name, which travel with the client's result.
        """
        return {}

    def start(self, view: RoundView) -> None:
        """Runs on the host before the first round, and after a resume: forget what lies after `view.round_index`.

        Args:
            view: The last round done, 0 for none.
        """
        view.cut_back()

    def accumulate(self, acc: Any, result: "ClientResult", weights: np.ndarray, share: float) -> Any:
        """Runs on the host for each client's finite result, in client order, with None at first.

        For quantities of the whole round that need vectors: what is needed of them stays in `acc`, the rest goes.

        Args:
            acc: What the last call returned.
            result: The client's result, `result.probes[name]` what `client_measure` returned.
            weights: The global weights the client began with.
            share: The client's weight in the average, before it is normalised.

        Returns:
            Whatever `record` needs of the clients so far.
        """
        return None

    def record(self, view: RoundView, measured: Mapping[int, dict[str, Any]], acc: Any) -> None:
        """Runs on the host after a measured round.

        Args:
            view: The round, its weights and the folder to record in.
            measured: What `client_measure` returned, by client.
            acc: What `accumulate` returned for the last client.
        """
        view.append([{"round": view.round_index, "client": client, **found} for client, found in measured.items()])

    @classmethod
    def read(cls, folder: Path) -> "pd.DataFrame":
        """What was recorded.

        Args:
            folder: `probes/<name>/` of a run.

        Returns:
            All rows in one table.
        """
        import pandas as pd

        recorded = RunDir(folder)
        if not recorded.logs():
            raise UserError(f"{folder}: nothing recorded here")
        return pd.concat([pd.DataFrame(recorded.rows(log)) for log in recorded.logs()], ignore_index=True)


def _plain(value: Any) -> Any:
    """Numbers and lists of numpy's as JSON takes them."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def find(name: str) -> type[Probe]:
    """The class of a probe: one of the diagnostics package or of an installed one, or `module:Class`."""
    return plugins.find("probes", name, "probes")


def create(settings: Mapping[str, Any]) -> Probe:
    """The probe of a config entry such as `{name: gradient-norms, every: 5}`."""
    parameters = dict(settings)
    name = parameters.pop("name")
    try:
        return find(name)(**parameters)
    except TypeError as error:
        raise UserError(f"probes: {name!r} does not take {sorted(parameters)}: {error}") from error


def parse(text: str) -> dict[str, Any]:
    """A probe from the command line: `NAME[@key=value[,key=value]]`, lists joined by `+`."""
    import yaml

    name, _, settings = text.partition("@")
    parsed: dict[str, Any] = {"name": name}
    for item in filter(None, settings.split(",")):
        key, sign, value = item.partition("=")
        if not sign:
            raise UserError(f"--probe {text!r}: expected NAME@key=value, got {item!r}")
        values = [yaml.safe_load(part) for part in value.split("+")]
        parsed[key] = values if len(values) > 1 or key == "rounds" else values[0]
    return parsed

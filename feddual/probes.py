"""Probes: measurements during training that never change it.

A probe has a client half, which runs where the client trains and returns small arrays, and a host half, which only
records. Which rounds it measures follows from its config alone, so a resumed run measures the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddual.errors import UserError
from feddual.experiment.plugins import load_attribute
from feddual.records.run_dir import RunDir

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Schedule:
    """The rounds a probe measures: every n-th, a list, or about `log_spaced` rounds spread over the logarithm."""

    every: int = 1
    rounds: tuple[int, ...] = ()
    log_spaced: int = 0

    def __post_init__(self) -> None:
        if self.every < 1 or self.log_spaced < 0 or any(index < 1 for index in self.rounds):
            raise UserError(
                f"probes: every must be at least 1, log_spaced at least 0 and rounds at least 1, got "
                f"every={self.every}, log_spaced={self.log_spaced}, rounds={list(self.rounds)}"
            )

    def due(self, round_index: int, num_rounds: int) -> bool:
        """Whether round `round_index` (from 1) of `num_rounds` is measured."""
        if self.rounds:
            return round_index in self.rounds
        if self.log_spaced:
            return round_index in np.unique(np.geomspace(1, num_rounds, self.log_spaced).round().astype(int))
        return round_index % self.every == 0


class Probe:
    """The base of all probes: measures nothing.

    Constructor keywords are the probe's keys in the config. An instance travels to the workers, so it holds settings
    only; what it records lives in files under `probes/<name>/` of the run.
    """

    name = "probe"
    # Whether the local loop adds up the squared norms of its steps' gradients: "" for no, or over "layers" (those
    # whose variables lie together in the vector, in order) or "variables".
    step_norms = ""

    def __init__(self, every: int = 1, rounds: list[int] | tuple[int, ...] = (), log_spaced: int = 0):
        self.schedule = Schedule(every, tuple(rounds), log_spaced)

    def client_measure(self, ctx: Any) -> dict[str, Any]:
        """Runs in the worker after a client has trained: arrays and numbers, returned with the client's result."""
        return {}

    def start(self, host: Any) -> None:
        """Runs on the host before the first round, and after a resume: forget what lies after `host.round_index`."""

    def accumulate(self, acc: Any, result: Any, weights: np.ndarray, share: float) -> Any:
        """Runs on the host for each client's finite result, in client order, with None at first.

        For quantities of the whole round that need vectors: what is needed of them stays in `acc`, the rest goes.

        Args:
            acc: What the last call returned.
            result: The client's result, `result.probes[name]` what `client_measure` returned.
            weights: The global weights the client began with.
            share: The client's weight in the average, before it is normalised.
        """
        return None

    def record(self, host: Any, measured: Mapping[int, dict[str, Any]], acc: Any) -> None:
        """Runs on the host after a measured round, with what each client returned and what was accumulated."""

    @classmethod
    def read(cls, folder: Path) -> "pd.DataFrame":
        """What was recorded in `probes/<name>/` of a run."""
        import pandas as pd

        recorded = RunDir(folder)
        if not recorded.logs():
            raise UserError(f"{folder}: nothing recorded here")
        return pd.concat([pd.DataFrame(recorded.rows(log)) for log in recorded.logs()], ignore_index=True)


def find(name: str) -> type[Probe]:
    """The class of a probe: one of the diagnostics package, or `package.module:Class`."""
    path = name if ":" in name else f"diagnostics.probes.{name.replace('-', '_')}:PROBE"
    found: type[Probe] = load_attribute(path, f"probes: {name!r}")
    return found


def create(settings: Mapping[str, Any]) -> Probe:
    """The probe of a config entry such as `{name: gradient-norms, every: 5}`."""
    parameters = dict(settings)
    name = parameters.pop("name")
    try:
        probe: Probe = find(name)(**parameters)
    except TypeError as error:
        raise UserError(f"probes: {name!r} does not take {sorted(parameters)}: {error}") from error
    return probe


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

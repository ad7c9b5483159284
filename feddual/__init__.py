"""FedDUAL: federated training under data heterogeneity, and diagnostics of what happens inside.

Everything is imported when it is first used, so that `import feddual` is instant.

    feddual.run, rounds, open, compare, replay      run experiments, and look at what came out
    feddual.run_study, open_study                   grids of them
    feddual.resolve                                 an experiment with every setting filled in
    feddual.Algorithm, Probe, Dataset, Partition    what an algorithm, a probe, ... of your own is made of
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from feddual.algorithms._base import (
        Algorithm,
        Batch,
        ClientContext,
        ClientResult,
        Outputs,
        ServerState,
        Slots,
        Trained,
    )
    from feddual.api import Run, compare, open, replay, rounds, run
    from feddual.barycenter import Barycenter
    from feddual.data.datasets import Dataset
    from feddual.data.partition import Partition
    from feddual.errors import UserError
    from feddual.executors import Executor
    from feddual.experiment.config import Experiment, resolve
    from feddual.experiment.schema import Section
    from feddual.functional.layout import Layout
    from feddual.probes import ClientView, Probe, RoundView
    from feddual.records.sinks import Sink
    from feddual.studies.runs import StudyRuns, open_study, run_study
    from feddual.training.engine import RoundRecord

_HOMES = {
    "algorithms._base": "Algorithm Batch ClientContext ClientResult Outputs ServerState Slots Trained",
    "api": "Run compare open replay rounds run", "studies.runs": "StudyRuns open_study run_study",
    "data.datasets": "Dataset", "data.partition": "Partition", "barycenter": "Barycenter",
    "experiment.config": "Experiment resolve", "experiment.schema": "Section", "functional.layout": "Layout",
    "probes": "ClientView Probe RoundView", "training.engine": "RoundRecord",
    "errors": "UserError", "executors": "Executor", "records.sinks": "Sink",
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [
    "Algorithm", "Barycenter", "Batch", "ClientContext", "ClientResult", "ClientView", "Dataset", "Executor",
    "Experiment", "Layout", "Outputs", "Partition", "Probe", "RoundRecord", "RoundView", "Run", "Section",
    "ServerState", "Sink", "Slots", "StudyRuns", "Trained", "UserError", "compare", "open", "open_study", "replay",
    "resolve", "rounds", "run", "run_study",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"feddual.{_HOME[name]}"), name)
    raise AttributeError(f"module 'feddual' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""FedDUAL: federated training under data heterogeneity, and diagnostics of what happens inside."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Run",
    "StudyRuns",
    "UserError",
    "compare",
    "open",
    "open_study",
    "replay",
    "resolve",
    "rounds",
    "run",
    "run_study",
]

if TYPE_CHECKING:
    from feddual.api import Run, compare, open, replay, rounds, run
    from feddual.errors import UserError
    from feddual.experiment.config import resolve
    from feddual.studies.runs import StudyRuns, open_study, run_study

_HOMES = {
    "resolve": "feddual.experiment.config",
    "UserError": "feddual.errors",
    **dict.fromkeys(("StudyRuns", "open_study", "run_study"), "feddual.studies.runs"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'feddual' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "feddual.api")), name)

"""Look inside trained networks and federated runs: loss surfaces, per-layer gradient norms, comparisons with intervals.

Everything is imported when it is first used, so that `import diagnostics` is instant.
"""

import importlib
from typing import Any

_HOMES = {
    "LossSurfaceProbe": "diagnostics.probes.loss_surface",
    "Space": "diagnostics.directions",
    "Direction": "diagnostics.directions",
    "register_filter_axes": "diagnostics.directions",
    "Objective": "diagnostics.objective",
    "Surface": "diagnostics.results",
    "Lines": "diagnostics.results",
    "loss_surface": "diagnostics.surface",
    "loss_lines": "diagnostics.surface",
    "compare_models": "diagnostics.compare",
    "GradientNormProbe": "diagnostics.probes.gradient_norms",
    "GradientNormCallback": "diagnostics.callback",
    "gradient_norms": "diagnostics.offline",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'diagnostics' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")


def __dir__() -> list[str]:
    return sorted(_HOMES)

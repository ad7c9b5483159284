"""Look inside trained networks and federated runs: loss surfaces, per-layer gradient norms, comparisons with intervals.

Everything is imported when it is first used, so that `import diagnostics` is instant.
"""

import importlib
from typing import Any

_HOMES = {
    "LossSurfaceProbe": "diagnostics.probes.loss_surface",
    "Space": "diagnostics.surfaces.directions",
    "Direction": "diagnostics.surfaces.directions",
    "register_filter_axes": "diagnostics.surfaces.directions",
    "Surface": "diagnostics.surfaces.results",
    "Lines": "diagnostics.surfaces.results",
    "Landscape": "diagnostics.landscape",
    "loss_surface": "diagnostics.landscape",
    "loss_lines": "diagnostics.landscape",
    "compare_models": "diagnostics.flatness.compare",
    "GradientNormProbe": "diagnostics.gradients.probe",
    "GradientNormCallback": "diagnostics.gradients.callback",
    "gradient_norms": "diagnostics.gradients.replay",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'diagnostics' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")


def __dir__() -> list[str]:
    return sorted(_HOMES)

"""Look inside trained networks and federated runs: loss surfaces, per-layer gradient norms, comparisons with intervals.

Everything is imported when it is first used, so that `import diagnostics` is instant.
"""

import importlib
from collections.abc import Callable
from typing import Any


def _doors(package: str, homes: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, from the names that each of its modules gives."""
    known = {name: module for module, names in homes.items() for name in names.split()}

    def found(name: str) -> Any:
        if name in known:
            return getattr(importlib.import_module(f"{package}.{known[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(known))}")

    return found, lambda: sorted(known)


_HOMES = {
    "landscape": "Landscape loss_surface loss_lines",
    "curvature.operator": "Curvature",
    "curvature.spectrum": "Spectrum",
    "surfaces.directions": "Direction Space register_filter_axes",
    "surfaces.results": "Surface Lines",
    "flatness.clients": "flatness_discrepancy",
    "flatness.compare": "compare_models",
    "flatness.rescaling": "rescaling_audit",
    "flatness.sharpness_comparison": "compare_sharpness",
    "flatness.sharpness_result": "Sharpness",
    "forgetting.model": "calibration neural_collapse",
    "forgetting.probe": "ForgettingProbe",
    "gradients.probe": "GradientNormProbe",
    "gradients.callback": "GradientNormCallback",
    "gradients.replay": "gradient_norms",
    "merging.clients": "ClientModels client_models",
    "merging.barriers": "barriers",
    "merging.planes": "ClientPlanes client_planes",
    "merging.result": "Barriers compare_barriers",
    "trajectories.trajectory": "Trajectory trajectory",
    "probes.loss_surface": "LossSurfaceProbe",
    "probes.sharpness": "SharpnessProbe",
}
__getattr__, __dir__ = _doors(__name__, _HOMES)

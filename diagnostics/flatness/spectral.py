"""Sharpness as numbers of the Hessian's spectrum.

    kappa_fn_trace     tr(S H S), S = ‖w_f‖ / √n_f of each filter, by Hutch++: what kappa_fn estimates from directions
    lambda_fn          λ_max(S H S)
    lambda_1           λ_max(H); lambda_ratio, λ_1 / λ_5
    trace              tr H; trace_per_weight, tr H / n

Without a scale every trainable weight counts, biases too.
"""

import numpy as np

from diagnostics.curvature.lanczos import eigenvalues
from diagnostics.curvature.operator import Curvature
from diagnostics.curvature.traces import Trace, hutchpp
from diagnostics.flatness.around import PRODUCT, Around
from diagnostics.flatness.readings import Found, Settings
from diagnostics.surfaces.directions import Scale

UNSURE = 0.01  # a residual beyond this share of the eigenvalue makes it a lower bound
TOP = 5  # eigenvalues


def lambda_fn(around: Around, settings: Settings) -> Found:
    """The largest eigenvalue on the scale of the filters."""
    found = Found()
    values, residuals, passes = _largest(around, "filter", 1, settings)
    _add(found, "lambda_fn", float(values[0]), passes, bound=bool(residuals[0] > UNSURE * abs(values[0])))
    return found


def lambda_1(around: Around, settings: Settings) -> Found:
    """The largest eigenvalue, and over the fifth."""
    found = Found()
    values, residuals, passes = _largest(around, "none", TOP, settings)
    unsure = residuals > UNSURE * np.abs(values)
    _add(found, "lambda_1", float(values[0]), passes, bound=bool(unsure[0]))
    if len(values) == TOP and values[-1] > 0 and not unsure.any():
        _add(found, "lambda_ratio", float(values[0] / values[-1]), 0.0)
    return found


def kappa_fn_trace(around: Around, settings: Settings) -> Found:
    """The trace on the scale of the filters."""
    estimate, _, passes = _trace(around, "filter", settings)
    found = Found()
    _add_trace(found, "kappa_fn_trace", estimate, 1.0, passes)
    return found


def trace(around: Around, settings: Settings) -> Found:
    """The trace, and per weight."""
    estimate, size, passes = _trace(around, "none", settings)
    found = Found()
    _add_trace(found, "trace", estimate, 1.0, passes)
    _add_trace(found, "trace_per_weight", estimate, 1 / size, 0.0)
    return found


def _curvature(around: Around, scale: Scale) -> Curvature:
    include = () if scale == "none" else around.include
    return Curvature(around.landscape, "hessian", scale, around.layers, include)


def _largest(around: Around, scale: Scale, count: int, settings: Settings) -> tuple[np.ndarray, np.ndarray, float]:
    """The largest eigenvalues, the norms of their residuals, and the passes they took."""
    curvature = _curvature(around, scale)
    ends = eigenvalues(
        curvature.matvec, curvature.size, count, settings.lanczos, settings.seed, most=settings.lanczos
    )  # fmt: skip
    around.passes += PRODUCT * curvature.products
    return ends.largest, ends.largest_residuals, float(PRODUCT * curvature.products)


def _trace(around: Around, scale: Scale, settings: Settings) -> tuple[Trace, int, float]:
    curvature = _curvature(around, scale)
    estimate, _ = hutchpp(curvature.matvec, curvature.size, settings.products, settings.seed)
    around.passes += PRODUCT * curvature.products
    return estimate, curvature.size, float(PRODUCT * curvature.products)


def _add(found: Found, measure: str, value: float, passes: float, bound: bool = False) -> None:
    found.add(measure, np.nan, value, passes)
    found.table[-1]["censored"] = int(bound)
    found.values[-1]["censored"] = bound


def _add_trace(found: Found, measure: str, estimate: Trace, times: float, passes: float) -> None:
    found.add(measure, np.nan, times * estimate.value, passes, se=times * estimate.error)
    _, low, high = estimate.interval().floats()
    found.table[-1] |= {"low": times * low, "high": times * high, "draws": max(len(estimate.samples), 1)}

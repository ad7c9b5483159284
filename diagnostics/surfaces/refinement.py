"""Two-level surfaces: all points on few samples, all samples only where it matters.

It matters around the centre, where curvature is read off, and where the loss is so near a contour level that its
standard error could put the point on the other side.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from figures.charts.scale import contour_levels

DISC = 0.25  # of the range: this far around the centre everything is refined
SIGMAS = 2.0


def refine(plan: Any, coarse: Any) -> tuple[Any, Callable[[dict[str, np.ndarray]], dict[str, Any]]]:
    """The plan with the points of the second level, and a function to the facts once they are computed."""
    levels = contour_levels([coarse.loss])
    distance = np.abs(coarse.loss[..., None] - levels).min(-1)
    a = coarse.alphas / np.abs(coarse.alphas).max()
    b = coarse.betas / np.abs(coarse.betas).max()
    near = np.hypot(a[None, :], b[:, None]) <= DISC
    wanted = near | ~(distance > SIGMAS * coarse.sem)  # a NaN is refined too
    plan = replace(plan, refined=tuple(np.flatnonzero(wanted).tolist()))

    def facts(found: dict[str, np.ndarray]) -> dict[str, Any]:
        fine = plan.result(found, coarse.meta)
        before = plan.result({name: v for name, v in found.items() if not name.startswith("fine")}, coarse.meta)
        iy, ix = fine.centre
        shift = fine.loss[iy, ix] - before.loss[iy, ix]
        error = (before.loss + shift - fine.loss)[wanted]
        error = error[np.isfinite(error)]
        errors = {"rms_error": float(np.sqrt(np.mean(error**2))), "largest_error": float(np.abs(error).max())}
        about = {"share_refined": float(wanted.mean()), "levels": levels.tolist(), **errors}
        return {"refined": list(plan.refined), "two_level": about}

    return plan, facts

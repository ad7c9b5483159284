"""Sharpness as the loss at the end of a step uphill, or of the worst step within some bound.

    sam                  L(w + e) - L(w), e = rho g / ‖g‖
                         (Foret et al., "Sharpness-Aware Minimization", ICLR 2021)
    asam, asam_filter    the same with e = rho T² g / ‖T g‖, T = |w|, or of each filter ‖w_f‖ / √n_f
                         (Kwon et al., "ASAM", ICML 2021; their filter-wise T is ‖w_f‖)
    worst_adaptive_l2    max of L(w + delta) - L(w) over ‖delta / |w|‖_2 <= rho; `_linf` over |delta_i| <= rho |w_i|
                         (Andriushchenko et al., ICML 2023), by projected ascent
    keskar               100 (max L(w + y) - L(w)) / (1 + L(w)) over |y_i| <= epsilon (|w_i| + 1), by L-BFGS-B
                         (Keskar et al., "On Large-Batch Training for Deep Learning", ICLR 2017)

All are one-sided. Off a stationary point, as federated models are, the gradient alone makes most of them: beside each
stands that first-order part, and the symmetric rise ½ [L(w + d) + L(w - d)] - L(w) along the step d that was found.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from diagnostics.flatness.around import GRADIENT, Around
from diagnostics.flatness.readings import Found, Settings
from diagnostics.surfaces.directions import Scale

Shift = Callable[[np.ndarray], np.ndarray]


def sam(around: Around, settings: Settings) -> Found:
    """One step along the gradient, whatever the scale of the weights."""
    return _one_step(around, "sam", "none", settings.sam)


def asam(around: Around, settings: Settings) -> Found:
    """One step on the scale of the weights."""
    return _one_step(around, "asam", "abs", settings.asam)


def asam_filter(around: Around, settings: Settings) -> Found:
    """One step on the scale of the filters."""
    return _one_step(around, "asam_filter", "filter", settings.asam)


def _one_step(around: Around, name: str, scale: Scale, rhos: tuple[float, ...]) -> Found:
    places, scaling = around.scale(scale)
    loss, slope = around.centre[0], scaling * around.gradient[places]
    length, found = float(np.linalg.norm(slope)), Found()
    for rho in rhos:
        before = around.passes
        step = rho * scaling * slope / length if length else np.zeros(len(places))
        up, down = (around.loss(places, sign * step) - loss for sign in (1, -1))
        found.add(
            name, rho, up, around.passes - before, symmetric=(up + down) / 2, first_order=rho * length
        )  # fmt: skip
    return found


# --- the worst step ---------------------------------------------------------------------------------------------------


class Ball(NamedTuple):
    """All steps of length at most 1."""

    project: Shift  # what is nearest in it
    furthest: Shift  # its point furthest along a slope
    dual: Callable[[np.ndarray], float]  # how far that is


BALLS = {
    "l2": Ball(
        lambda v: np.asarray(v / max(float(np.linalg.norm(v)), 1.0)),
        lambda g: np.asarray(g / np.linalg.norm(g)),
        lambda g: float(np.linalg.norm(g)),
    ),
    "linf": Ball(lambda v: np.clip(v, -1, 1), lambda g: np.sign(g), lambda g: float(np.abs(g).sum())),
}


def worst_adaptive_l2(around: Around, settings: Settings) -> Found:
    """Within a ball on the scale of the weights."""
    return _worst(around, "l2", settings.worst_l2, settings)


def worst_adaptive_linf(around: Around, settings: Settings) -> Found:
    """Within a box on the scale of the weights."""
    return _worst(around, "linf", settings.worst_linf, settings)


def _worst(around: Around, ball: str, rhos: tuple[float, ...], settings: Settings) -> Found:
    """Up a ladder of radii; each begins where the one before it ended, stretched."""
    places, scaling = around.scale("abs")
    before = around.passes
    start, slope = around.slope(places, np.zeros(len(places)), around.few)
    found, place = Found(), np.zeros(len(places))
    for rho in sorted(rhos):
        place, top = _climb(around, place, places, rho * scaling, BALLS[ball], settings)
        down = around.loss(places, -rho * scaling * place, around.few)
        found.add(
            f"worst_adaptive_{ball}", rho, top - start, around.passes - before,
            symmetric=(top + down) / 2 - start, first_order=rho * BALLS[ball].dual(scaling * slope),
        )  # fmt: skip
        before = around.passes
    return found


def _climb(
    around: Around,
    place: np.ndarray,
    places: np.ndarray,
    scaling: np.ndarray,
    ball: Ball,
    settings: Settings,
) -> tuple[np.ndarray, float]:
    """The highest loss in the unit ball of scaled steps, and where: uphill from the best place yet.

    A step leads twice the radius uphill and is projected back, which in a convex loss never leads down; where it does,
    steps become half as long.
    """

    def look(at: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = around.slope(places, scaling * at, around.few)
        return loss, scaling * gradient

    top, slope = look(place)
    stride = 2.0
    for number in range(settings.steps):
        if not slope.any():  # a stationary point: any direction is as good
            slope = np.random.default_rng(settings.seed + number).standard_normal(len(place))
        tried = ball.project(place + stride * ball.furthest(slope))
        loss, there = look(tried)
        if loss > top:
            place, top, slope = tried, loss, there
        else:
            stride /= 2
    return place, top


def keskar(around: Around, settings: Settings) -> Found:
    """The highest loss in a box around each weight."""
    from scipy.optimize import Bounds, minimize

    places, _ = around.scale("none")
    start, slope = around.slope(places, np.zeros(len(places)), around.few)
    found, spent = Found(), GRADIENT * around.few / around.count
    for epsilon in settings.keskar:
        before = around.passes - spent
        half, spent = epsilon * (np.abs(around.landscape.weights[places].astype(np.float64)) + 1), 0.0

        def downhill(y: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = around.slope(places, y, around.few)
            return -loss, -gradient

        limits = {"maxiter": settings.iterations, "maxfun": 2 * settings.iterations}
        best = minimize(
            downhill, np.zeros(len(places)), jac=True, method="L-BFGS-B", bounds=Bounds(-half, half), options=limits
        )
        down = around.loss(places, -best.x, around.few)
        share = 100 / (1 + start)
        found.add(
            "keskar", epsilon, share * (-best.fun - start), around.passes - before,
            symmetric=share * ((-best.fun + down) / 2 - start), first_order=share * float(half @ np.abs(slope)),
        )  # fmt: skip
    return found

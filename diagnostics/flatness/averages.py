"""Sharpness as a mean over random steps.

kappa_fn           E[d' H d] over filter-normalised directions d, by second differences: tr(S H S) of their scale S
r_tau              the largest r up to which Delta(r) stays at or below tau, of each direction
average_adaptive   E[(L(w + delta) + L(w - delta)) / 2] - L(w), delta ~ N(0, rho² w²)
(Andriushchenko et al., "A Modern Look at the Relationship between Sharpness and
Generalization", ICML 2023; they take one side only)
magnitude_sigma    the largest sigma with E[accuracy(w + u)] >= accuracy(w) - 0.1, u ~ N(0, sigma² w² + epsilon²)
(Jiang et al., "Fantastic Generalization Measures and Where to Find Them", ICLR 2020)
"""

from collections.abc import Callable, Sequence

import numpy as np

from diagnostics.flatness import measures
from diagnostics.flatness.around import Around
from diagnostics.flatness.readings import Found, Settings
from diagnostics.statistics import over_runs
from diagnostics.surfaces.directions import Norm
from diagnostics.surfaces.results import Lines
from feddual.errors import UserError

RISE = "rise"  # delta(r) of single directions, of which the profile is made
EPSILON = 1e-3  # of magnitude_sigma: what a weight of zero moves by
FIRST, DOUBLINGS, HALVINGS = 0.1, 6, 7  # of sigma: where the search begins, how far it goes, how fine it ends


def kappa_fn(around: Around, settings: Settings) -> Found:
    """The mean curvature along filter-normalised directions."""
    found = Found()
    lines = _lines(around, settings, "filter", [measures.STEP])
    draws = [row["kappa"] for row in measures.quantities(lines, settings.tau)]
    found.add_mean("kappa_fn", measures.STEP, draws, lines.loss.size)
    return found


def profile(around: Around, settings: Settings) -> Found:
    """The radial profile, and the flatness radius."""
    found = Found()
    lines = _lines(around, settings, "filter", [radius for radius in measures.RADII if radius > 0])
    rows = measures.quantities(lines, settings.tau)
    censored = [row[measures.CENSORED] for row in rows]
    found.add_mean("r_tau", settings.tau, [row["r_tau"] for row in rows], lines.loss.size, censored)
    for radius, rises in zip(measures.RADII, measures.profiles(lines).T, strict=True):
        found.draws(RISE, radius, rises)
        ends = dict(zip(("mean", "low", "high"), over_runs(rises).floats(), strict=True))
        spread = dict(zip(("p10", "median", "p90"), np.quantile(rises, [0.1, 0.5, 0.9]).tolist(), strict=True))
        found.profile.append({"radius": radius, **ends, **spread})
    return found


def average_adaptive(around: Around, settings: Settings) -> Found:
    """The mean rise under noise on the scale of each weight."""
    found = Found()
    lines = _lines(around, settings, "abs", settings.average)
    for rho in settings.average:
        rises = [measures.symmetric_rise((lines.alphas, losses), rho) for losses in lines.loss]
        passes = len(rises) * (2.0 + 1 / len(settings.average))
        found.add_mean("average_adaptive", rho, rises, passes)
    return found


def _lines(around: Around, settings: Settings, norm: Norm, steps: Sequence[float]) -> Lines:
    alphas = sorted({0.0, *steps, *(-step for step in steps)})
    landscape = around.landscape
    if landscape.seed != settings.seed:
        raise UserError(f"seed: directions come from the landscape's, {landscape.seed}, got {settings.seed}")
    found = landscape.lines(
        count=settings.directions, alphas=alphas, norm=norm, layers=around.layers, include=around.include,
        progress=False,
    )  # fmt: skip
    around.passes += found.loss.size
    return found


def magnitude_sigma(around: Around, settings: Settings) -> Found:
    """By bisection, the noise being the same for every sigma; its standard error is a jackknife over the draws."""
    right = around.centre[1]
    if np.isnan(right):
        raise UserError("sharpness: magnitude_sigma needs classes, to count right answers")
    before = around.passes
    drops: dict[float, np.ndarray] = {0.0: np.zeros(settings.directions)}
    noise = [_noise(around, settings.seed, draw) for draw in range(settings.directions)]
    places, sizes = around.scale("abs")

    def drop(sigma: float) -> float:
        scale = np.sqrt((sigma * sizes) ** 2 + EPSILON**2)
        drops[sigma] = np.array([right - around.accuracy(places, scale * one) for one in noise])
        return float(drops[sigma].mean())

    low, high = _bracket(drop, settings.drop)
    for _ in range(HALVINGS if high else 0):
        middle = float(np.sqrt(low * high)) if low else high / 2
        low, high = (middle, high) if drop(middle) <= settings.drop else (low, middle)
    sigmas = np.array(sorted(drops))
    curves = np.array([drops[sigma] for sigma in sigmas])  # (sigmas, draws)

    def crossing(columns: np.ndarray) -> float:
        return measures.flatness_radius(sigmas, curves[:, columns].mean(1), settings.drop)

    every = np.arange(settings.directions)
    without = [crossing(np.delete(every, draw)) for draw in every] if len(every) > 1 else [np.nan]
    spread = np.var(without) * (len(every) - 1)
    found = Found()
    value, censored = crossing(every), not high
    se = np.nan if censored else float(np.sqrt(spread))
    found.add("magnitude_sigma", settings.drop, value, around.passes - before, se=se)
    found.table[-1] |= {"draws": len(every), "censored": int(censored)}
    found.values[-1]["censored"] = censored
    return found


def _bracket(drop: Callable[[float], float], most: float) -> tuple[float, float]:
    """A sigma at which accuracy holds and one at which it does not; 0 for the second where it always holds."""
    sigma = FIRST
    if drop(sigma) <= most:
        for _ in range(DOUBLINGS):
            if drop(2 * sigma) > most:
                return sigma, 2 * sigma
            sigma *= 2
        return sigma, 0.0
    for _ in range(DOUBLINGS):
        if drop(sigma / 2) <= most:
            return sigma / 2, sigma
        sigma /= 2
    return 0.0, sigma


def _noise(around: Around, seed: int, draw: int) -> np.ndarray:
    """Standard normal, with the streams of the random directions."""
    space = around.landscape.space
    return np.concatenate([
        space.noise(entry, seed, draw).ravel() for entry, _ in space.moved(around.layers, around.include)
    ])  # fmt: skip

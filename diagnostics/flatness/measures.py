"""How flat: one formula for each name, on lines and on planes.

Of every direction d (filter-normalised, |d| as the filters) these are read off the line through the model:

    delta(r)      (L(+r d) + L(-r d)) / 2 - L(0): symmetric, since a federated model is no stationary point
    kappa         2 delta(h) / h², the second difference: the curvature a random surface shows; its mean is tr(S H S)
    rise_1, ...   delta at r = 1, 0.5, 0.25
    r_tau         the largest r up to which delta stays at or below tau; censored where it does so up to the end of the
                  line, since the last radius is then a lower bound

A plane's two axes are two lines: its numbers are the means over both, h is the step of its grid, and a radius between
its points is read off straight lines. A small number is a flat model, not a better one.
"""

from typing import Any

import numpy as np

from diagnostics.surfaces.results import Lines, Surface

STEP = 0.05  # h on lines: far above rounding, well below where the surface bends
RADII = tuple(np.round(np.linspace(0, 1, 11), 10).tolist())
RISES = (1.0, 0.5, 0.25)
TAU = 0.1
QUANTITIES = ("kappa", "r_tau", *(f"rise_{r:g}" for r in RISES))
CENSORED = "r_tau_censored"  # whether a radius is a lower bound
Line = tuple[np.ndarray, np.ndarray]  # places along a direction, in order, and the losses there


def symmetric_rise(line: Line, radius: float) -> float:
    """delta(r) of a line; NaN beyond its end."""
    places, losses = line
    up, down, zero = (_at(places, losses, where) for where in (radius, -radius, 0.0))
    return (up + down) / 2 - zero


def _at(places: np.ndarray, losses: np.ndarray, where: float) -> float:
    nearest = int(np.abs(places - where).argmin())
    if np.isclose(places[nearest], where, rtol=0, atol=1e-9):
        return float(losses[nearest])
    return float(np.interp(where, places, losses, np.nan, np.nan))


def flatness_radius(radii: np.ndarray, rises: np.ndarray, tau: float = TAU) -> float:
    """The largest r up to which delta <= tau, between radii by straight lines; the last radius if it never exceeds."""
    beyond = np.flatnonzero(~(rises <= tau))
    if not beyond.size:
        return float(radii[-1])
    first = int(beyond[0])
    if first == 0:
        return 0.0
    low, high = rises[first - 1], rises[first]
    share = (tau - low) / (high - low) if np.isfinite(high) else 0.0
    return float(radii[first - 1] + share * (radii[first] - radii[first - 1]))


def profiles(measured: Lines | Surface) -> np.ndarray:
    """Delta at RADII, of each direction of lines or of a plane's pair, shape (directions, radii)."""
    rows = [[symmetric_rise(line, radius) for radius in RADII] for line in _lines(measured)]
    return np.array(rows if isinstance(measured, Lines) else [np.mean(rows, axis=0)])


def steps(measured: Lines | Surface) -> list[float]:
    """The h of each line's curvature: STEP, or the spacing of a plane's axis, where there are no other points."""
    lines = _lines(measured)
    return [STEP if isinstance(measured, Lines) else float(places[places > 0].min()) for places, _ in lines]


def quantities(measured: Lines | Surface, tau: float = TAU) -> list[dict[str, Any]]:
    """QUANTITIES and CENSORED of each direction of lines, or of the one pair of a plane."""
    rows = []
    for line, step in zip(_lines(measured), steps(measured), strict=True):
        radii = np.array([radius for radius in RADII if radius <= line[0].max() + 1e-9])
        rises = np.array([symmetric_rise(line, radius) for radius in radii])
        rows.append(
            {"kappa": 2 * symmetric_rise(line, step) / step**2, "r_tau": flatness_radius(radii, rises, tau)}
            | {f"rise_{radius:g}": symmetric_rise(line, radius) for radius in RISES}
            | {CENSORED: bool((rises <= tau).all())}
        )
    if isinstance(measured, Lines):
        return rows
    means = {name: float(np.mean([row[name] for row in rows])) for name in QUANTITIES}
    return [means | {CENSORED: any(row[CENSORED] for row in rows)}]


def _lines(measured: Lines | Surface) -> list[Line]:
    if isinstance(measured, Surface):
        iy, ix = measured.centre
        losses = measured.loss.astype(float)  # slim copies are in single precision
        return [(measured.alphas, losses[iy]), (measured.betas, losses[:, ix])]
    return [(measured.alphas, losses) for losses in measured.loss]

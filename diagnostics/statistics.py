"""Every interval and spread of the project: over training seeds, directions, partitions.

Training seeds are the independent units: rounds, clients and directions of one run share its luck. Means over seeds
have Student's t; where directions are shared by seeds, too, `crossed` counts both. One run has no interval: it is NaN.
Positive quantities with multiplicative spread (ratios, radii, curvatures, losses) are averaged as logarithms, since
three skewed values have no interval that covers. `benchmarks/coverage.py` simulates how often each one covers.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from feddual.errors import UserError
from feddual.records.identity import Replicate

LEVEL = 0.95
METHOD = "t over seeds, crossed with directions"  # part of what identifies recorded intervals
NO_INTERVAL = "one seed, no interval"


class Interval(NamedTuple):
    """A mean and the ends of its interval, numbers or arrays of one shape; the ends are NaN where there is none."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def exp(self) -> "Interval":
        """Of logarithms, what they mean: a geometric mean or a ratio."""
        return Interval(*map(np.exp, self))

    def floats(self) -> tuple[float, float, float]:
        """Mean, low and high as numbers."""
        return float(self.mean), float(self.low), float(self.high)


def simultaneous(comparisons: int, level: float = LEVEL) -> float:
    """The level of each of several intervals that shall all hold at once (Bonferroni)."""
    return 1 - (1 - level) / max(comparisons, 1)


def over_runs(values: np.ndarray, level: float = LEVEL) -> Interval:
    """Student's t interval of a mean over independent runs.

    Args:
        values: Runs along the first axis, a number (or an array) of each.
        level: Of the interval.

    Returns:
        Mean and ends; NaN for the ends of one run.
    """
    return crossed(np.asarray(values, float)[:, None], level)


def of_estimate(value: float, error: float, level: float = LEVEL) -> Interval:
    """The interval of an estimate with a standard error and close to normal, as a trace from many probes is.

    Args:
        value: The estimate.
        error: Its standard error; NaN where there is none.
        level: Of the interval.

    Returns:
        The estimate and the ends.
    """
    return _around(np.asarray(value), np.asarray(ndtri((1 + level) / 2) * error))


def over_repetitions(values: Mapping[Replicate, float], level: float = LEVEL) -> Interval:
    """`repeated` of one number of each run.

    Args:
        values: By draw of the clients and seed.
        level: Of the interval.

    Returns:
        Mean and ends.
    """
    if not values:
        return over_runs(np.array([np.nan]), level)
    return repeated(list(values), np.array(list(values.values()), float)[:, None], level)


def repeated(which: Sequence[Replicate], values: np.ndarray, level: float = LEVEL) -> Interval:
    """The interval of a mean over runs that share clients with some and seeds with others.

    With one draw of the clients it is `crossed` over its seeds, which says nothing about other clients. With several it
    is never shorter than that, nor than the interval of the runs' means over draws crossed with seeds; where not every
    draw has every seed, than Student's t over the draws' means.

    Args:
        which: Draw and seed of each run.
        values: Shape (runs, directions, ...), the same directions for all; one where a run has one number.
        level: Of the interval.

    Returns:
        Mean and ends.
    """
    draws, seeds = ({one[place]: None for one in which} for place in (0, 1))
    if len(draws) < 2:
        return crossed(values, level)
    means = values.mean(1)
    table = {draw: {one[1]: means[place] for place, one in enumerate(which) if one[0] == draw} for draw in draws}
    if any(len(row) < len(seeds) for row in table.values()):
        return over_runs(np.stack([np.mean(list(row.values()), 0) for row in table.values()]), level)
    over = crossed(np.stack([[row[seed] for seed in seeds] for row in table.values()]), level)
    if values.shape[1] == 1:
        return over
    half = np.fmax(over.high - over.mean, (found := crossed(values, level)).high - found.mean)
    return _around(found.mean, half)


def over_pairs(values: Mapping[tuple[Hashable, Hashable], float], level: float = LEVEL) -> Interval:
    """The interval of a mean over pairs of members, as clients of a round: pairs that share a member are not
    independent.

    The jackknife over members (Arvesen, 1969): each is left out in turn with all its pairs, and Student's t is taken
    with one degree of freedom less than there are members.

    Args:
        values: By pair.
        level: Of the interval, which is over other members.

    Returns:
        Mean and ends; NaN for the ends of fewer than three members.
    """
    pairs, found = list(values), np.array(list(values.values()), float)
    members = {member: np.array([member in pair for pair in pairs]) for pair in pairs for member in pair}
    mean, count = (found.mean() if len(found) else np.array(np.nan)), len(members)
    if count < 3 or any(mine.all() for mine in members.values()):
        return Interval(mean, np.array(np.nan), np.array(np.nan))
    without = np.array([found[~mine].mean() for mine in members.values()])
    variance = (count - 1) / count * ((without - without.mean()) ** 2).sum()
    return _around(mean, _quantile(count - 1, level) * np.sqrt(variance))


def crossed(values: np.ndarray, level: float = LEVEL) -> Interval:
    """The interval of a mean over seeds and directions, where all seeds have the same directions.

    The random-effects model y = m + seed + direction + rest gives three mean squares. A factor whose component comes
    out negative is left out. With both factors the variance is Satterthwaite's, and the interval never shorter than
    that of one factor alone, which with two degrees of freedom it else could be; with one factor it is that factor's
    Student t; with none all values count alike.

    Args:
        values: Shape (seeds, directions, ...).
        level: Of the interval.

    Returns:
        Mean and ends over the first two axes; NaN for the ends with one seed.
    """
    seeds, directions = values.shape[:2]
    mean = values.mean((0, 1))
    if seeds < 2:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    by_seed, by_direction = values.mean(1), values.mean(0)
    free = np.array([seeds - 1, directions - 1, (seeds - 1) * (directions - 1)])
    seed = directions * ((by_seed - mean) ** 2).sum(0) / free[0]
    if directions == 1:
        return _around(mean, _quantile(free[0], level) * np.sqrt(seed / seeds))
    direction = seeds * ((by_direction - mean) ** 2).sum(0) / free[1]
    rest = ((values - by_seed[:, None] - by_direction[None] + mean) ** 2).sum((0, 1)) / free[2]
    squares = np.stack([seed, direction, rest])
    both = np.maximum(seed + direction - rest, np.maximum(seed, direction))
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.nan_to_num(both**2 / np.tensordot(1 / free, squares**2, 1), nan=1.0)
    alone = [_quantile(n, level) * np.sqrt(square) for n, square in zip(free, squares, strict=True)][:2]
    widest = np.maximum.reduce([_quantile(freedom, level) * np.sqrt(both), *alone])
    pooled = _quantile(free.sum(), level) * np.sqrt(np.tensordot(free, squares, 1) / free.sum())
    real = [seed > rest, direction > rest]
    half = np.select([real[0] & real[1], real[0], real[1]], [widest, *alone], pooled)
    return _around(mean, half / np.sqrt(seeds * directions))


def _quantile(freedom: np.ndarray | int, level: float) -> np.ndarray:
    return np.asarray(stdtrit(freedom, (1 + level) / 2))  # of Student's t


def _around(mean: np.ndarray, half: np.ndarray) -> Interval:
    return Interval(mean, mean - half, mean + half)


def said(mean: float, low: float, high: float, form: str = ".3g", bound: str = "") -> str:
    """A mean and its interval in words, `0.33 [0.30, 0.37]`.

    Args:
        mean: Of what was measured.
        low: NaN, as `high`, where there is no interval, which is then left out.
        high: Its other end.
        form: Of the numbers.
        bound: `>` or `<` where values were censored, so that the mean is but a bound.
    """
    if np.isnan(mean):
        return "–"
    if bound:
        return f"{bound} {mean:{form}}"
    return f"{mean:{form}}" + ("" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]")


def over_seeds(values: Sequence[float | None]) -> tuple[float, float]:
    """Mean and sample standard deviation of what is known; NaN where there are too few values."""
    known = np.array([value for value in values if value is not None], float)
    mean = float(known.mean()) if len(known) else np.nan
    return mean, float(known.std(ddof=1)) if len(known) > 1 else np.nan


def band(seeds: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series]:
    """The mean over seeds (columns) of each row, and one standard deviation below and above; NaN of one seed."""
    mean, std = seeds.mean(axis=1), seeds.std(axis=1, ddof=1)
    return mean, mean - std, mean + std


def variance_components(
    frame: pd.DataFrame, value: str, factors: Sequence[str], nested: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """What a reading's spread comes from: the variance due to each factor and to each combination of them.

    Balanced analysis of variance with random effects by the method of moments (Searle, Casella, McCulloch, "Variance
    Components", 1992, ch. 4): each mean square is set equal to its expectation. An estimate can be negative, which says
    that the component is too small to be seen; then it counts as 0, and `negative` says so.

    Args:
        frame: A row for each combination of levels.
        value: The column with the reading.
        factors: Columns, as `("partition", "seed", "direction")`; they are crossed.
        nested: Factors whose levels have nothing in common across those of another, as `{"seed": "partition"}` when
            seed 0 with one partition is not seed 0 with another. Then there is no effect of seed alone.

    Returns:
        A row per component, the last (`rest`) that of single readings: component (as `seed`, `seed in partition` or
        `seed × direction`), variance, share of their sum, negative, freedom.
        A factor with one level has NaN: nothing can be said of it.

    Raises:
        UserError: When combinations are missing or repeated.
    """
    nested = nested or {}
    table = frame[[*factors, value]].copy()
    for inner, outer in nested.items():
        table[inner] = table.groupby(outer)[inner].transform(lambda levels: pd.factorize(levels)[0])
    varied = [factor for factor in factors if table[factor].nunique() > 1]
    levels = {factor: table[factor].nunique() for factor in varied}
    if len(table) != np.prod(list(levels.values())) or table.duplicated(list(factors)).any():
        raise UserError(f"variance components: one row for each combination of {', '.join(factors)} is needed")
    cells = table.sort_values(varied)[value].to_numpy(float).reshape(list(levels.values()))
    effects = _effects(cells - cells.mean(), varied, {k: v for k, v in nested.items() if {k, v} <= set(varied)})
    readings = {effect: cells.size / np.prod([levels[one] for one in effect]) for effect in effects}
    found: dict[tuple[str, ...], float] = {}
    for effect, (squares, freedom) in sorted(effects.items(), key=lambda item: -len(item[0])):
        above = sum(readings[one] * found[one] for one in found if set(one) > set(effect))
        found[effect] = (squares / freedom - above) / readings[effect]
    total = sum(max(found[effect], 0.0) for effect in effects)
    rows = [
        {
            "component": _name(effect, nested, whole=len(effect) == len(varied)),
            "variance": max(found[effect], 0.0), "share": max(found[effect], 0.0) / total if total else np.nan,
            "negative": found[effect] < 0, "freedom": freedom,
        }
        for effect, (_, freedom) in effects.items()
    ]  # fmt: skip
    blank = {"variance": np.nan, "share": np.nan, "negative": False, "freedom": 0}
    return pd.DataFrame([{"component": one, **blank} for one in factors if one not in varied] + rows)


def _name(effect: Sequence[str], nested: Mapping[str, str], whole: bool) -> str:
    outer = {nested.get(one) for one in effect}
    parts = [f"{one} in {nested[one]}" if nested.get(one) in effect else one for one in effect if one not in outer]
    return "rest" if whole and len(parts) > 1 else " × ".join(parts)


def _effects(
    cells: np.ndarray, factors: Sequence[str], nested: Mapping[str, str]
) -> dict[tuple[str, ...], tuple[float, int]]:
    """Sum of squares and degrees of freedom of each combination of factors, those of nested ones put together."""

    def around_zero(kept: Iterable[str]) -> float:
        means = cells.mean(tuple(axis for axis, one in enumerate(factors) if one not in set(kept)), keepdims=True)
        return float((means**2).sum()) * cells.size / means.size

    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for effect in chain.from_iterable(combinations(factors, size) for size in range(1, len(factors) + 1)):
        parts = chain.from_iterable(combinations(effect, size) for size in range(len(effect) + 1))
        squares = sum((-1) ** (len(effect) - len(part)) * around_zero(part) for part in parts)
        freedom = int(np.prod([cells.shape[factors.index(one)] - 1 for one in effect]))
        whole = tuple(one for one in factors if one in effect or one in {nested.get(inner) for inner in effect})
        before = found.get(whole, (0.0, 0))
        found[whole] = (before[0] + squares, before[1] + freedom)
    return found

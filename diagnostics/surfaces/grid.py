"""The points of a line or plane, and their order: the centre, a coarse grid, a finer one, the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from feddual.errors import UserError
from feddual.functional.layout import fingerprint

Extent = float | tuple[float, float] | tuple[tuple[float, float], tuple[float, float]]
FIRST_SHARE = 0.05  # of all points: after these a preview says something


@dataclass(frozen=True)
class Grid:
    """Values along one or two axes; zero, where the model stands, is one of them on each."""

    alphas: np.ndarray
    betas: np.ndarray | None = None

    @classmethod
    def plane(cls, count: int | str | Sequence[int], extent: Extent) -> "Grid":
        """A grid of `count` points (n, (nx, ny), "n" or "nxxny") over [-extent, extent], or over given bounds."""
        nx, ny = parse_counts(count)
        bounds = _bounds(extent)
        if bounds.shape == (2,):
            bounds = np.stack([bounds, bounds])
        if bounds.shape != (2, 2):
            raise UserError(f"extent: expected a number, (low, high) or two such pairs, got {extent!r}")
        return cls(axis(nx, *bounds[0]), axis(ny, *bounds[1]))

    @classmethod
    def line(cls, count: int, extent: float | tuple[float, float]) -> "Grid":
        """Values along one direction."""
        nx, ny = parse_counts(count)
        bounds = _bounds(extent)
        if nx != ny or bounds.shape != (2,):
            raise UserError(
                f"grid, extent: a line has one count and a number or (low, high), got {count!r}, {extent!r}"
            )
        return cls(axis(nx, *bounds))

    @classmethod
    def at(cls, alphas: Sequence[float]) -> "Grid":
        """Given values along one direction."""
        values = np.unique(_numbers("alphas", alphas))
        if len(values) < 3 or not np.isfinite(values).all() or 0 not in values:
            raise UserError(f"alphas: expected at least 3 finite values, 0 among them, got {alphas!r}")
        return cls(values)

    @property
    def shape(self) -> tuple[int, ...]:
        """(NY, NX) of a plane, (NX,) of a line."""
        return (len(self.alphas),) if self.betas is None else (len(self.betas), len(self.alphas))

    @cached_property
    def levels(self) -> list[np.ndarray]:
        """Flat indices, level by level: a coarse grid that begins with the centre, one at half steps, the rest."""
        axes = [self.alphas] if self.betas is None else [self.betas, self.alphas]
        share = FIRST_SHARE ** (1 / len(axes))
        numbers = [(int(share * len(values)), len(values) // 2 - 1, len(values)) for values in axes]
        centre = tuple(int(np.flatnonzero(values == 0)[0]) for values in axes)
        levels: list[np.ndarray] = []
        before = [np.array([middle]) for middle in centre]
        seen = np.zeros(self.shape, bool)
        seen[centre] = True
        for wanted in zip(*numbers, strict=True):
            # Each level contains the one before it along every axis, so that it is a grid of its own.
            before = [np.union1d(*each) for each in zip(before, map(nested, self.shape, wanted), strict=True)]
            here = np.zeros(self.shape, bool)
            here[np.ix_(*before)] = True
            levels.append(np.flatnonzero(here & ~seen))
            seen |= here
        levels[0] = np.r_[np.ravel_multi_index(centre, self.shape), levels[0]]
        return levels

    @cached_property
    def order(self) -> np.ndarray:
        """All flat indices in the order of computation."""
        return np.concatenate(self.levels)

    @property
    def order_hash(self) -> str:
        """Chunks on disk are runs of this order, so it is part of what they mean."""
        return fingerprint(self.order)[:16]

    def coordinates(self, flat: np.ndarray) -> np.ndarray:
        """(a, b) or (a,) of flat indices, shape (points, axes)."""
        if self.betas is None:
            return self.alphas[flat][:, None]
        rows, columns = np.unravel_index(flat, self.shape)
        return np.stack([self.alphas[columns], self.betas[rows]], 1)


def _bounds(extent: Extent) -> np.ndarray:
    """Low and high ends, shape (2,), or as many as were given."""
    bounds = _numbers("extent", extent)
    return np.array([-bounds, bounds]) if bounds.shape == () else bounds


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected numbers, got {value!r}") from None


def axis(count: int, low: float, high: float) -> np.ndarray:
    """Evenly spaced values of which one is exactly zero."""
    if count < 3:
        raise UserError(f"grid: needs at least 3 points along each axis, got {count}")
    if not (np.isfinite([low, high]).all() and low <= 0 <= high and low < high):
        raise UserError(f"extent: must be finite and contain 0, where the model stands, got {low:g} to {high:g}")
    values = np.linspace(low, high, count)
    nearest = int(np.abs(values).argmin())
    if abs(values[nearest]) > 1e-9 * (high - low):
        advice = "use an odd count" if low == -high else "choose count and extent so that one step falls on 0"
        raise UserError(f"grid: {count} points from {low:g} to {high:g} miss the centre (0); {advice}")
    values[nearest] = 0.0
    return values


def nested(count: int, number: int) -> np.ndarray:
    """`number` of `count` indices (one more if that is even), evenly spaced, with both ends and the middle."""
    return np.linspace(0, count - 1, min(max(number, 3) | 1, count)).round().astype(int)


def parse_counts(count: int | str | Sequence[int]) -> tuple[int, int]:
    """(nx, ny) of `51`, `"51"`, `"51x41"` or `(51, 41)`."""
    try:
        if isinstance(count, str):
            numbers = [int(part) for part in count.lower().split("x")]
        else:
            numbers = [index(part) for part in (count if isinstance(count, Iterable) else [count])]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2):
        raise UserError(f"grid: expected N or NXxNY, got {count!r}")
    return numbers[0], numbers[-1]

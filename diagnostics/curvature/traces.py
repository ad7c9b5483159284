"""The trace of an operator from products with random vectors, with its standard error.

Hutch++ (Meyer, Musco, Musco & Woodruff, "Hutch++: Optimal Stochastic Trace Estimation", SOSA 2021): the trace on the
range of a random sketch is exact, only the rest is sampled. With P a layer's coordinates and Q the sketch's basis,
tr(P A) = tr(P A Q Q') + tr((1 - Q Q') P A (1 - Q Q')), so that layers' traces come from the same products and add up.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from diagnostics.statistics import LEVEL, Interval, over_runs
from feddual import seeding
from feddual.errors import UserError

Product = Callable[[np.ndarray], np.ndarray]
FEWEST = 6  # products: two samples of the rest


class Trace(NamedTuple):
    """An estimate of a trace: the exact part plus the samples' mean."""

    exact: float  # on the sketch's range
    samples: np.ndarray  # of the rest, each unbiased

    @property
    def value(self) -> float:
        return float(self.exact + (self.samples.mean() if len(self.samples) else 0.0))

    @property
    def error(self) -> float:
        """The standard error; zero where nothing had to be sampled."""
        return float(self.samples.std(ddof=1) / np.sqrt(len(self.samples))) if len(self.samples) else 0.0

    def interval(self, level: float = LEVEL) -> Interval:
        """Student's t over the samples."""
        if not len(self.samples):
            return Interval(*map(np.asarray, (self.exact, self.exact, self.exact)))
        return Interval(*(self.exact + part for part in over_runs(self.samples, level)))


def hutchpp(
    product: Product, size: int, probes: int, seed: int = 0, blocks: Mapping[str, np.ndarray] | None = None
) -> tuple[Trace, dict[str, Trace]]:
    """The trace of a symmetric operator, and of its diagonal blocks.

    Args:
        product: The operator's.
        size: Its dimension.
        probes: Products, a third each for the sketch, for its image and for the rest.
        seed: Of the vectors, which are the same for all operators of one size.
        blocks: Coordinates by name.

    Returns:
        The trace, and those of the blocks, which add up to it where the blocks hold every coordinate once.
    """
    if probes < FEWEST:
        raise UserError(f"probes: at least {FEWEST} are needed for a standard error, got {probes}")
    third = probes // 3
    blocks = blocks or {}
    columns = min(third, size)
    sketch = np.stack([product(_signs(seed, "sketch", index, size)) for index in range(columns)], 1)
    basis = np.linalg.qr(sketch)[0] if columns < size else np.eye(size)
    exact = {name: 0.0 for name in ("", *blocks)}
    for column in basis.T:
        _add(exact, column * product(column), blocks)
    rest: dict[str, list[float]] = {name: [] for name in exact}
    for index in range(third if columns < size else 0):
        probe = _signs(seed, "rest", index, size)
        for _ in range(2):
            probe = probe - basis @ (basis.T @ probe)
        one = dict.fromkeys(exact, 0.0)
        _add(one, probe * product(probe), blocks)
        for name, value in one.items():
            rest[name].append(value)
    found = {name: Trace(exact[name], np.array(rest[name])) for name in exact}
    return found.pop(""), found


def _add(sums: dict[str, float], terms: np.ndarray, blocks: Mapping[str, np.ndarray]) -> None:
    sums[""] += float(terms.sum())
    for name, where in blocks.items():
        sums[name] += float(terms[where].sum())


def _signs(seed: int, what: str, index: int, size: int) -> np.ndarray:
    return 2.0 * seeding.generator(seed, f"trace {what}", index).integers(0, 2, size) - 1

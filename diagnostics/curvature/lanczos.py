"""Eigenvalues at the ends of a spectrum, and quadrature of its density, by Lanczos' method.

In float64 with full reorthogonalisation: without it, eigenvalues that have converged come back as copies. One start
vector sees an eigenvalue once, however often it is there; `eigenvalues` therefore looks again in the complement of
what it found. Power iteration is not used: where the largest |λ| is negative it gives that one for the largest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feddual import seeding
from feddual.errors import UserError

Product = Callable[[np.ndarray], np.ndarray]
TOLERANCE = 1e-4  # of an eigenvalue's residual, relative to the largest |eigenvalue|
MEMORY = 4 * 2**30  # bytes that the basis may take
RUNS = 12  # into the complement, at most
TINY = 1e-12
PURPOSE = "spectrum start"


class Quadrature(NamedTuple):
    """Nodes and weights, whose sums of f(node) estimate tr f(A) / n."""

    nodes: np.ndarray
    weights: np.ndarray


@dataclass
class Krylov:
    """A basis in which an operator is tridiagonal, grown step by step.

    Args:
        product: The operator's, symmetric.
        first: The start vector, shape (n,).
        without: Orthonormal rows, shape (p, n), whose complement it stays in.
        scale: The operator's largest known |eigenvalue|: what is tiny beside it is rounding.
    """

    product: Product
    first: np.ndarray
    without: np.ndarray | None = None
    scale: float = 0.0

    def __post_init__(self) -> None:
        self.diagonal: list[float] = []
        self.beside: list[float] = []
        self._basis = np.empty((16, len(self.first)))
        self._basis[0] = self._normal(self.first)[0]
        self.exhausted = False  # the basis spans all that the start vector can reach

    @property
    def steps(self) -> int:
        return len(self.diagonal)

    @property
    def basis(self) -> np.ndarray:
        """Shape (steps, n)."""
        return self._basis[: self.steps]

    def grow(self, steps: int) -> None:
        """Take so many steps more, or as many as there are."""
        for _ in range(steps):
            if self.exhausted:
                return
            here = self._basis[self.steps]
            after = self.product(here)
            self.diagonal.append(float(here @ after))
            after, length = self._normal(after)
            self.beside.append(length)
            self.scale = max(self.scale, abs(self.diagonal[-1]), length)
            self.exhausted = bool(length <= TINY * self.scale or self.steps == len(here))
            if self.steps == len(self._basis):
                self._basis = np.concatenate([self._basis, np.empty_like(self._basis)])
            self._basis[self.steps] = 0 if self.exhausted else after

    def _normal(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """Orthogonal to all there is, twice (once leaves rounding), and of length one; and its length before."""
        for _ in range(2):
            for rows in (self.without, self.basis):
                if rows is not None and len(rows):
                    vector = vector - rows.T @ (rows @ vector)
        length = float(np.linalg.norm(vector))
        return (vector / length if length else vector), length

    def ritz(self, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues (ascending) and eigenvectors of the tridiagonal matrix of the first `steps`."""
        from scipy.linalg import eigh_tridiagonal

        count = self.steps if steps is None else min(steps, self.steps)
        if count == 1:
            return np.array(self.diagonal[:1]), np.ones((1, 1))
        values, vectors = eigh_tridiagonal(self.diagonal[:count], self.beside[: count - 1])
        return values, vectors

    def bounds(self, vectors: np.ndarray) -> np.ndarray:
        """The residual norm of each Ritz pair: so far from it, at most, is an eigenvalue."""
        return abs(0.0 if self.exhausted else self.beside[-1]) * np.abs(vectors[-1])


class Eigen(NamedTuple):
    """The ends of a spectrum."""

    largest: np.ndarray  # descending
    largest_residuals: np.ndarray  # norms of A y - λ y: an eigenvalue is at most so far from λ
    smallest: np.ndarray  # ascending
    smallest_residuals: np.ndarray
    vectors: np.ndarray  # of the largest, rows
    products: int
    converged: bool

    @property
    def by_magnitude(self) -> np.ndarray:
        """As many, the largest |λ| first, signs kept."""
        return by_magnitude(self.largest, self.smallest)


def by_magnitude(largest: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """As many as either end has, the largest |λ| first, signs kept."""
    both = np.concatenate([largest[largest > 0], smallest[smallest <= 0]])
    both = both if len(both) >= len(largest) else np.concatenate([both, largest[largest <= 0], smallest[smallest > 0]])
    return both[np.argsort(-np.abs(both), kind="stable")][: len(largest)]


def start(seed: int, draw: int, size: int) -> np.ndarray:
    """A random start vector of length one, the same for all operators of its size."""
    found = seeding.generator(seed, PURPOSE, draw).standard_normal(size)
    return np.asarray(found / np.linalg.norm(found))


def check_memory(steps: int, size: int) -> None:
    """Refuse a basis that does not fit."""
    if 8 * steps * size > MEMORY:
        most = MEMORY // (8 * size)
        raise UserError(
            f"steps: {steps} vectors of {size} weights take {8 * steps * size / 2**30:.0f} GiB; at most {most} steps "
            "fit, or choose some of the layers"
        )


def eigenvalues(
    product: Product, size: int, k: int, steps: int, seed: int = 0, tolerance: float = TOLERANCE,
    most: int | None = None, first: Krylov | None = None,
) -> Eigen:  # fmt: skip
    """The k largest and the k smallest eigenvalues.

    Args:
        product: Of a symmetric operator.
        size: Its dimension.
        k: How many at each end.
        steps: Of the first run before it is looked at; it goes on to three times as many where they do not suffice.
        seed: Of the start vectors.
        tolerance: Of the residuals, relative to the largest |eigenvalue|.
        most: Products in all.
        first: A run that has begun already.

    Returns:
        Both ends, with the residuals' norms.
    """
    k = min(k, size)
    most = 10**9 if most is None else max(most - 2 * k, 1)  # the residuals take a product each
    run = first or Krylov(product, start(seed, 0, size))
    begun, used, locked = run.steps, 0, _Pairs(size)
    for number in range(RUNS):
        if number:
            scale = np.abs(locked.values).max()
            run, begun = Krylov(product, start(seed, 10**6 + number, size), locked.vectors, scale), 0
        before = locked.ends(k)
        _converge(run, k, steps, tolerance, min(most - used + begun, 3 * steps))
        used += run.steps - begun
        news = locked.take(run, k)
        scale = max(np.abs(locked.values).max(), TINY)
        moved = before is None or any(
            np.abs(a - b).max() > 10 * tolerance * scale if len(a) == len(b) else True
            for a, b in zip(before, locked.ends(k) or (), strict=True)
        )
        if not news or not moved or used >= most or len(locked.values) >= size:
            break
    return locked.result(product, k, used, tolerance)


def _converge(run: Krylov, k: int, steps: int, tolerance: float, most: int) -> None:
    """Grow a run until k pairs at both ends are there, or its steps are used up."""
    run.grow(max(0, min(max(2 * k, 10), most) - run.steps))
    while not run.exhausted and run.steps < most:
        values, vectors = run.ritz()
        bounds = run.bounds(vectors)
        ends = np.r_[:k, -k:0] if len(values) >= 2 * k else np.arange(len(values))
        if len(values) >= 2 * k and (bounds[ends] <= tolerance * np.abs(values).max()).all():
            return
        run.grow(min(5, most - run.steps))


class _Pairs:
    """Eigenpairs that were found so far, orthogonal to one another."""

    def __init__(self, size: int):
        self.values, self.residuals, self.vectors = np.zeros(0), np.zeros(0), np.zeros((0, size))

    def take(self, run: Krylov, k: int) -> bool:
        """Both ends of a run; whether there was anything."""
        if not run.steps:
            return False
        values, vectors = run.ritz()
        chosen = np.unique(np.r_[: min(k, len(values)), max(0, len(values) - k) : len(values)])
        self.values = np.concatenate([self.values, values[chosen]])
        self.residuals = np.concatenate([self.residuals, run.bounds(vectors)[chosen]])
        self.vectors = np.concatenate([self.vectors, vectors[:, chosen].T @ run.basis])
        return True

    def ends(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The k largest and the k smallest values."""
        if not len(self.values):
            return None
        ordered = np.sort(self.values)
        return ordered[::-1][:k], ordered[:k]

    def result(self, product: Product, k: int, used: int, tolerance: float) -> Eigen:
        """Both ends, each residual by a product of its own: the recursion's bound knows nothing of rounding."""
        order = np.argsort(self.values)
        low, high = order[:k], order[::-1][:k]
        ends = np.unique(np.concatenate([low, high]))
        for place in ends:
            vector = self.vectors[place]
            self.residuals[place] = np.linalg.norm(product(vector) - self.values[place] * vector)
        converged = bool((self.residuals[ends] <= 2 * tolerance * np.abs(self.values).max()).all())
        return Eigen(
            self.values[high], self.residuals[high], self.values[low], self.residuals[low], self.vectors[high],
            used + len(ends), converged,
        )  # fmt: skip


def quadrature(run: Krylov, steps: int) -> Quadrature:
    """Of the density, from a run's first steps; filled up with nodes of weight zero."""
    values, vectors = run.ritz(steps)
    missing = steps - len(values)
    return Quadrature(np.pad(values, (0, missing)), np.pad(vectors[0] ** 2, (0, missing)))

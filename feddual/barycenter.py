"""Every barycenter of client vectors; the only module that imports POT.

A method takes vectors (clients, values) and client weights that sum to one, and returns a vector and facts about it. In
all of them a vector stands for the distribution of its values, each value with the same mass.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Barycenter:
    """The result and what there is to know of it."""

    vector: np.ndarray
    iterations: int
    residual: float  # relative change of the last iteration; of `sinkhorn`, POT's error, infinite where it says none
    client_weights: np.ndarray  # share of each client in the result; the given weights where it is no combination
    distances: np.ndarray  # from the result to each client, in the method's own distance
    from_mean: float  # norm of the difference to the weighted mean

    @property
    def effective_clients(self) -> float:
        """How many clients share the result: 1 if one was picked, all of them for equal weights, 0 if it is nothing."""
        squares = float(np.sum(self.client_weights**2))
        return 1 / squares if squares else 0.0


def sorted_distances(p: np.ndarray, sorted_rows: np.ndarray, order: int = 1) -> np.ndarray:
    """The 1-D Wasserstein distance from the values of `p` to those of each row, whose values are sorted already."""
    return _distances(np.sort(p), sorted_rows, order)


def _distances(p: np.ndarray, rows: np.ndarray, order: int) -> np.ndarray:
    """The mean, or root mean square, difference of each row to `p`; row by row, so that no copy of all is made."""
    if order == 1:
        return np.array([np.abs(row - p).mean() for row in rows])
    return np.sqrt([np.square(row - p).mean() for row in rows])


def gibbs(
    vectors: np.ndarray, weights: np.ndarray, epsilon: float = 1e-5, relative: bool = False, max_iter: int = 150,
    tol: float = 1e-6, distance: str = "w1", start: np.ndarray | None = None,
) -> Barycenter:  # fmt: skip
    """The fixed point of Eqs. 15-16: p <- sum_i a_i p_i, a = softmax(log lambda_i - W(p, p_i) / epsilon).

    The exponent stays in the log domain, so no epsilon underflows. The iteration can fall into cycles of two; then it
    is damped, p <- (1 - theta) p + theta T(p), with theta halved each time.

    Args:
        vectors: Shape (clients, values).
        weights: lambda, summing to one.
        epsilon: Absolute, or in units of the median distance from the mean to the clients.
        relative: Which of the two.
        max_iter: Most iterations.
        tol: Relative change at which it has converged.
        distance: `w1`, `w2` (of sorted values), or `l2` (mean squared difference by coordinate, an ablation: the other
            two do not see which coordinate a value belongs to).
        start: Where to begin; the weighted mean by default.
    """
    mean = _mean(vectors, weights)
    rows = vectors if distance == "l2" else np.sort(vectors, axis=1)

    def measure(p: np.ndarray) -> np.ndarray:
        return _distances(p if distance == "l2" else np.sort(p), rows, 1 if distance == "w1" else 2)

    def shares(p: np.ndarray) -> np.ndarray:
        exponents = logs - measure(p) / epsilon
        powers = np.exp(exponents - exponents.max())
        return powers / powers.sum()

    p = mean if start is None else start
    if relative:
        epsilon *= float(np.median(measure(mean))) or 1.0
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    step, theta, before, residual = 0, 1.0, p, np.inf
    for step in range(1, max_iter + 1):  # noqa: B007 - told in the end
        moved = (1 - theta) * p + theta * _mean(vectors, shares(p))
        change = float(np.linalg.norm(moved - p))
        residual = change / (float(np.linalg.norm(p)) or 1.0)
        if residual > tol and np.linalg.norm(moved - before) < 1e-3 * change:
            theta /= 2  # back where it was two steps ago
        before, p = p, moved
        if residual <= tol:
            break
    return _result(p, step, residual, shares(p), measure(p), mean)


def published(vectors: np.ndarray, weights: np.ndarray, epsilon: float = 1e-5, max_iter: int = 1000) -> Barycenter:
    """The public code's loop, bug for bug: gamma = exp(-W / epsilon) underflows, and 1e-10 guards the division.

    Where every distance exceeds about 20 epsilon the result collapses to zero and stays there. It stops early only at a
    point the loop would not leave.
    """
    p = np.mean(vectors, axis=0)
    rows = np.sort(vectors, axis=1).astype(np.float64)
    step, share, residual = 0, np.asarray(weights), np.inf
    for step in range(1, max_iter + 1):  # noqa: B007 - told in the end
        gammas = np.exp(-np.abs(rows - np.sort(p)).mean(1) / epsilon)
        share = weights * gammas
        total, moved = np.zeros_like(p), np.zeros_like(p)
        for vector, part in zip(vectors, share, strict=True):
            moved += part * vector
            total += part
        moved = moved / (total + 1e-10)
        residual = float(np.linalg.norm(moved - p) / (np.linalg.norm(p) or 1.0))
        before, p = p, moved
        if np.array_equal(p, before):
            break
    share = share / share.sum() if share.sum() > 0 else np.zeros(len(vectors))  # underflow: no client has a part in it
    return _result(p, step, residual, share, sorted_distances(p, rows), _mean(vectors, weights))


def mean(vectors: np.ndarray, weights: np.ndarray) -> Barycenter:
    """The weighted mean: a control."""
    return _plain(_mean(vectors, weights), vectors, weights)


def zero(vectors: np.ndarray, weights: np.ndarray) -> Barycenter:
    """Nothing at all: a control that leaves the layer as it is."""
    return _plain(np.zeros(vectors.shape[1]), vectors, weights)


def quantile_w2(vectors: np.ndarray, weights: np.ndarray) -> Barycenter:
    """The W2 barycenter of the value distributions: the mean of the sorted vectors, in the order of the mean."""
    return _by_rank(_mean(np.sort(vectors, axis=1), weights), vectors, weights, order=2)


def quantile_w1(vectors: np.ndarray, weights: np.ndarray) -> Barycenter:
    """The W1 barycenter: the weighted median of the sorted vectors, value by value."""
    rows = np.sort(vectors, axis=1)
    order = np.argsort(rows, axis=0, kind="stable")
    reached = np.cumsum(np.asarray(weights)[order], axis=0) >= 0.5 - 1e-12
    first = reached.argmax(0)
    values = np.take_along_axis(np.take_along_axis(rows, order, 0), first[None], 0)[0]
    values[np.isnan(rows).any(0)] = np.nan  # sorted to the end, it would vanish from the median
    return _by_rank(np.sort(values), vectors, weights, order=1)


def geometric_median(vectors: np.ndarray, weights: np.ndarray, max_iter: int = 1000, tol: float = 1e-9) -> Barycenter:
    """Eq. 13 with p = 2 taken literally (distances not squared): the geometric median of the sorted vectors."""
    exponent = np.frexp(np.abs(vectors).max())[1]
    vectors = np.ldexp(vectors.astype(np.float64), -exponent)  # below one, so that no square overflows; exact
    rows = np.sort(vectors, axis=1)
    point = _mean(rows, weights)
    for step in range(1, max_iter + 1):  # noqa: B007 - told in the end
        pull = weights / np.maximum(np.linalg.norm(rows - point, axis=1), 1e-12)
        moved = pull @ rows / pull.sum()
        change = float(np.linalg.norm(moved - point) / (np.linalg.norm(point) or 1.0))
        point = moved
        if change <= tol:
            break
    found = _by_rank(point, vectors, weights, order=2)
    vector, distances, from_mean = (np.ldexp(x, exponent) for x in (found.vector, found.distances, found.from_mean))
    found = replace(found, vector=vector, distances=distances, from_mean=float(from_mean))
    return replace(found, iterations=step, residual=change)


def sinkhorn(
    vectors: np.ndarray, weights: np.ndarray, epsilon: float = 1e-3, bins: int = 256, method: str = "sinkhorn_log"
) -> Barycenter:
    """The entropic barycenter of the value histograms on a shared grid, through POT.

    Args:
        vectors: Shape (clients, values).
        weights: Of the clients.
        epsilon: Entropic regularisation, in units of the squared range of values.
        bins: Of the grid.
        method: `sinkhorn_log`, `sinkhorn_stabilized`, `debiased`, or `lp` for the exact linear program.
    """
    os.environ.setdefault("POT_BACKEND_DISABLE_TENSORFLOW", "1")  # numpy arrays are all it gets
    import ot

    low, high = float(vectors.min()), float(vectors.max())
    if high - low == 0:
        return mean(vectors, weights)
    edges = np.linspace(low, high, bins + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    histograms = np.stack([np.histogram(row, edges)[0] / vectors.shape[1] for row in vectors], axis=1)
    cost = np.square((centres[:, None] - centres) / (high - low))
    weights = np.asarray(weights)
    with np.errstate(divide="ignore", invalid="ignore"):  # POT takes the logarithm of empty bins
        if method == "lp":
            masses, log = ot.lp.barycenter(histograms, cost, weights, solver="highs", log=True)
            steps, residual = log.nit, 0.0 if log.success else np.inf
        else:
            asked = (histograms, cost, epsilon, weights)
            if method == "debiased":
                masses, log = ot.bregman.barycenter_debiased(*asked, method="sinkhorn_log", log=True)
            else:
                masses, log = ot.bregman.barycenter(*asked, method=method, numItermax=5000, log=True)
            steps, residual = log["niter"] + 1, float(log["err"][-1]) if log["err"] else np.inf
    masses = np.maximum(masses, 0) / np.maximum(masses, 0).sum()
    levels = (np.arange(vectors.shape[1]) + 0.5) / vectors.shape[1]
    values = np.interp(levels, np.concatenate([[0], np.cumsum(masses)]), edges)
    return replace(_by_rank(values, vectors, weights, order=2), iterations=steps, residual=residual)


def free_support(vectors: np.ndarray, weights: np.ndarray, shape: tuple[int, ...] = ()) -> Barycenter:
    """The free-support barycenter of units, through POT: each client's layer is a cloud of points to be matched.

    A kernel (inputs, outputs) is a cloud of its input units, each a point of outgoing weights, so that outputs keep
    their meaning; a convolution's kernel is taken in the same way. Points start from the client nearest to the mean and
    keep its order: the mean itself merges units that clients hold in another order. A bias is averaged.

    Args:
        vectors: Shape (clients, values).
        weights: Of the clients.
        shape: Of the tensor.
    """
    if len(shape) < 2:
        return mean(vectors, weights)
    os.environ.setdefault("POT_BACKEND_DISABLE_TENSORFLOW", "1")
    import ot

    clouds = [row.reshape(-1, shape[-1]).astype(np.float64) for row in vectors]
    count = len(clouds[0])
    centre = _mean(vectors, weights)
    even = np.full(count, 1 / count)
    nearest = int(np.argmin(_distances(centre, vectors, 2)))
    points, log = ot.lp.free_support_barycenter(
        clouds, [even] * len(clouds), clouds[nearest], even, np.asarray(weights, np.float64),
        numItermax=100, stopThr=1e-10, log=True,
    )  # fmt: skip
    distances = np.sqrt([ot.emd2(even, even, ot.dist(points, cloud)) for cloud in clouds])
    moves = np.sqrt(log["displacement_square_norms"])
    residual = moves[-1] / (np.linalg.norm(points) or 1.0)
    return _result(points.ravel(), len(moves), residual, np.asarray(weights), distances, centre)


def _mean(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(vectors.shape[1])
    for weight, vector in zip(weights, vectors, strict=True):
        total += np.float64(weight) * vector
    return total


def _by_rank(values: np.ndarray, vectors: np.ndarray, weights: np.ndarray, order: int) -> Barycenter:
    """Give the r-th value to the coordinate of rank r in the mean: of all orders, the one nearest to the mean."""
    centre = _mean(vectors, weights)
    vector = np.empty(len(values))
    vector[np.argsort(centre, kind="stable")] = values
    distances = sorted_distances(vector, np.sort(vectors, axis=1), order)
    return _result(vector, 1, 0.0, np.asarray(weights), distances, centre)


def _plain(vector: np.ndarray, vectors: np.ndarray, weights: np.ndarray) -> Barycenter:
    distances = sorted_distances(vector, np.sort(vectors, axis=1))
    return _result(vector, 0, 0.0, np.asarray(weights), distances, _mean(vectors, weights))


def _result(
    vector: np.ndarray, iterations: int, residual: float, share: np.ndarray, distances: np.ndarray, centre: np.ndarray
) -> Barycenter:
    return Barycenter(vector, iterations, float(residual), share, distances, float(np.linalg.norm(vector - centre)))


_ALL = (gibbs, published, quantile_w2, quantile_w1, geometric_median, sinkhorn, free_support, mean, zero)
METHODS: dict[str, Callable[..., Barycenter]] = {method.__name__: method for method in _ALL}


def facts(found: Barycenter) -> dict[str, Any]:
    """What is recorded of a barycenter with its round."""
    return {
        "iterations": found.iterations,
        "residual": found.residual,
        "effective_clients": found.effective_clients,
        "client_weights": [round(float(value), 6) for value in found.client_weights],
        "distances": [float(f"{value:.6g}") for value in found.distances],
        "from_mean": found.from_mean,
        "norm": float(np.linalg.norm(found.vector)),
    }

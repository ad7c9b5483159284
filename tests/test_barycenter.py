import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from feddual import barycenter

EVEN = np.full(4, 0.25)


def vectors(seed=0, clients=4, size=30, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * (
        rng.normal(size=(clients, size)) * rng.uniform(0.3, 3, (clients, 1)) + rng.normal(size=(clients, 1))
    )


def literal_published(distributions, weights, num_iter, epsilon):
    """The public code's function, transcribed with its SciPy distance and float32 accumulators."""
    center = np.mean(distributions, axis=0)
    for _ in range(num_iter):
        new, total = np.zeros_like(center), np.zeros_like(center)
        for dist, weight in zip(distributions, weights, strict=True):
            gamma = np.exp(-wasserstein_distance(center, dist) / epsilon)
            new += weight * gamma * dist
            total += weight * gamma
        center = new / (total + 1e-10)
    return center


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_the_sorted_distance_is_scipys(seed, size):
    rng = np.random.default_rng(seed)
    p, rows = rng.normal(size=size), rng.normal(size=(3, size))
    expected = [wasserstein_distance(p, row) for row in rows]
    np.testing.assert_allclose(barycenter.sorted_distances(p, np.sort(rows, 1)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", sorted(set(barycenter.METHODS) - {"zero", "published", "free_support"}))
def test_obvious_cases(method):
    """One client is its own barycenter; equal clients give themselves."""
    row = vectors()[:1]
    function = barycenter.METHODS[method]
    tolerance = 0.05 if method == "sinkhorn" else 1e-6  # the grid has bins and the entropy blurs
    spread = np.ptp(row)
    np.testing.assert_allclose(function(row, np.ones(1)).vector, row[0], atol=tolerance * spread)
    np.testing.assert_allclose(function(np.repeat(row, 4, 0), EVEN).vector, row[0], atol=tolerance * spread)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-5, 0.1, 1.0, 10.0]))
def test_gibbs_stays_in_the_hull_and_its_weights_in_the_simplex(seed, epsilon):
    rows = vectors(seed)
    found = barycenter.gibbs(rows, EVEN, epsilon)
    assert (found.vector >= rows.min(0) - 1e-9).all()
    assert (found.vector <= rows.max(0) + 1e-9).all()
    assert found.client_weights.sum() == pytest.approx(1)
    assert 1 - 1e-9 <= found.effective_clients <= 4 + 1e-9


def test_gibbs_limits():
    rows = vectors()
    np.testing.assert_allclose(barycenter.gibbs(rows, EVEN, 1e12).vector, rows.mean(0), rtol=1e-6)
    tiny = barycenter.gibbs(rows, EVEN, 1e-12)
    nearest = np.argmin(barycenter.sorted_distances(rows.mean(0), np.sort(rows, 1)))
    np.testing.assert_allclose(tiny.vector, rows[nearest])
    assert tiny.client_weights[nearest] == pytest.approx(1)
    assert tiny.iterations <= 5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_gibbs_scales_and_permutes_with_its_input(seed, factor):
    rows, order = vectors(seed), np.random.default_rng(seed).permutation(30)
    found = barycenter.gibbs(rows, EVEN, 0.7).vector
    np.testing.assert_allclose(
        barycenter.gibbs(factor * rows, EVEN, 0.7 * factor).vector, factor * found, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(barycenter.gibbs(rows[:, order], EVEN, 0.7).vector, found[order], rtol=1e-6, atol=1e-9)
    relative = barycenter.gibbs(rows, EVEN, 0.5, relative=True).vector
    np.testing.assert_allclose(
        barycenter.gibbs(factor * rows, EVEN, 0.5, relative=True).vector, factor * relative, rtol=1e-4, atol=1e-6
    )


def test_gibbs_is_a_fixed_point_and_unique_for_large_epsilon():
    rows = vectors(3)
    radius = max(np.abs(row - rows.mean(0)).mean() for row in rows)
    found = barycenter.gibbs(rows, EVEN, 1.5 * radius, tol=1e-12)
    other = barycenter.gibbs(rows, EVEN, 1.5 * radius, tol=1e-12, start=rows[2])
    np.testing.assert_allclose(found.vector, other.vector, rtol=1e-6, atol=1e-9)
    distances = [wasserstein_distance(found.vector, row) for row in rows]
    share = np.exp(-np.array(distances) / (1.5 * radius))
    np.testing.assert_allclose(found.vector, share @ rows / share.sum(), rtol=1e-6, atol=1e-9)
    assert np.linalg.norm(found.vector - rows.mean(0)) >= 0.1 * np.linalg.norm(rows.mean(0))  # it is not the mean


def test_cycles_of_two_are_damped():
    """Among random heavy-tailed inputs some cycle without damping; with it nearly all converge."""
    rng = np.random.default_rng(0)
    stuck, cycles = 0, 0
    for _ in range(300):
        rows = rng.standard_t(2, size=(6, 8))
        weights = np.full(6, 1 / 6)
        epsilon = 0.3 * np.median(barycenter.sorted_distances(rows.mean(0), np.sort(rows, 1)))
        p, seen = rows.mean(0), []
        for _ in range(150):
            share = np.exp(-barycenter.sorted_distances(p, np.sort(rows, 1)) / epsilon)
            p = share @ rows / share.sum()
            seen.append(p)
        if np.linalg.norm(seen[-1] - seen[-2]) > 1e-6 * np.linalg.norm(p) > 1e3 * np.linalg.norm(seen[-1] - seen[-3]):
            cycles += 1
            stuck += barycenter.gibbs(rows, weights, epsilon).residual > 1e-6
    assert cycles >= 1
    assert stuck <= cycles // 2


def test_the_distance_does_not_see_which_coordinate_is_which():
    """Clients with one class each have different bias gradients of the same values: distance zero. l2 does see them."""
    rows = np.eye(4) - 0.25
    assert barycenter.sorted_distances(rows[0], np.sort(rows, 1)) == pytest.approx([0, 0, 0, 0])
    assert barycenter.gibbs(rows, EVEN, 1e-3, distance="l2").distances.max() > 0.1


@pytest.mark.parametrize(("scale", "epsilon"), [(1e-5, 1e-5), (3e-6, 1e-5), (1.0, 1.0), (0.1, 0.05)])
def test_published_equals_the_literal_loop_where_the_head_moves(scale, epsilon):
    rows = vectors(1, scale=scale).astype(np.float32)
    found = barycenter.published(rows, EVEN, epsilon, 40).vector
    assert np.linalg.norm(found) > 0
    np.testing.assert_allclose(found, literal_published(rows, EVEN, 40, epsilon), rtol=1e-4, atol=1e-6 * scale)


def test_published_collapses_to_exact_zeros_at_ordinary_scales():
    rows = vectors(1).astype(np.float32)
    found = barycenter.published(rows, EVEN, 1e-5, 1000)
    assert (found.vector == 0).all()
    assert (literal_published(rows, EVEN, 5, 1e-5) == 0).all()


# --- true barycenters


def test_quantiles_of_comonotone_clients_are_the_mean_and_undo_cancellation_otherwise():
    base = np.sort(np.random.default_rng(0).normal(size=20))
    rows = np.stack([base, 2 * base, base + 1, base**3])
    np.testing.assert_allclose(barycenter.quantile_w2(rows, EVEN).vector, rows.mean(0))
    mixed = vectors(2)
    found = barycenter.quantile_w2(mixed, EVEN)
    assert np.linalg.norm(found.vector) >= np.linalg.norm(mixed.mean(0))
    np.testing.assert_allclose(np.sort(found.vector), np.sort(mixed, 1).mean(0))
    assert found.from_mean >= 0.1 * np.linalg.norm(mixed.mean(0))


@pytest.mark.parametrize(
    ("method", "order", "power"), [("quantile_w2", 2, 2), ("quantile_w1", 1, 1), ("geometric_median", 2, 1)]
)
def test_no_other_vector_has_a_smaller_objective(method, order, power):
    """Brute force: sum_i lambda_i W(p, p_i)^power is smallest at the barycenter among thousands of candidates."""
    rng = np.random.default_rng(0)
    rows = vectors(5, size=6)
    weights = np.array([0.1, 0.2, 0.3, 0.4])

    def objective(p):
        return weights @ barycenter.sorted_distances(p, np.sort(rows, 1), order) ** power

    best = objective(barycenter.METHODS[method](rows, weights).vector)
    for scale in (0.001, 0.01, 0.1, 1.0):
        for _ in range(500):
            candidate = barycenter.METHODS[method](rows, weights).vector + scale * rng.normal(size=6)
            assert objective(candidate) >= best - 1e-9


@pytest.mark.parametrize("method", ["sinkhorn_log", "sinkhorn_stabilized", "debiased", "lp"])
def test_the_grid_barycenter_is_the_quantile_barycenter_within_its_bins(method):
    rows = vectors(4, size=200)
    bins = 64 if method == "lp" else 128
    epsilon = 1e-2 if method == "sinkhorn_stabilized" else 1e-3  # below, POT's stabilised solver fails
    found = barycenter.sinkhorn(rows, EVEN, epsilon, bins, method)
    exact = barycenter.quantile_w2(rows, EVEN)
    width = np.ptp(rows) / bins
    blur = {"sinkhorn_log": 3.0, "sinkhorn_stabilized": 3.0, "debiased": 1.5, "lp": 1.0}[method]  # entropy widens
    assert np.abs(np.sort(found.vector) - np.sort(exact.vector)).mean() <= blur * width
    assert found.from_mean >= 0.1 * np.linalg.norm(rows.mean(0))


def test_free_support_matches_units_before_it_averages():
    """Two clients with the same units in another order, one of them shifted: matched, they meet in the middle."""
    rng = np.random.default_rng(0)
    units = 5 * rng.normal(size=(6, 3))
    order = np.array([0, 1, 2, 4, 3, 5])  # few enough swaps that the mean still tells who is who
    rows = np.stack([units.ravel(), (units[order] + 0.2).ravel()])
    found = barycenter.free_support(rows, np.full(2, 0.5), (6, 3))
    points = found.vector.reshape(6, 3)
    for unit in units + 0.1:
        assert np.abs(points - unit).sum(1).min() < 1e-8
    assert found.from_mean >= 0.1 * np.linalg.norm(rows.mean(0))
    np.testing.assert_allclose(found.distances, np.sqrt(3 * 0.1**2), rtol=1e-6)
    bias = barycenter.free_support(rows, np.full(2, 0.5), (18,))
    np.testing.assert_allclose(bias.vector, rows.mean(0))

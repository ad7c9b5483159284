import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from feddual import barycenter
from tests import reference

EVEN = np.full(4, 0.25)
UNEVEN = np.array([0.1, 0.2, 0.25, 0.45])  # no subset weighs one half: every weighted median is unique


def vectors(seed=0, clients=4, size=30, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * (
        rng.normal(size=(clients, size)) * rng.uniform(0.3, 3, (clients, 1)) + rng.normal(size=(clients, 1))
    )


def differs_from_the_mean(found, rows, weights):
    """By a tenth at least: a barycenter that quietly returned the mean would not pass."""
    mean = weights @ rows
    return np.linalg.norm(found - mean) >= 0.1 * np.linalg.norm(mean)


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_the_sorted_distance_is_scipys(seed, size):
    rng = np.random.default_rng(seed)
    p, rows = rng.normal(size=size), rng.normal(size=(3, size))
    expected = [wasserstein_distance(p, row) for row in rows]
    np.testing.assert_allclose(barycenter.sorted_distances(p, np.sort(rows, 1)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", sorted(set(barycenter.METHODS) - {"zero", "free_support"}))
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


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("distance", ["w1", "w2", "l2"])
def test_gibbs_equals_its_twin(distance, relative):
    """Relative epsilon: 0.8 of the median distance from the mean. l2 goes by coordinate, so it has another answer."""
    rows = vectors(3)
    epsilon = 0.8 * np.median([reference.distance(UNEVEN @ rows, row, distance) for row in rows])
    given = {"epsilon": 0.8, "relative": True} if relative else {"epsilon": epsilon}
    found = barycenter.gibbs(rows, UNEVEN, **given, max_iter=1000, tol=1e-14, distance=distance)
    np.testing.assert_allclose(found.vector, reference.gibbs(rows, UNEVEN, epsilon, distance), rtol=1e-10, atol=1e-10)
    distances = [reference.distance(found.vector, row, distance) for row in rows]
    np.testing.assert_allclose(found.distances, distances, rtol=1e-10)
    assert differs_from_the_mean(found.vector, rows, UNEVEN)


def test_a_cycle_of_two_and_where_damping_ends():
    """These clients, found by search, send the plain iteration to and fro; the damped one ends at a fixed point."""
    rows = np.array([[-1.0, 1.0, 3.0], [2.0, 2.0, -1.0], [0.0, -3.0, 3.0]])
    weights = np.full(3, 1 / 3)
    last, before, earlier = (reference.gibbs(rows, weights, 0.25, steps=steps) for steps in (400, 399, 398))
    np.testing.assert_allclose(last, earlier, atol=1e-12)
    assert np.abs(last - before).max() > 0.05
    found = barycenter.gibbs(rows, weights, 0.25, max_iter=1000, tol=1e-13)
    gamma = np.exp([-reference.distance(found.vector, row) / 0.25 for row in rows])
    np.testing.assert_allclose(found.vector, gamma @ rows / gamma.sum(), atol=1e-10)
    assert found.iterations < 1000


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
    assert differs_from_the_mean(found, rows, EVEN)
    np.testing.assert_allclose(found, reference.published(rows, EVEN, 40, epsilon), rtol=1e-4, atol=1e-6 * scale)


def test_published_collapses_to_exact_zeros_at_ordinary_scales():
    rows = vectors(1).astype(np.float32)
    found = barycenter.published(rows, EVEN, 1e-5, 1000)
    assert (found.vector == 0).all()
    assert (reference.published(rows, EVEN, 5, 1e-5) == 0).all()


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
    ("method", "kind", "power"), [("quantile_w2", "w2", 2), ("quantile_w1", "w1", 1), ("geometric_median", "w2", 1)]
)
def test_the_value_distribution_is_the_brute_force_optimum_and_its_order_the_nearest_to_the_mean(method, kind, power):
    """All sorted triples on a grid: the smallest sum_i lambda_i W(p, p_i)^power is the barycenter's, within the grid.

    All six orders of its values: the nearest to the mean is the one returned.
    """
    rows = np.array([[3.0, -1.0, 0.5], [-2.0, 1.5, 1.0], [0.0, -4.0, 2.0], [0.2, 2.5, -0.7]])
    found = barycenter.METHODS[method](rows, UNEVEN).vector
    values = np.linspace(-4, 3, 71)
    triples = np.array(list(itertools.combinations_with_replacement(values, 3)))
    gaps = np.abs(triples[:, None] - np.sort(rows, 1))
    distances = gaps.mean(2) if kind == "w1" else np.sqrt(np.square(gaps).mean(2))
    objective = distances**power @ UNEVEN
    np.testing.assert_allclose(np.sort(found), triples[objective.argmin()], atol=0.1)
    ours = UNEVEN @ [reference.distance(found, row, kind) ** power for row in rows]
    assert ours <= objective.min() + 1e-9
    nearest = min(itertools.permutations(found), key=lambda order: np.linalg.norm(order - UNEVEN @ rows))
    np.testing.assert_array_equal(found, nearest)
    np.testing.assert_allclose(found, reference.quantile(rows, UNEVEN, method), rtol=1e-6)
    assert differs_from_the_mean(found, rows, UNEVEN)


@pytest.mark.parametrize("method", ["sinkhorn_log", "sinkhorn_stabilized", "debiased", "lp"])
def test_the_grid_barycenter_is_the_quantile_barycenter_within_its_bins(method):
    rows = vectors(4, size=200)
    bins = 64 if method == "lp" else 128
    epsilon = 1e-2 if method == "sinkhorn_stabilized" else 1e-3  # below, POT's stabilised solver fails
    found = barycenter.sinkhorn(rows, UNEVEN, epsilon, bins, method)
    exact = reference.quantile(rows, UNEVEN, "quantile_w2")
    width = np.ptp(rows) / bins
    blur = {"sinkhorn_log": 3.0, "sinkhorn_stabilized": 3.0, "debiased": 1.5, "lp": 1.0}[method]  # entropy widens
    assert np.abs(np.sort(found.vector) - np.sort(exact)).mean() <= blur * width
    assert differs_from_the_mean(found.vector, rows, UNEVEN)


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


def test_free_support_is_the_best_of_all_matchings():
    """Two clients of different weight: the points of one, moved towards their partners in the other."""
    rng = np.random.default_rng(1)
    clouds = rng.normal(size=(2, 5, 3))
    clouds[1] = clouds[0][[3, 0, 4, 1, 2]] + 0.4 * rng.normal(size=(5, 3))
    rows, weights = clouds.reshape(2, 15), np.array([0.3, 0.7])
    found = barycenter.free_support(rows, weights, (5, 3)).vector
    expected = reference.free_support(clouds, weights)
    np.testing.assert_allclose(np.sort(found.reshape(5, 3), 0), np.sort(expected, 0), rtol=1e-10)
    assert min(np.abs(found.reshape(5, 3) - expected[list(order)]).max()
               for order in itertools.permutations(range(5))) < 1e-10  # fmt: skip
    assert differs_from_the_mean(found, rows, weights)
    np.testing.assert_allclose(barycenter.free_support(rows[:1], np.ones(1), (5, 3)).vector, rows[0])


def test_a_solver_that_gives_up_does_not_report_a_residual_of_zero():
    """POT warns at epsilon = 1e-6, with an error near 1 after all its iterations; at 1e-2 it is below its threshold."""
    rows = np.random.default_rng(0).normal(size=(3, 100)) + np.array([[0], [3], [9]])
    even = np.full(3, 1 / 3)
    with pytest.warns(UserWarning, match="did not converge"):
        failed = barycenter.sinkhorn(rows, even, 1e-6, 32)
    assert (failed.iterations, failed.residual > 0.5) == (5000, True)
    with pytest.warns(UserWarning, match="Numerical errors"):
        broken = barycenter.sinkhorn(rows, even, 1e-6, 32, "sinkhorn_stabilized")
    assert broken.residual == np.inf
    good = barycenter.sinkhorn(rows, even, 1e-2, 32)
    assert 0 < good.residual < 1e-4
    assert 1 < good.iterations < 100


def test_the_geometric_median_of_huge_values_is_that_of_small_ones():
    """A power of two is exact, so every bit but the exponent is the same; 1e200 squared is no float64."""
    rows = np.array([[1.0, -1.0, 0.3], [2.0, -0.1, 1.0], [1.5, 0.0, 0.0]])
    even = np.full(3, 1 / 3)
    small, huge = (barycenter.geometric_median(rows * scale, even) for scale in (1.0, 2.0**664))
    np.testing.assert_array_equal(huge.vector, small.vector * 2.0**664)
    np.testing.assert_array_equal(huge.distances, small.distances * 2.0**664)
    assert (huge.iterations, huge.residual) == (small.iterations, small.residual)
    np.testing.assert_allclose(small.vector, [1.50512764, -0.26262546, 0.31941885], rtol=1e-7)
    pull = [(row - np.sort(small.vector)) / np.linalg.norm(row - np.sort(small.vector)) for row in np.sort(rows, 1)]
    np.testing.assert_allclose(np.sum(pull, axis=0), 0, atol=1e-7)  # where unit vectors to the clients cancel


def test_a_value_that_is_not_a_number_stays_one_in_the_median():
    """Sorted to the end of its client it took no part in any median: 5, and no trace of it."""
    rows = np.array([[1.0, np.nan, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0]])
    for method in (barycenter.quantile_w1, barycenter.quantile_w2, barycenter.mean):
        assert np.isnan(method(rows, np.full(3, 1 / 3)).vector).tolist() == [False, True, False]

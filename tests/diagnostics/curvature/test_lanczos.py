"""Eigenvalues and quadrature of matrices whose spectra are known, numpy only."""

import numpy as np
import pytest

from diagnostics.curvature import lanczos
from feddual.errors import UserError


def matrix(values, seed=0):
    """A symmetric matrix with these eigenvalues."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return (turned * values) @ turned.T


def of(values, k=5, steps=40, **more):
    made = matrix(np.asarray(values, float))
    return lanczos.eigenvalues(lambda v: made @ v, len(made), k, steps, **more)


DECAY = 10 * 0.8 ** np.arange(200)


def test_both_ends_of_a_known_spectrum():
    found = of(np.r_[DECAY, -3, -2, -1.5, -1.2, -1.1])
    np.testing.assert_allclose(found.largest, DECAY[:5], atol=1e-4)
    np.testing.assert_allclose(found.smallest, [-3, -2, -1.5, -1.2, -1.1], atol=1e-3)
    assert found.converged


def test_the_largest_is_the_largest_when_the_largest_magnitude_is_negative():
    found = of(np.r_[DECAY, -50])
    assert found.largest[0] == pytest.approx(10, rel=1e-6)
    assert found.smallest[0] == pytest.approx(-50, rel=1e-6)
    np.testing.assert_allclose(found.by_magnitude[:2], [-50, 10], rtol=1e-6)


def test_an_eigenvalue_is_found_as_often_as_it_is_there():
    found = of(np.r_[[5.0] * 4, 4.0, np.linspace(-3, 1, 99)], steps=30)
    np.testing.assert_allclose(found.largest, [5, 5, 5, 5, 4], atol=1e-6)


def test_residuals_bound_the_errors():
    values = np.sort(np.random.default_rng(5).normal(size=300))
    found = of(values, steps=20, tolerance=1e-2, most=60)
    for numbers, residuals in (
        (found.largest, found.largest_residuals), (found.smallest, found.smallest_residuals)
    ):  # fmt: skip
        distance = np.abs(numbers[:, None] - values).min(1)
        assert (distance <= residuals + 1e-12).all()


def test_what_has_not_converged_says_so():
    found = of(np.linspace(-1, 1, 400), steps=10, most=40)
    assert not found.converged
    assert found.products <= 60


def test_products_are_no_more_than_allowed():
    calls = []
    made = matrix(DECAY)

    def product(vector):
        calls.append(1)
        return made @ vector

    found = lanczos.eigenvalues(product, 200, 5, 40, most=50)
    assert len(calls) == found.products <= 50


@pytest.mark.parametrize("made", [np.zeros((6, 6)), np.eye(6), np.diag([1.0, 0, 0, 0, 0, 0]), np.array([[2.0]])])
def test_operators_whose_runs_end_early(made):
    size = len(made)
    found = lanczos.eigenvalues(lambda v: made @ v, size, 5, 10)
    np.testing.assert_allclose(found.largest, np.linalg.eigvalsh(made)[::-1][:5], atol=1e-12)


def test_a_basis_stays_orthonormal_over_many_steps():
    made = matrix(DECAY)
    run = lanczos.Krylov(lambda v: made @ v, lanczos.start(0, 0, 200))
    run.grow(150)
    np.testing.assert_allclose(run.basis @ run.basis.T, np.eye(run.steps), atol=1e-12)


def test_quadrature_has_the_moments_of_its_start_vector():
    """Sums of weight times node^j are v' A^j v, exactly up to twice the steps less one."""
    made, first = matrix(DECAY), lanczos.start(3, 1, 200)
    run = lanczos.Krylov(lambda v: made @ v, first)
    run.grow(8)
    nodes, weights = lanczos.quadrature(run, 8)
    power = first.copy()
    for order in range(16):
        assert np.sum(weights * nodes**order) == pytest.approx(first @ power, rel=1e-9), order
        power = made @ power


def test_a_short_run_is_filled_up_with_weightless_nodes():
    run = lanczos.Krylov(lambda v: 3 * v, lanczos.start(0, 0, 50))
    run.grow(10)
    nodes, weights = lanczos.quadrature(run, 10)
    np.testing.assert_allclose(nodes[:1], 3)
    np.testing.assert_allclose(weights, [1] + [0] * 9, atol=1e-12)


def test_a_basis_too_large_is_refused_before_it_is_made():
    with pytest.raises(UserError, match=r"steps: .*GiB"):
        lanczos.check_memory(240, 100_000_000)

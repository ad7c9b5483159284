"""Principal directions through the Gram matrix, against the singular value decomposition of the whole."""

import numpy as np
import pytest

from diagnostics.surfaces import principal as module
from diagnostics.surfaces.grid import axis
from diagnostics.surfaces.principal import extent_around, principal
from feddual.errors import UserError


def several(count=7, size=40, seed=0):
    rng = np.random.default_rng(seed)
    return [one.astype(np.float32) for one in np.cumsum(rng.normal(size=(count, size)), 0)]


@pytest.mark.parametrize("block", [3, 16, 1000])
def test_the_gram_matrix_gives_what_svd_of_all_differences_does(block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    vectors = several()
    found = principal(vectors, vectors[-1], 40, count=3)
    differences = np.stack(vectors).astype(np.float64) - vectors[-1]
    left, lengths, right = np.linalg.svd(differences, full_matrices=False)
    signs = np.sign((found.axes * right[:3]).sum(1))
    np.testing.assert_allclose(found.axes, signs[:, None] * right[:3], atol=1e-9)
    np.testing.assert_allclose(found.shares, lengths**2 / (lengths**2).sum(), atol=1e-9)
    np.testing.assert_allclose(found.coordinates, signs * (left * lengths)[:, :3], atol=1e-9)
    np.testing.assert_allclose(found.axes @ found.axes.T, np.eye(3), atol=1e-9)


def test_coordinates_are_projections_from_the_origin_not_centred_scores():
    vectors = several()
    found = principal(vectors, vectors[-1], 40)
    np.testing.assert_allclose(found.coordinates[-1], 0, atol=1e-6)  # the origin itself
    assert abs(found.coordinates.mean(0)).max() > 1
    by_hand = [(one.astype(np.float64) - vectors[-1]) @ found.axes.T for one in vectors]
    np.testing.assert_allclose(found.coordinates, by_hand, atol=1e-6)
    np.testing.assert_allclose(found.project(vectors)[0], found.coordinates, atol=1e-6)


def test_the_distance_from_the_plane_is_by_pythagoras():
    vectors = several()
    found = principal(vectors, vectors[-1], 40)
    inside = found.coordinates @ found.axes
    whole = np.stack(vectors).astype(np.float64) - vectors[-1]
    np.testing.assert_allclose(found.off[:-1], np.linalg.norm(whole - inside, axis=1)[:-1], rtol=1e-6)
    lengths = np.linalg.norm(whole, axis=1)
    np.testing.assert_allclose(found.off**2 + (found.coordinates**2).sum(1), lengths**2, atol=1e-6)
    other = np.random.default_rng(9).normal(size=(1, 40)).astype(np.float32)
    place, off = found.project(list(other))
    aside = (other[0] - vectors[-1].astype(np.float64)) - place[0] @ found.axes
    assert off[0] == pytest.approx(np.linalg.norm(aside))


def test_moving_statistics_do_not_count():
    vectors = several()
    changed = [np.concatenate([one[:30], 100 * one[30:]]) for one in vectors]
    first, second = (principal(some, some[-1], 30) for some in (vectors, changed))
    assert np.array_equal(first.axes, second.axes)
    assert [direction.vector.shape for direction in first.directions] == [(40,), (40,)]
    assert not first.directions[0].vector[30:].any()


def test_what_lies_on_one_line_has_no_plane():
    start = several()[0]
    with pytest.raises(UserError, match="span fewer than 2 directions"):
        principal([start, 2 * start, 3 * start], start, 40)
    with pytest.raises(UserError, match="not finite"):
        principal([start, start * np.nan, 2 * start], start, 40)


@pytest.mark.parametrize("values", [[0.0, 3.7], [-2.2, 0.0, 9.1], [1.0, 2.0], [-5.0, -4.0], [0.0]])
@pytest.mark.parametrize("count", [5, 15, 24])
def test_an_extent_holds_all_values_and_has_zero_on_the_grid(values, count):
    low, high = extent_around(np.array(values), count)
    found = axis(count, low, high)  # refuses an axis that misses zero
    assert 0.0 in found
    assert low < min(values)
    assert high > max(values)
    np.testing.assert_allclose(np.diff(found), (high - low) / (count - 1))

"""Definitions of what averaging breaks: numbers known by hand, closed forms, and twins that share no code."""

import numpy as np
import pytest

from diagnostics.forgetting import measures
from diagnostics.forgetting.measures import Directions

LABELS = np.array([0, 0, 1, 1, 3])
LOGITS = np.eye(4)[[0, 1, 1, 1, 0]]  # right, wrong, right, right, wrong


def simplex(classes):
    """Corners of a regular simplex around zero, all of length one."""
    corners = np.eye(classes) - 1 / classes
    return corners / np.linalg.norm(corners, axis=1, keepdims=True)


def test_accuracy_by_class_by_hand():
    right = measures.is_right(LOGITS, LABELS)
    assert right.tolist() == [True, False, True, True, False]
    np.testing.assert_array_equal(measures.class_accuracy(right, LABELS, 4), [0.5, 1.0, np.nan, 0.0])
    assert measures.share_right(right, LABELS, [0, 3]) == pytest.approx(1 / 3)
    assert np.isnan(measures.share_right(right, LABELS, [2]))
    assert np.isnan(measures.share_right(right, LABELS, []))


def test_an_answer_that_is_not_finite_is_wrong():
    broken = LOGITS.copy()
    broken[2, 0] = np.nan
    assert measures.is_right(broken, LABELS).tolist() == [True, False, False, True, False]


def test_what_is_forgotten_and_what_is_lost_add_up_to_the_round():
    before, after, aggregated = np.array([0.9, 0.2]), np.array([[1.0, 0.0], [0.1, 0.8]]), np.array([0.8, 0.7])
    forgotten, lost = measures.forgotten(before, after), measures.lost(after, aggregated)
    np.testing.assert_allclose(forgotten, [[-0.1, 0.2], [0.8, -0.6]])
    np.testing.assert_allclose(lost, [[0.2, -0.7], [-0.7, 0.1]])
    np.testing.assert_allclose(forgotten + lost, np.broadcast_to(before - aggregated, (2, 2)))


def test_class_means_by_hand():
    features = np.array([[1, 2], [3, 4], [0, 0], [2, 2], [9, -9]], np.float32)
    expected = [[2, 3], [1, 1], [np.nan, np.nan], [9, -9]]
    np.testing.assert_array_equal(measures.class_means(features, LABELS, 4), expected)
    np.testing.assert_array_equal(measures.centred(np.array(expected)), np.array(expected) - [4, -5 / 3])


def test_cosines_between_clients_by_hand():
    """Three clients' vectors of a class at 0, 60 and 120 degrees: cosines 1/2, 1/2 and -1/2, a mean of 1/6."""
    degrees = np.radians([0, 60, 120])
    vectors = np.stack([np.cos(degrees), np.sin(degrees)], 1)[:, None] * np.array([2, 5, 0.1])[:, None, None]
    several = [Directions.of(measures.units(one)) for one in vectors]
    assert several[0].plus(several[1]).plus(several[2]).mean_cosine == pytest.approx([1 / 6], abs=1e-6)
    assert np.isnan(several[0].mean_cosine).all()


def test_mean_cosines_are_those_of_every_pair():
    rng = np.random.default_rng(0)
    clients = rng.normal(size=(5, 3, 7))
    clients[2, 1] = 0  # has no direction, and is no half of a pair
    clients[4, 0] = np.nan
    sums = Directions.of(measures.units(clients[0]))
    for one in clients[1:]:
        sums = sums.plus(Directions.of(measures.units(one)))
    for label in range(3):
        known = [v for v in clients[:, label] if np.isfinite(v).all() and v.any()]
        pairs = [
            a @ b / np.sqrt((a @ a) * (b @ b)) for place, a in enumerate(known) for b in known[place + 1 :]
        ]  # fmt: skip
        assert sums.mean_cosine[label] == pytest.approx(np.mean(pairs), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_regular_simplex_has_collapsed_wherever_it_lies(classes):
    rng = np.random.default_rng(classes)
    rotation = np.linalg.qr(rng.normal(size=(20, classes)))[0]
    labels = np.repeat(np.arange(classes), np.arange(2, classes + 2))  # unequal classes change nothing
    features = (7 * simplex(classes) @ rotation.T + rng.normal(size=20))[labels]
    found = measures.collapse_of(features, labels)
    assert (found.classes, found.examples) == (classes, len(labels))
    numbers = [found.nc1, found.equinorm, found.equiangle, found.simplex_angle]
    np.testing.assert_allclose(numbers, 0, atol=1e-6)  # cosines are of float32 vectors


def test_collapse_by_hand():
    """Two classes on a line at -3 and 3, each spread by 1: S_W = 1, S_B = 9. One axis more carries no difference."""
    features = np.array([[-4.0, 5], [-2, -5], [2, 5], [4, -5]])
    found = measures.collapse_of(features, np.array([0, 0, 1, 1]))
    assert found.nc1 == pytest.approx(1 / 9 / 2)
    assert (found.equinorm, found.equiangle) == (0, 0)
    # Three classes at 0, 3 and 6: their centred means have lengths 3, 0 and 3, mean 2 and deviation sqrt(2).
    three = measures.collapse_of(np.array([[0.0], [3], [6]]), np.arange(3))
    assert three.equinorm == pytest.approx(np.sqrt(2) / 2)


def test_right_angles_are_no_simplex():
    """Means less their own mean: (2, -1, -1), (-1, 2, -1), (-1, -1, 2) are one; stretched in one axis they are not."""
    stretched = measures.collapse_of(np.diag([1.0, 1, 4]), np.arange(3))
    offsets = np.diag([1.0, 1, 4]) - np.array([1, 1, 4]) / 3
    lengths = np.sqrt((offsets**2).sum(1))
    cosines = [offsets[i] @ offsets[j] / lengths[i] / lengths[j] for i, j in ((0, 1), (0, 2), (1, 2))]
    assert stretched.equinorm == pytest.approx(np.std(lengths) / np.mean(lengths))
    assert stretched.equiangle == pytest.approx(np.std(cosines), abs=1e-6)
    assert stretched.simplex_angle == pytest.approx(np.mean(np.abs(np.array(cosines) + 0.5)), abs=1e-6)


@pytest.mark.parametrize("width", [3, 6, 40])
def test_nc1_is_the_trace_with_the_pseudo_inverse(width):
    """Against covariance matrices written out, in fewer, as many and more dimensions than classes."""
    rng = np.random.default_rng(width)
    labels = rng.integers(0, 5, 200)
    features = rng.normal(size=(200, width)) * rng.uniform(0.1, 3, width) + 2 * rng.normal(size=(5, width))[labels] + 30
    means = np.stack([features[labels == label].mean(0) for label in range(5)])
    within = np.mean([np.cov(features[labels == label].T, bias=True) for label in range(5)], axis=0)
    between = np.cov(means.T, bias=True)
    expected = np.trace(within @ np.linalg.pinv(between, rcond=1e-9)) / 5
    assert measures.collapse_of(features, labels).nc1 == pytest.approx(expected, rel=1e-8)


def test_collapse_of_what_has_no_classes_is_not_a_number():
    one = measures.collapse_of(np.ones((3, 2)), np.zeros(3, int))
    infinite = measures.collapse_of(np.array([[np.inf], [1.0]]), np.arange(2))
    same = measures.collapse_of(np.ones((4, 2)), np.array([0, 0, 1, 1]))
    assert all(np.isnan(found.nc1) for found in (one, infinite, same))


def logits_of(sure):
    """Of two classes, the first of them with these probabilities."""
    return np.log(np.stack([sure, 1 - np.asarray(sure)], 1))


def test_calibration_by_hand():
    """Four of 0.6, half of them right, and two of 0.95, both right: 4/6 0.1 + 2/6 0.05."""
    found = measures.reliability(logits_of([0.6] * 4 + [0.95] * 2), np.array([0, 0, 1, 1, 0, 0]))
    assert found.ece == pytest.approx(4 / 6 * 0.1 + 2 / 6 * 0.05)
    assert found.count.tolist() == [0] * 8 + [4] + [0] * 5 + [2]  # 0.6 = 9/15 closes the ninth bin
    assert (found.confidence[8], found.accuracy[8]) == (pytest.approx(0.6), 0.5)
    assert np.isnan(found.accuracy[0])


def test_a_calibrated_model_has_no_error_and_a_sure_one_the_share_it_is_wrong():
    labels = np.repeat([0, 1, 0, 1], [7, 3, 4, 6])
    calibrated = logits_of([0.7] * 10 + [0.4] * 10)
    assert measures.reliability(calibrated, labels).ece == pytest.approx(0, abs=1e-12)
    sure = 1000 * np.eye(2)[np.zeros(20, int)]
    found = measures.reliability(sure, labels)
    assert found.ece == pytest.approx(9 / 20)
    assert found.count[-1] == 20  # a confidence of one lies in the last bin


def test_calibration_against_a_loop():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(500, 7)) * 2, rng.integers(0, 7, 500)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    total = 0.0
    for place in range(15):
        here = [k for k in range(500) if place / 15 < probabilities[k].max() <= (place + 1) / 15]
        if here:
            right = np.mean([probabilities[k].argmax() == labels[k] for k in here])
            total += len(here) / 500 * abs(right - np.mean([probabilities[k].max() for k in here]))
    assert measures.reliability(logits, labels).ece == pytest.approx(total)


def test_answers_that_are_not_finite_are_not_asked_how_sure_they_are():
    logits = np.array([[np.nan, 0], [0.0, np.inf], [3.0, 3.0]])
    found = measures.reliability(logits, np.zeros(3, int))
    assert found.count.sum() == 1
    assert found.ece == pytest.approx(0.5)
    assert np.isnan(measures.reliability(logits[:2], np.zeros(2, int)).ece)


def test_worst_tenth_and_spread_by_hand():
    accuracies = np.arange(20) / 20
    assert measures.worst_tenth(accuracies) == pytest.approx(0.025)  # of 0 and 0.05
    assert measures.worst_tenth(accuracies[:11]) == pytest.approx(0.025)  # at least a tenth: two of eleven
    assert measures.worst_tenth(np.array([0.4, np.nan])) == 0.4
    assert measures.spread(np.array([0.2, 0.6])) == pytest.approx(0.2)
    assert np.isnan(measures.worst_tenth(np.zeros(0)))

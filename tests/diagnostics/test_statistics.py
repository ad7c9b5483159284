"""Intervals against cases known by hand and a slow twin; what has no interval; where variance comes from."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from diagnostics.statistics import (
    band,
    crossed,
    over_pairs,
    over_repetitions,
    over_runs,
    over_seeds,
    repeated,
    said,
    simultaneous,
    variance_components,
)
from feddual.errors import UserError
from feddual.records.identity import Replicate

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "coverage.json"


def test_students_interval_by_hand():
    """1, 2, 3: the mean 2, the standard error 1 / √3, and 4.3027 of them with two degrees of freedom."""
    half = 4.3027 / 3**0.5
    assert over_runs(np.array([1.0, 2, 3])).floats() == pytest.approx((2, 2 - half, 2 + half), rel=1e-4)
    several = over_runs(np.array([[1.0, 5], [2, 5], [3, 5]]))
    np.testing.assert_allclose(several.high - several.mean, [half, 0], rtol=1e-4)


def test_one_run_has_no_interval():
    mean, low, high = over_runs(np.array([7.0])).floats()
    assert mean == 7
    assert np.isnan([low, high]).all()
    assert np.isnan(crossed(np.arange(5.0)[None])[1])


def test_several_intervals_hold_at_once():
    """Of five at 95 % each is one at 99 %, 9.9248 standard errors with two degrees of freedom."""
    assert simultaneous(5) == pytest.approx(0.99)
    wide = over_runs(np.array([1.0, 2, 3]), simultaneous(5))
    assert wide.high - wide.mean == pytest.approx(9.9248 / 3**0.5, rel=1e-4)


def grid(draws, seeds):
    return [Replicate(draw, seed) for draw in range(draws) for seed in range(seeds)]


def test_runs_of_one_draw_are_crossed_with_their_directions():
    values = np.random.default_rng(0).normal(size=(3, 4))
    assert repeated(grid(1, 3), values).floats() == crossed(values).floats()


def test_draws_that_differ_make_the_interval_as_wide_as_draws_alone():
    """Two draws at 0 and 1, whatever the seed and the direction: t with one degree of freedom, 12.706 of 1 / 2."""
    values = np.repeat([0.0, 1.0], 3)[:, None] + np.zeros((6, 4))
    found = repeated(grid(2, 3), values)
    assert found.floats() == pytest.approx((0.5, 0.5 - 12.706 / 2, 0.5 + 12.706 / 2), rel=1e-4)
    assert crossed(values).high < 1.2  # as six independent runs it would be far too short
    shuffled = [5, 0, 3, 1, 4, 2]  # in any order
    again = repeated([grid(2, 3)[place] for place in shuffled], values[shuffled])
    assert again.floats() == pytest.approx(found.floats())


def test_draws_with_unequal_seeds_count_once_each():
    values = np.array([[0.0], [0.0], [1.0], [2.0]])
    which = [Replicate(0, 0), Replicate(0, 1), Replicate(1, 0), Replicate(2, 0)]
    assert repeated(which, values).floats() == over_runs(np.array([0.0, 1, 2])).floats()


def twin(values, level=0.95):
    """`crossed` with loops: the half-width."""
    seeds, directions = values.shape
    mean = np.mean(values)
    rows, columns = [np.mean(row) for row in values], [np.mean(column) for column in values.T]
    a = directions * sum((one - mean) ** 2 for one in rows) / (seeds - 1)
    b = seeds * sum((one - mean) ** 2 for one in columns) / (directions - 1)
    free = (seeds - 1) * (directions - 1)
    cells = itertools.product(range(seeds), range(directions))
    rest = sum((values[i, j] - rows[i] - columns[j] + mean) ** 2 for i, j in cells) / free

    def half(variance, freedom):
        return stats.t.ppf((1 + level) / 2, freedom) * (variance / values.size) ** 0.5

    alone = half(a, seeds - 1), half(b, directions - 1)
    if a > rest and b > rest:
        both = a + b - rest
        freedom = both**2 / (a**2 / (seeds - 1) + b**2 / (directions - 1) + rest**2 / free)
        return "both", max(half(both, freedom), *alone)
    if a > rest or b > rest:
        return ("seed", alone[0]) if a > rest else ("direction", alone[1])
    return "none", stats.t.ppf((1 + level) / 2, values.size - 1) * np.std(values, ddof=1) / values.size**0.5


def test_seeds_crossed_with_directions():
    """By hand: [[0, 2], [4, 8]] has mean squares 25, 9 and 1; the seeds' Student t with one degree is the widest."""
    low, high = crossed(np.array([[0.0, 2], [4, 8]]))[1:]
    assert (low, high) == pytest.approx((3.5 - 12.7062 * 2.5, 3.5 + 12.7062 * 2.5), rel=1e-4)
    rng = np.random.default_rng(0)
    many = rng.normal(size=(3, 1, 60)) + rng.normal(size=(1, 5, 60)) + 1.5 * rng.normal(size=(3, 5, 60))
    found = crossed(many)
    expected = [twin(many[:, :, place]) for place in range(60)]
    assert {name for name, _ in expected} == {"both", "seed", "direction", "none"}
    np.testing.assert_allclose(found.high - found.mean, [half for _, half in expected])
    np.testing.assert_allclose(found.mean - found.low, [half for _, half in expected])


def test_a_number_repeated_for_each_direction_is_one_number():
    losses = np.array([1.0, 2, 3])
    np.testing.assert_allclose(crossed(np.repeat(losses[:, None], 5, 1)), over_runs(losses))


def test_repetitions_over_draws_and_seeds():
    values = np.array([[1.0, 2, 4], [3, 3, 8]])  # draws, seeds
    every = {Replicate(draw, seed): values[draw, seed] for draw in range(2) for seed in range(3)}
    np.testing.assert_allclose(over_repetitions(every), crossed(values))
    one = {which: value for which, value in every.items() if which.draw == 0}
    np.testing.assert_allclose(over_repetitions(one), over_runs(values[0]))
    missing = {which: value for which, value in every.items() if which != Replicate(1, 2)}
    np.testing.assert_allclose(over_repetitions(missing), over_runs(np.array([7 / 3, 3])))
    assert np.isnan(over_repetitions({})).all()


@pytest.mark.parametrize(("seed", "direction", "rest"), [(1, 0.2, 0.2), (0.2, 1, 0.2), (1, 1, 0.5), (0.6, 0.2, 0.5)])
def test_intervals_cover_what_they_are_of(seed, direction, rest):
    rng = np.random.default_rng(0)
    shapes = {(3, 1): seed, (1, 5): direction, (3, 5): rest}
    _, low, high = crossed(np.asarray(sum(sd * rng.normal(size=(*shape, 20_000)) for shape, sd in shapes.items())))
    assert 93 < 100 * np.mean((low < 0) & (high > 0)) < 97


def test_recorded_coverage():
    """Interaction alone cannot be told from seeds by three of them, so that its interval is longer than need be."""
    found = {name: one["percent"] for name, one in json.loads(COVERAGE.read_text())["designs"].items()}
    wide = [found.pop(name) for name in list(found) if name == "only_interaction" or name.startswith("two_draws")]
    assert len(wide) == 5
    assert all(97 < percent < 99.5 for percent in wide)
    assert all(93 <= percent <= 97 for name, percent in found.items() if not name.startswith("not_"))


def test_what_is_said():
    assert said(0.333, 0.3, 0.37) == "0.333 [0.3, 0.37]"
    assert said(0.333, np.nan, np.nan, ".1f") == "0.3"
    assert said(1.0, 0.9, 1.1, bound=">") == "> 1"
    assert said(np.nan, np.nan, np.nan) == "–"


def test_spreads_over_seeds_by_hand():
    assert over_seeds([1.0, None, 3.0]) == pytest.approx((2, 2**0.5))
    assert np.isnan(over_seeds([1.0])[1])
    assert np.isnan(over_seeds([None])).all()
    mean, low, high = band(pd.DataFrame({0: [1.0, 5.0], 1: [3.0, np.nan]}))
    assert mean.tolist() == [2, 5]
    assert high[0] - low[0] == pytest.approx(2 * 2**0.5)
    assert np.isnan([low[1], high[1]]).all()


def tidy(values, *factors):
    """A row for each entry of an array."""
    places = itertools.product(*map(range, np.shape(values)))
    return pd.DataFrame([{**dict(zip(factors, at, strict=True)), "value": np.array(values)[at]} for at in places])


def components(frame, *factors, **options):
    return variance_components(frame, "value", factors, **options).set_index("component")


def test_variance_components_of_two_crossed_factors():
    """[[0, 2], [4, 8]]: mean squares 25, 9 and 1, so (25 - 1) / 2, (9 - 1) / 2 and 1."""
    found = components(tidy([[0.0, 2], [4, 8]], "seed", "direction"), "seed", "direction")
    assert found["variance"].to_dict() == pytest.approx({"seed": 12, "direction": 4, "rest": 1})
    assert found["share"].sum() == pytest.approx(1)
    assert found["freedom"].tolist() == [1, 1, 1]


def test_variance_components_of_partition_seed_and_direction():
    """Effects that add up: each component is the variance of its two levels, and nothing is left."""
    values = 10.0 * np.arange(2)[:, None, None] + 4.0 * np.arange(2)[:, None] + 2.0 * np.arange(2)
    found = components(tidy(values, *(names := ("partition", "seed", "direction"))), *names)
    assert found["variance"][list(names)].tolist() == pytest.approx([50, 8, 2])
    assert found["variance"].sum() == pytest.approx(60)
    assert len(found) == 7


def test_variance_components_of_seeds_within_partitions():
    """[[0, 2], [10, 14]]: within 2 and 8, mean 5; between 2 · 60.5 = 121, so (121 - 5) / 2 = 58."""
    pairs = tidy([[0.0, 2], [10, 14]], "partition", "seed")
    pairs["seed"] += 2 * pairs["partition"]  # every run has a seed of its own
    found = components(pairs, "partition", "seed", nested={"seed": "partition"})
    assert found["variance"].to_dict() == pytest.approx({"partition": 58, "seed in partition": 5})
    assert found["freedom"].tolist() == [1, 2]
    cube = np.array([[0.0, 2], [10, 14]])[:, :, None] + 2.0 * np.arange(2)  # and directions that shift all alike
    names = ("partition", "seed", "direction")
    found = components(tidy(cube, *names), *names, nested={"seed": "partition"})
    expected = {"partition": 58, "direction": 2, "seed in partition": 5, "partition × direction": 0, "rest": 0}
    assert found["variance"].to_dict() == pytest.approx(expected)


def test_what_variance_components_cannot_tell():
    found = components(tidy([[0.0, 2], [2, 0]], "seed", "direction"), "seed", "direction")
    assert found["variance"].tolist() == pytest.approx([0, 0, 4])  # the others come out as (0 - 4) / 2
    assert found["negative"].tolist() == [True, True, False]
    alone = components(tidy([[[0.0, 2], [4, 8]]], *(names := ("partition", "seed", "direction"))), *names)
    assert np.isnan(alone.loc["partition", "variance"])
    assert alone.loc["seed", "variance"] == pytest.approx(12)
    with pytest.raises(UserError, match="one row for each combination"):
        components(tidy([[0.0, 2], [4, 8]], "seed", "direction").iloc[1:], "seed", "direction")


def test_pairs_of_additive_members_have_the_interval_of_the_members_sum():
    """With y_ij = a_i + a_j over all pairs the mean is 2 ā, and the jackknife's variance 4 s² / n exactly."""
    a = np.random.default_rng(0).normal(size=6)
    pairs = {(i, j): a[i] + a[j] for i in range(6) for j in range(i)}
    mean, low, high = over_pairs(pairs).floats()
    assert mean == pytest.approx(2 * a.mean())
    half = 2.570582 * 2 * a.std(ddof=1) / np.sqrt(6)  # Student's t with five degrees of freedom
    assert (high - mean, mean - low) == (pytest.approx(half, rel=1e-5), pytest.approx(half, rel=1e-5))


def test_too_few_members_have_no_interval():
    assert np.isnan(over_pairs({("a", "b"): 1.0}).low)
    assert np.isnan(over_pairs({}).mean)
    assert np.isnan(over_pairs({("a", "b"): 1.0, ("a", "c"): 2.0}).low)  # without a nothing is left


def test_the_jackknife_over_members_covers():
    rng, hits = np.random.default_rng(1), 0
    for _ in range(400):
        a, rest = rng.normal(size=10), rng.normal(size=(10, 10))
        low, high = over_pairs({(i, j): a[i] + a[j] + rest[i, j] for i in range(10) for j in range(i)})[1:]
        hits += bool(low <= 0 <= high)
    assert 0.92 <= hits / 400 <= 0.98

"""Hutch++: exact where it must be, its interval where it samples."""

import numpy as np
import pytest

from diagnostics.curvature.traces import hutchpp
from feddual.errors import UserError


def symmetric(rng, size, decay):
    turned = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = rng.choice([-1, 1], size, p=[0.2, 0.8]) * (1.0 + np.arange(size)) ** -decay
    return (turned * values) @ turned.T


def test_a_matrix_of_low_rank_has_its_trace_exactly():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(60, 5))
    made = low @ low.T
    found, _ = hutchpp(lambda v: made @ v, 60, 30)
    assert found.value == pytest.approx(np.trace(made), rel=1e-9)
    assert found.error < 1e-9 * np.trace(made)


def test_a_small_matrix_is_written_out():
    made = symmetric(np.random.default_rng(1), 10, 1)
    found, _ = hutchpp(lambda v: made @ v, 10, 99)
    assert found.value == pytest.approx(np.trace(made), rel=1e-9)
    assert found.interval().low == found.interval().high


def test_blocks_add_up_and_are_right_where_the_whole_is():
    rng = np.random.default_rng(2)
    made, low = symmetric(rng, 90, 1), rng.normal(size=(90, 4))
    blocks = {"a": np.arange(20), "b": np.arange(20, 50), "c": np.arange(50, 90)}
    whole, parts = hutchpp(lambda v: made @ v, 90, 45, blocks=blocks)
    assert sum(one.value for one in parts.values()) == pytest.approx(whole.value, rel=1e-12)
    made = low @ low.T
    _, parts = hutchpp(lambda v: made @ v, 90, 45, blocks=blocks)
    for name, where in blocks.items():
        assert parts[name].value == pytest.approx(np.trace(made[np.ix_(where, where)]), rel=1e-9), name


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0, 2.0])
def test_the_interval_covers_the_trace(decay):
    """Of 300 random matrices; 95 % nominal, four standard errors of the count below."""
    hits = block_hits = 0
    for trial in range(300):
        made = symmetric(np.random.default_rng(trial), 80, decay)
        half = np.arange(40)
        found, parts = hutchpp(lambda v, a=made: a @ v, 80, 45, seed=trial, blocks={"half": half})
        _, low, high = found.interval().floats()
        hits += low <= np.trace(made) <= high
        _, low, high = parts["half"].interval().floats()
        block_hits += low <= np.trace(made[:40, :40]) <= high
    assert min(hits, block_hits) / 300 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 300)


def test_too_few_probes_are_refused():
    with pytest.raises(UserError, match="probes"):
        hutchpp(lambda v: v, 10, 5)

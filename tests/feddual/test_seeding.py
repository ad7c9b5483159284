import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feddual import seeding

small = st.integers(0, 1000)


@given(small, small, small)
def test_a_stream_repeats_and_differs_from_its_neighbours(run_seed, round_index, client):
    draw = lambda *key: seeding.generator(*key).random(4).tolist()  # noqa: E731
    assert draw(run_seed, "batches", round_index, client) == draw(run_seed, "batches", round_index, client)
    assert draw(run_seed, "batches", round_index, client) != draw(run_seed + 1, "batches", round_index, client)
    assert draw(run_seed, "batches", round_index, client) != draw(run_seed, "batches", round_index + 1, client)
    assert draw(run_seed, "batches", round_index, client) != draw(run_seed, "batches", round_index, client + 1)
    assert draw(run_seed, "batches", round_index, client) != draw(run_seed, "sampling", round_index, client)


@given(small, small, st.integers(1, 50))
def test_sampled_clients_are_distinct_sorted_and_in_range(run_seed, round_index, num_clients):
    chosen = seeding.sample_clients(run_seed, round_index, num_clients, max(1, num_clients // 2))
    assert len(set(chosen.tolist())) == len(chosen) == max(1, num_clients // 2)
    assert (np.diff(chosen) > 0).all()
    assert 0 <= chosen.min()
    assert chosen.max() < num_clients


def test_the_values_are_pinned():
    """Another machine, Python or numpy must draw the same: these are part of what makes a run reproducible."""
    assert seeding.seed(0, "sampling", 1) == 6525725280672901888
    assert seeding.sample_clients(0, 1, 100, 10).tolist() == [4, 32, 36, 48, 53, 57, 58, 84, 85, 96]


def test_batch_orders_are_permutations():
    orders = seeding.batch_orders(0, 1, 2, 7, 3)
    assert orders.shape == (3, 7)
    assert orders.dtype == np.int32
    assert (np.sort(orders, axis=1) == np.arange(7)).all()
    assert seeding.batch_orders(0, 1, 2, 7, 0).shape == (0, 7)

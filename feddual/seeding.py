"""Stateless randomness: every stream follows from (run seed, purpose, round, client, epoch) and nothing else.

No generator is kept between calls, so a resumed run, a run on other workers and an uninterrupted one draw the same
numbers.
"""

import hashlib

import numpy as np


def seed(run_seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose.

    Args:
        run_seed: The experiment's seed.
        purpose: What is drawn, such as `"sampling"` or `"batches"`.
        *where: Round, client, epoch, as far as they matter.

    Returns:
        An integer in [0, 2**63).
    """
    text = ":".join([str(run_seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(run_seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A fresh numpy generator for `seed(run_seed, purpose, *where)`."""
    return np.random.Generator(np.random.PCG64(seed(run_seed, purpose, *where)))


def sample_clients(run_seed: int, round_index: int, num_clients: int, clients_per_round: int) -> np.ndarray:
    """The clients of a round: uniform without replacement, in ascending order.

    It depends on seed and round alone, so all algorithms of a comparison see the same clients.
    """
    chosen = generator(run_seed, "sampling", round_index).choice(num_clients, clients_per_round, replace=False)
    return np.sort(chosen)


def batch_orders(run_seed: int, round_index: int, client_id: int, num_examples: int, epochs: int) -> np.ndarray:
    """The order in which a client visits its examples, one row an epoch: int32, shape (epochs, num_examples)."""
    rngs = [generator(run_seed, "batches", round_index, client_id, epoch) for epoch in range(epochs)]
    orders = [rng.permutation(num_examples) for rng in rngs]
    return np.array(orders, np.int32).reshape(epochs, num_examples)

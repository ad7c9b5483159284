import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddual.data import partition
from feddual.data.partition import PARTITIONS, Partition
from feddual.errors import UserError
from feddual.experiment import config

DISJOINT = sorted(set(PARTITIONS) - {"published", "niid_bench"})
BALANCED = {"fmnist": np.repeat(np.arange(10), 6000), "cifar10": np.repeat(np.arange(10), 5000),
            "cifar100": np.repeat(np.arange(100), 500)}  # fmt: skip


def call(name, labels, alpha, **keywords):
    if name not in ("iid", "shards"):
        keywords["alpha"] = alpha
    if name == "dirichlet_classes":
        keywords["min_size"] = 1
    return PARTITIONS[name](labels, **keywords)


@pytest.mark.parametrize(
    ("dataset", "draws", "distinct", "minimum", "median", "maximum", "floor", "above_100"),
    [("fmnist", 60846, 44614, 10, 24, 4887, 38, 34), ("cifar10", 50877, 39580, 10, 13, 5912, 45, 29),
     ("cifar100", 58968, 40304, 100, 569, 1786, None, None)],
)  # fmt: skip
def test_published_sizes_for_seed_42(dataset, draws, distinct, minimum, median, maximum, floor, above_100):
    """Known from running the public code's arithmetic; sizes depend on the random stream only, not on the images."""
    found = partition.published(BALANCED[dataset])
    sizes = found.sizes
    assert len(set(found.indices.tolist())) == distinct
    assert (sizes.sum(), sizes.min(), np.median(sizes), sizes.max()) == (draws, minimum, median, maximum)
    if floor is not None:
        assert ((sizes == 10).sum(), (sizes > 100).sum()) == (floor, above_100)


def test_published_is_the_public_code_bit_for_bit():
    """The public script's steps, transcribed: shuffle, one Dirichlet draw per class, choice per class and client."""
    labels = np.random.default_rng(0).integers(0, 5, 300)
    np.random.seed(42)  # noqa: NPY002
    shuffled = np.random.permutation(300)  # noqa: NPY002
    shares = np.random.dirichlet(np.ones(7) * 0.1, size=5)  # noqa: NPY002
    expected = [[] for _ in range(7)]
    for label in range(5):
        members = np.where(labels[shuffled] == label)[0]
        for client in range(7):
            count = int(shares[label, client] * len(members)) or 1
            expected[client].extend(shuffled[np.random.choice(members, size=count, replace=False)])  # noqa: NPY002
    found = partition.published(labels, num_clients=7, alpha=0.1, seed=42)
    assert [found.client(client).tolist() for client in range(7)] == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.sampled_from([0.01, 0.3, 5.0]), st.integers(0, 99))
def test_published_gives_every_client_every_class(num_clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 4, 200)
    for rule in (partition.published, partition.published_disjoint):
        found = rule(labels, num_clients=num_clients, alpha=alpha, seed=seed)
        assert (found.histograms(labels, 4) >= 1).all()
        for client in range(num_clients):
            assert len(set(found.client(client).tolist())) == len(found.client(client))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(DISJOINT), st.integers(1, 15), st.sampled_from([0.001, 0.01, 0.5, 10.0]), st.integers(0, 99))
def test_disjoint_rules_use_every_example_once(name, num_clients, alpha, seed):
    labels = np.concatenate([np.repeat(np.arange(5), 40), np.random.default_rng(seed).integers(0, 5, 50)])
    found = call(name, labels, alpha, num_clients=num_clients, seed=seed)
    assert found.num_clients == num_clients
    assert np.sort(found.indices).tolist() == list(range(len(labels)))
    assert found.histograms(labels, 5).sum() == len(labels)
    again = call(name, labels, alpha, num_clients=num_clients, seed=seed)
    assert found.fingerprint == again.fingerprint
    if num_clients > 1:
        assert found.fingerprint != call(name, labels, alpha, num_clients=num_clients, seed=seed + 100).fingerprint


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["iid", "dirichlet_clients"]), st.integers(1, 30), st.sampled_from([0.01, 1.0]))
def test_equal_sizes(name, num_clients, alpha):
    labels = np.arange(301) % 7
    sizes = call(name, labels, alpha, num_clients=num_clients).sizes
    assert sizes.max() - sizes.min() <= 1


def test_dirichlet_clients_conventions_differ_by_the_number_of_classes():
    labels = np.arange(20000) % 10

    def classes_seen(alpha, convention):
        counts = partition.dirichlet_clients(labels, 100, alpha, convention).histograms(labels, 10)
        shares = counts / counts.sum(1, keepdims=True)
        return np.mean(1 / (shares**2).sum(1))

    assert classes_seen(0.5, "per_class") == pytest.approx(classes_seen(5.0, "total"), rel=0.1)
    assert classes_seen(0.5, "total") < 0.7 * classes_seen(0.5, "per_class")
    # E sum q^2 = (1 + alpha) / (1 + C alpha) = 0.918 at alpha = 0.01: about one class a client
    assert classes_seen(0.01, "per_class") < 1.5


def test_repair_gives_every_client_its_minimum():
    sizes = partition.dirichlet_classes(BALANCED["fmnist"], alpha=0.01, min_size=10).sizes
    assert sizes.min() == 10
    assert sizes.sum() == 60000


def test_niid_bench_stops_instead_of_hanging():
    with pytest.raises(UserError, match=r"partition\.alpha.*20 tries"):
        partition.niid_bench(BALANCED["fmnist"], alpha=0.01, max_tries=20)
    found = partition.niid_bench(BALANCED["fmnist"], alpha=0.5)
    assert found.sizes.min() >= 10
    assert np.sort(found.indices).tolist() == list(range(60000))


def test_shards_hold_few_classes():
    labels = np.arange(1000) % 10
    counts = partition.shards(labels, num_clients=50, shards_per_client=2).histograms(labels, 10)
    assert ((counts > 0).sum(1) <= 4).all()
    assert (counts.sum(1) == 20).all()


def test_more_clients_than_examples_is_an_error():
    section = config.section_class("partition", {"name": "iid"})(num_clients=20)
    with pytest.raises(UserError, match=r"partition\.num_clients: 20"):
        partition.split(np.arange(10), section)


def test_ten_thousand_clients():
    found = partition.dirichlet_clients(np.arange(60000) % 10, num_clients=10000)
    assert found.num_clients == 10000
    assert (found.sizes == 6).all()


def test_histograms_count_by_hand():
    found = Partition.of([np.array([0, 1]), np.array([2])])
    assert found.histograms(np.array([1, 1, 0]), 2).tolist() == [[0, 2], [1, 0]]

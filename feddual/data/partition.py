"""Who holds which example: pure functions from labels and a seed to client index lists.

Each rule is a function `rule(labels, num_clients, ...) -> Partition`; its keyword parameters are the keys of the
config's `partition` section, its name the value of `partition.name`. A user's own, `module:name`, may also return a
list with an array of indices for each client.

"Dirichlet(alpha)" means different things in the literature; the rules below keep them apart:

* over clients, for each class (`published`, `published_disjoint`, `dirichlet_classes`, `niid_bench`): alpha governs how
  many clients share a class, and client sizes differ widely;
* over classes, for each client (`dirichlet_clients`): alpha governs how many classes a client sees, and all clients
  have the same size.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from feddual import display
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.experiment.schema import Alpha, NumClients, Seed

Pieces = Annotated[int, Field(ge=1, description="label-sorted pieces each client gets")]
AtLeast = Annotated[int, Field(ge=1, description="examples every client ends up with at least")]
Smallest = Annotated[int, Field(ge=1, description="a draw with a smaller client is rejected")]
Tries = Annotated[int, Field(ge=1, description="draws before giving up")]
_CONVENTION = "per_class: Dir(alpha, ..., alpha); total: Dir(alpha / C, ...), as Hsu et al. write it"
Convention = Annotated[Literal["per_class", "total"], Field(description=_CONVENTION)]


@dataclass(frozen=True)
class Partition:
    """Client index lists as one array: client k holds `indices[offsets[k]:offsets[k + 1]]`."""

    indices: np.ndarray  # int64
    offsets: np.ndarray  # int64, num_clients + 1 values

    @classmethod
    def of(cls, clients: Sequence[np.ndarray]) -> "Partition":
        """A partition from index lists.

        Args:
            clients: The indices of the examples that each client holds.

        Returns:
            The partition.
        """
        offsets = np.cumsum([0, *map(len, clients)]).astype(np.int64)
        return cls(np.concatenate([np.asarray(client, np.int64) for client in clients]), offsets)

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def client(self, client_id: int) -> np.ndarray:
        """What one client holds.

        Args:
            client_id: From 0.

        Returns:
            The indices of its examples.
        """
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def histograms(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Count the examples of each class at each client.

        Args:
            labels: Of all examples.
            num_classes: How many classes there are.

        Returns:
            Counts, (num_clients, num_classes).
        """
        owners = np.repeat(np.arange(self.num_clients), self.sizes)
        counts = np.zeros((self.num_clients, num_classes), np.int64)
        np.add.at(counts, (owners, labels[self.indices]), 1)
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the index lists."""
        return hashlib.sha256(self.indices.tobytes() + self.offsets.tobytes()).hexdigest()

    def _repr_html_(self) -> str:
        sizes, distinct = self.sizes, len(np.unique(self.indices))
        facts = {
            "examples": f"{distinct} in all, {len(self.indices) - distinct} of them held more than once",
            "a client holds": f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}",
            "fingerprint": self.fingerprint[:12],
        }
        return display.facts(f"{self.num_clients} clients", facts, display.bars(sizes.tolist()))


def split(labels: np.ndarray, config: Any) -> Partition:
    """Partition the examples as the config's `partition` section says."""
    parameters = config.model_dump()
    name = parameters.pop("name")
    result = plugins.find("partitions", name, "partition.name")(labels, **parameters)
    if not isinstance(result, Partition):
        result = Partition.of(result)
    asked = parameters["num_clients"]
    if result.num_clients != asked:
        raise UserError(f"partition.num_clients: {name!r} made {result.num_clients} clients of {asked}")
    empty = np.flatnonzero(result.sizes == 0)
    if len(empty):
        raise UserError(
            f"partition.num_clients: {result.num_clients} clients leave {len(empty)} of them without a "
            f"single one of the {len(labels)} examples; use fewer clients"
        )
    return result


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]


def iid(labels: np.ndarray, num_clients: NumClients = 100, seed: Seed = 42) -> Partition:
    """Examples dealt at random, sizes equal up to one."""
    order = np.random.default_rng(seed).permutation(len(labels))
    return Partition.of(np.array_split(order, num_clients))


def shards(
    labels: np.ndarray, num_clients: NumClients = 100, shards_per_client: Pieces = 2, seed: Seed = 42
) -> Partition:
    """Examples sorted by label and cut into equal shards, dealt at random (McMahan et al., AISTATS 2017)."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_clients * shards_per_client)
    dealt = rng.permutation(len(pieces)).reshape(num_clients, shards_per_client)
    return Partition.of([np.concatenate([pieces[piece] for piece in mine]) for mine in dealt])


def published(labels: np.ndarray, num_clients: NumClients = 100, alpha: Alpha = 0.01, seed: Seed = 42) -> Partition:
    """The public FedDUAL code's rule, bit for bit: Dirichlet over clients per class, a floor of one, with overlap.

    Each client draws max(1, int(share * class size)) examples of each class without replacement, but independently of
    the other clients, so clients may share examples. It consumes numpy's legacy stream in the same order as the public
    code; `seed` 42 is the one used there.
    """
    # The legacy generator on purpose: only it reproduces the published index lists.
    rng = np.random.RandomState(seed)
    shuffled = rng.permutation(len(labels))
    by_class = _by_class(labels[shuffled])
    shares = rng.dirichlet(np.full(num_clients, alpha), size=len(by_class))
    clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for members, share in zip(by_class, _finite_shares(shares, rng), strict=True):
        if len(members) == 0:
            continue
        for client, count in zip(clients, np.maximum(1, (share * len(members)).astype(int)), strict=True):
            client.append(rng.choice(members, size=count, replace=False))
    return Partition.of([shuffled[np.concatenate(client)] for client in clients])


def published_disjoint(
    labels: np.ndarray, num_clients: NumClients = 100, alpha: Alpha = 0.01, seed: Seed = 42
) -> Partition:
    """As `published`, but no example is held twice: the floor of one is set aside first, the rest is split."""
    rng = np.random.default_rng(seed)
    clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label, members in enumerate(_by_class(labels)):
        if 0 < len(members) < num_clients:
            raise UserError(
                f"partition.num_clients: {num_clients} is more than the {len(members)} examples of class "
                f"{label}, and every client needs one; use fewer clients or another partition"
            )
        members = rng.permutation(members)
        floor, rest = members[:num_clients], members[num_clients:]
        share = _finite_shares(rng.dirichlet(np.full(num_clients, alpha))[None], rng)[0]
        for client, own, more in zip(clients, floor, _cut(rest, share), strict=False):
            client.extend([own[None], more])
    return Partition.of([np.concatenate(client) for client in clients])


def dirichlet_classes(
    labels: np.ndarray, num_clients: NumClients = 100, alpha: Alpha = 0.1, min_size: AtLeast = 10, seed: Seed = 42
) -> Partition:
    """Dirichlet over clients per class, every example used once; small clients are filled up from the largest ones."""
    rng = np.random.default_rng(seed)
    clients = _class_wise(labels, num_clients, alpha, rng)
    if num_clients * min_size > len(labels):
        raise UserError(
            f"partition.min_size: {min_size} examples for {num_clients} clients are more than the "
            f"{len(labels)} there are; at most {len(labels) // num_clients}"
        )
    lists = [list(rng.permutation(client)) for client in clients]
    sizes = np.array([len(client) for client in lists])
    for client_id in np.flatnonzero(sizes < min_size):
        while sizes[client_id] < min_size:
            largest = int(np.argmax(sizes))
            lists[client_id].append(lists[largest].pop())
            sizes[client_id] += 1
            sizes[largest] -= 1
    return Partition.of([np.array(client) for client in lists])


def niid_bench(
    labels: np.ndarray, num_clients: NumClients = 100, alpha: Alpha = 0.5, min_size: Smallest = 10,
    max_tries: Tries = 100, seed: Seed = 42,
) -> Partition:  # fmt: skip
    """NIID-Bench's rule: a client that holds its even share gets no more; the draw repeats until all have min_size."""
    rng = np.random.default_rng(seed)
    for _ in range(max_tries):
        clients = _class_wise(labels, num_clients, alpha, rng, even_share=len(labels) / num_clients)
        if min(map(len, clients)) >= min_size:
            return Partition.of(clients)
    raise UserError(
        f"partition.alpha: niid_bench found no split of {len(labels)} examples over {num_clients} clients "
        f"with alpha = {alpha} and at least {min_size} examples each in {max_tries} tries; raise alpha or "
        "max_tries, lower min_size or num_clients, or use dirichlet_classes"
    )


def dirichlet_clients(
    labels: np.ndarray, num_clients: NumClients = 100, alpha: Alpha = 0.1, convention: Convention = "per_class",
    seed: Seed = 42,
) -> Partition:  # fmt: skip
    """Dirichlet over classes per client, all clients of one size (Hsu, Qi and Brown, 2019).

    A client draws a class from its own distribution, then an example of it without replacement; a class that is used up
    is left out and the distribution renormalised.
    """
    rng = np.random.default_rng(seed)
    stocks = [rng.permutation(members) for members in _by_class(labels)]
    left = np.array([len(stock) for stock in stocks])
    concentration = alpha if convention == "per_class" else alpha / len(stocks)
    preferences = _finite_shares(rng.dirichlet(np.full(len(stocks), concentration), size=num_clients), rng)
    clients = []
    for size, preference in zip(map(len, np.array_split(labels, num_clients)), preferences, strict=True):
        taken = np.zeros(len(stocks), int)
        while (missing := size - taken.sum()) > 0:
            chance = np.where(left > 0, preference, 0.0)
            if not chance.sum() > 1e-12:  # all its classes are used up: take from what is left
                chance = left.astype(float)
            drawn = np.minimum(rng.multinomial(missing, chance / chance.sum()), left)
            taken += drawn
            left -= drawn
        parts = [stock[rest : rest + take] for stock, rest, take in zip(stocks, left, taken, strict=True)]
        clients.append(np.concatenate(parts))
    return Partition.of([rng.permutation(client) for client in clients])


def _class_wise(
    labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator, even_share: float = np.inf
) -> list[np.ndarray]:
    clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    sizes = np.zeros(num_clients)
    for members in _by_class(labels):
        share = _finite_shares(rng.dirichlet(np.full(num_clients, alpha))[None], rng)[0] * (sizes < even_share)
        if not share.sum() > 0:  # the whole class was meant for clients that are full
            share = (sizes < even_share).astype(float)
        for client, piece in zip(clients, _cut(rng.permutation(members), share / share.sum()), strict=True):
            client.append(piece)
        sizes += [len(client[-1]) for client in clients]
    return [np.concatenate(client) for client in clients]


def _cut(members: np.ndarray, share: np.ndarray) -> list[np.ndarray]:
    return np.split(members, (np.cumsum(share)[:-1] * len(members)).astype(int))


def _finite_shares(shares: np.ndarray, rng: Any) -> np.ndarray:
    """Rows of a Dirichlet draw; a tiny alpha can underflow to 0/0, which stands for one client taking all."""
    for row in shares:
        if not np.isfinite(row).all() or row.sum() == 0:
            row[:] = 0.0
            row[rng.permutation(len(row))[0]] = 1.0
    return shares


_ALL = (dirichlet_classes, dirichlet_clients, iid, niid_bench, published, published_disjoint, shards)
PARTITIONS: dict[str, Callable[..., Partition]] = {rule.__name__: rule for rule in _ALL}

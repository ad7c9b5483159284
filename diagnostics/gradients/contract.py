"""What a definition of "gradient norm" is: words for people, and functions of what a client or a round can show.

A definition is one file of `diagnostics/gradients/definitions/`, named as the definition, with `DEFINITION = ...`; one
of a user's own is `module:name`. Nothing else knows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from diagnostics.gradients.layers import Groups
from feddual.probes import ClientView, RoundView
from feddual.seeding import generator

BY_PRODUCT = "a by-product"


@dataclass(frozen=True)
class Definition:
    """One meaning of the word.

    Args:
        letter: Its short name.
        formula: What it is, with w the global weights before a round, w_k client k's after its local training, F_k its
            mean loss over n_k examples, g_k = grad F_k(w), p_k its weight in the average, all per layer.
        cost: What measuring takes; `BY_PRODUCT`s are recorded in every round, the others on a schedule.
        name: In files and tables; the file's name by default.
        is_norm: Else a ratio or an angle, which has no units and no normalisation.
        is_signed: Whether noise can make it negative: then rounds are averaged before a ratio is taken.
        at_client: The value of each layer where a client has trained; None when this client cannot say.
        across_clients: A value of each client that takes all of them, in their order.
        of_all: One value of each layer for the whole round; or by layer, when it knows some only.
        sends: What it needs of each client at the host besides values, kept under the function's name.
        shares: The definition whose pass over the data it shares: with one, all of these are measured at clients.
        at_local: Whether the gradient is taken at w_k, whose norm is then that of `relative` and `scale_free`.
        by_default: Whether it is measured unless others are asked for.
        place: Files list definitions by this number, then by letter.
    """

    letter: str
    formula: str
    cost: str
    name: str = ""
    is_norm: bool = True
    is_signed: bool = False
    at_client: "Callable[[AtClient], np.ndarray | None] | None" = None
    across_clients: "Callable[[OfRound], Sequence[np.ndarray]] | None" = None
    of_all: "Callable[[OfRound], np.ndarray | Mapping[str, float]] | None" = None
    sends: "Callable[[AtClient], Any] | None" = None
    shares: str = ""
    at_local: bool = False
    by_default: bool = True
    place: int = 0

    @property
    def is_by_product(self) -> bool:
        return self.cost == BY_PRODUCT

    @property
    def family(self) -> str:
        """The definition whose pass it takes: another's, or its own."""
        return self.shares or self.name


@dataclass(frozen=True)
class Halves:
    """A gradient over a set of examples as its means over two halves of them; a single example has no first half."""

    groups: Groups
    first: np.ndarray | None
    second: np.ndarray
    sizes: tuple[int, int]

    @cached_property
    def mean(self) -> np.ndarray:
        """Over all the examples."""
        if self.first is None:
            return self.second
        one, two = self.sizes
        return (self.first * one + self.second * two) / (one + two)

    @cached_property
    def without_noise(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The squared gradient norm without noise, and the trace of the gradient's covariance for one example."""
        if self.first is None:
            return None
        one, two = self.sizes
        return two_halves(self.groups, self.first, self.second, 2 * one * two / (one + two))


def two_halves(groups: Groups, first: np.ndarray, second: np.ndarray, half: float) -> tuple[np.ndarray, np.ndarray]:
    """The squared gradient norm without noise, and the trace of the gradient's covariance for one example.

    With independent halves of b examples each: E<g', g''> = ||g||^2 and E||g'||^2 = ||g||^2 + tr(Sigma) / b.

    Args:
        groups: Layers or variables.
        first: Mean gradient over the first half.
        second: Mean gradient over the second half.
        half: b; the harmonic mean where the halves differ by an example.
    """
    product = groups.inner(first, second)
    return product, half * ((groups.squares(first) + groups.squares(second)) / 2 - product)


class AtClient:
    """What a definition may look at where a client has trained; a pass is made once, when it is first asked for."""

    def __init__(self, view: ClientView, groups: Groups, samples: int):
        """Args: what the engine shows of the client, its layers or variables, the size of the probe set."""
        self.groups, self.view, self._samples = groups, view, samples
        self.trained, self.learning_rate = view.trained, view.learning_rate
        self.steps = max(view.trained.steps, 1)
        self.num_examples = len(view.y)

    def gradient(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Of the client's mean loss at its trained weights, over all its data or some rows."""
        return np.asarray(self.view.gradient(self.trained.weights, rows))

    @cached_property
    def drift(self) -> np.ndarray:
        """||w - w_k||."""
        return self.groups.norms(self.trained.weights.astype(np.float64) - self.view.global_weights)

    @cached_property
    def probe_set(self) -> np.ndarray:
        """The rows of the client's data it is measured on."""
        return probe_set(self.view.client_id, self.num_examples, self._samples)

    @cached_property
    def halves(self) -> Halves:
        """g_k over the probe set."""
        view = self.view
        one, two = random_halves(self.probe_set, view.experiment.seed, view.round_index, view.client_id)
        second = view.gradient(view.global_weights, two).astype(np.float64)
        first = view.gradient(view.global_weights, one).astype(np.float64) if len(one) else None
        return Halves(self.groups, first, second, (len(one), len(two)))

    def over_steps(self, which: int) -> np.ndarray:
        """The root mean square over the steps of cross-entropy's gradient (0), or of the one the step took (1)."""
        return np.sqrt(self.groups.of_steps(self.trained.square_sums[which]) / self.steps)


def probe_set(client_id: int, num_examples: int, samples: int) -> np.ndarray:
    """At most `samples` rows of a client's data, fixed by its number alone."""
    return np.sort(generator(0, "probe", 0, client_id).permutation(num_examples)[:samples])


def random_halves(rows: np.ndarray, run_seed: int, *where: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows dealt into two halves: data often lie in the order of their classes, and classes pull in other directions.

    Args:
        rows: Of a probe set.
        run_seed: The experiment's seed.
        *where: Round and client, or an epoch; each has halves of its own.

    Returns:
        The halves; the second has one row more where their number is odd.
    """
    dealt = generator(run_seed, "probe halves", *where).permutation(rows)
    return dealt[: len(rows) // 2], dealt[len(rows) // 2 :]


@dataclass(frozen=True)
class Gathered:
    """The clients that count in a round, and sums over them."""

    clients: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()  # p_k before they are normalised
    moved: Any = 0.0  # sum_k (w - w_k)
    weighted: Any = 0.0  # sum_k p_k (w - w_k)

    def plus(self, client: int, weight: float, moved: np.ndarray) -> "Gathered":
        """With one more client."""
        return Gathered(
            (*self.clients, client), (*self.weights, weight), self.moved + moved, self.weighted + weight * moved
        )


@dataclass(frozen=True)
class OfRound:
    """What a definition may look at on the host after a round; clients in their order, those set aside left out."""

    groups: Groups
    gathered: Gathered
    measured: Mapping[int, Mapping[str, Any]]  # by client: `values` and `sent`
    view: RoundView
    server_samples: int

    @cached_property
    def shares(self) -> np.ndarray:
        """p_k."""
        return np.array(self.gathered.weights) / np.sum(self.gathered.weights)

    def values(self, name: str) -> np.ndarray:
        """What the clients measured, shape (clients, layers)."""
        return np.array([self.measured[client]["values"][name] for client in self.gathered.clients])

    def sent(self, name: str) -> list[Any]:
        """What the clients sent."""
        return [self.measured[client]["sent"][name] for client in self.gathered.clients]

    @cached_property
    def mean_gradient(self) -> np.ndarray:
        """sum_k p_k g_k, of definitions that send `gradient`."""
        return np.tensordot(self.shares, np.array(self.sent("gradient"), np.float64), 1)


def gradient(client: AtClient) -> np.ndarray:
    """To be sent: g_k."""
    return client.halves.mean.astype(np.float32)

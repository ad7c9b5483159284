"""The contract of an algorithm. Every default is FedAvg, so an algorithm overrides only where it differs.

State is a value: slots (arrays by name) go in and come out, an instance holds parameters only. Methods marked *traced*
run while TensorFlow builds the graph of the local loop: they see and return tensors. All others run on numpy arrays.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from feddual import aggregation
from feddual.experiment.schema import Section
from feddual.functional.layout import Layout
from feddual.functional.network import Outputs as Outputs

Slots = dict[str, np.ndarray]


@dataclass(frozen=True)
class ServerState:
    """What the server keeps from round to round."""

    weights: np.ndarray
    slots: Slots = field(default_factory=dict)


Finished = tuple[ServerState, dict[str, Any]]  # the next state, and facts to record with the round


@dataclass(frozen=True)
class Batch:
    """A batch of a client's data, in the traced loop."""

    x: Any
    y: Any
    indices: Any  # positions in the client's data
    weights: Any  # sum to one, zero for padding: `sum(weights * values)` is the mean over the batch
    count: Any  # examples in it


@dataclass(frozen=True)
class ClientContext:
    """What a hook may know. In traced hooks the arrays are tensors."""

    layout: Layout
    global_weights: Any  # the vector the server sent, (layout.size,)
    server: Any  # the server's slots
    client: Any  # this client's slots
    x: Any
    y: Any
    num_examples: Any
    learning_rate: float
    forward_all: Any = None  # traced: forward_all(weights) -> Outputs of all the client's data, in inference mode
    accuracy: Any = None  # traced: accuracy(weights) on all its data
    gradient: Any = None  # traced: gradient(weights, entries=None) of the mean cross-entropy over all its data
    before: Any = None  # traced: what before_training returned
    epoch: Any = None  # traced: what start_epoch returned

    def with_(self, **values: Any) -> "ClientContext":
        """The context with some of its fields replaced.

        Args:
            **values: Fields and what they become.

        Returns:
            Another context.
        """
        return replace(self, **values)


@dataclass(frozen=True)
class Trained:
    """What the local loop hands to `finish_client`."""

    weights: np.ndarray  # local weights after training
    gradient_sum: np.ndarray  # of the steps' gradients, as they came from the loss
    steps: int
    epoch_loss: np.ndarray  # mean over each epoch's batches, while training
    epoch_accuracy: np.ndarray
    extras: dict[str, np.ndarray]  # what after_training returned
    epoch_facts: np.ndarray  # a row per epoch, a column for each of the algorithm's `epoch_facts`
    # Of the steps, over the parts that a probe's `step_norms` asks for, (2, parts): squared norms of cross-entropy's
    # gradient, and of the gradient the optimizer is given.
    square_sums: np.ndarray


@dataclass(frozen=True)
class ClientResult:
    """What a client sends back, and what is recorded of it."""

    client_id: int
    num_examples: int
    weights: np.ndarray
    payload: Slots = field(default_factory=dict)  # anything else the server needs
    slots: Slots = field(default_factory=dict)  # the client's new state
    metrics: dict[str, float] = field(default_factory=dict)  # a row of clients.jsonl
    probes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in (self.weights, *self.payload.values()))


class Algorithm:
    """FedAvg; the base of all others: override what differs, and name the class as `algorithm.name: module:Class`.

    Example:
        >>> import feddual
        >>> class Halved(feddual.Algorithm):
        ...     def adjust_gradient(self, ctx, gradient, weights):
        ...         return gradient / 2
        >>> Halved(Halved.Params(), training=None).adjust_gradient(None, 3.0, None)
        1.5
    """

    class Params(Section):
        """Keys of the `algorithm` section, besides name and preset."""

    communication_text: ClassVar[str] = "model / model"
    memory_text: ClassVar[str] = "–"  # state kept between rounds, at a client and at the server
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named settings of Params
    default_preset: ClassVar[str | None] = None
    former_presets: ClassVar[dict[str, str]] = {}  # names of before, which recorded runs still have, and those of now
    # What protocol `faithful` sets, on top of SGD with learning rate 0.01: the algorithm's official weighting, ...
    faithful: ClassVar[dict[str, Any]] = {"training": {"weighting": "num_examples"}}
    paper: ClassVar[dict[str, Any]] = {}

    def __init__(self, params: Any, training: Any):
        """Keep the settings; nothing else is ever kept.

        Args:
            params: The config's `algorithm` section, an instance of `Params`.
            training: The config's `training` section.
        """
        self.params = params
        self.training = training

    @classmethod
    def protocol_defaults(cls, protocol: str) -> dict[str, Any]:
        """What a protocol sets for this algorithm.

        Args:
            protocol: `paper` or `faithful`.

        Returns:
            A partial config, weaker than what an experiment says.
        """
        from feddual.experiment.config import merge

        if protocol == "faithful":
            return merge({"training": {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.0}}, cls.faithful)
        return merge({"training": {"optimizer": "adam", "learning_rate": 1e-3, "weighting": "uniform"}}, cls.paper)

    def check(self, experiment: Any) -> None:
        """Refuse combinations that make no sense.

        Args:
            experiment: The resolved experiment.

        Raises:
            UserError: Naming the key, its value and what is allowed.
        """

    @property
    def epoch_facts(self) -> tuple[str, ...]:
        """The numbers among what `start_epoch` returns that are recorded, by client and round."""
        return ()

    # --- state

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        """What the server keeps besides the weights, before the first round.

        Args:
            layout: Which part of a weight vector is which tensor.
            weights: The initial weights, (layout.size,).

        Returns:
            Arrays by name; types stay as they are here, and so do the shapes of what `broadcast` sends.
        """
        return {}

    def broadcast(self, server: ServerState) -> Slots:
        """What a client is sent besides the weights, and finds as `ctx.server`.

        Args:
            server: The server's state before the round.

        Returns:
            The server's slots, without those that it keeps to itself; by default all.
        """
        return server.slots

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        """What a client keeps between rounds, before its first one.

        Args:
            layout: Which part of a weight vector is which tensor.
            weights: The initial weights, (layout.size,).

        Returns:
            Arrays by name; types and shapes stay as they are here.
        """
        return {}

    # --- client

    def start_weights(self, layout: Layout, weights: np.ndarray, client: Slots) -> np.ndarray:
        """The weights a client starts from.

        Args:
            layout: Which part of a weight vector is which tensor.
            weights: The global weights.
            client: This client's slots.

        Returns:
            A weight vector, by default the global one.
        """
        return weights

    def momentum(self, layout: Layout) -> Any:
        """Momentum where it differs within the vector, for SGD.

        Args:
            layout: Which part of a weight vector is which tensor.

        Returns:
            A value for each trainable weight, (num_trainable,); None takes `training.momentum` for all.
        """
        return None

    def before_training(self, ctx: ClientContext) -> dict[str, Any]:
        """Traced, once: what is computed before the first step.

        Args:
            ctx: What a hook may know.

        Returns:
            Tensors by name, for `ctx.before`.
        """
        return {}

    def start_epoch(self, ctx: ClientContext, epoch: Any, weights: Any, accuracy: Any) -> dict[str, Any]:
        """Traced, each epoch: what is computed at its start.

        Args:
            ctx: What a hook may know.
            epoch: Its index, from 0.
            weights: The local weights now, the whole vector.
            accuracy: Of the previous epoch's own batches; 0 in the first.

        Returns:
            Tensors by name, for `ctx.epoch`.
        """
        return {}

    def loss_term(self, ctx: ClientContext, weights: Any, batch: Batch, outputs: Outputs, cross_entropy: Any) -> Any:
        """Traced, each step: what is minimised.

        Args:
            ctx: What a hook may know.
            weights: The trainable weights now, (num_trainable,).
            batch: The step's examples.
            outputs: The network's answers to them.
            cross_entropy: Their mean cross-entropy.

        Returns:
            The loss, a scalar.
        """
        return cross_entropy

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        """Traced, each step: the gradient that the optimizer sees.

        Args:
            ctx: What a hook may know.
            gradient: Of the loss, (num_trainable,).
            weights: The trainable weights now.

        Returns:
            A gradient, (num_trainable,).
        """
        return gradient

    def after_step(self, ctx: ClientContext, weights: Any) -> Any:
        """Traced, each step: the last word on the weights.

        Args:
            ctx: What a hook may know.
            weights: The trainable weights after the optimizer's step.

        Returns:
            The trainable weights for the next step.
        """
        return weights

    def after_training(self, ctx: ClientContext, weights: Any) -> dict[str, Any]:
        """Traced, once: what is computed after the last step.

        Args:
            ctx: What a hook may know.
            weights: The local weights, the whole vector.

        Returns:
            Tensors by name, for `Trained.extras`.
        """
        return {}

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        """What a client sends besides its weights, and what it keeps.

        Args:
            ctx: What a hook may know, as numpy arrays.
            trained: What the local loop gave.

        Returns:
            The payload for the server, and the client's new slots.
        """
        return {}, ctx.client

    # --- server

    def client_weight(self, result: ClientResult) -> float:
        """A client's weight in averages, before they are normalised.

        Args:
            result: What the client sent.

        Returns:
            One, or its number of examples, as `training.weighting` says.
        """
        return float(result.num_examples) if self.training.weighting == "num_examples" else 1.0

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        """Take one client's result in; called in the order of client ids.

        Args:
            acc: What the last call returned, None at first.
            result: What the client sent.
            server: The server's state before the round.

        Returns:
            Whatever `finish` needs.
        """
        return aggregation.add(acc, result.weights, self.client_weight(result))

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        """End a round at the server.

        Args:
            server: Its state before the round.
            acc: What `accumulate` returned for the last client.
            layout: Which part of a weight vector is which tensor.
            num_clients: In the whole federation.

        Returns:
            The next server state, and facts to record with the round.
        """
        return replace(server, weights=aggregation.mean(acc)), {}

    def evaluation_weights(self, server: ServerState, layout: Layout) -> np.ndarray:
        """The weights that are tested.

        Args:
            server: The server's state.
            layout: Which part of a weight vector is which tensor.

        Returns:
            A vector, or several as rows, whose metrics are averaged.
        """
        return server.weights

    # --- facts

    def communication(self, layout: Layout) -> tuple[int, int]:
        """How much is sent in a round.

        Args:
            layout: Which part of a weight vector is which tensor.

        Returns:
            The number of values sent to a client, and from it.
        """
        return layout.size, layout.size

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        """Overrides under which the algorithm equals FedAvg, or the reason there are none."""
        return {}

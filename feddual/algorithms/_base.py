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
    square_sums: np.ndarray  # of the steps' gradients, over the parts that a probe's `step_norms` asks for


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
    """FedAvg; the base of all others."""

    class Params(Section):
        """Keys of the `algorithm` section, besides name and preset."""

    communication_text: ClassVar[str] = "model / model"
    memory_text: ClassVar[str] = "–"  # state kept between rounds, at a client and at the server
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named settings of Params; a dotted key is of another section
    default_preset: ClassVar[str | None] = None
    # What protocol `faithful` sets, on top of SGD with learning rate 0.01: the algorithm's official weighting, ...
    faithful: ClassVar[dict[str, Any]] = {"training": {"weighting": "num_examples"}}
    paper: ClassVar[dict[str, Any]] = {}

    def __init__(self, params: Any, training: Any):
        self.params = params
        self.training = training

    @classmethod
    def protocol_defaults(cls, protocol: str) -> dict[str, Any]:
        """What a protocol sets for this algorithm, as a partial config."""
        from feddual.experiment.config import merge

        if protocol == "faithful":
            return merge({"training": {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.0}}, cls.faithful)
        return merge({"training": {"optimizer": "adam", "learning_rate": 1e-3, "weighting": "uniform"}}, cls.paper)

    def check(self, experiment: Any) -> None:
        """Refuse combinations that make no sense, with a UserError."""

    @property
    def epoch_facts(self) -> tuple[str, ...]:
        """The numbers among what `start_epoch` returns that are recorded, by client and round."""
        return ()

    # --- state

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        return {}

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        return {}

    # --- client

    def start_weights(self, layout: Layout, weights: np.ndarray, client: Slots) -> np.ndarray:
        """The weights a client starts from, given the global ones."""
        return weights

    def momentum(self, layout: Layout) -> Any:
        """Momentum of each trainable value, (num_trainable,), for SGD; None takes `training.momentum` for all."""
        return None

    def before_training(self, ctx: ClientContext) -> dict[str, Any]:
        """Traced, once: values for `ctx.before`."""
        return {}

    def start_epoch(self, ctx: ClientContext, epoch: Any, weights: Any, accuracy: Any) -> dict[str, Any]:
        """Traced, each epoch: values for `ctx.epoch`.

        Args:
            ctx: The context.
            epoch: Its index, from 0.
            weights: The local weights now, the whole vector.
            accuracy: Of the previous epoch's own batches; 0 in the first.
        """
        return {}

    def loss_term(self, ctx: ClientContext, weights: Any, batch: Batch, outputs: Outputs, cross_entropy: Any) -> Any:
        """Traced, each step: the loss, given the batch's mean cross-entropy."""
        return cross_entropy

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        """Traced, each step: the gradient (num_trainable,) that the optimizer sees."""
        return gradient

    def after_step(self, ctx: ClientContext, weights: Any) -> Any:
        """Traced, each step: the trainable weights after the optimizer's step."""
        return weights

    def after_training(self, ctx: ClientContext, weights: Any) -> dict[str, Any]:
        """Traced, once: tensors for `Trained.extras`."""
        return {}

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        """The payload for the server and the client's new slots."""
        return {}, ctx.client

    # --- server

    def client_weight(self, result: ClientResult) -> float:
        return float(result.num_examples) if self.training.weighting == "num_examples" else 1.0

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        """Take one client's result in; called in client-id order, with None at first."""
        return aggregation.add(acc, result.weights, self.client_weight(result))

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        """The next server state, and facts to record with the round."""
        return replace(server, weights=aggregation.mean(acc)), {}

    def evaluation_weights(self, server: ServerState, layout: Layout) -> np.ndarray:
        """The weights that are tested: a vector, or several as rows, whose metrics are averaged."""
        return server.weights

    # --- facts

    def communication(self, layout: Layout) -> tuple[int, int]:
        """Values sent to and from a client in a round."""
        return layout.size, layout.size

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        """Overrides under which the algorithm equals FedAvg, or the reason there are none."""
        return {}

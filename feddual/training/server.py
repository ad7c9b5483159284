"""What the server does with an aggregated model before it is sent: `training.server`, the same for every algorithm.

    momentum   FedAvgM, Hsu, Qi, Brown 2019, https://arxiv.org/abs/1909.06335
    ema        the models go on as they are, and their exponential moving average is tested
    fedadam, fedyogi   Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295

With x the model that was sent and d = aggregated - x (the paper's pseudo-gradient):

    momentum   v <- momentum v + d;   x <- x + learning_rate v
    ema        x <- aggregated;   average <- decay average + (1 - decay) x, which begins at the first x that is sent
    fedadam    m <- beta1 m + (1 - beta1) d,   v <- beta2 v + (1 - beta2) d^2;
               x <- x + learning_rate m / (sqrt(v) + tau)
    fedyogi    as fedadam, but v <- v - (1 - beta2) d^2 sign(v - d^2)

As in Algorithm 2 of Reddi et al., v starts at tau^2 and nothing is corrected for the start. Moving statistics are no
weights: they take the aggregated value. State is a value, kept beside the algorithm's own and never sent.
"""

from typing import Any

import numpy as np

from feddual.algorithms._base import Slots
from feddual.errors import UserError
from feddual.experiment.schema import ServerAdaptive, ServerEma, ServerMomentum, ServerNone, ServerOptimizer


def init(asked: ServerOptimizer, weights: np.ndarray, num_trainable: int) -> Slots:
    """The optimizer's state before the first round, from the initial weights."""
    zeros = np.zeros(num_trainable, np.float32)
    if isinstance(asked, ServerEma):
        return {"average": weights.copy()}
    if isinstance(asked, ServerMomentum):
        return {"velocity": zeros}
    if isinstance(asked, ServerAdaptive):
        return {"first": zeros, "second": np.full(num_trainable, asked.tau**2, np.float32)}
    return {}


def step(
    asked: ServerOptimizer, sent: np.ndarray, aggregated: np.ndarray, slots: Slots, num_trainable: int
) -> tuple[np.ndarray, Slots]:
    """The next model and state, from the model that was sent and what the algorithm made of the clients' answers."""
    if isinstance(asked, ServerNone | ServerEma):
        return aggregated, slots
    x, target = (weights[:num_trainable].astype(np.float64) for weights in (sent, aggregated))
    if isinstance(asked, ServerMomentum):
        slots = {"velocity": asked.momentum * slots["velocity"].astype(np.float64) + (target - x)}
        moved = x + asked.learning_rate * slots["velocity"]
    else:
        slots = _moments(asked, slots, target - x)
        moved = x + asked.learning_rate * slots["first"] / (np.sqrt(slots["second"]) + asked.tau)
    weights = aggregated.copy()
    weights[:num_trainable] = moved
    return weights, {name: value.astype(np.float32) for name, value in slots.items()}


def averaged(asked: ServerOptimizer, tested: np.ndarray, slots: Slots) -> Slots:
    """The state after a round, given what the algorithm would have tested now.

    Raises:
        UserError: If that is several models, whose average is none of theirs.
    """
    if not isinstance(asked, ServerEma):
        return slots
    if tested.ndim > 1:
        said = f"'ema' averages one model, and this algorithm tests {len(tested)}"
        raise UserError(f"training.server.name: {said}; use another, or let the algorithm test one")
    average = asked.decay * slots["average"].astype(np.float64) + (1 - asked.decay) * tested
    return {"average": average.astype(np.float32)}


def tested(slots: Slots, models: np.ndarray) -> np.ndarray:
    """What is tested: the average, where there is one, and else the algorithm's own models."""
    return slots.get("average", models)


def _moments(asked: ServerAdaptive, slots: Slots, change: np.ndarray) -> dict[str, Any]:
    """Running means of the change and of its square."""
    first, second = (slots[name].astype(np.float64) for name in ("first", "second"))
    first = asked.beta1 * first + (1 - asked.beta1) * change
    square = change**2
    if asked.name == "fedyogi":
        return {"first": first, "second": second - (1 - asked.beta2) * square * np.sign(second - square)}
    return {"first": first, "second": asked.beta2 * second + (1 - asked.beta2) * square}

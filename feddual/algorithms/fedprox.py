"""Federated Optimization in Heterogeneous Networks (FedProx).

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, https://arxiv.org/abs/1812.06127 (Algorithm 2).

    client k:  minimise f_k(y) + mu/2 ||y - x||^2, that is, each step uses g + mu (y - x)
    server:    x <- sum_k p_k y_k

Differences from the paper: every client does its full work (no stragglers). With Adam the term passes through the
optimizer like the rest of the gradient; `decoupled` applies it after the step instead, y <- y - eta mu (y - x).
"""

from typing import Any

from pydantic import Field

from feddual.algorithms._base import Algorithm, ClientContext
from feddual.experiment.schema import Section


class FedProx(Algorithm):
    """FedAvg with a pull towards the global weights."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        proximal_weight: float = Field(0.1, ge=0, description="mu; 0 gives FedAvg")
        decoupled: bool = Field(False, description="apply the pull after the optimizer's step")

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        if self.params.decoupled or not self.params.proximal_weight:
            return gradient
        return gradient + self.params.proximal_weight * (weights - ctx.global_weights[: ctx.layout.num_trainable])

    def after_step(self, ctx: ClientContext, weights: Any) -> Any:
        if not self.params.decoupled or not self.params.proximal_weight:
            return weights
        pull = ctx.learning_rate * self.params.proximal_weight
        return weights - pull * (weights - ctx.global_weights[: ctx.layout.num_trainable])

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"algorithm.proximal_weight": 0.0}

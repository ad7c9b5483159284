"""Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (FedNova).

Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, https://arxiv.org/abs/2007.07481 (Eq. 6 and Section 4).

    client k:  y_k after tau_k steps; a_k weighs its gradients in x - y_k = eta sum_j a_kj g_kj
    server:    x <- x + tau_eff sum_k p_k (y_k - x) / ||a_k||_1,
               tau_eff = sum_k p_k ||a_k||_1  (sum p_k tau_k if mu > 0)

||a||_1 is tau for SGD; for momentum rho it grows by c <- rho c + 1 each step; with the proximal term mu it is
s <- (1 - eta mu) s + 1.

Differences from the paper: p_k is normalised over the round's clients. Adam is outside the theory, since its steps are
no fixed weighting of gradients; ||a||_1 = tau is used then. Momentum and proximal term together are refused: the
official code mixes the two recursions. Moving statistics are averaged, never normalised.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from feddual import aggregation
from feddual.algorithms._base import Algorithm, ClientContext, ClientResult, Finished, ServerState, Slots, Trained
from feddual.errors import UserError
from feddual.experiment.schema import Section
from feddual.functional.layout import Layout, update


class FedNova(Algorithm):
    """FedAvg with updates normalised by the amount of local work."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        proximal_weight: float = Field(0.0, ge=0, description="mu of a proximal term; 0 for none")

    def check(self, experiment: Any) -> None:
        if self.params.proximal_weight and self.training.momentum:
            both = f"{self.params.proximal_weight} together with training.momentum = {self.training.momentum}"
            raise UserError(f"algorithm.proximal_weight: {both} has no agreed normaliser; set one of them to 0")

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        if not self.params.proximal_weight:
            return gradient
        return gradient + self.params.proximal_weight * (weights - ctx.global_weights[: ctx.layout.num_trainable])

    def normaliser(self, steps: int) -> float:
        """||a||_1 for that many steps, by the official recursions."""
        total, counter = 0.0, 0.0
        for _ in range(steps):
            if self.training.optimizer == "sgd" and self.params.proximal_weight:
                total = (1 - self.training.learning_rate * self.params.proximal_weight) * total + 1
            else:
                counter = (self.training.momentum if self.training.optimizer == "sgd" else 0.0) * counter + 1
                total += counter
        return total

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        facts = np.array([self.normaliser(trained.steps), trained.steps], np.float32)
        return {"normaliser": facts}, ctx.client

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        weight = self.client_weight(result)
        norm, steps = (float(value) for value in result.payload["normaliser"])
        change = update(result.weights, server.weights)
        direction = change / norm if norm else change
        plain, normalised, effective = acc or (None, None, 0.0)
        effective += weight * (steps if self.params.proximal_weight else norm)
        return aggregation.add(plain, change, weight), aggregation.add(normalised, direction, weight), effective

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        plain, normalised, effective = acc
        effective /= plain.weight
        change = plain.total / plain.weight
        trainable = slice(layout.num_trainable)
        change[trainable] = effective * normalised.total[trainable] / normalised.weight
        weights = (server.weights + change).astype(np.float32)
        return replace(server, weights=weights), {"effective_steps": float(effective)}

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"training.batch_size": 1000}  # one batch an epoch: every client does the same number of steps

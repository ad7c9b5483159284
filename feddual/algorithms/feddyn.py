"""Federated Learning Based on Dynamic Regularization (FedDyn).

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, https://arxiv.org/abs/2111.04263 (Algorithm 1).

    client k:  minimise f_k(y) - <g_k, y> + alpha/2 ||y - x||^2;  then g_k <- g_k - alpha (y_k - x)
    server:    h <- h - alpha/N sum_k (y_k - x);   x <- mean_k y_k - h / alpha

Differences from the paper: one alpha for all clients (the official code rescales it by client size to emulate weighting
by examples). What is tested is the mean of the round's clients, as in the official code, not the broadcast x;
`eval_model` chooses. The official gradient clipping at norm 10 is on in both protocols.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from feddual import aggregation
from feddual.algorithms._base import Algorithm, ClientContext, ClientResult, Finished, ServerState, Slots, Trained
from feddual.experiment.schema import Section
from feddual.functional.layout import Layout, update


class FedDyn(Algorithm):
    """A linear and a quadratic term that make the local optima agree with the global one."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        alpha: float = Field(0.01, gt=0, description="strength of the regulariser")
        eval_model: Literal["avg_active", "cloud", "avg_all"] = Field(
            "avg_active", description="tested: mean of the round's clients, the broadcast model, or mean of all clients"
        )

    memory_text = "dual at each client and the server, tested model at the server"
    faithful = {"training": {"weighting": "uniform", "clip_norm": 10.0}}  # noqa: RUF012
    paper = {"training": {"clip_norm": 10.0}}  # noqa: RUF012

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        slots = {"dual": np.zeros(layout.num_trainable, np.float32)}
        return slots if self.params.eval_model == "cloud" else slots | {"tested": weights.copy()}

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        slots = {"dual": np.zeros(layout.num_trainable, np.float32)}
        return slots | {"last": weights.copy()} if self.params.eval_model == "avg_all" else slots

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        pull = weights - ctx.global_weights[: ctx.layout.num_trainable]
        return gradient - ctx.client["dual"] + self.params.alpha * pull

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        change = update(trained.weights, ctx.global_weights)[: ctx.layout.num_trainable]
        slots = {"dual": (ctx.client["dual"] - self.params.alpha * change).astype(np.float32)}
        if self.params.eval_model != "avg_all":
            return {}, slots
        return {"moved": trained.weights - ctx.client["last"]}, slots | {"last": trained.weights}

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        models, changes, moved = acc or (None, None, None)
        if "moved" in result.payload:
            moved = aggregation.add(moved, result.payload["moved"], 1.0)
        models = aggregation.add(models, result.weights, self.client_weight(result))
        return models, aggregation.add(changes, update(result.weights, server.weights), 1.0), moved

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        models, changes, moved = acc
        trainable = slice(layout.num_trainable)
        mean = models.total / models.weight
        dual = server.slots["dual"] - self.params.alpha / num_clients * changes.total[trainable]
        weights = mean.copy()
        weights[trainable] -= dual / self.params.alpha
        slots = {"dual": dual.astype(np.float32)}
        if self.params.eval_model == "avg_active":
            slots["tested"] = mean.astype(np.float32)
        elif self.params.eval_model == "avg_all":
            slots["tested"] = (server.slots["tested"] + moved.total / num_clients).astype(np.float32)
        facts = {"dual_norm": float(np.linalg.norm(dual))}
        return replace(server, weights=weights.astype(np.float32), slots=slots), facts

    def evaluation_weights(self, server: ServerState, layout: Layout) -> np.ndarray:
        return server.slots.get("tested", server.weights)

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return "its server corrects by the duals whatever alpha is"

"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.

Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, https://arxiv.org/abs/2102.07623 (Algorithm 1).

    client k:  keeps all tensors of its batch-normalisation layers to itself, trains as in FedAvg
    server:    averages everything else

Differences from the paper: batch normalisation is recognised by layer type, not by name. The paper tests each client's
own model; a single global model needs batch-normalisation tensors from somewhere, and `bn_eval` says from where.
Without batch normalisation this is FedAvg, bit for bit.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from feddual import aggregation
from feddual.algorithms._base import Algorithm, ClientContext, ClientResult, Finished, ServerState, Slots, Trained
from feddual.experiment.schema import Section
from feddual.functional import masks
from feddual.functional.layout import Layout

BnEval = Literal["average_participants", "average_all_seen", "per_client_mean_accuracy", "server_initial"]


class FedBN(Algorithm):
    """FedAvg that leaves batch normalisation to the clients."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        bn_eval: BnEval = Field(
            "average_participants",
            description="batch normalisation of the tested model: mean of the round's clients, of all clients seen so "
            "far, each participant's own (metrics averaged), or the initial values",
        )

    communication_text = "model without BN / model without BN"
    memory_text = "BN tensors at each client"
    faithful = {"training": {"weighting": "uniform"}}  # noqa: RUF012

    def local(self, layout: Layout) -> np.ndarray:
        """The positions that stay with the clients."""
        return masks.indices([entry for entry in layout.entries if entry.layer_type == "BatchNormalization"])

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        own = weights[self.local(layout)]
        if not len(own) or self.params.bn_eval == "server_initial":
            return {}
        if self.params.bn_eval == "per_client_mean_accuracy":
            return {"bn": np.tile(own, (self.training.clients_per_round, 1))}
        return {"bn": own.copy(), "seen": np.zeros(1, np.float32)}

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        own = weights[self.local(layout)]
        return {"bn": own.copy(), "seen": np.zeros(1, np.float32)} if len(own) else {}

    def start_weights(self, layout: Layout, weights: np.ndarray, client: Slots) -> np.ndarray:
        if not client:
            return weights
        started = weights.copy()
        started[self.local(layout)] = client["bn"]
        return started

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        if not ctx.client:
            return {}, {}
        own = trained.weights[self.local(ctx.layout)]
        # What a simulation needs to test a global model; the algorithm itself never sends it.
        tested = {"bn": own, "bn_before": ctx.client["bn"], "seen_before": ctx.client["seen"]}
        return tested, {"bn": own, "seen": np.ones(1, np.float32)}

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        models, own = acc or (None, [])
        return aggregation.add(models, result.weights, self.client_weight(result)), [*own, result.payload]

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        models, own = acc
        where = self.local(layout)
        weights = aggregation.mean(models)
        weights[where] = server.weights[where]
        return replace(server, weights=weights, slots=self._tested(server.slots, own)), {}

    def _tested(self, slots: Slots, own: list[Slots]) -> Slots:
        """The batch-normalisation values of the tested model."""
        if not slots:
            return slots
        values = np.array([payload["bn"] for payload in own])
        if self.params.bn_eval == "per_client_mean_accuracy":
            missing = len(slots["bn"]) - len(values)  # clients set aside: repeat the last one
            return {"bn": np.concatenate([values, np.repeat(values[-1:], missing, 0)])}
        if self.params.bn_eval == "average_participants":
            return {"bn": values.mean(0, dtype=np.float64).astype(np.float32), "seen": slots["seen"]}
        seen = float(slots["seen"][0])
        total = slots["bn"].astype(np.float64) * seen
        for payload in own:
            known = float(payload["seen_before"][0])
            total += payload["bn"] - known * payload["bn_before"].astype(np.float64)
            seen += 1 - known
        return {"bn": (total / seen).astype(np.float32), "seen": np.array([seen], np.float32)}

    def evaluation_weights(self, server: ServerState, layout: Layout) -> np.ndarray:
        if "bn" not in server.slots:
            return server.weights
        own = np.atleast_2d(server.slots["bn"])
        tested = np.repeat(server.weights[None], len(own), 0)
        tested[:, self.local(layout)] = own
        return tested if self.params.bn_eval == "per_client_mean_accuracy" else tested[0]

    def communication(self, layout: Layout) -> tuple[int, int]:
        size = layout.size - len(self.local(layout))
        return size, size

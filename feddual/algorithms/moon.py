"""Model-Contrastive Federated Learning (MOON).

Li, He, Song, CVPR 2021, https://arxiv.org/abs/2103.16257 (Eqs. 2-4).

    client k:  cross-entropy + mu mean_b -log( e^(s+ / T) / (e^(s+ / T) + e^(s- / T)) ),
               s+ = cos(z, z_global), s- = cos(z, z_previous): representations of the batch by the current model, the
               global one and the client's own model after its last participation
    server:    x <- sum_k p_k y_k

Differences from the paper: z is the input of the last layer, by default without the extra projection head, so that all
algorithms train the same network (`model.projection: 256` adds the head, for any algorithm). At a client's first
participation its previous model is the global one, where the term is the constant log 2 with zero gradient. The
representations by the two fixed models are computed once a round.
"""

from typing import Any

import numpy as np
from pydantic import Field

from feddual._lazy import tf
from feddual.algorithms._base import Algorithm, Batch, ClientContext, Outputs, Slots, Trained
from feddual.experiment.schema import Section
from feddual.functional.layout import Layout

SMALL = 1e-8  # a representation may be zero behind a ReLU


class MOON(Algorithm):
    """FedAvg with a contrastive term on representations."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        contrastive_weight: float = Field(1.0, ge=0, description="mu; 0 gives FedAvg")
        temperature: float = Field(0.5, gt=0, description="T")

    memory_text = "previous model at each client"

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        return {"previous": np.zeros(layout.size, np.float32), "participated": np.zeros(1, np.float32)}

    def before_training(self, ctx: ClientContext) -> dict[str, Any]:
        previous = tf.where(ctx.client["participated"] > 0, ctx.client["previous"], ctx.global_weights)
        return {
            "global": _unit(ctx.forward_all(ctx.global_weights).features),
            "previous": _unit(ctx.forward_all(previous).features),
        }

    def loss_term(self, ctx: ClientContext, weights: Any, batch: Batch, outputs: Outputs, cross_entropy: Any) -> Any:
        if not self.params.contrastive_weight:
            return cross_entropy
        z = _unit(outputs.features)
        towards = tf.reduce_sum(z * tf.gather(ctx.before["global"], batch.indices), 1)
        away = tf.reduce_sum(z * tf.gather(ctx.before["previous"], batch.indices), 1)
        contrast = tf.nn.softplus((away - towards) / self.params.temperature)
        return cross_entropy + self.params.contrastive_weight * tf.reduce_sum(batch.weights * contrast)

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        return {}, {"previous": trained.weights, "participated": np.ones(1, np.float32)}

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"algorithm.contrastive_weight": 0.0}


def _unit(features: Any) -> Any:
    """Rows of length one (zero rows stay zero)."""
    flat = tf.reshape(features, [tf.shape(features)[0], int(np.prod(features.shape[1:]))])
    return flat / tf.maximum(tf.norm(flat, axis=1, keepdims=True), SMALL)

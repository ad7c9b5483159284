"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, https://arxiv.org/abs/1910.06378 (Algorithm 1).

    client k:  each step uses g + c - c_k; afterwards c_k+ by one of
                 option1    the full gradient of f_k at x
                 option2    c_k - c + (x - y_k) / (tau_k eta)
                 mean_grad  the mean of the local stochastic gradients: identical to option2 under SGD, and the only
                            meaningful form of it under other optimizers
    server:    x <- x + eta_g mean_k (y_k - x),   c <- c + 1/N sum_k (c_k+ - c_k)

Differences from the paper: `mean_grad` is the default. option2 with Adam, momentum, clipping or weight decay takes a
preconditioned step for a gradient and diverges; it is refused unless `allow_invalid` is set.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from feddual import aggregation
from feddual._lazy import tf
from feddual.algorithms._base import Algorithm, ClientContext, ClientResult, Finished, ServerState, Slots, Trained
from feddual.errors import UserError
from feddual.experiment.schema import Section
from feddual.functional.layout import Layout

Correction = Literal["pre", "post"]


class SCAFFOLD(Algorithm):
    """FedAvg with control variates against client drift."""

    class Params(Section):
        """Keys of the `algorithm` section."""

        control: Literal["mean_grad", "option1", "option2"] = Field("mean_grad", description="how c_k is renewed")
        correction: Correction = Field("pre", description="c - c_k added to the gradient, or after the step")
        server_lr: float = Field(1.0, gt=0, description="eta_g")
        allow_invalid: bool = Field(False, description="let option2 run with an optimizer for which it is wrong")

    communication_text = "2 models / 2 models"
    memory_text = "control at each client and the server"
    faithful = {"training": {"weighting": "uniform"}}  # noqa: RUF012

    def masked(self, layout: Layout) -> np.ndarray:
        """The positions that are corrected."""
        return np.arange(layout.num_trainable)

    def check(self, experiment: Any) -> None:
        training = self.training
        plain = training.optimizer == "sgd" and not (training.momentum or training.clip_norm or training.weight_decay)
        if self.params.control == "option2" and not plain and not self.params.allow_invalid:
            raise UserError(
                "algorithm.control: 'option2' takes (x - y) / (steps * rate) for a gradient, which holds for plain SGD "
                f"only, not with training.optimizer {training.optimizer!r}, momentum, clipping or weight decay; use "
                "'mean_grad', or algorithm.allow_invalid=true to see it fail"
            )

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        return {"control": np.zeros(len(self.masked(layout)), np.float32)}

    init_client = init_server

    def before_training(self, ctx: ClientContext) -> dict[str, Any]:
        where = self.masked(ctx.layout)
        difference = ctx.server["control"] - ctx.client["control"]
        if len(where) < ctx.layout.num_trainable:
            difference = tf.scatter_nd(where[:, None].astype(np.int32), difference, [ctx.layout.num_trainable])
        return {"correction": difference}

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        return gradient + ctx.before["correction"] if self.params.correction == "pre" else gradient

    def after_step(self, ctx: ClientContext, weights: Any) -> Any:
        return weights if self.params.correction == "pre" else weights - ctx.learning_rate * ctx.before["correction"]

    def after_training(self, ctx: ClientContext, weights: Any) -> dict[str, Any]:
        if self.params.control != "option1":
            return {}
        return {"gradient": ctx.gradient(ctx.global_weights)}

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        where, before = self.masked(ctx.layout), ctx.client["control"]
        if self.params.control == "option1":
            after = trained.extras["gradient"][where]
        elif trained.steps == 0:
            after = before
        elif self.params.control == "option2":
            moved = (ctx.global_weights - trained.weights)[where] / (trained.steps * self.training.learning_rate)
            after = before - ctx.server["control"] + moved
        else:
            after = trained.gradient_sum[where] / trained.steps
        after = after.astype(np.float32)
        return {"control_change": after - before}, {"control": after}

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        models, controls = acc or (None, None)
        return (
            aggregation.add(models, result.weights, self.client_weight(result)),
            aggregation.add(controls, result.payload["control_change"], 1.0),
        )

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        models, controls = acc
        weights, rate = models.total / models.weight, self.params.server_lr
        if rate != 1:
            weights = server.weights + rate * (weights - server.weights)
        control = (server.slots["control"] + controls.total / num_clients).astype(np.float32)
        facts = {"control_norm": float(np.linalg.norm(control))}
        return replace(server, weights=weights.astype(np.float32), slots={"control": control}), facts

    def communication(self, layout: Layout) -> tuple[int, int]:
        size = layout.size + len(self.masked(layout))
        return size, size

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"training.rounds": 1}  # all controls are zero in the first round

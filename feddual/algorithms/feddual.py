"""FedDUAL: A Dual-Strategy with Adaptive Loss and Dynamic Aggregation for Mitigating Data Heterogeneity.

Sahoo, Tripathi, Saha, Mondal, TMLR 2025 (Algorithm 1, Eqs. 6-16).

    client k:  (1 - beta) cross-entropy + beta KL(softmax(y) || softmax(x)),   beta = sigmoid(A_local - A_global)
    server:    body: x <- mean_k y_k;   masked layers: x <- x - eta_s B({u_k}),
               B the fixed point of p <- sum_k a_k p_k, a = softmax(log lambda_k - W1(p, u_k) / epsilon)
               and u_k the displacement x - y_k of the output layer

Differences from the paper: the equations leave several things open, and the public code (15 months older than the
journal version) decides some of them differently; docs/algorithms.md lists them. The default, `consistent`, is our
reading: Theorem 1's proof sets the new weights to the barycenter of the clients' weights, and the whole step to
FedAvg's plus something small, which holds for displacements and not for gradients. `literal` follows Algorithm 1 to
the letter, a unit step along the gradient of client k's cross-entropy at y_k, which hardly learns on CIFAR;
`published` follows the public code's arithmetic, where the adaptive loss is one half of the cross-entropy and the
barycenter mostly underflows to zero. In the control `frozen_head` the output layer never moves, in `mean` it is
averaged like the others.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from feddual import barycenter
from feddual._lazy import tf
from feddual.algorithms import _memory
from feddual.algorithms._base import (
    Algorithm,
    Batch,
    ClientContext,
    ClientResult,
    Finished,
    Outputs,
    ServerState,
    Slots,
    Trained,
)
from feddual.algorithms._divergence import weight_divergence
from feddual.algorithms.scaffold import SCAFFOLD, Correction
from feddual.errors import UserError
from feddual.experiment import plugins
from feddual.experiment.schema import BarycenterName, Section
from feddual.functional import masks
from feddual.functional.layout import Entry, Layout, update


class _Sent(NamedTuple):
    """What the server takes of a client besides its model."""

    client_id: int
    weight: float
    source: np.ndarray  # for the masked layers, if there are any
    displacement: np.ndarray  # of the whole vector, where it is used


class FedDUAL(Algorithm):
    """An adaptive loss at the clients, a barycenter of the last layers at the server.

    Not of the paper: with `memory`, mean and barycenter are of the last known displacements d_k of all clients seen so
    far, x <- x + mean_k d_k and x <- x - eta_s B({-d_k}); with `control`, local steps are corrected as SCAFFOLD's.
    """

    class Params(Section):
        """Keys of the `algorithm` section."""

        adaptive: bool = Field(True, description="the adaptive loss; off, clients train on cross-entropy")
        beta_mode: Literal["per_epoch", "running", "per_step", "previous_participation", "fixed_half"] = Field(
            "per_epoch",
            description="A_local: from a pass over the data at each epoch's start, the previous epoch's own batches, "
            "the step's batch, the last participation; fixed_half: beta = 0.5",
        )
        beta_scale: float = Field(1.0, ge=0, description="s in sigmoid(s (A_local - A_global)); 100 for percent")
        divergence: Literal["kl", "reverse_kl", "l2", "logits", "none"] = Field(
            "kl", description="of softmax-ed weights, of outputs (logits), or half the mean squared difference (l2)"
        )
        kl_scale: float = Field(0.1, ge=0, description="factor of the divergence")
        kl_scale_unit: Literal["one", "num_params"] = Field(
            "num_params", description="num_params: times the number of weights"
        )
        kl_scope: Literal["trainable", "per_tensor"] = Field(
            "trainable", description="one softmax over all trained weights, or one for each tensor, added up"
        )
        temperature: float = Field(1.0, gt=0, description="of the softmax over weights")

        dynamic: bool = Field(True, description="the barycenter; off, all layers are averaged")
        mask: str = Field("last_tensors:2", description="layers the barycenter applies to; see docs/algorithms.md")
        update_source: Literal[
            "grad_end_mean", "grad_end_sum", "grad_start_mean", "pseudo", "pseudo_per_step", "weights"
        ] = Field("pseudo", description="what clients send for these layers; docs/algorithms.md")
        granularity: Literal["tensor", "layer", "neuron"] = Field("tensor", description="one barycenter for each")
        barycenter: BarycenterName = Field("gibbs", description="the method; see `feddual list barycenters`")
        epsilon: float = Field(0.5, gt=0, description="of gibbs, published and sinkhorn")
        epsilon_decay: float = Field(1.0, gt=0, le=1, description="epsilon of round t: epsilon times this to the t - 1")
        epsilon_relative: bool = Field(True, description="in units of the median distance to the mean (gibbs)")
        iterations: int = Field(150, ge=1, description="at most (gibbs, published)")
        tol: float = Field(1e-6, ge=0, description="relative change at which gibbs stops")
        distance: Literal["w1", "w2", "l2"] = Field("w1", description="of gibbs; l2 goes by coordinate")
        sinkhorn_method: Literal["sinkhorn_log", "sinkhorn_stabilized", "debiased", "lp"] = "sinkhorn_log"
        server_lr: float = Field(1.0, ge=0, description="eta_s")
        match_norm: bool = Field(False, description="scale the step to the clients' mean displacement of the tensor")

        memory: Literal["none", "displacements"] = Field(
            "none",
            description="displacements: mean and barycenter are of the last known displacements of all clients seen so "
            "far, which the server keeps; with update_source pseudo",
        )
        control: Literal["none", "mean_grad"] = Field(
            "none", description="mean_grad: local steps are corrected as SCAFFOLD's, at its communication"
        )
        correction: Correction = Field("pre", description="of control: added to the gradient, or after the step")

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "consistent": {},
        "literal": {
            "mask": "last_layers:2", "update_source": "grad_end_mean", "epsilon": 1e-5, "epsilon_relative": False,
            "kl_scale": 1.0, "kl_scale_unit": "one",
        },
        "published": {
            "beta_mode": "fixed_half", "divergence": "none", "kl_scale": 1.0, "kl_scale_unit": "one",
            "update_source": "grad_end_sum", "epsilon": 1e-5, "epsilon_relative": False,
            "barycenter": "published", "iterations": 1000,
        },
        "frozen_head": {"barycenter": "zero"},
        "mean": {"barycenter": "mean"},
    }  # fmt: skip
    default_preset = "consistent"
    former_presets: ClassVar[dict[str, str]] = {"paper": "literal"}
    communication_text = (
        "model / model (+ masked layers with gradients as update_source; model / model more with control)"
    )
    memory_text = (
        "– (a number at each client with beta_mode previous_participation; all clients' displacements at the server "
        "with memory; a control at each client and the server with control)"
    )

    def __init__(self, params: Any, training: Any):
        """Keep the settings, and the algorithm whose local steps and mean this one builds on."""
        super().__init__(params, training)
        self.base = Algorithm(params, training)
        if params.control != "none":
            settings = SCAFFOLD.Params(control=params.control, correction=params.correction)
            self.base = SCAFFOLD(settings, training)

    def entries(self, layout: Layout) -> tuple[Entry, ...]:
        """The tensors the barycenter applies to."""
        return masks.select(layout, self.params.mask) if self.params.dynamic else ()

    def check(self, experiment: Any) -> None:
        if self.params.barycenter == "free_support" and self.params.granularity != "tensor":
            said = f"{self.params.granularity!r} has no units to match"
            raise UserError(f"algorithm.granularity: {said}; free_support needs 'tensor'")
        source = self.params.update_source
        if self.params.memory == "displacements" and self.params.dynamic and source != "pseudo":
            said = f"'displacements' is of no use to algorithm.update_source {source!r}"
            raise UserError(f"algorithm.memory: {said}; use update_source 'pseudo', or memory 'none'")

    # --- client: the adaptive loss

    @property
    def epoch_facts(self) -> tuple[str, ...]:
        return ("beta",) if self.params.adaptive and self.params.beta_mode != "per_step" else ()

    def init_client(self, layout: Layout, weights: np.ndarray) -> Slots:
        slots = self.base.init_client(layout, weights)
        if self.params.beta_mode == "previous_participation":
            slots["accuracy"] = np.full(1, np.nan, np.float32)
        return slots

    def before_training(self, ctx: ClientContext) -> dict[str, Any]:
        before = self.base.before_training(ctx)
        if not self.params.adaptive:
            return before
        if self.params.beta_mode != "fixed_half":
            before["accuracy"] = ctx.accuracy(ctx.global_weights)
        if self.params.divergence == "logits":
            before["logits"] = ctx.forward_all(ctx.global_weights).logits
        if self.params.divergence in ("kl", "reverse_kl"):
            scaled = ctx.global_weights[: ctx.layout.num_trainable] / self.params.temperature
            before["anchors"] = [(scaled[part], tf.nn.softmax(scaled[part])) for part in self._scopes(ctx.layout)]
        return before

    def _scopes(self, layout: Layout) -> list[slice]:
        """The parts of the trained weights over which a softmax is taken."""
        if self.params.kl_scope == "trainable":
            return [slice(0, layout.num_trainable)]
        return [slice(entry.start, entry.stop) for entry in layout.entries if entry.trainable]

    def start_epoch(self, ctx: ClientContext, epoch: Any, weights: Any, accuracy: Any) -> dict[str, Any]:
        mode = self.params.beta_mode
        if not self.params.adaptive or mode == "per_step":
            return {}
        half = tf.constant(0.5, weights.dtype)
        if mode == "fixed_half":
            return {"beta": half}
        if mode == "previous_participation":
            last = ctx.client["accuracy"][0]
            return {"beta": tf.where(tf.math.is_nan(last), half, self._beta(ctx, last))}
        if mode == "running":
            return {"beta": tf.where(epoch > 0, self._beta(ctx, accuracy), half)}
        # In the first epoch both accuracies are the same.
        return {"beta": tf.cond(epoch > 0, lambda: self._beta(ctx, ctx.accuracy(weights)), lambda: half)}

    def _beta(self, ctx: ClientContext, accuracy: Any) -> Any:
        return tf.sigmoid(self.params.beta_scale * (accuracy - ctx.before["accuracy"]))

    def loss_term(self, ctx: ClientContext, weights: Any, batch: Batch, outputs: Outputs, cross_entropy: Any) -> Any:
        if not self.params.adaptive:
            return cross_entropy
        if self.params.beta_mode == "per_step":
            hits = tf.equal(tf.argmax(outputs.logits, 1, tf.int32), batch.y)
            beta = tf.stop_gradient(self._beta(ctx, tf.reduce_sum(tf.where(hits, batch.weights, 0.0))))
        else:
            beta = ctx.epoch["beta"]
        scale = self.params.kl_scale * (ctx.layout.num_trainable if self.params.kl_scale_unit == "num_params" else 1)
        return (1 - beta) * cross_entropy + beta * scale * self._divergence(ctx, weights, batch, outputs)

    def _divergence(self, ctx: ClientContext, weights: Any, batch: Batch, outputs: Outputs) -> Any:
        kind = self.params.divergence
        if kind == "none":
            return tf.zeros([], weights.dtype)
        if kind == "l2":
            return tf.reduce_mean(tf.square(weights - ctx.global_weights[: ctx.layout.num_trainable])) / 2
        if kind == "logits":
            log_p = tf.nn.log_softmax(outputs.logits)
            log_q = tf.nn.log_softmax(tf.gather(ctx.before["logits"], batch.indices))
            return tf.reduce_sum(batch.weights * tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), 1))
        scaled = weights if self.params.temperature == 1 else weights / self.params.temperature
        scopes = self._scopes(ctx.layout)
        values = [scaled] if len(scopes) == 1 else [scaled[part] for part in scopes]
        parts = zip(values, ctx.before["anchors"], strict=True)
        return tf.add_n([weight_divergence(part, anchor, q, kind == "reverse_kl") for part, (anchor, q) in parts])

    def adjust_gradient(self, ctx: ClientContext, gradient: Any, weights: Any) -> Any:
        return self.base.adjust_gradient(ctx, gradient, weights)

    def after_step(self, ctx: ClientContext, weights: Any) -> Any:
        return self.base.after_step(ctx, weights)

    # --- client: what it sends for the masked layers

    def after_training(self, ctx: ClientContext, weights: Any) -> dict[str, Any]:
        entries = self.entries(ctx.layout)
        if not entries or not self.params.update_source.startswith("grad"):
            return {}
        where = ctx.global_weights if self.params.update_source == "grad_start_mean" else weights
        return {"gradient": ctx.gradient(where, entries)}

    def finish_client(self, ctx: ClientContext, trained: Trained) -> tuple[Slots, Slots]:
        payload, slots = self.base.finish_client(ctx, trained)
        if "accuracy" in ctx.client:
            last = trained.epoch_accuracy if len(trained.epoch_accuracy) else ctx.client["accuracy"]
            slots = slots | {"accuracy": last[-1:].astype(np.float32)}
        where = masks.indices(self.entries(ctx.layout))
        if not len(where):
            return payload, slots
        moved = -update(trained.weights, ctx.global_weights)[where]
        kind, source = self.params.update_source, trained.extras.get("gradient", moved)
        if kind == "grad_end_sum":
            source = source * len(ctx.y)
        elif kind == "pseudo_per_step":
            source = moved / (self.training.learning_rate * max(trained.steps, 1))
        elif kind == "weights":
            source = trained.weights[where]
        return payload | {"source": np.asarray(source, np.float32)}, slots

    # --- server

    def init_server(self, layout: Layout, weights: np.ndarray) -> Slots:
        slots = self.base.init_server(layout, weights)
        if self.params.epsilon_decay < 1:
            slots["epsilon"] = np.array([self.params.epsilon])
        return slots | _memory.empty(layout.num_trainable) if self.params.memory == "displacements" else slots

    def broadcast(self, server: ServerState) -> Slots:
        return {name: value for name, value in server.slots.items() if name not in _memory.NAMES}

    def accumulate(self, acc: Any, result: ClientResult, server: ServerState) -> Any:
        models, clients = acc or (None, [])
        models = self.base.accumulate(models, result, server)
        remembers = self.params.memory == "displacements"
        if "source" not in result.payload and not remembers:
            return models, clients
        nothing = np.zeros(0, np.float32)
        moved = update(result.weights, server.weights) if self.params.match_norm or remembers else nothing
        source = result.payload.get("source", nothing)
        return models, [*clients, _Sent(result.client_id, self.client_weight(result), source, moved)]

    def finish(self, server: ServerState, acc: Any, layout: Layout, num_clients: int) -> Finished:
        models, clients = acc
        averaged, facts = self.base.finish(server, models, layout, num_clients)
        weights, slots = averaged.weights, server.slots | averaged.slots
        if self.params.memory == "displacements":
            slots, clients = self._recalled(slots, clients, layout)
            moved = np.stack([client.displacement for client in clients])
            trainable = slice(layout.num_trainable)
            weights[trainable] = server.weights[trainable] + _shares(clients) @ moved
        if self.entries(layout):
            facts |= {"barycenter": self._place_barycenters(server, weights, clients, layout)}
            if "epsilon" in slots:
                slots = slots | {"epsilon": np.maximum(slots["epsilon"] * self.params.epsilon_decay, 1e-30)}
        return replace(server, weights=weights, slots=slots), facts

    def _recalled(self, slots: Slots, clients: list[_Sent], layout: Layout) -> tuple[Slots, list[_Sent]]:
        """The memory with this round's clients in it, and all it knows as if it had been sent now."""
        ids, shares, _, displacements = zip(*clients, strict=True)
        trained = [moved[: layout.num_trainable] for moved in displacements]
        slots = slots | _memory.renew(slots, ids, shares, trained)
        where = masks.indices(self.entries(layout))
        rows = zip(*(slots[name] for name in _memory.NAMES), strict=True)
        return slots, [_Sent(int(client), share, -moved[where], moved) for client, share, moved in rows]

    def _place_barycenters(
        self, server: ServerState, weights: np.ndarray, clients: list[_Sent], layout: Layout
    ) -> dict[str, Any]:
        """Put the masked layers' next values into the weights; facts of each barycenter."""
        shares, sources = _shares(clients), np.stack([client.source for client in clients])
        epsilon = float(server.slots["epsilon"][0]) if "epsilon" in server.slots else self.params.epsilon
        facts: dict[str, Any] = {}
        position = 0
        whole = self.params.granularity == "tensor"
        method = plugins.find("barycenters", self.params.barycenter, "algorithm.barycenter")
        where = masks.indices(self.entries(layout))
        for name, groups in self._groups(layout).items():
            found = []
            for group in groups:
                local = position + group
                settings = self._settings(epsilon, layout.by_path[name].shape if whole else ())
                bar = method(sources[:, local], shares, **settings)
                found.append(barycenter.facts(bar))
                place = where[local]
                if self.params.update_source == "weights":
                    weights[place] = bar.vector
                    continue
                step = self.params.server_lr * bar.vector
                if self.params.match_norm and np.linalg.norm(bar.vector) > 0:
                    wanted = np.mean([np.linalg.norm(client.displacement[place]) for client in clients])
                    step *= wanted / np.linalg.norm(bar.vector)
                weights[place] = server.weights[place] - step
            position += sum(len(group) for group in groups)
            facts[name] = found[0] if len(found) == 1 else _summary(found)
        return facts

    def _groups(self, layout: Layout) -> dict[str, list[np.ndarray]]:
        """For each tensor or layer of the mask, the positions within it that share a barycenter."""
        entries = self.entries(layout)
        if self.params.granularity == "layer":
            sizes: dict[str, int] = {}
            for entry in entries:
                sizes[entry.layer] = sizes.get(entry.layer, 0) + entry.stop - entry.start
            return {layer: [np.arange(size)] for layer, size in sizes.items()}
        groups = {}
        for entry in entries:
            places = np.arange(entry.stop - entry.start)
            neurons = self.params.granularity == "neuron" and len(entry.shape) > 1
            groups[entry.path] = list(places.reshape(-1, entry.shape[-1]).T) if neurons else [places]
        return groups

    def _settings(self, epsilon: float, shape: tuple[int, ...]) -> dict[str, Any]:
        """What the method takes besides vectors and shares."""
        params = self.params
        settings: dict[str, dict[str, Any]] = {
            "gibbs": {
                "epsilon": epsilon, "relative": params.epsilon_relative, "max_iter": params.iterations,
                "tol": params.tol, "distance": params.distance,
            },
            "published": {"epsilon": epsilon, "max_iter": params.iterations},
            "sinkhorn": {"epsilon": epsilon, "method": params.sinkhorn_method},
            "free_support": {"shape": shape},
        }  # fmt: skip
        return settings.get(params.barycenter, {})

    def communication(self, layout: Layout) -> tuple[int, int]:
        extra = len(masks.indices(self.entries(layout))) if self.params.update_source.startswith("grad") else 0
        down, up = self.base.communication(layout)
        return down, up + extra

    @classmethod
    def fedavg_case(cls) -> dict[str, Any] | str:
        return {"algorithm.adaptive": False, "algorithm.dynamic": False}


def _shares(clients: list[_Sent]) -> np.ndarray:
    """The clients' weights, so that they sum to one."""
    shares = np.array([client.weight for client in clients])
    return shares / shares.sum()


def _summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the barycenters of a tensor's neurons."""
    numbers = [key for key, value in found[0].items() if not isinstance(value, list)]
    return {key: float(np.mean([facts[key] for facts in found])) for key in numbers}

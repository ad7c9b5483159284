"""The one compiled local loop. Algorithms plug into it; nobody copies it.

A client's whole training (epochs, batches, optimizer steps) is one TensorFlow graph over one weight vector, traced once
for all clients and rounds: the number of examples is the only thing that varies, and it is dynamic. Nothing is built,
compiled or assigned per client.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from feddual import seeding
from feddual._lazy import tf
from feddual.algorithms._base import Algorithm, Batch, ClientContext, ClientResult, Outputs, ServerState, Slots, Trained
from feddual.functional.layout import Entry, Layout, layer_norms, update
from feddual.functional.network import Forward

PARTS = ("", "layers", "variables")  # over which steps' gradient norms are added up; finer ones serve coarser wishes
CHUNK = 150  # examples of a pass over all data that go through the network together: what the cache holds


@dataclass(frozen=True)
class ClientTask:
    """Everything a worker needs to train one client: small, and the same for every executor."""

    experiment: str  # the resolved experiment as JSON; the worker builds its workbench from it, once
    round_index: int
    client_id: int
    weights: np.ndarray
    server_slots: Slots = field(default_factory=dict)  # those that the algorithm sends
    client_slots: Slots = field(default_factory=dict)
    probes: tuple[Any, ...] = ()
    num_rounds: int = 0  # of the whole run


class Optimizer:
    """SGD, SGD with momentum, and Adam on a vector, with Keras' arithmetic. State starts fresh each round."""

    def __init__(self, training: Any, momentum: Any = None):
        """Args: the config's section, and a momentum for each value, if they differ."""
        self.training = training
        self.momentum = training.momentum if momentum is None else momentum

    def init(self, weights: Any) -> list[Any]:
        count = 2 if self.training.optimizer == "adam" else int(np.any(self.momentum))
        return [tf.zeros_like(weights) for _ in range(count)]

    def step(self, weights: Any, gradient: Any, state: list[Any], step: Any) -> tuple[Any, list[Any]]:
        """Args: weights, gradient, state, and the step's number from 0."""
        settings = self.training
        rate = settings.learning_rate
        if settings.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, settings.clip_norm)
        if settings.weight_decay:
            gradient = gradient + settings.weight_decay * weights
        if settings.optimizer == "adam":
            first, second = state
            power = tf.cast(step + 1, weights.dtype)
            first = first + (gradient - first) * 0.1
            second = second + (tf.square(gradient) - second) * 0.001
            slow, fast = (tf.pow(tf.cast(decay, weights.dtype), power) for decay in (0.999, 0.9))
            rate = rate * tf.sqrt(1 - slow) / (1 - fast)
            return weights - rate * first / (tf.sqrt(second) + 1e-7), [first, second]
        if state:
            velocity = self.momentum * state[0] - rate * gradient
            return weights + velocity, [velocity]
        return weights - rate * gradient, state


class State(NamedTuple):
    """What a step of the loop carries to the next."""

    weights: Any  # (num_trainable,)
    statistics: Any  # moving statistics, (size - num_trainable,)
    optimizer: list[Any]
    gradient_sum: Any  # of the gradients as they come from the loss
    step: Any
    square_sums: Any  # over parts of the vector, squared norms: cross-entropy's gradients, then those of the steps


def _parts(layout: Layout) -> dict[str, list[slice]]:
    """The trained vector cut into variables, and into the variables of one layer that lie together."""
    variables = [entry for entry in layout.entries if entry.trainable]
    layers = [list(run) for _, run in groupby(variables, key=lambda entry: entry.layer)]
    together = [slice(run[0].start, run[-1].stop) for run in layers]
    return {"variables": [entry.slice for entry in variables], "layers": together}


class LocalTraining:
    """Network, algorithm and training settings, compiled together."""

    def __init__(
        self, forward: Forward, algorithm: Algorithm, training: Any, device: str = "/CPU:0", jit: bool = False
    ):
        """Compile the loop, at the first call.

        Args:
            forward: The network.
            algorithm: Its hooks are traced into the loop.
            training: The config's section.
            device: Where it runs.
            jit: Compile with XLA. Shapes are then fixed: clients are padded to a power of two of batches, and the rows
                of a last short batch that do not exist get the weight zero.
        """
        self.forward, self.layout = forward, forward.layout
        self.algorithm, self.training, self.device, self.jit = algorithm, training, device, jit
        self.optimizer = Optimizer(training, algorithm.momentum(forward.layout))
        # With XLA each padded size is a trace of its own; otherwise one trace with a dynamic size serves all clients.
        signature = None if jit else self._signature()
        self._parts: dict[str, list[slice]] = {"": []} | _parts(self.layout)
        options = {"autograph": False, "jit_compile": jit, "input_signature": signature}
        self.run = {parts: tf.function(partial(self._run, parts=parts), **options) for parts in self._parts}
        self.gradient_at = tf.function(
            lambda weights, x, y: self._gradient(weights, forward.lay_out(x), y, tf.shape(y)[0], None),
            autograph=False,
            input_signature=[signature[0], signature[4], signature[5]] if signature else None,
        )

    def _signature(self) -> list[Any]:
        blank = np.zeros(self.layout.size, np.float32)

        def specs(slots: Slots) -> dict[str, Any]:
            return {name: tf.TensorSpec(np.shape(value), np.asarray(value).dtype) for name, value in slots.items()}

        server = self.algorithm.broadcast(ServerState(blank, self.algorithm.init_server(self.layout, blank)))
        client = self.algorithm.init_client(self.layout, blank)
        weights, inputs = tf.TensorSpec([self.layout.size]), tf.TensorSpec([None, *self.forward.input_shape])
        shapes: tuple[list[int | None], ...] = (
            [None],
            [self.training.local_epochs, None],
            [],
        )  # labels, orders, the number of examples
        integers = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
        return [weights, weights, specs(server), specs(client), inputs, *integers, tf.TensorSpec([2], tf.int64)]

    def _run(
        self, start: Any, global_weights: Any, server: Any, client: Any, x: Any, y: Any, orders: Any,
        num_examples: Any, seed: Any, parts: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Traced: all of a client's work in a round; over `parts`, the steps' squared gradient norms are added up."""
        norms, epochs, num_trainable = self._parts[parts], self.training.local_epochs, self.layout.num_trainable
        ctx = self._context(global_weights, server, client, x, y, num_examples)
        ctx = ctx.with_(before=self.algorithm.before_training(ctx))

        def epoch(number: Any, state: State, losses: Any, accuracies: Any, facts: Any) -> Any:
            previous = tf.cond(number > 0, lambda: accuracies[number - 1], lambda: tf.zeros([], accuracies.dtype))
            state, loss, correct, told = self._epoch(ctx, number, state, previous, orders[number], seed, norms)
            now = tf.one_hot(number, epochs, dtype=start.dtype)
            here = now / tf.cast(num_examples, start.dtype)
            if told:
                facts += now[:, None] * tf.stack(told)
            return number + 1, state, losses + here * loss, accuracies + here * correct, facts

        weights = start[:num_trainable]
        state = State(
            weights, start[num_trainable:], self.optimizer.init(weights), tf.zeros_like(weights), tf.constant(0),
            tf.zeros([2, len(norms)]),
        )  # fmt: skip
        losses = accuracies = tf.zeros([epochs], start.dtype)
        facts = tf.zeros([epochs, len(self.algorithm.epoch_facts)], start.dtype)
        if epochs:
            _, state, losses, accuracies, facts = tf.while_loop(
                lambda number, *_: number < epochs, epoch, (0, state, losses, accuracies, facts)
            )
        final = tf.concat([state.weights, state.statistics], 0)
        return {
            "weights": final,
            "gradient_sum": state.gradient_sum,
            "steps": state.step,
            "epoch_loss": losses,
            "epoch_accuracy": accuracies,
            "extras": self.algorithm.after_training(ctx, final),
            "epoch_facts": facts,
            "square_sums": state.square_sums,
        }

    def _context(self, global_weights: Any, server: Any, client: Any, x: Any, y: Any, count: Any) -> ClientContext:
        """Traced: what the algorithm's hooks see."""
        laid_out = self.forward.lay_out(x)  # left out of the graph where the algorithm has no passes over all data
        return ClientContext(
            self.layout, global_weights, server, client, x, y, count, self.training.learning_rate,
            forward_all=lambda weights: self._forward_all(weights, laid_out, tf.shape(x)[0]),
            accuracy=lambda weights: self._accuracy(weights, laid_out, y, count),
            gradient=lambda weights, entries=None: self._gradient(weights, laid_out, y, count, entries),
        )  # fmt: skip

    def _epoch(
        self, ctx: ClientContext, epoch: Any, state: State, accuracy: Any, order: Any, seed: Any, norms: list[slice]
    ) -> tuple[State, Any, Any, list[Any]]:
        """Traced: one pass over the client's data; the sum of its losses, its right answers, its epoch facts."""
        whole = tf.concat([state.weights, state.statistics], 0)
        ctx = ctx.with_(epoch=self.algorithm.start_epoch(ctx, epoch, whole, accuracy))
        data = (tf.gather(ctx.x, order), tf.gather(ctx.y, order), order)
        num_batches = (ctx.num_examples + self.training.batch_size - 1) // self.training.batch_size
        none = tf.zeros([], state.weights.dtype)

        def step(number: Any, *carried: Any) -> Any:
            batch = self._batch(data, number, ctx.num_examples)
            return number + 1, *self._step(ctx, batch, seed, norms, *carried)

        begin = (0, state, none, none)
        _, state, loss_sum, correct = tf.while_loop(lambda number, *_: number < num_batches, step, begin)
        return state, loss_sum, correct, [ctx.epoch[name] for name in self.algorithm.epoch_facts]

    def _batch(self, data: Any, number: Any, num_examples: Any) -> Batch:
        """Traced: a batch of an epoch's data."""
        x, y, order = data
        size = self.training.batch_size
        begin = number * size
        count = tf.minimum(num_examples - begin, size)
        share = 1 / tf.cast(count, tf.float32)
        if not self.jit:
            end = begin + size
            return Batch(x[begin:end], y[begin:end], order[begin:end], tf.fill([count], share), count)

        def rows(values: Any) -> Any:
            rest = values.shape[1:]
            return tf.reshape(tf.slice(values, [begin] + [0] * len(rest), [size, *rest]), [size, *rest])

        return Batch(rows(x), rows(y), rows(order), tf.where(tf.range(size) < count, share, 0.0), count)

    def _forward_all(self, weights: Any, laid_out: Any, count: Any) -> Outputs:
        """Traced: the network's answers to all of a client's data, in chunks."""
        tensors = self.forward.tensors(weights)
        if self.jit:
            return self.forward.apply(tensors, laid_out, laid_out=True)[0]
        chunks = (count + CHUNK - 1) // CHUNK

        def chunk(number: Any, logits: Any, features: Any) -> Any:
            outputs = self._chunk(tensors, laid_out, number, CHUNK)
            return number + 1, logits.write(number, outputs.logits), features.write(number, outputs.features)

        arrays = [
            tf.TensorArray(weights.dtype, chunks, infer_shape=False, element_shape=[None, *shape])
            for shape in ((self.forward.num_classes,), self.forward.feature_shape)
        ]
        _, logits, features = tf.while_loop(lambda number, *_: number < chunks, chunk, (0, *arrays))
        return Outputs(logits.concat(), features.concat())

    def _chunk(self, tensors: list[Any], laid_out: Any, number: Any, size: Any) -> Outputs:
        """Traced: the network's answers to one chunk."""
        part = self.forward.part(laid_out, number * size, (number + 1) * size)
        return self.forward.apply(tensors, part, laid_out=True)[0]

    def _accuracy(self, weights: Any, laid_out: Any, y: Any, num_examples: Any) -> Any:
        """Traced: the share of a client's data that the network answers rightly."""
        tensors = self.forward.tensors(weights)

        def hits(number: Any, size: Any, labels: Any, real: Any) -> Any:
            right = tf.equal(tf.argmax(self._chunk(tensors, laid_out, number, size).logits, 1, tf.int32), labels)
            return tf.reduce_sum(tf.cast(tf.logical_and(right, real), weights.dtype))

        return self._mean(hits, tf.zeros([], weights.dtype), y, num_examples)

    def _mean(self, part: Any, total: Any, y: Any, num_examples: Any) -> Any:
        """Traced: what `part` gives for each chunk of a client's data, added up and divided by its examples."""
        size = y.shape[0] if self.jit else CHUNK

        def chunk(number: Any, total: Any) -> Any:
            labels = y[number * size : (number + 1) * size]
            real = tf.range(tf.shape(labels)[0]) + number * size < num_examples  # padding does not count
            return number + 1, total + part(number, size, labels, real)

        chunks = (num_examples + size - 1) // size
        total = tf.while_loop(lambda number, _: number < chunks, chunk, (0, total), parallel_iterations=1)[1]
        return total / tf.cast(num_examples, total.dtype)

    def _gradient(self, weights: Any, laid_out: Any, y: Any, num_examples: Any, entries: Sequence[Entry] | None) -> Any:
        """Traced: the gradient of the mean cross-entropy over a client's data, for some entries of the layout.

        Only these tensors are watched, so the backward pass ends at the first layer that has one of them.
        """
        wanted = {entry.path for entry in (self.layout.entries if entries is None else entries) if entry.trainable}
        chosen = [number for number, entry in enumerate(self.layout.entries) if entry.path in wanted]
        tensors = self.forward.tensors(weights)
        watched = [tensors[place] for place in chosen]

        def gradients(number: Any, size: Any, labels: Any, real: Any) -> Any:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                logits = self._chunk(tensors, laid_out, number, size).logits
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(tf.cast(real, weights.dtype) * losses)
            return tf.concat([tf.reshape(gradient, [-1]) for gradient in tape.gradient(loss, watched)], 0)

        count = sum(prod(self.layout.entries[place].shape) for place in chosen)
        return self._mean(gradients, tf.zeros([count], weights.dtype), y, num_examples)

    def _step(
        self, ctx: ClientContext, batch: Batch, seed: Any, norms: Any, state: "State", loss_sum: Any, correct: Any
    ) -> tuple["State", Any, Any]:
        """Traced: one step of the optimizer."""
        weights, statistics = state.weights, state.statistics
        key = tf.stack([seed[0], seed[1] + tf.cast(state.step, tf.int64)])
        with tf.GradientTape(persistent=bool(norms)) as tape:
            tape.watch(weights)
            whole = tf.concat([weights, statistics], 0) if self.layout.size > self.layout.num_trainable else weights
            outputs, statistics, losses = self.forward(whole, batch.x, training=True, seed=key)
            values = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.y, outputs.logits)
            cross_entropy = tf.reduce_sum(batch.weights * values)
            own = self.algorithm.loss_term(ctx, weights, batch, outputs, cross_entropy)
            loss = tf.add_n([own, *losses])
        gradient = tape.gradient(loss, weights)
        # What all algorithms share takes a backward pass of its own where the loss has other terms, and is asked for.
        is_plain = not norms or (own is cross_entropy and not losses)
        plain = gradient if is_plain else tape.gradient(cross_entropy, weights)
        adjusted = self.algorithm.adjust_gradient(ctx, gradient, weights)
        weights, slots = self.optimizer.step(weights, adjusted, state.optimizer, state.step)
        weights = self.algorithm.after_step(ctx, weights)
        hits = tf.equal(tf.argmax(outputs.logits, 1, tf.int32), batch.y)
        count = tf.cast(batch.count, weights.dtype)
        correct += count * tf.reduce_sum(tf.where(hits, batch.weights, 0.0))
        squares = state.square_sums
        if norms:
            # An op for each part.
            squares += 2 * tf.stack([[tf.nn.l2_loss(one[part]) for part in norms] for one in (plain, adjusted)])
        state = State(weights, statistics, slots, state.gradient_sum + gradient, state.step + 1, squares)
        return state, loss_sum + cross_entropy * count, correct

    def train(self, task: ClientTask, x: Any, y: np.ndarray, seed: int) -> tuple[ClientResult, Trained]:
        """One client's round: its result, and what the loop measured."""
        started = time.perf_counter()
        start = self.algorithm.start_weights(self.layout, task.weights, task.client_slots)
        orders = seeding.batch_orders(seed, task.round_index, task.client_id, len(y), self.training.local_epochs)
        dropout = np.array([seeding.seed(seed, "dropout", task.round_index, task.client_id) >> 31, 0], np.int64)
        count = np.int32(len(y))
        with tf.device(self.device):
            inputs, labels, padded = self._padded(x, y, orders) if self.jit else (x, y, orders)
            run = self.run[max((probe.step_norms for probe in task.probes), default="", key=PARTS.index)]
            out = run(start, task.weights, task.server_slots, task.client_slots, inputs, labels, padded, count, dropout)
        out = tf.nest.map_structure(lambda tensor: tensor.numpy(), out)
        trained = Trained(**out | {"steps": int(out["steps"])})
        sent, rate = (task.weights, task.server_slots, task.client_slots), self.training.learning_rate
        ctx = ClientContext(self.layout, *sent, x, y, len(y), rate)
        payload, slots = self.algorithm.finish_client(ctx, trained)
        metrics = self._metrics(task, trained, len(y))
        seconds = time.perf_counter() - started
        return ClientResult(task.client_id, len(y), trained.weights, payload, slots, metrics, seconds=seconds), trained

    def _metrics(self, task: ClientTask, trained: Trained, num_examples: int) -> dict[str, Any]:
        """The client's row of clients.jsonl."""
        norms = layer_norms(self.layout, update(trained.weights, task.weights))
        metrics: dict[str, Any] = {
            "client": task.client_id,
            "num_examples": num_examples,
            "steps": trained.steps,
            "train_loss": float(trained.epoch_loss[-1]) if len(trained.epoch_loss) else None,
            "train_accuracy": float(trained.epoch_accuracy[-1]) if len(trained.epoch_accuracy) else None,
            "update_norm": float(np.sqrt(sum(norm**2 for norm in norms.values()))),
            "update_norms": norms,
        }
        if len(trained.epoch_facts):
            means = trained.epoch_facts.mean(0)
            metrics |= {name: float(mean) for name, mean in zip(self.algorithm.epoch_facts, means, strict=True)}
        return metrics

    def _padded(self, x: Any, y: np.ndarray, orders: np.ndarray) -> tuple[Any, Any, Any]:
        """A client's data, lengthened by zeros to a power of two of batches."""
        batches = -(-len(y) // self.training.batch_size)
        extra = (1 << max(batches - 1, 0).bit_length()) * self.training.batch_size - len(y)
        end = [[0, extra]]
        inputs = tf.pad(x, end + [[0, 0]] * (len(x.shape) - 1))
        return inputs, tf.constant(np.pad(y, end)), tf.constant(np.pad(orders, [[0, 0], *end]))

"""The one compiled local loop. Algorithms plug into it; nobody copies it.

A client's whole training (epochs, batches, optimizer steps) is one TensorFlow graph over one weight vector, traced once
for all clients and rounds: the number of examples is the only thing that varies, and it is dynamic. Nothing is built,
compiled or assigned per client.
"""

import json
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from feddual import acceleration, algorithms, config, datasets, devices, models, partition, seeding
from feddual._lazy import tf
from feddual.algorithms._base import Algorithm, Batch, ClientContext, ClientResult, Outputs, Slots, Trained
from feddual.federation import Federation
from feddual.models import Network
from feddual.weights import layer_norms, moving_statistics, read, update


class Forward:
    """The network as a function of a weight vector."""

    def __init__(self, network: Network, on_features: bool, accelerate: bool = True):
        """Args: network, whether inputs are the prefix's features already, and whether exact rewrites are used."""
        self.layout = network.layout
        self.prefix = None if on_features else network.prefix
        first = acceleration.FirstConvolution.of(network.model) if accelerate and network.prefix is None else None
        self.first = first
        self.trained = network.trained if first is None else first.rest
        statistics = {id(variable): number for number, variable in enumerate(moving_statistics(network.model))}
        # Keras hands out and takes back all non-trainable variables in one list: which of them are ours, which are the
        # random state of dropout, and which stay as they are.
        self._places = [statistics.get(id(variable)) for variable in self.trained.non_trainable_variables]
        self._is_seed = ["seed_generator" in variable.path for variable in self.trained.non_trainable_variables]
        self._num_first = len(network.model.trainable_variables) - len(self.trained.trainable_variables)
        rest = [id(variable) for variable in network.model.trainable_variables[self._num_first :]]
        if rest != [id(variable) for variable in self.trained.trainable_variables]:
            raise ValueError("the trained part does not hold the model's trainable variables in their order")

    def __call__(
        self, weights: Any, x: Any, training: bool = False, seed: Any = None
    ) -> tuple[Outputs, Any, list[Any]]:
        """Traced.

        Args:
            weights: The whole vector.
            x: Inputs.
            training: Whether dropout and batch statistics are on.
            seed: Two integers for dropout.

        Returns:
            Outputs, the new moving statistics as a vector, and the layers' own losses (regularisers).
        """
        entries = self.layout.entries
        sizes = [entry.stop - entry.start for entry in entries]
        tensors = [tf.reshape(part, entry.shape) for part, entry in zip(tf.split(weights, sizes), entries, strict=True)]
        trainable = [tensor for tensor, entry in zip(tensors, entries, strict=True) if entry.trainable]
        statistics = tensors[len(trainable) :]
        rest = []
        for number, variable in enumerate(self.trained.non_trainable_variables):
            place = self._places[number]
            if place is not None:
                rest.append(statistics[place])
            elif self._is_seed[number] and seed is not None:
                rest.append(tf.cast(seed + number, variable.dtype))
            else:
                rest.append(variable.value)
        if self.prefix is not None:
            x = tf.stop_gradient(self.prefix(x, training=False))
        if self.first is not None:
            x = self.first(trainable[: self._num_first], x)
        (features, logits), rest, losses = self.trained.stateless_call(
            trainable[self._num_first :], rest, x, training=training, return_losses=True
        )
        moved = [(place, value) for place, value in zip(self._places, rest, strict=True) if place is not None]
        moved.sort(key=lambda pair: pair[0])
        new_statistics = tf.concat([tf.reshape(value, [-1]) for _, value in moved], 0) if moved else tf.zeros([0])
        return Outputs(logits, features), new_statistics, losses


class Optimizer:
    """SGD, SGD with momentum, and Adam on a vector, with Keras' arithmetic. State starts fresh each round."""

    def __init__(self, training: Any):
        self.training = training

    def init(self, weights: Any) -> list[Any]:
        count = 2 if self.training.optimizer == "adam" else int(self.training.momentum > 0)
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
            rate = (
                rate
                * tf.sqrt(1 - tf.pow(tf.cast(0.999, weights.dtype), power))
                / (1 - tf.pow(tf.cast(0.9, weights.dtype), power))
            )
            return weights - rate * first / (tf.sqrt(second) + 1e-7), [first, second]
        if settings.momentum:
            velocity = settings.momentum * state[0] - rate * gradient
            return weights + velocity, [velocity]
        return weights - rate * gradient, state


class LocalTraining:
    """Network, algorithm and training settings, compiled together."""

    def __init__(
        self, network: Network, algorithm: Algorithm, training: Any, on_features: bool, device: str, accelerate: bool
    ):
        self.layout = network.layout
        self.algorithm = algorithm
        self.training = training
        self.forward = Forward(network, on_features, accelerate)
        self.optimizer = Optimizer(training)
        self.device = device
        blank = np.zeros(self.layout.size, np.float32)
        shape = (network.trained if on_features else network.model).input_shape[1:]

        def specs(slots: Slots) -> dict[str, Any]:
            return {name: tf.TensorSpec(np.shape(value), np.asarray(value).dtype) for name, value in slots.items()}

        self.run = tf.function(
            self._run,
            autograph=False,
            input_signature=[
                tf.TensorSpec([self.layout.size]),
                tf.TensorSpec([self.layout.size]),
                specs(algorithm.init_server(self.layout, blank)),
                specs(algorithm.init_client(self.layout, blank)),
                tf.TensorSpec([None, *shape]),
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([training.local_epochs, None], tf.int32),
                tf.TensorSpec([2], tf.int64),
            ],
        )

    def _run(
        self, start: Any, global_weights: Any, server: Any, client: Any, x: Any, y: Any, orders: Any, seed: Any
    ) -> dict[str, Any]:
        """Traced: all of a client's work in a round."""
        algorithm, layout, batch_size = self.algorithm, self.layout, self.training.batch_size
        epochs, num_trainable = self.training.local_epochs, layout.num_trainable
        num_examples = tf.shape(y)[0]
        num_batches = (num_examples + batch_size - 1) // batch_size
        ctx = ClientContext(
            layout,
            global_weights,
            server,
            client,
            x,
            y,
            num_examples,
            self.training.learning_rate,
            forward=lambda weights, inputs: self.forward(weights, inputs)[0],
        )
        ctx = ctx.with_(before=algorithm.before_training(ctx))

        def train_batch(number: Any, epoch_data: Any, epoch_ctx: ClientContext, carried: Any) -> Any:
            weights, statistics, state, gradient_sum, step, loss_sum, correct = carried
            x_epoch, y_epoch, order = epoch_data
            begin = number * batch_size
            labels = y_epoch[begin : begin + batch_size]
            count = tf.shape(labels)[0]
            batch = Batch(
                x_epoch[begin : begin + batch_size],
                labels,
                order[begin : begin + batch_size],
                tf.fill([count], 1 / tf.cast(count, weights.dtype)),
            )
            with tf.GradientTape() as tape:
                tape.watch(weights)
                whole = tf.concat([weights, statistics], 0) if layout.size > num_trainable else weights
                outputs, statistics, losses = self.forward(
                    whole, batch.x, training=True, seed=seed + tf.cast(step, tf.int64)
                )
                values = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs.logits)
                cross_entropy = tf.reduce_sum(batch.weights * values)
                loss = algorithm.loss_term(epoch_ctx, weights, batch, outputs, cross_entropy)
                loss = tf.add_n([loss, *losses])
            gradient = tape.gradient(loss, weights)
            adjusted = algorithm.adjust_gradient(epoch_ctx, gradient, weights)
            weights, state = self.optimizer.step(weights, adjusted, state, step)
            weights = algorithm.after_step(epoch_ctx, weights)
            hits = tf.equal(tf.argmax(outputs.logits, 1, tf.int32), labels)
            return (
                weights,
                statistics,
                state,
                gradient_sum + gradient,
                step + 1,
                loss_sum + cross_entropy * tf.cast(count, weights.dtype),
                correct + tf.reduce_sum(tf.cast(hits, tf.int32)),
            )

        def train_epoch(epoch: Any, carried: Any, losses: Any, accuracies: Any) -> Any:
            weights, statistics, state, gradient_sum, step = carried
            previous = tf.cond(epoch > 0, lambda: accuracies[epoch - 1], lambda: tf.zeros([], accuracies.dtype))
            epoch_ctx = ctx.with_(epoch=algorithm.start_epoch(ctx, epoch, weights, previous))
            epoch_data = (tf.gather(x, orders[epoch]), tf.gather(y, orders[epoch]), orders[epoch])
            *carried, loss_sum, correct = tf.while_loop(
                lambda number, _: number < num_batches,
                lambda number, values: (number + 1, train_batch(number, epoch_data, epoch_ctx, values)),
                (0, (weights, statistics, state, gradient_sum, step, tf.zeros([], weights.dtype), 0)),
            )[1]
            here = tf.one_hot(epoch, epochs, dtype=weights.dtype)
            total = tf.cast(num_examples, weights.dtype)
            return (
                epoch + 1,
                tuple(carried),
                losses + here * loss_sum / total,
                accuracies + here * tf.cast(correct, weights.dtype) / total,
            )

        weights, statistics = start[:num_trainable], start[num_trainable:]
        nothing = tf.zeros([epochs], start.dtype)
        carried = (weights, statistics, self.optimizer.init(weights), tf.zeros_like(weights), 0)
        if epochs:
            _, carried, losses, accuracies = tf.while_loop(
                lambda epoch, *_: epoch < epochs, train_epoch, (0, carried, nothing, nothing)
            )
        else:
            losses, accuracies = nothing, nothing
        weights, statistics, _, gradient_sum, step = carried
        final = tf.concat([weights, statistics], 0)
        return {
            "weights": final,
            "gradient_sum": gradient_sum,
            "steps": step,
            "epoch_loss": losses,
            "epoch_accuracy": accuracies,
            "extras": algorithm.after_training(ctx, final),
        }

    def train(self, task: "ClientTask", x: np.ndarray, y: np.ndarray, seed: int) -> tuple[ClientResult, Trained]:
        """One client's round: its result, and what the loop measured."""
        started = time.perf_counter()
        start = self.algorithm.start_weights(self.layout, task.weights, task.client_slots)
        orders = seeding.batch_orders(seed, task.round_index, task.client_id, len(y), self.training.local_epochs)
        dropout = np.array([seeding.seed(seed, "dropout", task.round_index, task.client_id) >> 31, 0], np.int64)
        with tf.device(self.device):
            out = self.run(start, task.weights, task.server_slots, task.client_slots, x, y, orders, dropout)
        out = tf.nest.map_structure(lambda tensor: tensor.numpy(), out)
        trained = Trained(
            out["weights"],
            out["gradient_sum"],
            int(out["steps"]),
            out["epoch_loss"],
            out["epoch_accuracy"],
            out["extras"],
        )
        ctx = ClientContext(
            self.layout, task.weights, task.server_slots, task.client_slots, x, y, len(y), self.training.learning_rate
        )
        payload, slots = self.algorithm.finish_client(ctx, trained)
        change = update(trained.weights, task.weights)
        norms = layer_norms(self.layout, change)
        metrics: dict[str, Any] = {
            "client": task.client_id,
            "num_examples": len(y),
            "steps": trained.steps,
            "train_loss": float(trained.epoch_loss[-1]) if len(trained.epoch_loss) else None,
            "train_accuracy": float(trained.epoch_accuracy[-1]) if len(trained.epoch_accuracy) else None,
            "update_norm": float(np.sqrt(sum(norm**2 for norm in norms.values()))),
            "update_norms": norms,
        }
        seconds = time.perf_counter() - started
        return ClientResult(task.client_id, len(y), trained.weights, payload, slots, metrics, seconds=seconds), trained


@dataclass(frozen=True)
class ClientTask:
    """Everything a worker needs to train one client: small, and the same for every executor."""

    experiment: str  # the resolved experiment as JSON; the worker builds its workbench from it, once
    round_index: int
    client_id: int
    weights: np.ndarray
    server_slots: Slots = field(default_factory=dict)
    client_slots: Slots = field(default_factory=dict)
    probes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Workbench:
    """What a process needs to train and test: built once, used for all clients and rounds."""

    experiment: config.Experiment
    network: Network
    federation: Federation
    algorithm: Algorithm
    training: LocalTraining
    device: str

    def initial_weights(self) -> np.ndarray:
        return read(self.network.model)


@dataclass(frozen=True)
class Measured:
    """What a probe's client half may look at."""

    bench: Workbench
    task: ClientTask
    trained: Trained
    x: np.ndarray
    y: np.ndarray


def workbench(experiment: str, progress: acceleration.Progress | None = None) -> Workbench:
    """The workbench of an experiment (as JSON), from this process's cache or built now."""
    return _workbenches(experiment, _Uncompared(progress))


class _Uncompared:
    """Carries a callback through the cache without being part of the key."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncompared)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=2)
def _workbenches(experiment_json: str, progress: _Uncompared) -> Workbench:
    experiment = config.resolve(json.loads(experiment_json))
    runtime = experiment.runtime
    device = devices.configure(runtime.threads, runtime.device)
    dataset = datasets.load(experiment.dataset, runtime.data_dir)
    split = partition.split(dataset.y_train, experiment.partition)
    network = models.build(
        experiment.model,
        dataset.input_shape,
        dataset.num_classes,
        seeding.seed(experiment.seed, "initialisation"),
        runtime.data_dir,
        getattr(experiment.dataset, "preprocess", "auto"),
    )
    on_features = network.prefix is not None and runtime.cache_features
    train = acceleration.features(network, dataset.x_train, progress.value) if on_features else None
    test = acceleration.features(network, dataset.x_test, progress.value) if on_features else None
    federation = Federation(dataset, split, network.preprocess, train, test)
    algorithm = algorithms.create(experiment)
    training = LocalTraining(network, algorithm, experiment.training, on_features, device, runtime.accelerate)
    return Workbench(experiment, network, federation, algorithm, training, device)


def train_client(task: ClientTask) -> ClientResult:
    """Executor function: train one client on this process's workbench."""
    bench = workbench(task.experiment)
    x, y = bench.federation.client(task.client_id)
    result, trained = bench.training.train(task, x, y, bench.experiment.seed)
    measured = {probe.name: probe.client_measure(Measured(bench, task, trained, x, y)) for probe in task.probes}
    return replace(result, probes=measured)

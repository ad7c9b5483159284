"""What a process needs to train and test: built once from the experiment, used for all clients and rounds."""

import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from feddual import algorithms, devices, models, seeding
from feddual._lazy import keras, tf
from feddual.algorithms._base import Algorithm, ClientResult
from feddual.data import datasets, partition
from feddual.data.federation import Federation
from feddual.errors import UserError
from feddual.experiment import config
from feddual.functional import rewrites as acceleration
from feddual.functional.forward import Forward
from feddual.functional.layout import read
from feddual.models import Network
from feddual.probes import ClientView
from feddual.training.evaluation import Evaluator
from feddual.training.local import ClientTask, LocalTraining


@dataclass(frozen=True)
class Workbench:
    """What a process needs to train and test: built once, used for all clients and rounds."""

    experiment: config.Experiment
    network: Network
    federation: Federation
    algorithm: Algorithm
    training: LocalTraining
    device: str

    @cached_property
    def resident(self) -> Any | None:
        """All training inputs on the device, where clients gather theirs; None on the CPU, which needs no copy."""
        if self.device == "/CPU:0":
            return None
        x, _ = self.federation.train(np.arange(len(self.federation.dataset.y_train)))
        with tf.device(self.device):
            return tf.constant(x)

    def client(self, client_id: int) -> tuple[Any, np.ndarray]:
        """A client's inputs, on the device, and labels."""
        if self.resident is None:
            return self.federation.client(client_id)
        indices = self.federation.partition.client(client_id)
        with tf.device(self.device):
            return tf.gather(self.resident, indices), self.federation.labels(indices)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The test set and the compiled network."""
        x, y = self.federation.test()
        return Evaluator(self.training.forward, x, y, self.experiment.evaluation.batch_size, self.device)

    def gradient(self, weights: np.ndarray, x: Any, y: np.ndarray) -> np.ndarray:
        """The gradient (num_trainable,) of the mean cross-entropy at given weights on given data."""
        with tf.device(self.device):
            return self.training.gradient_at(weights, x, y).numpy()

    def activations(self, weights: np.ndarray, x: Any) -> dict[str, np.ndarray]:
        """The output of each layer that has trained weights, flattened, for given weights and inputs."""
        layers, run = self._activations
        return {
            name: value.numpy().reshape(int(x.shape[0]), -1)
            for name, value in zip(layers, run(weights, x), strict=True)
        }

    @cached_property
    def _activations(self) -> tuple[list[str], Any]:
        forward, model = self.training.forward, self.network.model
        base = self.network.trained if self.federation.train_features is not None else model
        place = {id(variable): number for number, variable in enumerate(model.trainable_variables)}
        entries = self.network.layout.entries
        named = {
            entries[place[id(layer.trainable_variables[0])]].layer: layer
            for layer in base.layers
            if layer.trainable_variables
        }
        # A cut model has nodes of its own: a layer's `output` may belong to the whole.
        graph = base._functional if isinstance(base, keras.Sequential) else base
        nodes = [node for level in graph._nodes_by_depth.values() for node in level]
        outputs = {id(node.operation): node.outputs[0] for node in nodes}
        part = keras.Model(base.inputs, [outputs[id(layer)] for layer in named.values()])
        chosen = [place[id(variable)] for variable in part.trainable_variables]

        def run(weights: Any, x: Any) -> Any:
            tensors = forward.tensors(weights)
            fixed = [variable.value for variable in part.non_trainable_variables]
            values = part.stateless_call([tensors[number] for number in chosen], fixed, x, training=False)[0]
            return values if isinstance(values, list) else [values]

        return list(named), tf.function(run, autograph=False)

    def initial_weights(self) -> np.ndarray:
        return read(self.network.model)


def workbench(experiment: str, progress: acceleration.Progress | None = None) -> Workbench:
    """The workbench of an experiment (as JSON), from this process's cache or built now.

    A model, algorithm, ... that was edited and run again in a notebook is another one, and so is its workbench.
    """
    return _workbenches(experiment, config.found_by(json.loads(experiment)), _Uncompared(progress))


def forget() -> None:
    """Let go of the workbenches this process keeps."""
    _workbenches.cache_clear()


class _Uncompared:
    """Carries a callback through the cache without being part of the key."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncompared)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=4)
def _workbenches(experiment_json: str, found: tuple[Any, ...], progress: _Uncompared) -> Workbench:
    experiment = config.resolve(json.loads(experiment_json))
    runtime = experiment.runtime
    device = devices.configure(runtime.threads, runtime.device)
    devices.keep_memory()
    share = experiment.evaluation.held_out
    dataset = datasets.load(experiment.dataset, runtime.data_dir, with_test=not share)
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
    if share:
        rows = datasets.held_out_rows(dataset.y_train, share)
        dataset = dataset.held_out(*rows)
        train, test = (train[rows[0]], train[rows[1]]) if train is not None else (None, None)
    else:
        test = acceleration.features(network, dataset.x_test, progress.value) if on_features else None
    split = partition.split(dataset.y_train, experiment.partition)
    federation = Federation(dataset, split, network.preprocess, train, test)
    algorithm = algorithms.create(experiment)
    jit = use_jit(runtime.jit, device, network)
    forward = Forward(network, on_features, runtime.accelerate and not jit)
    training = LocalTraining(forward, algorithm, experiment.training, device, jit)
    return Workbench(experiment, network, federation, algorithm, training, device)


def use_jit(wish: Any, device: str, network: Network) -> bool:
    """Whether XLA compiles the loop: on a GPU by default; never with batch statistics, which padding would change."""
    normalised = network.layout.size > network.layout.num_trainable
    if wish is True and normalised:
        raise UserError(
            "runtime.jit: true is not possible with batch normalisation, whose statistics padded rows would "
            "change; use auto or false"
        )
    return bool(wish is True or (wish == "auto" and "GPU" in device and not normalised))


def train_client(task: ClientTask) -> ClientResult:
    """Executor function: train one client on this process's workbench."""
    bench = workbench(task.experiment)
    x, y = bench.client(task.client_id)
    result, trained = bench.training.train(task, x, y, bench.experiment.seed)
    view = ClientView(
        bench, bench.experiment, task.round_index, task.num_rounds, task.client_id, task.weights, trained, x, y
    )
    return replace(result, probes={probe.name: probe.client_measure(view) for probe in task.probes})


@dataclass(frozen=True)
class EvaluationTask:
    """Rows of the test set to run through the network."""

    experiment: str
    weights: np.ndarray
    begin: int
    end: int


def answers(task: EvaluationTask) -> np.ndarray:
    """Executor function: the logits of some of the test images."""
    return workbench(task.experiment).evaluator.logits(task.weights, task.begin, task.end)

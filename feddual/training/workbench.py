"""What a process needs to train and test: built once from the experiment, used for all clients and rounds."""

import json
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from feddual import algorithms, devices, setting
from feddual._lazy import tf
from feddual.algorithms._base import Algorithm, ClientResult
from feddual.data import datasets
from feddual.data.federation import Federation
from feddual.errors import UserError
from feddual.experiment import config
from feddual.functional.cut import TOLERANCE, mismatch
from feddual.functional.features import Progress
from feddual.functional.layout import read
from feddual.functional.network import Forward, Network
from feddual.probes import ClientView
from feddual.training.evaluation import Evaluator
from feddual.training.local import ClientTask, LocalTraining

FEW = 4  # inputs on which the function is compared with the model


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
        values = [value.numpy().reshape(int(x.shape[0]), -1) for value in run(weights, x)]
        return dict(zip(layers, values, strict=True))

    @cached_property
    def _activations(self) -> tuple[list[str], Any]:
        names, part = self.network.activations(self.federation.train_features is not None)
        tensors = self.training.forward.tensors
        places = {entry.path: place for place, entry in enumerate(self.network.layout.entries)}

        def run(weights: Any, x: Any) -> Any:
            whole = tensors(weights)
            values = part.call(lambda entry: whole[places[entry.path]], x)[0]
            return values if isinstance(values, list) else [values]

        return names, tf.function(run, autograph=False)

    def outputs(self, weights: np.ndarray, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """The last layer's input, flattened, and the logits, for given weights and inputs; some inputs at a time."""
        size = self.experiment.evaluation.batch_size
        with tf.device(self.device):
            parts = [self._outputs(weights, x[begin : begin + size]) for begin in range(0, len(x), size)]
        features, logits = (np.concatenate([part[which].numpy() for part in parts]) for which in (0, 1))
        return features.reshape(len(features), -1), logits

    @cached_property
    def _outputs(self) -> Any:
        forward = self.training.forward

        def run(weights: Any, x: Any) -> Any:
            found = forward(weights, x)[0]
            return found.features, found.logits

        signature = [tf.TensorSpec([forward.layout.size]), tf.TensorSpec([None, *forward.input_shape])]
        return tf.function(run, autograph=False, input_signature=signature)

    def initial_weights(self) -> np.ndarray:
        return read(self.network.model)


def workbench(experiment: str, progress: Progress | None = None) -> Workbench:
    """The workbench of an experiment (as JSON), from this process's cache or built now.

    A model, algorithm, ... that was edited and run again in a notebook is another one, and so is its workbench.
    """
    return _workbenches(experiment, config.found_by(json.loads(experiment)), _Uncompared(progress))


def forget() -> None:
    """Let go of the workbenches this process keeps."""
    _workbenches.cache_clear()


@dataclass(frozen=True)
class _Uncompared:
    """Carries a callback through the cache without being part of the key."""

    value: Progress | None = field(compare=False)


@lru_cache(maxsize=4)
def _workbenches(experiment_json: str, found: tuple[Any, ...], progress: _Uncompared) -> Workbench:
    experiment = config.resolve(json.loads(experiment_json))
    runtime = experiment.runtime
    device = devices.configure(runtime.threads, runtime.device)
    devices.keep_memory()
    chosen = setting.of(experiment)
    network = chosen.network
    on_features = network.prefix is not None and runtime.cache_features
    federation = chosen.federation(experiment.partition, on_features, progress.value)
    algorithm = algorithms.create(experiment)
    jit = use_jit(runtime.jit, device, network)
    forward = _checked(network, federation, on_features, runtime.accelerate and not jit)
    training = LocalTraining(forward, algorithm, experiment.training, device, jit)
    return Workbench(experiment, network, federation, algorithm, training, device)


def _checked(network: Network, federation: Federation, on_features: bool, accelerate: bool) -> Forward:
    """The network as a function, if it gives what the model gives on a few inputs; without rewrites otherwise.

    Raises:
        UserError: If even the plain function is another one.
    """
    rows = np.arange(min(FEW, len(federation.dataset.y_train)))
    images = datasets.preprocess(federation.dataset.x_train[rows], network.preprocess)
    wanted = network.model(images, training=False)
    forward = Forward(network, on_features, accelerate)
    apart = mismatch(wanted, forward(read(network.model), federation.train(rows)[0])[0].logits)
    if apart <= TOLERANCE:
        return forward
    if forward.first is None:
        said = f"as a function of its weights differs from the model itself by {apart:.1e} (relative)"
        raise UserError(f"model.name: {network.model.name!r} {said}; does a layer keep state outside its variables?")
    warnings.warn(
        f"the rewritten convolutions differ from {network.model.name!r} by {apart:.1e} (relative) and are not used",
        stacklevel=2,
    )
    return _checked(network, federation, on_features, False)


def use_jit(wish: Any, device: str, network: Network) -> bool:
    """Whether XLA compiles the loop: on a GPU by default; never with batch statistics, which padding would change."""
    normalised = network.layout.size > network.layout.num_trainable
    if wish is True and normalised:
        said = "true is not possible with batch normalisation, whose statistics padded rows would change"
        raise UserError(f"runtime.jit: {said}; use auto or false")
    return bool(wish is True or (wish == "auto" and "GPU" in device and not normalised))


def train_client(task: ClientTask) -> ClientResult:
    """Executor function: train one client on this process's workbench."""
    bench = workbench(task.experiment)
    x, y = bench.client(task.client_id)
    result, trained = bench.training.train(task, x, y, bench.experiment.seed)
    when = (task.round_index, task.num_rounds)
    view = ClientView(bench, bench.experiment, *when, task.client_id, task.weights, trained, x, y)
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

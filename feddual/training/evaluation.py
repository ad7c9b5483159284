"""Loss, accuracy and the classification metrics of a weight vector on labelled data."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from feddual._lazy import tf
from feddual.functional.network import Forward


class Evaluator:
    """A test set on the device, and the network compiled to run over it."""

    def __init__(self, forward: Forward, x: np.ndarray, y: np.ndarray, batch_size: int, device: str = "/CPU:0"):
        self.labels, self.batch_size, self.device = y, batch_size, device
        with tf.device(device):
            self.inputs = tf.constant(x)

        def run(weights: Any, inputs: Any) -> Any:
            count = tf.shape(inputs)[0]
            batches = (count + batch_size - 1) // batch_size
            shape = [None, forward.num_classes]
            logits = tf.TensorArray(weights.dtype, batches, element_shape=shape, infer_shape=False)

            def one(number: Any, logits: Any) -> Any:
                batch = inputs[number * batch_size : (number + 1) * batch_size]
                return number + 1, logits.write(number, forward(weights, batch)[0].logits)

            return tf.while_loop(lambda number, _: number < batches, one, (0, logits))[1].concat()

        signature = [tf.TensorSpec([forward.layout.size]), tf.TensorSpec([None, *x.shape[1:]])]
        self._run = tf.function(run, autograph=False, input_signature=signature)

    def logits(self, weights: np.ndarray, begin: int = 0, end: int | None = None) -> np.ndarray:
        """The network's answers to some of the images; `begin` on a batch's edge gives the same bits as the whole."""
        with tf.device(self.device):
            return self._run(weights, self.inputs[begin:end]).numpy()

    def slices(self, parts: int) -> list[tuple[int, int]]:
        """The test set cut into about `parts` ranges, on the edges of batches."""
        edges = np.linspace(0, -(-len(self.labels) // self.batch_size), parts + 1).round().astype(int) * self.batch_size
        edges[-1] = len(self.labels)
        return [(int(a), int(b)) for a, b in pairwise(edges) if a < b]


def classification_metrics(logits: np.ndarray, labels: np.ndarray, num_classes: int) -> dict[str, Any]:
    """Top-1 accuracy, cross-entropy, and what Evaluation.py of the public FedDUAL code reports.

    Averages over classes take the classes that occur in `labels`. Non-finite logits count as wrong answers; the loss is
    then reported as it is.

    Args:
        logits: Shape (n, num_classes).
        labels: Integers, shape (n,).
        num_classes: How many classes there are.
    """
    finite = np.isfinite(logits).all(axis=1)
    predicted = np.where(finite, logits.argmax(axis=1), -1)
    confusion = np.zeros((num_classes, num_classes + 1))  # the last column takes the non-finite ones
    np.add.at(confusion, (labels, predicted), 1)
    hits, total = np.diag(confusion), len(labels)
    actual, guessed = confusion.sum(1), confusion.sum(0)[:num_classes]
    present = actual > 0

    def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return np.divide(part, whole, out=np.zeros(num_classes), where=whole > 0)

    recall, precision = ratio(hits, actual), ratio(hits, guessed)
    f1 = ratio(2 * precision * recall, precision + recall)
    accuracy = hits.sum() / total
    chance = float(actual @ guessed) / total**2
    covariance = hits.sum() * total - actual @ guessed
    spread = np.sqrt(total**2 - guessed @ guessed) * np.sqrt(total**2 - actual @ actual)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        powers = np.exp(shifted)
        sums = powers.sum(1)
        loss = float(np.mean(np.log(sums) - shifted[np.arange(total), labels]))
        probabilities = powers / sums[:, None]
    return {
        "accuracy": float(accuracy),
        "loss": loss,
        "balanced_accuracy": float(recall[present].mean()),
        "macro_f1": float(f1[present].mean()),
        "kappa": float((accuracy - chance) / (1 - chance)) if chance < 1 else 0.0,
        "mcc": float(covariance / spread) if spread > 0 else 0.0,
        "auc": _auc(probabilities, labels, present) if finite.all() else None,
        "g_mean": float(np.exp(np.mean(np.log(recall[present])))) if (recall[present] > 0).all() else 0.0,
        "per_class_accuracy": [float(value) if here else None for value, here in zip(recall, present, strict=True)],
    }


def mean_metrics(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each metric over several models."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], list):
            return [mean(list(items)) for items in zip(*values, strict=True)]
        return None if None in values else float(np.mean(values))

    return {name: mean([metrics[name] for metrics in several]) for name in several[0]}


def _auc(probabilities: np.ndarray, labels: np.ndarray, present: np.ndarray) -> float | None:
    """Area under the ROC curve, one class against the rest, averaged over the classes that occur."""
    if present.sum() < 2:
        return None
    columns = np.sort(probabilities.T, axis=1)  # sorting values is far faster than ranking them
    areas = []
    for label in np.flatnonzero(present):
        mine = probabilities[labels == label, label]
        positives = len(mine)
        below, upto = (np.searchsorted(columns[label], mine, side) for side in ("left", "right"))
        ranks = (below + upto + 1).sum() / 2  # the mean rank of equal values
        areas.append((ranks - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))
    return float(np.mean(areas))

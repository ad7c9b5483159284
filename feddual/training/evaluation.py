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
    """Top-1 accuracy, cross-entropy, and metrics in which every class counts alike.

    Averages over classes take the classes that occur in `labels`. Non-finite logits count as wrong answers; the loss is
    then reported as it is. The public FedDUAL code averages some of them in another way: `public_code_metrics`.

    Args:
        logits: Shape (n, num_classes).
        labels: Integers, shape (n,).
        num_classes: How many classes there are.
    """
    hits, actual, guessed = _counts(logits, labels, num_classes)
    present, total = actual > 0, len(labels)
    recall, precision = _ratio(hits, actual), _ratio(hits, guessed)
    f1 = _ratio(2 * precision * recall, precision + recall)
    accuracy = hits.sum() / total
    chance = float(actual @ guessed) / total**2
    covariance = hits.sum() * total - actual @ guessed
    spread = np.sqrt(total**2 - guessed @ guessed) * np.sqrt(total**2 - actual @ actual)
    shifted, powers = _softmax(logits)
    with np.errstate(over="ignore", invalid="ignore"):
        loss = float(np.mean(np.log(powers.sum(1)) - shifted[np.arange(total), labels]))
    areas = _areas(logits, labels, present)
    return {
        "accuracy": float(accuracy),
        "loss": loss,
        "balanced_accuracy": float(recall[present].mean()),
        "macro_f1": float(f1[present].mean()),
        "kappa": float((accuracy - chance) / (1 - chance)) if chance < 1 else 0.0,
        "mcc": float(covariance / spread) if spread > 0 else 0.0,
        "auc": None if areas is None else float(np.mean(areas)),
        "g_mean": float(np.exp(np.mean(np.log(recall[present])))) if (recall[present] > 0).all() else 0.0,
        "per_class_accuracy": [float(value) if here else None for value, here in zip(recall, present, strict=True)],
    }


def public_code_metrics(logits: np.ndarray, labels: np.ndarray, num_classes: int) -> dict[str, Any]:
    """What Evaluation.py of the public FedDUAL code averages in another way, under names that say how.

    Each class counts by its share of `labels`; on balanced test data F1 and AUC are those of `classification_metrics`.
    Its G-mean takes each class against the rest, sqrt(sensitivity * specificity), and then the geometric mean over
    classes; there over the first five only, here over those that occur.

    Args:
        logits: Shape (n, num_classes).
        labels: Integers, shape (n,).
        num_classes: How many classes there are.

    Returns:
        `weighted_f1`, `weighted_precision`, `weighted_recall` (the accuracy), `weighted_auc`, `g_mean_one_vs_rest`.
    """
    hits, actual, guessed = _counts(logits, labels, num_classes)
    present, share = actual > 0, actual / len(labels)
    recall, precision = _ratio(hits, actual), _ratio(hits, guessed)
    f1 = _ratio(2 * precision * recall, precision + recall)
    others = len(labels) - actual
    specificity = _ratio(others - (guessed - hits), others)
    areas = _areas(logits, labels, present)
    return {
        "weighted_f1": float(share @ f1),
        "weighted_precision": float(share @ precision),
        "weighted_recall": float(share @ recall),
        "weighted_auc": None if areas is None else float(share[present] @ areas),
        "g_mean_one_vs_rest": float(np.prod(np.sqrt(recall * specificity)[present] ** (1 / present.sum()))),
    }


def all_metrics(logits: np.ndarray, labels: np.ndarray, num_classes: int) -> dict[str, Any]:
    """Ours and the public code's, side by side."""
    asked = (logits, labels, num_classes)
    return classification_metrics(*asked) | public_code_metrics(*asked)


def mean_metrics(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each metric over several models."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], list):
            return [mean(list(items)) for items in zip(*values, strict=True)]
        return None if None in values else float(np.mean(values))

    return {name: mean([metrics[name] for metrics in several]) for name in several[0]}


def _counts(logits: np.ndarray, labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By class: right answers, examples, answers."""
    predicted = np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), -1)
    confusion = np.zeros((num_classes, num_classes + 1))  # the last column takes the non-finite ones
    np.add.at(confusion, (labels, predicted), 1)
    return np.diag(confusion), confusion.sum(1), confusion.sum(0)[:num_classes]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def _softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits less their largest, and e to the power of them."""
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        return shifted, np.exp(shifted)


def _areas(logits: np.ndarray, labels: np.ndarray, present: np.ndarray) -> np.ndarray | None:
    """The area under the ROC curve of each class that occurs against the rest; none of one class or of what is NaN."""
    if present.sum() < 2 or not np.isfinite(logits).all():
        return None
    powers = _softmax(logits)[1]
    probabilities = powers / powers.sum(1)[:, None]
    columns = np.sort(probabilities.T, axis=1)  # sorting values is far faster than ranking them
    areas = []
    for label in np.flatnonzero(present):
        mine = probabilities[labels == label, label]
        positives = len(mine)
        below, upto = (np.searchsorted(columns[label], mine, side) for side in ("left", "right"))
        ranks = (below + upto + 1).sum() / 2  # the mean rank of equal values
        areas.append((ranks - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))
    return np.array(areas)

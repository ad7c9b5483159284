"""Loss, accuracy and the classification metrics of a weight vector on labelled data."""

from typing import Any

import numpy as np

from feddual._lazy import tf
from feddual.local_training import Forward


class Evaluator:
    """A test set on the device, and the network compiled to run over it."""

    def __init__(self, forward: Forward, x: np.ndarray, y: np.ndarray, num_classes: int, batch_size: int, device: str):
        self.labels = y
        self.num_classes = num_classes
        self.device = device
        with tf.device(device):
            self.inputs = tf.constant(x)

        def run(weights: Any, inputs: Any) -> Any:
            count = tf.shape(inputs)[0]
            batches = (count + batch_size - 1) // batch_size
            logits = tf.TensorArray(tf.float32, batches, element_shape=[None, num_classes], infer_shape=False)
            _, logits = tf.while_loop(
                lambda number, _: number < batches,
                lambda number, logits: (
                    number + 1,
                    logits.write(
                        number, forward(weights, inputs[number * batch_size : (number + 1) * batch_size])[0].logits
                    ),
                ),
                (0, logits),
            )
            return logits.concat()

        self._logits = tf.function(
            run,
            autograph=False,
            input_signature=[tf.TensorSpec([forward.layout.size]), tf.TensorSpec([None, *x.shape[1:]])],
        )

    def __call__(self, weights: np.ndarray) -> dict[str, Any]:
        """The metrics of these weights."""
        with tf.device(self.device):
            logits = self._logits(weights, self.inputs).numpy()
        return classification_metrics(logits, self.labels, self.num_classes)


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
    present = confusion.sum(1) > 0
    hits = np.diag(confusion)
    actual, guessed = confusion.sum(1), confusion.sum(0)[:num_classes]
    total = len(labels)
    recall = np.divide(hits, actual, out=np.zeros(num_classes), where=actual > 0)
    precision = np.divide(hits, guessed, out=np.zeros(num_classes), where=guessed > 0)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros(num_classes), where=both > 0)
    accuracy = hits.sum() / total
    chance = float(actual @ guessed) / total**2
    covariance = hits.sum() * total - actual @ guessed
    spread = np.sqrt(total**2 - guessed @ guessed) * np.sqrt(total**2 - actual @ actual)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        loss = float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(total), labels]))
        probabilities = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
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


def _auc(probabilities: np.ndarray, labels: np.ndarray, present: np.ndarray) -> float | None:
    """Area under the ROC curve, one class against the rest, averaged over the classes that occur."""
    from scipy.stats import rankdata  # a slow import

    if present.sum() < 2:
        return None
    ranks = rankdata(probabilities, axis=0)
    areas = []
    for label in np.flatnonzero(present):
        mine = labels == label
        positives = mine.sum()
        areas.append(
            (ranks[mine, label].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))
        )
    return float(np.mean(areas))

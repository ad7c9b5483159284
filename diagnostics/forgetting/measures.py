"""What is measured of answers, features and classifiers, each defined once, on numpy arrays.

Classes of which there is no example have NaN, and so has whatever needs them. An answer that is not finite is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from figures.charts import Chart

BINS = 15
TENTH = 0.1


def is_right(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which examples are answered rightly.

    Args:
        logits: Shape (examples, classes).
        labels: Integers, (examples,).

    Returns:
        Booleans, (examples,).
    """
    return np.asarray((logits.argmax(1) == labels) & np.isfinite(logits).all(1))


def class_accuracy(right: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The share of right answers among the examples of each class.

    Args:
        right: Of `is_right`, (examples,).
        labels: Integers, (examples,).
        num_classes: How many classes there are.

    Returns:
        Shape (num_classes,).
    """
    counts = np.bincount(labels, minlength=num_classes)
    hits = np.bincount(labels, weights=right, minlength=num_classes)
    return np.divide(hits, counts, out=np.full(num_classes, np.nan), where=counts > 0)


def forgotten(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What local training cost: accuracy of the global model before it, less the client's model's after it.

    Args:
        before: Accuracy by class, (classes,).
        after: The client's, (..., classes).

    Returns:
        The shape of `after`; negative where the client has learned.
    """
    return before - after


def lost(after: np.ndarray, aggregated: np.ndarray) -> np.ndarray:
    """What averaging cost: accuracy of the client's model, less the aggregated model's.

    Args:
        after: Accuracy by class, (..., classes).
        aggregated: Shape (classes,).

    Returns:
        The shape of `after`; with `forgotten` it adds up to what the whole round cost, before - aggregated.
    """
    return after - aggregated


def share_right(right: np.ndarray, labels: np.ndarray, classes: Sequence[int]) -> float:
    """The share of right answers among the examples of some classes.

    Args:
        right: Of `is_right`, (examples,).
        labels: Integers, (examples,).
        classes: Which.

    Returns:
        The share; NaN when there are none of them.
    """
    here = np.isin(labels, classes)
    return float(right[here].mean()) if here.any() else np.nan


def class_means(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The mean features of each class: its prototype.

    Args:
        features: Shape (examples, width).
        labels: Integers, (examples,).
        num_classes: How many classes there are.

    Returns:
        Shape (num_classes, width), float64.
    """
    sums = np.zeros((num_classes, features.shape[1]))
    np.add.at(sums, labels, features.astype(np.float64))
    counts = np.bincount(labels, minlength=num_classes)[:, None]
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def centred(means: np.ndarray) -> np.ndarray:
    """Prototypes without what all classes have in common, each class counting alike.

    Args:
        means: Shape (classes, width).

    Returns:
        The same shape.
    """
    known = np.isfinite(means).all(1)
    return means - means[known].mean(0) if known.any() else means


def units(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length one; zero for those without a direction.

    Args:
        vectors: Shape (..., width).

    Returns:
        The same shape, float32, since it travels.
    """
    vectors = np.asarray(vectors, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        usable = np.isfinite(lengths) & (lengths > 0)
        return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=usable).astype(np.float32)


@dataclass(frozen=True)
class Directions:
    """Sums over clients of unit vectors: all that the mean cosine over pairs of clients takes.

    Args:
        total: Of the unit vectors, (..., width).
        count: How many of them there are, (...); a client whose vector is zero has none.
    """

    total: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray) -> "Directions":
        """One client's.

        Args:
            vectors: Of `units`, (..., width).
        """
        vectors = vectors.astype(np.float64)
        return cls(vectors, (vectors != 0).any(-1).astype(int))

    def plus(self, other: "Directions") -> "Directions":
        """With another's.

        Args:
            other: Of the same shape.
        """
        return Directions(self.total + other.total, self.count + other.count)

    @property
    def mean_cosine(self) -> np.ndarray:
        """Over pairs of clients: (||sum||^2 - K) / (K (K - 1)), (...); NaN below two clients."""
        pairs = self.count * (self.count - 1)
        found = (self.total**2).sum(-1) - self.count
        return np.divide(found, pairs, out=np.full(np.shape(found), np.nan), where=pairs > 0)


@dataclass(frozen=True)
class Collapse:
    """How far features have collapsed onto one point per class (Papyan, Han and Donoho, 2020).

    Args:
        nc1: tr(S_W S_B^+) / C: variation within classes against that between them.
        equinorm: Standard deviation of the lengths of the centred class means, over their mean.
        equiangle: Standard deviation of the cosines between two of them.
        simplex_angle: Mean distance of these cosines from -1 / (C - 1), that of a simplex.
        classes: C, how many classes occur.
        examples: How many examples there were.

    Each is 0 where every example of a class has the same features and the class means form a regular simplex.
    """

    nc1: float
    equinorm: float
    equiangle: float
    simplex_angle: float
    classes: int
    examples: int


def collapse_of(features: np.ndarray, labels: np.ndarray) -> Collapse:
    """NC1 and NC2 of the last layer's input, each class counting alike.

    S_W is the mean over classes of the covariance within a class, S_B the covariance of the class means around their
    own mean. With unequal classes this is not the covariance over examples, which would follow the largest.

    Args:
        features: Shape (examples, width).
        labels: Integers, (examples,).

    Returns:
        The numbers; NaN where there are fewer than two classes or a feature is not finite.
    """
    present, places = np.unique(labels, return_inverse=True)
    count = len(present)
    if count < 2 or not np.isfinite(features).all():
        return Collapse(np.nan, np.nan, np.nan, np.nan, count, len(labels))
    means = class_means(features, places, count)
    offsets = centred(means)
    sizes = np.bincount(places)
    rest = (features - means[places]) / np.sqrt(sizes * count)[places][:, None]
    # S_B^+ lives in the span of the centred means: their SVD is all it takes, however wide the layer is.
    values, axes = np.linalg.svd(offsets / np.sqrt(count), full_matrices=False)[1:]
    kept = values > np.linalg.norm(means) * max(offsets.shape) * np.finfo(float).eps
    kept[count - 1 :] = False  # centred means add up to zero
    nc1 = float((((rest @ axes[kept].T) / values[kept]) ** 2).sum() / count) if kept.any() else np.nan
    lengths = np.linalg.norm(offsets, axis=1)
    cosines = (units(offsets).astype(np.float64) @ units(offsets).T)[np.triu_indices(count, 1)]
    equinorm = float(lengths.std() / lengths.mean()) if lengths.mean() else np.nan
    away = float(np.abs(cosines + 1 / (count - 1)).mean())
    return Collapse(nc1, equinorm, float(cosines.std()), away, count, len(labels))


@dataclass(frozen=True, repr=False)
class Reliability:
    """Confidence against accuracy in bins of equal width; bin i holds confidences in (i / bins, (i + 1) / bins].

    Args:
        count: Examples of each bin, (bins,).
        confidence: Their mean largest probability, (bins,); NaN in an empty bin.
        accuracy: Their share of right answers, (bins,); NaN in an empty bin.
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """The expected calibration error: sum over bins of count / n |accuracy - confidence|; NaN without examples."""
        here = self.count > 0
        gaps = np.abs(self.accuracy - self.confidence)[here]
        return float(self.count[here] @ gaps / self.count.sum()) if here.any() else np.nan

    @property
    def table(self) -> "pd.DataFrame":
        """A row per bin: from, to, count, confidence, accuracy."""
        import pandas as pd

        edges = np.linspace(0, 1, len(self.count) + 1)
        columns = {"count": self.count, "confidence": self.confidence, "accuracy": self.accuracy}
        return pd.DataFrame({"from": edges[:-1], "to": edges[1:], **columns})

    def plot(self) -> "Chart":
        """Accuracy against confidence, a dashed line where they agree, and how many examples are that sure."""
        from figures.charts import averaging

        return averaging.reliability({"": [self.table]})

    def __repr__(self) -> str:
        return f"Reliability(ece={self.ece:.4g}, {len(self.count)} bins, {self.count.sum()} examples)"


def reliability(logits: np.ndarray, labels: np.ndarray, bins: int = BINS) -> Reliability:
    """How right a model is when it is so sure (Guo et al., 2017); answers that are not finite are left out.

    Args:
        logits: Shape (examples, classes).
        labels: Integers, (examples,).
        bins: How many of equal width.

    Returns:
        The bins.
    """
    finite = np.isfinite(logits).all(1)
    logits, labels = logits[finite].astype(np.float64), labels[finite]
    sure = 1 / np.exp(logits - logits.max(1, initial=-np.inf)[:, None]).sum(1)
    places = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(places, minlength=bins)
    means = [
        np.divide(np.bincount(places, weights=one, minlength=bins), count, out=np.full(bins, np.nan), where=count > 0)
        for one in (sure, is_right(logits, labels))
    ]
    return Reliability(count, *means)


def worst_tenth(accuracies: np.ndarray) -> float:
    """The mean over the tenth of the clients that fare worst, at least one.

    Args:
        accuracies: Shape (clients,).

    Returns:
        The mean; NaN without clients.
    """
    known = np.sort(accuracies[np.isfinite(accuracies)])
    return float(known[: int(np.ceil(TENTH * len(known)))].mean()) if len(known) else np.nan


def spread(accuracies: np.ndarray) -> float:
    """The standard deviation over clients: how unevenly a model serves them.

    Args:
        accuracies: Shape (clients,).

    Returns:
        The standard deviation of these clients, not an estimate for others; NaN without clients.
    """
    known = accuracies[np.isfinite(accuracies)]
    return float(known.std()) if len(known) else np.nan

"""A partitioned data set with a view for each client, ready for a network."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from feddual import display
from feddual.data import datasets
from feddual.data.datasets import Dataset
from feddual.data.partition import Partition


@dataclass(frozen=True)
class Federation:
    """The data set, who holds what, and the inputs the network takes.

    `train_inputs` and `test_inputs` are the images as they are stored (preprocessed when a view is asked for, so memory
    follows the active clients), or features that a frozen prefix computed from them, possibly mapped from a file.
    """

    dataset: Dataset
    partition: Partition
    preprocess: str
    train_features: np.ndarray | None = None
    test_features: np.ndarray | None = None

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    def client(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's inputs (float32) and labels (int32)."""
        return self.train(self.partition.client(client_id))

    def train(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of any training examples."""
        return self._inputs(self.dataset.x_train, self.train_features, indices), self.labels(indices)

    def labels(self, indices: np.ndarray) -> np.ndarray:
        """Labels of any training examples."""
        return self.dataset.y_train[indices].astype(np.int32)

    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The server's test inputs and labels."""
        inputs = self._inputs(self.dataset.x_test, self.test_features, slice(None))
        return inputs, self.dataset.y_test.astype(np.int32)

    def histograms(self) -> np.ndarray:
        """Examples of each class at each client, shape (num_clients, num_classes)."""
        return self.partition.histograms(self.dataset.y_train, self.dataset.num_classes)

    def _repr_html_(self) -> str:
        counts = self.histograms()
        facts = {
            "examples": f"{len(self.dataset.y_train)} to train on, {len(self.dataset.y_test)} to test on",
            "classes": f"{counts.shape[1]}; a client holds {np.median((counts > 0).sum(1)):g} of them (median)",
        }
        return display.facts(f"{self.dataset.name}, {self.num_clients} clients", facts, display.label_map(counts))

    def _inputs(self, images: np.ndarray, features: np.ndarray | None, indices: Any) -> np.ndarray:
        if features is not None:
            return np.asarray(features[indices], np.float32)
        return datasets.preprocess(images[indices], self.preprocess)

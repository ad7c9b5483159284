"""What an experiment runs on: its data, its network, its clients. The one way from a config to a model and data."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from feddual import models, seeding
from feddual.data import datasets, partition
from feddual.data.datasets import Dataset
from feddual.data.federation import Federation
from feddual.errors import UserError
from feddual.functional import features
from feddual.functional.layout import assign
from feddual.functional.network import Network


@dataclass(frozen=True)
class Setting:
    """Data and network of an experiment. With held-out data the real test arrays stay unopened."""

    whole: Dataset  # as it was loaded
    dataset: Dataset  # as it is used: with held-out data, these stand in for the test set
    rows: tuple[np.ndarray, np.ndarray] | None  # of the whole training set: those that train, those held out
    network: Network

    def images(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of a split, `train` or `test`."""
        data = self.dataset
        return (data.x_train, data.y_train) if split == "train" else (data.x_test, data.y_test)

    def inputs(self, split: str, rows: np.ndarray) -> np.ndarray:
        """What the trained part takes for some rows of a split: preprocessed images, or the frozen prefix's features.

        Features come from the cache that training filled, or are computed for these rows only.
        """
        if self.network.prefix is None:
            return datasets.preprocess(self.images(split)[0][rows], self.network.preprocess)
        everything = self.whole.x_train if split == "train" or self.rows is not None else self.whole.x_test
        places = self.rows[0 if split == "train" else 1][rows] if self.rows is not None else rows
        if features.feature_path(self.network, everything).exists():
            return np.asarray(features.features(self.network, everything)[places], np.float32)
        return np.asarray(features.features(self.network, everything[places]), np.float32)

    def federation(self, config: Any, on_features: bool, progress: features.Progress | None = None) -> Federation:
        """The clients; with features, those of all images are computed now unless they are kept already.

        Args:
            config: The experiment's `partition` section.
            on_features: Whether inputs are what the frozen prefix gives.
            progress: Called with (what, done, total) while features are computed.
        """
        train = test = None
        if on_features:
            train = features.features(self.network, self.whole.x_train, progress)
            if self.rows is not None:
                train, test = train[self.rows[0]], train[self.rows[1]]
            else:
                test = features.features(self.network, self.whole.x_test, progress)
        split = partition.split(self.dataset.y_train, config)
        return Federation(self.dataset, split, self.network.preprocess, train, test)


def of(experiment: Any, checkpoint: Any = None) -> Setting:
    """The setting of an experiment.

    Args:
        experiment: A resolved config.
        checkpoint: Of a run of it; the model then holds its weights.

    Raises:
        UserError: If the checkpoint is of another model.
    """
    runtime, share = experiment.runtime, experiment.evaluation.held_out
    whole = datasets.load(experiment.dataset, runtime.data_dir, with_test=not share)
    seed, preprocess = (
        seeding.seed(experiment.seed, "initialisation"),
        getattr(experiment.dataset, "preprocess", "auto"),
    )
    shape, classes = whole.input_shape, whole.num_classes
    network = models.build(experiment.model, shape, classes, seed, runtime.data_dir, preprocess)
    if checkpoint is not None:
        if checkpoint.layout != network.layout:
            raise UserError(
                f"{experiment.name}: the checkpoint of round {checkpoint.round_index} holds the weights of another "
                f"model ({checkpoint.layout} against {network.layout}); was the model's code changed since?"
            )
        assign(network.model, checkpoint.weights)
    rows = datasets.held_out_rows(whole.y_train, share) if share else None
    return Setting(whole, whole if rows is None else whole.held_out(*rows), rows, network)

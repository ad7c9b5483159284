"""Fig. 6: the loss around FedAvg's and FedDUAL's models at alpha = 0.01 on Fashion-MNIST.

The paper's text says VGG-16, its setup LeNet: both are here, the second as the trained head of the frozen VGG16 on
images padded to 32 x 32 x 3.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures._results import Drawing, Results
from figures.paper import _surfaces
from figures.paper.fig1_loss_surfaces import is_skewed, lenet, model_is

SHOWS = ("fmnist",)


def head(config: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a run is of the VGG16 head on Fashion-MNIST."""
    return model_is(config, "vgg16", algorithm)


SETTINGS = {
    "LeNet": {
        "FedAvg": lambda config: lenet(config, "fedavg") and is_skewed(config),
        "FedDUAL": lambda config: lenet(config, "feddual") and is_skewed(config),
    },
    "VGG16 head": {
        "FedAvg": lambda config: head(config, "fedavg") and is_skewed(config),
        "FedDUAL": lambda config: head(config, "feddual") and is_skewed(config),
    },
}


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig6_*.png, .pdf and .html, and a table."""
    title = "Fig. 6: how flat, FedAvg and FedDUAL at α = 0.01"
    return _surfaces.draw("fig6", title, SETTINGS, runs, out, "fmnist")


def measure(runs: Results) -> list[Path]:
    """Compare once, into files beside the runs."""
    return _surfaces.measure("fig6", SETTINGS, runs)

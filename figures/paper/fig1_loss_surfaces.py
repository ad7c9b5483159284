"""Fig. 1: the loss around FedAvg's model, trained on IID and on non-IID clients of Fashion-MNIST (LeNet).

Filter-normalised random directions (Li et al., 2018), the same noise and images for both, one colour scale.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures._results import Drawing, Results
from figures.paper import _surfaces

SHOWS = ("fmnist",)


def lenet(config: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a run is of the paper's LeNet on Fashion-MNIST."""
    return model_is(config, "lenet_published", algorithm)


def model_is(config: Mapping[str, Any], model: str, algorithm: str) -> bool:
    """Whether a run is of a model on Fashion-MNIST and of an algorithm as its paper has it."""
    settings = config["algorithm"]
    asked = (config["dataset"].get("name"), config["model"]["name"], settings["name"], settings["preset"] or "paper")
    return asked == ("fmnist", model, algorithm, "paper")


def is_iid(config: Mapping[str, Any]) -> bool:
    """Whether its clients are alike."""
    return bool(config["partition"]["name"] == "iid")


def is_skewed(config: Mapping[str, Any]) -> bool:
    """Whether its clients are the paper's."""
    return bool(config["partition"].get("alpha") == 0.01)


SETTINGS = {
    "LeNet, Fashion-MNIST": {
        "FedAvg, IID": lambda config: lenet(config, "fedavg") and is_iid(config),
        "FedAvg, non-IID": lambda config: lenet(config, "fedavg") and is_skewed(config),
    }
}


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig1_*.png, .pdf and .html, and a table."""
    title = "Fig. 1: how flat, FedAvg on IID and non-IID clients"
    return _surfaces.draw("fig1", title, SETTINGS, runs, out, "fmnist")


def measure(runs: Results) -> list[Path]:
    """Compare once, into files beside the runs."""
    return _surfaces.measure("fig1", SETTINGS, runs)

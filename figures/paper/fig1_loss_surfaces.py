"""Fig. 1: the loss around FedAvg's model, trained on IID and on non-IID clients of Fashion-MNIST (LeNet).

Filter-normalised random directions (Li et al., 2018), the same noise and images for both, one colour scale.
"""

from pathlib import Path

from figures._results import Drawing, Results
from figures.paper import _surfaces

SHOWS = ("fmnist",)
SETTINGS = {
    "LeNet, Fashion-MNIST": {
        "FedAvg, IID": ("motivation", "paper-fmnist", "iid"),
        "FedAvg, non-IID": ("motivation", "paper-fmnist", "noniid"),
    }
}


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig1_*.png, .pdf and .html, and a table."""
    title = "Fig. 1: how flat, FedAvg on IID and non-IID clients"
    return _surfaces.draw("fig1", title, SETTINGS, runs, out, "fmnist")


def measure(runs: Results) -> list[Path]:
    """Compare once, into files beside the runs."""
    return _surfaces.measure("fig1", SETTINGS, runs)

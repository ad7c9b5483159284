"""Fig. 6: the loss around FedAvg's and FedDUAL's models at alpha = 0.01 on Fashion-MNIST.

The paper's text says VGG-16, its setup LeNet: both are here, the second as the trained head of the frozen VGG16 on
images padded to 32 x 32 x 3.
"""

from pathlib import Path

from figures._results import Drawing, Results
from figures.paper import _surfaces

SHOWS = ("fmnist",)
SETTINGS = {
    "LeNet": {
        "FedAvg": ("motivation", "paper-fmnist", "noniid"),
        "FedDUAL": ("motivation", "paper-fmnist", "feddual"),
    },
    "VGG16 head": {
        "FedAvg": ("motivation-head", "paper-cifar10", "fedavg"),
        "FedDUAL": ("motivation-head", "paper-cifar10", "feddual"),
    },
}


def draw(runs: Results, out: Path) -> Drawing:
    """Write fig6_*.png, .pdf and .html, and a table."""
    title = "Fig. 6: how flat, FedAvg and FedDUAL at α = 0.01"
    return _surfaces.draw("fig6", title, SETTINGS, runs, out, "fmnist")


def measure(runs: Results) -> list[Path]:
    """Compare once, into files beside the runs."""
    return _surfaces.measure("fig6", SETTINGS, runs)

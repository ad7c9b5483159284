"""Table 5: time to the target accuracy: 0.40 on CIFAR-10, 0.20 on CIFAR-100 (our choice), 0.70 on Fashion-MNIST."""

from pathlib import Path

from figures._results import Drawing, Results
from figures.paper import _timing
from figures.paper import _values as _paper

TITLE = "Table 5: time to the target accuracy (0.40 CIFAR-10, 0.20 CIFAR-100, 0.70 Fashion-MNIST)"


def draw(runs: Results, out: Path) -> Drawing:
    """Write table5_time_to_target.md, .tex and .csv."""
    return _timing.hours_table("table5_time_to_target", TITLE, runs, _timing.to_target, _paper.TABLE5, out)

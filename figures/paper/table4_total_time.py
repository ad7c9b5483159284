"""Table 4: the time of a whole run, all algorithms: 80 rounds of CIFAR-10, 150 of CIFAR-100, 180 of Fashion-MNIST."""

from pathlib import Path

from figures._results import Drawing, Results
from figures.paper import _timing
from figures.paper import _values as _paper

TITLE = "Table 4: time of a whole run (80, 150 and 180 rounds)"


def draw(runs: Results, out: Path) -> Drawing:
    """Write table4_total_time.md, .tex and .csv."""
    return _timing.hours_table("table4_total_time", TITLE, runs, lambda run, _: _timing.total(run), _paper.TABLE4, out)

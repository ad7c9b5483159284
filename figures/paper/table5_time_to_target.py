"""Table 5: time to the target accuracy: 0.40 on CIFAR-10, 0.20 on CIFAR-100 (our choice), 0.70 on Fashion-MNIST."""

from pathlib import Path

from figures._results import Drawing, Results
from figures.charts import tables as _tables
from figures.paper import _timing
from figures.paper import _values as _paper

TITLE = "Table 5: time to the target accuracy (0.40 CIFAR-10, 0.20 CIFAR-100, 0.70 Fashion-MNIST)"


def draw(runs: Results, out: Path) -> Drawing:
    """Write table5_time_to_target.md, .tex and .csv."""
    sections, frame = _timing.hours_table(runs, _timing.to_target, _paper.TABLE5)
    return Drawing(_tables.write("table5_time_to_target", TITLE, sections, _timing.NOTES, frame, out), frame)

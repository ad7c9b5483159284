"""A chart described once, then written as PNG, PDF (matplotlib) and interactive HTML (plotly)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feddual.records.run_dir import atomic_write
from figures.charts.style import PANEL_HEIGHT, Look


@dataclass(frozen=True)
class Line:
    """A curve, with a band when `low` and `high` are given."""

    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marked: bool = True  # with markers on it
    behind: bool = False  # a thin reference that is not in the legend


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, a group per look: the first series in full colour, the others paler."""

    looks: Sequence[Look]
    series: Mapping[str, Sequence[float | None]]
    missing: Sequence[str]  # what is said where a bar is None
    points: tuple[str, Sequence[float | None]] | None = None  # marks beside the bars, for the paper's values


@dataclass(frozen=True)
class Heat:
    """A matrix of counts on a logarithmic colour scale; zeros stay white."""

    counts: np.ndarray  # (rows up, columns right)
    label: str


Mark = Line | Bars | Heat


@dataclass(frozen=True)
class Panel:
    """One pair of axes; without marks it says why."""

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    level: float | None = None  # a dashed horizontal line; the note says what it is
    empty: str = "not run"
    y_range: tuple[float, float] | None = None
    note: str = ""  # a small line under the title


@dataclass(frozen=True)
class Chart:
    """Panels in a grid, with one legend."""

    panels: Sequence[Panel]
    columns: int = 3
    caption: str = ""  # what a reader must know to read it right
    panel_height: float = PANEL_HEIGHT
    share_y: bool = False
    legend: Sequence[Look] = field(default_factory=tuple)

    @property
    def rows(self) -> int:
        return -(-len(self.panels) // self.columns)

    def is_labelled_below(self, position: int) -> bool:
        """Whether a panel further down in the column has the same x label: one is enough."""
        below = self.panels[position + self.columns :: self.columns]
        return self.panels[position].x_label in [panel.x_label for panel in below]


def save(chart: Chart, name: str, out: Path) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.html; the pages share one plotly.min.js and need no network."""
    from figures.charts import interactive as _interactive
    from figures.charts import static as _static

    files = {out / f"{name}.{suffix}": data for suffix, data in _static.render(chart).items()}
    files[out / f"{name}.html"] = _interactive.render(chart, name).encode()
    for path, data in files.items():
        atomic_write(path, data)
    share_library(out)
    return list(files)


def share_library(out: Path) -> None:
    """Put the one plotly.min.js that all pages of a folder load."""
    from figures.charts import interactive as _interactive

    script, library = out / "plotly.min.js", _interactive.library()
    if not script.is_file() or script.read_bytes() != library:
        atomic_write(script, library)

"""A chart described once: what its panels show.

Two back ends draw it, `static` (matplotlib) and `interactive` (plotly); nothing imports them before something is drawn.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddual.errors import UserError
from feddual.records.run_dir import atomic_write
from figures.charts.scale import Scale
from figures.charts.style import PAGE_WIDTH, PANEL_HEIGHT, Look

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "html")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What is drawn in a panel: one of the classes below.

    Args:
        when: On a page with controls, the values of these at which the mark is shown; drawn always elsewhere.
    """

    when: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line(Mark):
    """A curve, with a band when `low` and `high` are given.

    Args:
        look: Its colour, dash and name.
        x: Shape (points,).
        y: Shape (points,).
        low: The band's lower edge.
        high: Its upper edge.
        marked: With markers on it.
        behind: A thin reference that is not in the legend.

    >>> import numpy as np
    >>> from figures import charts
    >>> line = charts.Line(charts.look(0, "squares"), np.arange(5), np.arange(5) ** 2)
    >>> chart = charts.Chart([charts.Panel("growth", "x", "x²", [line])], columns=1)
    """

    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marked: bool = True
    behind: bool = False


@dataclass(frozen=True)
class Points(Mark):
    """Points, with error bars when `low` and `high` are given; strips of clients or seeds, too.

    Args:
        look: Their colour, marker and name.
        x: Shape (points,).
        y: Shape (points,).
        low: The bars' lower ends.
        high: Their upper ends.
        joined: With a line from one to the next.
        sideways: The bars go to the left and right: `low` and `high` are ends of x.
        told: What is said of each when one points at it.
        values: Numbers that colour them on the `scale`, instead of the look's colour.
        scale: How these become colours.

    >>> import numpy as np
    >>> from figures import charts
    >>> y = np.array([2.0, 3.0])
    >>> charts.Points(charts.look(0, "ratio"), np.arange(2), y, low=y - 1, high=y + 1).joined
    False
    """

    look: Look
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    joined: bool = False
    told: Sequence[str] = ()
    sideways: bool = False
    values: np.ndarray | None = None
    scale: Scale | None = None

    @property
    def reach(self) -> tuple[np.ndarray, np.ndarray] | None:
        """How far the bars go below and above the points, along their axis."""
        if self.low is None or self.high is None:
            return None
        middle = self.x if self.sideways else self.y
        return np.maximum(middle - self.low, 0), np.maximum(self.high - middle, 0)


@dataclass(frozen=True)
class Bars(Mark):
    """Horizontal bars, a row per look: the first series in full colour, the others paler.

    Args:
        looks: Of the rows, from the top.
        series: By name, a number for each row.
        missing: What is said where a row's bar is None.
        points: A name and numbers, drawn as marks beside the bars: another's values.
        text: How a number is written.
        stacked: One bar a row, its parts in these colours: a colour per series.
    """

    looks: Sequence[Look]
    series: Mapping[str, Sequence[float | None]]
    missing: Sequence[str] = ()
    points: tuple[str, Sequence[float | None]] | None = None
    text: str = "{:g}"
    stacked: Sequence[str] = ()


@dataclass(frozen=True)
class Heat(Mark):
    """A matrix as colours; not finite numbers, and zeros on a logarithmic scale, stay empty.

    Args:
        values: Shape (rows up, columns right); rows go down where the panel names them.
        scale: How numbers become colours.
        x: Of the columns' middles; by default 0, 1, 2, ...
        y: Of the rows' middles.
        hatched: Where a cell is not to be trusted, shape as `values`.
        texts: Written into the cells.
        told: What is said of each cell when one points at it.

    >>> import numpy as np
    >>> from figures import charts
    >>> heat = charts.Heat(np.eye(3), charts.Scale(0, 1, label="share"))
    >>> chart = charts.Chart([charts.Panel("identity", "column", "row", [heat])], columns=1)
    """

    values: np.ndarray
    scale: Scale
    x: np.ndarray | None = None
    y: np.ndarray | None = None
    hatched: np.ndarray | None = None
    texts: Sequence[Sequence[str]] = ()
    told: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Contour(Mark):
    """A loss over a plane as filled contours at the scale's levels.

    Args:
        values: Shape (y, x).
        scale: Its colours and levels.
        x: Shape (x,).
        y: Shape (y,).
    """

    values: np.ndarray
    scale: Scale
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Surface3D(Mark):
    """A loss over a plane in three dimensions: heights and colours on one scale, one camera for all panels.

    Args:
        values: Shape (y, x).
        scale: Its colours and heights.
        x: Shape (x,).
        y: Shape (y,).
        error: Standard errors, told when one points at the surface.
    """

    values: np.ndarray
    scale: Scale
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes; without marks it says why.

    Args:
        title: Above it.
        x_label: What goes to the right.
        y_label: What goes up.
        marks: What is drawn, the first at the bottom.
        level: A dashed horizontal line; the note says what it is.
        empty: What is said without marks.
        y_range: The axis' ends.
        note: A small line or two under the title.
        y_scale: linear, log, or root (equal steps are equal steps of the square root).
        x_scale: linear or log.
        x_range: The ends of the axis to the right.
        x_names: Names of the places 0, 1, 2, ... to the right.
        y_names: Names of the places 0, 1, 2, ..., from the top down.
        upright: A dotted vertical line.
        square: As high as wide.

    >>> from figures import charts
    >>> charts.Panel("loss", "round", "loss", [], empty="nothing was measured").empty
    'nothing was measured'
    """

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    level: float | None = None
    empty: str = "not run"
    y_range: tuple[float, float] | None = None
    note: str = ""
    y_scale: str = "linear"
    x_names: Sequence[str] = ()
    y_names: Sequence[str] = ()
    upright: float | None = None
    square: bool = False
    x_scale: str = "linear"
    x_range: tuple[float, float] | None = None

    @property
    def deep(self) -> bool:
        """Whether it has three dimensions."""
        return any(isinstance(mark, Surface3D) for mark in self.marks)

    @property
    def rows(self) -> Sequence[str]:
        """What stands beside its rows, from the top down; nothing where the y axis has numbers."""
        bars = next((mark for mark in self.marks if isinstance(mark, Bars)), None)
        return [look.label for look in bars.looks] if bars else self.y_names

    @property
    def x_ticks(self) -> tuple[list[int], list[str]]:
        """Which of the places to the right are named, and how; of many rounds about nine."""
        step = max(1, len(self.x_names) // 9) if all(name.isdigit() for name in self.x_names) else 1
        return list(range(0, len(self.x_names), step)), list(self.x_names[::step])

    @property
    def scale(self) -> Scale | None:
        """How numbers become colours here, if they do."""
        return next((scale for mark in self.marks if (scale := getattr(mark, "scale", None)) is not None), None)


@dataclass(frozen=True)
class Chart:
    """Panels in a grid, with one legend: described once, drawn by matplotlib and by plotly.

    A notebook shows it: to explore where plotly is alive, as a still picture where not.

    Args:
        panels: Row by row.
        columns: Panels in a row.
        caption: What a reader must know to read it right.
        panel_height: In inches.
        share_y: Whether all panels have one y axis.
        legend: What the legend names; by default every look that a line or a point has.
        width: Of the whole, in inches.
        film: On a page the panels come one after the other, with a slider; on paper `columns` of them side by side.

    >>> import numpy as np
    >>> from figures import charts
    >>> line = charts.Line(charts.look(0, "FedAvg"), np.arange(3), np.array([0.1, 0.4, 0.5]))
    >>> chart = charts.Chart([charts.Panel("accuracy", "round", "accuracy", [line])], columns=1)
    >>> len(chart.matplotlib().axes), len(chart.plotly().data)
    (1, 1)
    """

    panels: Sequence[Panel]
    columns: int = 3
    caption: str = ""
    panel_height: float = PANEL_HEIGHT
    share_y: bool = False
    legend: Sequence[Look] | None = None
    width: float = PAGE_WIDTH
    film: bool = False

    @property
    def rows(self) -> int:
        """Rows of panels."""
        return -(-len(self.panels) // self.columns)

    @property
    def looks(self) -> list[Look]:
        """What the legend names."""
        if self.legend is not None:
            return list(self.legend)
        drawn = (mark for panel in self.panels for mark in panel.marks)
        named = (m.look for m in drawn if isinstance(m, Points) or (isinstance(m, Line) and not m.behind))
        return list({look.label: look for look in named if look.label}.values())

    @property
    def scales(self) -> Iterator[tuple[Scale, list[int]]]:
        """The scales with a colour bar, and the places of the panels that share each."""
        places: dict[Scale, list[int]] = {}
        for place, panel in enumerate(self.panels):
            if panel.scale is not None and panel.scale.label:
                places.setdefault(panel.scale, []).append(place)
        yield from places.items()

    def is_labelled_below(self, position: int) -> bool:
        """Whether a panel further down in the column has the same x label: one is enough.

        Args:
            position: Of the panel, row by row.

        Returns:
            True where the label can be left out.
        """
        below = self.panels[position + self.columns :: self.columns]
        return self.panels[position].x_label in [panel.x_label for panel in below]

    def draw(self, backend: str) -> Any:
        """Draw it with the back end that is named.

        Args:
            backend: matplotlib or plotly.

        Returns:
            A figure of that library.

        Raises:
            UserError: When it is another.
        """
        if backend not in ("plotly", "matplotlib"):
            raise UserError(f"backend: {backend!r} is unknown; allowed: plotly, matplotlib")
        return self.plotly() if backend == "plotly" else self.matplotlib()

    def matplotlib(self) -> "Figure":
        """The chart as a matplotlib figure, for paper and for changes by hand."""
        from figures.charts import static

        return static.figure(self)

    def plotly(self) -> "go.Figure":
        """The chart as a plotly figure: values on hover, a legend to click, surfaces to turn."""
        from figures.charts import interactive

        return interactive.figure(self)

    def save(self, path: str | Path) -> Path:
        """Write one file: .png, .pdf, or .html, a page that needs neither network nor other files.

        Args:
            path: Its suffix says what is written.

        Returns:
            The path.

        Raises:
            UserError: When the suffix is none of these.
        """
        from figures.charts import interactive, static

        path = Path(path)
        kind = path.suffix.removeprefix(".")
        if kind not in FORMATS:
            raise UserError(f"{path.name!r} must end in {', '.join(f'.{one}' for one in FORMATS)}")
        page = kind == "html"
        data = interactive.page(self, path.stem, True).encode() if page else static.render(self, [kind])[kind]
        atomic_write(path, data)
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from figures.charts import static

        return {
            "application/vnd.plotly.v1+json": json.loads(self.plotly().to_json()),
            "image/png": base64.b64encode(static.render(self, ["png"], dpi=100)["png"]).decode(),
        }

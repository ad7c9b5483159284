"""What a page is made of, and how it becomes one file.

A chart is one or more plotly figures side by side. A trace says in its `meta` when it is shown: `{"run": "g0",
"metric": "loss"}` while the chip of run g0 is on and the chart's control `metric` stands at `loss`. That is all the
page's script knows of charts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from feddual import __version__

if TYPE_CHECKING:
    from figures.report._story import Group, Story


@dataclass(frozen=True)
class Option:
    """A value of a control."""

    value: str
    label: str
    note: str = ""  # said below the controls while it is chosen
    layout: Mapping[str, Any] = field(default_factory=dict)  # given to Plotly.relayout of all panels


@dataclass(frozen=True)
class Control:
    """One of several options: buttons, a list when there are many, or a slider."""

    name: str
    label: str
    options: Sequence[Option]
    slider: bool = False
    start: int = 0


@dataclass(frozen=True)
class Panel:
    """One figure."""

    title: str
    figure: go.Figure
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """Figures that belong together, their controls, and the numbers in them."""

    name: str
    panels: Sequence[Panel]
    frame: pd.DataFrame
    controls: Sequence[Control] = ()
    width: int = 420  # pixels a panel needs
    height: int = 340
    linked: bool = False  # 3-D, with one camera
    legend: Mapping[str, Any] | None = None  # a colour scale for all panels: title, ticks


@dataclass(frozen=True)
class Table:
    """Rows for people, and the numbers in them."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    frame: pd.DataFrame


@dataclass(frozen=True)
class Fold:
    """Text that opens on demand."""

    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    about: str  # what it shows, in a sentence or two
    parts: Sequence[Chart | Table | Fold] = ()
    missing: Sequence[str] = ()  # what is not there, and how to get it

    @property
    def charts(self) -> list[Chart]:
        return [part for part in self.parts if isinstance(part, Chart)]


@dataclass(frozen=True)
class Card:
    """A group of runs in a few numbers."""

    group: "Group"
    state: str
    value: str
    facts: Sequence[tuple[str, str]]


def figure(x_title: str = "", y_title: str = "", **layout: Any) -> go.Figure:
    """An empty figure; colours and fonts come from the page."""
    made = go.Figure()
    made.update_layout(
        template="none",
        showlegend=False,
        margin={"l": 58, "r": 14, "t": 14, "b": 46},
        xaxis={"title": {"text": x_title}, "zeroline": False},
        yaxis={"title": {"text": y_title}, "zeroline": False},
        hovermode="closest",
    )
    return made.update_layout(**layout)


def line(group: "Group", x: Any, y: Any, name: str = "", **more: Any) -> go.Scatter:
    """A group's curve, in its colour and under its chip."""
    meta = {"run": group.key} | more.pop("meta", {})
    style = {"color": group.colour, "dash": group.dash, "width": 2}
    few = len(x) <= 30
    return go.Scatter(
        x=x, y=y, name=name or group.label, line=style, mode="lines+markers" if few else "lines", marker={"size": 5},
        meta=meta, **more,
    )  # fmt: skip


def render(story: "Story", in_short: Sequence[str], cards: Sequence[Card], sections: Sequence[Section]) -> str:
    """The page."""
    charts = [chart for section in sections for chart in section.charts]
    shown = [part for section in sections for part in section.parts if not isinstance(part, Fold)]
    data = {
        "charts": [_chart(chart) for chart in charts],
        "csv": {part.name: part.frame.to_csv(index=False, lineterminator="\n") for part in shown},
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {}  # keys in their order: an axis must get its type before its range
    environment.tests["chart"] = lambda part: isinstance(part, Chart)
    environment.tests["table"] = lambda part: isinstance(part, Table)
    return environment.from_string(_file("page.html.j2")).render(
        story=story,
        in_short=in_short,
        cards=cards,
        sections=sections,
        data=data,
        style=_file("page.css"),
        script=_file("page.js"),
        library=get_plotlyjs(),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "linked": chart.linked,
        "panels": [json.loads(panel.figure.to_json()) for panel in chart.panels],
        "controls": [asdict(control) for control in chart.controls],
    }


def _file(name: str) -> str:
    return (resources.files("figures.report") / name).read_text("utf-8")

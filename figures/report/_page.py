"""What a page is made of, and how it becomes one file.

An exhibit is panels with controls; each panel becomes a plotly figure. A mark says in `when` when it is shown:
`{"run": "g0", "metric": "loss"}` while the chip of run g0 is on and the exhibit's control `metric` stands at `loss`.
That is all the page's script knows of charts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
import yaml

from feddual import __version__
from figures.charts import interactive
from figures.charts.describe import Line, Panel

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
class Exhibit:
    """Panels that belong together, their controls, and the numbers in them."""

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
class Part:
    """A part of the page under a heading."""

    name: str
    title: str
    about: str  # what it shows, in a sentence or two
    shown: Sequence[Exhibit | Table | Fold] = ()
    missing: Sequence[str] = ()  # what is not there, and how to get it


@dataclass(frozen=True)
class Card:
    """A group of runs in a few numbers."""

    group: "Group"
    state: str
    value: str
    facts: Sequence[tuple[str, str]]


def part(name: str, shown: Sequence[Exhibit | Table | Fold] = (), missing: Sequence[str] = ()) -> Part:
    """One of the page's own parts; its words are in `parts.yaml`."""
    return Part(name, **yaml.safe_load(_file("parts.yaml"))[name], shown=shown, missing=missing)


def line(group: "Group", values: pd.Series, when: Mapping[str, str], edges: Sequence[pd.Series] = ()) -> Line:
    """A group's curve in its colour and under its chip; with a band between two edges, if they are given."""
    low, high = (one.to_numpy(float) for one in edges) if edges else (None, None)
    x, y = values.index.to_numpy(float), values.to_numpy(float)
    return Line(group.look, x, y, low, high, when={"run": group.key, **when})


def render(story: "Story", in_short: Sequence[str], cards: Sequence[Card], parts: Sequence[Part]) -> str:
    """The page."""
    shown = [one for part in parts for one in part.shown if not isinstance(one, Fold)]
    data = {
        "charts": [_exhibit(one) for one in shown if isinstance(one, Exhibit)],
        "csv": {one.name: one.frame.to_csv(index=False, lineterminator="\n") for one in shown},
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {}  # keys in their order: an axis must get its type before its range
    environment.tests["exhibit"] = lambda one: isinstance(one, Exhibit)
    environment.tests["table"] = lambda one: isinstance(one, Table)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.from_string(_file("page.html.j2")).render(
        story=story, in_short=in_short, cards=cards, parts=parts, data=data, style=_file("page.css"),
        script=_file("page.js"), library=interactive.library().decode(), version=__version__, made=made,
    )  # fmt: skip


def _exhibit(exhibit: Exhibit) -> dict[str, Any]:
    panels = [json.loads(interactive.single(panel).to_json()) for panel in exhibit.panels]
    controls = [asdict(control) for control in exhibit.controls]
    return {"name": exhibit.name, "linked": exhibit.linked, "panels": panels, "controls": controls}


def _file(name: str) -> str:
    return (resources.files("figures.report") / name).read_text("utf-8")

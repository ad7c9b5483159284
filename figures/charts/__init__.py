"""Charts: described once, drawn with matplotlib for paper and with plotly for pages.

    from figures import charts

    line = charts.Line(charts.look(0, "FedAvg"), rounds, accuracy)
    chart = charts.Chart([charts.Panel("Accuracy", "round", "accuracy", [line])], columns=1)
    chart                                       # a notebook shows it
    chart.save("accuracy.pdf")                  # or .png, or .html
    charts.save(chart, "accuracy", Path("out"))   # all three

A chart has panels, a panel has marks: `Line`, `Points`, `Bars`, `Heat`, `Contour`, `Surface3D`. `gradients`, `lines`,
`surfaces` and `runs` describe what this project measures. Nothing imports matplotlib or plotly before it draws.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from figures.charts import gradients, lines, runs, surfaces, tables
    from figures.charts.describe import (
        Bars,
        Chart,
        Contour,
        Heat,
        Line,
        Mark,
        Panel,
        Points,
        Surface3D,
        matplotlib,
        plotly,
        save,
    )
    from figures.charts.scale import Scale, shared_scale
    from figures.charts.style import LOOKS, Look, look

MODULES = ("gradients", "lines", "runs", "surfaces", "tables")
HOMES = {
    "describe": (
        "Bars", "Chart", "Contour", "Heat", "Line", "Mark", "Panel", "Points", "Surface3D", "matplotlib", "plotly",
        "save",
    ),
    "scale": ("Scale", "shared_scale"),
    "style": ("LOOKS", "Look", "look"),
}  # fmt: skip

__all__ = [
    "LOOKS", "Bars", "Chart", "Contour", "Heat", "Line", "Look", "Mark", "Panel", "Points", "Scale", "Surface3D",
    "gradients", "lines", "look", "matplotlib", "plotly", "runs", "save", "shared_scale", "surfaces", "tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"figures.charts.{name}")
    home = next((home for home, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"figures.charts.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

import importlib
from typing import TYPE_CHECKING, Any

from figures.charts.describe import Bars, Chart, Contour, Heat, Line, Mark, Panel, Points, Surface3D
from figures.charts.saving import save
from figures.charts.scale import Scale, shared_scale
from figures.charts.style import LOOKS, Look, look

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

    from figures.charts import (
        averaging,
        flatness,
        gradients,
        lines,
        merging,
        runs,
        spectra,
        surfaces,
        tables,
        trajectories,
    )

MODULES = (  # on demand: they import pandas
    "averaging", "flatness", "gradients", "lines", "merging", "runs", "spectra", "surfaces", "tables", "trajectories",
)  # fmt: skip
__all__ = [
    "LOOKS", "Bars", "Chart", "Contour", "Heat", "Line", "Look", "Mark", "Panel", "Points", "Scale", "Surface3D",
    "averaging", "flatness", "gradients", "lines", "look", "matplotlib", "merging", "plotly", "runs", "save",
    "shared_scale", "spectra", "surfaces", "tables", "trajectories",
]  # fmt: skip


def matplotlib(chart: Chart) -> "Figure":
    """Draw a chart with matplotlib.

    Args:
        chart: What is drawn.

    Returns:
        A figure, for paper and for changes by hand.
    """
    return chart.matplotlib()


def plotly(chart: Chart) -> "go.Figure":
    """Draw a chart with plotly.

    Args:
        chart: What is drawn.

    Returns:
        A figure with values on hover, a legend to click, surfaces to turn.
    """
    return chart.plotly()


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"figures.charts.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

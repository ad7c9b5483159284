"""A chart that follows the training in a notebook; elsewhere nothing is shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def show(folder: Path, frame: "pd.DataFrame") -> None:
    """Draw what a run has recorded so far in place of the picture before: one for each run and notebook cell."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:  # no notebook around
        return
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return
    from figures.charts import gradients

    best = next(item for item in ("client_at_global", "minibatch") if (frame["definition"] == item).any())
    chart = gradients.lines({f"to round {frame['round'].max()}": [frame]}, best)
    place = (shell, shell.execution_count, folder)
    if place in _shown:
        _shown[place].update(chart)
    else:
        _shown[place] = display(chart, display_id=True)  # type: ignore[no-untyped-call]


_shown: dict[Any, Any] = {}

"""The paper's tables and figures, and ours, drawn from recorded runs. Needs no TensorFlow.

    python -m figures --all                                  # from the results that come with the project
    python -m figures table1 fig3 --runs my/runs --out out   # from runs of one's own

A figure is a file in `general` or `paper` with a docstring and `draw(runs, out) -> Drawing`; its name is its file name.
One of a user's own is `module:draw`.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from feddual.errors import UserError
from feddual.experiment import plugins

if TYPE_CHECKING:
    from figures._results import Drawing, Results

HERE = Path(__file__).parent
# In a checkout the project's own results and gallery; an installed package writes nothing beside its code.
_IN_CHECKOUT = (HERE.parent / "pyproject.toml").is_file()
RESULTS = HERE / "results" if _IN_CHECKOUT else Path("runs")
GALLERY = HERE / "gallery" if _IN_CHECKOUT else Path("gallery")


def names() -> list[str]:
    """All figures, tables first; fig10 comes after fig4."""
    return sorted(plugins.names("figures"), key=lambda name: (not name.startswith("table"), *_natural(name)))


def _natural(name: str) -> tuple[str, int]:
    letters, digits = re.match(r"([a-z]*)(\d*)", name).groups()  # type: ignore[union-attr]
    return letters, int(digits or 0)


def full_name(name: str) -> str:
    """The figure that is meant: its name, or the part of it before the first `_`; `package.module:draw` is its own.

    Args:
        name: As it was given.

    Returns:
        The name of its file.

    Raises:
        UserError: When no figure, or more than one, is called so.
    """
    if ":" in name:
        return name
    wanted = name.replace("-", "_")
    there = names()
    same = [one for one in there if one.replace("-", "_") == wanted]
    found = same or [one for one in there if one.split("_")[0] == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"figure {name!r} could be {' or '.join(found)}; give the whole name")
    choice = plugins.allowed(wanted, there, (one.split("_")[0] for one in there))
    raise UserError(f"figure {name!r} is unknown; {choice}; one of your own is module:draw")


def module(name: str) -> ModuleType:
    """The module that draws a figure.

    Args:
        name: As for `draw`.

    Returns:
        The module; its docstring says what the figure shows.
    """
    return importlib.import_module(drawer(name).__module__)


def drawer(name: str) -> "Callable[[Results, Path], Drawing]":
    """The function that draws a figure.

    Args:
        name: As for `draw`.

    Returns:
        A function of the runs and of the folder for the files.

    Raises:
        UserError: When there is no such figure.
    """
    found: Callable[[Results, Path], Drawing] = plugins.find("figures", full_name(name), f"figure {name!r}")
    return found


def draw(name: str, runs: str | Path = RESULTS, out: str | Path = GALLERY) -> "Drawing":
    """Draw one figure or table.

    Args:
        name: Its name, or the part before the first `_`; one of your own as `package.module:draw`.
        runs: A folder with runs, at any depth: run directories, or what was collected of them.
        out: Where the files go.

    Returns:
        The files, and the numbers in them as a tidy frame.

    Raises:
        UserError: When there is no such figure, or no such folder.

    Example:
        >>> import tempfile
        >>> import figures
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawing = figures.draw("table3", out=folder)
        >>> [file.name for file in drawing.files]
        ['table3_round_time.md', 'table3_round_time.tex', 'table3_round_time.csv']
        >>> list(drawing.frame["row"].unique())
        ['fedavg', 'feddual']
    """
    return draw_all([name], runs, out)[full_name(name)]


def draw_all(
    wanted: Sequence[str] | None = None, runs: str | Path = RESULTS, out: str | Path = GALLERY
) -> "dict[str, Drawing]":
    """Draw several, by default all; the runs are read once.

    Args:
        wanted: Names, as for `draw`.
        runs: A folder with runs, at any depth.
        out: Where the files go.

    Returns:
        What was drawn, by full name.
    """
    from figures._results import Results

    drawers = {full_name(name): drawer(name) for name in (names() if wanted is None else wanted)}
    results = Results(runs)
    return {name: draw(results, Path(out)) for name, draw in drawers.items()}


def measure(runs: str | Path = RESULTS) -> list[Path]:
    """Compute what figures show of several runs (ratios, flatness) once, into files beside the runs.

    Args:
        runs: A folder with runs, at any depth.

    Returns:
        The files, which figures read as long as they are of these runs.
    """
    from figures._results import Results

    results = Results(runs)
    able = [one for one in map(module, names()) if hasattr(one, "measure")]
    return [file for one in able for file in one.measure(results)]


def __getattr__(name: str) -> Any:
    """What a figure of one's own is made of, imported when it is first used."""
    if name in ("Drawing", "Results"):
        return getattr(importlib.import_module("figures._results"), name)
    if name in ("charts", "report"):
        return importlib.import_module(f"figures.{name}")
    raise AttributeError(f"module 'figures' has no attribute {name!r}")


def __dir__() -> list[str]:
    doors = ["draw", "draw_all", "drawer", "full_name", "measure", "module", "names"]
    return ["Drawing", "Results", "charts", *doors, "report"]

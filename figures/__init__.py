"""The paper's tables and figures, and ours, drawn from recorded runs. Needs no TensorFlow.

    python -m figures --all                                  # from the results that come with the project
    python -m figures table1 fig3 --runs my/runs --out out   # from runs of one's own

A figure is a file in this folder with a docstring and `draw(runs, out) -> Drawing`; its name is its file name. One of a
user's own is `package.module:draw`.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from feddual.errors import UserError
from feddual.experiment.plugins import load_attribute

if TYPE_CHECKING:
    from figures._results import Drawing, Results

HERE = Path(__file__).parent
RESULTS = HERE / "results"
GALLERY = HERE / "gallery"
ROOMS = ("general", "paper")  # figures from any runs, and the paper's


def names() -> list[str]:
    """All figures, tables first; fig10 comes after fig4."""
    found = [path.stem for room in ROOMS for path in (HERE / room).glob("[a-z]*.py")]
    return sorted(found, key=lambda name: (not name.startswith("table"), *_natural(name)))


def _natural(name: str) -> tuple[str, int]:
    letters, digits = re.match(r"([a-z]*)(\d*)", name).groups()  # type: ignore[union-attr]
    return letters, int(digits or 0)


def full_name(name: str) -> str:
    """The figure that is meant: its name, or the part of it before the first `_`; `package.module:draw` is its own.

    Raises:
        UserError: When no figure, or more than one, is called so.
    """
    if ":" in name:
        return name
    wanted = name.replace("-", "_")
    there = names()
    found = [wanted] if wanted in there else [one for one in there if one.split("_")[0] == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"figure {name!r} could be {' or '.join(found)}; give the whole name")
    near = difflib.get_close_matches(wanted, [*there, *(one.split("_")[0] for one in there)], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        f"figure {name!r} is unknown; {hint}There are: {', '.join(there)}; one of your own is package.module:draw"
    )


def module(name: str) -> ModuleType:
    """The module that draws a figure."""
    wanted = full_name(name)
    room = next(room for room in ROOMS if (HERE / room / f"{wanted}.py").is_file())
    return importlib.import_module(f"figures.{room}.{wanted}")


def drawer(name: str) -> "Callable[[Results, Path], Drawing]":
    """The function that draws a figure."""
    return load_attribute(name, f"figure {name!r}") if ":" in name else module(name).draw


def draw(name: str, runs: str | Path = RESULTS, out: str | Path = GALLERY) -> "Drawing":
    """Draw one figure or table.

    Args:
        name: Its name, or the part before the first `_`; one of your own as `package.module:draw`.
        runs: A folder with runs, at any depth: run directories, or what was collected of them.
        out: Where the files go.

    Returns:
        The files, and the numbers in them as a tidy frame.
    """
    return draw_all([name], runs, out)[full_name(name)]


def draw_all(
    wanted: Sequence[str] | None = None, runs: str | Path = RESULTS, out: str | Path = GALLERY
) -> "dict[str, Drawing]":
    """Draw several, by default all; the runs are read once."""
    from figures._results import Results

    drawers = {full_name(name): drawer(name) for name in (names() if wanted is None else wanted)}
    results = Results(runs)
    return {name: draw(results, Path(out)) for name, draw in drawers.items()}

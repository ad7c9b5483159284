"""The paper's tables and figures, and ours, drawn from recorded runs. Needs no TensorFlow.

    python -m figures --all                                  # from the results that come with the project
    python -m figures table1 fig3 --runs my/runs --out out   # from runs of one's own

A figure is a file in this folder with a docstring and `draw(runs, out) -> Drawing`; its name is its file name.
"""

import difflib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from feddual.errors import UserError

if TYPE_CHECKING:
    from figures._results import Drawing

HERE = Path(__file__).parent
RESULTS = HERE / "results"
GALLERY = HERE / "gallery"


def names() -> list[str]:
    """All figures, tables first; fig10 comes after fig4."""
    found = [path.stem for path in HERE.glob("[a-z]*.py")]
    return sorted(found, key=lambda name: (not name.startswith("table"), *_natural(name)))


def _natural(name: str) -> tuple[str, int]:
    letters, digits = re.match(r"([a-z]*)(\d*)", name).groups()  # type: ignore[union-attr]
    return letters, int(digits or 0)


def full_name(name: str) -> str:
    """The figure that is meant: its name, or the part of it before the first `_`.

    Raises:
        UserError: When no figure, or more than one, is called so.
    """
    wanted = name.replace("-", "_")
    there = names()
    found = [wanted] if wanted in there else [one for one in there if one.split("_")[0] == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"figure {name!r} could be {' or '.join(found)}; give the whole name")
    near = difflib.get_close_matches(wanted, [*there, *(one.split("_")[0] for one in there)], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"figure {name!r} is unknown; {hint}There are: {', '.join(there)}")


def module(name: str) -> ModuleType:
    """The module that draws a figure."""
    return importlib.import_module(f"figures.{full_name(name)}")


def draw(name: str, runs: str | Path = RESULTS, out: str | Path = GALLERY) -> "Drawing":
    """Draw one figure or table.

    Args:
        name: Its name, or the part before the first `_`.
        runs: A folder with run directories, at any depth.
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

    modules = {full_name(name): module(name) for name in (names() if wanted is None else wanted)}
    results = Results(runs)
    return {name: found.draw(results, Path(out)) for name, found in modules.items()}

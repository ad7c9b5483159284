"""A run or a study as one HTML page that needs nothing else: no network, no TensorFlow, no other file.

    figures.report.write("runs/quickstart")          # -> runs/quickstart/report.html

`_story.py` reads what was recorded; `_training.py`, `_gradients.py`, `_averaging.py`, `_landscape.py`,
`_merging.py`, `_federation.py` and `_facts.py` turn it into parts; `_page.py` says what a part is made of and fills
`page.html.j2`. What was not recorded, failed or is unfinished is said on the page. A section of one's own is a function
from the story to a part, or to None where there is nothing to say, given as `module:name`.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddual.experiment import plugins
from feddual.records.run_dir import atomic_write

if TYPE_CHECKING:
    from figures.report._findings import Finding

SECTIONS = {  # in the order of the page
    "curves": "figures.report._training:curves",
    "gradient-norms": "figures.report._gradients:norms",
    "gradient-ratios": "figures.report._gradients:ratios",
    "averaging": "figures.report._averaging:averaging",
    "surfaces": "figures.report._landscape:surfaces",
    "flatness": "figures.report._landscape:flatness",
    "merging": "figures.report._merging:merging",
    "clients": "figures.report._federation:clients",
    "barycenter": "figures.report._federation:barycenter",
    "timing": "figures.report._training:timing",
    "settings": "figures.report._facts:settings",
}


def write(source: str | Path, out: str | Path | None = None, more: Sequence[str] = ()) -> Path:
    """Write the report of a run, a study, or any folder with runs in it.

    Args:
        source: The folder.
        out: The file; by default `report.html` in the folder.
        more: Sections of your own, as `module:name`, after the others.

    Raises:
        UserError: When there is nothing to report on.
    """
    path = Path(out) if out is not None else Path(source) / "report.html"
    atomic_write(path, build(source, more).encode())
    return path


def findings(source: str | Path) -> "list[Finding]":
    """What the numbers of a run or a study say, in a sentence each."""
    from figures.report import _findings
    from figures.report._story import Story

    return _findings.findings(Story.read(Path(source)))


def build(source: str | Path, more: Sequence[str] = ()) -> str:
    """The page's text."""
    from figures.report import _findings, _page, _training
    from figures.report._story import Story

    story = Story.read(Path(source))
    in_short = [finding.text for finding in _findings.findings(story)]
    told = [plugins.find("sections", name, "--section")(story) for name in (*plugins.names("sections"), *more)]
    return _page.render(story, in_short, _training.cards(story), [part for part in told if part is not None])


def __getattr__(name: str) -> Any:
    """What a part of one's own is made of."""
    if name in ("Part", "Exhibit", "Table", "Fold"):
        return getattr(importlib.import_module("figures.report._page"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

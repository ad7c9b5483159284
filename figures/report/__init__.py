"""A run or a study as one HTML page that needs nothing else: no network, no TensorFlow, no other file.

    figures.report.write("runs/quickstart")          # -> runs/quickstart/report.html

`_story.py` reads what was recorded; `_training.py`, `_gradients.py`, `_landscape.py`, `_federation.py` and `_facts.py`
turn it into parts; `_page.py` says what a part is made of and fills `page.html.j2`. What was not recorded, failed
or is unfinished is said on the page.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from feddual.records.run_dir import atomic_write

if TYPE_CHECKING:
    from figures.report._findings import Finding


def write(source: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, a study, or any folder with runs in it.

    Args:
        source: The folder.
        out: The file; by default `report.html` in the folder.

    Raises:
        UserError: When there is nothing to report on.
    """
    path = Path(out) if out is not None else Path(source) / "report.html"
    atomic_write(path, build(source).encode())
    return path


def findings(source: str | Path) -> "list[Finding]":
    """What the numbers of a run or a study say, in a sentence each."""
    from figures.report import _findings
    from figures.report._story import Story

    return _findings.findings(Story.read(Path(source)))


def build(source: str | Path) -> str:
    """The page's text."""
    from figures.report import _facts, _federation, _findings, _gradients, _landscape, _page, _training
    from figures.report._story import Story

    story = Story.read(Path(source))
    in_short = [finding.text for finding in _findings.findings(story)]
    parts = [
        _training.curves(story),
        _gradients.norms(story),
        _gradients.ratios(story),
        _landscape.surfaces(story),
        _landscape.flatness(story),
        _federation.clients(story),
        _federation.barycenter(story),
        _training.timing(story),
        _facts.settings(story),
    ]
    return _page.render(story, in_short, _training.cards(story), parts)

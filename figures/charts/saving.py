"""Charts as files. A chart is a value, so that another process can draw it while the next one is described."""

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from feddual.records.run_dir import atomic_write
from figures.charts.describe import FORMATS, Chart

Pending = list["Future[None]"]
_elsewhere: ContextVar[tuple[Executor | None, Pending]] = ContextVar("elsewhere", default=(None, []))


def save(chart: Chart, name: str, out: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a chart in several formats; the pages of a folder share one plotly.min.js and need no network.

    Args:
        chart: What is drawn.
        name: Of the files, without their suffixes.
        out: Their folder.
        formats: Some of png, pdf, html.

    Returns:
        The files.
    """
    executor, pending = _elsewhere.get()
    packed = _packed(chart) if executor else None
    if executor and packed:
        pending.append(executor.submit(_write_packed, packed, name, out, formats))
    else:
        _write(chart, name, out, formats)
    still, pages = ([kind for kind in formats if (kind == "html") == page] for page in (False, True))
    return [out / f"{name}.{kind}" for kind in [*still, *pages]]


@contextmanager
def elsewhere(executor: Executor | None) -> Iterator[Pending]:
    """Within it, `save` leaves the drawing to an executor's processes; the files are there when what is pending is.

    Args:
        executor: Of processes; None draws at once.

    Yields:
        A future for each chart.
    """
    pending: Pending = []
    token = _elsewhere.set((executor, pending))
    try:
        yield pending
    finally:
        _elsewhere.reset(token)


def _packed(chart: Chart) -> bytes | None:
    """None for a chart with something in it that cannot be sent, such as a function of a notebook's."""
    try:
        return pickle.dumps(chart)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


def _write_packed(packed: bytes, name: str, out: Path, formats: Sequence[str]) -> None:
    _write(pickle.loads(packed), name, out, formats)


def _write(chart: Chart, name: str, out: Path, formats: Sequence[str]) -> None:
    from figures.charts import interactive, static

    still = static.render(chart, [kind for kind in formats if kind != "html"])
    files = {out / f"{name}.{kind}": data for kind, data in still.items()}
    if "html" in formats:
        files[out / f"{name}.html"] = interactive.page(chart, name, "directory").encode()
        script, library = out / "plotly.min.js", interactive.library()
        if not script.is_file() or script.stat().st_size != len(library):
            atomic_write(script, library)
    for path, data in files.items():
        atomic_write(path, data)

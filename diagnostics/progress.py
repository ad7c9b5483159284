"""A bar for people, plain lines where nobody watches."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from feddual.cli.progress import Shown

EVERY = 10.0  # seconds between plain lines


class PointProgress(Shown):
    """Follows points as they are computed."""

    def __init__(self, label: str, total: int, enabled: bool = True, unit: str = "points"):
        console = Console(stderr=True)
        self._live = enabled and (console.is_terminal or console.is_jupyter)
        self._enabled, self._label, self._total, self._unit = enabled, label, total, unit
        self._done = 0
        self._started = self._said = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn(unit),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, disable=not self._live,
            auto_refresh=not console.is_jupyter,
        )  # fmt: skip
        self._task = self._bar.add_task(label, total=total)

    def advance(self, points: int) -> None:
        """More points are done."""
        self._done += points
        self._update(self._task, completed=self._done)
        now = time.perf_counter()
        if self._enabled and not self._live and (now - self._said > EVERY or self._done == self._total):
            self._said = now
            rate = self._done / max(now - self._started, 1e-9)
            left = (self._total - self._done) / rate
            print(
                f"{self._label}: {self._done}/{self._total} {self._unit}, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

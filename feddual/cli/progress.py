"""A bar for people, plain lines where nobody watches."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from feddual.training.engine import RoundRecord


class Shown:
    """What is on the screen between `with` and its end."""

    def __init__(self, enabled: bool, *columns: Any, **options: Any):
        self._console = Console(stderr=True)
        self._enabled = enabled
        self._live = enabled and (self._console.is_terminal or self._console.is_jupyter)
        options |= {"console": self._console, "disable": not self._live, "auto_refresh": not self._console.is_jupyter}
        self._bar = Progress(*columns, **options)

    def _update(self, task: TaskID, **values: Any) -> None:
        # In a notebook the bar is drawn here and not by rich's own thread, whose drawing catches whatever else the
        # cell shows in that moment, and the next cell's output after it.
        self._bar.update(task, refresh=self._bar.console.is_jupyter, **values)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


class RunProgress(Shown):
    """Follows a run: round, accuracy, loss, clients per second, time left."""

    def __init__(self, experiment: Any, enabled: bool = True, label: str | None = None):
        columns = (MofNCompleteColumn(), "{task.fields[facts]}", TimeElapsedColumn(), "left", TimeRemainingColumn())
        super().__init__(enabled, "{task.description}", BarColumn(bar_width=24), *columns)
        self._label = label or f"{experiment.algorithm.name} · {experiment.name}"
        self._started, self._seen, self._prepared = time.perf_counter(), 0, 0.0
        self._task: TaskID | None = None
        self._preparation: TaskID | None = None

    def preparing(self, what: str, done: int, total: int) -> None:
        """A long preparation, such as the features of frozen layers."""
        if self._live:
            if self._preparation is None:
                self._preparation = self._bar.add_task(what, total=total, facts="")
            self._update(self._preparation, description=what, completed=done, total=total)
        elif self._enabled and time.perf_counter() - self._prepared > 10:
            self._prepared = time.perf_counter()
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    def update(self, record: "RoundRecord") -> None:
        """A round has ended."""
        if not self._enabled:
            return
        if self._seen == 0:  # what came before the first round is no measure of the rounds to come
            self._started = time.perf_counter() - record.timings["seconds"]
        self._seen += 1
        facts = self._facts(record)
        if self._live:
            if self._task is None:
                done = record.round_index - 1
                self._task = self._bar.add_task(self._label, total=record.num_rounds, facts="", completed=done)
            self._update(self._task, completed=record.round_index, facts=facts)
        else:
            elapsed = time.perf_counter() - self._started
            left = elapsed / self._seen * (record.num_rounds - record.round_index)
            line = f"round {record.round_index}/{record.num_rounds}  {facts}  {_clock(left)} left"
            print(line, file=sys.stderr, flush=True)

    def _facts(self, record: "RoundRecord") -> str:
        metrics = record.metrics
        parts = []
        if metrics.get("accuracy") is not None:
            parts.append(f"accuracy {metrics['accuracy']:.1%}  loss {metrics['loss']:.3f}")
        parts.append(f"{metrics['num_clients'] / max(record.timings['train_seconds'], 1e-9):.1f} clients/s")
        if metrics["num_set_aside"]:
            parts.append(f"{metrics['num_set_aside']} set aside (not finite)")
        return "  ".join(parts)


class StudyProgress(Shown):
    """Follows a study: cells and rounds done, elapsed and estimated time."""

    def __init__(self, runner: Any, enabled: bool = True, every: float = 1.0):
        super().__init__(enabled, "{task.description}", BarColumn(bar_width=24), "{task.fields[facts]}")
        self._runner = runner
        self._task = self._bar.add_task(runner.study.name, total=None, facts="")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(every,), daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._thread.start()
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._live:
            self._thread.join()
        super().__exit__(*exception)

    def _watch(self, every: float) -> None:
        while not self._stop.wait(every):
            status = self._runner.status()
            self._update(self._task, completed=status.rounds, total=status.total_rounds, facts=_facts(status))

    def ended(self, name: str, error: str | None) -> None:
        """A cell has ended."""
        if self._enabled:
            outcome = "done" if error is None else f"FAILED: {error.strip().splitlines()[-1]}"
            self._bar.console.print(f"{name}: {outcome}  ({_facts(self._runner.status())})", highlight=False)


def _facts(status: Any) -> str:
    left = "?" if status.seconds_left is None else _clock(status.seconds_left)
    failed = f", {status.failed} failed" if status.failed else ""
    return (
        f"{status.finished}/{status.cells} cells{failed}, {status.rounds}/{status.total_rounds} rounds, "
        f"{_clock(status.seconds)} elapsed, {left} left"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# --- the quickstart's story


SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last values as a row of small bars, from zero to the largest."""
    shown = values[-width:]
    top = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[max(0, min(7, int(8 * value / top)))] for value in shown)


class StoryProgress(Shown):
    """Stages one after the other: what is done and why, then a bar for each of a stage's parts."""

    def __init__(self, enabled: bool = True, stages: int = 1, every: float = 10.0):
        """Take the screen.

        Args:
            enabled: Show anything at all.
            stages: How many there will be.
            every: Seconds between plain lines about one bar, where nobody watches.
        """
        facts, left = "{task.fields[unit]}  {task.fields[facts]}", TimeRemainingColumn(True, elapsed_when_finished=True)
        columns = ("  {task.description}", BarColumn(bar_width=16), MofNCompleteColumn(), facts, left)
        super().__init__(enabled, *columns, speed_estimate_period=120)  # a surface takes long
        self._stages, self._every, self._begun = stages, every, 0
        self._said: dict[TaskID, float] = {}

    def stage(self, title: str, why: str) -> None:
        """The next stage begins; the last one's bars stay above it."""
        self._begun += 1
        for task in list(self._bar.task_ids):
            self._bar.stop_task(task)
        if self._enabled:
            heading = f"[bold]{self._begun}/{self._stages} {title}[/bold]\n{why}"
            self._console.print(heading, highlight=False, soft_wrap=not self._live)

    def bar(self, label: str, total: int | None, unit: str, completed: int = 0) -> TaskID:
        """A bar of the present stage."""
        task = self._bar.add_task(label, total=total, completed=completed, unit=unit, facts="")
        self._said[task] = time.monotonic()
        return task

    def update(self, bar: TaskID, completed: int | None, facts: str, total: int | None = None) -> None:
        """So much is done; None for one more."""
        task = self._bar.tasks[bar]
        done = task.completed + 1 if completed is None else completed
        new = done != task.completed
        self._update(bar, completed=done, facts=facts, total=task.total if total is None else total)
        now = time.monotonic()
        whole = done == self._bar.tasks[bar].total
        if self._enabled and not self._live and new and (whole or now - self._said[bar] > self._every):
            self._said[bar] = now
            of = "" if task.total is None else f"/{task.total:.0f}"
            left = "" if whole or not task.time_remaining else f", {_clock(task.time_remaining)} left"
            line = f"  {task.description}: {done:.0f}{of} {task.fields['unit']} {facts}{left}"
            print(line, file=sys.stderr, flush=True)

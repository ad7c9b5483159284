"""`python -m figures`: draws from recorded runs, and gathers runs to draw from. Parses, calls, prints."""

import gc
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import figures
from feddual.cli.shell import Json, guarded
from feddual.errors import UserError
from feddual.experiment import plugins

if TYPE_CHECKING:
    from figures._results import Results

RARELY = 100_000  # new objects between two collections of rubbish, which take a tenth of the time otherwise

output = Console(highlight=False, soft_wrap=True)


class DrawByDefault(TyperGroup):
    """`python -m figures table1` means `python -m figures draw table1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["draw", *args]
        return super().parse_args(ctx, args)


HELP = """The paper's tables and figures, and ours, from recorded runs. Needs no TensorFlow.

[bold]python -m figures --all[/bold]: everything, from figures/results into figures/gallery (installed: gallery)

[bold]python -m figures table1 fig3 --runs runs --out out[/bold]: some, from your own runs

[bold]python -m figures collect runs/paper-cifar10[/bold]: keep small copies of a study's runs in figures/results

Tables become Markdown, LaTeX and CSV; figures PNG, PDF and a page to explore. What was not run says so.
"""

ABOUT = dict(plugins.describe("figures"))
app = typer.Typer(
    name="figures",
    cls=DrawByDefault,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="\n\n".join([HELP, *(f"[bold]{name}[/bold]: {ABOUT[name]}" for name in figures.names())]),
)


NAMES_HELP = "Figures or tables; the part of a name before _ suffices: table1, fig3. Your own: package.module:draw."
Names = Annotated[list[str] | None, typer.Argument(help=NAMES_HELP)]
Runs = Annotated[Path, typer.Option(help="A folder with runs, at any depth; they are known by their config.")]


@app.command()
@guarded
def draw(
    name: Names = None,
    every: Annotated[bool, typer.Option("--all", help="Draw them all.")] = False,
    runs: Runs = figures.RESULTS,
    out: Annotated[Path, typer.Option(help="Where the files go.")] = figures.GALLERY,
    as_json: Json = False,
) -> None:
    """Draw figures and tables (the word draw may be left out)."""
    if bool(name) == every:
        raise UserError(f"NAME: name one or more of {', '.join(figures.names())}, or give --all")
    chosen = {figures.full_name(one): one for one in (figures.names() if every else name or [])}
    for one in chosen.values():
        figures.drawer(one)  # an unknown name is an error before anything is drawn
    results = _results(runs)
    files: dict[str, list[str]] = {}
    if not as_json:
        left_out = f", {len(results.unfinished)} unfinished left out" if results.unfinished else ""
        output.print(f"{len(results.runs)} finished runs in {results.root}{left_out}")
    for full_name, drawn in zip(chosen, _draw_all(list(chosen.values()), runs, out), strict=True):
        files[full_name] = drawn
        if not as_json:
            output.print(f"[bold]{full_name}[/bold]  {'  '.join(files[full_name])}")
    if as_json:
        unfinished = [str(path) for path in results.unfinished]
        print(json.dumps({"runs": len(results.runs), "unfinished": unfinished, "files": files}))


def _draw_all(names: Sequence[str], runs: Path, out: Path) -> Iterator[list[str]]:
    """The files of each: described here one after the other, and drawn by as many processes as there are cores."""
    from figures.charts.saving import elsewhere

    results, drawn = _results(runs), []
    with ProcessPoolExecutor(initializer=gc.set_threshold, initargs=(RARELY,)) as pool:
        for name in names:
            draw_it = figures.drawer(name)
            is_ours = draw_it.__module__.startswith("figures.")  # another's may want its files at once
            with elsewhere(pool if is_ours and len(names) > 1 else None) as pending:
                drawn.append((draw_it(results, out).files, pending))
        for files, pending in drawn:
            for one in pending:
                one.result()
            yield [str(path) for path in files]


@cache
def _results(runs: Path) -> "Results":
    """Read once a process."""
    from figures._results import Results

    return Results(runs)


@app.command()
@guarded
def collect(
    source: Annotated[
        list[Path], typer.Argument(metavar="STUDY_OR_RUN...", help="Run directories, or folders with some in them.")
    ],
    into: Annotated[
        Path | None, typer.Option(help="Where the copies go; by default figures/results/<name of the source>.")
    ] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Copy each run's last weights too.")] = False,
    as_json: Json = False,
) -> None:
    """Keep small copies of finished runs to draw from: a few Parquet files, a few kilobytes a run.

    A copy has the config, the environment, accuracy and loss of each round, timings and the clients' label histograms.
    Collecting again replaces or adds copies. Unfinished runs are named and left out.
    """
    from feddual.records.collect import collect as gather

    if into is None and len(source) > 1:
        raise UserError("--into: with several sources, say where the copies go")
    target = into or figures.RESULTS / source[0].resolve().name
    done = gather(source, target, weights)
    figures.measure(figures.RESULTS if target.resolve().is_relative_to(figures.RESULTS) else target)
    if as_json:
        runs = [str(path) for path in done.runs]
        print(json.dumps({"runs": runs, "skipped": done.skipped, "trials": done.trials, "bytes": done.bytes}))
        return
    for path, reason in done.skipped.items():
        output.print(f"left out: {path} ({reason})")
    output.print(f"{len(done.runs)} runs and {done.trials} trials in {done.bytes / 1e6:.2f} MB")


if __name__ == "__main__":
    app(prog_name="python -m figures")

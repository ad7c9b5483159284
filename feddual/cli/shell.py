"""The `feddual` command itself: its options, what all commands share."""

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from feddual import __version__
from feddual.errors import UserError


class Overview(TyperGroup):
    """The list of commands, printed at once: rich takes longer to import than the whole of it takes to print."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)


app = typer.Typer(
    name="feddual",
    cls=Overview,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train federated-learning algorithms on skewed clients, and look inside.\n\n"
    "Start with `feddual quickstart`, then `feddual run --help`. `feddual list` shows what there is.",
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, for example training.rounds=20. Repeatable."),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with data sets and pretrained weights, searched first.")
]


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """User errors become a few lines on standard error and exit code 2; warnings one line each."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        try:
            command(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            print("interrupted; the same command continues (feddual run: with --resume)", file=sys.stderr)
            raise typer.Exit(130) from None

    return run


def cell(column: str, value: Any) -> str:
    if value is None or value != value:
        return "–"
    if column in ("accuracy", "final", "best"):
        return f"{100 * value:.2f} %"
    if "seconds" in column:
        return f"{value:.1f}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; a pipe has no width: give it room rather than cut words."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    output = Console()
    (output if output.is_terminal else Console(width=240)).print(table)


def answer(as_json: bool, value: Any, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a value as JSON, or the table that says the same."""
    if as_json:
        print(json.dumps(value))
    else:
        show(headings, rows)


def _version(shown: bool) -> None:
    if shown:
        print(f"feddual {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""

"""`python -m diagnostics COMMAND`: finds the commands by file name."""

import importlib

import typer

from diagnostics import commands
from feddual.cli.shell import guarded
from feddual.experiment.plugins import module_names

app = typer.Typer(
    name="diagnostics",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Look inside runs and models. Every command explains itself with --help.",
)
for name in module_names(str(commands.__file__)):
    app.command(name)(guarded(getattr(importlib.import_module(f"diagnostics.commands.{name}"), name)))


@app.callback()
def root() -> None:
    """Keeps sub-commands sub-commands when there is only one."""


if __name__ == "__main__":
    app(prog_name="python -m diagnostics")

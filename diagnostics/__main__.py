"""`python -m diagnostics COMMAND`: finds the commands by file name; one of a user's own is `module:function`."""

from typing import Any

import typer
from typer.core import TyperGroup

from feddual.cli.shell import guarded
from feddual.experiment import plugins


class Commands(TyperGroup):
    """The commands by name, and any function as `module:function`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or not (":" in cmd_name or cmd_name in plugins.names("commands")):
            return known
        own = typer.Typer(pretty_exceptions_enable=False)

        @guarded
        def add() -> None:
            own.command(cmd_name)(guarded(plugins.find("commands", cmd_name, "COMMAND")))

        add()
        return typer.main.get_command(own)


app = typer.Typer(
    name="diagnostics", cls=Commands, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Look inside runs and models. Every command explains itself with --help.",
)  # fmt: skip
for name in plugins.names("commands"):
    app.command(name)(guarded(plugins.find("commands", name)))


if __name__ == "__main__":
    app(prog_name="python -m diagnostics")

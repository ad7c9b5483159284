"""`python -m diagnostics export SURFACE --to FORMAT`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddual.cli.shell import Json


def export(
    surface: Annotated[Path, typer.Argument(help="A surface's folder, such as runs/iid/surfaces/main.")],
    to: Annotated[str, typer.Option(help="vtp (ParaView), obj (Blender), h5 (Li et al.), csv, html.")] = "html",
    out: Annotated[Path | None, typer.Option(help="The file; default surface.FORMAT in the folder.")] = None,
    cap: Annotated[float | None, typer.Option(help="The largest loss drawn.")] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Heights are losses, not their logarithms.")] = False,
    as_json: Json = False,
) -> None:
    """Write a surface in a format other tools read.

    [bold]Examples[/bold]

      python -m diagnostics export runs/iid/surfaces/main --to vtp
      python -m diagnostics export runs/iid/surfaces/main --to csv --out iid.csv

    An unfinished surface is written as far as it is computed.
    """
    from diagnostics.surfaces.export import export as write
    from diagnostics.surfaces.results import Surface

    path = write(Surface.load(surface), to, out or surface / f"surface.{to}", not linear, cap)
    typer.echo(json.dumps([str(path)]) if as_json else f"wrote {path}")

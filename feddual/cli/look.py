"""Commands that look at what was run: `compare`, `report`, `export`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddual.cli.shell import Json, app, cell, guarded, show

_TARGET = "Accuracy to reach; by default the paper's for the data set."
_SOURCE = "A run directory, a study's folder, or any folder with runs."
_SECTION = "A section of your own, at the end. Repeatable."
_OUT = "Target file (keras) or folder (csv, parquet); default beside the run."
_ROUND = "A kept checkpoint's round, instead of the last."


@app.command()
@guarded
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    target: Annotated[float | None, typer.Option(help=_TARGET)] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: accuracy, rounds and seconds to a target."""
    from feddual import api

    frame = api.compare(*runs, target=target)
    if as_json:
        print(frame.reset_index().to_json(orient="records"))
        return
    columns = (
        "algorithm", "dataset", "partition", "alpha", "draw", "seed", "rounds", "accuracy", "final", "best", "target",
        "rounds_to_target", "seconds_to_target", "seconds",
    )  # fmt: skip
    rows = ([str(name), *(cell(column, row[column]) for column in columns)] for name, row in frame.iterrows())
    show(("run", *(column.replace("_", " ") for column in columns)), rows)


@app.command()
@guarded
def report(
    source: Annotated[Path, typer.Argument(metavar="RUN|STUDY", help=_SOURCE)],
    out: Annotated[Path | None, typer.Option(help="The file; default report.html in the folder.")] = None,
    section: Annotated[list[str] | None, typer.Option(metavar="MODULE:NAME", help=_SECTION)] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page with all that was recorded; it opens in any browser, offline.

    [bold]Examples[/bold]

      feddual report runs/quickstart
      feddual report runs/a --out a.html

    Learning curves, gradient norms, loss surfaces, flatness, clients, FedDUAL's barycenter, time, settings; the data
    behind each chart as CSV. What was not recorded, failed or was interrupted is said on the page.
    """
    from figures import report as reports

    path = reports.write(source, out, section or ())
    print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


@app.command()
@guarded
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    to: Annotated[str, typer.Option(help="keras (the final model), csv or parquet (the tables).")] = "keras",
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    round_index: Annotated[int | None, typer.Option("--round", help=_ROUND)] = None,
    as_json: Json = False,
) -> None:
    """Write a run's model or tables in a format other tools read."""
    from feddual.cli import export as exporting

    written = exporting.export(run, to, out, round_index)
    print(json.dumps([str(path) for path in written]) if as_json else "\n".join(f"wrote {path}" for path in written))

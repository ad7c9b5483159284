"""`python -m diagnostics barriers RUN ...`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddual.cli.shell import Json, show
from feddual.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from diagnostics.merging.result import Barriers


def barriers(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of one experiment go together.")],
    round_index: Annotated[
        list[int] | None,
        typer.Option("--round", help="Whose clients; repeatable. Default: the last that can be done again."),
    ] = None,
    between: Annotated[str, typer.Option(help="clients (of a round), or seeds: the runs' global models.")] = "clients",
    pairs: Annotated[int, typer.Option(min=0, help="At most so many pairs; 0 for all.")] = 10,
    grid: Annotated[int, typer.Option(help="Points of each line, odd.")] = 9,
    layers: Annotated[bool, typer.Option(help="Also layer by layer.")] = True,
    align: Annotated[bool, typer.Option("--align", help="Also with hidden units brought into one order.")] = False,
    planes: Annotated[
        bool, typer.Option("--planes", help="Also the loss near the clients, on their own data.")
    ] = False,
    bn: Annotated[
        str, typer.Option(help="Batch normalisation's statistics: recalibrate or interpolate.")
    ] = "recalibrate",
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Of the choice of samples.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Of one measurement its folder; of several, of their comparison.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Can these models be averaged? Losses on the way between clients, client and global model, or seeds.

    [bold]Examples[/bold]

      python -m diagnostics barriers runs/a --round 60
      python -m diagnostics barriers runs/a --round 30 --round 60 --align --planes
      python -m diagnostics barriers runs/iid-s* runs/noniid-s* --round 60 --out cmp     # intervals over seeds
      python -m diagnostics barriers runs/a-s0 runs/a-s1 --between seeds --align

    A round's clients are regenerated to the bit by doing the round again, which needs the checkpoint before it. The
    barrier of a line is the most by which the loss rises above the straight line between its ends; "rise" is what
    averaging the two ends does to the loss. Layer by layer, one layer alone is mixed or averaged; and a client's model
    gets one layer from the global model ("averaged"), the global model one from the client ("kept"), on all data and on
    the client's own. Intervals (95 %) are over clients for one run, over runs for several. The folder, by default
    RUN/barriers/round-00060, gets barriers.json, CSV files and pictures; another measurement in it is refused.
    """
    from diagnostics.merging.barriers import barriers as measure
    from diagnostics.merging.result import compare_barriers
    from diagnostics.trajectories.trajectory import run_names
    from feddual import devices
    from feddual.records.run_dir import RunDir

    if between not in ("clients", "seeds"):
        raise UserError(f"--between: {between!r} is unknown; allowed: clients, seeds")
    devices.configure()
    asked: dict[str, Any] = {
        "pairs": pairs or None, "grid": grid, "layers": layers, "align": align, "bn": bn, "images": images or None,
        "split": split, "seed": seed, "progress": not as_json,
    }  # fmt: skip
    end = "-aligned" if align else ""
    if between == "seeds":
        if len(round_index or []) > 1:
            raise UserError("--round: one checkpoint of each run is compared with --between seeds")
        folder = out or RunDir(runs[0]).barriers_path(f"seeds{end}")
        models = dict(zip(run_names(runs), runs, strict=True))
        chosen = round_index[0] if round_index else None
        _tell([(folder, measure(models, round=chosen, out=folder, **asked))], None, as_json)
        return
    single = len(runs) * len(round_index or [0]) == 1
    made, groups = [], dict[str, list[Any]]()
    for name, run, number in _rounds(runs, round_index or []):
        folder = out if single and out else RunDir(run.path).barriers_path(f"round-{number:05d}{end}")
        found = measure(run, round=number, out=folder, **asked)
        groups.setdefault(name, []).append(found)
        made.append((folder, found))
        if planes:
            _planes(run, number, folder, images or None, seed, not as_json)
    table = None if single else compare_barriers(groups)
    if table is not None and out is not None:
        _save_comparison(table, out)
    _tell(made, table, as_json)


def _rounds(runs: list[Path], chosen: list[int]) -> Iterator[tuple[str, Any, int]]:
    """Each run and round, with the name of the run's experiment."""
    from diagnostics.flatness.matching import group_runs
    from feddual.api import Run
    from feddual.records.identity import by_experiment

    one = len(by_experiment({run: Run(run).config.to_dict() for run in runs})) == 1  # its seeds stay together
    for name, several in ({runs[0].name: runs} if one else group_runs(runs)).items():
        for run in map(Run, several):
            for number in chosen or run.replayable[-1:]:
                yield name, run, number


def _planes(run: Any, number: int, folder: Path, images: int | None, seed: int, progress: bool) -> None:
    from diagnostics.merging.planes import client_planes
    from figures.charts import merging
    from figures.charts import save as write
    from figures.charts.captions import save

    found = client_planes(run, number, images=images, seed=seed, out=folder / "planes", progress=progress)
    chart = merging.planes(found)
    save(chart, folder / "planes.png", found.caption())
    write(chart, "planes", folder, ["html"])


def _save_comparison(table: "pd.DataFrame", out: Path) -> None:
    from feddual.records.run_dir import atomic_write
    from figures.charts import merging
    from figures.charts.captions import save

    atomic_write(out / "comparison.csv", table.to_csv(index=False).encode())
    about = (
        "Means over runs and 95 % intervals over seeds and draws of the clients; comparison.csv has the differences."
    )
    save(merging.by_layer(table), out / "layers.png", about)


def _pictures(folder: Path, found: "Barriers") -> list[Path]:
    """Every picture of one measurement, with its caption beside it."""
    from figures.charts import merging
    from figures.charts import save as write
    from figures.charts.captions import save

    charts = {"matrix": merging.matrix(found), "averaged": merging.matrix(found, "rise"), "lines": merging.lines(found)}
    charts |= {"layers": merging.by_layer(found)} if found.layers else {}
    for name, chart in charts.items():
        write(chart, name, folder, ["html"])
    return [save(chart, folder / f"{name}.png", found.caption()) for name, chart in charts.items()]


def _tell(made: list[tuple[Path, "Barriers"]], table: "pd.DataFrame | None", as_json: bool) -> None:
    """Pictures, and the table: of one measurement, or of several compared."""
    pictures = [path for folder, found in made for path in _pictures(folder, found)]
    summary = made[0][1].summary if table is None else table
    if as_json:
        rows = json.loads(summary.to_json(orient="records"))
        typer.echo(
            json.dumps({"out": [str(folder) for folder, _ in made], "summary": rows, "pictures": [*map(str, pictures)]})
        )
        return
    headings = ["quantity", "between, or on", "units", "layer", "mean [95 %]"]
    several = [] if table is None else ["experiment", "to the first [95 %]"]
    show([*headings, *several], _rows(summary))
    for folder, found in made:
        typer.echo(found.caption())
        typer.echo(f"barriers: {folder}")


def _rows(summary: "pd.DataFrame") -> Iterator[list[str]]:
    from diagnostics.statistics import said

    for row in summary.to_dict("records"):
        line = [row["quantity"], row["between"], row["order"], row["layer"], said(row["mean"], row["low"], row["high"])]
        if "experiment" in row:
            gap = said(row["difference"], row["difference_low"], row["difference_high"], "+.3g")
            line += [row["experiment"], gap if row["pairs"] else ""]
        yield line

"""`python -m diagnostics trajectory RUN ...`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddual.cli.shell import Json, show


def trajectory(
    runs: Annotated[list[Path], typer.Argument(help="Run directories of one architecture.")],
    rounds: Annotated[
        list[int] | None, typer.Option("--round", help="A checkpoint, 0 for the start; repeatable. Default: all kept.")
    ] = None,
    clients: Annotated[list[int] | None, typer.Option(help="A round whose clients are shown too; repeatable.")] = None,
    grid: Annotated[int, typer.Option(min=0, help="Points along each axis of the loss; 0 for none.")] = 25,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Of the choice of samples.")] = 0,
    bn: Annotated[str, typer.Option(help="Batch normalisation over the plane: frozen or recalibrate.")] = "frozen",
    name: Annotated[str, typer.Option(help="Of the folder in the first run's trajectories/.")] = "main",
    out: Annotated[Path | None, typer.Option(help="Another folder instead.")] = None,
    as_json: Json = False,
) -> None:
    """Where training went: the checkpoints of runs in the plane in which they lie furthest apart.

    [bold]Examples[/bold]

      python -m diagnostics trajectory runs/a
      python -m diagnostics trajectory runs/iid runs/noniid --clients 60 --out joint

    Keep checkpoints while training: --set checkpoint.every=5 --set checkpoint.keep=all. The plane goes through the last
    model of the first run, along the principal directions of the differences from it. No other checkpoint lies in it:
    the table has each one's distance from the plane, and its own loss. Random walks give smooth curves and a large
    share of the first direction, too; the share that they would have is told. The folder, by default
    RUN/trajectories/main, gets trajectory.json, the loss over the plane, trajectory.png with its caption, and .html.
    """
    from diagnostics.trajectories.trajectory import trajectory as measure
    from feddual import devices
    from feddual.records.run_dir import RunDir, atomic_write
    from figures.charts import trajectories
    from figures.charts.captions import save

    devices.configure()
    folder = out or RunDir(runs[0]).trajectory_path(name)
    found = measure(
        *runs, rounds=rounds, clients=clients or (), grid=grid or None, images=images or None, split=split, seed=seed,
        bn=bn, out=folder, progress=not as_json,
    )  # fmt: skip
    atomic_write(folder / "points.csv", found.points.to_csv(index=False).encode())
    chart = trajectories.trajectory(found)
    save(chart, folder / "trajectory.png", found.caption())
    chart.save(folder / "trajectory.html")
    if as_json:
        rows = json.loads(found.points.to_json(orient="records"))
        shares = {"shares": found.shares[:2].tolist(), "walk": found.walk[:2].tolist()}
        typer.echo(json.dumps({"out": str(folder), **shares, "points": rows}))
        return
    keys = ("run", "round", "alpha", "beta", "off", "distance", "loss", "error")
    path = found.points[found.points["kind"] == "global"]
    cells = [[f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key]) for key in keys]
             for row in path.to_dict("records")]  # fmt: skip
    show(keys, cells)
    typer.echo(found.caption())
    typer.echo(f"trajectory: {folder}")

"""`python -m diagnostics surface RUN`."""

import json
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from feddual.cli.shell import Json


def surface(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    grid: Annotated[str, typer.Option(metavar="N|NXxNY", help="Points along each axis; odd.")] = "51",
    extent: Annotated[float, typer.Option("--range", help="Of both axes; 1 moves every filter by its own norm.")] = 1.0,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    round_index: Annotated[int | None, typer.Option("--round", help="A kept checkpoint; the last by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of directions and samples.")] = 0,
    direction: Annotated[int, typer.Option(min=0, help="Which pair of random directions.")] = 0,
    norm: Annotated[str, typer.Option(help="filter, layer or model.")] = "filter",
    bn: Annotated[str, typer.Option(help="Batch normalisation's statistics: frozen or recalibrate.")] = "frozen",
    logit_norm: Annotated[bool, typer.Option(help="Of normalised logits, which takes confidence out.")] = False,
    two_level: Annotated[int | None, typer.Option(help="First on so many samples, on all where it matters.")] = None,
    engine: Annotated[str, typer.Option(help="auto (exact rewrites, checked) or plain.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The folder; default RUN/surfaces/main[-normalised].")] = None,
    executor: Annotated[str, typer.Option(help="What runs the workers.")] = "processes",
    workers: Annotated[int, typer.Option(min=1, help="Processes; the result is the same for any number.")] = 1,
    as_json: Json = False,
) -> None:
    """Compute the loss over a plane of random, filter-normalised directions through a run's final model.

    [bold]Examples[/bold]

      python -m diagnostics surface runs/iid --grid 51 --range 1 --images 2000
      python -m diagnostics surface runs/iid --grid 25 --round 30 --out runs/iid/surfaces/round-30
      python -m diagnostics surface runs/iid --range 0.25 --out runs/iid/surfaces/near --workers 2

    The coarse grid comes first: after 5 % of the points preview.png shows the shape. Stopped, the same command goes on
    where it was. The folder gets manifest.json (all that determines the numbers, with hashes), surface.npz,
    surface.png with its caption in surface.txt, and surface.html; `python -m diagnostics export` writes other formats.
    """
    from diagnostics.landscape import loss_surface
    from diagnostics.surfaces.export import export
    from feddual import devices
    from feddual.api import Run
    from feddual.records.run_dir import RunDir
    from figures.charts.captions import save

    devices.configure()
    opened = Run(run)
    folder = out or RunDir(run).surface_path("main-normalised" if logit_norm else "main")

    def preview(unfinished: Any) -> None:
        unfinished.plot(name="preview").savefig(folder / "preview.png", dpi=110)
        if not as_json:
            typer.echo(f"preview: {folder / 'preview.png'}", err=True)

    found = loss_surface(
        opened, grid=grid, extent=extent, images=images or None, split=split, round=round_index, seed=seed,
        direction=direction, norm=norm, bn=bn, logit_norm=logit_norm, two_level=two_level, engine=engine,
        out=folder, workers=workers, executor=executor, progress=not as_json, on_preview=preview,
    )  # fmt: skip
    save(found.plot(name=opened.config.name), folder / "surface.png", found.caption())
    export(found, "html", folder / "surface.html")
    (folder / "preview.png").unlink(missing_ok=True)
    facts = found.meta["facts"]
    if as_json:
        keys = ("loss", "accuracy", "gradient_norm", "images", "engine", "check", "points_per_second", "seconds")
        lowest = float(min(filter(isfinite, found.loss.flat)))
        shape = {"points": int(found.loss.size), "lowest": lowest, "out": str(folder)}
        typer.echo(json.dumps({**shape, **{key: facts.get(key) for key in keys}}))
        return
    pace = f"{facts['points_per_second']:.1f} a second (engine: {facts['engine']})"
    typer.echo(f"{found.loss.size} points, {pace}. {found.caption()}")
    typer.echo(f"surface: {folder}")

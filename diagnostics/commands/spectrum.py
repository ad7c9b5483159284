"""`python -m diagnostics spectrum RUN [RUN ...]`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import typer

from feddual.cli.shell import Json

if TYPE_CHECKING:
    from diagnostics.curvature.operator import Kind
    from diagnostics.surfaces.directions import Scale


def spectrum(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Eigenvalues at each end.")] = 5,
    steps: Annotated[int, typer.Option(min=2, help="Lanczos steps of each draw.")] = 80,
    draws: Annotated[int, typer.Option(min=1, help="Random starts of the density.")] = 10,
    probes: Annotated[int, typer.Option(min=6, help="Products for the trace.")] = 99,
    kind: Annotated[str, typer.Option(help="hessian or ggn.")] = "hessian",
    scale: Annotated[str, typer.Option(help="none, filter (as surfaces) or abs (|w|).")] = "none",
    layers: Annotated[list[str] | None, typer.Option("--layer", help="Only this layer; may be repeated.")] = None,
    layerwise: Annotated[bool, typer.Option(help="Each layer's largest eigenvalue, too.")] = False,
    budget: Annotated[int | None, typer.Option(min=1, help="Passes over the samples at most, for each run.")] = None,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    round_index: Annotated[int | None, typer.Option("--round", help="A kept checkpoint; the last by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of samples and random vectors.")] = 0,
    logit_norm: Annotated[bool, typer.Option(help="Of normalised logits, which takes confidence out.")] = False,
    sigma: Annotated[float | None, typer.Option(help="Smoothing of the drawn densities.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the folder RUN/spectra/NAME; default from kind and scale.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the curvature's spectrum at runs' final models: eigenvalues at both ends, trace and density.

    [bold]Examples[/bold]

      python -m diagnostics spectrum runs/iid runs/noniid
      python -m diagnostics spectrum runs/iid runs/noniid --scale filter --layerwise
      python -m diagnostics spectrum runs/iid --kind ggn --layer output --budget 200

    Every product is a pass over the samples. Stopped, the same command goes on where it was. RUN/spectra/NAME gets
    manifest.json (all that determines the numbers, with hashes), spectrum.npz, and spectrum.png with its caption in
    spectrum.txt; of several runs the first one's folder gets compared.png, all on one axis and smoothed alike.
    """
    from diagnostics.landscape import Landscape
    from diagnostics.subject import of_run
    from feddual import devices
    from feddual.api import Run
    from feddual.records.run_dir import RunDir
    from figures.charts import spectra
    from figures.charts.captions import save

    devices.configure()
    opened = [Run(run) for run in runs]
    name = name or "-".join(filter(None, [kind, scale * (scale != "none"), *(layers or ()), "normalised" * logit_norm]))
    found, folders = {}, {}
    for run in opened:
        subject = of_run(run, round_index, split, images or None, seed, [one for one in opened if one is not run])
        label = run.path.name if run.path.name not in found else str(run.path)
        folders[label] = RunDir(run.path).spectrum_path(name)
        found[label] = Landscape(subject, seed=seed, logit_norm=logit_norm).spectrum(
            k, steps=steps, draws=draws, probes=probes, kind=cast("Kind", kind), scale=cast("Scale", scale),
            layers=layers or (), layerwise=layerwise, budget=budget, out=folders[label], progress=not as_json,
        )  # fmt: skip
        save(spectra.plot_spectra({label: found[label]}), folders[label] / "spectrum.png", found[label].caption())
    if len(found) > 1:
        chart = spectra.plot_spectra(found, sigma=sigma)
        save(chart, next(iter(folders.values())) / "compared.png", spectra.captions(found))
    rows = {label: one.table().iloc[0].drop("model") for label, one in found.items()}
    if as_json:
        typer.echo(
            json.dumps([_plain({"run": label, **row, "out": str(folders[label])}) for label, row in rows.items()])
        )
        return
    typer.echo(spectra.text(found))
    for folder in folders.values():
        typer.echo(f"spectrum: {folder}")


def _plain(row: dict[str, object]) -> dict[str, object]:
    """As JSON says it; what it has no word for becomes null."""
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
    return {key: None if value != value else value for key, value in plain.items()}

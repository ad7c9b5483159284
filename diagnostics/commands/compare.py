"""`python -m diagnostics compare RUN RUN ...`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnostics.statistics import NO_INTERVAL
from feddual.cli.shell import Json, show
from feddual.errors import UserError

if TYPE_CHECKING:
    from diagnostics.flatness.comparison import Comparison


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of one experiment go together.")],
    source: Annotated[str, typer.Option("--from", help="lines, measured now; surfaces, as recorded.")] = "lines",
    directions: Annotated[int, typer.Option(min=2, help="Random directions, the same noise for all models.")] = 5,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    match: Annotated[str, typer.Option(help="What is equal: round, loss, or both with a comma.")] = "round,loss",
    logit_norm: Annotated[bool, typer.Option(help="Also with normalised logits, which takes confidence out.")] = True,
    grid: Annotated[str, typer.Option(metavar="N|NXxNY|0", help="Of one surface per model; 0 for none.")] = "25",
    tau: Annotated[float, typer.Option(min=0, help="Loss rise that defines the flatness radius.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of directions and samples.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder.")] = Path("comparison"),
    executor: Annotated[str, typer.Option(help="What runs the workers.")] = "processes",
    workers: Annotated[int, typer.Option(min=1, help="Processes; the result is the same for any number.")] = 1,
    as_json: Json = False,
) -> None:
    """Compare how flat models are, on one scale and with intervals.

    [bold]Examples[/bold]

      python -m diagnostics compare runs/iid runs/noniid --directions 5 --out cmp
      python -m diagnostics compare runs/study/*-seed-* --directions 20 --match loss --workers 2
      python -m diagnostics compare runs/quickstart/*-s0 --from surfaces --out runs/quickstart/comparison

    All models see the same samples and the same noise, each scaled by its own filters. The table has the curvature
    kappa, the flatness radius r_tau and the loss rise at radius 1, 0.5 and 0.25, of each model as a geometric mean, and
    the paired ratio to the first model; intervals (95 %) are over training seeds and directions, the last one wide
    enough for all comparisons at once. One seed of each has no interval. The folder gets the tables as CSV, one
    comparison.json, and pictures with shared levels and their captions; a folder of another comparison is refused.
    Stopped, the same command goes on where it was. With --from surfaces nothing is evaluated: planes that all runs have
    recorded around their last models are compared, each pair of directions a mean of two lines. In a study's folder
    comparison/ it is what `feddual report` shows.
    """
    from diagnostics.flatness.matching import group_runs

    if source == "surfaces":
        from diagnostics.flatness.recorded import compare_recorded

        found = compare_recorded(group_runs(runs), tau)
        found.save(out)
    elif source == "lines":
        from diagnostics.flatness.compare import compare_models
        from feddual import devices

        devices.configure()
        found = compare_models(
            group_runs(runs), directions=directions, images=images or None, split=split, seed=seed, tau=tau, out=out,
            matches=[part.strip() for part in match.split(",") if part.strip()], logit_norm=logit_norm,
            grid=None if grid == "0" else grid, workers=workers, executor=executor, progress=not as_json,
        )  # fmt: skip
    else:
        raise UserError(f"--from: expected lines or surfaces, got {source!r}")
    pictures = _pictures(found, out)
    if as_json:
        records = json.loads(found.differences.to_json(orient="records"))
        typer.echo(json.dumps({"out": str(out), "differences": records, "pictures": [str(path) for path in pictures]}))
        return
    among = f"all {found.differences['comparisons'].max()} at once"
    show(("equal", "logits", "quantity", "model", "L(0)", "mean [95 %]", "to the first [95 %]", among), _rows(found))
    if found.summary["seeds"].iloc[0] == 1:
        typer.echo(f"{NO_INTERVAL.capitalize()}: how the next training would come out cannot be told from one.")
    typer.echo(f"comparison: {out}")


def _rows(found: "Comparison") -> Iterator[list[str]]:
    """Each model's numbers, and how they differ from the first model's."""
    from diagnostics.flatness.comparison import all_at_once, said_of, said_of_effect

    first = found.summary["model"].iloc[0]
    for row in found.against_first.to_dict("records"):
        sign = "× " if row["effect_scale"] == "ratio" else "+ "
        gap = [sign + said_of_effect(row), all_at_once(row)] if row["model"] != first else ["", ""]
        variant = "as they are" if row["variant"] == "plain" else "normalised"
        yield [row["match"], variant, row["quantity"], row["model"], f"{row['loss']:.4g}", said_of(row), *gap]


def _pictures(found: "Comparison", out: Path) -> list[Path]:
    """Every picture with its caption beside it."""
    from figures.charts import surfaces as plots
    from figures.charts.captions import captions, save
    from figures.charts.lines import plot_profiles

    made = []
    names, surfaces = list(found.surfaces), found.surfaces
    if names:
        about = "The same samples and noise, scaled by each model's own filters; one colour scale."
        made.append(save(plots.panels(surfaces), out / "surfaces.png", captions(surfaces, about)))
        made.append(save(plots.panels3d(surfaces), out / "surfaces3d.png", captions(surfaces, about)))
        for other in names[1:]:
            pair = {name: surfaces[name] for name in (names[0], other)}
            about = (
                f"Loss above the centre of {other} minus that of {names[0]}; hatched where it is within "
                f"{plots.SIGMAS:g} standard errors of the samples."
            )
            figure = plots.difference(surfaces[names[0]], surfaces[other], (names[0], other))
            made.append(save(figure, out / f"difference-{other}.png", captions(pair, about)))
        made.append(out / "surfaces3d.html")
        plots.panels3d(surfaces).save(made[-1])
    about = (
        "Symmetric loss rise over the radius: mean over training seeds and directions, its 95 % interval (dark; "
        f"{NO_INTERVAL}) and the band of 10 to 90 % over all lines (light)."
    )
    lines = {f"{name} (equal {match}, seed {place})": one for (match, name, place), one in found.lines.items()}
    figure = plot_profiles(found.profiles, found.settings["tau"])
    made.append(save(figure, out / "profiles.png", captions(lines or surfaces, about)))
    return made

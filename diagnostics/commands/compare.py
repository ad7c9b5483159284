"""`python -m diagnostics compare RUN RUN ...`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnostics.statistics import NO_INTERVAL
from feddual.cli.shell import Json, show
from feddual.errors import UserError

if TYPE_CHECKING:
    from diagnostics.flatness.comparison import Comparison
    from diagnostics.flatness.footing import Case
    from diagnostics.surfaces.results import Surface


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of one experiment go together.")],
    source: Annotated[str, typer.Option("--from", help="lines, measured now; surfaces, as recorded.")] = "lines",
    directions: Annotated[int, typer.Option(min=2, help="Random directions, the same noise for all models.")] = 5,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    match: Annotated[
        str | None,
        typer.Option(help="What is equal: round, (training) loss, or both with a comma; by default both if possible."),
    ] = None,
    logit_norm: Annotated[bool, typer.Option(help="Also with normalised logits, which takes confidence out.")] = True,
    grid: Annotated[str, typer.Option(metavar="N|NXxNY|0", help="Of one surface per model; 0 for none.")] = "25",
    record: Annotated[int, typer.Option(min=0, help="With --from surfaces: pairs of directions to record first.")] = 0,
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
      python -m diagnostics compare runs/iid runs/noniid --from surfaces --record 5 --match round,loss --out cmp

    All models see the same samples and the same noise, each scaled by its own filters. Confident models look flat:
    models are therefore also compared at equal training loss (of each run the kept checkpoint nearest to the largest
    of the last training losses; refused when none is near) and with normalised logits. The table has the curvature
    kappa, the flatness radius r_tau and the loss rise at radius 1, 0.5 and 0.25, of each model as a geometric mean, and
    the paired ratio to the first model; intervals (95 %) are over training seeds and directions, the last one wide
    enough for all comparisons at once. One seed of each has no interval. The folder gets the tables as CSV, one
    comparison.json, and pictures with shared levels and their captions; a folder of another comparison is refused.
    Stopped, the same command goes on where it was. With --from surfaces nothing is evaluated: planes that all runs have
    recorded, of one step and one set of images, are compared, each pair of directions a mean of two lines; --record
    measures them first, in the runs' folders. In a study's folder comparison/ it is what `feddual report` shows.
    """
    from diagnostics.flatness.matching import group_runs
    from feddual import devices

    groups, pieces = group_runs(runs), None if match is None else [part.strip() for part in match.split(",")]
    asked: dict[str, Any] = {
        "images": images or None, "split": split, "seed": seed, "matches": pieces, "logit_norm": logit_norm,
        "grid": None if grid == "0" else grid, "workers": workers, "executor": executor, "progress": not as_json,
    }  # fmt: skip
    if source == "surfaces":
        from diagnostics.flatness.recorded import compare_recorded

        if record:
            from diagnostics.flatness import recording

            devices.configure()
            recording.record(groups, record, **asked)
        found = compare_recorded(groups, tau)
        found.save(out)
    elif source == "lines":
        from diagnostics.flatness.compare import compare_models

        devices.configure()
        found = compare_models(groups, directions=directions, tau=tau, out=out, **asked)
    else:
        raise UserError(f"--from: expected lines or surfaces, got {source!r}")
    pictures = _pictures(found, out)
    if as_json:
        records = json.loads(found.differences.to_json(orient="records"))
        typer.echo(json.dumps({"out": str(out), "differences": records, "pictures": [str(path) for path in pictures]}))
        return
    among = f"all {found.differences['comparisons'].max()} at once"
    show(("equal", "logits", "quantity", "model", "L(0)", "mean [95 %]", "to the first [95 %]", among), _rows(found))
    for sentence in found.about:
        typer.echo(sentence)
    if found.summary["seeds"].iloc[0] == 1:
        typer.echo(f"{NO_INTERVAL.capitalize()}: how the next training would come out cannot be told from one.")
    typer.echo(f"comparison: {out}")


def _rows(found: "Comparison") -> Iterator[list[str]]:
    """Each model's numbers, and how they differ from the first model's; the cases of a quantity side by side."""
    from diagnostics.flatness.comparison import all_at_once, said_of, said_of_effect

    table = found.against_first
    first, keys = table["model"].iloc[0], ("quantity", "match", "variant")
    order = {key: list(dict.fromkeys(table[key])) for key in keys}
    for row in sorted(table.to_dict("records"), key=lambda row: [order[key].index(row[key]) for key in keys]):
        sign = "× " if row["effect_scale"] == "ratio" else "+ "
        gap = [sign + said_of_effect(row), all_at_once(row)] if row["model"] != first else ["", ""]
        variant = "as they are" if row["variant"] == "plain" else "normalised"
        yield [row["match"], variant, row["quantity"], row["model"], f"{row['loss']:.4g}", said_of(row), *gap]


def _surface_pictures(case: "Case", surfaces: "Mapping[str, Surface]", out: Path) -> Iterator[Path]:
    """Of one case: contours and 3-D on one scale, and each model minus the first."""
    from diagnostics.flatness import footing
    from figures.charts import surfaces as plots
    from figures.charts.captions import captions, save

    first, *others = surfaces
    words, end = footing.words(case), footing.suffix(case).replace("_", "-")
    about = "The same samples and noise, scaled by each model's own filters; one colour scale."
    about = f"{words[:1].upper()}{words[1:]}. {about}" if words else about

    def told(chart: Any) -> Any:
        return replace(chart, caption=words)

    yield save(told(plots.panels(surfaces)), out / f"surfaces{end}.png", captions(surfaces, about))
    yield save(told(plots.panels3d(surfaces)), out / f"surfaces3d{end}.png", captions(surfaces, about))
    for other in others:
        pair = {name: surfaces[name] for name in (first, other)}
        about = (
            f"Loss above the centre of {other} minus that of {first}; hatched where it is within "
            f"{plots.SIGMAS:g} standard errors of the samples."
        )
        figure = told(plots.difference(surfaces[first], surfaces[other], (first, other)))
        yield save(figure, out / f"difference-{other}{end}.png", captions(pair, about))
    yield told(plots.panels3d(surfaces)).save(out / f"surfaces3d{end}.html")


def _pictures(found: "Comparison", out: Path) -> list[Path]:
    """Every picture with its caption beside it."""
    from figures.charts.captions import captions, save
    from figures.charts.lines import plot_profiles

    made = [path for case, surfaces in found.planes.items() for path in _surface_pictures(case, surfaces, out)]
    about = (
        "Symmetric loss rise over the radius: mean over training seeds and directions, its 95 % interval (dark; "
        f"{NO_INTERVAL}) and the band of 10 to 90 % over all lines (light)."
    )
    lines = {f"{name} (equal {match}, seed {place})": one for (match, name, place), one in found.lines.items()}
    planes = {
        f"{name} (equal {case[0]})": one for case, several in found.planes.items() for name, one in several.items()
    }
    figure = plot_profiles(found.profiles, found.settings["tau"])
    made.append(save(figure, out / "profiles.png", captions(lines or planes, about)))
    return made

"""`python -m diagnostics gradients BASE [OTHER]`: per-layer gradient norms, and the ratio of two sets of runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diagnostics.statistics import NO_INTERVAL
from feddual.cli.shell import Json, show
from feddual.errors import UserError


def gradients(
    base: Annotated[Path, typer.Argument(help="A run with recorded gradient norms, or a folder of runs (seeds).")],
    other: Annotated[Path | None, typer.Argument(help="The same for the runs to compare with it.")] = None,
    definition: Annotated[list[str] | None, typer.Option(help="By name or letter; repeatable. Default: all.")] = None,
    normalisation: Annotated[str, typer.Option(help="raw, rms, relative, scale_free or share.")] = "rms",
    offline: Annotated[bool, typer.Option("--offline", help="Measure now, from the checkpoints.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each definition means, and stop.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the table to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Per-layer gradient norms of runs, and how they differ.

    With two arguments: for each definition and layer the ratio OTHER / BASE, the geometric mean over rounds and seeds,
    with a 95 % interval over seeds, and one that holds for all layers at once. Runs are paired by seed; one seed has no
    interval.

    [bold]Examples[/bold]

      feddual run quickstart --probe gradient-norms@every=5 --out runs/noniid
      feddual run quickstart --probe gradient-norms@every=5 --set partition.name=iid --out runs/iid
      python -m diagnostics gradients runs/iid runs/noniid
      python -m diagnostics gradients runs/old --offline
    """
    from diagnostics import gradients as norms
    from diagnostics.gradients.replay import by_replicate

    if explain:
        rows = norms.describe()
        if as_json:
            print(json.dumps(rows))
        else:
            show(("id", "name", "formula", "cost"), [list(row.values()) for row in rows])
        return
    names = list(definition or norms.DEFINITIONS)
    for name in names:
        norms.definition(name)  # an unknown one is told before anything is read
    before = by_replicate(base, offline)
    if other is None:
        frame = norms.level(list(before.values()), names, normalisation)
    else:
        after = by_replicate(other, offline)
        if not set(before) & set(after):
            raise UserError(f"no seed is in both: {base} has {list(before)}, {other} has {list(after)}")
        frame = norms.ratios_by_seed(before, after, names, normalisation)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(out, index=False)
    if as_json:
        print(frame.to_json(orient="records"))
        return
    show(list(frame.columns), [[_text(value) for value in row] for row in frame.itertuples(index=False)])
    what = f"{other} / {base}" if other is not None else str(base)
    ends = "low and high: 95 % interval over runs; all_low and all_high: for all layers of a definition at once"
    interval = NO_INTERVAL if frame["runs"].max() == 1 else ends
    print(f"{what}, normalisation {normalisation} (norms only); {interval}")


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

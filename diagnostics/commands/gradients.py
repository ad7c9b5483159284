"""`python -m diagnostics gradients BASE [OTHER]`: per-layer gradient norms, and the ratio of two sets of runs."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from feddual.errors import UserError


def gradients(
    base: Annotated[Path, typer.Argument(help="A run with recorded gradient norms, or a folder of runs (seeds).")],
    other: Annotated[Path | None, typer.Argument(help="The same for the runs to compare with it.")] = None,
    definition: Annotated[
        list[str] | None, typer.Option("--definition", help="By name or letter; repeatable. Default: all recorded.")
    ] = None,
    normalisation: Annotated[str, typer.Option(help="raw, rms, relative, scale_free or share.")] = "rms",
    offline: Annotated[
        bool, typer.Option("--offline", help="Measure now, from the checkpoints, by doing their next rounds again.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each definition means, and stop.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the table to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")] = False,
) -> None:
    """Per-layer gradient norms of runs, and how they differ.

    With two arguments: for each definition and layer the ratio OTHER / BASE, the geometric mean over rounds, with a
    95 % interval over seeds and rounds. Runs are paired by seed.

    [bold]Examples[/bold]

      feddual run quickstart --probe gradient-norms@every=5 --out runs/noniid
      feddual run quickstart --probe gradient-norms@every=5 --set partition.name=iid --out runs/iid
      python -m diagnostics gradients runs/iid runs/noniid
      python -m diagnostics gradients runs/old --offline
    """
    from diagnostics.gradients import definitions

    if explain:
        rows = definitions.describe()
        if as_json:
            print(json.dumps(rows))
        else:
            _print(Table("id", "name", "formula", "cost"), [list(row.values()) for row in rows])
        return
    names = [definitions.definition(name).name for name in definition or definitions.DEFINITIONS]
    before, after = _frames(base, offline), _frames(other, offline) if other is not None else None
    if after is None:
        frame = definitions.level(list(before.values()), names, normalisation)
        columns = ["definition", "layer", "mean", "low", "high", "runs", "rounds"]
    else:
        common = [seed for seed in before if seed in after]
        if not common:
            raise UserError(f"no seed is in both: {base} has {list(before)}, {other} has {list(after)}")
        frame = definitions.ratios(
            [before[seed] for seed in common], [after[seed] for seed in common], names, normalisation
        )
        columns = ["definition", "layer", "ratio", "low", "high", "runs", "rounds"]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(out, index=False)
    if as_json:
        print(frame.to_json(orient="records"))
        return
    _print(Table(*columns), [[_text(row[column]) for column in columns] for _, row in frame.iterrows()])
    what = f"{other} / {base}" if after is not None else str(base)
    print(f"{what}, normalisation {normalisation} (norms only); low and high: 95 % interval over runs and rounds")


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _print(table: Table, rows: list[list[str]]) -> None:
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=240)).print(table)


def _frames(path: Path, offline: bool) -> dict[int, "object"]:
    """The recorded tables by seed."""
    import feddual
    from diagnostics.gradients.definitions import replay as replays
    from feddual.records.slim import open_run
    from feddual.records.study_dir import StudyDir

    folders = [path] if open_run(path).exists else [path / name for name in StudyDir(path).run_names()]
    if not folders:
        raise UserError(f"{path}: neither a run nor a folder of runs")
    found = {}
    for folder in folders:
        run = feddual.open(folder)
        if offline:
            found[run.config.seed] = replays.gradient_norms(run)
        elif open_run(folder).has_probe("gradient-norms"):
            found[run.config.seed] = run.probe("gradient-norms")
        elif open_run(folder).has_probe(replays.FOLDER):
            found[run.config.seed] = replays.GradientNormProbe.read(open_run(folder).probe_path(replays.FOLDER))
        else:
            raise UserError(
                f"{folder}: no gradient norms recorded; run with --probe gradient-norms@every=5, or pass --offline "
                "to measure from its checkpoints"
            )
    return found

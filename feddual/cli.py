"""The `feddual` command: parses, calls, prints. No logic of its own."""

import json
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from feddual import __version__
from feddual.errors import UserError

app = typer.Typer(
    name="feddual",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train federated-learning algorithms on skewed clients, and look inside.\n\n"
    "Start with [bold]feddual quickstart[/bold], then [bold]feddual run --help[/bold].",
)
data_app = typer.Typer(no_args_is_help=True, help="What data is there, where it comes from, whether it is intact.")
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, for example training.rounds=20. Repeatable."),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with data sets and pretrained weights, searched first.")
]
output = Console()


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """User errors become a few lines on standard error and exit code 2; warnings one line each."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        try:
            command(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            print("interrupted; the same command continues (feddual run: with --resume)", file=sys.stderr)
            raise typer.Exit(130) from None

    return run


@app.command()
@guarded
def quickstart(
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/quickstart"),
    settings: Set = None,
    grid: Annotated[int, typer.Option(min=5, help="Points along each axis of the loss surfaces; odd.")] = 25,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default two.")] = None,
    as_json: Json = False,
) -> None:
    """Tell the whole story on the built-in data: train, look inside, draw, report. Minutes; no download.

    FedAvg on even clients, FedAvg and FedDUAL on skewed ones, with gradient norms; loss surfaces of the three final
    models; figures; a report. Stopped, the same command goes on where it was.
    """
    from feddual import config, quickstart

    found = quickstart.tell(
        out, config.parse_overrides(settings or []), grid=grid, workers=workers, progress=not as_json
    )
    print(json.dumps(found.to_dict()) if as_json else found.text())
    if found.failed:
        for name, error in found.failed.items():
            print(f"failed: {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
@guarded
def run(
    experiment: Annotated[
        str,
        typer.Argument(
            help="A shipped experiment (quickstart, paper-fmnist, paper-cifar10, paper-cifar100) or a .yaml file."
        ),
    ],
    settings: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; default runs/<name>.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue a run from its last checkpoint, to the same bits; start it if it never began."
        ),
    ] = False,
    executor: Annotated[str | None, typer.Option(help="Who runs the clients; see runtime.executor.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; see runtime.workers.")] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            metavar="NAME[@key=value,...]",
            help="Measure during training, for example gradient-norms@every=5. Repeatable.",
        ),
    ] = None,
    sink: Annotated[
        list[str] | None, typer.Option("--sink", help="Also report to tensorboard, mlflow or wandb. Repeatable.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train one experiment into a run directory.

    [bold]Examples[/bold]

      feddual run quickstart
      feddual run paper-fmnist --set algorithm.name=fedavg --set training.rounds=20 --out runs/a
      feddual run paper-fmnist --set algorithm.name=fedavg --set training.rounds=20 --out runs/a --resume

    Settings win over the file, the file over the algorithm's preset, the preset over the protocol.
    """
    from feddual import api, config, probes

    overrides = config.parse_overrides(settings or [])
    given = {"runtime.executor": executor, "runtime.workers": workers, "runtime.data_dir": data_dir}
    overrides |= {key: value for key, value in given.items() if value is not None}
    if probe:
        overrides["probes"] = [probes.parse(text) for text in probe]
    if sink:
        overrides["sinks"] = sink
    resolved = config.resolve(experiment, overrides)
    path = out or Path("runs") / resolved.name
    done = api.run(resolved, out=path, resume=resume)
    _report(done.summary(), path, as_json)


def _report(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": str(path), **summary}))
        return
    accuracy, final = summary["accuracy"], summary["final"]
    print(
        f"finished: {summary['rounds']} rounds, accuracy {accuracy:.2%} (mean of the last 10 % of rounds; "
        f"final {final:.2%}, best {summary['best']:.2%} in round {summary['best_round']})"
    )
    print(f"run directory: {path}")


@app.command()
@guarded
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A shipped study (paper-fmnist, paper-cifar10, paper-cifar100, fidelity, ...) or a .yaml file.",
        ),
    ],
    algorithms: Annotated[str | None, typer.Option(help="Only these rows or algorithms, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, instead of the study's.")] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Also choose settings on held-out training data, and run the study with them."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The study's folder; default runs/<study>.")] = None,
    executor: Annotated[str, typer.Option(help="Who runs the cells.")] = "processes",
    workers: Annotated[int | None, typer.Option(min=1, help="Cells at a time; default one per core.")] = None,
    settings: Set = None,
    data_dir: DataDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name the cells and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Run a grid of experiments; started again, it goes on where it stopped.

    [bold]Examples[/bold]

      feddual study paper-cifar10 --seeds 10
      feddual study paper-fmnist --algorithms fedavg,feddual --tune
      feddual study mine.yaml --set training.rounds=5 --dry-run

    A cell that fails is recorded in failed/ with its error; the others go on.
    """
    from feddual import config, tuning
    from feddual import study as studies
    from feddual.progress import StudyProgress

    loaded = studies.load(name)
    rows = [part.strip() for part in (algorithms or "").split(",") if part.strip()]
    overrides = config.parse_overrides(settings or [])
    if data_dir is not None:
        overrides["runtime.data_dir"] = data_dir
    wanted = studies.cells(loaded, rows, seeds)
    attempts = tuning.trials(loaded, rows) if tune else []
    if dry_run:
        names = [cell.name for cell in [*wanted, *attempts]]
        print(json.dumps(names) if as_json else "\n".join(names))
        return
    path = out or Path("runs") / loaded.name
    runner = studies.Runner(loaded, path, workers, executor)
    runner.prepare()
    failures: dict[str, str] = {}
    batches: list[Callable[[], list[studies.Cell]]] = [lambda: wanted]
    if tune:
        batches += [
            lambda: tuning.first_trials(loaded, path, rows),
            lambda: tuning.last_trials(loaded, path, rows),
            lambda: tuning.tuned_cells(loaded, path, rows, seeds, overrides),
        ]
    for find in batches:
        batch = find()
        with StudyProgress(runner, enabled=not as_json) as shown:
            for cell, error in runner.run(batch, overrides):
                shown.ended(cell.name, error)
                failures.pop(cell.name, None)  # a trial may succeed at its second attempt
                if error is not None:
                    failures[cell.name] = error
    if tune:
        wanted += batch
    lines = studies.table([cell.name for cell in wanted], path)
    if as_json:
        print(json.dumps({"out": str(path), "rows": lines, "failed": failures}))
    else:
        table = Table("row", "seeds", "accuracy", "final", "rounds to target", "diverged")
        for line in lines:
            spread = f" ± {100 * line['std']:.2f}" if line["std"] is not None else ""
            table.add_row(
                line["row"], str(line["seeds"]), f"{100 * line['accuracy']:.2f}{spread} %",
                _cell("final", line["final"]), _cell("rounds", line["rounds_to_target"]), str(line["diverged"]),
            )  # fmt: skip
        _show(table)
        print(f"study: {path}")
    if failures:
        print(f"{len(failures)} cells failed; their errors are in {path / 'failed'}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
@guarded
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    target: Annotated[
        float | None, typer.Option(help="Accuracy to reach; by default the paper's for the data set.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: accuracy, rounds and seconds to a target."""
    from feddual import api

    frame = api.compare(*runs, target=target)
    if as_json:
        print(frame.reset_index().to_json(orient="records"))
        return
    columns = (
        "algorithm",
        "dataset",
        "partition",
        "alpha",
        "seed",
        "rounds",
        "accuracy",
        "final",
        "best",
        "target",
        "rounds_to_target",
        "seconds_to_target",
        "seconds",
    )
    table = Table("run", *(column.replace("_", " ") for column in columns))
    for name, row in frame.iterrows():
        table.add_row(str(name), *(_cell(column, row[column]) for column in columns))
    _show(table)


def _cell(column: str, value: Any) -> str:
    if value is None or value != value:
        return "–"
    if column in ("accuracy", "final", "best"):
        return f"{100 * value:.2f} %"
    if "seconds" in column:
        return f"{value:.1f}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(table: Table) -> None:
    # A pipe has no width: give it room rather than cut words.
    (output if output.is_terminal else Console(width=240)).print(table)


@app.command()
@guarded
def report(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY", help="A run directory, a study's folder, or any folder with runs.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file; default report.html in the folder.")] = None,
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

    path = reports.write(source, out)
    print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


@app.command()
@guarded
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    to: Annotated[str, typer.Option(help="keras (the final model), csv or parquet (the tables).")] = "keras",
    out: Annotated[
        Path | None, typer.Option(help="Target file (keras) or folder (csv, parquet); default beside the run.")
    ] = None,
    round_index: Annotated[
        int | None, typer.Option("--round", help="A kept checkpoint's round, instead of the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run's model or tables in a format other tools read."""
    from feddual import export as exporting

    written = exporting.export(run, to, out, round_index)
    print(json.dumps([str(path) for path in written]) if as_json else "\n".join(f"wrote {path}" for path in written))


@app.command()
@guarded
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms, or describe one."""
    from feddual import describe

    if name is not None:
        facts = describe.algorithm(name)
        print(json.dumps(facts) if as_json else describe.algorithm_text(facts))
        return
    rows = describe.algorithms()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("name", "paper", "parameters (default)", "down / up", "kept between rounds")
    for row in rows:
        table.add_row(row["name"], row["paper"], row["parameters_text"] or "–", row["communication"], row["memory"])
    _show(table)


@app.command()
@guarded
def init(
    experiment: Annotated[str, typer.Argument(help="The shipped experiment to start from.")] = "quickstart",
    as_json: Json = False,
) -> None:
    """Print a complete, commented experiment to edit: feddual init > mine.yaml."""
    from feddual import config, describe

    resolved = config.resolve(experiment)
    print(json.dumps(resolved.to_dict()) if as_json else describe.commented_yaml(resolved), end="")


@app.command()
@guarded
def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check versions, devices, data and write access, and say what to do about problems."""
    from feddual import doctor

    checks = doctor.examine(data_dir)
    if as_json:
        print(json.dumps(checks))
    else:
        table = Table("check", "found", "what to do")
        for check in checks:
            mark = (
                "[green]✓[/green]" if check["ok"] else "[yellow]![/yellow]" if check["ok"] is None else "[red]✗[/red]"
            )
            table.add_row(f"{mark} {check['name']}", check["found"], check["advice"])
        _show(table)
    if any(check["ok"] is False for check in checks):
        raise typer.Exit(1)


@data_app.command("status")
@guarded
def data_status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Which data sets are on this machine, where, and whether they are intact."""
    from feddual import doctor

    rows = doctor.data_status(data_dir)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("data", "state", "where")
    for row in rows:
        table.add_row(row["name"], row["state"], row["where"])
    _show(table)


@data_app.command("fetch")
@guarded
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="fmnist, cifar10, cifar100")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Find or download data sets, and verify them."""
    from feddual import datasets

    found = {}
    for name in names:
        if name not in datasets.DATASETS:
            raise UserError(f"{name!r} is not a data set; allowed: {', '.join(sorted(datasets.DATASETS))}")
        found[name] = datasets.DATASETS[name](data_dir).source
        if not as_json:
            print(f"{name}: verified, {found[name]}")
    if as_json:
        print(json.dumps(found))


@data_app.command("import")
@guarded
def data_import(
    path: Annotated[Path, typer.Argument(help="A file, or a folder in a usual layout (npz, idx, Keras, torchvision).")],
    name: Annotated[str, typer.Option(help="fmnist, cifar10 or cifar100")],
    as_json: Json = False,
) -> None:
    """Verify a data set you have and copy it into the user cache."""
    from feddual import datasets

    target = datasets.import_data(name, path)
    print(json.dumps({name: str(target)}) if as_json else f"{name}: verified and copied to {target}")


def _version(shown: bool) -> None:
    if shown:
        print(f"feddual {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()

"""Commands that train: `quickstart`, `run`, `study`."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from feddual.cli.shell import DataDir, Json, Set, app, cell, guarded, show
from feddual.errors import UserError
from feddual.experiment import plugins

EXPERIMENTS, STUDIES = (", ".join(plugins.shelf(name)) for name in ("experiments", "studies"))
_ON = "Continue a run from its last checkpoint, to the same bits; start it if it never began."
Resume = Annotated[bool, typer.Option("--resume", help=_ON)]
_PROBE = "Measure during training, for example gradient-norms@every=5; see `feddual list probes`. Repeatable."
Probes = Annotated[list[str] | None, typer.Option("--probe", metavar="NAME[@key=value,...]", help=_PROBE)]
_SINK = "Also report there: see `feddual list sinks`. Repeatable."
Sinks = Annotated[list[str] | None, typer.Option("--sink", help=_SINK)]
_DRAWS = "Draws of the clients, instead of the study's: a number, each with every seed; or `each`, one for each seed."
_TUNE = "Choose settings on held-out training data, and run the study with them."
Tuned = Annotated[bool, typer.Option("--tune", help=_TUNE)]


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
    from feddual.cli import quickstart
    from feddual.experiment import config

    overrides = config.parse_overrides(settings or [])
    found = quickstart.tell(out, overrides, grid=grid, workers=workers, progress=not as_json)
    print(json.dumps(found.to_dict()) if as_json else found.text())
    for name, error in found.failed.items():
        print(f"failed: {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
    if found.failed:
        raise typer.Exit(1)


@app.command()
@guarded
def run(
    experiment: Annotated[str, typer.Argument(help=f"A shipped experiment ({EXPERIMENTS}) or a .yaml file.")],
    settings: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; default runs/<name>.")] = None,
    resume: Resume = False,
    executor: Annotated[str | None, typer.Option(help="Who runs the clients; see `feddual list executors`.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; see runtime.workers.")] = None,
    probe: Probes = None,
    sink: Sinks = None,
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
    from feddual import api, probes
    from feddual.experiment import config

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
    name: Annotated[str, typer.Argument(metavar="STUDY", help=f"A shipped study ({STUDIES}) or a .yaml file.")],
    algorithms: Annotated[str | None, typer.Option(help="Only these rows or algorithms, separated by commas.")] = None,
    experiments: Annotated[str | None, typer.Option(help="Only these experiments, separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, instead of the study's.")] = None,
    draws: Annotated[str | None, typer.Option(help=_DRAWS)] = None,
    tune: Tuned = False,
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

      feddual study paper-cifar10 --seeds 2 --draws 5
      feddual study paper-tuned --tune --algorithms fedavg,feddual --experiments paper-cifar10
      feddual study mine.yaml --set training.rounds=5 --dry-run

    A cell that fails is recorded in failed/ with its error; the others go on.
    """
    from feddual.experiment import config
    from feddual.studies import grid as studies
    from feddual.studies import tuning

    loaded = studies.load(name, seeds, draws)
    rows = [part.strip() for part in (algorithms or "").split(",") if part.strip()]
    overrides = config.parse_overrides(settings or [])
    if data_dir is not None:
        overrides["runtime.data_dir"] = data_dir
    sources = [part.strip() for part in (experiments or "").split(",") if part.strip()]
    if unknown := set(sources) - set(loaded.experiments):
        known = ", ".join(loaded.experiments)
        raise UserError(f"--experiments: {', '.join(sorted(unknown))} not in the study; its experiments are {known}")

    def asked(cells: Iterable[studies.Cell]) -> list[studies.Cell]:
        return [one for one in cells if not sources or one.source in sources]

    wanted = asked(tuning.trials(loaded, rows) if tune else studies.cells(loaded, rows))
    if dry_run:
        names = [one.name for one in wanted]
        print(json.dumps(names) if as_json else "\n".join(names))
        return
    path = out or Path("runs") / loaded.name
    runner = studies.Runner(loaded, path, workers, executor)
    runner.prepare()
    failures: dict[str, str] = {}
    if tune:
        for stage in (tuning.Trials.first, tuning.Trials.last):
            found = tuning.Trials(loaded, path, rows, overrides)
            _carry_out(runner, asked(stage(found)), overrides, failures, shown=not as_json)
        wanted = asked(tuning.tuned_cells(loaded, path, rows, overrides))
    _carry_out(runner, wanted, overrides, failures, shown=not as_json)
    _tell(path, studies.table([one.name for one in wanted], path), failures, as_json)


def _carry_out(runner: Any, cells: Any, overrides: dict[str, Any], failures: dict[str, str], shown: bool) -> None:
    """Run cells, and keep the errors of those that fail."""
    from feddual.cli.progress import StudyProgress

    with StudyProgress(runner, enabled=shown) as progress:
        for ended, error in runner.run(cells, overrides):
            progress.ended(ended.name, error)
            failures.pop(ended.name, None)  # a trial may succeed at its second attempt
            if error is not None:
                failures[ended.name] = error


def _tell(path: Path, lines: list[dict[str, Any]], failures: dict[str, str], as_json: bool) -> None:
    """What a study found; exit code 1 when some of it failed."""
    if as_json:
        print(json.dumps({"out": str(path), "rows": lines, "failed": failures}))
    else:
        show(("row", "seeds", "accuracy", "final", "rounds to target", "diverged"), map(_study_row, lines))
        print(f"study: {path}")
    if failures:
        print(f"{len(failures)} cells failed; their errors are in {path / 'failed'}", file=sys.stderr)
        raise typer.Exit(1)


def _study_row(line: dict[str, Any]) -> list[str]:
    spread = f" ± {100 * line['std']:.2f}" if line["std"] is not None else ""
    accuracy = f"{100 * line['accuracy']:.2f}{spread} %"
    reached = [cell("final", line["final"]), cell("rounds", line["rounds_to_target"])]
    return [line["row"], str(line["seeds"]), accuracy, *reached, str(line["diverged"])]

"""Commands about what there is: `list`, `algorithms`, `init`, `doctor`, `data`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddual.cli.shell import DataDir, Json, answer, app, guarded
from feddual.errors import UserError
from feddual.experiment import plugins

KINDS = sorted([*plugins.KINDS, *plugins.SHELVES])
KINDS_TEXT = ", ".join(KINDS)
data_app = typer.Typer(no_args_is_help=True, help="What data is there, where it comes from, whether it is intact.")
app.add_typer(data_app, name="data")


@app.command("list")
@guarded
def list_(
    kind: Annotated[str | None, typer.Argument(help=f"One of {KINDS_TEXT}; without it, how many of each.")] = None,
    as_json: Json = False,
) -> None:
    """List what there is to name: algorithms, data sets, models, probes, ... shipped or brought by installed packages.

    [bold]Examples[/bold]

      feddual list
      feddual list partitions --json

    One of your own needs no place in a list: it is `module:name` wherever such a name is asked for.
    """
    if kind is None:
        counts = {one: len(plugins.describe(one)) for one in KINDS}
        return answer(as_json, counts, ("kind", "how many"), ([one, str(count)] for one, count in counts.items()))
    if kind not in KINDS:
        raise UserError(f"KIND: {kind!r} is unknown; {plugins.allowed(kind, KINDS)}")
    rows = plugins.describe(kind)
    answer(as_json, [{"name": name, "about": about} for name, about in rows], ("name", "what it is"), rows)


@app.command()
@guarded
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in full.")] = None, as_json: Json = False
) -> None:
    """List the algorithms, or describe one."""
    from feddual.experiment import describe

    if name is not None:
        facts = describe.algorithm(name)
        print(json.dumps(facts) if as_json else describe.algorithm_text(facts))
        return
    rows = describe.algorithms()
    columns = ("name", "paper", "parameters_text", "communication", "memory")
    headings = ("name", "paper", "parameters (default)", "down / up", "kept between rounds")
    answer(as_json, rows, headings, ([row[column] or "–" for column in columns] for row in rows))


@app.command()
@guarded
def init(
    experiment: Annotated[str, typer.Argument(help="The shipped experiment to start from.")] = "quickstart",
    as_json: Json = False,
) -> None:
    """Print a complete, commented experiment to edit: feddual init > mine.yaml."""
    from feddual.experiment import config, describe

    resolved = config.resolve(experiment)
    print(json.dumps(resolved.to_dict()) if as_json else describe.commented_yaml(resolved), end="")


@app.command()
@guarded
def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check versions, devices, data and write access, and say what to do about problems."""
    from feddual.cli import doctor

    checks = doctor.examine(data_dir)
    marks = {True: "[green]✓[/green]", None: "[yellow]![/yellow]", False: "[red]✗[/red]"}
    rows = ([f"{marks[check['ok']]} {check['name']}", check["found"], check["advice"]] for check in checks)
    answer(as_json, checks, ("check", "found", "what to do"), rows)
    if any(check["ok"] is False for check in checks):
        raise typer.Exit(1)


@data_app.command("status")
@guarded
def data_status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Which data sets are on this machine, where, and whether they are intact."""
    from feddual.cli import doctor

    rows = doctor.data_status(data_dir)
    answer(as_json, rows, ("data", "state", "where"), ([row["name"], row["state"], row["where"]] for row in rows))


@data_app.command("fetch")
@guarded
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="fmnist, cifar10, cifar100")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Find or download data sets, and verify them."""
    from feddual.data import datasets

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
    from feddual.data import datasets

    target = datasets.import_data(name, path)
    print(json.dumps({name: str(target)}) if as_json else f"{name}: verified and copied to {target}")

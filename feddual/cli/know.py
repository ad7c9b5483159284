"""Commands about what there is: `algorithms`, `init`, `doctor`, `data`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from feddual.cli.shell import DataDir, Json, app, guarded, show
from feddual.errors import UserError

data_app = typer.Typer(no_args_is_help=True, help="What data is there, where it comes from, whether it is intact.")
app.add_typer(data_app, name="data")


@app.command()
@guarded
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One algorithm in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms, or describe one."""
    from feddual.experiment import describe

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
    show(table)


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
    if as_json:
        print(json.dumps(checks))
    else:
        table = Table("check", "found", "what to do")
        for check in checks:
            mark = (
                "[green]✓[/green]" if check["ok"] else "[yellow]![/yellow]" if check["ok"] is None else "[red]✗[/red]"
            )
            table.add_row(f"{mark} {check['name']}", check["found"], check["advice"])
        show(table)
    if any(check["ok"] is False for check in checks):
        raise typer.Exit(1)


@data_app.command("status")
@guarded
def data_status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Which data sets are on this machine, where, and whether they are intact."""
    from feddual.cli import doctor

    rows = doctor.data_status(data_dir)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("data", "state", "where")
    for row in rows:
        table.add_row(row["name"], row["state"], row["where"])
    show(table)


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

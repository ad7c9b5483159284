"""`python -m diagnostics sharpness RUN [RUN ...]`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnostics.statistics import NO_INTERVAL, said
from feddual.cli.shell import Json, show
from feddual.errors import UserError

if TYPE_CHECKING:
    from diagnostics.flatness.comparison import Comparison
    from diagnostics.flatness.sharpness_result import Sharpness
    from diagnostics.subject import Subject


def sharpness(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of one experiment go together.")],
    measures: Annotated[str, typer.Option(help="Names with commas, or default: what the budget has.")] = "default",
    budget: Annotated[str, typer.Option(help="cheap, default, full, or a number of passes over the data.")] = "default",
    directions: Annotated[int, typer.Option(min=0, help="Random directions and draws; 0: as the budget says.")] = 0,
    images: Annotated[int, typer.Option(min=0, help="Samples, fixed and stratified; 0 for all.")] = 2000,
    split: Annotated[str, typer.Option(help="train (pooled over the clients) or test.")] = "train",
    match: Annotated[str, typer.Option(help="What is equal: round, (training) loss, or both with a comma.")] = "round",
    from_rounds: Annotated[
        str | None, typer.Option(metavar="ROUND[,ROUND]", help="Kept checkpoints, instead of the last that all have.")
    ] = None,
    logit_norm: Annotated[bool, typer.Option(help="Also of normalised logits, which takes confidence out.")] = False,
    clients: Annotated[
        str | None, typer.Option(help="Also on each client's data: all, or numbers with commas.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of directions and samples.")] = 0,
    tau: Annotated[float, typer.Option(min=0, help="Loss rise that defines the flatness radius.")] = 0.1,
    name: Annotated[str, typer.Option(help="Of the folders RUN/sharpness/NAME.")] = "main",
    out: Annotated[Path, typer.Option(help="Of several runs: the folder of their comparison.")] = Path(
        "sharpness-comparison"
    ),
    as_json: Json = False,
) -> None:
    """Measure how sharp runs' models are, by many measures with errors and costs, and compare them.

    [bold]Examples[/bold]

      python -m diagnostics sharpness runs/iid
      python -m diagnostics sharpness runs/iid runs/noniid --budget full --out cmp
      python -m diagnostics sharpness runs/study/*-s* --measures kappa_fn,lambda_fn,sam --logit-norm
      python -m diagnostics sharpness runs/noniid --from-rounds 30,60,180 --budget cheap
      python -m diagnostics sharpness runs/noniid --clients all --budget cheap --images 500

    Each run's numbers go to RUN/sharpness/NAME: sharpness.json with all that determines them, and CSV files. Of several
    runs there is a comparison with ratios to the first model, 95 % intervals over training seeds and draws (one seed of
    each has none), and one that holds for all measures at once; a forest plot and radial profiles lie beside it.
    Stopped, the same command goes on where it was. A table of sharpness proves little: the caveats are in
    docs/diagnostics.md.
    """
    from diagnostics.flatness import matching
    from feddual import devices

    devices.configure()
    groups = matching.group_runs(runs)
    if len({len(paths) for paths in groups.values()}) > 1:
        counts = ", ".join(f"{label} ({len(paths)})" for label, paths in groups.items())
        raise UserError(f"compare: as many training seeds of each are needed, got {counts}")
    rows = {"images": images or None, "split": split, "seed": seed}
    asked: dict[str, Any] = {
        "measures": measures if measures == "default" else [one.strip() for one in measures.split(",")],
        "budget": budget if budget.isalpha() else _number(budget), "directions": directions or None, "tau": tau,
        "progress": not as_json,
    }  # fmt: skip
    chosen = _chosen(groups, match, from_rounds, rows, name)
    told: list[dict[str, Any]] = []
    for title, cases in chosen.items():
        measured = {
            (*key[:1], variant, *key[1:]): _one(groups, key, subject, title, variant, seed, asked)
            for key, subject in cases.items()
            for variant in ("plain", "logit-normalised")[: 1 + logit_norm]
        }
        told.append(_tell(measured, groups, title, out if len(chosen) == 1 else out / title, as_json))
    if clients is not None:
        told.append(_clients(runs, clients, rows, asked, name, as_json))
    if as_json:
        typer.echo(json.dumps(told))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--budget: expected cheap, default, full or a number of passes, got {text!r}") from None


def _chosen(
    groups: Mapping[str, list[Path]], match: str, rounds: str | None, rows: Mapping[str, Any], name: str
) -> "dict[str, dict[tuple[str, str, int], Subject]]":
    """By the folder's name, the model and samples of each match, model and place of the seed."""
    from diagnostics.flatness import matching
    from feddual.records.slim import open_run

    lists = {label: list(paths) for label, paths in groups.items()}
    wanted = ["round"] if rounds is not None else [part.strip() for part in match.split(",")]
    every = matching.cases(lists, None, None, wanted, rows, {})
    cases = {(equal, label, place): one for equal, label, place, one in every}
    if rounds is None:
        return {name: cases}
    found = {}
    for text in rounds.split(","):
        if not text.strip().isdigit():
            raise UserError(f"--from-rounds: expected numbers with commas, got {rounds!r}")
        number = int(text)
        title = f"{'' if name == 'main' else name + '-'}round-{number:05d}"
        found[title] = {
            key: replace(
                one, weights=open_run(lists[key[1]][key[2]]).read_checkpoint(number).weights,
                facts=one.facts | {"round": number},
            )
            for key, one in cases.items()
        }  # fmt: skip
    return found


def _one(
    groups: Mapping[str, list[Path]], key: tuple[str, str, int], subject: "Subject", title: str, variant: str,
    seed: int, asked: Mapping[str, Any],
) -> "Sharpness":  # fmt: skip
    from diagnostics.landscape import Landscape
    from feddual.records.run_dir import RunDir

    match, label, place = key
    normalised = variant != "plain"
    level = f"-loss-{subject.facts['level']:.4g}" if match == "loss" else ""
    folder = RunDir(groups[label][place]).sharpness_path(f"{title}{level}{'-normalised' * normalised}")
    return Landscape(subject, seed=seed, logit_norm=normalised).sharpness(out=folder, **asked)


def _tell(
    measured: "Mapping[tuple[str, str, str, int], Sharpness]", groups: Mapping[str, Sequence[Path]], title: str,
    out: Path, as_json: bool,
) -> dict[str, Any]:  # fmt: skip
    """Print one run's table, or the comparison of several; what is said as JSON."""
    if len(groups) == 1 and len({key[3] for key in measured}) == 1:
        for one in measured.values():
            if not as_json:
                show(("measure", "value [95 %]", "symmetric", "of the gradient", "passes"), _table(one))
                typer.echo(one.caption())
        return {
            "name": title,
            "table": [
                {"variant": key[1], **row}
                for key, one in measured.items()
                for row in json.loads(one.table.to_json(orient="records"))
            ],
        }
    from diagnostics.flatness.compare import repetitions_of
    from diagnostics.flatness.sharpness_comparison import of_cases

    folders = {"runs": {name: [path.name for path in paths] for name, paths in groups.items()}}
    made = of_cases(measured, folders | repetitions_of(groups))
    made.save(out)
    pictures = _pictures(made, measured, out)
    if not as_json:
        among = f"all {made.differences['comparisons'].max()} at once"
        show(("equal", "logits", "measure", "model", "mean [95 %]", "to the first [95 %]", among), _rows(made))
        if made.summary["seeds"].iloc[0] == 1:
            typer.echo(f"{NO_INTERVAL.capitalize()}: how the next training would come out cannot be told from one.")
        typer.echo(f"comparison: {out}")
    records = json.loads(made.differences.to_json(orient="records"))
    return {"name": title, "out": str(out), "differences": records, "pictures": [str(path) for path in pictures]}


def _table(one: "Sharpness") -> Iterator[list[str]]:
    from figures.charts.flatness import label

    for row in one.table.to_dict("records"):
        value = said(row["value"], row["low"], row["high"], bound=">" if row["censored"] else "")
        more = [said(row[key], float("nan"), float("nan")) for key in ("symmetric", "first_order")]
        yield [label(row["measure"], row["level"]), value, *more, f"{row['passes']:.0f}"]


def _rows(found: "Comparison") -> Iterator[list[str]]:
    from diagnostics.flatness.comparison import all_at_once, said_of, said_of_effect
    from figures.charts.flatness import named

    table = found.against_first
    first = table["model"].iloc[0]
    for row in table.to_dict("records"):
        sign = "× " if row["effect_scale"] == "ratio" else "+ "
        gap = [sign + said_of_effect(row), all_at_once(row)] if row["model"] != first else ["", ""]
        logits = "as they are" if row["variant"] == "plain" else "normalised"
        yield [row["match"], logits, named(row["quantity"]), row["model"], said_of(row), *gap]


def _pictures(made: "Comparison", measured: "Mapping[Any, Sharpness]", out: Path) -> list[Path]:
    from figures.charts.captions import save
    from figures.charts.flatness import forest
    from figures.charts.lines import plot_profiles

    text = "\n".join(f"{', '.join(map(str, key))}: {one.caption()}" for key, one in measured.items())
    about = "Ratios to the first model: geometric means over training seeds and draws, with their 95 % intervals."
    paths = [save(forest(made), out / "forest.png", f"{about}\n{text}")]
    if len(made.profiles):
        about = "Symmetric loss rise over the radius: mean, 95 % interval (dark), band of 10 to 90 % (light)."
        paths.append(save(plot_profiles(made.profiles, made.settings["tau"]), out / "profiles.png", f"{about}\n{text}"))
    return paths


def _clients(
    runs: Sequence[Path], wanted: str, rows: Mapping[str, Any], asked: Mapping[str, Any], name: str, as_json: bool
) -> dict[str, Any]:
    """Of each run, its sharpness on each client's data, and how that differs from the pooled data's."""
    from diagnostics.flatness.clients import flatness_discrepancy
    from feddual.records.run_dir import RunDir
    from figures.charts.flatness import label

    if rows["split"] != "train":
        raise UserError("--clients: clients hold training data; use --split train")
    if wanted != "all" and not all(part.strip().isdigit() for part in wanted.split(",")):
        raise UserError(f"--clients: expected all, or numbers with commas, got {wanted!r}")
    chosen = None if wanted == "all" else [int(part) for part in wanted.split(",")]
    about: dict[str, Any] = {key: rows[key] for key in ("images", "seed")}
    told: dict[str, Any] = {}
    for run in runs:
        out = RunDir(run).sharpness_path(f"{name}-clients")
        found = flatness_discrepancy(run, clients=chosen, out=out, **about, **asked)
        told[str(run)] = json.loads(found.summary.to_json(orient="records"))
        if not as_json:
            typer.echo(f"{run}: pooled data against {found.summary['number'].max()} clients' own")
            show(("measure", "pooled", "mean of the clients", "difference [95 %]", "sd over clients"), [
                [label(row["measure"], row["level"]), f"{row['pooled']:.3g}", f"{row['clients']:.3g}",
                 said(row["discrepancy"], row["low"], row["high"]), f"{row['sd']:.2g}"]
                for row in found.summary.to_dict("records")
            ])  # fmt: skip
    return {"clients": told}

"""Two or more models on one scale: the same noise, each model's own filters, the same samples, intervals.

`measures.py` says what is read off each line. Cross-entropy's curvature shrinks with confidence alone; therefore models
are compared at equal rounds, at equal training loss, and with normalised logits.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from diagnostics.flatness import matching, measures
from diagnostics.flatness.comparison import Comparison, check
from diagnostics.landscape import loss_lines, loss_surface
from diagnostics.surfaces.directions import Norm
from diagnostics.surfaces.losses import Loss
from diagnostics.surfaces.objective import BatchNorm
from diagnostics.surfaces.results import Lines, Surface
from feddual.errors import UserError
from feddual.functional.layout import fingerprint, read
from feddual.records import measurements as store

Case = tuple[str, str, int, Any]  # match, model, place of the seed, what is measured


def compare_models(
    models: Mapping[str, Any],
    x: Any = None,
    y: Any = None,
    *,
    directions: int = 5,
    matches: Sequence[str] = ("round", "loss"),
    logit_norm: bool = True,
    images: int | None = 2000,
    split: str = "train",
    seed: int = 0,
    grid: int | str | None = 25,
    tau: float = measures.TAU,
    norm: Norm = "filter",
    bn: BatchNorm = "frozen",
    loss: Loss = None,
    batch_size: int = 500,
    out: str | Path | None = None,
    workers: int = 1,
    executor: str = "processes",
    progress: bool = True,
) -> Comparison:
    """Compare models.

    Args:
        models: By name: a run, a Keras model (then with `x` and `y`), or a list of either, one per training seed; the
            lists pair up in their order.
        x: Inputs, for Keras models.
        y: Targets.
        directions: How many random directions; five or more.
        matches: Of runs: `round` (the largest round all have kept) and `loss` (of each the kept checkpoint whose loss
            on the samples is nearest to the largest of the runs' last ones).
        logit_norm: Also with each sample's logits normalised, which takes confidence out; only with cross-entropy.
        images: Samples.
        split: Of runs: train or test.
        seed: Of directions and samples.
        grid: Points of one surface per model, for the picture; None for none.
        tau: Of the flatness radius.
        norm: Of the directions: filter, layer or model.
        bn: Moving statistics: frozen or recalibrate; see `loss_surface`.
        loss: None for cross-entropy from logits, `mse`, or a function; see `loss_surface`.
        batch_size: Samples at a time.
        out: A folder for tables and measurements; the same call continues, another comparison is refused.
        workers: Processes.
        executor: What runs them.
        progress: Show bars.

    Returns:
        A `Comparison`: tables of values, means and paired differences with intervals.

    Raises:
        UserError: When there are fewer than two models or directions, or `out` holds another comparison.
    """
    groups = _groups(models, directions)
    evaluation, rows = {"bn": bn, "loss": loss, "batch_size": batch_size}, {"images": images, "split": split}
    cases = matching.cases(groups, x, y, matches, rows | {"seed": seed}, evaluation)
    settings = {
        "models": {name: len(group) for name, group in groups.items()},
        "directions": directions, **rows, "seed": seed, "tau": tau, "step": measures.STEP,
        "norm": norm, "bn": bn, "batch_size": batch_size, "logit_norm": logit_norm, "grid": grid,
        "loss": loss if loss is None or isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
    }  # fmt: skip
    identity = settings | _hashes(cases)
    options = evaluation | {"norm": norm, "seed": seed, "workers": workers, "executor": executor, "progress": progress}
    folder = None if out is None else Path(out)
    with nullcontext() if folder is None else store.Folder(folder).locked():
        if folder is not None:
            check(folder, identity)
        lines, surfaces = _measured(cases, folder, directions, logit_norm, grid, options)
        bundles = {key: [one] for key, one in lines.items()}
        made = Comparison.of(bundles, settings | _paths(groups), identity, measures.QUANTITIES)
        if folder is not None:
            made.write(folder)
    made.surfaces = surfaces
    made.lines = {(key[0], *key[2:]): one for key, one in lines.items() if key[1] == "plain"}
    return made


def _groups(models: Mapping[str, Any], directions: int) -> dict[str, list[Any]]:
    """The models as lists over training seeds."""
    if len(models) < 2:
        raise UserError(f"compare: at least two models are needed, got {len(models)}")
    if directions < 2:
        raise UserError(f"directions: intervals need at least 2, got {directions}")
    groups = {name: list(m) if isinstance(m, (list, tuple)) else [m] for name, m in models.items()}
    counts = {len(group) for group in groups.values()}
    if len(counts) > 1 or 0 in counts:
        raise UserError(f"compare: as many training seeds of each are needed, got {[len(g) for g in groups.values()]}")
    return groups


def _paths(groups: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The folders of the runs, by which a report knows them."""
    paths = {name: [getattr(one, "path", one) for one in group] for name, group in groups.items()}
    known = all(isinstance(path, (str, Path)) for several in paths.values() for path in several)
    return {"runs": {name: [Path(path).name for path in several] for name, several in paths.items()}} if known else {}


def _hashes(cases: Sequence[Case]) -> dict[str, Any]:
    """Of weights and samples."""
    weights = {
        f"{match}, {name}, {place}": fingerprint(read(one.model) if one.weights is None else one.weights)
        for match, name, place, one in cases
    }
    return {"weights": weights, "data": sorted({fingerprint(one.x, one.y) for *_, one in cases})}


def _measured(
    cases: Sequence[Case], folder: Path | None, directions: int, logit_norm: bool, grid: Any, options: dict[str, Any]
) -> tuple[dict[tuple[str, str, str, int], Lines], dict[str, Surface]]:
    """Lines by match, variant, model and place of the seed; surfaces by model."""
    alphas = sorted({sign * r for r in (*measures.RADII, measures.STEP, *measures.RISES) for sign in (1, -1)})
    lines, surfaces = {}, {}
    for match, name, place, chosen in cases:
        for variant in ("plain", "logit-normalised") if logit_norm else ("plain",):
            target = folder and folder / "lines" / f"{match}-{variant}" / f"{name}-{place}"
            lines[match, variant, name, place] = loss_lines(
                chosen, count=directions, alphas=alphas, logit_norm=variant != "plain", out=target, **options
            )
        if grid is not None and place == 0 and match == cases[0][0]:
            surfaces[name] = loss_surface(chosen, grid=grid, out=folder and folder / "surfaces" / name, **options)
    return lines, surfaces

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
from diagnostics.flatness.footing import Case
from diagnostics.landscape import loss_lines, loss_surface
from diagnostics.surfaces.directions import Norm
from diagnostics.surfaces.losses import Loss
from diagnostics.surfaces.objective import BatchNorm
from diagnostics.surfaces.results import Lines, Surface
from feddual.api import Run
from feddual.errors import UserError
from feddual.functional.layout import fingerprint, read
from feddual.records import measurements as store
from feddual.records.identity import replicate

Chosen = tuple[str, str, int, Any]  # match, model, place of the seed, what is measured


def compare_models(
    models: Mapping[str, Any],
    x: Any = None,
    y: Any = None,
    *,
    directions: int = 5,
    matches: str | Sequence[str] | None = None,
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
        matches: Of runs, what is equal: `round` (the largest round all have kept), `loss` (of each the kept checkpoint
            whose training loss is nearest to the largest of the runs' last ones, and within a tenth of it), or a list
            of both. None for both, the second with a warning left out where no checkpoints are near.
        logit_norm: Also with each sample's logits normalised, which takes confidence out; only with cross-entropy.
        images: Samples.
        split: Of runs: train or test.
        seed: Of directions and samples.
        grid: Points of one surface per model and case, for the pictures; None for none.
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
        UserError: When there are fewer than two models or directions, `out` holds another comparison, the images are
            not the same for all, or a run has no checkpoint at the training loss that was asked for.

    Example:
        >>> import diagnostics, keras
        >>> models = {name: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for name in ("a", "b")}
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> found = diagnostics.compare_models(models, x, y, directions=2, grid=None, progress=False)
        >>> found.differences.query("variant == 'plain'")["quantity"].tolist()
        ['kappa', 'r_tau', 'rise_1', 'rise_0.5', 'rise_0.25']
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
        lines, planes = _measured(cases, folder, directions, logit_norm, grid, options)
        bundles = {key: [one] for key, one in lines.items()}
        about = settings | _paths(groups) | repetitions_of(groups)
        made = Comparison.of(bundles, about, identity, measures.QUANTITIES)
        if folder is not None:
            made.write(folder)
    made.planes = planes
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


def repetitions_of(groups: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The draw and seed of each place, if all models are runs that pair up."""
    groups = {
        name: [Run(one) if isinstance(one, (str, Path)) else one for one in group] for name, group in groups.items()
    }
    if not all(isinstance(one, Run) for group in groups.values() for one in group):
        return {}
    found = {tuple(replicate(one.config.to_dict()) for one in group) for group in groups.values()}
    unique = len(found) == 1 and len(set(next(iter(found)))) == len(next(iter(found)))
    return {"repetitions": [list(one) for one in next(iter(found))]} if unique else {}


def _hashes(cases: Sequence[Chosen]) -> dict[str, Any]:
    """Of weights and samples."""
    weights = {
        f"{match}, {name}, {place}": fingerprint(read(one.model) if one.weights is None else one.weights)
        for match, name, place, one in cases
    }
    return {"weights": weights, "data": sorted({fingerprint(one.x, one.y) for *_, one in cases})}


def _measured(
    cases: Sequence[Chosen], folder: Path | None, directions: int, logit_norm: bool, grid: Any, options: dict[str, Any]
) -> tuple[dict[tuple[str, str, str, int], Lines], dict[Case, dict[str, Surface]]]:
    """Lines by match, variant, model and place of the seed; surfaces of the first seed by match, variant and model."""
    alphas = sorted({sign * r for r in (*measures.RADII, measures.STEP, *measures.RISES) for sign in (1, -1)})
    lines: dict[tuple[str, str, str, int], Lines] = {}
    planes: dict[Case, dict[str, Surface]] = {}
    for match, name, place, chosen in cases:
        for variant in ("plain", "logit-normalised") if logit_norm else ("plain",):
            about, folder_name = options | {"logit_norm": variant != "plain"}, f"{match}-{variant}"
            target = folder and folder / "lines" / folder_name / f"{name}-{place}"
            lines[match, variant, name, place] = loss_lines(
                chosen, count=directions, alphas=alphas, out=target, **about
            )
            if grid is not None and place == 0:
                target = folder and folder / "surfaces" / folder_name / name
                found = loss_surface(chosen, grid=grid, out=target, **about)
                planes.setdefault((match, variant), {})[name] = found
    return lines, planes

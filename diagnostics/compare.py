"""Two or more models on one scale: the same noise, each model's own filters, the same samples, intervals.

Of every direction d (filter-normalised, |d| as the filters) these are read off the line through the model:

    kappa         (L(+h d) + L(-h d) - 2 L(0)) / h²: the curvature a random surface shows; its mean is tr(S H S)
    delta(r)      (L(+r d) + L(-r d)) / 2 - L(0): symmetric, since a federated model is no stationary point
    rise_1, ...   delta at r = 1, 0.5, 0.25
    r_tau         the largest r up to which delta stays at or below tau

Independently trained networks are not aligned, so one direction's difference means little: intervals come from a
hierarchical bootstrap over training seeds and directions of the paired differences. Cross-entropy's curvature shrinks
with confidence alone; therefore models are compared at equal rounds, at equal training loss, and with normalised
logits. A small number is a flat model, not a better one.
"""

import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics import samples
from diagnostics.bootstrap import hierarchical
from diagnostics.results import Lines, Surface
from diagnostics.surface import loss_lines, loss_surface
from feddual.api import Run
from feddual.errors import UserError
from feddual.run_dir import RunDir, atomic_write
from feddual.weights import Layout, fingerprint, frozen_weights, read

if TYPE_CHECKING:
    import pandas as pd

STEP = 0.05  # h of kappa: far above rounding, well below where the surface bends
RADII = tuple(np.round(np.linspace(0, 1, 11), 10).tolist())
RISES = (1.0, 0.5, 0.25)
TAU = 0.1
QUANTITIES = ("kappa", "r_tau", *(f"rise_{r:g}" for r in RISES))


@dataclass
class Comparison:
    """Tables and what they were read from."""

    values: "pd.DataFrame"  # a row per model, seed, direction, match and variant
    profiles: "pd.DataFrame"  # delta(r) with bands
    summary: "pd.DataFrame"  # each model's mean with its interval
    differences: "pd.DataFrame"  # of each pair of models, paired, with intervals
    lines: dict[tuple[str, str, int], Lines]  # by match, model, place of the seed
    surfaces: dict[str, Surface]  # of the first seed, at the first match
    settings: dict[str, Any]

    def save(self, path: Path) -> Path:
        """CSV files and one JSON with everything."""
        tables = {name: getattr(self, name) for name in ("values", "profiles", "summary", "differences")}
        for name, table in tables.items():
            atomic_write(path / f"{name}.csv", table.to_csv(index=False).encode())
        whole = {"settings": self.settings} | {
            name: json.loads(table.to_json(orient="records", double_precision=15)) for name, table in tables.items()
        }
        atomic_write(path / "comparison.json", (json.dumps(whole, indent=1) + "\n").encode())
        return path

    def _repr_html_(self) -> str:
        return self.summary.to_html(index=False) + self.differences.to_html(index=False)


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
    tau: float = TAU,
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
        logit_norm: Also with each sample's logits normalised, which takes confidence out.
        images: Samples.
        split: Of runs: train or test.
        seed: Of directions and samples.
        grid: Points of one surface per model, for the picture; None for none.
        tau: Of the flatness radius.
        out: A folder for tables and measurements; the same call continues.
        workers: Processes.
        executor: What runs them.
        progress: Show bars.
    """
    import pandas as pd

    if len(models) < 2:
        raise UserError(f"compare: at least two models are needed, got {len(models)}")
    if directions < 2:
        raise UserError(f"directions: intervals need at least 2, got {directions}")
    groups = {name: list(m) if isinstance(m, (list, tuple)) else [m] for name, m in models.items()}
    counts = {len(group) for group in groups.values()}
    if len(counts) > 1 or 0 in counts:
        raise UserError(f"compare: as many training seeds of each are needed, got {[len(g) for g in groups.values()]}")
    folder = None if out is None else Path(out)
    cases = _cases(groups, x, y, matches, images, split, seed)
    common: dict[str, Any] = {"seed": seed, "workers": workers, "executor": executor, "progress": progress}
    alphas = sorted({sign * r for r in (*RADII, STEP, *RISES) for sign in (1, -1)})
    rows, lines, surfaces = [], {}, {}
    for match, name, place, chosen in cases:
        for variant in ("plain", "logit-normalised") if logit_norm else ("plain",):
            target = None if folder is None else folder / "lines" / f"{match}-{variant}" / f"{name}-{place}"
            bundle = loss_lines(
                chosen, count=directions, alphas=alphas, logit_norm=variant != "plain", out=target, **common
            )
            if variant == "plain":
                lines[match, name, place] = bundle
            rows += _rows(bundle, tau, {"match": match, "variant": variant, "model": name, "seed": place})
        if grid is not None and place == 0 and match == cases[0][0]:
            target = None if folder is None else folder / "surfaces" / name
            surfaces[name] = loss_surface(chosen, grid=grid, out=target, **common)
    values = pd.DataFrame(rows)
    settings = {
        "models": {name: len(group) for name, group in groups.items()},
        "directions": directions, "images": images, "split": split, "seed": seed, "tau": tau, "step": STEP,
    }  # fmt: skip
    made = Comparison(values, profiles(lines), summarise(values), paired_differences(values), lines, surfaces, settings)
    if folder is not None:
        made.save(folder)
    return made


# --- which weights --------------------------------------------------------------------------------------------------


def _cases(
    groups: Mapping[str, list[Any]], x: Any, y: Any, matches: Sequence[str], images: int | None, split: str, seed: int
) -> list[tuple[str, str, int, samples.Samples]]:
    """(match, model, place of the seed, samples) of all that is measured."""
    everything = [item for group in groups.values() for item in group]
    if not all(isinstance(item, (str, Path, Run)) for item in everything):
        return [
            ("given", name, place, samples.resolve(item, x, y, None, split, images, seed))
            for name, group in groups.items()
            for place, item in enumerate(group)
        ]
    unknown = set(matches) - {"round", "loss"}
    if unknown or not matches:
        raise UserError(f"matches: expected round, loss or both, got {list(matches)}")
    runs = {
        (name, place): item if isinstance(item, Run) else Run(item)
        for name, group in groups.items()
        for place, item in enumerate(group)
    }
    base = _shared({key: samples.of_run(run, None, split, images, seed) for key, run in runs.items()})
    found = []
    for match in matches:
        rounds = _same_round(runs) if match == "round" else _same_loss(runs, base)
        for (name, place), run in runs.items():
            checkpoint = RunDir(run.path).read_checkpoint(rounds[name, place])
            chosen = base[name, place]
            facts = chosen.facts | {"round": checkpoint.round_index, "match": match}
            found.append((match, name, place, replace(chosen, facts=facts, weights=checkpoint.weights)))
    return found


def _shared(several: dict[Any, samples.Samples]) -> dict[Any, samples.Samples]:
    """The same samples with one model where architectures and frozen weights agree: compiled once for all."""
    first: dict[str, samples.Samples] = {}
    for key, one in several.items():
        what = fingerprint(one.x, one.y, *map(np.asarray, frozen_weights(one.model)))
        shared = first.setdefault(json.dumps([what, Layout.of_model(one.model).to_list()]), one)
        several[key] = replace(shared, facts=one.facts, weights=read(one.model))
    return several


def _same_round(runs: Mapping[Any, Run]) -> dict[Any, int]:
    common = set.intersection(*(set(run.checkpoints) for run in runs.values()))
    if common:
        return dict.fromkeys(runs, max(common))
    last = {key: run.checkpoints[-1] for key, run in runs.items()}
    warnings.warn(f"the runs have kept no round in common; comparing rounds {sorted(last.values())}", stacklevel=4)
    return last


def _same_loss(runs: Mapping[Any, Run], base: Mapping[Any, samples.Samples]) -> dict[Any, int]:
    """Of each run the kept checkpoint whose loss is nearest to the largest of the last ones."""
    from diagnostics.objective import Objective

    losses: dict[Any, dict[int, float]] = {}
    for key, run in runs.items():
        one = base[key]
        if "loss" not in one.cache:
            one.cache["loss"] = Objective(one.model, one.x, one.y, features=one.features)
        objective = one.cache["loss"]
        losses[key] = {
            kept: float(objective(RunDir(run.path).read_checkpoint(kept).weights).loss) for kept in run.checkpoints
        }
    target = max(by_round[max(by_round)] for by_round in losses.values())
    return {key: min(by_round, key=lambda kept: abs(by_round[kept] - target)) for key, by_round in losses.items()}


# --- numbers --------------------------------------------------------------------------------------------------------


def symmetric_rise(lines: Lines, radius: float) -> np.ndarray:
    """delta(r) of each direction, shape (directions,)."""
    up, down, zero = (int(np.abs(lines.alphas - a).argmin()) for a in (radius, -radius, 0.0))
    return (lines.loss[:, up] + lines.loss[:, down]) / 2 - lines.loss[:, zero]


def flatness_radius(radii: np.ndarray, rises: np.ndarray, tau: float = TAU) -> float:
    """The largest r up to which delta <= tau, between radii by straight lines; the last radius if it never exceeds."""
    beyond = np.flatnonzero(~(rises <= tau))
    if not beyond.size:
        return float(radii[-1])
    first = int(beyond[0])
    if first == 0:
        return 0.0
    low, high = rises[first - 1], rises[first]
    share = (tau - low) / (high - low) if np.isfinite(high) else 0.0
    return float(radii[first - 1] + share * (radii[first] - radii[first - 1]))


def _rows(lines: Lines, tau: float, labels: dict[str, Any]) -> list[dict[str, Any]]:
    facts = lines.meta["facts"]
    labels = labels | {key: facts.get(key) for key in ("round", "loss", "accuracy", "gradient_norm")}
    radii = np.array(RADII)
    rises = np.stack([symmetric_rise(lines, r) for r in radii], 1)
    kappa = 2 * symmetric_rise(lines, STEP) / STEP**2
    return [
        labels
        | {"direction": k, "kappa": kappa[k], "r_tau": flatness_radius(radii, rises[k], tau)}
        | {f"rise_{r:g}": symmetric_rise(lines, r)[k] for r in RISES}
        for k in range(len(rises))
    ]


def profiles(lines: Mapping[tuple[str, str, int], Lines]) -> "pd.DataFrame":
    """delta(r) over all seeds and directions of a model: mean, median, the band of 10 to 90 %, an interval."""
    import pandas as pd

    rows = []
    for match, name in dict.fromkeys((match, name) for match, name, _ in lines):
        bundles = [bundle for key, bundle in lines.items() if key[:2] == (match, name)]
        for radius in RADII:
            rises = np.stack([symmetric_rise(bundle, radius) for bundle in bundles])
            low, high = hierarchical(rises)
            rows.append(
                {
                    "match": match, "model": name, "radius": radius, "mean": rises.mean(),
                    "median": float(np.median(rises)), "p10": float(np.quantile(rises, 0.1)),
                    "p90": float(np.quantile(rises, 0.9)), "low": low, "high": high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def summarise(values: "pd.DataFrame") -> "pd.DataFrame":
    """Each model's mean of each quantity, with its interval."""
    import pandas as pd

    rows = []
    for (match, variant, model), part in values.groupby(["match", "variant", "model"], sort=False):
        for quantity in QUANTITIES:
            table = _table(part, quantity)
            low, high = hierarchical(table)
            rows.append(
                {"match": match, "variant": variant, "quantity": quantity, "model": model, "mean": table.mean()}
                | {"low": low, "high": high, "seeds": len(table), "directions": table.shape[1]}
            )
    return pd.DataFrame(rows)


def paired_differences(values: "pd.DataFrame") -> "pd.DataFrame":
    """The second model minus the first, for each pair of models and each quantity; seeds and directions paired."""
    import pandas as pd

    rows = []
    for (match, variant), part in values.groupby(["match", "variant"], sort=False):
        for first, second in itertools.combinations(part["model"].unique(), 2):
            for quantity in QUANTITIES:
                one, two = (_table(part[part["model"] == name], quantity) for name in (first, second))
                low, high = hierarchical(two - one)
                rows.append(
                    {"match": match, "variant": variant, "quantity": quantity, "first": first, "second": second}
                    | {"difference": float((two - one).mean()), "low": low, "high": high}
                    | {"excludes_zero": bool(low > 0 or high < 0), "seeds": len(one), "directions": one.shape[1]}
                )
    return pd.DataFrame(rows)


def _table(part: "pd.DataFrame", quantity: str) -> np.ndarray:
    """Values as (seeds, directions)."""
    return part.pivot(index="seed", columns="direction", values=quantity).to_numpy(float)


def group_runs(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ in their seed alone, together, ordered by seed; named by what tells the groups apart."""
    configs = {path: Run(path).config.to_dict() for path in paths}
    keys = {}
    for path, config in configs.items():
        free = ("seed", "name", "runtime", "checkpoint", "probes", "sinks")
        keys[path] = json.dumps({key: value for key, value in config.items() if key not in free}, sort_keys=True)
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(keys[path], []).append(path)
    named: dict[str, list[Path]] = {}
    for members in groups.values():
        ordered = sorted(members, key=lambda path: configs[path]["seed"])
        name = members[0].name
        while name in named:
            name += "'"
        named[name] = ordered
    if len(named) == 1:  # seeds of one experiment: compare them with each other
        named = {f"{path.parent.name}/{path.name}" if paths.count(path) > 1 else path.name: [path] for path in paths}
    return named

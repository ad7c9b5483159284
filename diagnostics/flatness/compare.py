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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.flatness import matching
from diagnostics.landscape import loss_lines, loss_surface
from diagnostics.statistics import hierarchical
from diagnostics.surfaces.directions import Norm
from diagnostics.surfaces.objective import BatchNorm, Loss
from diagnostics.surfaces.results import Lines, Surface
from feddual.errors import UserError
from feddual.functional.layout import fingerprint, read
from feddual.records import measurements as store
from feddual.records.run_dir import atomic_write

if TYPE_CHECKING:
    import pandas as pd

STEP = 0.05  # h of kappa: far above rounding, well below where the surface bends
RADII = tuple(np.round(np.linspace(0, 1, 11), 10).tolist())
RISES = (1.0, 0.5, 0.25)
TAU = 0.1
QUANTITIES = ("kappa", "r_tau", *(f"rise_{r:g}" for r in RISES))
FILE = "comparison.json"


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
    identity: dict[str, Any]  # all that determines the numbers: settings, hashes of weights and samples

    def save(self, path: Path) -> Path:
        """CSV files and one JSON with everything, in a folder that is new or holds the same comparison."""
        with store.Folder(path).locked():
            _check(path, self.identity)
            self._write(path)
        return path

    def _write(self, path: Path) -> None:
        tables = {name: getattr(self, name) for name in ("values", "profiles", "summary", "differences")}
        for name, table in tables.items():
            atomic_write(path / f"{name}.csv", table.to_csv(index=False).encode())
        whole = {"settings": self.settings, "identity": self.identity} | {
            name: json.loads(table.to_json(orient="records", double_precision=15)) for name, table in tables.items()
        }
        atomic_write(path / FILE, (json.dumps(whole, indent=1) + "\n").encode())

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
    """
    if len(models) < 2:
        raise UserError(f"compare: at least two models are needed, got {len(models)}")
    if directions < 2:
        raise UserError(f"directions: intervals need at least 2, got {directions}")
    groups = {name: list(m) if isinstance(m, (list, tuple)) else [m] for name, m in models.items()}
    counts = {len(group) for group in groups.values()}
    if len(counts) > 1 or 0 in counts:
        raise UserError(f"compare: as many training seeds of each are needed, got {[len(g) for g in groups.values()]}")
    evaluation = {"bn": bn, "loss": loss, "batch_size": batch_size}
    cases = matching.cases(groups, x, y, matches, images, split, seed, evaluation)
    settings = {
        "models": {name: len(group) for name, group in groups.items()},
        "directions": directions, "images": images, "split": split, "seed": seed, "tau": tau, "step": STEP,
        "norm": norm, "bn": bn, "batch_size": batch_size, "logit_norm": logit_norm, "grid": grid,
        "loss": loss if loss is None or isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
    }  # fmt: skip
    weights = {
        f"{match}, {name}, {place}": fingerprint(read(one.model) if one.weights is None else one.weights)
        for match, name, place, one in cases
    }
    identity = settings | {"weights": weights, "data": sorted({fingerprint(one.x, one.y) for *_, one in cases})}
    options = evaluation | {
        "norm": norm, "seed": seed, "workers": workers, "executor": executor, "progress": progress
    }  # fmt: skip
    variants = ("plain", "logit-normalised") if logit_norm else ("plain",)
    folder = None if out is None else store.Folder(Path(out))
    with folder.locked() if folder is not None else nullcontext():
        if folder is not None:
            _check(folder.path, identity)
        lines, surfaces = _measured(cases, folder and folder.path, directions, variants, grid, options)
        made = _tables(lines, surfaces, settings, identity)
        if folder is not None:
            made._write(folder.path)
    return made


def _check(path: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another comparison."""
    try:
        found = json.loads((path / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path / FILE}: not readable ({error}); choose another folder") from error
    store.refuse_other(path, "comparison", found.get("identity", {}), identity)


def _measured(
    cases: Sequence[tuple[str, str, int, Any]],
    folder: Path | None,
    directions: int,
    variants: Sequence[str],
    grid: int | str | None,
    options: dict[str, Any],
) -> tuple[dict[tuple[str, str, str, int], Lines], dict[str, Surface]]:
    """Lines by match, variant, model and place of the seed; surfaces by model."""
    alphas = sorted({sign * r for r in (*RADII, STEP, *RISES) for sign in (1, -1)})
    lines, surfaces = {}, {}
    for match, name, place, chosen in cases:
        for variant in variants:
            target = folder and folder / "lines" / f"{match}-{variant}" / f"{name}-{place}"
            lines[match, variant, name, place] = loss_lines(
                chosen, count=directions, alphas=alphas, logit_norm=variant != "plain", out=target, **options
            )
        if grid is not None and place == 0 and match == cases[0][0]:
            surfaces[name] = loss_surface(chosen, grid=grid, out=folder and folder / "surfaces" / name, **options)
    return lines, surfaces


def _tables(
    lines: Mapping[tuple[str, str, str, int], Lines],
    surfaces: dict[str, Surface],
    settings: dict[str, Any],
    identity: dict[str, Any],
) -> Comparison:
    import pandas as pd

    rows = []
    for (match, variant, name, place), bundle in lines.items():
        rows += _rows(bundle, settings["tau"], {"match": match, "variant": variant, "model": name, "seed": place})
    values = pd.DataFrame(rows)
    plain = {(match, name, place): one for (match, variant, name, place), one in lines.items() if variant == "plain"}
    tables = profiles(plain), summarise(values), paired_differences(values)
    return Comparison(values, *tables, plain, surfaces, settings, identity)


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
    """delta(r) over all seeds and directions of a model: mean, median, the band of 10 to 90 %, an interval.

    With the loss at the centre, mean over seeds, and the split of the samples, which a picture must name.
    """
    import pandas as pd

    rows = []
    for match, name in dict.fromkeys((match, name) for match, name, _ in lines):
        bundles = [bundle for key, bundle in lines.items() if key[:2] == (match, name)]
        facts = [bundle.meta["facts"] for bundle in bundles]
        loss = float(np.mean([one["loss"] for one in facts]))
        for radius in RADII:
            rises = np.stack([symmetric_rise(bundle, radius) for bundle in bundles])
            low, high = hierarchical(rises)
            rows.append(
                {
                    "match": match, "model": name, "radius": radius, "mean": rises.mean(),
                    "median": float(np.median(rises)), "p10": float(np.quantile(rises, 0.1)),
                    "p90": float(np.quantile(rises, 0.9)), "low": low, "high": high, "loss": loss,
                    "split": facts[0].get("split"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def summarise(values: "pd.DataFrame") -> "pd.DataFrame":
    """Each model's mean of each quantity, with its interval, and the loss at the model itself."""
    import pandas as pd

    rows = []
    for (match, variant, model), part in values.groupby(["match", "variant", "model"], sort=False):
        for quantity in QUANTITIES:
            table = _table(part, quantity)
            low, high = hierarchical(table)
            rows.append(
                {"match": match, "variant": variant, "quantity": quantity, "model": model, "mean": table.mean()}
                | {"low": low, "high": high, "loss": part["loss"].mean()}
                | {"seeds": len(table), "directions": table.shape[1]}
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

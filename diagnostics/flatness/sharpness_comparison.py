"""Sharpness of several models in tables with intervals, as `comparison.py` makes them of lines and surfaces.

A quantity is a measure at a step size, `sam@0.05`. What is drawn has the same draws for all models, so intervals are
over training seeds and draws at once; the rest has one number per seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.flatness.averages import RISE
from diagnostics.flatness.comparison import ENDS, Comparison, Reading, interval, paired, summarise
from diagnostics.flatness.footing import Case
from diagnostics.flatness.sharpness_result import Sharpness
from diagnostics.statistics import METHOD
from feddual.errors import UserError
from feddual.records.identity import Replicate

Key = tuple[str, str, str, int]  # match, variant, model, place of the seed
SAME = ("data", "bn", "settings", "layers", "include")  # of the identity: without them nothing compares


def quantity(measure: str, level: float) -> str:
    """`sam@0.05`; the measure's name where it has no step size."""
    return measure if np.isnan(level) else f"{measure}@{level:g}"


def compare_sharpness(models: Mapping[str, Sharpness | Sequence[Sharpness]]) -> Comparison:
    """Compare models by their measured sharpness.

    Args:
        models: By name a measurement, or a list of them, one per training seed; the lists pair up in their order.

    Returns:
        Tables of values, means and paired ratios with intervals over training seeds and draws.

    Raises:
        UserError: When the lists do not pair up, or were measured on other data or in other ways.

    Example:
        >>> import diagnostics, keras
        >>> models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for _ in "ab"]
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> a, b = (diagnostics.Landscape(one, x, y).sharpness(["sam"], progress=False) for one in models)
        >>> diagnostics.compare_sharpness({"a": a, "b": b}).differences["quantity"].tolist()
        ['gradient_norm', 'sam@0.05']
    """
    groups = {name: [one] if isinstance(one, Sharpness) else list(one) for name, one in models.items()}
    keyed = {("given", "plain", name, place): one for name, group in groups.items() for place, one in enumerate(group)}
    return of_cases(keyed, {})


def of_cases(measured: Mapping[Key, Sharpness], settings: Mapping[str, Any]) -> Comparison:
    """The tables of what was measured, by case, model and seed; `settings` are what else there is to know.

    Raises:
        UserError: As `compare_sharpness` does.
    """
    counts: dict[str, int] = {}
    for _, _, model, place in measured:
        counts[model] = max(counts.get(model, 0), place + 1)
    if len(counts) < 2 or len(set(counts.values())) > 1:
        said = ", ".join(f"{name} ({count})" for name, count in counts.items())
        raise UserError(
            f"compare: as many training seeds of each of two or more models are needed, got {said or 'none'}"
        )
    _check(measured)
    labels: list[dict[str, Any]] = [
        dict(zip(("match", "variant", "model", "seed"), key, strict=True)) for key in measured
    ]
    every = list(zip(labels, measured.values(), strict=True))
    values = pd.concat([one.values.assign(**label) for label, one in every], ignore_index=True)
    values["quantity"] = [quantity(*pair) for pair in zip(values["measure"], values["level"], strict=True)]
    keys = ("round", "loss", "accuracy", "gradient_norm")
    models = pd.DataFrame([label | {key: one.meta["facts"].get(key) for key in keys} for label, one in every])
    readings = [one for case in _cases(measured) for one in _readings(values, models, case)]
    told = {"models": counts, "from": "sharpness", "tau": every[0][1].meta["identity"]["settings"]["tau"], **settings}
    identity = {"from": "sharpness", "intervals": METHOD, "of": [one.meta["identity"] for _, one in every]}
    known = settings.get("repetitions") or [(0, place) for place in range(next(iter(counts.values())))]
    repetitions = [Replicate(*one) for one in known]
    split = every[0][1].meta["facts"].get("split")
    rows = [row for case in _cases(measured) for row in _profile(values, models, case, repetitions)]
    profiles = pd.DataFrame(rows).assign(split=split) if rows else pd.DataFrame()
    summary, differences = summarise(readings, repetitions), paired(readings, repetitions)
    return Comparison(values, models, profiles, summary, differences, told, identity)


def _cases(measured: Mapping[Key, Sharpness]) -> list[Case]:
    return list(dict.fromkeys((match, variant) for match, variant, _, _ in measured))


def _check(measured: Mapping[Key, Sharpness]) -> None:
    """Refuse what was measured in several ways; within a case also on several losses."""
    for case in [None, *_cases(measured)]:
        ours = {key: one for key, one in measured.items() if case is None or key[:2] == case}
        (first, reference), *others = ours.items()
        for name, one in others:
            for key in SAME if case is None else ("loss",):
                found, asked = one.meta["identity"][key], reference.meta["identity"][key]
                if found != asked and not (key == "data" and _same_rows(one, reference)):
                    raise UserError(
                        "compare: sharpness is compared on one set of samples and measured in one way; "
                        f"{first[2]} and {name[2]} differ in {key}: {str(asked)[:60]} and {str(found)[:60]}"
                    )


def _same_rows(one: Sharpness, other: Sharpness) -> bool:
    """Whether inputs differ between kinds of models only: the same examples of the same data set."""
    keys = [[found.meta["facts"].get(key) for key in ("dataset", "rows", "images")] for found in (one, other)]
    return None not in keys[0] and keys[0] == keys[1]


def _of(frame: pd.DataFrame, case: Case) -> pd.DataFrame:
    return frame[(frame["match"] == case[0]) & (frame["variant"] == case[1])]


def _tables(part: pd.DataFrame) -> dict[str, np.ndarray]:
    """By model, values as (seeds, draws)."""
    return {
        str(model): rows.pivot(index="seed", columns="draw", values="value").to_numpy(float)
        for model, rows in part.groupby("model", sort=False)
    }


def _readings(values: pd.DataFrame, models: pd.DataFrame, case: Case) -> Iterator[Reading]:
    centres, mine = _of(models, case), _of(values, case)
    losses = {str(model): float(loss) for model, loss in centres.groupby("model")["loss"].mean().items()}
    number = centres.groupby("model").size().iloc[0]
    for name, part in mine[mine["measure"] != RISE].groupby("quantity", sort=False):
        tables = _tables(part)
        shapes = {table.shape for table in tables.values()}
        if len(tables) < len(losses) or len(shapes) > 1 or shapes.pop()[0] < number:
            continue  # not measured of all
        censored = {str(model): int(rows["censored"].sum()) for model, rows in part.groupby("model")}
        yield Reading(*case, str(name), tables, losses, censored)


def _profile(
    values: pd.DataFrame, models: pd.DataFrame, case: Case, repetitions: Sequence[Replicate]
) -> Iterator[dict[str, Any]]:
    """Delta(r) over all seeds and directions of a model, as of plain models `comparison.profiles` has it."""
    if case[1] != "plain":
        return
    centres, mine = _of(models, case), _of(values, case)
    rises = mine[mine["measure"] == RISE]
    log = not (rises[rises["level"] > 0]["value"] <= 0).any()
    for model, part in rises.groupby("model", sort=False):
        loss = float(centres[centres["model"] == model]["loss"].mean())
        for radius in sorted(set(part["level"])):
            rows = part[part["level"] == radius]
            (table,) = _tables(rows).values()
            means = dict(zip(ENDS, interval(repetitions, table, log and radius > 0).floats(), strict=True))
            spread = dict(zip(("p10", "median", "p90"), np.quantile(table, [0.1, 0.5, 0.9]).tolist(), strict=True))
            about = {"match": case[0], "model": model, "radius": radius, "seeds": len(table)}
            yield {**about, **means, **spread, "loss": loss}

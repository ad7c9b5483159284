"""Gradient norms of several runs beside each other, from the tables that the probe recorded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from diagnostics import tables
from diagnostics.gradients.definitions import definition
from diagnostics.statistics import LEVEL, METHOD, repeated, simultaneous
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.records.identity import Replicate

Frames = Sequence[pd.DataFrame]  # what the probe recorded of several runs
BySeed = Mapping[Replicate, pd.DataFrame]
Asked = Mapping[tuple[str, str], Sequence[str]]  # definitions by label and normalisation
COLUMNS = ("definition", "layer", "ratio", "low", "high", "all_low", "all_high", "comparisons", "runs", "rounds")


def per_round(frame: pd.DataFrame, name: str, normalisation: str = "rms") -> pd.DataFrame:
    """A definition's value in each round (rows) and layer (columns, in the model's order): the mean over clients.

    Args:
        frame: What the probe recorded.
        name: A definition, by name or letter.
        normalisation: If it is a norm.
    """
    chosen = definition(name)
    how = normalisation if chosen.is_norm else "raw"
    rows = frame[(frame["definition"] == chosen.name) & (frame["normalisation"] == how)]
    per_client = rows[rows["client"].notna()]
    rows = per_client if len(per_client) else rows
    layers = list(dict.fromkeys(rows["layer"]))
    return rows.pivot_table("value", "round", "layer", aggfunc="mean")[layers] if len(rows) else rows[[]]


def bands(frames: Frames, name: str, normalisation: str = "rms") -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The geometric mean over seeds, and the lowest and highest seed, by layer and round that all seeds have.

    What can be negative has the arithmetic mean.
    """
    like, values = _common([per_round(frame, name, normalisation) for frame in frames])
    signed = definition(name).is_signed
    middle = values.mean(0) if signed else np.exp(np.log(values).mean(0))
    low, high = values.min(0), values.max(0)
    return pd.DataFrame(middle, like.index, like.columns), low, high


def log_ratios(base: Frames, other: Frames, name: str, normalisation: str = "rms") -> tuple[pd.DataFrame, np.ndarray]:
    """log2 of other / base by layer (rows) and round, mean over seeds, and where all seeds agree on the sign."""
    pairs = [
        (per_round(two, name, normalisation) / per_round(one, name, normalisation)).apply(np.log2)
        for one, two in zip(base, other, strict=True)
    ]
    like, logs = _common([pair.dropna(how="all") for pair in pairs])
    agree = np.abs(np.sign(logs).sum(0)) == len(pairs)
    return pd.DataFrame(logs.mean(0), like.index, like.columns).T, agree.T


def _common(several: list[pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """The first table in the rounds that all have, and all of them stacked, shape (tables, rounds, layers)."""
    rounds = sorted(set.intersection(*(set(table.index) for table in several)))
    return several[0].loc[rounds], np.stack([table.loc[rounds].to_numpy() for table in several])


def ratios(
    base: Frames, other: Frames, names: Sequence[str], normalisation: str = "rms",
    which: Sequence[Replicate] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """How many times larger a quantity is in other runs than in the base runs, per definition and layer.

    The ratio is the geometric mean over rounds and runs; of what can be negative, rounds are averaged before. The 95 %
    interval is over pairs of runs (equal seeds, paired in the given order), each a mean over its rounds: rounds of one
    run share its luck, so one pair has no interval. The second interval is one that holds for all layers
    of a definition at once.

    Args:
        base: Frames of the runs to compare with, one for each seed.
        other: Frames of the other runs, in the same order of seeds.
        names: Definitions.
        normalisation: For those that are norms.
        which: Draw of the clients and seed of each pair; by default one draw.

    Returns:
        Columns definition, layer, ratio, low and high, all_low and all_high (at once), comparisons (how many, the
        layers), runs, rounds (those that every run has and in which both values are positive).
    """
    if len(base) != len(other):
        raise UserError(f"runs are compared in pairs of equal seeds, got {len(base)} against {len(other)}")
    which = [Replicate(0, place) for place in range(len(base))] if which is None else which
    lines = []
    for name in names:
        logs = [_log_ratio(one, two, name, normalisation) for one, two in zip(base, other, strict=True)]
        if not logs or not len(logs[0].columns) or not len(logs[0]):
            continue
        layers = list(logs[0].columns)
        means = np.array([frame[layers].mean() for frame in logs])
        rounds = np.min([frame[layers].notna().sum() for frame in logs], 0)
        single, every = (repeated(which, means[:, None], at).exp() for at in (LEVEL, simultaneous(len(layers))))
        for layer, *ends, count in zip(layers, *single, every.low, every.high, rounds, strict=True):
            lines.append((definition(name).name, layer, *ends, len(layers), len(logs), count))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _log_ratio(one: pd.DataFrame, two: pd.DataFrame, name: str, normalisation: str) -> pd.DataFrame:
    """Log of two / one, in the rounds and layers that both have; what is not finite is NaN.

    What can be negative is its mean over the rounds, in each of them: leaving out negative rounds would be a bias.
    """
    first, second = per_round(one, name, normalisation), per_round(two, name, normalisation)
    common = first.index.intersection(second.index)
    layers = [layer for layer in first.columns if layer in second.columns]
    first, second = first.loc[common, layers], second.loc[common, layers]
    if definition(name).is_signed:
        first, second = (0 * table + table.mean() for table in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = second.apply(np.log) - first.apply(np.log)
    return difference.replace([np.inf, -np.inf], np.nan)


def level(runs: Frames, names: Sequence[str], normalisation: str = "rms") -> pd.DataFrame:
    """The geometric mean of each quantity over rounds and runs, with an interval as in `ratios`; column `mean`."""
    ones = [frame.assign(value=1.0) for frame in runs]
    return ratios(ones, runs, names, normalisation).rename(columns={"ratio": "mean"})


def ratios_by_seed(base: BySeed, other: BySeed, names: Sequence[str], normalisation: str = "rms") -> pd.DataFrame:
    """`ratios` of runs paired by draw and seed; those without a partner are left out, no rows when none has one."""
    which = sorted(set(base) & set(other))
    return ratios([base[one] for one in which], [other[one] for one in which], names, normalisation, which)


def ratio_tables(
    groups: Mapping[str, BySeed], base: str, asked: Asked, file: Path | None = None, write: bool = False
) -> pd.DataFrame:
    """`ratios` of several groups of runs to one of them, from a file if it has those of these runs.

    Args:
        groups: By label, the runs' tables by seed.
        base: The label of what they are compared with.
        asked: Definitions by label and normalisation.
        file: Where the table is, or goes.
        write: Whether it goes there.

    Returns:
        The columns of `ratios`, after `against` (the label) and `normalisation`; no rows without pairs.
    """
    hashes = {
        label: {str(seed): fingerprint(frame["value"].to_numpy()) for seed, frame in group.items()}
        for label, group in groups.items()
    }
    identity = {"base": base, "asked": [[*key, *names] for key, names in asked.items()], "runs": hashes}
    identity["intervals"] = METHOD
    if kept := tables.stored(file, identity):
        return tables.frame(kept["ratios"])
    parts = []
    for (label, how), names in asked.items():
        table = ratios_by_seed(groups.get(base, {}), groups.get(label, {}), names, how)
        table.insert(0, "against", label)
        table.insert(1, "normalisation", how)
        parts.append(table)
    made = pd.concat(parts, ignore_index=True)
    if write and file is not None and len(made):
        tables.write(file, identity, {"ratios": made})
    return made

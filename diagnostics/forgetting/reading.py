"""Tables of recorded forgetting as pictures show them: by class and round, and over rounds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from diagnostics.forgetting.measures import Reliability

CHANGES = {"forgotten": "in local training", "lost": "in averaging", "whole": "in the whole round"}
STAGES = {
    "accuracy_before": "before", "accuracy_after": "after local training", "accuracy_aggregated": "after averaging"
}  # fmt: skip


def by_class(frames: Sequence[pd.DataFrame], name: str) -> pd.DataFrame:
    """A quantity of classes over rounds: the mean over a round's clients, then over runs, of the rounds that all have.

    Args:
        frames: Of `ForgettingProbe.read`, one per run.
        name: One of `QUANTITIES` that has classes, or `whole`: what was forgotten and lost together.

    Returns:
        A row per class, a column per round; empty where nothing was recorded.
    """
    if name == "whole":
        return by_class(frames, "accuracy_before") - by_class(frames, "accuracy_aggregated")
    tables = []
    for frame in frames:
        rows = frame[(frame["quantity"] == name) & frame["class"].notna()].astype({"class": int})
        tables.append(rows.groupby(["class", "round"])["value"].mean().unstack())
    rounds = sorted(set.intersection(*(set(table.columns) for table in tables))) if tables else []
    classes = sorted(set().union(*(table.index for table in tables)))
    stack = [table.reindex(index=classes, columns=rounds).to_numpy(float) for table in tables]
    values = np.mean(stack, axis=0) if stack else np.empty((0, 0))
    return pd.DataFrame(values, pd.Index(classes, name="class"), pd.Index(rounds, name="round"))


def over_rounds(frames: Sequence[pd.DataFrame], name: str) -> pd.DataFrame:
    """A quantity over rounds: in each round the mean over clients and classes that have a value.

    Args:
        frames: Of `ForgettingProbe.read`, one per run.
        name: One of `QUANTITIES`.

    Returns:
        A row per round that all runs have, a column per run.
    """
    columns = [frame[frame["quantity"] == name].groupby("round")["value"].mean() for frame in frames]
    return pd.concat(columns, axis=1, join="inner", keys=range(len(columns))) if columns else pd.DataFrame()


def pooled(tables: Sequence[pd.DataFrame], round_index: int | None = None) -> tuple[pd.DataFrame, float]:
    """The bins of several runs together, and the mean of their calibration errors.

    Args:
        tables: Of `ForgettingProbe.reliability` or of `Reliability.table`, one per run.
        round_index: Which round; by default the last of each.

    Returns:
        Columns from, to, count, confidence, accuracy (of examples in all runs), and the error.
    """
    chosen = []
    for table in tables:
        if "round" in table:
            table = table[table["round"] == (table["round"].max() if round_index is None else round_index)]
        if len(table):
            chosen.append(table.reset_index(drop=True))
    if not chosen:
        return pd.DataFrame(columns=["from", "to", "count", "confidence", "accuracy"]), np.nan
    columns = ("count", "confidence", "accuracy")
    stacks = {name: np.stack([one[name].to_numpy(float) for one in chosen]) for name in columns}
    errors = [Reliability(*(stacks[name][place] for name in columns)).ece for place in range(len(chosen))]
    count = stacks["count"].sum(0)
    means = {
        name: np.divide(
            np.nan_to_num(stacks[name] * stacks["count"]).sum(0),
            count,
            out=np.full(len(count), np.nan),
            where=count > 0,
        )
        for name in columns[1:]
    }
    return chosen[0][["from", "to"]].assign(count=count, **means), float(np.mean(errors))

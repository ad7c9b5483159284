"""Barriers between models, in tables with intervals; and those of several runs beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import tables
from diagnostics.merging.measuring import WHOLE
from diagnostics.statistics import LEVEL, Interval, over_pairs, over_repetitions, over_runs
from feddual.errors import UserError
from feddual.records import measurements as store
from feddual.records.identity import Replicate
from feddual.records.run_dir import atomic_write

FILE = "barriers.json"
TABLES = ("models", "lines", "values", "exchanges")
READ = ("barrier", "rise", "error_barrier", "error_rise")  # what is compared, of lines
CHANGES = ("loss", "error")  # and of models with one layer exchanged


@dataclass
class Barriers:
    """Tables of what was measured; `diagnostics.barriers` makes it.

    Attributes:
        models: A row per model and order of units: loss and error on the pooled data, and where there are clients on
            their own (own_loss, own_error), share in the average, apart (distance from the global model, relative).
        lines: The points of every line: between, first, second, order, layer, end, t, loss, error.
        values: What is read off each line: barrier, at, middle, rise, the same of the error (error_...), apart.
        exchanges: Of each client and layer, how loss and error change: `way` "averaged" is the client's model with that
            layer from the average, "kept" the average with that layer from the client; `data` is pooled or own.
        settings: What was asked for, and facts.
        identity: All that determines the numbers.
    """

    models: pd.DataFrame
    lines: pd.DataFrame
    values: pd.DataFrame
    exchanges: pd.DataFrame
    settings: dict[str, Any] = field(repr=False)
    identity: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: str | Path) -> "Barriers":
        """From its folder.

        Args:
            path: The folder.

        Returns:
            What was measured.

        Raises:
            UserError: When there is nothing in it.
        """
        found = tables.read(Path(path) / FILE)
        if found is None:
            raise UserError(f"{path}: no barriers here (no {FILE}); `python -m diagnostics barriers RUN` measures them")
        models, lines, values, exchanges = (tables.frame(found.get(name, [])) for name in TABLES)
        return cls(models, lines, values, exchanges, found["settings"], found["identity"])

    def save(self, path: str | Path) -> Path:
        """One JSON file with everything, and the tables as CSV.

        Args:
            path: A folder, new or of the same measurement.

        Returns:
            The folder.

        Raises:
            UserError: When the folder holds another measurement.
        """
        path = Path(path)
        check(path, self.identity)
        with store.Folder(path).locked():
            check(path, self.identity)
            every = {name: getattr(self, name) for name in TABLES}
            for name, table in every.items():
                atomic_write(path / f"{name}.csv", table.to_csv(index=False).encode())
            tables.write(path / FILE, self.identity, every, settings=self.settings)
        return path

    @property
    def replicate(self) -> Replicate:
        """The draw of the clients and the seed of the run it is of."""
        return Replicate(*self.settings.get("replicate", (0, 0)))

    @property
    def layers(self) -> list[str]:
        """The layers that were measured one by one, in the model's order; empty without."""
        there = [layer for table in (self.values, self.exchanges) for layer in table.get("layer", [])]
        return [layer for layer in dict.fromkeys(there) if layer != WHOLE]

    @property
    def summary(self) -> pd.DataFrame:
        """Means with intervals over the clients of this round (of models, over these).

        Pairs that share a client are not independent: their interval is a jackknife over clients. What another seed or
        round would give cannot be told from this; `compare_barriers` has intervals over runs.
        """
        return pd.DataFrame(
            [{**key, "mean": ends[0], "low": ends[1], "high": ends[2], "count": len(values)}
             for key, values in _read(self) for ends in [_interval(values).floats()]]
        )  # fmt: skip

    def plot(self, what: str = "matrix", **options: Any) -> Any:
        """A picture.

        Args:
            what: matrix (of all pairs), layers (with intervals) or lines.
            **options: Of the chart.

        Returns:
            A matplotlib figure.
        """
        from figures.charts import merging

        charts = {"matrix": merging.matrix, "layers": merging.by_layer, "lines": merging.lines}
        if what not in charts:
            raise UserError(f"what: {what!r} is unknown; allowed: {', '.join(charts)}")
        return charts[what](self, **options).matplotlib()

    def caption(self) -> str:
        """The facts in a sentence or two."""
        said = self.settings
        images = f"{said['images']} samples ({said['split']})"
        lines = f"{len(said['t'])} points from one model to the other, moving statistics: {said['bn']}"
        return f"{said['of']}; cross-entropy and error on {images}, {lines}. Weights {self.identity['weights'][:8]}."


def check(path: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another measurement."""
    if (found := tables.read(path / FILE)) is not None:
        store.refuse_other(path, "measurement", found.get("identity", {}), identity)


Values = dict[tuple[Any, Any], float]


def _read(found: Barriers) -> list[tuple[dict[str, str], Values]]:
    """What there are means of: quantity, between, order, layer; and by pair (or by client and None) the numbers."""
    rows: list[tuple[dict[str, str], Values]] = []
    if len(found.values):
        for (between, order, layer), part in found.values.groupby(["between", "order", "layer"], sort=False):
            both = part.groupby(["first", "second"], sort=False)[list(READ)].mean()  # over the two ends of a layer
            for quantity in READ:
                key = {"quantity": quantity, "between": str(between), "order": str(order), "layer": str(layer)}
                rows.append((key, dict(zip(both.index, both[quantity].astype(float), strict=True))))
    if len(found.exchanges):
        for (way, data, layer), part in found.exchanges.groupby(["way", "data", "layer"], sort=False):
            for quantity in CHANGES:
                key = {"quantity": f"{quantity} change, {way}", "between": str(data)}
                key |= {"order": "as trained", "layer": str(layer)}
                values = dict(zip(part["client"], part[quantity].astype(float), strict=True))
                rows.append((key, {(client, None): value for client, value in values.items()}))
    return rows


def _interval(values: Values) -> Interval:
    """Over pairs of members, or over members where each stands with the same other."""
    if len({second for _, second in values}) == 1:
        return over_runs(np.array(list(values.values())))
    return over_pairs(values)


def compare_barriers(groups: Mapping[str, Sequence[Barriers]], level: float = LEVEL) -> pd.DataFrame:
    """Several experiments beside each other, with intervals over their runs.

    Each run counts with its mean over clients or pairs (several rounds of a run with their mean), and the interval is
    over seeds and draws of the clients. Differences are paired by these.

    Args:
        groups: By name, what was measured of an experiment's runs; the first is what the others are compared with.
        level: Of the intervals.

    Returns:
        Columns quantity, between, order, layer, experiment, mean, low, high, runs; and to the first experiment
        difference, difference_low, difference_high, pairs. One run has no interval.
    """
    means: dict[tuple[str, ...], dict[str, dict[Replicate, float]]] = {}
    for name, several in groups.items():
        gathered: dict[tuple[str, ...], dict[Replicate, list[float]]] = {}
        for found in several:
            for key, values in _read(found):
                here = gathered.setdefault(tuple(key.values()), {})
                here.setdefault(found.replicate, []).append(float(np.mean(list(values.values()))))
        for cell, by_run in gathered.items():
            means.setdefault(cell, {})[name] = {which: float(np.mean(v)) for which, v in by_run.items()}
    first = next(iter(groups))
    rows: list[dict[str, Any]] = []
    for cell, by_name in means.items():
        base = by_name.get(first, {})
        for name, runs in by_name.items():
            gaps = {} if name == first else {which: runs[which] - base[which] for which in runs if which in base}
            row: dict[str, Any] = dict(zip(("quantity", "between", "order", "layer"), cell, strict=True))
            row |= {"experiment": name, **_ends("", runs, level), "runs": len(runs)}
            rows.append(row | _ends("difference_", gaps, level) | {"pairs": len(gaps)})
    return pd.DataFrame(rows).rename(columns={"difference_mean": "difference"})


def _ends(prefix: str, values: Mapping[Replicate, float], level: float) -> dict[str, float]:
    ends = over_repetitions(values, level).floats()
    return {f"{prefix}{name}": value for name, value in zip(("mean", "low", "high"), ends, strict=True)}

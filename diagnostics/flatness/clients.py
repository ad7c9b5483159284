"""Is a flat model flat for every client? The same measures on the pooled data and on each client's.

What is flat on the pooled data need not be flat on any client's, and the other way round; methods that look for flat
minima on the clients count on it. Here both are numbers:

    discrepancy = measure(pooled data) - mean over clients of measure(D_k), at the global model

with the spread over clients, and, where the clients' own models are given, the same numbers at those.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.flatness.sharpness_result import Sharpness
from diagnostics.landscape import Landscape
from diagnostics.statistics import over_runs
from diagnostics.subject import clients_of
from feddual.api import Run
from feddual.errors import UserError
from feddual.records.run_dir import atomic_write

POOLED = "pooled"
Data = Mapping[int, tuple[Any, Any]]  # by client, inputs and targets


@dataclass
class Discrepancy:
    """Sharpness on the pooled data and on the clients'; `flatness_discrepancy` makes it.

    Attributes:
        table: A row per model (`at`: global, or own: the client's own), data (`on`: pooled, or own: the client's),
            client (NaN for pooled data at the global model), measure and step size.
        summary: A row per measure and step size: at the global model `pooled`, the `clients`' mean, `discrepancy`, its
            95 % interval over clients, their standard deviation and extremes; with own models also `own`, their mean
            on their own data, and `own_pooled`, on the pooled data.
        measured: Each measurement, by (at, on, client).
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    measured: dict[tuple[str, str, int | None], Sharpness]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write both tables as CSV.

        Args:
            path: The folder.

        Returns:
            The folder.
        """
        for name in ("table", "summary"):
            atomic_write(Path(path) / f"{name}.csv", getattr(self, name).to_csv(index=False).encode())
        return Path(path)

    def _repr_html_(self) -> str:
        return self.summary.to_html(index=False)


def flatness_discrepancy(
    source: Any,
    data: Data | None = None,
    *,
    clients: Sequence[int] | None = None,
    weights: Mapping[int, np.ndarray] | None = None,
    round: int | None = None,
    images: int | None = 2000,
    seed: int = 0,
    measures: str | Sequence[str] = "default",
    budget: str | float = "cheap",
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **more: Any,
) -> Discrepancy:
    """Measure the sharpness of a federated model on the pooled data and on each client's.

    Args:
        source: A run, a run's folder, or a Keras model (then with `data`).
        data: By client, inputs and targets.
        clients: Which; all by default.
        weights: The clients' own models as vectors, by client; then they are measured too.
        round: Of a run: a kept checkpoint, the last by default.
        images: Samples of the pooled data, and at most of a client's.
        seed: Of samples and directions.
        measures: As for `Landscape.sharpness`.
        budget: The same, for each measurement.
        out: A folder to keep the measurements in; the same call continues.
        progress: Show bars.
        **more: Other arguments of `Landscape` (`loss`, `logit_norm`, `batch_size`) or of its `sharpness`.

    Returns:
        Tables, and each measurement.

    Raises:
        UserError: For fewer than two clients, or one that there is not.

    Example:
        >>> import diagnostics, keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> data = {k: (keras.random.normal((30, 4)).numpy(), [0, 1, 2] * 10) for k in range(3)}
        >>> found = diagnostics.flatness_discrepancy(model, data, measures=["kappa_fn"], progress=False)
        >>> found.summary["measure"].tolist()
        ['gradient_norm', 'kappa_fn']
    """
    about: dict[str, Any] = {"images": images, "seed": seed}
    about |= {name: more.pop(name) for name in ("loss", "logit_norm", "batch_size", "bn") if name in more}
    how = more | {"measures": measures, "budget": budget, "progress": progress}
    chosen = _clients(source, data, clients)
    if unknown := sorted(set(weights or {}) - set(chosen)):
        raise UserError(f"weights: of client {unknown[0]}, which is not among the clients {chosen}")
    measured = {}
    for key, landscape in _landscapes(source, data, chosen, weights or {}, round, about):
        at, on, client = key
        folder = None if out is None else Path(out) / (f"{at}-{on}" + ("" if client is None else f"-{client}"))
        measured[key] = landscape.sharpness(out=folder, **how)
    table = pd.concat(
        [one.table.assign(at=at, on=on, client=client) for (at, on, client), one in measured.items()],
        ignore_index=True,
    )
    made = Discrepancy(table, _summary(table), measured)
    if out is not None:
        made.save(out)
    return made


def _clients(source: Any, data: Data | None, clients: Sequence[int] | None) -> list[int]:
    if isinstance(source, (str, Path, Run)):
        if data is not None:
            raise UserError("data: a run brings its own data")
        known = clients_of(source if isinstance(source, Run) else Run(source))
    else:
        known = list(data or {})
    chosen = known if clients is None else list(clients)
    if unknown := [client for client in chosen if client not in known]:
        raise UserError(f"clients: there is no client {unknown[0]}; there are {len(known)}")
    if len(chosen) < 2:
        raise UserError(f"clients: at least two are needed, got {len(chosen)}")
    return chosen


def _landscapes(
    source: Any, data: Data | None, clients: Sequence[int], own: Mapping[int, np.ndarray],
    round_index: int | None, about: dict[str, Any],
) -> Iterator[tuple[tuple[str, str, int | None], Landscape]]:  # fmt: skip
    """Each model on each data; clients with own models are also looked at on the pooled data."""
    if data is None:
        pooled = Landscape(source, round=round_index, **about)
    else:
        parts = [list(map(np.asarray, data[client])) for client in clients]
        whole = tuple(np.concatenate(side) for side in zip(*parts, strict=True))
        pooled = Landscape(source, *whole, **about)
    yield ("global", POOLED, None), pooled
    for client in clients:
        given = (None, None) if data is None else data[client]
        here = about if data is not None else about | {"round": round_index, "client": client}
        local = Landscape(source, *given, **here)
        yield ("global", "own", client), local
        if client in own:
            options = {key: value for key, value in about.items() if key != "images"}
            yield ("own", "own", client), Landscape(local.subject, weights=own[client], **options)
            yield ("own", POOLED, client), Landscape(pooled.subject, weights=own[client], **options)


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (measure, level), part in table.groupby(["measure", "level"], sort=False, dropna=False):
        by = {key: group["value"].to_numpy(float) for key, group in part.groupby(["at", "on"])}
        pooled, local = float(by["global", POOLED][0]), by["global", "own"]
        mean, low, high = over_runs(pooled - local).floats()
        row = {
            "measure": measure, "level": level, "pooled": pooled, "clients": float(local.mean()),
            "discrepancy": mean, "low": low, "high": high, "sd": float(local.std(ddof=1)),
            "smallest": float(local.min()), "largest": float(local.max()), "number": len(local),
        }  # fmt: skip
        for name, key in (("own", ("own", "own")), ("own_pooled", ("own", POOLED))):
            if key in by:
                row[name] = float(by[key].mean())
        rows.append(row)
    return pd.DataFrame(rows)

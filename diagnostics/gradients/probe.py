"""Per-layer gradient norms during training.

By-products of training (drift, drift diversity, norms of the steps) are recorded in every round. The definitions that
need passes of their own are measured on a schedule, each client on a fixed set of at most `samples` of its examples.
Only what a figure needs leaves the client: a number per layer, and on scheduled rounds what its definitions send.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.gradients.contract import AtClient, Definition, Gathered, OfRound, probe_set
from diagnostics.gradients.definitions import DEFINITIONS, definition
from diagnostics.gradients.layers import NORMALISATIONS, Groups, normalise
from diagnostics.tables import short
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.probes import LOG, ClientView, Probe, RoundView, Schedule
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_probe

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("round", "client", "layer", "definition", "normalisation", "value")
BY_PRODUCTS = [name for name, one in DEFINITIONS.items() if one.is_by_product]
RANDOM = "random"  # how halves are drawn; logs that do not say so have them in the order of the client's rows
OF_ALL = {"drift": "drift_pooled"}  # under these names the values of all clients stood in older logs
SCHEDULED = tuple(name for name, one in DEFINITIONS.items() if one.by_default and not one.is_by_product)


class GradientNormProbe(Probe):
    """Gradient norms of each layer, under the names of `diagnostics.gradients.DEFINITIONS`.

    `run.probe("gradient-norms")` is the table it recorded.

    Example:
        >>> import diagnostics, feddual, tempfile
        >>> small = {"training.rounds": 1, "training.clients_per_round": 2, "training.local_epochs": 1}
        >>> probe = diagnostics.GradientNormProbe(every=1, definitions=["A", "drift"], samples=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = feddual.run("quickstart", small, out=f"{folder}/run", probes=[probe], progress=False)
        ...     table = run.probe("gradient-norms")
        >>> list(table.columns)
        ['round', 'client', 'layer', 'definition', 'normalisation', 'value']
        >>> bool((table.query("definition == 'client_at_global' and normalisation == 'raw'")["value"] > 0).all())
        True
    """

    name = "gradient-norms"

    def __init__(
        self,
        every: int = 0,
        rounds: Sequence[int] = (),
        log_spaced: int = 0,
        definitions: Sequence[str] | str = SCHEDULED,
        samples: int = 256,
        server_samples: int = 1000,
        split: bool = False,
        tensorboard: bool = False,
        live: bool = False,
    ):
        """Say what is measured, and when.

        Args:
            every: Rounds between scheduled measurements; 0 for by-products only, unless another schedule is given.
            rounds: The rounds of scheduled measurements.
            log_spaced: About so many scheduled measurements, spread over the logarithm of the rounds.
            definitions: The scheduled ones, by name or letter, or `module:name` for one of your own; add `cka` for the
                similarity of representations.
            samples: Most examples of a client's probe set, the same ones every time.
            server_samples: Examples of the server's test set for `server`.
            split: Kernel and bias apart.
            tensorboard: Also write scalars and histograms over clients to events/.
            live: In a notebook, a figure that follows the training.
        """
        super().__init__(every=1)
        if samples < 2 or server_samples < 1:
            raise UserError(
                f"probes: gradient-norms: samples must be at least 2 and server_samples 1, got {samples} and "
                f"{server_samples}"
            )
        self.scheduled = Schedule(max(every, 1), tuple(rounds), log_spaced) if every or rounds or log_spaced else None
        asked = [definitions] if isinstance(definitions, str) else definitions
        # Names travel to workers, functions of a user's file might not.
        known = {item: definition(item).name for item in asked}  # an unknown one is refused before training
        self.definitions = {item if ":" in item else name for item, name in known.items()} - {*BY_PRODUCTS}
        self.samples, self.server_samples, self.split = samples, server_samples, split
        self.tensorboard, self.live = tensorboard, live
        self.step_norms = "variables" if split else "layers"

    # --- at the client

    def client_measure(self, view: ClientView) -> dict[str, Any]:
        """Values of each layer by definition; on scheduled rounds also what the host needs for those of all clients.

        Args:
            view: The client after its training.

        Returns:
            `values` by definition; on scheduled rounds `sent`, what definitions need at the host, and `local_weights`.
        """
        due = self.scheduled is not None and self.scheduled.due(view.round_index, view.num_rounds)
        asked = _found(self.definitions) if due else []
        client = AtClient(view, Groups(view.layout, self.split), self.samples)
        found: dict[str, Any] = {"values": {}}
        for one in _at_clients(asked):
            value = one.at_client(client) if one.at_client else None
            if value is not None:
                found["values"][one.name] = value
        if due:
            found["sent"] = {one.sends.__name__: one.sends for one in asked if one.sends}
            found["sent"] = {name: send(client) for name, send in found["sent"].items()}
            if any(one.at_local for one in asked):
                found["local_weights"] = client.groups.norms(client.trained.weights)
        return found

    # --- at the host

    def accumulate(self, acc: Any, result: Any, weights: np.ndarray, share: float) -> Gathered:
        """Sums over the clients' moves.

        Args:
            acc: Those of the clients before; None at first.
            result: A client's.
            weights: The global weights it began with.
            share: Its weight in the average, before it is normalised.

        Returns:
            The sums with this client.
        """
        return (acc or Gathered()).plus(result.client_id, share, weights.astype(np.float64) - result.weights)

    def start(self, view: RoundView) -> None:
        """Write what all rounds share, and forget what will be measured again.

        Args:
            view: The run before its next round.
        """
        groups = Groups(view.layout, self.split)
        subsets = (probe_set(client, size, self.samples) for client, size in enumerate(view.sizes))
        facts = {
            "layers": groups.names, "sizes": groups.sizes.tolist(), "samples": self.samples,
            "definitions": sorted(self.definitions), "probe_sets": fingerprint(*subsets), "halves": RANDOM,
        }  # fmt: skip
        RunDir(view.folder).write_json("facts.json", facts)
        view.cut_back()

    def record(self, view: RoundView, measured: Mapping[int, dict[str, Any]], acc: Gathered | None) -> None:
        """A row of the log: by client, of all clients, and the norms of the weights.

        Args:
            view: The round, its weights, and the folder to record in.
            measured: By client, what `client_measure` returned.
            acc: What `accumulate` returned last; None when no client's result was finite.
        """
        groups = Groups(view.layout, self.split)
        clients = sorted(measured)
        due = any("sent" in measured[client] for client in clients)
        asked = _found({*BY_PRODUCTS, *(self.definitions if due else ())})
        blank = np.full(len(groups.names), np.nan)

        def column(by_client: Mapping[int, Any]) -> Any:
            return short([by_client.get(client, blank) for client in clients])

        names = [one.name for one in _at_clients(asked) if any(one.name in measured[c]["values"] for c in clients)]
        row: dict[str, Any] = {
            "round": view.round_index,
            "clients": clients,
            "weights": short(groups.norms(view.previous)),
            "by_client": {name: column({c: measured[c]["values"].get(name, blank) for c in clients}) for name in names},
            "of_all": {},
        }
        local = {client: values["local_weights"] for client, values in measured.items() if "local_weights" in values}
        if local:
            row["local_weights"] = column(local)
        seen = None if acc is None else OfRound(groups, acc, measured, view, self.server_samples)
        for one in asked:
            if seen and one.across_clients:
                found = zip(seen.gathered.clients, one.across_clients(seen), strict=True)
                row["by_client"][one.name] = column(dict(found))
            if seen and one.of_all:
                value = one.of_all(seen)
                some = isinstance(value, Mapping)  # of some layers only: by their names, beside those of all layers
                (row if some else row["of_all"])[one.name] = short(value)
        view.append([row])
        if self.tensorboard:
            _to_tensorboard(view, groups.names, row)
        if self.live:
            from figures.charts import live

            live.show(view.folder, self.read(view.folder))

    # --- afterwards

    @classmethod
    def read(cls, folder: Path, normalisations: Sequence[str] = NORMALISATIONS) -> "pd.DataFrame":
        """The tidy table: round, client (none for all of them), layer, definition, normalisation, value.

        Args:
            folder: Where a run's probe recorded.
            normalisations: Only these, of the definitions that are norms.

        Returns:
            A row for each value.
        """
        recorded = open_probe(folder)
        facts = recorded.read_json("facts.json")
        if facts is None:
            raise UserError(f"{folder}: no gradient norms recorded here")
        return _tidy(facts, recorded.rows(LOG), normalisations)


def _found(names: Iterable[str]) -> list[Definition]:
    """In the order of files."""
    return sorted(map(definition, names), key=lambda one: (one.place, one.letter))


def _at_clients(asked: Sequence[Definition]) -> list[Definition]:
    """What is measured at clients: by-products, what was asked for, and what comes with a pass that is made anyway."""
    families = {one.family for one in asked}
    more = {name for name, one in DEFINITIONS.items() if one.is_by_product or one.family in families}
    own = [one for one in asked if one.name not in DEFINITIONS]
    return [one for one in (*_found(more), *own) if one.at_client]


def _tidy(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], normalisations: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    layers, sizes = np.array(facts["layers"], object), np.array(facts["sizes"])
    known = DEFINITIONS | {one.name: one for one in map(definition, facts.get("definitions", ()))}
    parts: list[Any] = []  # the columns of each definition in each round, from shape (clients, ways, layers)

    def add(row: Any, clients: Any, name: str, raw: Any, weights: Any, which: Any = layers) -> None:
        raw = np.asarray(raw, float)
        ways = normalisations if known[name].is_norm and which is layers else ("raw",)
        values = np.stack([normalise(raw, how, sizes, weights) for how in ways], 1)
        people, words = np.array(clients, float)[:, None, None], np.array(ways, object)[:, None]
        columns = np.broadcast_arrays(row["round"], people, which, np.array(name, object), words, values)
        parts.append([column.ravel() for column in columns])

    for row in rows:
        weights = np.asarray(row["weights"], float)
        local = row.get("local_weights")
        for name, values in row["by_client"].items():
            at = np.asarray(local, float) if local is not None and known[name].at_local else weights
            add(row, row["clients"], name, values, at)
        for name, values in row["of_all"].items():
            add(row, [None], OF_ALL.get(name, name), [values], weights)
        for name in known.keys() & row.keys():  # of some layers only
            add(row, [None], name, [list(row[name].values())], weights, np.array(list(row[name]), object))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [np.empty(0)] * len(COLUMNS)
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))).astype({"client": "Int64"})


def _to_tensorboard(view: RoundView, layers: Sequence[str], row: Mapping[str, Any]) -> None:
    from feddual._lazy import tf

    writer = tf.summary.create_file_writer(str(view.run_folder / "events" / "gradient-norms"))
    with writer.as_default(step=row["round"]):
        for name, values in row["by_client"].items():
            for layer, column in zip(layers, np.asarray(values, float).T, strict=True):
                tf.summary.scalar(f"{name}/{layer}", np.nanmean(column))
                tf.summary.histogram(f"{name}/{layer}/clients", column[np.isfinite(column)])
        for name, values in row["of_all"].items():
            for layer, value in zip(layers, values, strict=True):
                tf.summary.scalar(f"{name}_of_all/{layer}", value)
    writer.close()

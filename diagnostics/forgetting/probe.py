"""What a round does to a model: before local training, after it at each client, and after averaging.

All models of a run are asked about the same examples of the server's test data, stratified by class. Only what a figure
needs leaves a client: its accuracy by class, and for cosines between clients a unit vector per class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.forgetting import measures
from diagnostics.forgetting.measures import Directions
from diagnostics.gradients.contract import probe_set
from diagnostics.subject import stratified_rows
from diagnostics.tables import short
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint
from feddual.probes import LOG, ClientView, Probe, RoundView, View
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_probe
from feddual.seeding import generator

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("round", "client", "class", "quantity", "value")
# With w the server's weights before a round, w_k client k's after its local training, w' the server's after the round.
QUANTITIES = {
    "accuracy_before": "accuracy of w, by class",
    "accuracy_after": "accuracy of w_k, by client and class",
    "accuracy_aggregated": "accuracy of w', by class",
    "forgotten": "accuracy of w less accuracy of w_k, by client and class",
    "lost": "accuracy of w_k less accuracy of w', by client and class",
    "accuracy_held": "accuracy of w_k on the classes of which the client holds an example",
    "accuracy_lacking": "accuracy of w_k on the classes of which the client holds none",
    "prototype_cosine": "cosine of two clients' mean features, mean over pairs, by class",
    "centred_cosine": "the same of mean features less their mean over the classes",
    "classifier_cosine": "cosine of two clients' last-layer weights of a class, mean over pairs",
    "nc1": "tr(S_W S_B^+) / C of the features of w'",
    "nc2_equinorm": "standard deviation of the lengths of the centred class means of w', over their mean",
    "nc2_equiangle": "standard deviation of the cosines between two of them",
    "nc2_simplex": "mean distance of these cosines from -1 / (C - 1)",
    "ece": "calibration error of w' in 15 bins of equal width",
    "own_accuracy": "accuracy of w' on a client's own data, by client",
    "own_mean": "its mean over the clients asked",
    "own_worst_tenth": "its mean over the tenth of them that fare worst",
    "own_spread": "its standard deviation over them",
    "forward_passes": "examples that this measurement sent through the network",
}


@dataclass(frozen=True)
class Heard:
    """Of the clients whose results count: who they are, and sums of their unit vectors."""

    clients: tuple[int, ...]
    sums: Mapping[str, Directions]

    def plus(self, other: "Heard") -> "Heard":
        """With another's."""
        return Heard(self.clients + other.clients, {key: one.plus(other.sums[key]) for key, one in self.sums.items()})


class ForgettingProbe(Probe):
    """What local training forgets and averaging loses, by class, on a schedule and a budget of examples.

    `run.probe("forgetting")` is the table it recorded; `diagnostics.forgetting.probe.QUANTITIES` says what each is. The
    cost of a measured round is a forward pass over `samples` examples for each of the round's clients and twice at the
    server, and one over at most `own_clients` x `own_samples`; the table has their number as `forward_passes`.

    Example:
        >>> import diagnostics, feddual, tempfile
        >>> small = {"training.rounds": 1, "training.clients_per_round": 2, "training.local_epochs": 1}
        >>> probe = diagnostics.ForgettingProbe(samples=50, own_clients=5, own_samples=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = feddual.run("quickstart", small, out=f"{folder}/run", probes=[probe], progress=False)
        ...     table = run.probe("forgetting")
        >>> list(table.columns)
        ['round', 'client', 'class', 'quantity', 'value']
        >>> table.query("quantity == 'forward_passes'")["value"].tolist()  # 2 x 50 + 2 x 50 + 5 x 10
        [250.0]
        >>> def mean(quantity):
        ...     return table[table["quantity"] == quantity]["value"].mean()
        >>> bool(abs(mean("forgotten") + mean("lost") - mean("accuracy_before") + mean("accuracy_aggregated")) < 1e-5)
        True
    """

    name = "forgetting"

    def __init__(
        self,
        every: int = 1,
        rounds: Sequence[int] = (),
        log_spaced: int = 0,
        samples: int = 1000,
        own_clients: int = 100,
        own_samples: int = 100,
    ):
        """Say when, and on how many examples.

        Args:
            every: Rounds between measurements.
            rounds: Instead, the rounds to measure.
            log_spaced: Or about so many, spread over the logarithm of the rounds.
            samples: Most examples of the server's test data, stratified by class, the same ones every time.
            own_clients: On the own data of so many clients, at most, the global model is tested; the same every time.
            own_samples: Most examples of each of them.
        """
        super().__init__(every, rounds, log_spaced)
        budget = {"samples": samples, "own_clients": own_clients, "own_samples": own_samples}
        for key, value in budget.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"probes: forgetting: {key} must be a whole number from 1, got {value!r}")
        self.samples, self.own_clients, self.own_samples = samples, own_clients, own_samples

    # --- at the client

    def client_measure(self, view: ClientView) -> dict[str, Any]:
        """The client's model on the common sample.

        Args:
            view: The client after its training.

        Returns:
            `accuracy_after` by class, `accuracy_held`, `accuracy_lacking`; and `sent`, unit vectors (classes, width).
        """
        features, logits, labels = self._asked(view, view.trained.weights)
        num_classes = logits.shape[1]
        right = measures.is_right(logits, labels)
        held = np.unique(view.y)
        lacking = np.setdiff1d(np.arange(num_classes), held)
        means = measures.class_means(features, labels, num_classes)
        vectors = {"prototype_cosine": means, "centred_cosine": measures.centred(means)}
        weights = classifier(view.layout, view.trained.weights, num_classes)
        if weights is not None:
            vectors["classifier_cosine"] = weights
        return {
            "accuracy_after": measures.class_accuracy(right, labels, num_classes),
            "accuracy_held": measures.share_right(right, labels, held.tolist()),
            "accuracy_lacking": measures.share_right(right, labels, lacking.tolist()),
            "sent": {name: measures.units(one) for name, one in vectors.items()},
        }

    def _sample(self, view: View) -> np.ndarray:
        """Rows of the test data."""
        return stratified_rows(view.test_labels, self.samples)

    def _asked(self, view: View, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, logits and labels of the common sample."""
        inputs, labels = view.test_at(self._sample(view))
        return *view.outputs(weights, inputs), labels

    # --- at the host

    def start(self, view: RoundView) -> None:
        """Write what all rounds share, and forget what will be measured again.

        Args:
            view: The run before its next round.
        """
        rows = self._sample(view)
        facts = {
            "samples": len(rows), "rows": fingerprint(rows.astype(np.int64)), "bins": measures.BINS,
            "examples_by_class": np.bincount(view.test_labels[rows]).tolist(),
            "own_clients": len(self._own_clients(view)), "own_samples": self.own_samples,
            "cost": "forward passes: samples x (clients of the round + 2) + the own samples of own_clients",
        }  # fmt: skip
        RunDir(view.folder).write_json("facts.json", facts)
        view.cut_back()

    def accumulate(self, acc: Heard | None, result: Any, weights: np.ndarray, share: float) -> Heard:
        """Sums of unit vectors over the clients.

        Args:
            acc: Those of the clients before; None at first.
            result: A client's.
            weights: Not looked at.
            share: Nor this: every pair of clients counts alike.

        Returns:
            The sums with this client.
        """
        sent = result.probes[self.name]["sent"]
        mine = Heard((result.client_id,), {name: Directions.of(one) for name, one in sent.items()})
        return acc.plus(mine) if acc else mine

    def record(self, view: RoundView, measured: Mapping[int, dict[str, Any]], acc: Heard | None) -> None:
        """A row of the log: by class, by client, of all clients; clients that were set aside are left out.

        Args:
            view: The round, its weights, and the folder to record in.
            measured: By client, what `client_measure` returned.
            acc: What `accumulate` returned last; None when no client's result was finite.
        """
        clients = acc.clients if acc else ()
        features, logits, labels = self._asked(view, view.weights)
        num_classes = logits.shape[1]
        before = self._asked(view, view.previous)[1]
        by_class = {
            name: measures.class_accuracy(measures.is_right(answers, labels), labels, num_classes)
            for name, answers in (("accuracy_before", before), ("accuracy_aggregated", logits))
        }
        by_class |= {name: sums.mean_cosine for name, sums in (acc.sums if acc else {}).items()}
        names = ("accuracy_after", "accuracy_held", "accuracy_lacking")
        own, passed = self._own(view)
        collapse, bins = measures.collapse_of(features, labels), measures.reliability(logits, labels)
        of_all = {
            "nc1": collapse.nc1, "nc2_equinorm": collapse.equinorm, "nc2_equiangle": collapse.equiangle,
            "nc2_simplex": collapse.simplex_angle, "ece": bins.ece, "own_mean": np.mean(list(own.values())),
            "own_worst_tenth": measures.worst_tenth(np.array(list(own.values()))),
            "own_spread": measures.spread(np.array(list(own.values()))),
        }  # fmt: skip
        row = {
            "round": view.round_index,
            "clients": list(clients),
            "by_class": short(by_class),
            "by_client": short({name: [measured[client][name] for client in clients] for name in names}),
            "of_all": short(of_all) | {"forward_passes": len(labels) * (len(measured) + 2) + passed},
            "own": {"clients": list(own), "own_accuracy": short(list(own.values()))},
            "reliability": short({"confidence": bins.confidence, "accuracy": bins.accuracy})
            | {"count": bins.count.tolist()},
        }
        view.append([row])

    def _own_clients(self, view: RoundView) -> list[int]:
        """Whose own data are looked at: the same every round, none without examples."""
        with_some = np.flatnonzero(view.sizes)
        drawn = generator(0, "own clients").permutation(with_some)[: self.own_clients]
        return np.sort(drawn).tolist()

    def _own(self, view: RoundView) -> tuple[dict[int, float], int]:
        """Accuracy of the new global model by client, and how many examples that took.

        A simulation holds all clients' data; elsewhere each client would send its number.
        """
        found, passed = {}, 0
        for client in self._own_clients(view):
            rows = view.federation.partition.client(client)
            x, y = view.federation.train(rows[probe_set(client, len(rows), self.own_samples)])
            found[client] = float(measures.is_right(view.outputs(view.weights, x)[1], y).mean())
            passed += len(y)
        return found, passed

    # --- afterwards

    @classmethod
    def read(cls, folder: Path) -> "pd.DataFrame":
        """The tidy table: round, client and class (none where it is of all of them), quantity, value.

        Args:
            folder: Where a run's probe recorded.

        Returns:
            A row for each value.

        Raises:
            UserError: When nothing was recorded there.
        """
        import pandas as pd

        rows = _rows(folder)
        parts = [part for row in rows for part in _of_row(row)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [np.empty(0)] * len(COLUMNS)
        table = pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
        return table.astype({"round": int, "client": "Int64", "class": "Int64", "value": float})

    @classmethod
    def reliability(cls, folder: Path) -> "pd.DataFrame":
        """The bins behind `ece`: round, from, to, count, confidence, accuracy.

        Args:
            folder: Where a run's probe recorded.

        Returns:
            A row for each round and bin.
        """
        import pandas as pd

        found = []
        for row in _rows(folder):
            arrays = {name: np.array(values, float) for name, values in row["reliability"].items()}
            found.append(measures.Reliability(**arrays).table.assign(round=row["round"]))
        columns = ["round", "from", "to", "count", "confidence", "accuracy"]
        return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def classifier(layout: Layout, weights: np.ndarray, num_classes: int) -> np.ndarray | None:
    """The weights of the last layer, a row per class; None where that is no dense layer to the classes.

    Args:
        layout: Which part of the vector is which variable.
        weights: The vector, (layout.size,).
        num_classes: How many classes there are.

    Returns:
        Shape (num_classes, width), without the bias.
    """
    trainable = [entry for entry in layout.entries if entry.trainable]
    last = [entry for entry in trainable if entry.layer == trainable[-1].layer and entry.role == "kernel"]
    if len(last) != 1 or len(last[0].shape) != 2 or last[0].shape[1] != num_classes:
        return None
    return np.asarray(weights[last[0].slice].reshape(last[0].shape).T)


def _rows(folder: Path) -> list[dict[str, Any]]:
    recorded = open_probe(folder)
    if recorded.read_json("facts.json") is None:
        raise UserError(f"{folder}: nothing was recorded here by the probe `forgetting`")
    return recorded.rows(LOG)


def _of_row(row: Mapping[str, Any]) -> list[list[np.ndarray]]:
    """The columns of each quantity of a round."""
    found = []

    def add(name: str, clients: Any, classes: Any, values: Any) -> None:
        columns = np.broadcast_arrays(row["round"], clients, classes, np.array(name, object), np.asarray(values, float))
        found.append([column.ravel() for column in columns])

    by_class = {name: np.array(values, float) for name, values in row["by_class"].items()}
    classes = np.arange(len(by_class["accuracy_before"]), dtype=float)
    people = np.array(row["clients"], float)
    for name, values in by_class.items():
        add(name, np.nan, classes, values)
    after = np.array(row["by_client"]["accuracy_after"], float).reshape(len(people), len(classes))
    models = {
        "accuracy_after": after,
        "forgotten": measures.forgotten(by_class["accuracy_before"], after),
        "lost": measures.lost(after, by_class["accuracy_aggregated"]),
    }
    for name, values in models.items():
        add(name, people[:, None], classes, values)
    for name in ("accuracy_held", "accuracy_lacking"):
        add(name, people, np.nan, row["by_client"][name])
    add("own_accuracy", np.array(row["own"]["clients"], float), np.nan, row["own"]["own_accuracy"])
    for name, value in row["of_all"].items():
        add(name, np.nan, np.nan, value)
    return found

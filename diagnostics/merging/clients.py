"""The models that a round's clients sent, regenerated to the bit.

A run keeps no client's weights. The round is done again from the checkpoint before it, with a probe that keeps what the
server is given; the same clients, batches and bits, as `feddual.replay` promises.
"""

import tempfile
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import feddual
from feddual import aggregation
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint
from feddual.probes import Probe
from feddual.records.run_dir import RunDir, atomic_write, npz_arrays, npz_bytes
from feddual.records.slim import open_run

FILE = "clients.npz"


class _Keep(Probe):
    """Keeps each client's weights and its weight in the average, as the server is given them."""

    name = "client-models"

    def accumulate(self, acc: Any, result: Any, weights: np.ndarray, share: float) -> Any:
        return [*(acc or []), (result.client_id, result.weights, share)]

    def record(self, view: Any, measured: Any, acc: Any) -> None:
        clients, weights, counts = zip(*acc, strict=True) if acc else ((), (), ())
        arrays = {
            "clients": np.array(clients, int), "weights": np.array(weights, np.float32), "counts": np.array(counts),
            "before": view.previous, "after": view.weights,
        }  # fmt: skip
        atomic_write(view.folder / FILE, npz_bytes(**arrays))


@dataclass(frozen=True)
class ClientModels:
    """What the clients of one round sent, and the global models around it; `diagnostics.client_models` makes it.

    Attributes:
        round: Which round.
        clients: Their ids, shape (clients,); those whose weights were not finite are left out, as the server does.
        weights: Their models, a row each, shape (clients, size).
        counts: Their weights in the average before it is normalised: ones, or numbers of examples.
        before: The global weights that they were sent, (size,).
        after: The global weights after the round, (size,).
        layout: Which part of a weight vector is which tensor.
        exact: Whether the round ended with the recorded bits; None where they were not kept.
    """

    round: int
    clients: np.ndarray
    weights: np.ndarray
    counts: np.ndarray
    before: np.ndarray
    after: np.ndarray
    layout: Layout
    exact: bool | None = None

    @property
    def shares(self) -> np.ndarray:
        """Each client's share in the average, (clients,); they add up to one."""
        return self.counts / self.counts.sum()

    @cached_property
    def mean(self) -> np.ndarray:
        """The clients' average by their shares, (size,): in bits what FedAvg's server makes of them."""
        acc = None
        for vector, count in zip(self.weights, self.counts, strict=True):
            acc = aggregation.add(acc, vector, float(count))
        if acc is None:
            raise UserError(f"round {self.round}: no client's weights were finite, so there is no average")
        return aggregation.mean(acc)

    @property
    def by_client(self) -> dict[int, np.ndarray]:
        """The weights by client, as `diagnostics.flatness_discrepancy` takes them."""
        return dict(zip(self.clients.tolist(), self.weights, strict=True))

    @property
    def names(self) -> list[str]:
        """What they are called in tables and pictures."""
        return [f"client {number}" for number in self.clients]

    @cached_property
    def sha256(self) -> str:
        """Identifies the models."""
        return fingerprint(self.clients, self.weights, self.counts)


def client_models(run: "feddual.Run | str | Path", round: int | None = None) -> ClientModels:
    """The models of a round's clients, by doing the round again.

    Args:
        run: A run or its folder; nothing in it changes.
        round: One of `run.replayable`, whose start is kept; the last of them by default.

    Returns:
        Ids, weights and shares of the clients, and the global models before and after.

    Raises:
        UserError: When the round's start was not kept; it names those that were.

    Example:
        >>> import tempfile, diagnostics, feddual
        >>> tiny = {"dataset": {"name": "synthetic", "num_train": 60, "num_test": 20},
        ...         "partition": {"name": "iid", "num_clients": 2}, "model": {"name": "mlp", "hidden": [4]},
        ...         "algorithm": {"name": "fedavg"}, "training": {"rounds": 2, "clients_per_round": 2}}
        >>> run = feddual.run(tiny, out=f"{tempfile.mkdtemp()}/run", progress=False)
        >>> found = diagnostics.client_models(run, round=1)
        >>> found.names, found.shares.tolist()
        (['client 0', 'client 1'], [0.5, 0.5])
        >>> bool((found.mean == found.after).all())  # FedAvg
        True
    """
    opened = run if isinstance(run, feddual.Run) else feddual.open(run)
    chosen = opened.replayable[-1] if round is None else round
    opened.check_replayable(chosen)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "round"
        feddual.replay(opened, chosen, [_Keep(rounds=[chosen])], out)
        arrays = npz_arrays((out / "probes" / _Keep.name / FILE).read_bytes())
        layout = RunDir(out).read_checkpoint(chosen).layout
    kept = open_run(opened.path).read_checkpoint(chosen).weights if chosen in opened.checkpoints else None
    exact = None if kept is None else bool(np.array_equal(kept, arrays["after"]))
    if kept is not None and not exact:
        apart = np.linalg.norm(kept - arrays["after"]) / np.linalg.norm(kept)
        warnings.warn(
            f"{opened.path}: round {chosen} done again ends {apart:.1e} (relative) from the recorded one; was it "
            "trained with other versions or on another machine? Its clients' models are those of the repetition.",
            stacklevel=2,
        )
    return ClientModels(chosen, **arrays, layout=layout, exact=exact)

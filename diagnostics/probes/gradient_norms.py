"""Per-layer gradient norms during training.

By-products of training (drift, drift diversity, mini-batch norms) are recorded in every round. The definitions that
need passes of their own are measured on a schedule, each client on a fixed set of at most `samples` of its examples.
Only what a figure needs leaves the client: a number per layer, and on scheduled rounds the gradient itself, of which
the host keeps sums, inner products and nothing else.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.gradients import definitions as gradients
from diagnostics.gradients.definitions import Groups
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.probes import Probe, Schedule
from feddual.records.run_dir import RunDir
from feddual.records.slim import open_probe
from feddual.seeding import seed as derived_seed

if TYPE_CHECKING:
    import pandas as pd

LOG = "rounds"  # rounds.jsonl
COMMON = 128  # inputs on which the layers of two clients' models are compared
SCHEDULED = ("client_at_global", "global", "dissimilarity", "local_end", "published", "cosine", "server",
             "client_at_global_unbiased", "noise_scale")  # fmt: skip
AT_GLOBAL = {"client_at_global", "global", "dissimilarity", "cosine", "client_at_global_unbiased", "noise_scale"}
AT_LOCAL = {"local_end", "published"}


class GradientNormProbe(Probe):
    """Gradient norms of each layer, under the names of `diagnostics.gradients.definitions.DEFINITIONS`."""

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
            definitions: The scheduled ones, by name or letter; add `cka` for the similarity of representations.
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
        self.definitions = {gradients.definition(item).name for item in asked} - set(gradients.BYPRODUCTS)
        self.samples, self.server_samples, self.split = samples, server_samples, split
        self.tensorboard, self.live = tensorboard, live
        self.step_norms = "variables" if split else "layers"
        self._folder: Path | None = None

    # --- at the client

    def client_measure(self, ctx: Any) -> dict[str, Any]:
        groups = Groups(ctx.bench.network.layout, self.split)
        trained, steps = ctx.trained, max(ctx.trained.steps, 1)
        drift = groups.norms(trained.weights.astype(np.float64) - ctx.task.weights)
        found: dict[str, Any] = {
            "drift": drift,
            "drift_per_step": drift / (ctx.bench.experiment.training.learning_rate * steps),
            "minibatch": np.sqrt(groups.of_steps(trained.square_sums) / steps),
        }
        if self.scheduled is None or not self.scheduled.due(ctx.task.round_index, ctx.task.num_rounds):
            return found
        rows = self.probe_set(ctx.task.client_id, len(ctx.y))
        if self.definitions & AT_GLOBAL:
            halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            second = ctx.gradient(ctx.task.weights, halves[1]).astype(np.float64)
            first = ctx.gradient(ctx.task.weights, halves[0]).astype(np.float64) if len(halves[0]) else None
            mean = second if first is None else (first * len(halves[0]) + second * len(halves[1])) / len(rows)
            found |= {"client_at_global": groups.norms(mean), "gradient": mean.astype(np.float32)}
            if first is not None:
                square, trace = gradients.two_halves(groups, first, second, len(rows) // 2)
                found["client_at_global_unbiased"] = np.sqrt(np.maximum(square, 0))
                with np.errstate(divide="ignore", invalid="ignore"):
                    found["noise_scale"] = np.where(square > 0, trace / square, np.nan)
        if self.definitions & AT_LOCAL:
            found["local_weights"] = groups.norms(trained.weights)
        if "local_end" in self.definitions:
            found["local_end"] = groups.norms(ctx.gradient(trained.weights, rows))
        if "published" in self.definitions:
            found["published"] = len(ctx.y) * groups.norms(ctx.gradient(trained.weights))
        if "cka" in self.definitions:
            inputs, _ = _common_inputs(ctx.bench, COMMON)
            outputs = ctx.bench.activations(trained.weights, inputs)
            found["grams"] = {layer: gradients.gram(value).astype(np.float32) for layer, value in outputs.items()}
        return found

    def probe_set(self, client_id: int, num_examples: int) -> np.ndarray:
        """The rows of a client's data it is measured on: fixed by its number alone."""
        rng = np.random.default_rng(derived_seed(0, "probe", 0, client_id))
        return np.sort(rng.permutation(num_examples)[: self.samples])

    # --- at the host

    def accumulate(self, acc: Any, result: Any, weights: np.ndarray, share: float) -> dict[str, Any]:
        acc = acc or {"shares": [], "clients": [], "total": 0.0, "weighted": 0.0, "gradients": [], "grams": []}
        measured = result.probes[self.name]
        moved = weights.astype(np.float64) - result.weights
        acc["shares"].append(share)
        acc["clients"].append(result.client_id)
        acc["total"] = acc["total"] + moved
        acc["weighted"] = acc["weighted"] + share * moved
        if "gradient" in measured:
            acc["gradients"].append(measured.pop("gradient"))
        if "grams" in measured:
            acc["grams"].append(measured.pop("grams"))
        return acc

    def start(self, host: Any) -> None:
        self._folder = host.path
        groups = Groups(host.bench.network.layout, self.split)
        sizes = host.bench.federation.partition.sizes
        subsets = fingerprint(*(self.probe_set(client, size) for client, size in enumerate(sizes)))
        facts = {
            "layers": groups.names,
            "sizes": groups.sizes.tolist(),
            "samples": self.samples,
            "definitions": sorted(self.definitions),
            "probe_sets": subsets,
        }
        folder = RunDir(host.path)
        folder.write_json("facts.json", facts)
        folder.cut_back(host.round_index, [LOG])

    def record(self, host: Any, measured: Mapping[int, dict[str, Any]], acc: Any) -> None:
        groups = Groups(host.bench.network.layout, self.split)
        clients = sorted(measured)
        names = [name for name in gradients.DEFINITIONS if any(name in measured[client] for client in clients)]
        blank = np.full(len(groups.names), np.nan)
        row: dict[str, Any] = {
            "round": host.round_index,
            "clients": clients,
            "weights": _short(groups.norms(host.previous)),
            "by_client": {name: _short([measured[c].get(name, blank) for c in clients]) for name in names},
            "of_all": {name: _short(value) for name, value in self._of_all(host, groups, measured, acc).items()},
        }
        if any("local_weights" in measured[client] for client in clients):
            row["local_weights"] = _short([measured[client].get("local_weights", blank) for client in clients])
        if acc and acc["gradients"] and "cosine" in self.definitions:
            by_client = dict(zip(acc["clients"], self._cosines(groups, acc), strict=True))
            row["by_client"]["cosine"] = _short([by_client.get(client, blank) for client in clients])
        if acc and acc["grams"]:
            row["cka"] = {
                layer: round(value, 6) for layer, value in _mean_cka(acc["grams"]).items() if layer in groups.names
            }
        RunDir(host.path).append(LOG, [row])
        if self.tensorboard:
            _to_tensorboard(host, groups.names, row)
        if self.live:
            from figures.charts import live

            live.show(host.path, self.read(host.path))

    def _of_all(self, host: Any, groups: Groups, measured: Mapping[int, Any], acc: Any) -> dict[str, np.ndarray]:
        if not acc:
            return {}
        shares = np.array(acc["shares"]) / np.sum(acc["shares"])
        drifts = np.array([measured[client]["drift"] for client in acc["clients"]])
        found = {
            "drift": groups.norms(acc["weighted"] / np.sum(acc["shares"])),
            "drift_diversity": gradients.drift_diversity(drifts**2, groups.squares(acc["total"])),
        }
        if acc["gradients"]:
            mean = np.tensordot(shares, np.array(acc["gradients"], np.float64), 1)
            norms = np.array([measured[client]["client_at_global"] for client in acc["clients"]])
            found["global"] = groups.norms(mean)
            found["dissimilarity"] = gradients.dissimilarity(shares, norms**2, groups.squares(mean))
        if "server" in self.definitions and self.scheduled is not None and acc["gradients"]:
            inputs, labels = _common_inputs(host.bench, self.server_samples)
            found["server"] = groups.norms(host.bench.gradient(host.previous, inputs, labels))
        return {name: value for name, value in found.items() if name in self.definitions | {*gradients.BYPRODUCTS}}

    def _cosines(self, groups: Groups, acc: Any) -> list[np.ndarray]:
        shares = np.array(acc["shares"]) / np.sum(acc["shares"])
        mean = np.tensordot(shares, np.array(acc["gradients"], np.float64), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return [
                groups.inner(gradient, mean) / (groups.norms(gradient) * groups.norms(mean))
                for gradient in acc["gradients"]
            ]

    # --- afterwards

    def frame(self) -> "pd.DataFrame":
        """What this probe has recorded so far, or in its last run."""
        if self._folder is None:
            raise UserError("the probe has not been used in a run yet")
        return self.read(self._folder)

    @classmethod
    def read(cls, folder: Path, normalisations: Sequence[str] = gradients.NORMALISATIONS) -> "pd.DataFrame":
        """The tidy table: round, client (none for all of them), layer, definition, normalisation, value.

        Args:
            folder: Where a run's probe recorded.
            normalisations: Only these, of the definitions that are norms.
        """
        recorded = open_probe(folder)
        facts = recorded.read_json("facts.json")
        if facts is None:
            raise UserError(f"{folder}: no gradient norms recorded here")
        return _tidy(facts, recorded.rows(LOG), normalisations)


PROBE = GradientNormProbe


def _common_inputs(bench: Any, count: int) -> tuple[Any, np.ndarray]:
    """The first so many of the server's test examples, in an order drawn once."""
    from feddual._lazy import tf

    test = bench.evaluator
    rows = np.random.default_rng(0).permutation(len(test.labels))[:count]
    return tf.gather(test.inputs, rows), test.labels[rows]


def _mean_cka(grams: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Of Gram matrices of norm one: the mean inner product of two different ones is (||sum||^2 - K) / (K (K - 1))."""
    count = len(grams)
    if count < 2:
        return {}
    totals = {layer: sum(one[layer].astype(np.float64) for one in grams) for layer in grams[0]}
    return {layer: float((np.sum(total**2) - count) / (count * (count - 1))) for layer, total in totals.items()}


def _short(values: Any) -> Any:
    """Numbers as six digits say them: files stay small."""
    if isinstance(values, (list, tuple)) or np.ndim(values):
        return [_short(value) for value in values]
    return float(f"{values:.6g}")


def _tidy(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], normalisations: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    layers, sizes = np.array(facts["layers"]), np.array(facts["sizes"])
    parts: list[Any] = []

    def add(row: Mapping[str, Any], client: Any, name: str, raw: Any, weights: Any) -> None:
        raw = np.asarray(raw, float)
        ways = normalisations if gradients.DEFINITIONS[name].is_norm else ("raw",)
        parts.extend(
            (row["round"], client, layer, name, how, value)
            for how in ways
            for layer, value in zip(layers, gradients.normalise(raw, how, sizes, weights), strict=True)
        )

    for row in rows:
        weights = np.asarray(row["weights"], float)
        local = row.get("local_weights")
        for name, values in row["by_client"].items():
            for place, client in enumerate(row["clients"]):
                at = np.asarray(local[place], float) if local is not None and name in AT_LOCAL else weights
                add(row, client, name, values[place], at)
        for name, values in row["of_all"].items():
            add(row, None, name, values, weights)
        parts.extend((row["round"], None, layer, "cka", "raw", value) for layer, value in row.get("cka", {}).items())
    frame = pd.DataFrame(parts, columns=["round", "client", "layer", "definition", "normalisation", "value"])
    return frame.astype({"client": "Int64"})


def _to_tensorboard(host: Any, layers: Sequence[str], row: Mapping[str, Any]) -> None:
    from feddual._lazy import tf

    writer = tf.summary.create_file_writer(str(host.path.parents[1] / "events" / "gradient-norms"))
    with writer.as_default(step=row["round"]):
        for name, values in row["by_client"].items():
            for layer, column in zip(layers, np.asarray(values, float).T, strict=True):
                tf.summary.scalar(f"{name}/{layer}", np.nanmean(column))
                tf.summary.histogram(f"{name}/{layer}/clients", column[np.isfinite(column)])
        for name, values in row["of_all"].items():
            for layer, value in zip(layers, values, strict=True):
                tf.summary.scalar(f"{name}_of_all/{layer}", value)
    writer.close()

"""The named definitions of "per-layer gradient norm", and what is made of them.

Notation: w the global weights before a round, w_k client k's after its local training, F_k its mean loss over n_k
examples, g_k = grad F_k(w), p_k its weight in the average, all per layer (kernel and bias together, or split).
A picture of "gradient norms" can show the opposite of another one that has the same title: each curve names its
definition and its normalisation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feddual.errors import UserError
from feddual.functional.layout import Layout

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Definition:
    """One meaning of the word."""

    letter: str
    name: str
    formula: str
    cost: str
    is_norm: bool = True  # else a ratio or an angle, which has no units and no normalisation


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition("A", "client_at_global", "||g_k||: heterogeneity as the global model sees it, before local steps",
                   "a backward pass over the probe set of each client"),
        Definition("B", "global", "||sum_k p_k g_k||: progress of the optimisation", "with A"),
        Definition("C", "dissimilarity", "sum_k p_k ||g_k||^2 / ||sum_k p_k g_k||^2, at least 1", "with A", False),
        Definition("D", "drift", "||w - w_k||, and of all clients ||sum_k p_k (w - w_k)||", "a by-product"),
        Definition("D/", "drift_per_step", "||w - w_k|| / (learning rate x steps)", "a by-product"),
        Definition("E", "drift_diversity", "sum_k ||w - w_k||^2 / ||sum_k (w - w_k)||^2; 1/K when all agree",
                   "a by-product", False),
        Definition("F", "local_end", "||grad F_k(w_k)||: what is left of the client's own gradient",
                   "a backward pass over the probe set"),
        Definition("G", "published", "||n_k grad F_k(w_k)||, the sum over all the client's data: the public code's",
                   "a backward pass over all the client's data; scales with n_k"),
        Definition("H", "minibatch", "root mean square over the steps of the norm of the step's gradient; holds the "
                   "noise of the batch, so compare at equal batch sizes only", "a by-product"),
        Definition("I", "cosine", "cos(g_k, sum_j p_j g_j)", "with A", False),
        Definition("I'", "cka", "linear CKA of the layer's outputs by two clients' models on common inputs, the mean "
                   "over pairs", "a forward pass over the common inputs", False),
        Definition("J", "server", "||grad F(w)|| with F the loss on a fixed part of the server's test data",
                   "a backward pass over it"),
        Definition("A'", "client_at_global_unbiased", "sqrt(max(0, <g_k', g_k''>)) of two halves of the probe set: "
                   "without the noise that inflates the norm", "with A"),
        Definition("N", "noise_scale", "tr(Sigma) / ||g_k||^2 from the same halves: the batch size at which noise and "
                   "gradient are equal", "with A", False),
    )
}  # fmt: skip
BYPRODUCTS = ("drift", "drift_per_step", "drift_diversity", "minibatch")
NORMALISATIONS = ("raw", "rms", "relative", "scale_free", "share")


def definition(name: str) -> Definition:
    """A definition by its name or its letter."""
    for found in DEFINITIONS.values():
        if name in (found.name, found.letter):
            return found
    known = ", ".join(f"{found.letter} {found.name}" for found in DEFINITIONS.values())
    raise UserError(f"definition {name!r} is unknown; allowed: {known}")


class Groups:
    """Which parts of the weight vector are one row of the picture: layers, or single variables."""

    def __init__(self, layout: Layout, split: bool = False):
        trainable = [entry for entry in layout.entries if entry.trainable]
        self.names = [entry.path for entry in trainable] if split else list(layout.layers)
        self._starts = [entry.start for entry in trainable]
        self._owner = np.array([number if split else self.names.index(e.layer) for number, e in enumerate(trainable)])
        # Where another layer begins: what lies together in the vector is one part of the local loop's sums.
        self._runs = [n for n, e in enumerate(trainable) if n == 0 or trainable[n - 1].layer != e.layer]
        sizes = [entry.stop - entry.start for entry in trainable]
        self.sizes = np.bincount(self._owner, sizes, len(self.names)).astype(int)
        self._end = trainable[-1].stop if trainable else 0

    def of_steps(self, square_sums: np.ndarray) -> np.ndarray:
        """What the local loop added up for layers (a layer may lie in several places) or variables, by group."""
        owners = self._owner if len(square_sums) == len(self._owner) else self._owner[self._runs]
        return np.bincount(owners, square_sums.astype(np.float64), len(self.names))

    def squares(self, vector: np.ndarray) -> np.ndarray:
        """The squared norm of each group."""
        return self.inner(vector, vector)

    def norms(self, vector: np.ndarray) -> np.ndarray:
        """The norm of each group."""
        return np.sqrt(self.squares(vector))

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The inner product of each group."""
        product = np.multiply(a[: self._end], b[: self._end], dtype=np.float64)
        return np.bincount(self._owner, np.add.reduceat(product, self._starts), len(self.names))


def dissimilarity(shares: np.ndarray, client_squares: np.ndarray, mean_squares: np.ndarray) -> np.ndarray:
    """C: sum_k p_k ||g_k||^2 / ||sum_k p_k g_k||^2, of each layer; 1 when all clients have the same gradient.

    Args:
        shares: p_k, summing to one.
        client_squares: ||g_k||^2, shape (clients, layers).
        mean_squares: ||sum_k p_k g_k||^2, shape (layers,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return (shares @ client_squares) / mean_squares


def drift_diversity(client_squares: np.ndarray, sum_squares: np.ndarray) -> np.ndarray:
    """E: sum_k ||Delta_k||^2 / ||sum_k Delta_k||^2, of each layer; 1/K when all clients move alike."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return client_squares.sum(0) / sum_squares


def two_halves(groups: Groups, first: np.ndarray, second: np.ndarray, half: int) -> tuple[np.ndarray, np.ndarray]:
    """The squared gradient norm without noise, and the trace of the gradient's covariance for one example.

    With independent halves of b examples each: E<g', g''> = ||g||^2 and E||g'||^2 = ||g||^2 + tr(Sigma) / b.

    Args:
        groups: Layers or variables.
        first: Mean gradient over the first half.
        second: Mean gradient over the second half.
        half: b.
    """
    product = groups.inner(first, second)
    return product, half * ((groups.squares(first) + groups.squares(second)) / 2 - product)


def gram(activations: np.ndarray) -> np.ndarray:
    """The centred Gram matrix of a layer's outputs, of norm one: the inner product of two of them is linear CKA."""
    centred = activations.astype(np.float64) - activations.mean(0)
    product = centred @ centred.T
    return product / (np.linalg.norm(product) or 1.0)


def normalise(raw: np.ndarray, how: str, sizes: np.ndarray, weight_norms: np.ndarray) -> np.ndarray:
    """Norms of shape (..., layers) in other units.

    Args:
        raw: L2 norms.
        how: `raw`; `rms`, over the square root of the layer's size, comparable across layers; `relative` to the
            weights' norm; `scale_free`, times the weights' norm, invariant when a layer is rescaled and the next one
            takes it back; `share` of the squared norm of all layers.
        sizes: Weights in each layer.
        weight_norms: Norm of each layer's weights, where the gradient was taken.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if how == "raw":
            return raw
        if how == "rms":
            return raw / np.sqrt(sizes)
        if how == "relative":
            return raw / weight_norms
        if how == "scale_free":
            return raw * weight_norms
        if how == "share":
            return raw**2 / np.sum(raw**2, axis=-1, keepdims=True)
    raise UserError(f"normalisation {how!r} is unknown; allowed: {', '.join(NORMALISATIONS)}")


# --- comparing runs -------------------------------------------------------------------------------------------------


def per_round(frame: "pd.DataFrame", name: str, normalisation: str = "rms") -> "pd.DataFrame":
    """A definition's value in each round (rows) and layer (columns, in the model's order): the mean over clients."""
    chosen = definition(name)
    how = normalisation if chosen.is_norm else "raw"
    rows = frame[(frame["definition"] == chosen.name) & (frame["normalisation"] == how)]
    per_client = rows[rows["client"].notna()]
    rows = per_client if len(per_client) else rows
    layers = list(dict.fromkeys(rows["layer"]))
    return rows.pivot_table("value", "round", "layer", aggfunc="mean")[layers] if len(rows) else rows[[]]


def ratios(
    base: Sequence["pd.DataFrame"],
    other: Sequence["pd.DataFrame"],
    names: Sequence[str],
    normalisation: str = "rms",
    samples: int = 2000,
    seed: int = 0,
) -> "pd.DataFrame":
    """How many times larger a quantity is in other runs than in the base runs, per definition and layer.

    The ratio is the geometric mean over rounds, in log space throughout. The 95 % interval is a bootstrap over pairs
    of runs (equal seeds, paired in the given order) and, within a run, over blocks of consecutive rounds; with one
    pair it speaks of that run's rounds only.

    Args:
        base: Frames of the runs to compare with, one for each seed.
        other: Frames of the other runs, in the same order of seeds.
        names: Definitions.
        normalisation: For those that are norms.
        samples: Bootstrap samples.
        seed: Of the bootstrap.

    Returns:
        Columns definition, layer, ratio, low, high, runs, rounds.
    """
    import pandas as pd

    if len(base) != len(other):
        raise UserError(f"runs are compared in pairs of equal seeds, got {len(base)} against {len(other)}")
    rng = np.random.default_rng(seed)
    lines = []
    for name in names:
        logs = []
        for one, two in zip(base, other, strict=True):
            first, second = per_round(one, name, normalisation), per_round(two, name, normalisation)
            common = first.index.intersection(second.index)
            layers = [layer for layer in first.columns if layer in second.columns]
            with np.errstate(divide="ignore", invalid="ignore"):
                difference = second.loc[common, layers].apply(np.log) - first.loc[common, layers].apply(np.log)
            logs.append(difference.replace([np.inf, -np.inf], np.nan))
        if not logs or not len(logs[0].columns) or not len(logs[0]):
            continue
        samples_of_mean = _bootstrap([frame.to_numpy() for frame in logs], samples, rng)
        for number, layer in enumerate(logs[0].columns):
            centre = np.mean([np.nanmean(frame[layer]) for frame in logs])
            low, high = np.nanpercentile(samples_of_mean[:, number], [2.5, 97.5])
            lines.append(
                {
                    "definition": definition(name).name,
                    "layer": layer,
                    "ratio": float(np.exp(centre)),
                    "low": float(np.exp(low)),
                    "high": float(np.exp(high)),
                    "runs": len(logs),
                    "rounds": len(logs[0]),
                }
            )
    return pd.DataFrame(lines, columns=["definition", "layer", "ratio", "low", "high", "runs", "rounds"])


def level(
    runs: Sequence["pd.DataFrame"], names: Sequence[str], normalisation: str = "rms", samples: int = 2000, seed: int = 0
) -> "pd.DataFrame":
    """The geometric mean of each quantity over rounds and runs, with an interval as in `ratios`."""
    ones = [frame.assign(value=1.0) for frame in runs]
    return ratios(ones, runs, names, normalisation, samples, seed).rename(columns={"ratio": "mean"})


def _bootstrap(runs: Sequence[np.ndarray], samples: int, rng: np.random.Generator) -> np.ndarray:
    """Means over resampled runs, and within each over resampled blocks of rounds; shape (samples, layers)."""
    total = np.zeros((samples, runs[0].shape[1]))
    for _ in runs:
        drawn = rng.integers(len(runs), size=samples)
        for index, rows in enumerate(runs):
            mine = drawn == index
            block = max(1, round(len(rows) ** (1 / 3)))  # the usual length for blocks that shall keep the correlation
            starts = rng.integers(len(rows) - block + 1, size=(mine.sum(), -(-len(rows) // block)))
            picked = (starts[:, :, None] + np.arange(block)).reshape(mine.sum(), -1)[:, : len(rows)]
            total[mine] += np.nanmean(rows[picked], axis=1)
    return total / len(runs)


def describe() -> list[Mapping[str, str]]:
    """The definitions as rows of a table."""
    return [{"id": d.letter, "name": d.name, "formula": d.formula, "cost": d.cost} for d in DEFINITIONS.values()]

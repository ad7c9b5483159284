"""A weight vector by layers, and norms in other units."""

import numpy as np

from feddual.errors import UserError
from feddual.functional.layout import Layout

NORMALISATIONS = ("raw", "rms", "relative", "scale_free", "share")


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

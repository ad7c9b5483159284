"""One colour scale and one set of contour levels for all pictures of a figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CAP = 10.0  # Li et al. (2018) draw no loss beyond this


@dataclass(frozen=True)
class Scale:
    """How losses become colours and heights."""

    low: float
    high: float
    levels: np.ndarray
    log: bool  # whether steps are equal ratios
    clipped: float  # share of the drawn values beyond `high`, or not finite

    def clip(self, loss: np.ndarray) -> np.ndarray:
        """Values as they are drawn: what is beyond the scale, or not finite, lies on its rim."""
        return np.clip(np.nan_to_num(loss, nan=self.high, posinf=self.high, neginf=self.low), self.low, self.high)


def shared_scale(losses: Sequence[np.ndarray], cap: float | None = None, count: int = 20, log: bool = True) -> Scale:
    """The scale of several pictures together.

    Args:
        losses: Of each picture, its losses.
        cap: The largest loss to draw; by default 10, or more when the smallest is beyond 5.
        count: How many levels.
        log: Equal ratios between levels, where all losses are positive.
    """
    values = np.concatenate([np.ravel(loss) for loss in losses])
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Scale(0.0, 1.0, np.linspace(0, 1, count), False, 1.0)
    low = float(finite.min())
    log = log and low > 0
    high = min(float(finite.max()), cap if cap is not None else max(CAP, 2 * low))
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-3
    levels = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    return Scale(low, high, levels, log, float(1 - (finite <= high * (1 + 1e-12)).sum() / values.size))


def contour_levels(losses: Sequence[np.ndarray]) -> np.ndarray:
    """The levels of `shared_scale`."""
    return shared_scale(losses).levels

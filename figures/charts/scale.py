"""How numbers become colours and heights: one scale for all panels that are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

CAP = 10.0  # Li et al. (2018) draw no loss beyond this


@dataclass(frozen=True, eq=False)  # panels share a scale when it is the same object
class Scale:
    """How numbers become colours and heights; panels that share one share a colour bar.

    Args:
        low: The number of the first colour.
        high: Of the last.
        levels: Of contours.
        log: Whether equal steps are equal ratios.
        clipped: Share of the drawn values beyond `high`, or not finite.
        label: What the numbers are, beside the colour bar; without one there is no bar.
        colours: The name of a colour map that matplotlib and plotly know, or colours from low to high.

    >>> from figures import charts
    >>> charts.Scale(1, 1000, log=True, label="images").ticks()[1]
    ['1', '10', '100', '1,000']
    """

    low: float
    high: float
    levels: np.ndarray = field(default_factory=lambda: np.zeros(0))
    log: bool = False
    clipped: float = 0.0
    label: str = ""
    colours: str | tuple[str, ...] = "viridis"

    def clip(self, loss: np.ndarray) -> np.ndarray:
        """Values as they are drawn: what is beyond the scale, or not finite, lies on its rim.

        Args:
            loss: Of any shape.

        Returns:
            The same shape, between `low` and `high`.
        """
        finite = np.nan_to_num(loss, nan=self.high, posinf=self.high, neginf=self.low)
        return np.asarray(np.clip(finite, self.low, self.high))

    def heights(self, values: np.ndarray) -> np.ndarray:
        """Clipped values as heights: their logarithms on a logarithmic scale.

        Args:
            values: Of any shape.

        Returns:
            The same shape, between the `ends`.
        """
        return np.asarray(np.log10(self.clip(values))) if self.log else self.clip(values)

    @property
    def ends(self) -> tuple[float, float]:
        """The heights of `low` and `high`."""
        bottom, top = np.log10([self.low, self.high]) if self.log else (self.low, self.high)
        return float(bottom), float(top)

    @property
    def told(self) -> str:
        """The label, and up to where it is drawn when something lies beyond."""
        return self.label + (f" (drawn up to {self.high:.3g})" if self.clipped > 0 and self.label else "")

    def ticks(self) -> tuple[np.ndarray, list[str]]:
        """Where heights and colours are marked, and with which numbers."""
        values = round_numbers(self.low, self.high)
        if self.log:
            steps = (1,) if self.high / self.low >= 1e3 else (1, 2, 5)
            found = np.array([step * 10.0**power for power in range(-12, 13) for step in steps])
            found = found[(found >= self.low * (1 - 1e-9)) & (found <= self.high * (1 + 1e-9))]
            values = found if len(found) >= 3 else values[values > 0]
        labels = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
        return (np.log10(values) if self.log else values), labels


def round_numbers(low: float, high: float, most: int = 6) -> np.ndarray:
    """Round numbers from low to high, so many at most."""
    rough = (high - low) / most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(step for step in (1, 2, 5, 10, 20) if step * power >= rough) * power
    return np.asarray(np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step + 0.0)


def shared_scale(losses: Sequence[np.ndarray], cap: float | None = None, count: int = 20, log: bool = True) -> Scale:
    """The scale of several pictures of losses together.

    Args:
        losses: Of each picture, its losses.
        cap: The largest loss to draw; by default 10, or more when the smallest is beyond 5.
        count: How many levels.
        log: Equal ratios between levels, where all losses are positive.

    Returns:
        One scale for all of them.
    """
    values = np.concatenate([np.ravel(loss) for loss in losses])
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Scale(0.0, 1.0, np.linspace(0, 1, count), False, 1.0, "loss")
    low = float(finite.min())
    log = log and low > 0
    high = min(float(finite.max()), cap if cap is not None else max(CAP, 2 * low))
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-3
    levels = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
    return Scale(low, high, levels, log, float(1 - (finite <= high * (1 + 1e-12)).sum() / values.size), "loss")


def contour_levels(losses: Sequence[np.ndarray]) -> np.ndarray:
    """The levels of `shared_scale`."""
    return shared_scale(losses).levels

"""The spectrum of a curvature: what was measured, its files, its density on an axis."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics.curvature.lanczos import by_magnitude
from diagnostics.curvature.traces import Trace
from diagnostics.statistics import said
from feddual.errors import UserError
from feddual.records import measurements as store

ARRAYS = "spectrum.npz"
WIDTHS = 6.0  # standard deviations of smoothing beyond the outermost nodes


@dataclass
class Spectrum:
    """The curvature of a loss at a model: the ends of its spectrum, its trace and its density.

    `largest` and `smallest` come with residuals: an eigenvalue is at most so far from each number. `nodes` and
    `weights`, a row per draw, are a quadrature: sums of weight times f(node) estimate tr f(A) / n.
    """

    largest: np.ndarray  # eigenvalues, descending
    largest_residuals: np.ndarray
    smallest: np.ndarray  # ascending
    smallest_residuals: np.ndarray
    nodes: np.ndarray  # (draws, steps)
    weights: np.ndarray  # (draws, steps), rows add up to one
    trace_exact: np.ndarray  # (1 + layers,): the whole, then each layer
    trace_samples: np.ndarray  # (1 + layers, samples)
    layer_largest: np.ndarray  # (layers,), each block's; empty if they were not asked for
    meta: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Spectrum":
        """From its folder.

        Args:
            path: The folder.

        Returns:
            What was measured.

        Raises:
            UserError: If it holds something else, or is not finished.
        """
        manifest = store.read_manifest(Path(path))
        if manifest["identity"].get("kind") != "spectrum":
            raise UserError(f"{path}: holds {manifest['identity'].get('kind')}, not a spectrum")
        arrays = store.read_arrays(Path(path), ARRAYS)
        if arrays is None:
            raise UserError(f"{path}: the spectrum is not finished; the same command goes on with it")
        return cls(**arrays, meta=manifest)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a folder: new, or one that holds the same measurement.

        Args:
            path: The folder.

        Returns:
            The folder.
        """
        folder = store.Folder(Path(path), ARRAYS)
        folder.check(self.meta["identity"])
        with folder.locked():
            folder.check(self.meta["identity"])
            folder.finish(self.meta, self.arrays())
        return folder.path

    def arrays(self) -> dict[str, np.ndarray]:
        """What is kept in a file."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "meta"}

    @property
    def layers(self) -> list[str]:
        """The layers that move, in the model's order."""
        return list(self.meta["facts"]["layers"])

    @cached_property
    def trace(self) -> Trace:
        """The sum of all eigenvalues, with its standard error and interval."""
        return Trace(float(self.trace_exact[0]), self.trace_samples[0])

    @property
    def by_magnitude(self) -> np.ndarray:
        """The eigenvalues of largest |λ|, signs kept."""
        return by_magnitude(self.largest, self.smallest)

    @property
    def ratio(self) -> float:
        """λ1 / λ5; NaN with fewer than five."""
        return float(self.largest[0] / self.largest[4]) if len(self.largest) > 4 else float("nan")

    def table(self) -> pd.DataFrame:
        """The numbers, one row.

        Returns:
            λ1 and the smallest eigenvalue with their residuals, λ1/λ5, the trace with its interval, its mean per
            weight, the gradient's norm (of the same coordinates, without the scaling), loss, products and seconds.
        """
        facts, (mean, low, high) = self.meta["facts"], self.trace.interval().floats()
        row = {
            "model": facts.get("source", "the model"), "lambda_1": self.largest[0],
            "residual_1": self.largest_residuals[0], "lambda_1/lambda_5": self.ratio,
            "lambda_min": self.smallest[0], "residual_min": self.smallest_residuals[0], "trace": mean,
            "trace_low": low, "trace_high": high, "trace_per_weight": mean / facts["size"],
            "gradient_norm": facts["gradient_norm"], "loss": facts["loss"], "products": facts["products"],
            "seconds": facts["seconds"],
        }  # fmt: skip
        return pd.DataFrame([row])

    def per_layer(self) -> pd.DataFrame:
        """Each layer's block: its trace, share of the whole, and λ1 where it was asked for.

        Returns:
            A row per layer; the traces come from the same products and add up to the whole's.
        """
        rows = []
        for place, (name, size) in enumerate(self.meta["facts"]["layers"].items(), 1):
            one = Trace(float(self.trace_exact[place]), self.trace_samples[place])
            mean, low, high = one.interval().floats()
            row = {"layer": name, "weights": size, "trace": mean, "trace_low": low, "trace_high": high}
            row["share"] = mean / self.trace.value if self.trace.value else np.nan
            row["lambda_1"] = self.layer_largest[place - 1] if len(self.layer_largest) else np.nan
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def width(self) -> float:
        """The smoothing that its own density has by default: its range over the number of steps."""
        spread = float(self.nodes.max() - self.nodes.min())
        return (spread or max(abs(float(self.nodes.max())), 1e-12)) / self.nodes.shape[1]

    def density(self, x: np.ndarray | None = None, sigma: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The spectral density, every node a Gaussian: the share of eigenvalues per unit of λ.

        Args:
            x: Where; by default 1001 places over the nodes and the smoothing's tails.
            sigma: The Gaussians' standard deviation; `width` by default.

        Returns:
            x and the density's mean over draws there.
        """
        sigma = self.width if sigma is None else sigma
        x = axis([self], sigma) if x is None else x
        apart = (x[:, None] - self.nodes.ravel()) / sigma
        heights = np.exp(-0.5 * np.square(apart)) @ self.weights.ravel()
        return x, heights / (len(self.nodes) * sigma * np.sqrt(2 * np.pi))

    def plot(self, **options: Any) -> Any:
        """The density, on a logarithmic axis.

        Args:
            **options: `sigma`, the smoothing; `name`, for the legend.

        Returns:
            A matplotlib figure.
        """
        from figures.charts import spectra

        return spectra.plot_spectra({options.pop("name", ""): self}, **options).matplotlib()

    def caption(self) -> str:
        """The facts in a few sentences."""
        from figures.charts.spectra import caption

        return caption(self)

    def _repr_html_(self) -> str:
        from figures.charts import spectra

        return spectra.html(self)

    def __repr__(self) -> str:
        trace = said(*self.trace.interval().floats())
        return (
            f"Spectrum({self.meta['identity']['curvature']} of {self.meta['facts']['size']} weights: λ1 "
            f"{self.largest[0]:.4g}, smallest {self.smallest[0]:.4g}, trace {trace})"
        )


def axis(spectra: Sequence[Spectrum], sigma: float, points: int = 1001) -> np.ndarray:
    """Places that hold the densities of several spectra, at least one per half a smoothing width."""
    low = min(float(one.nodes.min()) for one in spectra) - WIDTHS * sigma
    high = max(float(one.nodes.max()) for one in spectra) + WIDTHS * sigma
    return np.linspace(low, high, max(points, min(int(2 * (high - low) / sigma), 20_000)))

"""What a measure of sharpness gives: rows of the table, single draws, the profile, and the layers beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diagnostics.statistics import of_estimate, over_runs

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How the measures are taken; part of what identifies their numbers.

    Args:
        directions: Random directions or draws of each measure that is a mean over them.
        tau: The loss rise that defines the flatness radius.
        average: Sizes rho of random steps, relative to each weight.
        worst_l2: Sizes of the worst step, ‖delta / |w|‖_2.
        worst_linf: The same, largest |delta / w|.
        sam: The length of SAM's step.
        asam: The length of ASAM's, on the scale of the weights or filters.
        keskar: Half widths of Keskar's box.
        drop: The loss of accuracy that defines sigma.
        steps: Of an ascent.
        iterations: Of L-BFGS-B in Keskar's box.
        lanczos: Steps, at most, that an eigenvalue may take.
        products: With the Hessian, for a trace.
        seed: Of directions and draws.
    """

    directions: int = 10
    tau: float = 0.1
    average: tuple[float, ...] = (0.05, 0.1, 0.2)
    worst_l2: tuple[float, ...] = (0.25, 0.5, 1.0)
    worst_linf: tuple[float, ...] = (0.001, 0.002, 0.004)
    sam: tuple[float, ...] = (0.05,)
    asam: tuple[float, ...] = (0.5,)
    keskar: tuple[float, ...] = (1e-3, 5e-4)
    drop: float = 0.1
    steps: int = 20
    iterations: int = 10
    lanczos: int = 40
    products: int = 30
    seed: int = 0


@dataclass
class Found:
    """What one measure, or a group that is measured together, gives."""

    table: list[Row] = field(default_factory=list)
    values: list[Row] = field(default_factory=list)  # single draws
    profile: list[Row] = field(default_factory=list)
    layers: list[Row] = field(default_factory=list)

    def add(
        self,
        measure: str,
        level: float,
        value: float,
        passes: float,
        *,
        se: float = np.nan,
        symmetric: float = np.nan,
        first_order: float = np.nan,
    ) -> None:
        """A number, that of a single draw too.

        Args:
            measure: Its name.
            level: At which step size, if it has one.
            value: The number.
            passes: What it cost.
            se: Its standard error, of an estimate.
            symmetric: Of a one-sided rise, the symmetric one along the same step.
            first_order: What the gradient alone accounts for.
        """
        _, low, high = of_estimate(value, se).floats()
        self.table.append({
            "measure": measure, "level": level, "value": value, "se": se, "low": low, "high": high,
            "draws": 1, "censored": 0, "symmetric": symmetric, "first_order": first_order, "passes": passes,
        })  # fmt: skip
        self.values.append({"measure": measure, "level": level, "draw": 0, "value": value, "censored": False})

    def add_mean(
        self, measure: str, level: float, draws: Sequence[float], passes: float, censored: Sequence[bool] = ()
    ) -> None:
        """A mean over draws, with Student's interval; censored ones make it a bound without one.

        Args:
            measure: Its name.
            level: At which step size, if it has one.
            draws: The numbers.
            passes: What they cost.
            censored: Which of them are lower bounds.
        """
        array, flags = np.asarray(draws, float), list(censored) or [False] * len(draws)
        mean, low, high = over_runs(array).floats()
        se = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 and not any(flags) else np.nan
        ends = {"low": np.nan, "high": np.nan} if any(flags) else {"low": low, "high": high}
        self.table.append({
            "measure": measure, "level": level, "value": mean, "se": se, **ends, "draws": len(array),
            "censored": sum(flags), "symmetric": np.nan, "first_order": np.nan, "passes": passes,
        })  # fmt: skip
        self.draws(measure, level, draws, flags)

    def draws(self, measure: str, level: float, draws: Sequence[float], censored: Sequence[bool] = ()) -> None:
        """Single numbers, without a row in the table."""
        flags = list(censored) or [False] * len(draws)
        self.values += [
            {"measure": measure, "level": level, "draw": draw, "value": float(value), "censored": bool(flag)}
            for draw, (value, flag) in enumerate(zip(draws, flags, strict=True))
        ]

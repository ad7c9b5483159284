"""Sharpness alongside training: `feddual run ... --probe sharpness@every=30`."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnostics.subject import of_round
from feddual.errors import UserError
from feddual.probes import Probe, RoundView

MEASURES = ("kappa_fn", "profile", "lambda_fn")
LOGS = ("rounds", "profiles", "layers")


class SharpnessProbe(Probe):
    """Records how sharp the pooled training loss is at the global model after each measured round.

    `rounds.jsonl` has a row for each measure: value, standard error, interval over directions, and passes over the
    data; `profiles.jsonl` the radial profile, `layers.jsonl` the gradient's and the weights' norms. Directions and
    samples are the same in all rounds. It runs on the host and reads weights only: training's bits are the same with
    and without it.

    Args:
        every: Rounds between measurements.
        rounds: Instead, the rounds to measure, from 1.
        log_spaced: Or about so many, spread over the logarithm of the rounds.
        measures: Names, as `Landscape.sharpness` has them; the gradient's norm stands beside them.
        images: Samples of the pooled training data, stratified.
        directions: Random directions.
        lanczos: Products with the Hessian that an eigenvalue may take, at most.
        budget: Passes over the samples that a round may take, at most; 0 for what the measures need.
        seed: Of directions and samples.
    """

    name = "sharpness"

    def __init__(
        self,
        every: int = 10,
        rounds: list[int] | tuple[int, ...] = (),
        log_spaced: int = 0,
        measures: str | Sequence[str] = MEASURES,
        images: int = 500,
        directions: int = 5,
        lanczos: int = 15,
        budget: float = 0,
        seed: int = 0,
    ):
        super().__init__(every, rounds, log_spaced)
        from diagnostics.flatness.catalogue import chosen
        from diagnostics.flatness.readings import Settings

        self.measures = (measures,) if isinstance(measures, str) else tuple(measures)
        settings = Settings(directions=directions, lanczos=lanczos)
        chosen(self.measures, budget or "full", settings, max(images, 1))  # refused before training, not after it
        if images < 1 or directions < 1 or lanczos < 1:
            got = f"images={images}, directions={directions}, lanczos={lanczos}"
            raise UserError(f"probes: sharpness: images, directions and lanczos must be at least 1, got {got}")
        self.images, self.directions, self.lanczos, self.budget, self.seed = images, directions, lanczos, budget, seed

    def start(self, view: RoundView) -> None:
        """Forget what lies after the round.

        Args:
            view: The run before its next round.
        """
        for log in LOGS:
            view.cut_back(log)

    def record(self, view: RoundView, measured: Mapping[int, dict[str, Any]], acc: Any) -> None:
        """Measure, and add the rows.

        Args:
            view: The round, its weights, and the folder to record in.
            measured: Not looked at: clients measure nothing.
            acc: Nor this.
        """
        from diagnostics.landscape import Landscape

        subject = of_round(view, self.images, self.seed, self.name)
        try:
            found = Landscape(subject, seed=self.seed).sharpness(
                self.measures, budget=self.budget or "full", directions=self.directions, lanczos=self.lanczos,
                progress=False,
            )  # fmt: skip
        except UserError as error:  # a diverged model has no sharpness; training goes on
            warnings.warn(f"probe sharpness, round {view.round_index}: {error}", stacklevel=2)
            return
        for log, table in zip(LOGS, (found.table, found.profile, found.layers), strict=True):
            rows = [{"round": view.round_index, **_known(row)} for row in table.to_dict("records")]
            view.append(rows, log)

    @classmethod
    def read(cls, folder: Any) -> Any:
        """The measures that were recorded.

        Args:
            folder: `probes/sharpness/` of a run.

        Returns:
            A row per round and measure.
        """
        import pandas as pd

        from feddual.records.run_dir import RunDir

        rows = RunDir(folder).rows(LOGS[0])
        if not rows:
            raise UserError(f"{folder}: nothing recorded here")
        return pd.DataFrame(rows)


def _known(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row without what is not a number, which JSON has no word for."""
    return {str(key): value for key, value in row.items() if not (isinstance(value, float) and np.isnan(value))}


PROBE = SharpnessProbe

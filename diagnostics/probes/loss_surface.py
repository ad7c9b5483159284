"""Loss surfaces alongside training: `feddual run ... --probe loss-surface@every=30`."""

import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnostics.subject import of_round
from feddual.errors import UserError
from feddual.probes import Probe, RoundView
from feddual.records.measurements import read_manifest
from feddual.records.run_dir import RunDir


class LossSurfaceProbe(Probe):
    """Writes the global model's surface to `surfaces/round-00030/` of the run after each measured round.

    Directions and samples are the same in all rounds, so that the surfaces make an animation. It runs on the host and
    reads weights only: training's bits are the same with and without it.

    Args:
        every: Rounds between surfaces.
        rounds: Instead, the rounds to measure, from 1.
        log_spaced: Or about so many, spread over the logarithm of the rounds.
        grid: Points along each axis, n or "nxxny"; odd.
        images: Samples of the pooled training data, stratified.
        extent: How far the axes go; 1 moves every filter by its own norm.
        seed: Of directions and samples.
    """

    name = "loss-surface"

    def __init__(
        self,
        every: int = 10,
        rounds: list[int] | tuple[int, ...] = (),
        log_spaced: int = 0,
        grid: int | str = 21,
        images: int = 1000,
        extent: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(every, rounds, log_spaced)
        from diagnostics.surfaces.grid import Grid

        Grid.plane(grid, extent)  # a bad grid is refused before training, not after the first rounds
        if images < 1:
            raise UserError(f"probes: loss-surface: images must be at least 1, got {images}")
        self.grid, self.images, self.extent, self.seed = grid, images, extent, seed

    def start(self, view: RoundView) -> None:
        """Forget the surfaces of rounds that will be trained again; those not made by this probe stay.

        Args:
            view: The run before its next round.
        """
        for folder in RunDir(view.run_folder).surfaces():
            number = re.fullmatch(r"round-(\d{5})", folder.name)
            if number and int(number[1]) > view.round_index and self._made(folder):
                shutil.rmtree(folder)

    def _made(self, folder: Path) -> bool:
        try:
            return bool(read_manifest(folder)["facts"].get("probe") == self.name)
        except UserError:
            return False

    def record(self, view: RoundView, measured: Mapping[int, dict[str, Any]], acc: Any) -> None:
        """Compute and write one surface.

        Args:
            view: The round, its weights, and the folder of the run.
            measured: Not looked at: clients measure nothing.
            acc: Nor this.
        """
        from diagnostics.landscape import loss_surface

        samples = of_round(view, self.images, self.seed, self.name)
        folder = RunDir(view.run_folder).surface_path(f"round-{view.round_index:05d}")
        try:
            loss_surface(samples, grid=self.grid, extent=self.extent, seed=self.seed, out=folder, progress=False)
        except UserError as error:  # a diverged model has no surface; training goes on
            warnings.warn(f"probe loss-surface, round {view.round_index}: {error}", stacklevel=2)


PROBE = LossSurfaceProbe

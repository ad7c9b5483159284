"""What measuring sharpness gives, and its files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import tables
from feddual.errors import UserError
from feddual.records import measurements as store
from feddual.records.run_dir import SHARPNESS, atomic_write
from feddual.records.slim import kept_sharpness

TABLES = ("table", "values", "profile", "layers")


@dataclass
class Sharpness:
    """How sharp a model is, by many measures; `Landscape.sharpness` makes it.

    Attributes:
        table: A row for each measure and step size (`level`): value, standard error and 95 % interval over `draws`
            (NaN where nothing is drawn), how many of them are lower bounds (`censored`), of one-sided rises the
            `symmetric` one along the same step and the part that the gradient alone accounts for (`first_order`), and
            `passes` over the data.
        values: A row for each single draw.
        profile: Delta(r) of the mean over directions, with its interval, median and the band of 10 to 90 %.
        layers: Of each layer the gradient's norm, the weights', and their product, which rescaling layers leaves alone.
        meta: `identity`, all that determines the numbers, and `facts`.
    """

    table: pd.DataFrame
    values: pd.DataFrame
    profile: pd.DataFrame
    layers: pd.DataFrame
    meta: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Sharpness":
        """From its folder.

        Args:
            path: The folder.

        Returns:
            What was measured.

        Raises:
            UserError: When there is nothing.
        """
        found = kept_sharpness(Path(path)) or tables.read(Path(path) / SHARPNESS)
        if found is None:
            raise UserError(f"{path}: no sharpness was measured here (no {SHARPNESS} in it)")
        return cls._of_file(found)

    @classmethod
    def _of_file(cls, found: Mapping[str, Any]) -> "Sharpness":
        frames = {name: tables.frame(found[name]) for name in TABLES}
        return cls(**frames, meta={"identity": found["identity"], "facts": found["facts"]})

    @classmethod
    def stored(cls, path: Path, identity: Mapping[str, Any]) -> "Sharpness | None":
        """What a folder holds, if it is of this identity.

        Args:
            path: The folder.
            identity: All that determines the numbers.

        Returns:
            What was measured; None if the folder is new.

        Raises:
            UserError: If it holds something else.
        """
        found = tables.read(path / SHARPNESS)
        if found is None:
            if store.is_begun(path):
                raise UserError(f"out: {path} holds another measurement; choose another folder")
            return None
        store.refuse_other(path, "sharpness", found["identity"], identity)
        return cls._of_file(found)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a folder, as CSV files and one JSON with everything.

        Args:
            path: It is new or holds the same measurement.

        Returns:
            The folder.
        """
        folder = store.Folder(Path(path))
        with folder.locked():
            self.stored(folder.path, self.meta["identity"])
            self.write(folder.path)
        return folder.path

    def write(self, path: Path) -> None:
        """The files, without asking.

        Args:
            path: The folder.
        """
        for name in ("table", "profile", "layers"):
            atomic_write(path / f"{name}.csv", getattr(self, name).to_csv(index=False).encode())
        every = {name: getattr(self, name) for name in TABLES}
        tables.write(path / SHARPNESS, self.meta["identity"], every, facts=self.meta["facts"])

    def value(self, measure: str, level: float | None = None) -> float:
        """One number.

        Args:
            measure: Its name.
            level: At which step size; of several the first by default.

        Returns:
            The value.

        Raises:
            UserError: When it was not measured.
        """
        rows = self.table[self.table["measure"] == measure]
        if level is not None:
            rows = rows[np.isclose(rows["level"].to_numpy(float), level)]
        if rows.empty:
            there = ", ".join(dict.fromkeys(self.table["measure"]))
            raise UserError(f"sharpness: {measure} was not measured; there are {there}")
        return float(rows["value"].iloc[0])

    def plot(self) -> Any:
        """The radial profile.

        Returns:
            A matplotlib figure.
        """
        from figures.charts.flatness import radial

        return radial({"": self}).matplotlib()

    def caption(self) -> str:
        """The facts in a few sentences.

        Returns:
            Text for below a table or a figure.
        """
        from figures.charts.flatness import caption

        return caption(self)

    def _repr_html_(self) -> str:
        from figures.charts.flatness import html

        return html(self)

    def __repr__(self) -> str:
        facts = self.meta["facts"]
        spent = f"{facts['passes']:.0f} passes over {facts['images']} samples"
        return f"Sharpness({self.table['measure'].nunique()} measures, loss {facts['loss']:.4g}, {spent})"

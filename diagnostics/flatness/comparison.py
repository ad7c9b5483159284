"""How flat several models are, in tables with intervals.

Independently trained networks are not aligned, so one direction's difference means little: intervals come from a
hierarchical bootstrap over training seeds and directions of the paired differences.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import tables
from diagnostics.flatness import footing, measures
from diagnostics.statistics import hierarchical, mean_interval
from diagnostics.surfaces.results import Lines, Surface
from feddual.records import measurements as store
from feddual.records.run_dir import atomic_write

FILE = "comparison.json"
TABLES = ("values", "profiles", "summary", "differences")
AT_CENTRE = ("loss", "accuracy")
Measured = Mapping[tuple[str, str, str, int], Sequence[Lines | Surface]]  # by match, variant, model, seed


@dataclass
class Comparison:
    """Tables and what they were read from; `diagnostics.compare_models` makes it.

    Attributes:
        values: A row per model, seed, direction, match and variant.
        profiles: delta(r) with bands.
        summary: Each model's mean with its interval.
        differences: Of each pair of models, paired, with intervals.
        settings: What was asked for; `footing` is the step h and the images of all numbers, `equal_loss` the level of
            models at equal training loss, and the round and loss at which each was taken.
        identity: All that determines the numbers: settings, hashes of weights and samples.
        lines: By match, model and place of the seed; empty when it was read from a file or made from surfaces.
        planes: A surface of each model, to be drawn, by case: match and variant.
    """

    values: pd.DataFrame
    profiles: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    settings: dict[str, Any]
    identity: dict[str, Any]
    lines: dict[tuple[str, str, int], Lines] = field(default_factory=dict)
    planes: dict[footing.Case, dict[str, Surface]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, measured: Measured, settings: dict[str, Any], identity: dict[str, Any], names: Sequence[str]
    ) -> "Comparison":
        """The tables of what was measured; `names` are the quantities compared.

        Raises:
            UserError: When it was measured with several steps, or on several sets of images.
        """
        every = [(key, number, one) for key, several in measured.items() for number, one in enumerate(several)]
        on = footing.common({", ".join(map(str, (*key, number))): one for key, number, one in every})
        settings = settings | {"footing": asdict(on)}
        first = ((key[2], one.meta["facts"]) for key, number, one in every if key[1] == "plain" and number == 0)
        if equal := footing.reached(first):
            settings["equal_loss"] = equal
        values = pd.DataFrame([row for key, several in measured.items() for row in _rows(key, several, settings)])
        plain = {key: several for key, several in measured.items() if key[1] == "plain"}
        found = profiles(plain), summarise(values, names), paired_differences(values, names)
        return cls(values, *found, settings, identity)

    @classmethod
    def load(cls, path: str | Path) -> "Comparison | None":
        """The comparison in a folder; None when there is none."""
        found = tables.read(Path(path) / FILE)
        return None if found is None else cls.of_file(found)

    @classmethod
    def of_file(cls, found: Mapping[str, Any]) -> "Comparison":
        """What `tables.read` gave."""
        values, curves, summary, differences = (pd.DataFrame(found[name]) for name in TABLES)
        return cls(values, curves, summary, differences, found["settings"], found["identity"])

    def renamed(self, names: Sequence[str]) -> "Comparison":
        """With other names for the models, in their order."""
        new = dict(zip(dict.fromkeys(self.summary["model"]), names, strict=True))
        for table in (self.values, self.profiles, self.summary, self.differences):
            for column in {"model", "first", "second"} & set(table.columns):
                table[column] = table[column].map(new)
        if equal := self.settings.get("equal_loss"):
            equal["models"] = {new[name]: several for name, several in equal["models"].items()}
        return self

    def save(self, path: str | Path, replace: bool = False) -> Path:
        """CSV files and one JSON with everything, in a folder.

        Args:
            path: It is new or holds the same comparison.
            replace: Or another one, which is lost.
        """
        path = Path(path)
        with store.Folder(path).locked():
            if not replace:
                check(path, self.identity)
            self.write(path)
        return path

    def write(self, path: Path, csv: bool = True) -> None:
        """The files, without asking; of the tables also CSV, or JSON alone."""
        every = {name: getattr(self, name) for name in TABLES}
        for name, table in every.items() if csv else ():
            atomic_write(path / f"{name}.csv", table.to_csv(index=False).encode())
        tables.write(path / FILE, self.identity, every, settings=self.settings)

    @property
    def surfaces(self) -> dict[str, Surface]:
        """Those of the first case: models as they are, if they were measured."""
        return next(iter(self.planes.values()), {})

    @property
    def about(self) -> list[str]:
        """What all numbers are of, in sentences; a comparison of an earlier version does not know."""
        said = []
        if "footing" in self.settings:
            on = footing.Footing(**self.settings["footing"])
            said.append(f"Curvature with {on}, the same for all.")
        if left_out := self.settings.get("left_out"):
            said.append(f"Left out, since their step or images are others: {', '.join(left_out)}.")
        if equal := self.settings.get("equal_loss"):
            places = [
                f"{name} {one['training_loss']:.3g} (round {one['round']})"
                for name, several in equal["models"].items()
                for one in several
            ]
            said.append(f"At equal training loss, level {equal['level']:.3g}: {', '.join(places)}.")
        return said

    @property
    def against_first(self) -> pd.DataFrame:
        """A row per model and quantity: its mean, and its paired difference from the first model, with intervals."""
        keys = ["match", "variant", "quantity"]
        first = self.summary["model"].iloc[0]
        gaps = self.differences[self.differences["first"] == first] if len(self.differences) else self.differences
        by_key = {(*(row[key] for key in keys), row["second"]): row for row in gaps.to_dict("records")}
        rows = self.summary.to_dict("records")
        for row in rows:
            gap = by_key.get((*(row[key] for key in keys), row["model"]), {})
            row |= {f"difference{end}": gap.get(key, 0.0) for end, key in ENDS.items()}
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return self.summary.to_html(index=False) + self.differences.to_html(index=False)


ENDS = {"": "difference", "_low": "low", "_high": "high"}


def check(path: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another comparison."""
    if (found := tables.read(path / FILE)) is not None:
        store.refuse_other(path, "comparison", found.get("identity", {}), identity)


def _rows(
    key: tuple[str, str, str, int], several: Sequence[Lines | Surface], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    labels = dict(zip(("match", "variant", "model", "seed"), key, strict=True))
    every = [(_facts(one), row) for one in several for row in measures.quantities(one, settings["tau"])]
    return [labels | facts | {"direction": number} | row for number, (facts, row) in enumerate(every)]


def _facts(one: Lines | Surface) -> dict[str, Any]:
    facts = {name: one.meta["facts"].get(name) for name in ("round", *AT_CENTRE, "gradient_norm")}
    here = {name: float(getattr(one, name)[one.centre]) for name in AT_CENTRE} if isinstance(one, Surface) else {}
    return facts | here


def profiles(measured: Measured) -> pd.DataFrame:
    """delta(r) over all seeds and directions of a model: mean, median, the band of 10 to 90 %, an interval.

    With the loss at the centre, mean over seeds, and the split of the samples, which a picture must name.
    """
    rows = []
    for match, name in dict.fromkeys((match, name) for match, _, name, _ in measured):
        bundles = [several for key, several in measured.items() if (key[0], key[2]) == (match, name)]
        facts = [one.meta["facts"] for several in bundles for one in several]
        loss = float(np.mean([one["loss"] for one in facts]))
        every = np.stack([np.concatenate([measures.profiles(one) for one in several]) for several in bundles])
        for place, radius in enumerate(measures.RADII):
            rises = np.ascontiguousarray(every[:, :, place])
            low, high = hierarchical(rises)
            rows.append(
                {
                    "match": match, "model": name, "radius": radius, "mean": rises.mean(),
                    "median": float(np.median(rises)), "p10": float(np.quantile(rises, 0.1)),
                    "p90": float(np.quantile(rises, 0.9)), "low": low, "high": high, "loss": loss,
                    "split": facts[0].get("split"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def summarise(values: pd.DataFrame, names: Sequence[str] = measures.QUANTITIES) -> pd.DataFrame:
    """Each model's mean of each quantity, with its interval, and the loss at the model itself."""
    rows = []
    for (match, variant, model), part in values.groupby(["match", "variant", "model"], sort=False):
        for quantity in names:
            table = _table(part, quantity)
            mean, low, high = mean_interval(table)
            rows.append(
                {"match": match, "variant": variant, "quantity": quantity, "model": model, "mean": mean}
                | {"low": low, "high": high, "loss": part["loss"].mean()}
                | {"seeds": len(table), "directions": table.shape[1]}
            )
    return pd.DataFrame(rows)


def paired_differences(values: pd.DataFrame, names: Sequence[str] = measures.QUANTITIES) -> pd.DataFrame:
    """The second model minus the first, for each pair of models and each quantity; seeds and directions paired."""
    rows = []
    for (match, variant), part in values.groupby(["match", "variant"], sort=False):
        for first, second in itertools.combinations(part["model"].unique(), 2):
            for quantity in names:
                one, two = (_table(part[part["model"] == name], quantity) for name in (first, second))
                mean, low, high = mean_interval(two - one)
                rows.append(
                    {"match": match, "variant": variant, "quantity": quantity, "first": first, "second": second}
                    | {"difference": mean, "low": low, "high": high}
                    | {"excludes_zero": bool(low > 0 or high < 0), "seeds": len(one), "directions": one.shape[1]}
                )
    return pd.DataFrame(rows)


def _table(part: pd.DataFrame, quantity: str) -> np.ndarray:
    """Values as (seeds, directions)."""
    return part.pivot(index="seed", columns="direction", values=quantity).to_numpy(float)

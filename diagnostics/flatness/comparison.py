"""How flat several models are, in tables with intervals.

Independently trained networks are not aligned, so one direction's difference means little: intervals are over training
seeds and directions at once (`statistics.crossed`), of paired differences. Positive quantities are compared by ratios,
on the scale of logarithms; a radius that was never reached is a lower bound and has no interval.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnostics import tables
from diagnostics.flatness import footing, measures
from diagnostics.statistics import LEVEL, Interval, repeated, said, simultaneous
from diagnostics.surfaces.results import Lines, Surface
from feddual.records import measurements as store
from feddual.records.identity import Replicate
from feddual.records.run_dir import atomic_write

FILE = "comparison.json"
TABLES = ("values", "models", "profiles", "summary", "differences")
AT_CENTRE = ("loss", "accuracy")  # one number of each model, however many directions were taken from it
PLAIN = ("accuracy",)  # compared by differences, though positive
Measured = Mapping[tuple[str, str, str, int], Sequence[Lines | Surface]]  # by match, variant, model, seed


@dataclass
class Comparison:
    """Tables and what they were read from; `diagnostics.compare_models` makes it.

    Attributes:
        values: A row per match, variant, model, seed and direction: what was read off that line or pair.
        models: A row per match, variant, model and seed: loss, accuracy and gradient norm at the model itself.
        profiles: delta(r) with bands.
        summary: Each model's mean with its interval; `scale` log means a geometric mean, `censored` counts the radii
            that were never reached, which make the mean a lower bound.
        differences: Of each pair of models, paired: `effect` is a ratio or a difference, as `scale` says, with its own
            interval (low, high) and one (all_low, all_high) that holds for all `comparisons` of the table at once.
        settings: What was asked for; `footing` is the step h and the images of all numbers, `equal_loss` the level of
            models at equal training loss, and the round and loss at which each was taken.
        identity: All that determines the numbers: settings, hashes of weights and samples.
        lines: By match, model and place of the seed; empty when it was read from a file or made from surfaces.
        planes: A surface of each model, to be drawn, by case: match and variant.
    """

    values: pd.DataFrame
    models: pd.DataFrame
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
        models = pd.DataFrame([_model(key, several) for key, several in measured.items()])
        plain = {key: several for key, several in measured.items() if key[1] == "plain"}
        readings = list(_readings(values, models, names))
        known = settings.get("repetitions") or [(0, place) for place in sorted({key[3] for key in measured})]
        repetitions = [Replicate(*one) for one in known]
        return cls(
            values, models, profiles(plain, repetitions), summarise(readings, repetitions),
            paired(readings, repetitions), settings, identity,
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | Path) -> "Comparison | None":
        """The comparison in a folder; None when there is none."""
        found = tables.read(Path(path) / FILE)
        return None if found is None else cls.of_file(found)

    @classmethod
    def of_file(cls, found: Mapping[str, Any]) -> "Comparison":
        """What `tables.read` gave."""
        values, models, curves, summary, differences = (tables.frame(found.get(name, [])) for name in TABLES)
        return cls(values, models, curves, summary, differences, found["settings"], found["identity"])

    def renamed(self, names: Sequence[str]) -> "Comparison":
        """With other names for the models, in their order."""
        new = dict(zip(dict.fromkeys(self.summary["model"]), names, strict=True))
        for table in (getattr(self, name) for name in TABLES):
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
        """A row per model and quantity: its mean, and how it differs from the first model, paired, with intervals."""
        keys = ["match", "variant", "quantity"]
        gaps = self.differences.rename(columns=AGAINST)
        gaps = gaps[gaps["first"] == self.summary["model"].iloc[0]] if len(gaps) else gaps
        if gaps.empty:
            return self.summary.assign(**dict.fromkeys(AGAINST.values(), np.nan))
        wanted = gaps[[*keys, "second", *AGAINST.values()]].rename(columns={"second": "model"})
        return self.summary.merge(wanted, "left", [*keys, "model"])

    def _repr_html_(self) -> str:
        return self.summary.to_html(index=False) + self.differences.to_html(index=False)


AGAINST = {"scale": "effect_scale", "effect": "effect", "bound": "effect_bound", "comparisons": "comparisons"} | {
    end: f"effect_{end}" for end in ("low", "high", "all_low", "all_high")
}


def said_of(row: Mapping[Any, Any]) -> str:
    """A model's mean in a row of `summary`, in words; a bound where radii were censored."""
    text = said(row["mean"], row["low"], row["high"], bound=">" if row.get("censored") else "")
    return f"{text} ({row['censored']:.0f} never reached)" if row.get("censored") else text


def said_of_effect(row: Mapping[Any, Any]) -> str:
    """How a model differs from the first, in a row of `against_first`, in words."""
    return said(row["effect"], row["effect_low"], row["effect_high"], bound=row["effect_bound"])


def all_at_once(row: Mapping[Any, Any]) -> str:
    """The interval of that difference which holds for all comparisons at once, in words."""
    low, high = row["effect_all_low"], row["effect_all_high"]
    return "–" if np.isnan(low) else f"[{low:.3g}, {high:.3g}]"


def check(path: Path, identity: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another comparison."""
    if (found := tables.read(path / FILE)) is not None:
        store.refuse_other(path, "comparison", found.get("identity", {}), identity)


def _rows(
    key: tuple[str, str, str, int], several: Sequence[Lines | Surface], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    labels = dict(zip(("match", "variant", "model", "seed"), key, strict=True))
    every = [row for one in several for row in measures.quantities(one, settings["tau"])]
    return [labels | {"direction": number} | row for number, row in enumerate(every)]


def _model(key: tuple[str, str, str, int], several: Sequence[Lines | Surface]) -> dict[str, Any]:
    """The model at the centre, on the largest sample it was measured with."""
    one = max(several, key=lambda one: one.meta["facts"].get("images") or 0)
    facts = {name: one.meta["facts"].get(name) for name in ("round", *AT_CENTRE, "gradient_norm")}
    here = {name: float(getattr(one, name)[one.centre]) for name in AT_CENTRE} if isinstance(one, Surface) else {}
    return dict(zip(("match", "variant", "model", "seed"), key, strict=True)) | facts | here


def profiles(measured: Measured, repetitions: Sequence[Replicate]) -> pd.DataFrame:
    """delta(r) over all seeds and directions of a model: its mean as in `summarise`, median, the band of 10 to 90 %.

    With the loss at the centre, mean over seeds, and the split of the samples, which a picture must name.
    """
    rows = []
    for match in dict.fromkeys(match for match, *_ in measured):
        mine = {key: several for key, several in measured.items() if key[0] == match}
        every = {
            name: np.stack([
                np.concatenate([measures.profiles(one) for one in several])
                for key, several in mine.items() if key[2] == name
            ])
            for name in dict.fromkeys(key[2] for key in mine)
        }  # fmt: skip
        log = not any((rises[:, :, 1:] <= 0).any() for rises in every.values())
        for name, profile in every.items():
            labels = {"match": match, "model": name}
            losses = [_model(key, several)["loss"] for key, several in mine.items() if key[2] == name]
            split = next(one.meta["facts"].get("split") for several in mine.values() for one in several)
            loss = {"loss": float(np.mean(losses)), "split": split}
            for place, radius in enumerate(measures.RADII):
                rises = profile[:, :, place]
                spread = dict(zip(("p10", "median", "p90"), np.quantile(rises, [0.1, 0.5, 0.9]), strict=True))
                means = dict(zip(ENDS, interval(repetitions, rises, log and place > 0).floats(), strict=True))
                rows.append(labels | {"radius": radius, "seeds": len(rises)} | means | spread | loss)
    return pd.DataFrame(rows)


ENDS = ("mean", "low", "high")


def interval(which: Sequence[Replicate], values: np.ndarray, log: bool, level: float = LEVEL) -> Interval:
    """Over repetitions and directions, on the scale of logarithms or plainly."""
    return repeated(which, np.log(values), level).exp() if log else repeated(which, values, level)


@dataclass(frozen=True)
class Reading:
    """A quantity of all models that are compared with each other: their values, shape (seeds, directions)."""

    match: str
    variant: str
    quantity: str
    tables: Mapping[str, np.ndarray]
    losses: Mapping[str, float]
    censored: Mapping[str, int]  # how many values are lower bounds

    @property
    def labels(self) -> dict[str, Any]:
        return {"match": self.match, "variant": self.variant, "quantity": self.quantity}

    @property
    def log(self) -> bool:
        return self.quantity not in PLAIN and not any((table <= 0).any() for table in self.tables.values())


def _readings(values: pd.DataFrame, models: pd.DataFrame, names: Sequence[str]) -> Iterator[Reading]:
    for (match, variant), part in values.groupby(["match", "variant"], sort=False):
        centres = models[(models["match"] == match) & (models["variant"] == variant)]
        losses = {str(model): float(loss) for model, loss in centres.groupby("model")["loss"].mean().items()}
        for quantity in names:
            rows = centres.assign(direction=0) if quantity in AT_CENTRE else part
            flag = f"{quantity}_censored"
            groups = dict(list(rows.groupby("model", sort=False)))
            tables = {str(name): _table(group, quantity) for name, group in groups.items()}
            bounds = {str(name): int(group[flag].sum()) if flag in group else 0 for name, group in groups.items()}
            yield Reading(str(match), str(variant), quantity, tables, losses, bounds)


def summarise(readings: Sequence[Reading], repetitions: Sequence[Replicate]) -> pd.DataFrame:
    """Each model's mean of each quantity, with its interval, and the loss at the model itself."""
    rows = []
    for one in readings:
        for model, table in one.tables.items():
            mean, low, high = interval(repetitions, table, one.log).floats()
            count = one.censored[model]
            ends = {"low": np.nan, "high": np.nan} if count else {"low": low, "high": high}
            rows.append(
                one.labels
                | {"model": model, "scale": "log" if one.log else "plain", "mean": mean, **ends, "censored": count}
                | {"loss": one.losses[model], "seeds": len(table), "directions": table.shape[1]}
            )
    return pd.DataFrame(rows)


def paired(readings: Sequence[Reading], repetitions: Sequence[Replicate]) -> pd.DataFrame:
    """The second model over or minus the first, for each pair of models and quantity; seeds and directions paired."""
    rows = []
    for one in readings:
        together = sum((one.match, one.variant) == (other.match, other.variant) for other in readings)
        pairs = list(itertools.combinations(one.tables, 2))
        for first, second in pairs:
            tables = [np.log(one.tables[name]) if one.log else one.tables[name] for name in (first, second)]
            levels = (LEVEL, simultaneous(together * len(pairs)))
            single, every = (repeated(repetitions, tables[1] - tables[0], at) for at in levels)
            single, every = (single.exp(), every.exp()) if one.log else (single, every)
            bound = BOUNDS[one.censored[first] > 0, one.censored[second] > 0]
            ends = [np.nan if bound else float(end) for end in (single.low, single.high, every.low, every.high)]
            none = 1.0 if one.log else 0.0
            rows.append(
                one.labels
                | {"first": first, "second": second, "scale": "ratio" if one.log else "difference"}
                | {"effect": np.nan if bound == "?" else float(single.mean), "bound": bound}
                | dict(zip(("low", "high", "all_low", "all_high"), ends, strict=True))
                | {"comparisons": together * len(pairs), "differs": bool(ends[0] > none or ends[1] < none)}
                | {"differs_among_all": bool(ends[2] > none or ends[3] < none)}
                | {"seeds": len(tables[0]), "directions": tables[0].shape[1]}
            )
    return pd.DataFrame(rows)


# What a comparison is when radii of the first or the second model are lower bounds; of both, nothing.
BOUNDS = {(False, False): "", (False, True): ">", (True, False): "<", (True, True): "?"}


def _table(part: pd.DataFrame, quantity: str) -> np.ndarray:
    """Values as (seeds, directions)."""
    return part.pivot(index="seed", columns="direction", values=quantity).to_numpy(float)

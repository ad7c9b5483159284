"""What identifies an experiment: which keys of a config count, when two runs belong together, and how they differ."""

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from feddual.experiment import config

Values = Mapping[str, Any]  # a resolved config as plain values
Item = TypeVar("Item", bound=Hashable)

FREE = ("runtime", "checkpoint", "probes", "sinks")  # may change when a run is resumed: its place and pace
INCIDENTAL = ("name", "seed", *FREE)  # may differ between two runs of the same experiment


class Replicate(NamedTuple):
    """Which repetition of its experiment a run is: those of one share clients, initial weights, samples and batches."""

    draw: int  # of the clients: the partition's seed
    seed: int  # of initialisation, client sampling and batches


def replicate(values: Values) -> Replicate:
    """The repetition that a resolved config asks for; a partition that draws nothing has one draw, 0."""
    return Replicate(int(values["partition"].get("seed") or 0), int(values["seed"]))


@dataclass(frozen=True)
class Identity:
    """What is the same in all runs, over seeds and draws of the clients, of one experiment."""

    text: str
    without_rounds: str  # a timing needs no full run


def identity(values: Values) -> Identity:
    """The identity of a resolved config. The preset is a name for parameters; these count, not the name."""
    kept = {key: dict(value) if isinstance(value, Mapping) else value for key, value in essential(values).items()}
    kept["algorithm"].pop("preset", None)
    kept["partition"].pop("seed", None)
    for key in ("batch_size", "metrics"):  # change what is told, not what comes out
        kept.get("evaluation", {}).pop(key, None)
    text = json.dumps(kept, sort_keys=True)
    kept["training"] = {key: value for key, value in kept["training"].items() if key != "rounds"}
    return Identity(text, json.dumps(kept, sort_keys=True))


def essential(values: Values) -> dict[str, Any]:
    """A config without what is incidental to its experiment."""
    return {key: value for key, value in values.items() if key not in INCIDENTAL}


def flat(values: Values, prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def changes(before: Values, now: Values) -> dict[str, tuple[Any, Any]]:
    """Where two configs differ in what a resumed run may not change: dotted keys to both values (None: no such key)."""
    one, two = (flat({key: part for key, part in values.items() if key not in FREE}) for values in (before, now))
    return {key: (one.get(key), two.get(key)) for key in {**one, **two} if one.get(key) != two.get(key)}


def by_experiment(configs: Mapping[Item, Values]) -> list[list[Item]]:
    """Runs that differ in seed or draw alone, together and in their order; experiments in that of their first runs."""
    groups: dict[str, list[Item]] = {}
    for item, values in configs.items():
        groups.setdefault(identity(values).text, []).append(item)
    return [sorted(members, key=lambda item: replicate(configs[item])) for members in groups.values()]


UNTOLD = ("training.rounds", "algorithm.preset", "partition.seed")  # not what makes an experiment another one


def differences(values: Values) -> dict[str, Any]:
    """Dotted keys in which a config differs from the paper's experiment with the same data and algorithm.

    Where the paper has none, in which it differs from the defaults for its data, partition and model.
    """
    experiment = f"paper-{values['dataset'].get('name')}"
    own = {key: values[key] for key in ("dataset", "partition", "model")}
    own["training"] = {"clients_per_round": values["training"]["clients_per_round"]}  # belongs to the partition
    source = experiment if experiment in config.preset_names() else own
    base = flat(config.resolve(source, {"algorithm.name": values["algorithm"]["name"]}).to_dict())
    return {
        key: value
        for section, part in essential(values).items()
        if section != "evaluation" and isinstance(part, Mapping)
        for key, value in flat(part, f"{section}.").items()
        if key not in UNTOLD and base.get(key) != value
    }

"""What was run, where and with what: settings that differ, configs, environments."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import yaml

from feddual.records.run_dir import RunDir
from figures._results import Recorded
from figures.report._page import Fold, Part, Table
from figures.report._story import Story

INCIDENTAL = ("name", "seed", "runtime", "probes", "sinks", "checkpoint")


def settings(story: Story) -> Part:
    """The config and provenance of every run."""
    about = (
        "The settings in which these runs differ, then each run's whole config and the machine, versions and hashes "
        "behind it. With the config and the seed a run can be made again to the same bits on the same versions."
    )
    if not story.groups:
        return Part("settings", "Settings and provenance", about, missing=["No run has begun."])
    flat = {group.label: dict(_flat(_without(group.first.config))) for group in story.groups}
    keys = [key for key in dict.fromkeys(key for one in flat.values() for key in one) if _differs(key, flat)]
    frame = pd.DataFrame([{"setting": key} | {label: one.get(key) for label, one in flat.items()} for key in keys])
    rows = [[key, *("–" if (v := one.get(key)) is None else str(v) for one in flat.values())] for key in keys]
    parts: list[Table | Fold] = []
    if rows:
        columns = ["setting", *flat]
        parts.append(Table("settings", "Settings that differ between the runs", columns, rows, frame))
    parts += [_fold(run) for run in story.runs]
    parts += [Fold(f"{name}: failed", error) for name, error in story.failed.items()]
    missing = [
        f"{run.path.name}: no environment.json" for run in story.runs if not (run.path / "environment.json").is_file()
    ]
    return Part("settings", "Settings and provenance", about, parts, missing)


def _without(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in INCIDENTAL}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys."""
    found = []
    for key, value in values.items():
        deep = isinstance(value, Mapping)
        found += _flat(value, f"{prefix}{key}.") if deep else [(f"{prefix}{key}", value)]
    return found


def _differs(key: str, flat: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether it tells the runs apart; a parameter that only one algorithm has does not."""
    values = {json.dumps(one[key]) for one in flat.values() if key in one}
    lacking = any(key not in one for one in flat.values()) and not key.startswith("algorithm.")
    return len(values) > 1 or lacking


def _fold(run: Recorded) -> Fold:
    folder = RunDir(run.path)
    surfaces = sorted(path.parent.name for path in (run.path / "surfaces").glob("*/manifest.json"))
    facts = {
        "path": str(run.path),
        "study": run.study,
        "checkpoints": folder.checkpoint_rounds(),
        "surfaces": surfaces,
        "environment": folder.read_json("environment.json"),
    }
    parts = (facts, {"config": run.config})
    text = "\n".join(yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=100) for part in parts)
    return Fold(f"{run.path.name}: config and environment", text)

"""What was run, where and with what: settings that differ, configs, environments."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import yaml

from feddual.records.identity import essential, flat
from feddual.records.results import Recorded
from figures.report._page import Fold, Part, Table, part
from figures.report._story import Story


def settings(story: Story) -> Part:
    """The config and provenance of every run."""
    if not story.groups:
        return part("settings", missing=["No run has begun."])
    found = {group.label: flat(essential(group.first.config)) for group in story.groups}
    keys = [key for key in dict.fromkeys(key for one in found.values() for key in one) if _differs(key, found)]
    frame = pd.DataFrame([{"setting": key} | {label: one.get(key) for label, one in found.items()} for key in keys])
    rows = [[key, *("–" if (v := one.get(key)) is None else str(v) for one in found.values())] for key in keys]
    parts: list[Table | Fold] = []
    if rows:
        columns = ["setting", *found]
        parts.append(Table("settings", "Settings that differ between the runs", columns, rows, frame))
    parts += [_fold(run) for run in story.runs]
    parts += [Fold(f"{name}: failed", error) for name, error in story.failed.items()]
    missing = [f"{run.path.name}: no environment.json" for run in story.runs if run.record.environment is None]
    return part("settings", parts, missing)


def _differs(key: str, found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether it tells the runs apart; a parameter that only one algorithm has does not."""
    values = {json.dumps(one[key]) for one in found.values() if key in one}
    lacking = any(key not in one for one in found.values()) and not key.startswith("algorithm.")
    return len(values) > 1 or lacking


def _fold(run: Recorded) -> Fold:
    facts: dict[str, Any] = {"path": str(run.path), "study": run.study, "checkpoints": run.record.checkpoint_rounds()}
    facts |= {"surfaces": [path.name for path in run.record.surfaces()], "environment": run.record.environment}
    parts = (facts, {"config": run.config})
    text = "\n".join(yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=100) for part in parts)
    return Fold(f"{run.path.name}: config and environment", text)

"""Tables in one JSON file, beside what they were computed from."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from feddual.errors import UserError
from feddual.records.run_dir import atomic_write


def write(path: Path, identity: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], **more: Any) -> None:
    """Write tables; numbers keep all their digits, what is not finite becomes null.

    Args:
        path: The file.
        identity: All that determines the numbers.
        tables: By name.
        **more: Whatever else JSON can say.
    """
    rows = {name: [_plain(row) for row in table.to_dict("records")] for name, table in tables.items()}
    text = json.dumps({**more, "identity": identity, **rows}, indent=1, default=lambda value: value.item())
    atomic_write(path, (text + "\n").encode())


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A table that `write` wrote, null as NaN again, also where a column has nothing else."""
    made = pd.DataFrame(list(rows))
    return made.assign(**{name: np.nan for name in made.columns if made[name].isna().all()})


def read(path: Path) -> dict[str, Any] | None:
    """What `write` wrote; None when there is no such file.

    Raises:
        UserError: When it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable ({error}); choose another folder") from error


def stored(path: Path | None, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a file holds, if it was computed from just this."""
    found = None if path is None else read(path)
    return found if found is not None and found.get("identity") == json.loads(json.dumps(identity)) else None


def short(values: Any) -> Any:
    """Numbers as six digits say them: logs stay small."""
    if isinstance(values, Mapping):
        return {key: short(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)) or np.ndim(values):
        return [short(value) for value in values]
    return float(f"{values:.6g}")

"""Inside FedDUAL: how many clients the barycenter really listens to, and the adaptive loss's β, over rounds.

The effective number of clients is 1 / Σ a_k² of the barycenter's client weights a_k, a mean over the masked tensors: 1
is one client's update alone, 10 of 10 the plain mean. β is the mean over a round's clients of the weight of the
divergence, drawn where the runs recorded it (`beta` in metrics.jsonl).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures._results import WINDOW, Drawing, Results, per_round, smoothed
from figures._rows import DATASETS
from figures.charts import LOOKS, Chart, Line, Panel, save

ROWS = ("feddual", "feddual-literal", "feddual-published")


def _effective_clients(row: dict[str, Any]) -> float | None:
    facts = row.get("barycenter")
    return float(np.mean([tensor["effective_clients"] for tensor in facts.values()])) if facts else None


# The axis, its ends, and what of a round's metrics is drawn.
QUANTITIES: dict[str, tuple[str, tuple[float, float], str | Callable[[dict[str, Any]], float | None]]] = {
    "effective_clients": ("effective number of clients", (0, 10.5), _effective_clients),
    "beta": ("β, mean over clients", (0, 1), "beta"),
}


def draw(runs: Results, out: Path) -> Drawing:
    """Write barycenter_facts.png, .pdf and .html."""
    parts, panels = [], []
    for quantity, (y_label, y_range, value) in QUANTITIES.items():
        for dataset, label in DATASETS.items():
            lines = []
            found = {row: runs.of(dataset, row) for row in ROWS}
            for row in ROWS:
                seeds = per_round(found[row], value)
                if seeds.empty:
                    continue
                mean = seeds.mean(axis=1)
                lines.append(Line(LOOKS[row], mean.index.to_numpy(), smoothed(mean).to_numpy()))
                names = {"quantity": quantity, "dataset": dataset, "row": row}
                parts.append(pd.DataFrame({**names, "round": mean.index, "value": mean.to_numpy()}))
            empty = "not recorded" if any(found.values()) else "not run"
            panels.append(Panel(label, "communication round", y_label, lines, empty=empty, y_range=y_range))
    caption = f"mean over runs, running mean over {WINDOW} rounds; 10 clients per round"
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return Drawing(save(Chart(panels, caption=caption), "barycenter_facts", out), frame)

"""Table 3: seconds of one client and of the server in a round, FedAvg and FedDUAL.

From runs that had the machine for themselves; CIFAR with the frozen base's features cached, and plain.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figures._results import NOT_RUN, Drawing, Results, signed
from figures._rows import paper_rounds
from figures.charts import LOOKS, tables
from figures.paper import _timing
from figures.paper import _values as _paper

TITLE = "Table 3: seconds per round, of one client and of the server"
ROWS = ("fedavg", "feddual")
NOTES = (
    "Ours: from runs alone on the machine, the first round, which compiles, left out where there are others: a "
    "client's seconds per image times the mean number of images; the server's mean.",
    "Paper: FedDUAL, TMLR 2025, Table 3, on its authors' hardware.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write table3_round_time.md, .tex and .csv."""
    cells, sections = [], []
    for setting in _timing.SETTINGS:
        block = [_cell(runs, setting, row) for row in ROWS]
        columns = ["algorithm", "client", "paper", "difference", "server", "paper", "difference"]
        sections.append(tables.Block(setting.label, columns, [_line(cell) for cell in block]))
        cells += block
    frame = pd.DataFrame(cells)
    return Drawing(tables.write("table3_round_time", TITLE, sections, NOTES, frame, out), frame)


def _cell(runs: Results, setting: _timing.Case, row: str) -> dict[str, Any]:
    found = runs.timed(setting.dataset, row, setting.plain)
    client = server = np.nan
    if found:
        rounds = paper_rounds(setting.dataset)
        clients = found[0].config["training"]["clients_per_round"]
        client = _timing.client_seconds(found[0], rounds) / (rounds * clients)
        server = _timing.mean_seconds(found[0], "server_seconds")
    paper_client, paper_server = _paper.TABLE3.get(row, {}).get(setting.dataset, (np.nan, np.nan))
    return {
        "dataset": setting.dataset, "plain": setting.plain, "row": row,
        "rounds": len(found[0].timings) if found else 0, "client_seconds": client,
        "paper_client_seconds": paper_client, "server_seconds": server, "paper_server_seconds": paper_server,
    }  # fmt: skip


def _line(cell: dict[str, Any]) -> list[str]:
    line = [LOOKS[cell["row"]].label]
    for part in ("client", "server"):
        ours, paper = cell[f"{part}_seconds"], cell[f"paper_{part}_seconds"]
        line.append(f"{ours:.4f}" if ours == ours else NOT_RUN)
        line.append(f"{paper:.2f}" if paper == paper else "–")
        line.append("–" if np.isnan(ours - paper) else signed(ours - paper))
    return line

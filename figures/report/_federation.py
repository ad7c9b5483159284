"""What the clients hold, and how FedDUAL's server listens to them."""

import numpy as np
import pandas as pd

from feddual.records.results import Recorded
from figures._results import per_round
from figures.charts import Heat, Panel, Scale
from figures.general.client_histograms import title as partition_title
from figures.paper.barycenter_facts import QUANTITIES as BARYCENTER
from figures.report._page import Exhibit, Part, part
from figures.report._story import Group, Story
from figures.report._training import band, from_zero, tidy

COUNTS = ("#4C78D6", "#B75CC4", "#FFB000")  # seen on a white and on a black page


# --- clients ----------------------------------------------------------------------------------------------------------


def clients(story: Story) -> Part:
    """What each client holds."""
    distinct: dict[str, Recorded] = {}
    missing = []
    for run in story.runs:
        try:
            distinct.setdefault(str(run.partition["fingerprint"]), run)
        except OSError:
            missing.append(f"{run.path.name}: no partition was recorded")
    panels, parts = [], []
    top = max([10.0, *(float(run.partition["histograms"].max()) for run in distinct.values())])
    scale = Scale(1.0, top, log=True, label="images", colours=COUNTS)
    for run in distinct.values():
        counts = run.partition["histograms"].astype(int)
        sizes = counts.sum(axis=1)
        note = f"{sizes.min():,} to {sizes.max():,} images per client, median {np.median(sizes):,.0f}"
        panels.append(Panel(partition_title(run), "client", "class", [Heat(counts.T, scale)], note=note))
        client, label = np.indices(counts.shape)
        columns = {"partition": partition_title(run), "client": client.ravel(), "class": label.ravel()}
        parts.append(pd.DataFrame({**columns, "images": counts.ravel()}))
    charts = [Exhibit("client-labels", panels, pd.concat(parts, ignore_index=True))] if parts else []
    return part("clients", charts, missing)


# --- the barycenter ---------------------------------------------------------------------------------------------------


def barycenter(story: Story) -> Part:
    """FedDUAL's server and loss from inside."""
    panels, parts = [], []
    for quantity, (label, _, value) in BARYCENTER.items():
        found = {group: seeds for group in story.groups if not (seeds := per_round(group.runs, value)).empty}
        lines = [band(group, seeds) for group, seeds in found.items()]
        parts += [tidy(group, seeds, quantity) for group, seeds in found.items()]
        if lines:
            panels.append(Panel(label, "communication round", label, lines, y_range=from_zero(lines)))
    if not parts:
        return part("barycenter", missing=["None of these runs is a FedDUAL run."])
    charts = [Exhibit("barycenter", panels, pd.concat(parts, ignore_index=True), height=300)]
    weights = {group: frame for group in story.groups if not (frame := _client_weights(group)).empty}
    if weights:
        every = pd.concat([frame.assign(run=group.label) for group, frame in weights.items()], ignore_index=True)
        charts.append(Exhibit("client-weights", [_weights(*pair) for pair in weights.items()], every, height=300))
    return part("barycenter", charts)


def _client_weights(group: Group) -> pd.DataFrame:
    """Weights by round and tensor, in the order of the round's clients; of the first seed."""
    found = [
        {"round": row["round"], "tensor": tensor, "place": place, "weight": weight}
        for row in group.first.metrics
        for tensor, facts in (row.get("barycenter") or {}).items()
        for place, weight in enumerate(facts.get("client_weights") or [], 1)
    ]
    return pd.DataFrame(found)


def _weights(group: Group, frame: pd.DataFrame) -> Panel:
    """Round by rank: how unevenly the barycenter listens, from its favourite client down."""
    ranked = frame.assign(rank=frame.groupby(["round", "tensor"])["weight"].rank(ascending=False, method="first"))
    table = ranked.pivot_table("weight", "rank", "round")
    scale = Scale(0.0, float(np.nanmax(table.to_numpy())), label="weight")
    heat = Heat(table.to_numpy(), scale, x=table.columns.to_numpy())
    ranks = [str(int(rank)) for rank in table.index]
    note = "From the client it listens to most down, a mean over the layers' tensors"
    title = f"Clients' weights, {group.label}"
    return Panel(title, "communication round", "rank of the client", [heat], note=note, y_names=ranks)

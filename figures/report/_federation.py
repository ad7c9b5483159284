"""What the clients hold, and how FedDUAL's server listens to them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from feddual.records.results import Recorded
from figures.general.client_histograms import title as partition_title
from figures.paper.barycenter_facts import QUANTITIES as BARYCENTER
from figures.report._page import Chart, Panel, Section, figure
from figures.report._story import Group, Story
from figures.report._training import band, tidy

COUNTS = [[0, "#4C78D6"], [0.5, "#B75CC4"], [1, "#FFB000"]]  # seen on a white and on a black page
MANY = 2000  # cells of a heat map beyond which gaps hide it


# --- clients ----------------------------------------------------------------------------------------------------------


def clients(story: Story) -> Section:
    """What each client holds."""
    distinct: dict[str, Recorded] = {}
    missing = []
    for run in story.runs:
        try:
            distinct.setdefault(str(run.partition["fingerprint"]), run)
        except OSError:
            missing.append(f"{run.path.name}: no partition was recorded")
    panels, parts = [], []
    top = max([1.0, *(float(np.log10(run.partition["histograms"].max())) for run in distinct.values())])
    for run in distinct.values():
        counts = run.partition["histograms"].astype(int)
        sizes = counts.sum(axis=1)
        note = f"{sizes.min():,} to {sizes.max():,} images per client, median {np.median(sizes):,.0f}"
        panels.append(Panel(partition_title(run), _histogram(counts, top), note))
        client, label = np.indices(counts.shape)
        columns = {"partition": partition_title(run), "client": client.ravel(), "class": label.ravel()}
        parts.append(pd.DataFrame({**columns, "images": counts.ravel()}))
    about = (
        "How many images of each class each client holds; an empty cell is a class the client has never seen. "
        "This skew is what makes federated training hard."
    )
    charts = [Chart("client-labels", panels, pd.concat(parts, ignore_index=True))] if parts else []
    return Section("clients", "What the clients hold", about, charts, missing)


def _histogram(counts: np.ndarray, top: float) -> go.Figure:
    shown = figure("client", "class", yaxis={"title": {"text": "class"}, "dtick": max(1, counts.shape[1] // 10)})
    shown.add_heatmap(
        z=np.where(counts > 0, np.log10(np.maximum(counts, 1)), np.nan).T, customdata=counts.T,
        colorscale=COUNTS, zmin=0, zmax=top,
        hovertemplate="client %{x}, class %{y}: %{customdata} images<extra></extra>",
        colorbar={"title": {"text": "images"}, "tickvals": [0, 1, 2, 3], "ticktext": ["1", "10", "100", "1,000"],
                  "thickness": 12},
        xgap=0.5 if counts.size < MANY else 0, ygap=0.5 if counts.size < MANY else 0,
    )  # fmt: skip
    return shown


# --- the barycenter ---------------------------------------------------------------------------------------------------


def barycenter(story: Story) -> Section:
    """FedDUAL's server and loss from inside."""
    about = (
        "FedDUAL's server weighs the clients' last layers by their distance to a Wasserstein barycenter. The effective "
        "number of clients is 1 / Σ a² of these weights: 1 listens to one client alone, all of them is the plain mean. "
        "β is the weight of the adaptive loss's divergence, a mean over the round's clients."
    )
    panels, parts = [], []
    for quantity, (label, _, value) in BARYCENTER.items():
        shown = figure("communication round", label, yaxis={"title": {"text": label}, "rangemode": "tozero"})
        for group in story.groups:
            seeds = _per_round(group.runs, value)
            if not seeds.empty:
                shown.add_traces(band(group, seeds, {}))
                parts.append(tidy(group, seeds, quantity))
        if shown.data:
            panels.append(Panel(label, shown))
    if not parts:
        return Section("barycenter", "Inside FedDUAL", about, missing=["None of these runs is a FedDUAL run."])
    charts = [Chart("barycenter", panels, pd.concat(parts, ignore_index=True), height=300)]
    weights = {group: frame for group in story.groups if not (frame := _client_weights(group)).empty}
    if weights:
        every = pd.concat([frame.assign(run=group.label) for group, frame in weights.items()], ignore_index=True)
        note = "From the client it listens to most down, a mean over the layers' tensors"
        shown_panels = [Panel(f"Clients' weights, {group.label}", _weights(f), note) for group, f in weights.items()]
        charts.append(Chart("client-weights", shown_panels, every, height=300))
    return Section("barycenter", "Inside FedDUAL", about, charts)


def _per_round(runs: Sequence[Recorded], value: Callable[[dict[str, Any]], float | None]) -> pd.DataFrame:
    columns = {run.seed: pd.Series({row["round"]: value(row) for row in run.metrics}, dtype=float) for run in runs}
    return pd.DataFrame(columns, dtype=float).dropna(how="all")


def _client_weights(group: Group) -> pd.DataFrame:
    """Weights by round and tensor, in the order of the round's clients; of the first seed."""
    return pd.DataFrame(
        [
            {"round": row["round"], "tensor": tensor, "place": place, "weight": weight}
            for row in group.first.metrics
            for tensor, facts in (row.get("barycenter") or {}).items()
            for place, weight in enumerate(facts.get("client_weights") or [], 1)
        ]
    )


def _weights(frame: pd.DataFrame) -> go.Figure:
    """Round by rank: how unevenly the barycenter listens, from its favourite client down."""
    ranked = frame.assign(rank=frame.groupby(["round", "tensor"])["weight"].rank(ascending=False, method="first"))
    table = ranked.pivot_table("weight", "rank", "round")
    shown = figure("communication round", "rank of the client", yaxis={
        "title": {"text": "rank of the client"}, "autorange": "reversed", "dtick": 1,
    })  # fmt: skip
    shown.add_heatmap(
        z=table.to_numpy(), x=table.columns.to_list(), y=table.index.astype(int).to_list(), colorscale="Viridis",
        colorbar={"title": {"text": "weight"}, "thickness": 12},
        hovertemplate="round %{x}, rank %{y}: weight %{z:.3f}<br>mean over the tensors<extra></extra>",
    )  # fmt: skip
    return shown

"""The report's charts on paper: PNG and PDF, with the functions that draw the paper's figures."""

from collections.abc import Callable, Iterator
from pathlib import Path

from diagnostics.flatness.recorded import largest
from figures._results import per_round
from figures.charts import gradients as norm_plots
from figures.charts import surfaces as surface_plots
from figures.charts.describe import Chart, Heat, Line, Panel
from figures.charts.describe import save as save_chart
from figures.general.client_histograms import IMAGES
from figures.general.client_histograms import title as partition_title
from figures.report._story import UNITS, Story

Charts = dict[str, Chart]  # by the files' name


def save(source: str | Path, out: str | Path) -> Iterator[Path]:
    """Write what the runs under a folder allow, and yield each file."""
    story = Story.read(Path(source))
    for describe in PICTURES:
        for name, chart in describe(story).items():
            yield from save_chart(chart, name, Path(out), ("png", "pdf"))


def curves(story: Story) -> Charts:
    """Accuracy and loss over rounds."""
    panels = []
    for metric in ("accuracy", "loss"):
        means = {group: per_round(group.runs, metric).dropna().mean(axis=1) for group in story.groups}
        lines = [Line(group.look, mean.index.to_numpy(), mean.to_numpy()) for group, mean in means.items()]
        panels.append(Panel(f"test {metric}", "communication round", metric, lines, empty="no round yet"))
    return {"curves": Chart(panels, columns=2)}


def clients(story: Story) -> Charts:
    """What each client holds."""
    distinct = {str(run.partition["fingerprint"]): run for run in story.runs if run.record.has_partition}
    panels = [
        Panel(partition_title(run), "client", "class", [Heat(run.partition["histograms"].T, IMAGES)])
        for run in distinct.values()
    ]
    return {"clients": Chart(panels, columns=min(3, len(panels)))} if panels else {}


def gradient_norms(story: Story) -> Charts:
    """A panel per layer; and each run's ratio to its base, by layer and round."""
    frames = {group.label: list(group.gradient_norms.values()) for group in story.groups if group.gradient_norms}
    if not frames:
        return {}
    title = "Gradient of each client at the global model"
    charts = {"gradient-norms": norm_plots.lines(frames, "A", UNITS, title)}
    for group in story.groups:
        base = story.base_of(group)
        seeds = sorted(set(base.gradient_norms) & set(group.gradient_norms))
        if base is not group and seeds:
            one, two = ([which.gradient_norms[seed] for seed in seeds] for which in (base, group))
            title = f"{group.label} / {base.label}"
            charts[f"gradient-ratio-{group.first.path.name}"] = norm_plots.ratio_heatmap(one, two, title=title)
    return charts


def surfaces(story: Story) -> Charts:
    """Contours and 3-D on one scale."""
    found = {group.label: largest(story.surfaces[group.key]) for group in story.groups if group.key in story.surfaces}
    if not found:
        return {}
    return {"surfaces": surface_plots.panels(found), "surfaces-3d": surface_plots.panels3d(found)}


PICTURES: tuple[Callable[[Story], Charts], ...] = (curves, clients, gradient_norms, surfaces)

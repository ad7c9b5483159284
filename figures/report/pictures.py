"""The report's charts on paper: PNG and PDF, with the functions that draw the paper's figures."""

from collections.abc import Callable, Iterator
from pathlib import Path

from diagnostics.flatness.recorded import largest
from figures import charts
from figures._results import per_round
from figures.charts import Chart, Heat, Line, Panel
from figures.general.client_histograms import IMAGES, title
from figures.report._story import UNITS, Story

Charts = dict[str, Chart]  # by the files' name


def save(source: str | Path, out: str | Path) -> Iterator[Path]:
    """Write what the runs under a folder allow, and yield each file."""
    story = Story.read(Path(source))
    for describe in PICTURES:
        for name, chart in describe(story).items():
            yield from charts.save(chart, name, Path(out), ("png", "pdf"))


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
    held = [(title(run), Heat(run.partition["histograms"].T, IMAGES)) for run in distinct.values()]
    panels = [Panel(name, "client", "class", [heat]) for name, heat in held]
    return {"clients": Chart(panels, columns=min(3, len(panels)))} if panels else {}


def gradient_norms(story: Story) -> Charts:
    """A panel per layer; and each run's ratio to its base, by layer and round."""
    frames = {group.label: list(group.gradient_norms.values()) for group in story.groups if group.gradient_norms}
    if not frames:
        return {}
    heading = "Gradient of each client at the global model"
    found = {"gradient-norms": charts.gradients.lines(frames, "A", UNITS, heading)}
    for group in story.groups:
        base = story.base_of(group)
        seeds = sorted(set(base.gradient_norms) & set(group.gradient_norms))
        if base is not group and seeds:
            one, two = ([which.gradient_norms[seed] for seed in seeds] for which in (base, group))
            chart = charts.gradients.ratio_heatmap(one, two, title=f"{group.label} / {base.label}")
            found[f"gradient-ratio-{group.first.path.name}"] = chart
    return found


def surfaces(story: Story) -> Charts:
    """Contours and 3-D on one scale."""
    found = {group.label: largest(story.surfaces[group.key]) for group in story.groups if group.key in story.surfaces}
    if not found:
        return {}
    return {"surfaces": charts.surfaces.panels(found), "surfaces-3d": charts.surfaces.panels3d(found)}


PICTURES: tuple[Callable[[Story], Charts], ...] = (curves, clients, gradient_norms, surfaces)

"""The report's charts on paper: PNG and PDF, with the functions that draw the paper's figures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from feddual.records.run_dir import atomic_write
from figures._results import per_round
from figures.charts import gradients as norm_plots
from figures.charts import static as _static
from figures.charts import surfaces as surface_plots
from figures.charts.describe import Chart, Heat, Line, Panel
from figures.charts.style import MATPLOTLIB, Look
from figures.general.client_histograms import title as partition_title
from figures.report._landscape import largest
from figures.report._story import UNITS, Story

Files = dict[str, bytes]  # by name
DASHES = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "dashdot"}


def save(source: str | Path, out: str | Path) -> Iterator[Path]:
    """Write what the runs under a folder allow, and yield each file."""
    story = Story.read(Path(source))
    for draw in PICTURES:
        with matplotlib.rc_context(MATPLOTLIB):
            files = draw(story)
        for name, data in files.items():
            atomic_write(Path(out) / name, data)
            yield Path(out) / name


def curves(story: Story) -> Files:
    """Accuracy and loss over rounds."""
    looks = {group: Look(group.label, group.colour, dash=DASHES[group.dash]) for group in story.groups}
    panels = []
    for metric in ("accuracy", "loss"):
        means = {group: per_round(group.runs, metric).dropna().mean(axis=1) for group in story.groups}
        lines = [Line(looks[group], mean.index.to_numpy(), mean.to_numpy()) for group, mean in means.items()]
        panels.append(Panel(f"test {metric}", "communication round", metric, lines, empty="no round yet"))
    return _named("curves", _static.render(Chart(panels, columns=2, legend=list(looks.values()))))


def clients(story: Story) -> Files:
    """What each client holds."""
    distinct = {str(run.partition["fingerprint"]): run for run in story.runs if run.record.has_partition}
    panels = [
        Panel(partition_title(run), "client", "class", [Heat(run.partition["histograms"].T, "images")])
        for run in distinct.values()
    ]
    return _named("clients", _static.render(Chart(panels, columns=min(3, len(panels))))) if panels else {}


def gradient_norms(story: Story) -> Files:
    """A panel per layer; and each run's ratio to its base, by layer and round."""
    frames = {group.label: list(group.gradient_norms.values()) for group in story.groups if group.gradient_norms}
    if not frames:
        return {}
    title = "Gradient of each client at the global model"
    files = _figure("gradient-norms", norm_plots.lines(frames, "A", UNITS, title))
    for group in story.groups:
        base = story.base_of(group)
        seeds = sorted(set(base.gradient_norms) & set(group.gradient_norms))
        if base is not group and seeds:
            one, two = ([which.gradient_norms[seed] for seed in seeds] for which in (base, group))
            title = f"{group.label} / {base.label}"
            files |= _figure(f"gradient-ratio-{group.first.path.name}", norm_plots.ratio_heatmap(one, two, title=title))
    return files


def surfaces(story: Story) -> Files:
    """Contours and 3-D on one scale."""
    found = {group.label: largest(story.surfaces[group.key]) for group in story.groups if group.key in story.surfaces}
    if not found:
        return {}
    flat, deep = surface_plots.panels(found), surface_plots.panels3d(found, backend="matplotlib")
    return _figure("surfaces", flat) | _figure("surfaces-3d", deep)


PICTURES: tuple[Callable[[Story], Files], ...] = (curves, clients, gradient_norms, surfaces)


def _figure(name: str, figure: Figure) -> Files:
    return _named(name, _static.figure_bytes(figure))


def _named(name: str, formats: dict[str, bytes]) -> Files:
    return {f"{name}.{suffix}": data for suffix, data in formats.items()}

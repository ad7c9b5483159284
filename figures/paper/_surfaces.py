"""Surfaces of recorded runs, two groups of runs side by side, and how flat they are.

A run's surfaces lie in its `surfaces/` folder, one for each pair of directions. Compared are those of the last round
that all runs have: the same noise, points, images and loss. The one with the most points is drawn, all of them are
measured. Of each pair (d1, d2) through a model:

    loss, accuracy   of the model itself, on the surface's images
    kappa            the mean of the two second differences at the innermost points
    rise_r           the mean loss on the ring of radius r, above the centre's
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from diagnostics.statistics import hierarchical
from diagnostics.surfaces.results import Surface, load
from feddual.records.results import Recorded
from feddual.records.run_dir import atomic_write
from figures._results import NOT_RUN, Drawing, Results, seeds_text
from figures.charts import describe as _charts
from figures.charts import surfaces as plots
from figures.charts import tables as _tables
from figures.charts.static import save_figure
from figures.charts.style import MATPLOTLIB
from figures.charts.tables import Section

RADII = (0.25, 0.5, 1.0)
QUANTITIES = ("loss", "accuracy", "kappa", *(f"rise_{radius:g}" for radius in RADII))
Group = Mapping[int, Mapping[str, Surface]]  # by seed, then by the surface's folder
Chosen = Callable[[Mapping[str, Any]], bool]  # whether a run's config belongs to a group


def draw(
    name: str, title: str, settings: Mapping[str, Mapping[str, Chosen]], runs: Results, out: Path, dataset: str
) -> Drawing:
    """Pictures and one table of pairs of groups.

    Args:
        name: Of the files.
        title: Of the table.
        settings: By setting, two groups by label; the first is what the second is compared with.
        runs: Where to look.
        out: Where the files go.
        dataset: For the frame.
    """
    files: list[Path] = []
    frames, sections, captions = [], [], []
    for number, (setting, groups) in enumerate(settings.items()):
        found = comparable({label: _group(runs, chosen) for label, chosen in groups.items()})
        seeds = sorted(next(iter(found.values()))) if found else []
        if not seeds:
            blank = {"setting": setting, "dataset": dataset, "quantity": NOT_RUN}
            frames.append(pd.DataFrame([{**blank, "group": label} for label in groups]))
            sections.append(Section(setting, ["quantity", *groups, "difference"], [[NOT_RUN] * (len(groups) + 2)]))
            continue
        suffix = "" if number == 0 else f"_{number + 1}"
        drawn = {label: max(group[seeds[0]].values(), key=lambda s: s.loss.size) for label, group in found.items()}
        with matplotlib.rc_context(MATPLOTLIB):
            files += _pictures(f"{name}{suffix}", drawn, found, seeds, out)
        captions += [f"Drawn, {label} ({setting}): {surface.caption()}" for label, surface in drawn.items()]
        table = flatness(found, seeds)
        frames.append(table.assign(setting=setting, dataset=dataset))
        sections.append(_section(setting, table, len(seeds)))
    frame = pd.concat(frames, ignore_index=True)
    files += _tables.write(f"{name}_table", title, sections, [*NOTES, *captions], frame, out)
    return Drawing(files, frame)


NOTES = (
    "Mean over training seeds and pairs of directions; 95 % intervals by a hierarchical bootstrap over both, of the "
    "paired difference in the last column. Directions are filter-normalised: radius 1 moves every filter by its own "
    "norm. A smaller number is a flatter model, not a better one.",
)


def _group(runs: Results, chosen: Chosen) -> dict[int, dict[str, Surface]]:
    found: dict[int, dict[str, Surface]] = {}
    for run in runs.runs:
        surfaces = _of_run(run) if chosen(run.config) else {}
        if surfaces:
            found[run.seed] = surfaces
    return found


def _of_run(run: Recorded) -> dict[str, Surface]:
    """The finished surfaces around a run's last model, by folder."""
    loaded = {folder.name: load(folder) for folder in run.record.surfaces()}
    return {name: found for name, found in loaded.items() if isinstance(found, Surface) and is_last(found, run)}


def is_last(surface: Surface, run: Recorded) -> bool:
    """Whether a surface is whole and of the run's last round; a probe leaves those of earlier rounds beside it."""
    last = run.summary["rounds"]
    return surface.complete and surface.meta["facts"].get("round", last) == last


def comparable(found: Mapping[str, Group]) -> dict[str, dict[int, dict[str, Surface]]]:
    """The seeds and planes that all groups have, by the folder's name in the first; nothing if there are none."""
    if not all(found.values()):
        return {}
    seeds = sorted(set.intersection(*(set(group) for group in found.values())))
    planes = {
        (label, seed): {_plane(surface): surface for surface in group[seed].values()}
        for label, group in found.items()
        for seed in seeds
    }
    if not planes:
        return {}
    names = {_plane(surface): name for name, surface in next(iter(found.values()))[seeds[0]].items()}
    shared = [plane for plane in names if all(plane in there for there in planes.values())]
    if not shared:
        return {}
    return {
        label: {seed: {names[plane]: planes[label, seed][plane] for plane in shared} for seed in seeds}
        for label in found
    }


def _plane(surface: Surface) -> tuple[Any, ...]:
    """What two surfaces share that can be compared: the noise, the points, the images, the loss."""
    identity = surface.meta["identity"]
    about = [str(identity.get(key)) for key in ("direction_names", "data", "loss", "bn", "two_level")]
    return (*about, surface.alphas.tobytes(), surface.betas.tobytes())


def _pictures(
    name: str, drawn: Mapping[str, Surface], found: Mapping[str, Group], seeds: Sequence[int], out: Path
) -> list[Path]:
    files = save_figure(plots.panels(drawn), f"{name}_contours", out)
    files += save_figure(plots.panels3d(drawn, backend="matplotlib"), f"{name}_3d", out)
    first, second = ([surface for seed in seeds for surface in group[seed].values()] for group in found.values())
    shape = min(surface.loss.shape for surface in [*first, *second])
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a.loss.shape == b.loss.shape == shape]
    left, right = map(list, zip(*pairs, strict=True))
    one, two = found
    files += save_figure(plots.difference(left, right, (one, two)), f"{name}_difference", out)
    page = out / f"{name}_3d.html"
    atomic_write(page, plots.panels3d(drawn).to_html(include_plotlyjs="directory").encode())
    _charts.share_library(out)
    return [*files, page]


def flatness(found: Mapping[str, Group], seeds: Sequence[int]) -> pd.DataFrame:
    """Each group's quantities with intervals, and the paired differences to the first group; `found` is comparable."""
    values = {
        label: np.array([[measure(surface) for surface in group[seed].values()] for seed in seeds])
        for label, group in found.items()
    }
    base = next(iter(values))
    lines = []
    for label, array in values.items():
        for column, quantity in enumerate(QUANTITIES):
            own, gap = array[:, :, column], array[:, :, column] - values[base][:, :, column]
            low, high = hierarchical(own)
            below, above = hierarchical(gap)
            lines.append(
                {
                    "quantity": quantity, "group": label, "mean": own.mean(), "low": low, "high": high,
                    "difference": gap.mean(), "difference_low": below, "difference_high": above,
                    "seeds": own.shape[0], "pairs": own.shape[1],
                }
            )  # fmt: skip
    return pd.DataFrame(lines)


def measure(surface: Surface) -> list[float]:
    """The numbers of QUANTITIES."""
    iy, ix = surface.centre
    rise = surface.loss - surface.loss[iy, ix]
    step_x, step_y = surface.alphas[ix + 1], surface.betas[iy + 1]
    along = (rise[iy, ix + 1] + rise[iy, ix - 1]) / step_x**2, (rise[iy + 1, ix] + rise[iy - 1, ix]) / step_y**2
    radius = np.hypot(*np.meshgrid(surface.alphas, surface.betas))
    rings = [rise[np.abs(radius - wanted) <= step_x / 2] for wanted in RADII]
    here = float(surface.loss[iy, ix]), float(surface.accuracy[iy, ix])
    return [*here, float(np.mean(along)), *(float(ring.mean()) if ring.size else np.nan for ring in rings)]


def _section(setting: str, table: pd.DataFrame, seeds: int) -> Section:
    labels = list(dict.fromkeys(table["group"]))
    rows = []
    for quantity, part in table.groupby("quantity", sort=False):
        by_group = part.set_index("group")
        cells = [_interval(by_group.loc[label], "mean", "low", "high") for label in labels]
        gap = _interval(by_group.loc[labels[-1]], "difference", "difference_low", "difference_high")
        rows.append([str(quantity), *cells, gap])
    pairs = int(table["pairs"].max())
    return Section(f"{setting} ({seeds_text(seeds)} × {pairs} pairs)", ["quantity", *labels, "difference"], rows)


def _interval(row: Any, middle: str, low: str, high: str) -> str:
    return f"{row[middle]:.3g} [{row[low]:.3g}, {row[high]:.3g}]"

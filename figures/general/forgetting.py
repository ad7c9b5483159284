"""What averaging breaks: forgetting by class, agreement of the clients, calibration and fairness, over rounds.

Of every run with the probe `forgetting`, on paper and as pages. Needs run directories: collected results leave it out.
"""

from pathlib import Path

import pandas as pd

from diagnostics.forgetting.probe import ForgettingProbe
from figures._results import NOT_RUN, Drawing, Results, grouped, seeds_text
from figures.charts import averaging, save

SHOWS = ()  # none of the collected results


def draw(runs: Results, out: Path) -> Drawing:
    """Write forgetting, forgetting_stages, forgetting_classes, _cosines, _clients, _features and _reliability."""
    found = grouped([run for run in runs.runs if run.record.has_probe(ForgettingProbe.name)])
    paths = {
        label: [run.record.probe_path(ForgettingProbe.name) for run in several] for label, several in found.items()
    }
    frames = {label: [ForgettingProbe.read(path) for path in several] for label, several in paths.items()}
    bins = {label: [ForgettingProbe.reliability(path) for path in several] for label, several in paths.items()}
    size = f"{seeds_text(*map(len, found.values()), what='run')} (draws of the clients and seeds)" if found else NOT_RUN
    charts = {
        "forgetting": averaging.changes(frames or {"": []}, f"accuracy lost; mean over the round's clients and {size}"),
        "forgetting_stages": averaging.stages(frames or {"": []}, f"mean over the round's clients and {size}"),
        "forgetting_reliability": averaging.reliability(bins, title=f"last measured round; examples of {size}"),
    }
    more = {about: averaging.lines(frames, about, f"mean and range over {size}") for about in averaging.LINES}
    charts |= {f"forgetting_{about}": chart for about, chart in more.items()}
    files = [path for name, chart in charts.items() for path in save(chart, name, out)]
    parts = [
        frame.assign(dataset=run.dataset, run=label, draw=run.replicate.draw, seed=run.replicate.seed)
        for label, several in found.items()
        for run, frame in zip(several, frames[label], strict=True)
    ]
    blank = pd.DataFrame(columns=["dataset", "run", "draw", "seed"])
    return Drawing(files, pd.concat(parts, ignore_index=True) if parts else blank)

"""What objects look like in a notebook, and pictures of runs; from runs that were never trained."""

import json
import re
import xml.etree.ElementTree as xml

import numpy as np
import pandas as pd
import pytest

import feddual
from diagnostics.surfaces.results import Surface
from feddual import display
from feddual.data import partition
from feddual.data.datasets import Dataset
from feddual.data.federation import Federation
from feddual.errors import UserError
from figures.charts import live, surfaces
from figures.charts import runs as draw
from tests.figures.test_figures import make_run, write_study


def svg(text):
    """The drawing in a piece of HTML, which must be well formed."""
    return xml.fromstring(re.search(r"<svg.*</svg>", text)[0])


@pytest.fixture
def study(tmp_path):
    write_study(tmp_path / "study", "mine", experiments=["paper-fmnist"], seeds=2)
    for row in ("fedprox", "fedavg"):
        for seed in (0, 1):
            make_run(tmp_path / "study" / f"{row}-s{seed}", "fmnist", row, seed, rounds=6)
    return feddual.open_study(tmp_path / "study")


def test_a_sparkline_spans_its_values_and_skips_gaps():
    (line,) = svg(display.sparkline([0.0, None, 1.0, 0.5]))
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert [x for x, _ in points] == [2.0, pytest.approx(159.3), 238.0]
    assert [y for _, y in points] == [37.0, 3.0, 20.0]  # y grows downwards
    assert display.sparkline([0.5]) == ""
    assert display.sparkline([0.5, float("nan")]) == ""


def test_facts_leave_out_what_is_unknown_and_escape_what_is_written():
    text = display.facts("<a>", {"x": None, "y": 0.123456, "z": "<b>"})
    assert "&lt;a&gt;" in text
    assert "0.1235" in text
    assert "&lt;b&gt;" in text
    assert ">x<" not in text


def test_partitions_and_federations_show_themselves():
    labels = np.array([0, 0, 0, 1, 1, 2])
    split = partition.Partition.of([np.array([0, 1, 2, 3]), np.array([3, 4])])
    text = split._repr_html_()
    assert "2 clients" in text
    assert "5 in all, 1 of them held more than once" in text
    assert [float(bar.attrib["height"]) for bar in svg(text)] == [40, 20]
    images = np.zeros((6, 2))
    shown = Federation(Dataset("toy", images, labels, images[:1], labels[:1]), split, "unit")._repr_html_()
    cells = [cell[0].text for cell in svg(shown)]
    assert cells == ["client 0, class 0: 3", "client 0, class 1: 1", "client 1, class 1: 2"]


def test_a_study_has_its_rows_in_order_its_seeds_and_a_table(study):
    assert {row: [run.config.seed for run in runs] for row, runs in study.runs.items()} == {
        "fedavg": [0, 1],
        "fedprox": [0, 1],
    }
    assert study.table["seeds"].tolist() == [2, 2]
    assert "fedprox" in study._repr_html_()
    assert "4 runs of 2 rows" in repr(study)
    with pytest.raises(UserError, match="no study here"):
        feddual.open_study(study.path / "fedavg-s0")


def test_a_study_without_a_finished_run_shows_itself_too(tmp_path):
    write_study(tmp_path, "mine", experiments=["paper-fmnist"])
    assert "runs" in feddual.open_study(tmp_path)._repr_html_()


def test_curves_are_means_of_seeds_over_rounds_bytes_or_seconds(study):
    chart = draw.curves(study.runs)
    (axis,) = chart.matplotlib().axes
    expected = np.mean([run.metrics["accuracy"] for run in study.runs["fedavg"]], axis=0)
    np.testing.assert_allclose(axis.lines[0].get_ydata(), expected)
    assert chart.panels[0].note == "mean and range of 2 seeds"
    (axis,) = draw.curves({"one": study.runs["fedavg"][0]}, against="megabytes").matplotlib().axes
    np.testing.assert_allclose(axis.lines[0].get_xdata(), 2 * np.arange(1, 7))  # a megabyte each way a round
    (axis,) = draw.curves({"one": study.runs["fedavg"][0]}, against="seconds").matplotlib().axes
    np.testing.assert_allclose(axis.lines[0].get_xdata(), 2 * np.arange(1, 7))
    with pytest.raises(UserError, match="allowed: round"):
        draw.curves(study.runs, against="hours")


def test_seeds_are_points_ordered_by_their_mean(study):
    (axis,) = draw.seeds(study.runs).matplotlib().axes
    means = [line.get_xdata()[0] for line in axis.lines[1::2]]
    assert means == sorted(means, reverse=True)
    assert len(axis.lines[0].get_xdata()) == 2


def test_label_maps_share_one_scale(study):
    run = study.runs["fedavg"][0]
    figure = draw.label_maps({"a": run.histograms, "b": 10 * run.histograms}, clients=20).matplotlib()
    images = [axis.collections[0] for axis in figure.axes[:2]]
    assert images[0].norm is images[1].norm
    assert images[0].get_array().shape == (10, 20)


def test_a_surface_to_explore_has_a_picture_for_readers():
    steps = np.linspace(-1, 1, 5)
    loss = 1 + np.add.outer(steps**2, steps**2)
    flat = {"sem": 0 * loss, "accuracy": 0 * loss, "samples": np.full(loss.shape, 10)}
    meta = {"facts": {"loss": 1.0}, "identity": {}}
    surface = Surface(
        steps, loss, class_loss=np.zeros((5, 5, 0)), computed=np.ones((5, 5), bool), meta=meta, betas=steps, **flat
    )
    bundle = surfaces.panels3d({"": surface})._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    figure = bundle["application/vnd.plotly.v1+json"]
    assert figure["data"][0]["type"] == "surface"
    assert len(json.dumps(figure)) < 50_000  # the numbers, not the library


class Shell:
    """What is asked of a notebook's."""

    kernel = "python3"
    execution_count = 1


def test_a_live_picture_is_updated_in_its_cell_and_the_next_run_gets_its_own(monkeypatch, tmp_path):
    events, shell = [], Shell()

    class Handle:
        def update(self, figure):
            events.append("updated")

    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", lambda figure, display_id: events.append("new") or Handle())
    columns = {"client": None, "layer": "output", "definition": "minibatch", "normalisation": "rms", "value": 1.0}
    frame = pd.DataFrame([{"round": 1, **columns}, {"round": 2, **columns}])
    for folder in ("a", "a", "b"):
        live.show(tmp_path / folder, frame)
    shell.execution_count = 2
    live.show(tmp_path / "b", frame)
    assert events == ["new", "updated", "new", "new"]
    monkeypatch.setattr("IPython.get_ipython", lambda: None)  # a script: nothing is drawn
    live.show(tmp_path / "c", frame)
    assert len(events) == 4

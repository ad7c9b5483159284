"""Charts of barriers and trajectories: what was measured is what is drawn, by both back ends."""

import numpy as np
import pandas as pd
import pytest

from diagnostics.merging.result import Barriers
from diagnostics.surfaces.results import Surface
from diagnostics.trajectories.trajectory import Trajectory
from feddual.errors import UserError
from figures.charts import merging, trajectories


@pytest.fixture
def found():
    names, t = ["client 3", "client 5", "client 8"], np.linspace(0, 1, 5)
    lines, values = [], []
    ends = [("clients", a, b) for a, b in ((0, 1), (1, 2))] + [("client and global", k, 3) for k in range(3)]
    names.append("global")
    for place, (between, a, b) in enumerate(ends):
        key = {"between": between, "first": names[a], "second": names[b], "order": "as trained"}
        for layer, end in (("all", ""), ("one", "first"), ("one", "second")):
            where = key | {"layer": layer, "end": end}
            lines += [where | {"t": step, "loss": 1 + place * step, "error": 0.5} for step in t]
            numbers = {"barrier": 0.1 * place, "at": 0.5, "middle": 0.0, "rise": -0.1 * place}
            values.append(where | numbers | {f"error_{k}": v for k, v in numbers.items()} | {"apart": 0.2})
    exchanges = [
        {"client": name, "layer": layer, "way": way, "data": data, "loss": k + 0.5, "error": 0.1, "apart": 0.2}
        for k, name in enumerate(names[:3]) for layer in ("one", "all")
        for way in ("averaged", "kept") for data in ("pooled", "own")
    ]  # fmt: skip
    models = [{"model": name, "loss": 1.0, "error": 0.5} for name in names]
    frames = [pd.DataFrame(one) for one in (models, lines, values, exchanges)]
    return Barriers(*frames, settings={"replicate": [0, 0]}, identity={})


def test_the_matrix_is_symmetric_and_empty_where_nothing_was_measured(found):
    (panel,) = merging.matrix(found).panels
    cells = panel.marks[0].values
    assert list(panel.y_names) == ["client 3", "client 5", "client 8", "global"]
    assert cells[1, 2] == cells[2, 1] == pytest.approx(0.1)
    assert np.isnan(cells[0, 2])
    assert np.isnan(np.diag(cells)).all()
    assert cells[2, 3] == pytest.approx(0.4)
    signed = merging.matrix(found, "rise").panels[0]
    assert (signed.scale.low, signed.scale.high) == (pytest.approx(-0.4), pytest.approx(0.4))
    with pytest.raises(UserError, match="quantity: 'loss' is unknown"):
        merging.matrix(found, "loss")
    assert len(merging.matrix(found).matplotlib().axes) == 2


def test_layers_have_the_means_and_intervals_of_the_summary(found):
    chart = merging.by_layer(found)
    assert len(chart.panels) == 4
    kept = chart.panels[3]
    assert list(kept.x_names) == ["one", "all"]
    points = kept.marks[0]
    assert points.y.tolist() == [1.5, 1.5]
    half = 4.302653 * 1 / np.sqrt(3)  # Student's t, two degrees of freedom, of 0.5, 1.5, 2.5
    np.testing.assert_allclose(points.high - points.y, half, rtol=1e-5)
    assert "95 % over clients" in kept.note
    assert len(chart.plotly().data) == len(chart.matplotlib().axes) == 4


def test_lines_are_drawn_one_by_one_with_their_mean(found):
    clients, made = merging.lines(found).panels
    assert [len(panel.marks) for panel in (clients, made)] == [3, 4]
    np.testing.assert_allclose(clients.marks[-1].y, 1 + 0.5 * np.linspace(0, 1, 5))
    assert made.title == "client (0) and global model (1)"


def test_a_trajectory_is_coloured_by_its_own_losses_on_the_surfaces_scale():
    rows = []
    for run, shift in (("a", 0.0), ("b", 1.0)):
        for number in range(3):
            place = {"alpha": 2.0 - number, "beta": shift, "off": 0.5, "distance": 3.0}
            rows.append(
                {
                    "run": run,
                    "round": number,
                    "kind": "global",
                    "client": np.nan,
                    **place,
                    "loss": 1 + shift,
                    "error": 0.1,
                }
            )
    rows.append(rows[-1] | {"kind": "client", "client": 4.0})
    alphas = np.linspace(-1, 3, 5)
    loss = 1 + alphas[:, None] ** 2 + alphas**2
    arrays = {"sem": loss, "accuracy": loss, "class_loss": loss[..., None], "computed": loss > 0, "samples": loss > 0}
    surface = Surface(alphas, loss, **arrays, meta={}, betas=alphas)
    found = Trajectory(pd.DataFrame(rows), np.array([0.8, 0.2]), np.array([0.81, 0.09]), surface, {"of": "a, b"}, {})
    plane, beside = trajectories.trajectory(found).panels
    contour, first, satellites, second, _ = plane.marks
    assert first.scale is contour.scale is satellites.scale
    assert second.values.tolist() == [2.0, 2.0, 2.0]
    assert (first.joined, satellites.joined) == (True, False)
    assert "random walks of as many steps: 81%, 9%" in plane.note
    assert [mark.look.dash for mark in beside.marks] == ["solid", "dashed", "solid", "dashed"]
    drawn = trajectories.trajectory(found)
    assert len(drawn.matplotlib().axes) == 3
    coloured = [trace for trace in drawn.plotly().data if trace.type == "scatter" and trace.marker.colorscale]
    assert len(coloured) == 3
    without = trajectories.trajectory(Trajectory(found.points, found.shares, found.walk, None, found.settings, {}))
    assert any(trace.marker.showscale for trace in without.plotly().data if trace.type == "scatter")
    assert "lie up to 17%" in found.caption()


def test_the_general_figure_draws_recorded_barriers_of_any_runs(tmp_path):
    import diagnostics
    import feddual
    import figures
    from tests.helpers import tiny

    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        run = feddual.run(tiny(name=name, partition__alpha=alpha), out=tmp_path / "runs" / name, progress=False)
        out = tmp_path / "runs" / name / "barriers" / "round-00001"
        diagnostics.barriers(run, round=1, grid=3, images=60, out=out, progress=False)
    drawing = figures.draw("barriers", tmp_path / "runs", tmp_path / "out")
    assert {path.name for path in drawing.files} >= {"barriers.png", "barriers.html", "barriers_table.md"}
    assert set(drawing.frame["experiment"]) == {"FedAvg, α = 100", "FedAvg, α = 0.1"}
    assert "loss change, kept" in (tmp_path / "out" / "barriers_table.md").read_text()

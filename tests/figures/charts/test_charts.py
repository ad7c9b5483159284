"""Charts: one description, two back ends that both draw every mark of it."""

import ast
import doctest
import importlib
import inspect
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import figures
from feddual.errors import UserError
from figures import charts
from figures.charts.saving import elsewhere

ROOT = Path(__file__).parents[3]
X = np.arange(4.0)
SCALE = charts.Scale(0.1, 10.0, np.geomspace(0.1, 10, 5), log=True, label="loss")
LOSS = 0.5 + np.add.outer(X**2, X)
MARKS = {
    "line": charts.Line(charts.look(0, "a"), X, X**2, X, X**2 + 1),
    "points": charts.Points(charts.look(0, "a"), X, X + 1, X, X + 2),
    "bars": charts.Bars([charts.look(0, "a"), charts.look(1, "b")], {"one": [1.0, None]}, ["", "not run"]),
    "stack": charts.Bars([charts.look(0, "a")], {"one": [1.0], "two": [2.0]}, stacked=["#0072B2", "#E69F00"]),
    "heat": charts.Heat(LOSS, SCALE, hatched=LOSS > 5),
    "contour": charts.Contour(LOSS, SCALE, X, X),
    "surface": charts.Surface3D(LOSS, SCALE, X, X),
}
TYPES = {"line": "scatter", "points": "scatter", "bars": "bar", "stack": "bar", "heat": "heatmap"}


def chart_of(*marks, **options):
    return charts.Chart([charts.Panel("title", "x", "y", [mark]) for mark in marks], columns=2, **options)


def artists(axis):
    return [*axis.lines, *axis.collections, *axis.patches, *axis.containers]


@pytest.mark.parametrize("name", MARKS)
def test_both_back_ends_draw_every_mark(name):
    chart = chart_of(MARKS[name])
    assert artists(chart.matplotlib().axes[0])
    assert TYPES.get(name, name) in {trace.type for trace in chart.plotly().data}


def test_every_kind_of_mark_is_tried_here():
    from figures.charts.describe import Mark

    assert {type(mark) for mark in MARKS.values()} == set(Mark.__subclasses__())


def test_numbers_and_names_are_the_same_in_both():
    chart = chart_of(MARKS["line"])
    (drawn,) = chart.matplotlib().axes[0].lines
    trace = chart.plotly().data[-1]
    np.testing.assert_array_equal(drawn.get_ydata(), trace.y)
    assert trace.name == chart.matplotlib().legends[0].get_texts()[0].get_text() == "a"
    assert chart.plotly().layout.yaxis.title.text == chart.matplotlib().axes[0].get_ylabel() == "y"


def test_panels_that_share_a_scale_share_a_colour_bar():
    other = charts.Heat(LOSS, charts.Scale(0.0, 20.0, label="other"))
    chart = chart_of(MARKS["heat"], MARKS["heat"], other)
    assert len(chart.matplotlib().axes) == 3 + 2
    one, two, three = (trace for trace in chart.plotly().data if trace.type == "heatmap")
    assert (one.zmin, one.zmax) == (two.zmin, two.zmax) != (three.zmin, three.zmax)
    assert [one.showscale, two.showscale, three.showscale] == [False, True, True]
    silent = charts.Heat(LOSS, charts.Scale(0.0, 20.0))  # without a label there is none
    assert len(chart_of(silent).matplotlib().axes) == 1


def test_cells_without_a_number_stay_empty():
    heat = charts.Heat(np.array([[0.0, 1.0], [np.nan, 100.0]]), charts.Scale(1, 100, log=True, label="images"))
    mesh = chart_of(heat).matplotlib().axes[0].collections[0]
    np.testing.assert_array_equal(mesh.get_array().mask.reshape(2, 2), [[True, False], [True, False]])
    np.testing.assert_array_equal(np.array(chart_of(heat).plotly().data[0].z, float), [[np.nan, 0], [np.nan, 2]])


def test_a_film_has_a_slider_and_some_of_its_panels_on_paper():
    panels = [charts.Panel(f"round {number}", "x", "y", [MARKS["points"]]) for number in range(7)]
    film = charts.Chart(panels, columns=3, film=True)
    assert [axis.get_title("left") for axis in film.matplotlib().axes] == ["round 0", "round 3", "round 6"]
    page = film.plotly()
    assert len(page.frames) == len(page.layout.sliders[0].steps) == 7
    flat = chart_of(MARKS["contour"], MARKS["heat"], film=True).plotly()
    assert [frame.data[0].type for frame in flat.frames] == ["contour", "heatmap"]


def test_an_empty_panel_says_why():
    chart = charts.Chart([charts.Panel("title", "x", "y", [], empty="not measured")], columns=1)
    assert "not measured" in [text.get_text() for text in chart.matplotlib().axes[0].texts]
    assert "not measured" in chart.plotly().to_json()


def test_a_chart_drawn_elsewhere_is_the_same_to_the_byte(tmp_path):
    chart = chart_of(MARKS["line"], MARKS["heat"], MARKS["contour"])
    here = charts.save(chart, "same", tmp_path / "here", ("png", "html"))
    with ThreadPoolExecutor(1) as pool, elsewhere(pool) as pending:
        there = charts.save(chart, "same", tmp_path / "there", ("png", "html"))
    assert [one.result() for one in pending] == [None]
    assert [file.name for file in there] == [file.name for file in here] == ["same.png", "same.html"]
    assert [file.read_bytes() for file in there] == [file.read_bytes() for file in here]


def test_what_fails_elsewhere_is_said_here(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder would be")
    with ThreadPoolExecutor(1) as pool, elsewhere(pool) as pending:
        charts.save(chart_of(MARKS["line"]), "one", tmp_path / "taken", ("png",))
    with pytest.raises(UserError, match=r"cannot write to .*taken"):
        pending[0].result()


def test_a_chart_that_cannot_be_sent_is_drawn_at_once(tmp_path):
    class Local(str):  # pickle finds no class within a function
        pass

    chart = chart_of(MARKS["line"], caption=Local("a notebook's own"))
    with ThreadPoolExecutor(1) as pool, elsewhere(pool) as pending:
        (file,) = charts.save(chart, "one", tmp_path, ("png",))
        assert file.is_file()
    assert not pending


def test_files_are_named_by_their_kind_and_the_same_each_time(tmp_path):
    chart = chart_of(*MARKS.values())
    for suffix in ("png", "pdf", "html"):
        first, second = chart.save(tmp_path / f"a.{suffix}"), chart.save(tmp_path / "again" / f"a.{suffix}")
        assert first.read_bytes() == second.read_bytes(), suffix
    assert "<script src=" not in (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"must end in \.png, \.pdf, \.html"):
        chart.save(tmp_path / "a.doc")
    with pytest.raises(UserError, match="backend: 'paint' is unknown; allowed: plotly, matplotlib"):
        chart.draw("paint")
    files = charts.save(chart, "b", tmp_path / "out", ("png", "html"))
    assert [path.name for path in files] == ["b.png", "b.html"]
    assert 'src="plotly.min.js"' in files[1].read_text(encoding="utf-8")


def test_a_notebook_gets_a_page_and_a_picture():
    bundle = chart_of(MARKS["line"])._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    assert bundle["application/vnd.plotly.v1+json"]["data"][-1]["name"] == "a"


def test_describing_imports_nothing_that_draws():
    code = (
        "import sys, numpy as np; from figures import charts;"
        "charts.Chart([charts.Panel('', '', '', [charts.Line(charts.look(0, 'a'), np.arange(3), np.arange(3))])]);"
        "charts.save, charts.runs, charts.surfaces, charts.lines, charts.gradients, charts.tables;"
        "assert not {'matplotlib', 'plotly', 'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", charts.__all__)
def test_every_exported_name_says_what_it_is(name):
    assert name in dir(charts)
    value = getattr(charts, name)
    if callable(value):
        assert "Args:" in inspect.getdoc(value)
        assert inspect.isclass(value) or "Returns:" in inspect.getdoc(value)


@pytest.mark.parametrize("name", ["describe", "scale", "style"])
def test_examples_in_the_help_run(name):
    found = doctest.testmod(importlib.import_module(f"figures.charts.{name}"))
    assert found.attempted
    assert not found.failed


def test_no_name_for_two_things():
    names = [
        node.name
        for room in ("feddual", "diagnostics", "figures")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    for name in ("Chart", "Panel", "Section", "Block", "Part", "Exhibit", "Line", "Look", "Scale"):
        assert names.count(name) == 1, name


def test_an_installed_package_draws_into_the_working_directory(tmp_path):
    assert figures.GALLERY == ROOT / "figures" / "gallery"
    (tmp_path / "figures").mkdir()
    shutil.copy(ROOT / "figures" / "__init__.py", tmp_path / "figures")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import figures; print(figures.GALLERY)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "gallery"

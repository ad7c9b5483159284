"""Pictures: one scale for all panels, facts in titles and captions, files other tools read."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from diagnostics.surfaces.export import export
from diagnostics.surfaces.results import Lines, Surface
from feddual.errors import UserError
from figures.charts import surfaces as plots
from figures.charts.captions import captions, save
from figures.charts.lines import plot_lines, plot_profiles
from figures.charts.scale import shared_scale


def made(scale=1.0, computed=None, shape=(7, 9), seed=0):
    """A surface without a model: a bowl that is steeper in beta."""
    betas, alphas = (np.linspace(-1, 1, n) for n in shape)
    loss = scale * (0.5 + alphas[None, :] ** 2 + 4 * betas[:, None] ** 2 + 0.3 * alphas[None, :])
    computed = np.ones(shape, bool) if computed is None else computed
    identity = {
        "kind": "surface", "weights": "ab" * 32, "data": "cd" * 32, "directions": ["ef"], "loss": "crossentropy",
        "direction_names": ["random filter-normalised, seed 0, index 0"] * 2, "bn": "frozen", "two_level": None,
        "alphas": alphas.tolist(), "betas": betas.tolist(),
    }  # fmt: skip
    facts = {"source": "bowl", "loss": float(loss[shape[0] // 2, shape[1] // 2]), "accuracy": 0.875,
             "gradient_norm": 0.123, "images": 100, "split": "test"}  # fmt: skip
    return Surface(
        alphas, np.where(computed, loss, np.nan), np.full(shape, 0.05), np.full(shape, 0.9), np.zeros((*shape, 2)),
        computed, np.full(shape, 100), {"identity": identity, "facts": facts}, betas,
    )  # fmt: skip


def test_panels_share_scale_and_levels():
    one, two = made(), made(3.0)
    chart = plots.panels({"one": one, "two": two}, "heatmap")
    figure = chart.matplotlib()
    drawn = [ax.collections[0] for ax in figure.axes[:2]]
    assert drawn[0].norm.vmin == drawn[1].norm.vmin == pytest.approx(one.loss.min())
    assert drawn[0].norm.vmax == drawn[1].norm.vmax == 10.0  # capped, and the bar says so
    assert "drawn up to 10" in figure.axes[-1].get_ylabel()
    assert figure.axes[0].get_title("left") == "one"
    assert chart.panels[0].note == "L(0) = 0.500, accuracy 87.5%, ‖g‖ = 0.12"
    assert chart.panels[0].note in [text.get_text() for text in figure.axes[0].texts]
    figure = plots.panels({"one": one, "two": two}).matplotlib()
    contours = [ax.collections[0] for ax in figure.axes[:2]]
    np.testing.assert_array_equal(contours[0].levels, contours[1].levels)


def test_columns_are_alpha():
    figure = plots.plot(made(), "heatmap").matplotlib()
    mesh = figure.axes[0].collections[0]
    assert mesh.get_array().shape == (7, 9)
    assert figure.axes[0].get_xlabel() == "α"


def test_scales_of_odd_losses():
    assert not shared_scale([np.array([-1.0, 2.0])]).log
    scale = shared_scale([np.array([0.1, np.nan, np.inf, 5.0])])
    assert (scale.low, scale.high, scale.clipped) == (0.1, 5.0, 0.5)
    np.testing.assert_array_equal(scale.clip(np.array([np.nan, np.inf, -np.inf, 1])), [5, 5, 0.1, 1])
    assert shared_scale([np.full(3, np.nan)]).clipped == 1.0
    assert shared_scale([np.ones(4)]).high > 1.0
    assert shared_scale([np.array([0.2, 40.0])]).high == 10.0


@pytest.mark.parametrize("loss", [np.nan, -1.0])
def test_odd_surfaces_can_be_drawn(loss):
    surface = made()
    surface.loss[0, 0] = loss
    for figure in (surface.plot(), surface.plot(kind="heatmap"), surface.plot3d(backend="matplotlib")):
        figure.savefig("a.png")
    surface.plot3d()


def test_three_dimensions_share_camera_and_height():
    chart = plots.panels3d({"a": made(), "b": made(2.0)})
    figure = chart.plotly()
    scenes = [figure.layout.scene, figure.layout.scene2]
    assert scenes[0].camera == scenes[1].camera
    assert scenes[0].zaxis.range == scenes[1].zaxis.range
    assert figure.data[0].cmax == figure.data[1].cmax
    first, second = chart.matplotlib().axes
    assert first.get_zlim() == second.get_zlim()
    assert (first.elev, first.azim) == (second.elev, second.azim)


def test_three_dimensions_are_not_blank(tmp_path):
    # `Axes3D(figure)` draws nothing since matplotlib 3.6; older tools still say it.
    from matplotlib.image import imread

    made().plot3d(backend="matplotlib").savefig(tmp_path / "a.png")
    picture = imread(tmp_path / "a.png")[..., :3]
    coloured = np.ptp(picture, axis=-1) > 0.1
    assert coloured.mean() > 0.05


def test_difference_marks_chance():
    chart = plots.difference(made(), made(2.0), ("a", "b"))
    (panel,) = chart.panels
    assert "b − a" in panel.title
    assert len(chart.matplotlib().axes[0].collections) == 2  # the map and the hatching
    assert "a: L(0) = 0.500, accuracy 87.5%, ‖g‖ = 0.12\nb: L(0) = 1.000" in panel.note
    (several,) = plots.difference([made(), made(1.1)], [made(2.0), made(2.2)]).panels
    assert "95 % interval (2 seeds × 1 pairs) holds 0" in several.note
    assert "one seed, no interval" in panel.note
    assert "A: L(0) = 0.525" in several.note  # the mean of 0.5 and 0.55
    with pytest.raises(UserError, match="same grid"):
        plots.difference(made(), made(shape=(5, 5)))
    moved = made()
    moved.betas = moved.betas / 2
    with pytest.raises(UserError, match="same grid"):
        plots.difference(made(), moved)


def test_hatching_covers_whole_cells():
    one, two = made(), made()
    two.loss[:, :3] += 1  # three columns of cells differ, six do not
    mesh, marks = plots.difference(one, two).matplotlib().axes[0].collections
    edges = mesh.get_coordinates()
    (path,) = (path for path in marks.get_paths() if len(path.vertices))
    corners = path.get_extents()
    np.testing.assert_allclose([corners.x0, corners.x1], [edges[0, 3, 0], edges[0, -1, 0]])
    np.testing.assert_allclose([corners.y0, corners.y1], [edges[0, 0, 1], edges[-1, 0, 1]])
    everywhere = plots.difference(made(), made()).matplotlib().axes[0]  # all of it could be chance
    assert len(everywhere.collections) == 2


def test_unfinished_surfaces_show_their_finest_grid():
    computed = np.zeros((21, 21), bool)
    computed[::5, ::5] = True
    surface = made(computed=computed, shape=(21, 21))
    with pytest.raises(UserError, match="too few points"):
        made(computed=np.zeros((21, 21), bool), shape=(21, 21)).preview()
    from diagnostics.surfaces.grid import Grid

    grid = Grid(surface.alphas, surface.betas)
    surface.computed.flat[grid.levels[0]] = True
    surface.loss = np.where(surface.computed, made(shape=(21, 21)).loss, np.nan)
    shown = surface.preview()
    assert shown.loss.size == grid.levels[0].size
    assert np.isfinite(shown.loss).all()
    assert "Unfinished" in surface.caption()
    surface.plot()


def test_lines_and_animation(tmp_path):
    surface = made()
    lines = Lines(
        surface.alphas, surface.loss, surface.sem, surface.accuracy, surface.class_loss, surface.computed,
        surface.samples, surface.meta | {"identity": surface.meta["identity"] | {"kind": "lines"}},
    )  # fmt: skip
    figure = plot_lines({"bowl": lines}).matplotlib()
    assert "bowl" in figure.legends[0].get_texts()[0].get_text()
    assert "Loss along 7 directions" in lines.caption()
    many = plot_lines({f"model {number}": lines for number in range(8)}, single=False).matplotlib()
    looks = [(line.get_color(), line.get_linestyle()) for line in many.axes[0].lines[:8]]
    assert len(set(looks)) == 8
    frames = {f"round {number}": made(scale) for number, scale in ((1, 3.0), (2, 1.0))}
    from PIL import Image

    with Image.open(plots.animate(frames, tmp_path / "a.gif")) as picture:
        assert picture.n_frames == 2
    page = plots.animate(frames, tmp_path / "a.html").read_text()
    assert "round 2" in page
    assert "<script src=" not in page  # works without a network
    figure = plots.animation(frames).plotly()
    assert len(figure.frames) == 2
    assert len(figure.layout.sliders[0].steps) == 2
    with pytest.raises(UserError, match="gif or"):
        plots.animate(frames, tmp_path / "a.mp4")


def profiles(models, split="train"):
    import pandas as pd

    radii = np.linspace(0, 1, 5)
    return pd.DataFrame(
        {
            "match": match, "model": name, "radius": r, "mean": r**2, "p10": 0.5 * r**2, "p90": 2 * r**2,
            "low": 0.9 * r**2, "high": 1.1 * r**2, "loss": loss, "split": split,
        }
        for match in ("round", "loss") for name, loss in models.items() for r in radii
    )  # fmt: skip


def test_profiles_name_the_losses():
    panel = plot_profiles(profiles({"a": 0.5, "b": 0.456})).panels[1]
    assert panel.title == "equal training loss"
    assert panel.note.splitlines()[0] == "training loss L(0): a 0.5, b 0.456"
    tested = plot_profiles(profiles({"a": 0.5, "b": 0.4}, "test")).panels[1]
    assert tested.note.splitlines()[0] == "test loss L(0): a 0.5, b 0.4"  # matched by the training loss all the same
    many = plot_profiles(profiles({f"model {number}": 1.0 for number in range(8)}))
    assert len(many.matplotlib().legends[0].get_texts()) == 8


def test_captions_lie_beside_pictures(tmp_path):
    text = captions({"one": made(), "two": made(2.0)}, "Two bowls.")
    assert text.splitlines()[0] == "Two bowls."
    assert text.splitlines()[2] == f"two: {made(2.0).caption()}"
    save(made().plot(), tmp_path / "a.png", text)
    assert (tmp_path / "a.txt").read_text() == text + "\n"
    assert (tmp_path / "a.png").stat().st_size > 500


def test_caption_has_the_facts():
    text = made().caption()
    for fact in ("9 × 7 points", "bowl", "100 test samples", "L(0) = 0.500", "frozen", "abababab", "filter by its own"):
        assert fact in text, fact


def test_csv_and_li_layout(tmp_path):
    import pandas as pd

    computed = np.ones((7, 9), bool)
    computed[0, 1] = False
    surface = made(computed=computed)
    table = pd.read_csv(export(surface, "csv", tmp_path / "s.csv"))
    assert len(table) == 62
    row = table[(table["alpha"] == surface.alphas[2]) & (table["beta"] == surface.betas[5])].iloc[0]
    assert row["loss"] == surface.loss[5, 2]
    h5py = pytest.importorskip("h5py")
    with h5py.File(export(surface, "h5", tmp_path / "s.h5")) as file:
        assert file["test_loss"].shape == (9, 7)  # Li's (x, y)
        assert file["test_loss"][2, 5] == surface.loss[5, 2]
        assert file["test_loss"][1, 0] == -1
        assert not file["computed"][1, 0]
        assert file["test_acc"][0, 1] == 90.0


def test_meshes(tmp_path):
    computed = np.ones((7, 9), bool)
    computed[3, 3] = False
    surface = made(computed=computed)
    root = ET.parse(export(surface, "vtp", tmp_path / "s.vtp")).getroot()
    piece = root.find("PolyData/Piece")
    assert piece.get("NumberOfPoints") == "63"
    assert piece.get("NumberOfPolys") == str(6 * 8 - 4)  # without the cells around the missing point
    points = np.array(piece.find("Points/DataArray").text.split(), float).reshape(-1, 3)
    np.testing.assert_allclose(
        points[9 * 5 + 2], [*(surface.alphas[2], surface.betas[5]), np.log10(surface.loss[5, 2])]
    )
    surface.loss[0, 0], surface.sem[0, 0] = np.inf, np.nan
    data = {
        array.get("Name"): np.array(array.text.split(), float)
        for array in ET.parse(export(surface, "vtp", tmp_path / "s.vtp")).iter("DataArray")
    }
    assert all(np.isfinite(values).all() for values in data.values())  # ParaView reads no nan
    np.testing.assert_array_equal(data["computed"], computed.ravel())
    np.testing.assert_array_equal(np.flatnonzero(data["finite"] == 0), [0, 9 * 3 + 3])
    np.testing.assert_allclose(data["loss"][1:9], surface.loss[0, 1:], rtol=1e-6)
    lines = export(surface, "obj", tmp_path / "s.obj", log=False).read_text().splitlines()
    assert sum(line.startswith("v ") for line in lines) == 63
    faces = [line for line in lines if line.startswith("f ")]
    assert len(faces) == 44
    assert faces[0] == "f 1 2 11 10"
    page = export(surface, "html", tmp_path / "s.html").read_text()
    assert "9 × 7 points" in page
    with pytest.raises(UserError, match="--to: 'stl'"):
        export(surface, "stl", tmp_path / "s.stl")


def test_pictures_need_no_tensorflow():
    code = (
        "import sys; from figures.charts import surfaces; from diagnostics.surfaces.results import Surface; "
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

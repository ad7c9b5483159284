"""How points are computed must not show in them: several directions, frozen layers, workers, kills, losses."""

import numpy as np
import pytest

from diagnostics import store
from diagnostics.directions import Space
from diagnostics.results import Surface
from diagnostics.surface import loss_lines, loss_surface
from feddual._lazy import tf
from tests.test_surface import QUIET, X, Y, mlp


@pytest.mark.parametrize("parts", [(["two"], ["one"]), (["one"], ["two"], ["one", "bias"])])
def test_lines_that_move_different_layers(parts):
    model = mlp()
    model.get_layer("one").bias.assign(np.linspace(-1, 1, 8))
    space = Space(model)
    directions = [space.random(index=index, layers=part[:1], include=part[1:]) for index, part in enumerate(parts)]
    options = {"directions": directions, "grid": 5, **QUIET}
    fast = loss_lines(model, X, Y, **options)
    assert fast.meta["facts"]["engine"] == "linearity + dense suffix"
    np.testing.assert_allclose(fast.loss, loss_lines(model, X, Y, engine="plain", **options).loss, rtol=1e-5)


class Killed(Exception):
    pass


def squares(y, z):
    return tf.reduce_sum(tf.square(z), 1)


TWO_LEVELS = {"grid": 21, "range": 2.0, "loss": squares, "two_level": 45, **QUIET}


@pytest.fixture(scope="module")
def two_levels():
    """A model, inputs so alike that few of them tell a contour level from the next, and the surface."""
    model, x = mlp(scale=2.0), 1 + X / 100
    return model, x, loss_surface(model, x, Y, **TWO_LEVELS)


@pytest.mark.parametrize("fine_chunks", [0, 1])
def test_two_levels_killed_in_the_second_are_continued(tmp_path, monkeypatch, two_levels, fine_chunks):
    model, x, whole = two_levels
    write, written = store.Folder.write, []

    def dies(self, name, values):
        written.append(name)
        if sum(name.startswith("fine") for name in written) > fine_chunks:
            raise Killed
        write(self, name, values)

    with monkeypatch.context() as patch:
        patch.setattr(store.Folder, "write", dies)
        with pytest.raises(Killed):
            loss_surface(model, x, Y, out=tmp_path / "s", **TWO_LEVELS)
    partial = Surface.load(tmp_path / "s")
    assert partial.computed.all()
    assert not partial.complete
    assert partial.preview().loss.shape == (21, 21)
    resumed = loss_surface(model, x, Y, out=tmp_path / "s", **TWO_LEVELS)
    assert resumed.complete
    assert resumed.meta["facts"]["two_level"] == whole.meta["facts"]["two_level"]
    for name in ("loss", "sem", "samples"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
        np.testing.assert_array_equal(getattr(Surface.load(tmp_path / "s"), name), getattr(whole, name))


def test_a_kill_before_the_last_file_is_made_good(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store.Folder, "finish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET)
    loss_surface(mlp(), X, Y, grid=3, out=tmp_path / "s", **QUIET)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["manifest.json", "surface.npz"]


def test_two_levels_with_workers_equal_serial(two_levels):
    model, x, serial = two_levels
    parallel = loss_surface(model, x, Y, workers=2, **TWO_LEVELS)
    for name in ("loss", "sem", "samples"):
        np.testing.assert_array_equal(getattr(serial, name), getattr(parallel, name))

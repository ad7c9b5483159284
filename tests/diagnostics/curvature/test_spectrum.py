"""A spectrum of a model: against the matrix written out, by layers, in its folder, as a picture."""

import json

import numpy as np
import pytest

import diagnostics
from diagnostics.curvature.measuring import Effort
from diagnostics.curvature.spectrum import ARRAYS, Spectrum, axis
from diagnostics.landscape import Landscape
from feddual._lazy import keras
from feddual.errors import UserError
from figures.charts import spectra

RNG = np.random.default_rng(6)
X = RNG.normal(size=(80, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 80)
LITTLE = {"steps": 20, "draws": 2, "probes": 30, "progress": False}


@pytest.fixture(scope="module")
def landscape():
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(14, "tanh", name="one"), keras.layers.Dense(8, "tanh", name="two")]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4, name="three")])
    return Landscape(model, X, Y)


@pytest.fixture(scope="module")
def dense(landscape):
    """254 weights."""
    return landscape.curvature().dense()


@pytest.fixture(scope="module")
def found(landscape):
    return landscape.spectrum(layerwise=True, progress=False)


def test_ends_trace_and_layers_are_those_of_the_matrix(landscape, dense, found):
    values = np.linalg.eigvalsh(dense)
    scale = np.abs(values).max()
    np.testing.assert_allclose(found.largest, values[::-1][:5], atol=1e-4 * scale)
    np.testing.assert_allclose(found.smallest, values[:5], atol=1e-4 * scale)
    assert values[0] < 0
    assert abs(found.trace.value - np.trace(dense)) < 3 * found.trace.error
    table, blocks = found.per_layer(), landscape.curvature().blocks
    assert table["trace"].sum() == pytest.approx(found.trace.value, rel=1e-9)
    for row, where in zip(table.to_dict("records"), blocks.values(), strict=True):
        block = dense[np.ix_(where, where)]
        assert row["lambda_1"] == pytest.approx(np.linalg.eigvalsh(block)[-1], rel=1e-3)
        assert row["trace_low"] - row["trace_high"] + row["trace_low"] < np.trace(block) < 2 * row["trace_high"]
    assert found.meta["facts"]["converged"]
    assert found.meta["facts"]["products"] == sum(one["products"] for one in found.meta["facts"]["cost"].values()) + 1


def test_the_density_has_mass_one_and_the_matrix_own_mean(dense, found):
    x, heights = found.density()
    assert np.trapezoid(heights, x) == pytest.approx(1, rel=1e-3)
    assert np.trapezoid(x * heights, x) == pytest.approx(np.trace(dense) / len(dense), abs=0.01)
    np.testing.assert_allclose(found.weights.sum(1), 1)


def test_a_quadratic_is_exact():
    """A linear model under mse: 2 X'X / n, once for each output, spread over the outputs' mean."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, use_bias=False)])
    landscape = Landscape(model, X, RNG.normal(size=(80, 3)), loss="mse")
    found = landscape.spectrum(k=6, steps=18, draws=3, progress=False)
    by_hand = np.linalg.eigvalsh(2 * X.T.astype(np.float64) @ X / 80) / 3
    np.testing.assert_allclose(found.largest, np.repeat(by_hand[::-1], 3)[:6], rtol=1e-4)
    np.testing.assert_allclose(found.smallest, np.repeat(by_hand, 3)[:6], rtol=1e-4)
    assert found.trace.value == pytest.approx(3 * by_hand.sum(), rel=1e-5)
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        assert np.isclose(nodes[weights > 1e-8][:, None], by_hand, rtol=1e-3).any(1).all()


@pytest.mark.parametrize("scale", ["filter", "abs"])
def test_the_trace_on_a_scale_is_the_sum_over_the_diagonal(landscape, dense, scale):
    curvature = landscape.curvature(scale=scale)
    wanted = curvature.scaling**2 @ np.diag(dense)[curvature.indices]
    found = landscape.spectrum(scale=scale, **LITTLE | {"probes": 99})
    assert abs(found.trace.value - wanted) < 4 * found.trace.error
    assert found.meta["facts"]["size"] == curvature.size


def test_the_mean_bend_along_filter_normalised_directions_is_the_filter_scaled_trace(landscape, dense):
    """What a random surface shows: E d'Hd over filter-normalised directions d, up to their fixed lengths."""
    curvature = landscape.curvature(scale="filter")
    vectors = [landscape.space.random(0, index).vector.astype(np.float64) for index in range(400)]
    bends = np.array([vector @ dense @ vector for vector in vectors])
    wanted = curvature.scaling**2 @ np.diag(dense)[curvature.indices]
    assert abs(bends.mean() - wanted) < 4 * bends.std() / np.sqrt(len(bends))


def test_a_folder_is_read_again_continued_and_refused_to_another(landscape, tmp_path):
    out = tmp_path / "spectrum"
    first = landscape.spectrum(out=out, **LITTLE)
    assert {file.name for file in out.iterdir()} == {"manifest.json", ARRAYS}
    again = landscape.spectrum(out=out, **LITTLE)
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name])
    with pytest.raises(UserError, match="draws: it has 2, asked for 3"):
        landscape.spectrum(out=out, **LITTLE | {"draws": 3})
    with pytest.raises(UserError, match="holds a spectrum"):
        diagnostics.Surface.load(out)


def test_killed_and_resumed_the_numbers_are_the_same(landscape, tmp_path, monkeypatch):
    whole = landscape.spectrum(out=tmp_path / "whole", **LITTLE)
    calls, before = [], whole.meta["facts"]["cost"]["eigenvalues and a draw of the density"]["products"]
    from diagnostics.curvature.operator import Curvature

    plain = Curvature.matvec

    def dying(self, vector):
        calls.append(1)
        if len(calls) == before + 10:
            raise KeyboardInterrupt
        return plain(self, vector)

    monkeypatch.setattr(Curvature, "matvec", dying)
    with pytest.raises(KeyboardInterrupt):
        landscape.spectrum(out=tmp_path / "killed", **LITTLE)
    monkeypatch.undo()
    with pytest.raises(UserError, match="not finished"):
        Spectrum.load(tmp_path / "killed")
    resumed = landscape.spectrum(out=tmp_path / "killed", **LITTLE)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, resumed.arrays()[name])
    assert resumed.meta["facts"]["products"] == whole.meta["facts"]["products"]


@pytest.mark.parametrize("budget", [60, 150, 400])
def test_a_budget_holds(landscape, budget):
    found = landscape.spectrum(budget=budget, progress=False)
    assert found.meta["facts"]["products"] <= budget + 1


def test_a_budget_too_small_and_other_nonsense_are_refused(landscape):
    with pytest.raises(UserError, match="budget: at least"):
        Effort().within(10, 3)
    for name, value in (("k", 0), ("steps", 1), ("draws", 0), ("tolerance", 0.0), ("probes", 3)):
        with pytest.raises(UserError, match=name):
            landscape.spectrum(**{name: value}, progress=False)


def test_several_models_are_drawn_on_one_axis_and_smoothed_alike(landscape, found, tmp_path):
    other = landscape.spectrum(kind="ggn", **LITTLE)
    chart = spectra.plot_spectra({"a": found, "b": other}, sigma=0.05)
    lines = [mark for mark in chart.panels[0].marks if hasattr(mark, "marked")]
    np.testing.assert_array_equal(lines[0].x, lines[1].x)
    np.testing.assert_array_equal(lines[0].x, axis([found, other], 0.05))
    assert "σ = 0.05" in chart.panels[0].note
    assert chart.save(tmp_path / "spectra.png").stat().st_size > 10_000
    assert len(chart.plotly().data) == 4
    assert "GGN" in other.caption()
    assert "Trace" in found.caption()
    assert "Trace" in found._repr_html_()
    assert found.plot().axes
    assert "layer by layer" in spectra.text({"a": found})


def test_it_is_saved_and_loaded(found, tmp_path):
    path = found.save(tmp_path / "saved")
    loaded = Spectrum.load(path)
    np.testing.assert_array_equal(loaded.nodes, found.nodes)
    assert json.loads(json.dumps(found.meta)) == loaded.meta

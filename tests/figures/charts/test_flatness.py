"""Forest plots, radial profiles and their words, from tables made by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from figures.charts import flatness


def comparison(seeds=3):
    """Two quantities with ratios, one without; the second's interval is far too wide for a picture."""
    ends = [[1.5, 2.5, 1.2, 3.0], [1e-20, 1e22, 1e-30, 1e30], [-1.0, 1.0, -2.0, 2.0]]
    if seeds == 1:
        ends = [[np.nan] * 4] * 3
    rows = [
        {"match": "round", "variant": "plain", "quantity": name, "first": "a", "second": "b", "scale": scale,
         "effect": effect} | dict(zip(("low", "high", "all_low", "all_high"), four, strict=True))
        for name, scale, effect, four in zip(
            ("kappa_fn@0.05", "sam@0.05", "trace"), ("ratio", "ratio", "difference"), (2.0, 4.0, 0.5), ends, strict=True
        )
    ]  # fmt: skip
    return SimpleNamespace(differences=pd.DataFrame(rows), summary=pd.DataFrame({"model": ["a", "b"]}))


def test_a_forest_has_a_row_for_each_ratio_and_names_the_others():
    chart = flatness.forest(comparison())
    (panel,) = chart.panels
    assert list(panel.y_names) == ["κ_FN, h = 0.05", "SAM, ρ = 0.05"]
    assert "not positive, no ratio: tr H" in panel.note
    pale, dark = panel.marks
    np.testing.assert_allclose(dark.x, [2, 4])
    np.testing.assert_allclose(dark.y, [0, 1])
    np.testing.assert_allclose(dark.reach[0], [0.5, 4])
    np.testing.assert_allclose(pale.reach[1][0], 1)
    low, high = panel.x_range
    assert 0.05 < low < 0.2  # ten times beyond the ratios and 1, and a little room
    assert 40 < high < 80
    assert [look.label for look in chart.looks] == ["b / a"]


def test_both_back_ends_draw_bars_sideways_on_a_logarithmic_axis():
    chart = flatness.forest(comparison())
    drawn = chart.matplotlib()
    assert drawn.axes[0].get_xscale() == "log"
    figure = chart.plotly()
    assert figure.layout.xaxis.type == "log"
    np.testing.assert_allclose(figure.layout.xaxis.range, np.log10(chart.panels[0].x_range))
    assert [trace.error_x.array[0] for trace in figure.data] == [1.0, 0.5]
    assert figure.data[1].text[0] == "b: 2 [1.5, 2.5]"


def test_without_seeds_there_are_points_alone_and_it_says_so():
    chart = flatness.forest(comparison(seeds=1))
    assert chart.panels[0].note.startswith("one seed, no interval")
    assert chart.matplotlib().axes[0].get_xscale() == "log"


def test_names_have_their_step_sizes():
    assert flatness.named("worst_adaptive_linf@0.001") == "worst adaptive, ℓ∞, ρ = 0.001"
    assert flatness.named("lambda_1") == "λ_1(H)"
    assert flatness.label("keskar", 0.001) == "Keskar, ε = 0.001"
    assert flatness.label("trace", float("nan")) == "tr H"


def test_a_radial_profile_has_its_bands():
    radius = np.array([0.0, 0.5, 1.0])
    profile = pd.DataFrame({"radius": radius, "mean": radius**2} | {
        name: radius**2 * factor
        for name, factor in (("low", 0.8), ("high", 1.2), ("p10", 0.5), ("median", 1.0), ("p90", 1.5))
    })  # fmt: skip
    meta = {"facts": {"loss": 0.7, "split": "train"}, "identity": {"settings": {"tau": 0.2}}}
    chart = flatness.radial({"x": SimpleNamespace(profile=profile, meta=meta)})
    (panel,) = chart.panels
    assert panel.level == 0.2
    assert "training loss L(0): x 0.7" in panel.note
    wide, narrow = panel.marks
    np.testing.assert_allclose(wide.high, radius**2 * 1.5)
    np.testing.assert_allclose(narrow.low, radius**2 * 0.8)
    empty = flatness.radial({"x": SimpleNamespace(profile=profile[:0], meta=meta)})
    assert not empty.panels[0].marks


def test_measures_over_rounds_have_a_panel_each():
    frame = pd.DataFrame({
        "run": "a", "round": [1, 2, 1, 2], "measure": ["sam", "sam", "kappa_fn", "kappa_fn"],
        "level": 0.05, "value": [1.0, 2, 3, 4], "low": [np.nan, np.nan, 2, 3], "high": [np.nan, np.nan, 4, 5],
    })  # fmt: skip
    sam, kappa = flatness.over_rounds(frame).panels
    assert (sam.title, kappa.title) == ("SAM, ρ = 0.05", "κ_FN, h = 0.05")
    assert sam.marks[0].low is None
    np.testing.assert_allclose(kappa.marks[0].high, [4, 5])

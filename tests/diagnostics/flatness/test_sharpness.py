"""Measures of sharpness on cases known in closed form, their budget, and their files."""

import itertools

import numpy as np
import pytest

import diagnostics
from diagnostics.flatness import catalogue
from diagnostics.flatness.readings import Settings
from diagnostics.flatness.sharpness_comparison import compare_sharpness
from diagnostics.flatness.sharpness_result import Sharpness
from diagnostics.landscape import Landscape
from diagnostics.statistics import of_estimate
from diagnostics.surfaces.directions import Space
from feddual._lazy import keras
from feddual.errors import UserError
from tests.helpers import frozen_model

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(40, 3)) * [1.0, 2.0, 0.5]).astype(np.float32)
Y = RNG.normal(size=(40, 2)).astype(np.float32)
W = np.array([[0.5, -1.0], [1.5, 0.7], [-0.8, 2.0]], np.float32)
QUIET = {"progress": False}


def linear():
    """Mean squares of a linear model: a quadratic in its six weights, two filters of three."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.set_weights([W])
    return Landscape(model, X, Y, loss="mse", images=None)


def quadratic(x, y):
    """Gradient and Hessian with respect to W row by row, in float64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    hessian = np.kron(x.T @ x, np.eye(2)) / len(x)  # 2 / (samples x outputs)
    gradient = (x.T @ (x @ W.astype(np.float64) - y)).ravel() / len(x)
    return gradient, hessian


G, H = quadratic(X, Y)
FLAT = W.astype(np.float64).ravel()
S = np.tile(np.linalg.norm(W.astype(np.float64), axis=0) / np.sqrt(3), 3)


def rise(step):
    return G @ step + step @ H @ step / 2


def measured(*names, **settings):
    return linear().sharpness(list(names), **QUIET, **settings)


# --- the numbers


def test_mean_curvature_is_the_trace_on_the_scale_of_the_filters():
    exact = np.trace(S[:, None] * H * S)
    found = measured("kappa_fn", "kappa_fn_trace", directions=40)
    row = found.table.set_index("measure").loc["kappa_fn"]
    assert abs(row["value"] - exact) < 4 * row["se"]
    assert row["low"] < exact < row["high"]
    # Six weights are fewer than the products of the sketch: its part is exact, and nothing is left to be sampled.
    assert found.value("kappa_fn_trace") == pytest.approx(exact, rel=1e-4)


def test_each_direction_bends_the_loss_as_the_hessian_says():
    found = measured("kappa_fn", "profile", directions=3)
    space = Space(linear().subject.model)
    steps = [space.random(0, index).vector.astype(np.float64) for index in range(3)]
    draws = found.values.query("measure == 'kappa_fn'")["value"]
    np.testing.assert_allclose(draws, [step @ H @ step for step in steps], rtol=2e-3)  # float32 over h² = 0.0025
    at_half = found.profile.set_index("radius").loc[0.5, "mean"]
    assert at_half == pytest.approx(np.mean([step @ H @ step for step in steps]) / 8, rel=1e-4)
    radius = found.values.query("measure == 'r_tau'")["value"]  # 0.1 = kappa r² / 2, read off between radii
    np.testing.assert_allclose(radius, [np.sqrt(0.2 / (step @ H @ step)) for step in steps], atol=0.01)


def test_average_adaptive_sharpness_is_half_rho_squared_times_the_weighted_diagonal():
    found = measured("average_adaptive", average=(0.1, 0.2), directions=60)
    table = found.table.set_index(["measure", "level"])
    for rho in (0.1, 0.2):
        exact = rho**2 / 2 * np.sum(np.diag(H) * FLAT**2)
        row = table.loc[("average_adaptive", rho)]
        assert abs(row["value"] - exact) < 4 * row["se"]
    noise = Space.noise(linear().space.layout.entries[0], 0, 7).ravel() * np.abs(FLAT) * 0.2
    draw = found.values.query("measure == 'average_adaptive' and level == 0.2 and draw == 7")["value"].iloc[0]
    assert draw == pytest.approx(noise @ H @ noise / 2, rel=1e-4)


def test_one_step_measures_by_hand():
    found = measured("sam", "asam", "asam_filter").table.set_index("measure")
    for name, scale, rho in (("sam", np.ones(6), 0.05), ("asam", np.abs(FLAT), 0.5), ("asam_filter", S, 0.5)):
        step = rho * scale**2 * G / np.linalg.norm(scale * G)
        row = found.loc[name]
        assert row["value"] == pytest.approx(rise(step), rel=1e-4)
        assert row["first_order"] == pytest.approx(G @ step, rel=1e-4)
        assert row["symmetric"] == pytest.approx(step @ H @ step / 2, rel=1e-3)


def on_the_ball(gradient, hessian, radius):
    """The largest value of g v + v H v / 2 over |v| <= radius: (m - H) v = g with m >= the largest eigenvalue."""
    from scipy.optimize import brentq

    values, vectors = np.linalg.eigh(hessian)
    along = vectors.T @ gradient

    def excess(multiplier):
        return np.linalg.norm(along / (multiplier - values)) - radius

    top = values[-1]
    multiplier = brentq(excess, top + 1e-12, top + 10 * np.linalg.norm(gradient) / radius)
    v = vectors @ (along / (multiplier - values))
    return gradient @ v + v @ hessian @ v / 2


def test_the_worst_step_in_an_ellipsoid_is_found():
    scale = np.abs(FLAT)
    found = measured("worst_adaptive_l2", worst_l2=(0.1, 0.5, 2.0), steps=40)
    for rho in (0.1, 0.5, 2.0):
        exact = on_the_ball(scale * G, scale[:, None] * H * scale, rho)
        assert found.value("worst_adaptive_l2", rho) == pytest.approx(exact, rel=1e-3)
        assert exact > found.table.set_index("level").loc[rho, "first_order"]  # the quadratic is convex


def at_the_corners(half):
    """A convex function is largest at a corner of its box."""
    return max(rise(half * np.array(signs)) for signs in itertools.product((-1, 1), repeat=6))


def test_the_worst_step_in_a_box_is_a_corner():
    found = measured("worst_adaptive_linf", "keskar", worst_linf=(0.01, 0.1))
    for rho in (0.01, 0.1):
        assert found.value("worst_adaptive_linf", rho) == pytest.approx(at_the_corners(rho * np.abs(FLAT)), rel=1e-3)
    loss = float(linear().measures().loss)
    for epsilon in (1e-3, 5e-4):
        exact = 100 * at_the_corners(epsilon * (np.abs(FLAT) + 1)) / (1 + loss)
        assert found.value("keskar", epsilon) == pytest.approx(exact, rel=1e-3)


def test_a_worst_case_is_looked_for_on_the_first_samples(monkeypatch):
    from diagnostics.flatness import around

    monkeypatch.setattr(around, "SAMPLES", 16)
    monkeypatch.setattr(catalogue, "SAMPLES", 16)
    subject = linear().subject  # samples are in an order of their own
    gradient, hessian = quadratic(subject.x[:16], subject.y[:16])
    scale = np.abs(FLAT)
    found = measured("worst_adaptive_l2", worst_l2=(0.5,), steps=40)
    exact = on_the_ball(scale * gradient, scale[:, None] * hessian * scale, 0.5)
    assert found.value("worst_adaptive_l2") == pytest.approx(exact, rel=1e-3)
    assert found.table.set_index("measure").loc["worst_adaptive_l2", "passes"] == pytest.approx(0.4 * (3 * 42 + 1))


def test_numbers_of_the_spectrum():
    found = measured("lambda_fn", "lambda_1", "trace")
    values = np.linalg.eigvalsh(H)[::-1]
    assert found.value("lambda_fn") == pytest.approx(np.linalg.eigvalsh(S[:, None] * H * S)[-1], rel=1e-4)
    assert found.value("lambda_1") == pytest.approx(values[0], rel=1e-4)
    assert found.value("lambda_ratio") == pytest.approx(values[0] / values[4], rel=1e-3)
    assert found.value("trace") == pytest.approx(np.trace(H), rel=1e-4)
    assert found.value("trace_per_weight") == pytest.approx(np.trace(H) / 6, rel=1e-4)


def test_sigma_by_hand():
    """One weight of 1, right as long as 1 + u > 0: of ten draws the two lowest may turn wrong, not the third."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, use_bias=False)])
    model.set_weights([np.array([[1, 0]], np.float32)])  # the zero moves by 0.001 only
    landscape = Landscape(model, np.ones((4, 1), np.float32), np.zeros(4, int), images=None)
    found = landscape.sharpness(["magnitude_sigma"], directions=20, **QUIET)
    entry = landscape.space.layout.entries[0]
    noise = np.sort([Space.noise(entry, 0, draw)[0, 0] for draw in range(20)])
    # Two wrong draws of twenty are 10 %; the third lowest is wrong from sigma = 1 / |z| on.
    assert found.value("magnitude_sigma") == pytest.approx(-1 / noise[2], rel=0.02)  # seven halvings of a factor 2


def test_the_gradient_always_stands_beside_them():
    found = measured("sam")
    assert found.value("gradient_norm") == pytest.approx(np.linalg.norm(G), rel=1e-5)
    row = found.layers.iloc[0]
    assert row["product"] == pytest.approx(np.linalg.norm(G) * np.linalg.norm(FLAT), rel=1e-5)
    assert row["product"] == pytest.approx(row["gradient_norm"] * row["weight_norm"])


def test_a_cached_prefix_gives_the_same_numbers():
    model = frozen_model((8, 8, 2), 4)
    x, y = RNG.normal(size=(48, 8, 8, 2)).astype(np.float32), np.arange(48) % 4
    names = ["kappa_fn", "average_adaptive", "sam", "asam", "worst_adaptive_l2"]
    tables = [
        Landscape(model, x, y, images=None, engine=engine).sharpness(names, directions=2, steps=5, **QUIET).table
        for engine in ("auto", "plain")
    ]
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], rtol=2e-3)


# --- the budget


def test_a_tier_says_what_it_leaves_out():
    found = linear().sharpness(budget="cheap", directions=2, **QUIET)
    assert set(found.table["measure"]) == {
        "gradient_norm", "kappa_fn", "r_tau", "average_adaptive", "sam", "asam", "asam_filter"
    }  # fmt: skip
    facts = found.meta["facts"]
    assert facts["left_out"]["lambda_fn"] == "only with budget=default"
    assert "Left out: lambda_fn (only with budget=default)" in found.caption()
    assert facts["passes"] == pytest.approx(found.table["passes"].sum() + 1)  # and the loss at the model


@pytest.mark.parametrize("budget", [20, 60, 150, 900])
def test_a_number_of_passes_is_kept(budget):
    found = linear().sharpness(budget=budget, directions=2, steps=3, lanczos=8, products=6, **QUIET)
    assert found.meta["facts"]["passes"] <= budget
    for name, why in found.meta["facts"]["left_out"].items():
        assert f"of {budget}" in why or (name == "magnitude_sigma" and "needs classes" in why)


def test_every_measure_is_described_and_has_a_place_in_the_catalogue():
    found = linear().sharpness(list(catalogue.GROUPS)[:-1], directions=2, **QUIET)
    assert set(found.table["measure"]) == set(catalogue.MEASURES) - {"magnitude_sigma"}
    planned = sum(group.passes(Settings(directions=2), 1.0) for group in catalogue.GROUPS.values())
    assert found.meta["facts"]["passes"] <= planned + catalogue.ALWAYS


def test_what_cannot_be_used_is_refused():
    landscape = linear()
    with pytest.raises(UserError, match="measures: sharp unknown; allowed: default, kappa_fn, profile"):
        landscape.sharpness(["sharp"])
    with pytest.raises(UserError, match="budget: 'huge' is unknown; allowed: cheap, default, full, or a number"):
        landscape.sharpness(budget="huge")
    with pytest.raises(UserError, match="budget: the loss and its gradient alone take 4 passes, got 2"):
        landscape.sharpness(budget=2)
    with pytest.raises(UserError, match="sharpness: rho unknown; allowed: tau, average"):
        landscape.sharpness(rho=0.1)
    with pytest.raises(UserError, match=r"average: must be above 0, got \(0.1, -1\)"):
        landscape.sharpness(average=(0.1, -1))
    with pytest.raises(UserError, match="magnitude_sigma needs classes"):
        landscape.sharpness(["magnitude_sigma"], **QUIET)
    with pytest.raises(UserError, match="bn: sharpness keeps moving statistics as they are, got 'recalibrate'"):
        Landscape(landscape.subject, bn="recalibrate", loss="mse").sharpness()


# --- files


def test_saved_and_read_back(tmp_path):
    found = linear().sharpness(["sam", "profile"], directions=2, out=tmp_path / "a", **QUIET)
    again = Sharpness.load(tmp_path / "a")
    assert again.table.equals(found.table)
    assert again.profile.equals(found.profile)
    assert again.meta["identity"] == found.meta["identity"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "layers.csv", "profile.csv", "sharpness.json", "table.csv",
    ]  # fmt: skip
    found.save(tmp_path / "a")
    with pytest.raises(UserError, match="holds another sharpness:\n  measures"):
        linear().sharpness(["sam"], directions=2, out=tmp_path / "a", **QUIET)
    assert "SAM, ρ = 0.05" in found._repr_html_()
    assert "‖g‖" in found.caption()


def test_killed_and_called_again_it_goes_on(tmp_path, monkeypatch):
    names = ["sam", "kappa_fn", "asam"]
    whole = linear().sharpness(names, directions=2, **QUIET)
    asked = []
    real = dict(catalogue.GROUPS)

    def watched(name, dies):
        def run(around, settings):
            asked.append(name)
            if dies:
                raise KeyboardInterrupt
            return real[name].run(around, settings)

        return catalogue.Gauge(run, real[name].tier, real[name].passes)

    from diagnostics.flatness import sharpness

    monkeypatch.setattr(sharpness, "GROUPS", {name: watched(name, name == "asam") for name in names})
    with pytest.raises(KeyboardInterrupt):
        linear().sharpness(names, directions=2, out=tmp_path / "a", **QUIET)
    monkeypatch.setattr(sharpness, "GROUPS", {name: watched(name, False) for name in names})
    found = linear().sharpness(names, directions=2, out=tmp_path / "a", **QUIET)
    assert asked == ["sam", "kappa_fn", "asam", "asam"]
    assert found.table.equals(whole.table)
    assert not (tmp_path / "a" / "parts").exists()


# --- comparisons


def test_twice_the_loss_is_twice_as_sharp():
    """Targets and weights times the root of 2: the loss doubles, and so does everything on the weights' scale."""
    x, y = X, Y
    root = np.sqrt(2).astype(np.float32)
    models = []
    for scale in (np.float32(1), root):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
        model.set_weights([W * scale])

        def loss(t, z, scale=scale):
            return keras.ops.mean(keras.ops.square(t * scale - z), axis=-1)

        names = ["kappa_fn", "average_adaptive", "lambda_fn", "profile"]
        options = {"directions": 3, "average": (0.1,), **QUIET}
        models.append(Landscape(model, x, y, images=None, loss=loss).sharpness(names, **options))
        models[-1].meta["identity"]["loss"] = "the same"
    found = compare_sharpness({"one": [models[0]] * 2, "two": [models[1]] * 2})
    ratios = found.differences.set_index("quantity")
    for quantity in ("kappa_fn@0.05", "average_adaptive@0.1", "lambda_fn"):
        row = ratios.loc[quantity]
        assert (row["scale"], row["seeds"]) == ("ratio", 2)
        assert row["effect"] == pytest.approx(2, rel=2e-3)
    assert ratios.loc["kappa_fn@0.05", "directions"] == 3
    assert ratios["comparisons"].iloc[0] == len(ratios)
    both = found.profiles.set_index(["model", "radius"])["mean"]
    assert both["two", 0.5] == pytest.approx(2 * both["one", 0.5], rel=1e-4)


def test_what_was_measured_otherwise_is_not_compared():
    one, two = (linear().sharpness(["sam"], sam=(rho,), **QUIET) for rho in (0.05, 0.1))
    with pytest.raises(UserError, match="a and b differ in settings"):
        compare_sharpness({"a": one, "b": two})
    with pytest.raises(UserError, match=r"as many training seeds of each .* are needed, got a \(1\), b \(2\)"):
        compare_sharpness({"a": one, "b": [one, one]})


def test_an_estimates_interval_by_hand():
    assert of_estimate(1.0, 0.5).floats() == pytest.approx((1, 1 - 0.979982, 1 + 0.979982))
    assert np.isnan(of_estimate(1.0, np.nan).floats()[1])


def test_the_doors_are_open():
    assert diagnostics.Sharpness is Sharpness
    assert diagnostics.compare_sharpness is compare_sharpness

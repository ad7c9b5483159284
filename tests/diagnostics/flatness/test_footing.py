"""Numbers that may stand in one table: one step, one set of images; and the cases that stand beside each other."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import feddual
from diagnostics.flatness import measures, recorded, recording
from diagnostics.flatness.comparison import Comparison
from diagnostics.flatness.footing import Footing, case_of
from diagnostics.flatness.matching import group_runs
from diagnostics.landscape import Landscape, loss_surface
from diagnostics.surfaces.results import Surface
from feddual._lazy import keras
from feddual.errors import UserError
from feddual.records.identity import Replicate
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 5)).astype(np.float32), RNG.integers(0, 4, 80)
QUIET = {"images": None, "progress": False}
COLUMNS = ("loss", *measures.QUANTITIES)


def quartic(points=25, extent=1.0, pair=0, noise=0.0, **facts):
    """L = 1 + x² + x⁴ + 3 y²: kappa along x is 2 + 2 h², along y 6."""
    alphas = np.linspace(-extent, extent, points)
    x, y = np.meshgrid(alphas, alphas)
    loss = 1 + x**2 + x**4 + 3 * y**2 + noise
    identity = {"direction_names": [f"index {pair}"], "data": "ab" * 32, "loss": "crossentropy", "bn": "frozen"}
    identity |= {"weights": f"{noise}", "alphas": alphas.tolist()}
    about = {"loss": 1.0, "images": 10, "split": "train", "round": 1} | facts
    blank = np.zeros_like(loss)
    meta = {"identity": identity, "facts": about}
    return Surface(alphas, loss, blank, blank, np.zeros((*loss.shape, 0)), loss > -9, blank.astype(int), meta, alphas)


def test_the_step_is_part_of_what_a_curvature_is():
    for points, step in ((21, 0.1), (41, 0.05), (9, 0.25)):
        (found,) = measures.quantities(quartic(points))
        assert found["kappa"] == pytest.approx((2 + 2 * step**2 + 6) / 2)
        assert Footing.of(quartic(points)).steps == (pytest.approx(step),)
    assert str(Footing.of(quartic(41))) == "h = 0.05 on 10 training images (abababab)"


def other_images(surface):
    meta = {"identity": surface.meta["identity"] | {"data": "cd" * 32}, "facts": surface.meta["facts"]}
    return replace(surface, meta=meta)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (quartic(21), r"h = 0.05 on 10 .*a, 0, 0\n.*h = 0.1 on 10 .*b, 0, 0"),
        (quartic(41, extent=0.5), "h = 0.025"),
        (other_images(quartic(41)), "cdcdcdcd"),
        (quartic(41, images=20), "on 20 training"),
        (replace(quartic(41), alphas=np.linspace(-0.5, 0.5, 41)), "h = 0.025 and 0.05"),
    ],
)
def test_mixed_steps_and_images_are_refused(other, told):
    measured = {("round", "plain", "a", 0): [quartic(41)], ("round", "plain", "b", 0): [other]}
    with pytest.raises(UserError, match=f"(?s)one step h and one set of images.*{told}"):
        Comparison.of(measured, {"tau": 0.1}, {}, COLUMNS)


def normalised(surface):
    meta = {"identity": surface.meta["identity"] | {"loss": "crossentropy of normalised logits"}}
    return replace(surface, loss=surface.loss / 2, meta=meta | {"facts": surface.meta["facts"]})


def test_planes_of_one_footing_are_compared_case_by_case():
    """The fine plane is drawn, not averaged; normalised and matched planes are cases of their own."""

    def planes(steeper, round_of_loss):
        at_loss = {"match": "loss", "level": 2.0, "round": round_of_loss, "training_loss": 2.1}
        return {
            "fine": quartic(51, images=99), "pair-0": quartic(21, noise=steeper), "pair-1": quartic(21, pair=1),
            "pair-0-normalised": normalised(quartic(21)), "loss-2-pair-0": quartic(21, **at_loss),
            "loss-9-pair-0": quartic(21, noise=3, **at_loss | {"level": 9.0}),
        }  # fmt: skip

    found = {name: {Replicate(42, 0): planes(number, 3 + number)} for number, name in enumerate("ab")}
    made = recorded.compare_surfaces(found)
    cases = [("round", "plain"), ("round", "logit-normalised"), ("loss", "plain")]
    assert list(made.planes) == list(dict.fromkeys(zip(made.summary["match"], made.summary["variant"], strict=True)))
    assert list(made.planes) == cases
    table = made.summary.set_index(["match", "variant", "quantity", "model"])
    kappa = (2 + 2 * 0.1**2 + 6) / 2
    assert table.loc[("round", "plain", "kappa", "a"), "mean"] == pytest.approx(kappa)
    assert table.loc[("round", "plain", "kappa", "a"), "directions"] == 2
    assert table.loc[("round", "logit-normalised", "kappa", "a"), "mean"] == pytest.approx(kappa / 2)
    assert table.loc[("loss", "plain", "loss", "b"), "mean"] == pytest.approx(1)  # of two levels the lower
    assert made.surfaces["a"].loss.shape == (51, 51)
    said = " ".join(made.about)
    assert "h = 0.1 on 10 training images" in said
    assert "fine (h = 0.04 on 99 training images" in said
    assert "level 2: a 2.1 (round 3), b 2.1 (round 4)" in said


def softmax_regression(scale, ends="linear"):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation=ends)])
    kernel, bias = np.random.default_rng(1).normal(size=(5, 4)), np.random.default_rng(2).normal(size=4)
    model.set_weights([(scale * kernel).astype(np.float32), (scale * bias).astype(np.float32)])
    return model


@pytest.mark.parametrize("ends", ["linear", "softmax"])
def test_logits_times_three_have_the_same_normalised_surface(ends):
    one = Landscape(softmax_regression(1), X, Y, images=None, logit_norm=True)
    three = Landscape(softmax_regression(3, ends), X, Y, images=None, logit_norm=True)
    surfaces = [landscape.surface(grid=7, progress=False) for landscape in (one, three)]
    np.testing.assert_allclose(surfaces[1].loss, surfaces[0].loss, rtol=1e-5)
    plain = [loss_surface(softmax_regression(scale), X, Y, grid=7, **QUIET) for scale in (1, 3)]
    assert not np.allclose(plain[0].loss, plain[1].loss, rtol=0.1)
    assert "crossentropy of normalised logits" in surfaces[0].caption()
    assert case_of(surfaces[0]) == ("round", "logit-normalised")
    # By hand: each sample's logits, centred and over their standard deviation over the classes.
    logits = X @ softmax_regression(1).get_weights()[0] + softmax_regression(1).get_weights()[1]
    logits = (logits - logits.mean(1, keepdims=True)) / logits.std(1, keepdims=True)
    by_hand = np.log(np.exp(logits).sum(1)) - logits[np.arange(80), Y]
    assert surfaces[0].loss[surfaces[0].centre] == pytest.approx(by_hand.mean(), rel=1e-5)


def test_only_cross_entropy_has_logits():
    with pytest.raises(
        UserError, match="only cross-entropy has logits to normalise, mse has none; pass logit_norm=False"
    ):
        Landscape(softmax_regression(1), X, np.zeros((80, 4)), loss="mse", logit_norm=True)


def test_surfaces_recorded_for_all_cases_are_compared(tmp_path):
    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        experiment = tiny(name=name, partition__alpha=alpha, checkpoint__every=1, checkpoint__keep="all")
        feddual.run(experiment, out=tmp_path / name, progress=False)
    groups = group_runs([tmp_path / "even", tmp_path / "skewed"])
    options = {"grid": 3, "images": 60, "progress": False}
    folders = recording.record(groups, 2, **options)
    assert len(folders) == 2 * 2 * 2 * 2  # runs, pairs, variants, matches
    made = recorded.compare_recorded(groups)
    assert list(made.planes) == list(recorded.ORDER)
    assert made.settings["equal_loss"]["level"] > 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert recording.record(groups, 2, **options) == folders  # all there
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path / "skewed/surfaces")
    loss_surface(tmp_path / "skewed", grid=5, images=60, progress=False, out=tmp_path / "skewed/surfaces/main")
    with pytest.raises(
        UserError, match=r"(?s)no surface in common.*even, seed 0 of draw 42: .*h = 1 on 60.*skewed.*h = 0.5 on 60"
    ):
        recorded.compare_recorded(groups)

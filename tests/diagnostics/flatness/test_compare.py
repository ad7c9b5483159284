"""Comparisons: the numbers on cases known by hand, the intervals, the matching, the tables."""

import json

import numpy as np
import pytest

import feddual
from diagnostics.flatness import matching, measures, recorded
from diagnostics.flatness.compare import compare_models
from diagnostics.flatness.comparison import Comparison, said_of, said_of_effect
from diagnostics.flatness.matching import group_runs
from diagnostics.flatness.measures import flatness_radius, symmetric_rise
from diagnostics.surfaces.results import Lines, Surface
from feddual._lazy import keras, tf
from feddual.errors import UserError
from tests.helpers import tiny

X = np.eye(3, dtype=np.float32)
Y = np.zeros(3, int)


def quadratic(scale):
    """Loss |w|²/2 for the loss below: every filter-normalised direction has curvature |w|² = scale² · 91."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.set_weights([np.array([[1, 2], [3, 4], [5, 6]], np.float32) * np.float32(scale)])
    return model


def squared(y, z):
    return tf.reduce_sum(tf.square(z), 1) * 3 / 2


def test_flatness_radius_by_hand():
    radii = np.array([0, 0.5, 1.0])
    assert flatness_radius(radii, np.array([0, 0.05, 0.15]), 0.1) == pytest.approx(0.75)
    assert flatness_radius(radii, np.array([0, 0.05, 0.09]), 0.1) == 1.0  # never beyond: the last radius
    assert flatness_radius(radii, np.array([0, np.nan, 0.0]), 0.1) == 0.0  # what is not finite is not flat
    assert flatness_radius(radii, np.array([0, -0.5, 0.0]), 0.1) == 1.0


def test_rises_are_symmetric():
    # A slope alone is no rise: a federated model is not a stationary point.
    places, losses = np.array([-1.0, 0, 1]), np.array([[1.0, 2, 3], [4, 2, 6]])
    np.testing.assert_allclose([symmetric_rise((places, line), 1.0) for line in losses], [0, 3])


def plane(a, b, extent=1.0, points=25):
    """The surface L = 1 + a x² + b y² + x."""
    alphas = np.linspace(-extent, extent, points)
    x, y = np.meshgrid(alphas, alphas)
    loss = 1 + a * x**2 + b * y**2 + x
    meta = {"identity": {}, "facts": {"loss": 1.0}}
    blank = np.zeros_like(loss)
    return Surface(alphas, loss, blank, blank, np.zeros((*loss.shape, 0)), loss > -9, blank.astype(int), meta, alphas)


def test_a_planes_axes_are_two_lines_with_the_same_formulas():
    """A slope is no rise; kappa is 2 a and 2 b, the rise a r² and b r², of the pair their means."""
    (found,) = measures.quantities(plane(1, 3))
    assert found["kappa"] == pytest.approx(4)
    assert [found[f"rise_{r:g}"] for r in (1, 0.5, 0.25)] == pytest.approx([2, 0.5, 0.125])
    assert found["r_tau"] == pytest.approx((0.1**0.5 + (0.1 / 3) ** 0.5) / 2, abs=0.01)
    # A radius between points is read off straight lines, one beyond the end is not known.
    (between,) = measures.quantities(plane(1, 3, points=51))
    assert between["rise_0.5"] == pytest.approx(0.5 + 2 * 0.02**2)
    (near,) = measures.quantities(plane(1, 3, extent=0.6))
    assert np.isnan(near["rise_1"])
    assert near["r_tau"] == pytest.approx(found["r_tau"], abs=0.01)
    axis = plane(1, 3)
    lines = Lines(axis.alphas, np.stack([axis.loss[12], axis.loss[:, 12]]), *[np.zeros(0)] * 5, axis.meta)
    np.testing.assert_allclose(measures.profiles(lines).mean(0), measures.profiles(axis)[0])


def comparison(first, second, extent=1.0):
    """Two models, of each a list of seeds, of each a list of planes given by their two curvatures."""
    measured = {
        ("round", "plain", name, seed): [plane(*pair, extent) for pair in pairs]
        for name, seeds in (("one", first), ("two", second))
        for seed, pairs in enumerate(seeds)
    }
    return Comparison.of(measured, {"tau": 0.1}, {}, ("loss", *measures.QUANTITIES))


def test_positive_quantities_are_compared_by_ratios():
    """Curvatures c and 2 c, of every seed and pair: the ratio is 2 and its interval nothing but that."""
    made = comparison([[(1, 1), (4, 4)], [(2, 2), (2, 2)]], [[(2, 2), (8, 8)], [(4, 4), (4, 4)]])
    row = made.differences.set_index("quantity").loc["kappa"]
    assert (row["scale"], row["comparisons"], row["seeds"], row["directions"]) == ("ratio", 6, 2, 2)
    assert row[["effect", "low", "high", "all_low", "all_high"]].tolist() == pytest.approx([2] * 5)
    assert row["differs"]
    mean = made.summary.set_index(["quantity", "model"]).loc[("kappa", "one")]
    assert (mean["scale"], mean["mean"]) == ("log", pytest.approx(2 * (1 * 4 * 2 * 2) ** 0.25))
    bent = comparison([[(1, 1)], [(2, 2)]], [[(1, 1)], [(-1, -1)]])  # a saddle has no logarithm
    row = bent.differences.set_index("quantity").loc["kappa"]
    assert (row["scale"], row["effect"]) == ("difference", pytest.approx(-3))
    assert not row["differs"]


def test_a_models_loss_is_one_number_however_many_directions():
    made = comparison([[(1, 1)] * 5] * 3, [[(2, 2)] * 5] * 3)
    assert len(made.models) == 6
    assert "loss" not in made.values
    counted = made.summary.set_index(["quantity", "model"])["directions"]
    assert (counted["loss", "one"], counted["kappa", "one"]) == (1, 5)


def test_one_seed_has_no_interval():
    made = comparison([[(1, 1), (2, 2)]], [[(3, 3), (4, 4)]])
    assert made.summary[["low", "high"]].isna().all(axis=None)
    assert made.differences[["low", "high", "all_low", "all_high"]].isna().all(axis=None)
    assert not made.differences["differs"].any()
    assert made.profiles.query("radius > 0")["low"].isna().all()
    assert [said_of(row) for row in made.summary.query("quantity == 'kappa'").to_dict("records")] == ["2.83", "6.93"]


def test_a_radius_that_was_never_reached_is_a_bound(tmp_path):
    """A rise of 0.1 lies beyond radius 1 where the curvature is below 0.2."""
    made = comparison([[(1, 1)], [(2, 2)]], [[(0.05, 1)], [(2, 2)]])
    made.save(tmp_path)
    for found in (made, Comparison.load(tmp_path)):
        one, two = found.against_first.query("quantity == 'r_tau'").to_dict("records")
        assert (one["censored"], two["censored"]) == (0, 1)
        assert np.isnan([two["low"], two["effect_low"], two["effect_all_high"]]).all()
        assert said_of(two).startswith("> 0.")
        assert said_of(two).endswith("(1 never reached)")
        assert said_of_effect(two) == f"> {two['effect']:.3g}"
        assert found.against_first.query("quantity == 'kappa'")["effect_low"].notna().any()
    both = comparison([[(0.05, 1)], [(2, 2)]], [[(0.05, 1)], [(2, 2)]])
    row = both.differences.set_index("quantity").loc["r_tau"]
    assert (row["bound"], np.isnan(row["effect"])) == ("?", True)


def test_models_compared_on_a_case_known_by_hand():
    found = compare_models(
        {"small": quadratic(0.1), "large": quadratic(0.2)}, X, Y, directions=3, grid=None, logit_norm=False,
        images=None, progress=False, loss=squared,
    )  # fmt: skip
    summary = found.summary.set_index(["quantity", "model"])["mean"]
    assert summary["kappa", "small"] == pytest.approx(0.91, rel=1e-3)
    assert summary["kappa", "large"] == pytest.approx(3.64, rel=1e-3)
    assert summary["rise_0.5", "large"] == pytest.approx(3.64 * 0.25 / 2, rel=1e-3)
    # delta(r) = kappa r² / 2 = 0.1; straight lines between radii a tenth apart
    assert summary["r_tau", "large"] == pytest.approx((0.2 / 3.64) ** 0.5, abs=0.01)
    row = found.differences.set_index("quantity").loc["kappa"]
    assert row["effect"] == pytest.approx(4, rel=1e-3)
    assert np.isnan(row["low"])  # one seed
    profile = found.profiles.query("model == 'small' and radius == 1.0").iloc[0]
    assert profile["mean"] == pytest.approx(0.455, rel=1e-3)
    assert profile["loss"] == pytest.approx(0.455, rel=1e-3)
    assert found.summary.set_index("model").loc["large", "loss"].iloc[0] == pytest.approx(1.82, rel=1e-3)


def test_settings_reach_lines_and_surfaces():
    models = {"a": quadratic(0.1), "b": quadratic(0.2)}
    found = compare_models(
        models, X, np.zeros((3, 2)), directions=2, grid=3, logit_norm=False, images=None, progress=False, loss="mse",
        norm="layer", bn="recalibrate", batch_size=2,
    )  # fmt: skip
    for one in (*found.lines.values(), *found.surfaces.values()):
        identity = one.meta["identity"]
        assert (identity["loss"], identity["bn"], identity["batch_size"]) == ("mse", "recalibrate", 2)
        assert all("layer" in name for name in identity["direction_names"])
    with pytest.raises(UserError, match="logit_norm"):
        compare_models(models, X, np.zeros((3, 2)), loss="mse", progress=False)


def test_another_comparison_is_not_overwritten(tmp_path):
    options = {"directions": 2, "grid": None, "images": None, "logit_norm": False, "progress": False, "loss": squared}
    models = {"a": quadratic(0.1), "b": quadratic(0.2)}
    found = compare_models(models, X, Y, out=tmp_path / "cmp", **options)
    compare_models(models, X, Y, out=tmp_path / "cmp", **options)  # the same again is fine
    found.save(tmp_path / "cmp")

    def listing():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = listing()
    for others, changed, named in (
        ({"c": quadratic(0.3), "d": quadratic(0.4)}, {}, "models"),
        ({"a": quadratic(0.1), "b": quadratic(0.5)}, {}, "weights"),
        (models, {"directions": 3}, "directions"),
        (models, {"tau": 0.2}, "tau"),
    ):
        with pytest.raises(UserError, match=rf"holds another comparison:\n(.*\n)*  {named}: it has"):
            compare_models(others, X, Y, out=tmp_path / "cmp", **options | changed)
    with pytest.raises(UserError, match="data: it has"):
        compare_models(models, X[:2], Y[:2], out=tmp_path / "cmp", **options)
    other = compare_models(models, X, Y, **options | {"seed": 1})
    with pytest.raises(UserError, match="seed: it has 0, asked for 1"):
        other.save(tmp_path / "cmp")
    assert listing() == before


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        for seed in (0, 1):
            experiment = tiny(
                name=f"{name}-{seed}", seed=seed, partition__alpha=alpha, checkpoint__every=1, checkpoint__keep="all"
            )
            made.append(folder / f"{name}-{seed}")
            feddual.run(experiment, out=made[-1], progress=False)
    return made


def test_runs_that_differ_in_their_seed_go_together(runs):
    assert {name: [path.name for path in group] for name, group in group_runs(runs).items()} == {
        "even-0": ["even-0", "even-1"],
        "skewed-0": ["skewed-0", "skewed-1"],
    }
    assert list(group_runs(runs[:2])) == ["even-0", "even-1"]


def test_runs_of_one_name_are_told_apart_by_their_parents(runs, tmp_path):
    import shutil

    paths = []
    for number, source in enumerate(runs):
        paths.append(tmp_path / f"s{number % 2}" / source.name[:-2])
        shutil.copytree(source, paths[-1])
    even = [tmp_path / f"s{number}" / "even" for number in (0, 1)]
    assert group_runs(even) == {"s0-even": [even[0]], "s1-even": [even[1]]}
    assert list(group_runs(paths)) == ["even", "skewed"]
    both = [tmp_path / "s0" / "even", tmp_path / "other" / "even"]
    shutil.copytree(tmp_path / "s0" / "skewed", both[1])
    assert list(group_runs(both)) == ["s0-even", "other-even"]
    with pytest.raises(UserError, match="given twice"):
        group_runs([both[0], both[0]])


ROWS = {"images": 60, "split": "train", "seed": 0}


def test_runs_without_a_checkpoint_near_the_loss_are_refused(runs, monkeypatch):
    def found(matches):
        return matching.cases({"a": [runs[0]], "b": [runs[2]]}, None, None, matches, ROWS, {})

    assert [match for match, *_ in found("loss")] == ["loss", "loss"]
    monkeypatch.setattr(matching, "UNEQUAL", 1e-4)
    told = (
        r"all runs reach 1\.\d+, but no checkpoint .* of a \(seed 0; nearest 1\.\d+, after round 2\).* checkpoint.keep"
    )
    with pytest.raises(UserError, match=told):
        found("loss")
    with pytest.warns(UserWarning, match=f"left out: .*{told}"):  # not asked for by name: the rest is compared
        assert [match for match, *_ in found(None)] == ["round", "round"]


def test_runs_matched_by_their_training_losses(runs, monkeypatch):
    """Losses 3, 2, 1 and 3, 2.5, 2.1 after three rounds: the level is 2.1, and the first has 2 after round 2."""
    losses = {"even-0": {1: 3.0, 2: 2.0, 3: 1.0}, "skewed-0": {1: 3.0, 2: 2.5, 3: 2.1}}
    seen = []

    def known(run, one, evaluation):
        seen.append(one.facts["split"])
        return losses[run.path.name]

    monkeypatch.setattr(matching, "_training_losses", known)
    for split in ("train", "test"):  # whatever is looked at, it is the training loss that is equal
        rows = {**ROWS, "images": 40, "split": split}
        found = matching.cases({"a": [runs[0]], "b": [runs[2]]}, None, None, ["loss"], rows, {})
        facts = {name: [one.facts[key] for key in ("round", "level", "training_loss")] for _, name, _, one in found}
        assert facts == {"a": [2, 2.1, 2.0], "b": [3, 2.1, 2.1]}
        assert {one.facts["split"] for *_, one in found} == {split}
        weights = feddual.open(runs[0]).weights(2)
        np.testing.assert_array_equal(
            found[0][3].weights[: weights["dense1/kernel"].size], weights["dense1/kernel"].ravel()
        )
    assert set(seen) == {"train"}


def test_runs_on_other_images_are_refused(runs, tmp_path):
    experiment = tiny(name="other", dataset__num_train=300, training__rounds=1)
    feddual.run(experiment, out=tmp_path / "other", progress=False)
    with pytest.raises(UserError, match=r"one set of images.*even-0 \(seed 0\): 240 of .*other \(seed 0\): 300 of"):
        compare_models({"even-0": runs[0], "other": tmp_path / "other"}, progress=False)


def test_comparison_of_runs(runs, tmp_path, monkeypatch):
    options = {"directions": 2, "grid": 3, "images": 100, "progress": False, "out": tmp_path / "cmp"}
    monkeypatch.setattr(matching, "UNEQUAL", 1.0)  # one seed's model is far worse
    found = compare_models(group_runs(runs), **options)
    assert len(found.values) == 2 * 2 * 2 * 2 * 2  # matches, variants, models, seeds, directions
    by_round = found.models.query("match == 'round'")
    assert set(by_round["round"]) == {3}
    by_loss = found.models.query("match == 'loss' and variant == 'plain'")
    at_end = by_round.query("variant == 'plain'")
    target = at_end["loss"].max()
    assert (by_loss["loss"] - target).abs().max() <= (at_end["loss"] - target).abs().max() + 1e-12
    # The same noise for all: hashes differ, since filters do, names do not.
    names = {tuple(lines.meta["identity"]["direction_names"]) for lines in found.lines.values()}
    hashes = {tuple(lines.meta["identity"]["directions"]) for lines in found.lines.values()}
    assert len(names) == 1
    assert len(hashes) > 4
    assert len({lines.meta["identity"]["data"] for lines in found.lines.values()}) == 1
    whole = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    assert len(whole["differences"]) == len(found.differences) == 2 * 2 * 5
    assert (tmp_path / "cmp" / "values.csv").read_text().startswith("match,variant,model,seed")
    again = compare_models(group_runs(runs), **options)  # from the files
    np.testing.assert_array_equal(again.values["kappa"], found.values["kappa"])
    kept = Comparison.load(tmp_path / "cmp")
    np.testing.assert_array_equal(again.differences["effect"], kept.differences["effect"])
    assert list(found.surfaces) == ["even-0", "skewed-0"]
    assert list(found.planes) == list(recorded.ORDER)
    assert found.settings["footing"] | {"data": ""} == {"steps": (0.05,), "images": 100, "split": "train", "data": ""}
    equal = found.settings["equal_loss"]
    assert equal["level"] == pytest.approx(target)
    shown = [one["training_loss"] for several in equal["models"].values() for one in several]
    assert shown == pytest.approx(by_loss["loss"].tolist())
    footing_said, equal_said = found.about
    assert "h = 0.05 on 100 training images" in footing_said
    assert f"level {target:.3g}: even-0" in equal_said


def test_bad_input(runs):
    with pytest.raises(UserError, match="at least two models"):
        compare_models({"one": quadratic(1)}, X, Y)
    with pytest.raises(UserError, match="at least 2"):
        compare_models({"a": quadratic(1), "b": quadratic(2)}, X, Y, directions=1)
    with pytest.raises(UserError, match="as many training seeds"):
        compare_models({"a": [quadratic(1)], "b": [quadratic(2), quadratic(3)]}, X, Y)
    with pytest.raises(UserError, match="matches"):
        compare_models({"a": runs[0], "b": runs[1]}, matches=("accuracy",))

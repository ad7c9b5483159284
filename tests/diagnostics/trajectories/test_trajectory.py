"""Checkpoints in a plane: places, losses, joint planes, satellites, files; and random walks."""

import numpy as np
import pytest

import diagnostics
import feddual
from diagnostics.trajectories.walk import walk_shares
from feddual.errors import UserError
from tests.helpers import tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        feddual.run(
            tiny(name=name, partition__alpha=alpha, training__rounds=4, checkpoint__every=1, checkpoint__keep="all"),
            out=folder / name, progress=False,
        )
        for name, alpha in (("even", 100.0), ("skewed", 0.1))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def joint(runs):
    return diagnostics.trajectory(*runs, grid=7, images=None, clients=[3], progress=False)


def vectors(run):
    """The initial model of the seed, then every checkpoint."""
    from feddual import setting
    from feddual.functional.layout import read

    return [read(setting.of(run.config).network.model), *(run._checkpoint(number).weights for number in (1, 2, 3, 4))]


def test_one_run_equals_svd_of_its_differences_from_the_last(runs):
    found = diagnostics.trajectory(runs[0], grid=None, progress=False)
    differences = np.stack(vectors(runs[0])).astype(np.float64) - vectors(runs[0])[-1]
    left, lengths, _ = np.linalg.svd(differences, full_matrices=False)
    assert found.points["round"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(found.points["alpha"].abs(), np.abs(left[:, 0] * lengths[0]), atol=1e-6)
    np.testing.assert_allclose(found.points["beta"].abs(), np.abs(left[:, 1] * lengths[1]), atol=1e-6)
    np.testing.assert_allclose(found.shares[:2], (lengths**2 / (lengths**2).sum())[:2])
    np.testing.assert_allclose(found.points["distance"], np.linalg.norm(differences, axis=1), atol=1e-6)
    assert found.points[["alpha", "beta", "distance"]].iloc[-1].abs().max() < 1e-9
    assert found.surface is None


def test_two_runs_lie_in_one_plane_through_the_first_ones_last_model(runs, joint):
    every = [*vectors(runs[0]), *vectors(runs[1])]
    origin = every[4].astype(np.float64)
    _, lengths, right = np.linalg.svd(np.stack(every) - origin, full_matrices=False)
    places = (np.stack(every) - origin) @ right[:2].T
    path = joint.points[joint.points["kind"] == "global"]
    np.testing.assert_allclose(path[["alpha", "beta"]].abs(), np.abs(places), atol=1e-6)
    np.testing.assert_allclose(joint.shares[:2], (lengths**2 / (lengths**2).sum())[:2])
    assert joint.runs == ["even", "skewed"]
    starts = path[path["round"] == 0]
    assert starts["alpha"].nunique() == 1  # the same seed, the same initial model


def test_points_have_their_own_losses_and_the_surface_that_of_the_plane(runs, joint):
    from diagnostics import subject

    chosen = subject.of_run(runs[0], None, "train", None, among=runs)
    for run, name in zip(runs, joint.runs, strict=True):
        row = joint.of(name).set_index("round").loc[2]
        model = run.model(2)
        logits = model(chosen.x, training=False).numpy().astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), chosen.y]
        assert row["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert row["error"] == pytest.approx((logits.argmax(1) != chosen.y).mean())
    last = joint.of("even").iloc[-1]
    assert joint.surface.loss[joint.surface.centre] == pytest.approx(last["loss"], rel=1e-6)
    assert joint.surface.alphas[0] < joint.points["alpha"].min()
    assert joint.surface.alphas[-1] > joint.points["alpha"].max()


def test_clients_are_satellites_that_do_not_turn_the_plane(runs, joint):
    alone = diagnostics.trajectory(*runs, grid=None, images=None, progress=False)
    np.testing.assert_array_equal(alone.shares, joint.shares)
    shown = joint.of("even", "client")
    models = diagnostics.client_models(runs[0], 3)
    assert shown["client"].tolist() == models.clients.tolist()
    # FedAvg of equal clients: the global place is the mean of theirs
    there = joint.of("even").set_index("round").loc[3]
    assert there["alpha"] == pytest.approx(float(models.shares @ shown["alpha"]), abs=1e-5)
    assert (shown["off"] > 0).all()


def test_saved_and_loaded_it_is_equal_and_another_is_refused(runs, joint, tmp_path):
    joint.save(tmp_path / "t")
    loaded = diagnostics.Trajectory.load(tmp_path / "t")
    assert loaded.points.equals(joint.points)
    assert np.array_equal(loaded.shares, joint.shares)
    assert np.array_equal(loaded.walk, joint.walk)
    assert np.array_equal(loaded.surface.loss, joint.surface.loss)
    assert loaded.caption() == joint.caption()
    with pytest.raises(UserError, match=r"holds another measurement:\n(.*\n)*  points"):
        diagnostics.trajectory(runs[0], grid=7, images=None, clients=[3], out=tmp_path / "t", progress=False)
    with pytest.raises(UserError, match="no trajectory here"):
        diagnostics.Trajectory.load(tmp_path)


def test_a_folder_is_continued(runs, tmp_path):
    asked = {"grid": 5, "images": 50, "out": tmp_path / "t", "progress": False}
    first = diagnostics.trajectory(runs[0], **asked)
    stamp = (tmp_path / "t" / "surface" / "surface.npz").stat().st_mtime_ns
    assert np.array_equal(diagnostics.trajectory(runs[0], **asked).surface.loss, first.surface.loss)
    assert (tmp_path / "t" / "surface" / "surface.npz").stat().st_mtime_ns == stamp


def test_what_has_no_plane_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="at least one run"):
        diagnostics.trajectory()
    with pytest.raises(UserError, match="given twice"):
        diagnostics.trajectory(runs[0], runs[0].path)
    with pytest.raises(UserError, match="round 9 was not kept; there are 0, 1, 2, 3, 4"):
        diagnostics.trajectory(runs[0], rounds=[1, 9])
    with pytest.raises(UserError, match="span fewer than 2"):
        diagnostics.trajectory(runs[0], rounds=[0, 4], grid=None)
    other = feddual.run(tiny(model__hidden=[9]), out=tmp_path / "other", progress=False)
    with pytest.raises(UserError, match="other has another architecture than even"):
        diagnostics.trajectory(runs[0], other)


# --- random walks


def test_a_long_walk_has_the_shares_known_in_closed_form():
    """Around the last place 8/π² and 8/(9π²): the eigenvalues of min(s, t) fall as 1/(k - 1/2)²."""
    found = walk_shares([range(1001)])
    assert found[0] == pytest.approx(8 / np.pi**2, abs=1e-3)
    assert found[1] == pytest.approx(8 / 9 / np.pi**2, abs=1e-3)
    assert found.sum() == pytest.approx(1)


def test_around_the_mean_it_is_the_61_percent_of_the_literature():
    steps = np.arange(1001.0)
    inner = np.minimum.outer(steps, steps)
    centred = inner - inner.mean(0) - inner.mean(1)[:, None] + inner.mean()
    values = np.linalg.eigvalsh(centred)
    assert values[-1] / values.sum() == pytest.approx(6 / np.pi**2, abs=1e-3)


def test_two_walks_are_as_simulated():
    rng, rounds = np.random.default_rng(0), ([0, 2, 5, 9], [0, 3, 8])
    places = []
    for one in rounds:
        walk = np.concatenate([np.zeros((1, 200_000)), np.cumsum(rng.normal(size=(9, 200_000)), 0)])
        places += list(walk[list(one)])
    gaps = np.stack(places) - places[3]
    values = np.linalg.eigvalsh(gaps @ gaps.T)[::-1]
    np.testing.assert_allclose(walk_shares(rounds), values / values.sum(), atol=0.01)

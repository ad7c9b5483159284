"""Planes through a round's clients."""

import numpy as np
import pytest

import diagnostics
import feddual
from feddual.errors import UserError
from figures.charts import merging
from tests.helpers import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = tiny(checkpoint__every=1, checkpoint__keep="all", training__clients_per_round=4)
    return feddual.run(experiment, out=tmp_path_factory.mktemp("runs") / "a", progress=False)


@pytest.fixture(scope="module")
def found(run):
    return diagnostics.client_planes(run, 2, grid=7, images=None, progress=False)


def test_clients_lie_where_svd_puts_them(run, found):
    clients = diagnostics.client_models(run, 2)
    differences = clients.weights.astype(np.float64) - clients.after
    _, lengths, right = np.linalg.svd(differences, full_matrices=False)
    np.testing.assert_allclose(found.settings["shares"], lengths**2 / (lengths**2).sum(), atol=1e-9)
    places = differences @ right[:2].T
    np.testing.assert_allclose(found.clients[["alpha", "beta"]].abs(), np.abs(places), atol=1e-7)
    norms = np.linalg.norm(differences, axis=1)
    np.testing.assert_allclose(found.clients["distance"], norms)
    np.testing.assert_allclose(found.clients["off"], np.sqrt(norms**2 - (places**2).sum(1)), atol=1e-6)
    np.testing.assert_allclose(found.clients["relative"], norms / np.linalg.norm(clients.after.astype(float)))
    first = found.pairs.iloc[0]
    a, b = differences[:2]
    assert first["distance"] == pytest.approx(np.linalg.norm(a - b))
    assert first["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_every_plane_has_the_global_model_at_zero_on_its_own_data(run, found):
    barriers = diagnostics.barriers(run, round=2, grid=3, images=None, layers=False, progress=False)
    models = barriers.models.set_index("model")
    assert list(found.surfaces) == ["all clients' data", *found.clients["client"]]
    pooled = found.surfaces["all clients' data"]
    assert pooled.loss[pooled.centre] == pytest.approx(models.loc["global", "loss"], rel=1e-5)
    for row in found.clients.itertuples():
        surface = found.surfaces[row.client]
        assert surface.loss[surface.centre] == pytest.approx(row.global_own_loss, rel=1e-5)
        assert row.global_own_loss == pytest.approx(models.loc[row.client, "global_own_loss"], rel=1e-5)
        assert row.own_loss == pytest.approx(models.loc[row.client, "own_loss"], rel=1e-5)
        assert row.loss == pytest.approx(models.loc[row.client, "loss"], rel=1e-5)
        assert row.min_loss == surface.loss.min()
        assert row.min_distance == pytest.approx(np.hypot(row.min_alpha, row.min_beta))


def test_saved_and_loaded_they_are_equal_and_another_is_refused(run, found, tmp_path):
    found.save(tmp_path / "p")
    loaded = diagnostics.ClientPlanes.load(tmp_path / "p")
    assert loaded.clients.equals(found.clients)
    assert loaded.pairs.equals(found.pairs)
    assert all(np.array_equal(loaded.surfaces[name].loss, one.loss) for name, one in found.surfaces.items())
    assert loaded.caption() == found.caption()
    with pytest.raises(UserError, match=r"holds another measurement:\n  round: it has 2, asked for 3"):
        diagnostics.client_planes(run, 3, grid=7, images=None, out=tmp_path / "p", progress=False)
    with pytest.raises(UserError, match="is not of round 2"):
        diagnostics.client_planes(run, 2, clients=[99])


def test_the_chart_has_a_panel_for_each_data_and_draws_with_both_back_ends(found):
    chart = merging.planes(found)
    assert [panel.title for panel in chart.panels] == list(found.surfaces)
    assert len({panel.scale for panel in chart.panels}) == 1
    assert len(chart.matplotlib().axes) == len(chart.panels) + 1  # and the colour bar
    assert sum(trace.type == "contour" for trace in chart.plotly().data) == len(chart.panels)

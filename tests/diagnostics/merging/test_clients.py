"""Clients' models of a recorded round, and how far apart they are."""

import numpy as np
import pytest

import diagnostics
import feddual
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from tests.helpers import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = tiny(checkpoint__every=1, checkpoint__rounds=[0], checkpoint__keep="all")
    return feddual.run(experiment, out=tmp_path_factory.mktemp("runs") / "a", progress=False)


def test_the_mean_of_fedavgs_clients_is_the_next_checkpoint_in_bits(run):
    for number in (1, 2, 3):
        found = diagnostics.client_models(run, number)
        recorded = run._checkpoint(number).weights
        assert np.array_equal(found.mean, recorded)
        assert np.array_equal(found.after, recorded)
        assert found.exact
        assert np.array_equal(found.before, run._checkpoint(number - 1).weights)
        rows = run.clients[run.clients["round"] == number]
        assert found.clients.tolist() == rows["client"].tolist()
    assert diagnostics.client_models(run).round == 3  # the last whose start is kept


def test_shares_are_those_of_the_weighting(tmp_path):
    experiment = tiny(training__weighting="num_examples", checkpoint__every=1, training__rounds=1)
    run = feddual.run(experiment, out=tmp_path / "run", progress=False)
    found = diagnostics.client_models(run, 1)
    sizes = run.partition.sizes[found.clients]
    np.testing.assert_allclose(found.shares, sizes / sizes.sum(), rtol=1e-15)
    assert len(set(sizes)) > 1
    assert np.array_equal(found.mean, run._checkpoint(1).weights)


def test_a_round_whose_start_is_gone_is_refused_by_name(tmp_path):
    run = feddual.run(tiny(checkpoint__keep=1, checkpoint__every=2), out=tmp_path / "run", progress=False)
    assert run.checkpoints == [3]
    with pytest.raises(UserError, match=r"start of round 3 was not kept; rounds that can be measured: 1 \(set"):
        diagnostics.client_models(run, 3)
    assert diagnostics.client_models(run).round == 1


def test_a_round_that_ends_elsewhere_is_told(tmp_path):
    import shutil

    run = feddual.run(tiny(checkpoint__every=1, checkpoint__keep="all"), out=tmp_path / "run", progress=False)
    shutil.copy(run._dir.checkpoint_path(1), run._dir.checkpoint_path(2))
    with pytest.warns(UserWarning, match="round 2 done again ends .* from the recorded one"):
        assert diagnostics.client_models(run, 2).exact is False


def test_regenerating_changes_nothing_in_the_run(run):
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    found = diagnostics.client_models(run, 2)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    assert found.sha256 == fingerprint(found.clients, found.weights, found.counts)

"""A run directory of the first format, as users have them, still opens, resumes, compares and reports."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import diagnostics
import feddual
import figures.report

FIRST = Path(__file__).parents[2] / "golden" / "format-1"


@pytest.fixture
def runs(tmp_path):
    """`even` ended after 6 rounds; `skewed` was stopped at round 5, one after its last checkpoint."""
    return Path(shutil.copytree(FIRST, tmp_path / "runs"))


def lines(path):
    return path.read_text().splitlines()


def test_it_opens(runs):
    for name, rounds in (("even", 6), ("skewed", 5)):
        run = feddual.open(runs / name)
        assert len(run.metrics) == len(run.timings) == rounds
        assert len(run.clients) == 3 * rounds
        assert run.environment["threads"] == 1
        assert run.partition.num_clients == len(run.histograms)
        assert run.checkpoints
        weights = run.weights()
        assert all(np.isfinite(array).all() for array in weights.values())
        assert set(run.probe("gradient-norms")["round"]) == set(range(1, rounds + 1))
        assert diagnostics.Surface.load(runs / name / "surfaces" / "main").complete


@pytest.mark.filterwarnings("ignore:.*resumed with")  # on another machine than the one it began on
def test_it_resumes_where_it_stopped(runs):
    path = runs / "skewed"
    before = {log: lines(path / f"{log}.jsonl") for log in ("metrics", "clients")}
    rounds = [json.loads(line)["round"] for line in before["metrics"]]
    assert rounds == [1, 2, 3, 4, 5]
    run = feddual.run(feddual.open(path).config, out=path, resume=True, progress=False)
    assert run.summary()["finished"]
    assert run.metrics["round"].tolist() == [1, 2, 3, 4, 5, 6]
    for log, old in before.items():
        kept = [line for line in old if json.loads(line)["round"] <= 4]
        assert lines(path / f"{log}.jsonl")[: len(kept)] == kept
    assert 6 in run.checkpoints


def test_it_compares(runs):
    table = feddual.compare(runs / "even", runs / "skewed")
    assert table["rounds"].tolist() == [6, 5]
    assert table["final"].notna().all()


def test_its_models_compare_by_flatness(runs):
    models = {name: runs / name for name in ("even", "skewed")}
    found = diagnostics.compare_models(models, directions=5, matches=["round"], images=40, grid=None, progress=False)
    assert set(found.summary["model"]) == set(models)


def test_it_reports(runs):
    page = figures.report.write(runs).read_text()
    assert "even" in page
    assert "stopped after round 5 of 6" in page

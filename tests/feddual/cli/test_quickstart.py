"""The quickstart's story: whole, continued, and honest about what failed."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

import feddual
from diagnostics.flatness.comparison import Comparison
from diagnostics.surfaces.results import Surface
from feddual.cli import app, quickstart
from feddual.cli.progress import StoryProgress, sparkline
from tests.helpers import tell_tiny_story

CELLS = ("fedavg-iid-s0", "fedavg-s0", "feddual-s0")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    out = tmp_path_factory.mktemp("story")
    return out, tell_tiny_story(out)


def test_everything_is_there(told):
    out, outcome = told
    assert set(outcome.runs) == set(CELLS)
    assert not outcome.failed
    for cell in CELLS:
        run = feddual.open(out / cell)
        assert run.summary()["finished"]
        assert len(run.probe("gradient-norms"))
        for pair in range(quickstart.PAIRS):
            assert Surface.load(out / cell / "surfaces" / f"pair-{pair}").complete
    assert Comparison.load(out / "comparison").settings["models"] == dict.fromkeys(CELLS, 1)
    assert (out / "report.html").stat().st_size > 1e6
    assert {path.suffix for path in (out / "figures").iterdir()} == {".png", ".pdf"}


def test_all_models_are_measured_with_the_same_noise_and_images(told):
    out, _ = told
    for pair in range(quickstart.PAIRS):
        metas = [Surface.load(out / cell / "surfaces" / f"pair-{pair}").meta["identity"] for cell in CELLS]
        assert len({meta["data"] for meta in metas}) == 1
        assert len({tuple(meta["direction_names"]) for meta in metas}) == 1


def test_the_end_is_three_sentences_with_the_measured_numbers(told):
    out, outcome = told
    assert len(outcome.findings) == 3
    for cell, label in zip(CELLS, ("FedAvg, IID classifies", "FedAvg, non-IID (α = 0.1)", "FedDUAL"), strict=True):
        assert label in outcome.findings[0]
        assert f"{outcome.runs[cell]['accuracy']:.1%}" in outcome.findings[0]
    assert "Next:" in outcome.text()
    assert f"{out}/report.html" in outcome.text()
    json.dumps(outcome.to_dict())


def test_a_second_call_computes_nothing_again(told, monkeypatch):
    out, outcome = told
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix in (".jsonl", ".npz")}
    monkeypatch.setattr(quickstart, "measure", lambda task: pytest.fail("a surface was measured again"))
    again = tell_tiny_story(out)
    assert again.findings == outcome.findings
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.fixture
def without_surfaces(told, tmp_path):
    """The runs alone."""
    shutil.copytree(told[0], tmp_path / "q", ignore=shutil.ignore_patterns("surfaces", "figures", "report.html"))
    return tmp_path / "q"


def test_stopped_in_the_middle_it_continues_to_the_same_numbers(told, without_surfaces, monkeypatch):
    measure, calls = quickstart.measure, []

    def stopping(task):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(task)

    monkeypatch.setattr(quickstart, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        tell_tiny_story(without_surfaces)
    assert not (without_surfaces / "report.html").exists()
    monkeypatch.setattr(quickstart, "measure", lambda task: calls.append(task) or measure(task))
    assert tell_tiny_story(without_surfaces).findings == told[1].findings
    assert len(calls) == 2 + 8  # the one that was there was not measured again


def test_what_fails_is_told_and_the_rest_goes_on(without_surfaces, monkeypatch):
    shutil.rmtree(without_surfaces / "feddual-s0")
    monkeypatch.setattr("feddual.studies.grid.run_cell", lambda task: "error: no luck")
    monkeypatch.setattr(quickstart, "measure", lambda task: "nowhere to walk")
    outcome = tell_tiny_story(without_surfaces)
    assert outcome.failed["feddual-s0"] == "error: no luck"
    assert outcome.failed["fedavg-s0/pair-0"] == "nowhere to walk"
    assert set(outcome.runs) == set(CELLS[:2])
    page = (without_surfaces / "report.html").read_text(encoding="utf-8")
    assert "no luck" in page


def test_bad_settings_are_told_before_anything_runs(tmp_path):
    result = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / "q"), "--set", "training.rounds=none"])
    assert result.exit_code == 2
    assert "training.rounds" in result.stderr
    assert not (tmp_path / "q").exists()


def test_a_line_where_nobody_watches_and_none_when_silent(capsys):
    with StoryProgress(stages=2) as shown:
        shown.stage("First", "because")
        bar = shown.bar("part", 2, "things")
        shown.update(bar, 1, "one")
        shown.update(bar, 2, "two")
    said = capsys.readouterr().err
    assert re.search(r"1/2 First\nbecause\n", said)
    assert "part: 2/2 things two" in said
    with StoryProgress(enabled=False) as shown:
        shown.stage("First", "because")
        shown.update(shown.bar("part", 1, "things"), 1, "")
    assert not capsys.readouterr().err


def test_sparkline():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""
    assert sparkline([0.0]) == "▁"
    assert len(sparkline([1.0] * 50)) == 16

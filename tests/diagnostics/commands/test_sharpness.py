"""`python -m diagnostics sharpness` on real runs."""

import json

import pandas as pd
import pytest

import feddual
from diagnostics.flatness.comparison import Comparison
from diagnostics.flatness.sharpness_result import Sharpness
from feddual.records.collect import collect
from figures._results import Results
from figures.general import flatness
from tests.diagnostics.commands.test_commands import call
from tests.helpers import tiny

FAST = ("--measures", "kappa_fn,sam,profile", "--directions", "2", "--images", "60")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for alpha in (100.0, 0.1):
        for seed in (0, 1):
            settings = {"partition__alpha": alpha, "seed": seed, "checkpoint__every": 1, "checkpoint__keep": "all"}
            feddual.run(tiny(**settings), out=folder / f"{'even' if alpha > 1 else 'skewed'}-s{seed}", progress=False)
    return folder


def test_one_run_gets_a_folder_and_a_table(runs):
    result = call("sharpness", runs / "even-s0", *FAST, "--name", "first")
    found = Sharpness.load(runs / "even-s0" / "sharpness" / "first")
    assert found.table["measure"].tolist() == ["gradient_norm", "kappa_fn", "sam", "r_tau"]
    assert "κ_FN" in result.stdout
    assert "it is no stationary point" in " ".join(result.stdout.split())
    again = json.loads(call("sharpness", runs / "even-s0", *FAST, "--name", "first", "--json").stdout)
    values = [row["value"] for row in again[0]["table"]]
    assert values == pytest.approx(found.table["value"].tolist(), rel=1e-8)
    other = call("sharpness", runs / "even-s0", "--measures", "sam", "--images", "50", "--name", "first", code=2)
    assert "holds another sharpness" in other.stderr


def test_several_runs_are_compared_over_seeds(runs, tmp_path):
    every = [runs / f"{name}-s{seed}" for name in ("even", "skewed") for seed in (0, 1)]
    said = json.loads(call("sharpness", *every, *FAST, "--logit-norm", "--out", tmp_path / "cmp", "--json").stdout)
    rows = pd.DataFrame(said[0]["differences"])
    assert set(rows["quantity"]) == {"gradient_norm", "kappa_fn@0.05", "sam@0.05", "r_tau@0.1"}
    assert rows["seeds"].unique().tolist() == [2]
    assert rows.set_index("quantity").loc["kappa_fn@0.05", "directions"].unique().tolist() == [2]
    assert set(rows["variant"]) == {"plain", "logit-normalised"}
    assert (runs / "skewed-s1" / "sharpness" / "main-normalised" / "sharpness.json").is_file()
    assert {path.name for path in (tmp_path / "cmp").glob("*.png")} == {"forest.png", "profiles.png"}
    assert Comparison.load(tmp_path / "cmp").summary["model"].unique().tolist() == ["even-s0", "skewed-s0"]
    uneven = call("sharpness", *every[:3], *FAST, "--name", "uneven", code=2)
    assert "as many training seeds of each are needed, got even-s0 (2), skewed-s0 (1)" in uneven.stderr

    # The figure of any runs draws them, from their folders and from slim copies alike.
    drawn = flatness.draw(Results(runs), tmp_path / "gallery")
    collect([runs], tmp_path / "slim")
    slim = flatness.draw(Results(tmp_path / "slim"), tmp_path / "slim-gallery")
    pd.testing.assert_frame_equal(drawn.frame, slim.frame, rtol=1e-3, atol=1e-4)  # slim copies keep six digits
    assert {path.name for path in drawn.files} >= {"flatness_ratios.png", "flatness_profiles.html", "flatness.md"}
    wanted = rows[(rows["variant"] == "plain") & (rows["quantity"] == "kappa_fn@0.05")]["effect"].iloc[0]
    mine = drawn.frame[drawn.frame["of"].str.endswith("main") & (drawn.frame["quantity"] == "kappa_fn@0.05")]
    assert mine["effect"].dropna().tolist() == pytest.approx([wanted])


def test_kept_rounds_one_by_one(runs, tmp_path):
    run = runs / "even-s1"
    said = json.loads(call("sharpness", run, *FAST, "--from-rounds", "1,3", "--json").stdout)
    assert [one["name"] for one in said] == ["round-00001", "round-00003"]
    first, last = (Sharpness.load(run / "sharpness" / one["name"]) for one in said)
    assert (first.meta["facts"]["round"], last.meta["facts"]["round"]) == (1, 3)
    assert first.meta["identity"]["weights"] != last.meta["identity"]["weights"]
    assert first.meta["identity"]["data"] == last.meta["identity"]["data"]
    for options, message in (
        (("--from-rounds", "7"), "no checkpoint of round 7"),
        (("--from-rounds", "last"), "--from-rounds: expected numbers with commas"),
        (("--budget", "1-2"), "--budget: expected cheap, default, full or a number of passes, got '1-2'"),
        (("--clients", "some", "--name", "x"), "--clients: expected all, or numbers with commas"),
    ):
        assert message in call("sharpness", run, *FAST, *options, code=2).stderr


def test_on_each_clients_data(runs):
    fast = ("--measures", "sam", "--images", "40", "--name", "c")
    said = json.loads(call("sharpness", runs / "skewed-s0", *fast, "--clients", "0,1,2", "--json").stdout)
    (rows,) = said[1]["clients"].values()
    assert [row["measure"] for row in rows] == ["gradient_norm", "sam"]
    assert {row["number"] for row in rows} == {3}
    assert rows[1]["discrepancy"] == pytest.approx(rows[1]["pooled"] - rows[1]["clients"])
    assert (runs / "skewed-s0" / "sharpness" / "c-clients" / "global-own-2" / "sharpness.json").is_file()

"""`python -m diagnostics barriers` and `trajectory` on real runs."""

import json

import pandas as pd
import pytest

import feddual
from tests.diagnostics.commands.test_commands import call
from tests.helpers import tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        for seed in (0, 1):
            experiment = tiny(name=name, seed=seed, partition__alpha=alpha, checkpoint__every=1, checkpoint__keep="all")
            feddual.run(experiment, out=folder / f"{name}-s{seed}", progress=False)
    return folder


def test_barriers_of_a_round(runs):
    asked = ("barriers", runs / "skewed-s0", "--round", 2, "--grid", 3, "--images", 100)
    found = json.loads(call(*asked, "--json").stdout)
    folder = runs / "skewed-s0" / "barriers" / "round-00002"
    assert found["out"] == [str(folder)]
    files = {path.name for path in folder.iterdir()}
    assert {"barriers.json", "values.csv", "matrix.png", "matrix.txt", "layers.png", "lines.html"} <= files
    assert {"barrier", "rise", "loss change, averaged"} <= {row["quantity"] for row in found["summary"]}
    again = call(*asked)  # read, not measured again
    assert "the 3 clients of round 2" in again.stdout
    refused = call(*asked[:-1], 50, code=2)
    assert "images: it has 100, asked for 50" in refused.stderr
    assert "start of round 9 was not kept" in call("barriers", runs / "skewed-s0", "--round", 9, code=2).stderr


def test_several_runs_are_compared_over_their_seeds(runs, tmp_path):
    every = [runs / f"{name}-s{seed}" for name in ("even", "skewed") for seed in (0, 1)]
    options = ("--round", 3, "--grid", 3, "--images", 60, "--pairs", 1, "--out", tmp_path / "cmp")
    found = json.loads(call("barriers", *every, *options, "--json").stdout)
    assert len(found["out"]) == 4
    table = pd.DataFrame(found["summary"])
    assert set(table["experiment"]) == {"even-s0", "skewed-s0"}
    assert (table["runs"] == 2).all()
    assert table.query("experiment == 'skewed-s0'")["difference_low"].notna().all()
    assert {path.name for path in (tmp_path / "cmp").iterdir()} == {"comparison.csv", "layers.png", "layers.txt"}
    seeds = json.loads(call("barriers", *every[:2], *options[:-2], "--json").stdout)
    assert {row["experiment"] for row in seeds["summary"]} == {"even-s0"}  # seeds of one experiment stay together


def test_barriers_between_seeds_aligned(runs):
    options = ("--between", "seeds", "--align", "--grid", 3, "--images", 60)
    found = json.loads(call("barriers", runs / "even-s0", runs / "even-s1", *options, "--json").stdout)
    assert found["out"] == [str(runs / "even-s0" / "barriers" / "seeds-aligned")]
    assert {row["order"] for row in found["summary"]} == {"as trained", "aligned"}
    assert "--between: 'x' is unknown" in call("barriers", runs / "even-s0", "--between", "x", code=2).stderr


def test_client_planes_beside_the_barriers(runs):
    call("barriers", runs / "even-s1", "--round", 1, "--grid", 3, "--images", 60, "--planes", "--json")
    folder = runs / "even-s1" / "barriers" / "round-00001"
    assert {"planes", "planes.png", "planes.txt", "planes.html"} <= {path.name for path in folder.iterdir()}
    assert (folder / "planes" / "planes.json").is_file()


def test_a_trajectory_of_two_runs(runs, tmp_path):
    pair = (runs / "even-s0", runs / "skewed-s0")
    found = json.loads(call("trajectory", *pair, "--grid", 5, "--images", 60, "--clients", 2, "--json").stdout)
    folder = runs / "even-s0" / "trajectories" / "main"
    assert found["out"] == str(folder)
    assert len([row for row in found["points"] if row["kind"] == "global"]) == 8
    assert len([row for row in found["points"] if row["kind"] == "client"]) == 6
    assert {path.name for path in folder.iterdir()} == {
        "trajectory.json", "points.csv", "surface", "trajectory.png", "trajectory.txt", "trajectory.html"
    }  # fmt: skip
    told = call("trajectory", *pair, "--grid", 0, "--images", 60, "--out", tmp_path / "t").stdout
    assert "random walks of as many steps would have" in told
    assert not (tmp_path / "t" / "surface").exists()
    assert "holds another measurement" in call("trajectory", *pair, "--grid", 7, code=2).stderr

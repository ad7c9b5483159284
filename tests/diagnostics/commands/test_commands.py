"""The commands on a real run, the probe during training."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import feddual
from diagnostics.__main__ import app
from diagnostics.probes.loss_surface import LossSurfaceProbe
from diagnostics.surfaces.results import Surface
from feddual.errors import UserError
from tests.helpers import tiny


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + result.stderr
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, alpha in (("even", 100.0), ("skewed", 0.1)):
        feddual.run(tiny(name=name, partition__alpha=alpha, checkpoint__every=1, checkpoint__keep="all"),
                    out=folder / name, progress=False)  # fmt: skip
    return folder


def test_surface_then_export(run, tmp_path):
    result = call("surface", run / "even", "--grid", "7x5", "--images", "100", "--json")
    facts = json.loads(result.stdout)
    assert facts["points"] == 35
    folder = run / "even" / "surfaces" / "main"
    assert facts["out"] == str(folder)
    surface = Surface.load(folder)
    assert surface.loss.shape == (5, 7)
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "surface.npz", "surface.png", "surface.txt", "surface.html"
    }  # fmt: skip
    assert surface.meta["facts"]["round"] == 3
    model = feddual.open(run / "even").model()
    assert facts["images"] == 100
    assert surface.meta["facts"]["accuracy"] == facts["accuracy"]
    assert model.count_params() == surface.meta["facts"]["parameters"]
    again = call("surface", run / "even", "--grid", "7x5", "--images", "100")  # finished: only reads
    assert "Loss over a plane of 7 × 5 points" in again.stdout
    assert (folder / "surface.txt").read_text() == surface.caption() + "\n"
    for to in ("vtp", "obj", "h5", "csv", "html"):
        written = json.loads(call("export", folder, "--to", to, "--out", tmp_path / f"s.{to}", "--json").stdout)
        assert written == [str(tmp_path / f"s.{to}")]
    other = call("surface", run / "even", "--grid", "9", "--images", "100", code=2)
    assert "holds another measurement" in other.stderr
    assert Surface.load(folder).loss.shape == (5, 7)


def test_a_refused_call_leaves_nothing_behind(run, tmp_path):
    out = tmp_path / "s"
    refused = call("surface", run / "even", "--executor", "ray", "--workers", 2, "--out", out, code=2)
    assert "executor: 'ray' is unknown; allowed: inline, processes" in refused.stderr
    assert not out.exists()
    out.write_text("dear")
    for command in (("surface", run / "even"), ("compare", run / "even", run / "skewed")):
        assert "is a file" in call(*command, "--out", out, "--grid", 3, "--images", 50, code=2).stderr
    assert out.read_text() == "dear"


def test_a_preview_comes_after_a_twentieth(run, tmp_path, monkeypatch):
    from figures.charts import surfaces as plots

    shown, original = [], plots.plot
    monkeypatch.setattr(plots, "plot", lambda surface, **options: shown.append(surface) or original(surface, **options))
    saved = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: saved.append(path.name))
    result = call("surface", run / "even", "--grid", 21, "--images", 50, "--engine", "plain", "--out", tmp_path / "s")
    preview, whole = shown
    assert 0.05 < preview.computed.mean() < 0.08  # 25 points, in chunks of 16
    assert preview.preview().loss.shape == (5, 5)
    assert whole.complete
    assert saved == ["preview.png", "surface.png"]
    assert "preview.png" in result.stderr


def test_a_run_and_its_model_have_the_same_surface(run):
    from diagnostics.landscape import loss_surface
    from diagnostics.subject import of_run

    opened = feddual.open(run / "skewed")
    from_run = loss_surface(opened, grid=3, images=60, split="test", progress=False)
    samples = of_run(opened, None, "test", 60)
    assert len(samples.y) == 60
    from_model = loss_surface(opened.model(), samples.x, samples.y, grid=3, images=None, progress=False)
    np.testing.assert_allclose(from_run.loss, from_model.loss, rtol=1e-6)
    early = loss_surface(opened, round=1, grid=3, images=60, split="test", progress=False)
    assert early.meta["facts"]["round"] == 1
    assert early.loss[1, 1] != from_run.loss[1, 1]
    with pytest.raises(UserError, match="no checkpoint of round 9"):
        loss_surface(opened, round=9, grid=3)
    with pytest.raises(UserError, match="split: 'validation'"):
        loss_surface(opened, split="validation", grid=3)
    with pytest.raises(UserError, match="brings its own data"):
        loss_surface(opened, samples.x, samples.y, grid=3)


def test_weights_of_another_model_are_refused(run, tmp_path):
    import shutil

    shutil.copytree(run / "even", tmp_path / "wrong")
    config = tmp_path / "wrong" / "config.yaml"
    text = config.read_text()
    assert "- 8\n" in text
    config.write_text(text.replace("- 8\n", "- 9\n"))
    result = call("surface", tmp_path / "wrong", "--grid", "3", "--out", tmp_path / "s", code=2)
    assert "weights of another model" in result.stderr
    assert not (tmp_path / "s").exists()


def test_compare(run, tmp_path):
    out = tmp_path / "cmp"
    result = call(
        "compare", run / "even", run / "skewed", "--directions", 2, "--images", 60, "--grid", 3, "--out", out, "--json"
    )
    facts = json.loads(result.stdout)
    assert {row["quantity"] for row in facts["differences"]} == {"kappa", "r_tau", "rise_1", "rise_0.5", "rise_0.25"}
    for name in ("surfaces.png", "difference-skewed.png", "profiles.png", "values.csv", "comparison.json"):
        assert (out / name).stat().st_size > 500, name
    for name in ("surfaces", "surfaces3d", "difference-skewed", "profiles"):
        text = (out / f"{name}.txt").read_text()
        assert "even" in text, name
        assert "mean of 60 training samples" in text, name
    shown = call("compare", run / "even", run / "skewed", "--directions", 2, "--images", 60, "--grid", 3, "--out", out)
    assert "r_tau" in shown.stdout
    assert "One seed, no interval" in shown.stdout
    assert "L(0)" in shown.stdout
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = call("compare", run / "skewed", run / "even", "--directions", 2, "--images", 60, "--out", out, code=2)
    assert "holds another comparison" in other.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_compare_from_recorded_surfaces(run, tmp_path):
    import shutil

    paths = [tmp_path / name for name in ("even", "skewed")]
    for path in paths:
        shutil.copytree(run / path.name, path, ignore=shutil.ignore_patterns("surfaces"))
    missing = call("compare", *paths, "--from", "surfaces", "--out", tmp_path / "cmp", code=2)
    assert f"python -m diagnostics surface {paths[0]}" in missing.stderr
    for path in paths:
        for pair in (0, 1):
            out = path / "surfaces" / f"pair-{pair}"
            call("surface", path, "--grid", 5, "--images", 60, "--direction", pair, "--out", out)
    facts = json.loads(call("compare", *paths, "--from", "surfaces", "--out", tmp_path / "cmp", "--json").stdout)
    surfaces = [Surface.load(paths[1] / "surfaces" / f"pair-{pair}") for pair in (0, 1)]
    whole = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    means = {(row["quantity"], row["model"]): row["mean"] for row in whole["summary"]}
    expected = [(one.loss[2, 3] + one.loss[2, 1] + one.loss[3, 2] + one.loss[1, 2]) / 4 for one in surfaces]
    expected = np.array(expected) - [one.loss[2, 2] for one in surfaces]
    assert means["rise_0.5", "skewed"] == pytest.approx(np.exp(np.log(expected).mean()))
    assert means["loss", "skewed"] == pytest.approx(surfaces[0].loss[2, 2])
    ratio = means["rise_0.5", "skewed"] / means["rise_0.5", "even"]
    (row,) = [row for row in facts["differences"] if row["quantity"] == "rise_0.5"]
    assert (row["scale"], row["effect"]) == ("ratio", pytest.approx(ratio))
    assert (tmp_path / "cmp" / "profiles.png").is_file()
    assert "expected lines or surfaces" in call("compare", *paths, "--from", "memory", code=2).stderr


def test_help_teaches():
    for command in ("surface", "compare", "export"):
        text = call(command, "--help").stdout
        assert "Examples" in text
        assert "python -m diagnostics" in text
    assert "not a run directory" in call("surface", "nowhere", code=2).stderr
    assert "no readable manifest" in call("export", ".", code=2).stderr


def test_frozen_features_are_used(tmp_path):
    experiment = tiny(
        dataset__shape=[8, 8, 1], model__name="tests.helpers:frozen_model", training__rounds=1, name="frozen"
    )
    from diagnostics.landscape import loss_surface

    done = feddual.run(experiment, out=tmp_path / "run", progress=False)
    surface = loss_surface(done, grid=3, images=50, progress=False)
    assert surface.meta["facts"]["engine"] == "prefix + linearity + dense suffix"
    from diagnostics.subject import of_run

    samples = of_run(done, images=50)
    assert samples.features
    assert samples.x.shape == (50, 3)
    from feddual.data import datasets

    data = datasets.load(experiment.dataset)
    from diagnostics.subject import stratified_rows

    rows = stratified_rows(data.y_train, 50)
    plain = loss_surface(
        done.model(), data.x_train[rows], data.y_train[rows], grid=3, images=None, engine="plain", progress=False
    )
    np.testing.assert_allclose(surface.loss, plain.loss, rtol=1e-5)
    assert surface.meta["facts"]["check_prefix"] < 1e-5
    with pytest.raises(UserError, match="not what the model's frozen layers give"):
        loss_surface(replace(samples, x=1.5 * samples.x), grid=3, progress=False)


def test_probe_writes_surfaces_and_changes_nothing(tmp_path):
    plain = feddual.run(tiny(), out=tmp_path / "plain", progress=False)
    probed = feddual.run(
        tiny(probes=[{"name": "loss-surface", "every": 2, "grid": 3, "images": 50}]),
        out=tmp_path / "probed",
        progress=False,
    )
    for path, value in plain.weights().items():
        np.testing.assert_array_equal(value, probed.weights()[path])
    folders = sorted(path.name for path in (tmp_path / "probed" / "surfaces").iterdir())
    assert folders == ["round-00002"]
    surface = Surface.load(tmp_path / "probed" / "surfaces" / "round-00002")
    assert surface.meta["facts"]["probe"] == "loss-surface"  # so that a resumed run knows its own
    from diagnostics.landscape import loss_surface

    later = loss_surface(probed, round=2, grid=3, images=50, progress=False)
    np.testing.assert_allclose(surface.loss, later.loss, rtol=1e-6)
    assert surface.meta["identity"]["weights"] == later.meta["identity"]["weights"]
    with pytest.raises(UserError, match="odd count"):
        LossSurfaceProbe(grid=4)
    from feddual import probes

    with pytest.raises(UserError, match="does not take"):
        probes.create({"name": "loss-surface", "size": 3})


def test_probe_forgets_what_will_be_trained_again(tmp_path):
    from types import SimpleNamespace

    made = {"round-00010": "loss-surface", "round-00020": "loss-surface", "round-00030": "loss-surface"}
    users = {"round-00040": None, "round-30": None, "round-best": None, "round-30-near": None}
    for name, probe in (made | users).items():
        (tmp_path / "surfaces" / name).mkdir(parents=True)
        manifest = {"identity": {}, "facts": {"probe": probe} if probe else {}}
        (tmp_path / "surfaces" / name / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "surfaces" / "round-00050").mkdir()  # not even a surface
    host = SimpleNamespace(run_folder=tmp_path, round_index=20)
    LossSurfaceProbe().start(host)
    kept = {path.name for path in (tmp_path / "surfaces").iterdir()}
    assert kept == {"round-00010", "round-00020", "round-00050", *users}


def test_spectra_of_two_runs(run):
    little = ["--steps", "12", "--draws", "2", "--probes", "12", "--images", "60"]
    facts = json.loads(call("spectrum", run / "even", run / "skewed", *little, "--json").stdout)
    assert [one["run"] for one in facts] == ["even", "skewed"]
    assert all(one["lambda_1"] > one["lambda_min"] and one["trace_low"] < one["trace_high"] for one in facts)
    folder = run / "even" / "spectra" / "hessian"
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "spectrum.npz", "spectrum.png", "spectrum.txt", "compared.png", "compared.txt"
    }  # fmt: skip
    said = call("spectrum", run / "even", run / "skewed", *little).stdout  # finished: only reads
    assert "layer by layer" in said
    assert str(folder) in said

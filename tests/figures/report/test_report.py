"""The report: one file, no network, the runs' own numbers, and a word about everything that is missing."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import diagnostics
import feddual
from diagnostics import gradients
from diagnostics.flatness.comparison import Comparison
from diagnostics.surfaces.results import Surface
from feddual.cli import app
from figures import report
from tests.helpers import tell_tiny_story, tiny

SECTIONS = (
    "summary", "curves", "norms", "ratios", "surfaces", "flatness", "clients", "barycenter", "timing", "settings",
)  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The quickstart's story, tiny."""
    out = tmp_path_factory.mktemp("story")
    tell_tiny_story(out)
    return out


@pytest.fixture(scope="module")
def page(story):
    return (story / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def plain(tmp_path):
    """A run without probes and surfaces."""
    feddual.run(tiny(), out=tmp_path / "plain", progress=False)
    return tmp_path / "plain"


def data(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S).group(1))


def download(page, name):
    """The rows of a chart's CSV."""
    return list(csv.DictReader(io.StringIO(data(page)["csv"][name])))


def without_scripts(page):
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def section(page, name):
    return re.search(rf'<section id="{name}".*?</section>', page, re.S).group(0)


# --- one file


def test_all_sections_are_there_and_say_what_they_show(page):
    for name in SECTIONS:
        assert 'class="about"' in section(page, name)


def test_the_page_needs_nothing_else(page):
    assert page.count("* plotly.js v") == 1
    markup = without_scripts(page)
    assert not re.findall(r'(?:src|href|action)="(?!#|data:)', markup)
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    assert "url(" not in style
    assert "@import" not in style
    own = page[page.rindex("<script>") :]
    assert not re.findall(r"https?://|fetch\(|XMLHttpRequest|import\(", own)


def test_it_is_written_without_tensorflow(story, tmp_path):
    code = (
        "import sys; from figures import report; report.write(*sys.argv[1:]);"
        "assert not {'tensorflow', 'keras', 'ot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(story), str(tmp_path / "a.html")], check=True)
    assert (tmp_path / "a.html").stat().st_size > 1e6


def test_controls_have_names_and_charts_descriptions(page):
    markup = without_scripts(page)
    for tag in re.findall(r"<(?:input|select)\b[^>]*>", markup):
        identity = re.search(r'id="([^"]+)"', tag)
        assert identity is None or f'for="{identity.group(1)}"' in markup  # those without one are inside their label
    for plot in re.findall(r'<div class="plot"[^>]*>', markup):
        assert "aria-label=" in plot
    assert '<html lang="en">' in markup
    ids = re.findall(r'\bid="([^"]+)"', markup)
    assert len(ids) == len(set(ids))


def test_every_control_of_a_trace_exists(page):
    """A trace whose condition no control can meet would never be seen."""
    runs = set(re.findall(r'name="run" value="([^"]+)"', page))
    for chart in data(page)["charts"]:
        options = {control["name"]: {option["value"] for option in control["options"]} for control in chart["controls"]}
        for trace in (trace for panel in chart["panels"] for trace in panel["data"]):
            for name, value in (trace.get("meta") or {}).items():
                assert value in (runs if name == "run" else options[name])


# --- the numbers


def test_curves_and_timings_are_the_runs_own(page, story):
    rows = download(page, "learning-curves")
    labels = {"fedavg-iid-s0": "FedAvg, IID", "feddual-s0": "FedDUAL, non-IID (α = 0.1)"}
    for cell, label in labels.items():
        run = feddual.open(story / cell)
        for metric in ("accuracy", "loss"):
            found = [float(row["value"]) for row in rows if (row["run"], row["quantity"]) == (label, metric)]
            np.testing.assert_array_equal(found, run.metrics[metric])
        seconds = [float(row["seconds"]) for row in download(page, "timing") if row["run"] == label]
        np.testing.assert_array_equal(seconds, run.timings["seconds"])
        assert f"{100 * run.summary()['accuracy']:.1f} %" in section(page, "summary")


def test_gradient_norms_are_the_probes(page, story):
    rows = download(page, "gradient-norms")
    frame = feddual.open(story / "fedavg-s0").probe("gradient-norms")
    for name in ("client_at_global", "drift", "cosine"):
        table = gradients.per_round(frame, name, "rms")
        found = {
            (int(row["round"]), row["layer"]): float(row["value"])
            for row in rows
            if (row["run"], row["definition"]) == ("FedAvg, non-IID (α = 0.1)", name)
        }
        assert len(found) == table.size
        for (index, layer), value in found.items():
            assert value == pytest.approx(table.loc[index, layer], rel=1e-9)


def test_ratios_are_between_runs_at_the_same_round(page, story):
    frames = {cell: feddual.open(story / cell).probe("gradient-norms") for cell in ("fedavg-iid-s0", "fedavg-s0")}
    one, two = (gradients.per_round(frame, "A", "rms") for frame in frames.values())
    rows = [row for row in download(page, "gradient-ratios") if row["run"] == "FedAvg, non-IID (α = 0.1)"]
    rows = [row for row in rows if (row["definition"], row["round"]) == ("client_at_global", "4")]
    assert len(rows) == len(one.columns)
    for row in rows:
        layer = row["layer"]
        assert float(row["ratio"]) == pytest.approx(two.loc[4, layer] / one.loc[4, layer], rel=1e-6)


def test_surfaces_and_flatness_are_the_recorded_ones(page, story):
    surface = Surface.load(story / "fedavg-iid-s0" / "surfaces" / "pair-0")
    rows = [row for row in download(page, "loss-surfaces") if row["run"] == "FedAvg, IID"]
    np.testing.assert_array_equal([float(row["loss"]) for row in rows], surface.loss.ravel())
    flat = download(page, "flatness")
    assert {row["directions"] for row in flat if row["quantity"] == "kappa"} == {"3"}
    assert {row["low"] for row in flat} == {""}
    assert "One seed, no interval." in section(page, "flatness")


def test_the_flatness_section_shows_the_comparison_file(page, story, tmp_path):
    """Quickstart wrote it once, from the surfaces; the page has its very numbers, or another one's that is there."""
    kept = Comparison.load(story / "comparison")
    rows = {(row["quantity"], row["model"]): row for row in download(page, "flatness")}
    labels = ["FedAvg, IID", "FedAvg, non-IID (α = 0.1)", "FedDUAL, non-IID (α = 0.1)"]
    table = kept.renamed(labels).against_first
    assert len(table) == len(rows) == 3 * 7
    for row in table.to_dict("records"):
        shown = rows[row["quantity"], row["model"]]
        for key in ("mean", "effect"):
            assert float(shown[key] or "nan") == pytest.approx(row[key], rel=0, abs=0, nan_ok=True)
    mean = table.set_index(["quantity", "model"]).loc[("kappa", labels[0]), "mean"]
    assert f"{mean:.3g}<" in section(page, "flatness")

    copy = tmp_path / "copy"
    shutil.copytree(story, copy, ignore=shutil.ignore_patterns("*.html", "figures"))
    file = copy / "comparison" / "comparison.json"
    changed = json.loads(file.read_text())
    changed["summary"][0]["mean"] = 123.25
    file.write_text(json.dumps(changed))
    assert "123.25" in {row["mean"] for row in download(report.build(copy), "flatness")}
    shutil.rmtree(copy / "fedavg-s0" / "surfaces" / "pair-1")  # no longer what the file is of: compared anew
    anew = download(report.build(copy), "flatness")
    assert {row["directions"] for row in anew if row["quantity"] == "kappa"} == {"2"}


def test_clients_and_weights(page, story):
    run = feddual.open(story / "feddual-s0")
    counts = [int(row["images"]) for row in download(page, "client-labels") if "dirichlet" in row["partition"]]
    np.testing.assert_array_equal(counts, run.histograms.ravel())
    weights = [float(row["weight"]) for row in download(page, "client-weights") if row["round"] == "1"]
    facts = run.metrics["barycenter"][0]
    assert weights == [weight for tensor in facts.values() for weight in tensor["client_weights"]]


# --- what is missing


def test_a_run_without_probes_and_surfaces_says_so(plain):
    page = report.build(plain)
    assert "--probe gradient-norms" in section(page, "norms")
    assert "It takes two runs" in section(page, "ratios")
    assert f"python -m diagnostics surface {plain}" in section(page, "surfaces")
    assert "No complete loss surfaces" in section(page, "flatness")
    assert "None of these runs is a FedDUAL run" in section(page, "barycenter")
    assert "finished" in section(page, "summary")


def test_an_interrupted_run_says_how_far_it_came(plain):
    log = plain / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(True)[:2]) + '{"round":3,"accu')
    page = report.build(plain)
    assert "interrupted" in section(page, "summary")
    assert "stopped after round 2 of 3" in section(page, "curves")
    assert len(download(page, "learning-curves")) == 2 * 2


def test_a_run_that_never_finished_a_round(plain):
    for name in ("metrics.jsonl", "timings.jsonl", "clients.jsonl", "environment.json", "partition.npz"):
        (plain / name).unlink()
    page = report.build(plain)
    assert "no test results yet" in section(page, "curves")
    assert "no partition was recorded" in section(page, "clients")
    assert "No timings were recorded" in section(page, "timing")
    assert "no environment.json" in section(page, "settings")


def test_a_study_with_failed_cells(plain, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(plain, study / "a")
    (study / "study.yaml").write_text("name: mine\nexperiments: [quickstart]\nrows: {}\n")
    (study / "failed").mkdir()
    (study / "failed" / "b.txt").write_text("Traceback ...\nValueError: <b>no</b> luck\n")
    page = report.build(study)
    assert "ValueError: &lt;b&gt;no&lt;/b&gt; luck" in section(page, "summary")
    shutil.rmtree(study / "a")
    page = report.build(study)
    assert "No run has begun" in section(page, "summary")
    assert "no&lt;/b&gt; luck" in section(page, "summary")


def test_unfinished_and_damaged_surfaces(story, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(story / "fedavg-iid-s0", run)
    (run / "surfaces" / "pair-1" / "manifest.json").write_text("{}")
    for pair in ("pair-0", "pair-2"):
        shutil.rmtree(run / "surfaces" / pair)
    page = report.build(run)
    assert "surface pair-1" in section(page, "surfaces")


def test_names_from_a_config_cannot_break_the_page(plain):
    config = plain / "config.yaml"
    config.write_text(config.read_text().replace("name: tiny", "name: </script><b>bold", 1))
    page = report.build(plain)
    assert "</script><b>bold" not in page
    assert "&lt;/script&gt;&lt;b&gt;bold" in page
    assert data(page)


def test_several_seeds_become_one_line_with_a_band(plain, tmp_path):
    feddual.run(tiny(seed=1), out=tmp_path / "seed-1", progress=False)
    page = report.build(tmp_path)
    assert len(re.findall(r'name="run" value=', page)) == 1
    assert "0, 1" in section(page, "summary")
    assert {row["seed"] for row in download(page, "learning-curves")} == {"0", "1"}


# --- the command


def test_the_command(plain, tmp_path):
    runner = CliRunner()
    result = runner.invoke(app, ["report", str(plain), "--json"])
    assert json.loads(result.stdout) == {"report": str(plain / "report.html")}
    result = runner.invoke(app, ["report", str(plain), "--out", "there.html"])
    assert result.stdout == "report: there.html\n"
    assert (tmp_path / "there.html").is_file()


@pytest.mark.parametrize("source", ["missing", "."])
def test_nothing_to_report_on(source):
    result = CliRunner().invoke(app, ["report", source])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


# --- what averaging breaks


@pytest.fixture(scope="module")
def forgetting(tmp_path_factory):
    """Two seeds with the probe and a run without it."""
    out = tmp_path_factory.mktemp("forgetting")
    for seed in (0, 1):
        probe = diagnostics.ForgettingProbe(every=2, samples=40)
        feddual.run(tiny(training__rounds=4, seed=seed), out=out / str(seed), probes=[probe], progress=False)
    feddual.run(tiny(training__rounds=4, partition__name="iid"), out=out / "iid", progress=False)
    return out


def test_averaging_is_told_where_the_probe_was(forgetting, page):
    assert 'id="averaging"' not in page
    text = report.build(forgetting)
    told = section(text, "averaging")
    assert "FedAvg, IID: not recorded; `feddual run ... --probe forgetting@every=5` does" in told
    charts = {chart["name"]: chart for chart in data(text)["charts"]}
    for chart in ("forgetting", "forgetting-stages", "client-classes", "client-agreement", "client-fairness",
                  "collapse", "calibration"):  # fmt: skip
        assert all(panel["data"] for panel in charts[chart]["panels"])
    assert [option["value"] for option in charts["calibration"]["controls"][0]["options"]] == ["2", "4"]


def test_forgetting_on_the_page_is_the_probes(forgetting):
    text = report.build(forgetting)
    tables = [feddual.open(forgetting / seed).probe("forgetting") for seed in ("0", "1")]
    for name in ("forgotten", "lost"):
        means = [table[table["quantity"] == name].groupby(["round", "class"])["value"].mean() for table in tables]
        rows = [row for row in download(text, "forgetting") if row["quantity"] == name]
        assert len(rows) == 2 * 4
        for row in rows:
            wanted = np.mean([mean[int(row["round"]), int(row["class"])] for mean in means])
            assert float(row["value"]) == pytest.approx(wanted)
    rows = [row for row in download(text, "client-fairness") if row["quantity"] == "own_worst_tenth"]
    wanted = [table[table["quantity"] == "own_worst_tenth"]["value"].tolist() for table in tables]
    assert [float(row["value"]) for row in rows] == pytest.approx(wanted[0] + wanted[1])


# --- flatness and merging


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two experiments with all that is measured beside the runs, and one without."""
    out = tmp_path_factory.mktemp("measured")
    for name, how in (("even", "iid"), ("skewed", "dirichlet_classes"), ("bare", "shards")):
        experiment = tiny(training__rounds=4, checkpoint__every=1, checkpoint__keep="all", partition__name=how)
        run = feddual.run(experiment, out=out / name, progress=False)
        if name == "bare":
            continue
        landscape, quiet = diagnostics.Landscape(run, images=60), {"progress": False}
        landscape.sharpness(["kappa_fn", "sam"], out=run.path / "sharpness/main", **quiet)
        landscape.spectrum(k=2, steps=6, draws=2, probes=6, out=run.path / "spectra/main", **quiet)
        diagnostics.barriers(run, pairs=2, grid=3, images=60, out=run.path / "barriers/round-00004", **quiet)
        diagnostics.trajectory(run, grid=5, images=60, out=run.path / "trajectories/main", **quiet)
    return out


@pytest.mark.slow
def test_what_was_measured_beside_the_runs_is_shown(measured, page):
    assert 'id="merging"' not in page
    text = report.build(measured)
    told, charts = section(text, "merging"), {chart["name"]: chart for chart in data(text)["charts"]}
    for chart in ("sharpness-ratios", "spectra", "trace-by-layer", "barriers", "barriers-by-layer", "trajectory-g0"):
        assert all(panel["data"] for panel in charts[chart]["panels"]), chart
    rows = download(text, "sharpness")
    for name, label in (("even", "FedAvg, IID"), ("skewed", "FedAvg, non-IID (α = 0.5)")):
        table = diagnostics.Sharpness.load(measured / name / "sharpness/main").table
        found = [float(row["value"]) for row in rows if row["run"] == label]
        assert found == pytest.approx(table["value"].tolist())
    assert "κ_FN" in told
    ratios = {row["quantity"]: float(row["effect"]) for row in download(text, "sharpness-ratios")}
    one, two = (diagnostics.Sharpness.load(measured / name / "sharpness/main").table for name in ("even", "skewed"))
    assert ratios["sam@0.05"] == pytest.approx(
        two[two["measure"] == "sam"]["value"].iloc[0] / one[one["measure"] == "sam"]["value"].iloc[0]
    )


@pytest.mark.slow
def test_what_cannot_be_read_is_said(measured, tmp_path):
    shutil.copytree(measured / "even", tmp_path / "runs" / "even")
    (tmp_path / "runs/even/barriers/round-00004/barriers.json").write_text("{")
    told = section(report.build(tmp_path / "runs"), "merging")
    assert "even, barriers/round-00004: " in told
    assert 'id="chart-spectra"' in told

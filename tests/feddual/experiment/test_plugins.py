"""The twelve things one can add, each from a file as `module:name` and from an installed package, in real use."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import diagnostics.__main__
import feddual
import feddual.cli
import figures
import figures.report
from feddual.experiment import plugins
from feddual.training import workbench
from tests.helpers import TINY

FILES = {
    "algorithms": """
from feddual import Algorithm

class mine(Algorithm):
    '''FedAvg that says so.'''

    def finish(self, server, acc, layout, num_clients):
        state, facts = super().finish(server, acc, layout, num_clients)
        return state, facts | {"mine": 1.0}
""",
    "barycenters": """
from dataclasses import replace
from feddual.barycenter import mean

def mine(vectors, weights):
    '''The mean, after many iterations.'''
    return replace(mean(vectors, weights), iterations=77)
""",
    "commands": """
def mine(text: str) -> None:
    '''Say it loud.'''
    print(text.upper())
""",
    "datasets": """
import numpy as np

def mine(size: int = 60):
    '''Two classes on a line.'''
    labels = np.arange(size) % 2
    values = labels[:, None] + np.linspace(0, 0.5, size)[:, None]
    return values, labels, values, labels
""",
    "definitions": """
import numpy as np
from diagnostics.gradients import Definition

def ones(client):
    return np.ones(len(client.groups.names))

mine = Definition("M", "1: the same for all", "nothing", at_client=ones)
""",
    "executors": """
from feddual.executors.inline import Inline

workers = []

def mine(runtime):
    '''One after the other, and remembered.'''
    workers.append(runtime.workers)
    return Inline()
""",
    "figures": """
import pandas as pd
from figures import Drawing

def mine(runs, out):
    '''How many runs there are.'''
    out.mkdir(parents=True)
    (out / "mine.txt").write_text(str(len(runs.runs)))
    return Drawing([out / "mine.txt"], pd.DataFrame())
""",
    "models": """
import keras

def mine(input_shape, num_classes, width: int = 3):
    '''One hidden layer.'''
    hidden = keras.layers.Dense(width, activation="relu", name="mine")
    return keras.Sequential([keras.Input(input_shape), hidden, keras.layers.Dense(num_classes)])
""",
    "partitions": """
import numpy as np

def mine(labels, num_clients: int = 4):
    '''In the order they come.'''
    return np.array_split(np.arange(len(labels)), num_clients)
""",
    "probes": """
from feddual import Probe

class mine(Probe):
    '''How many examples a client saw.'''

    name = "mine"

    def client_measure(self, view):
        return {"seen": view.y.size * view.trained.steps}
""",
    "sections": """
from figures.report import Part

def mine(story):
    '''What is ours.'''
    return Part("mine", "A section of ours", "It says a few words.")
""",
    "sinks": """
class mine:
    '''Keeps the rows.'''

    rows = []

    def __init__(self, path, config, history):
        self.rows.extend(history)

    def record(self, row):
        self.rows.append(row["round"])

    def close(self):
        self.rows.append("closed")
""",
}


@pytest.fixture(params=["module:name", "entry point"])
def added(request, kind, tmp_path, monkeypatch):
    """The name of a thing of that kind, in a file or in a package that is installed."""
    module = f"plugged_{kind}_{'file' if ':' in request.param else 'package'}"
    (tmp_path / f"{module}.py").write_text(FILES[kind])
    if request.param == "entry point":
        info = tmp_path / "plugged-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[feddual.{kind}]\nmine = {module}:mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield f"{module}:mine" if ":" in request.param else "mine"
    sys.modules.pop(module, None)


def run(**overrides):
    settings = {key.replace("__", "."): value for key, value in {"training__rounds": 1, **overrides}.items()}
    return feddual.run(TINY, settings, out="run", progress=False)


def use_algorithms(name):
    assert run(algorithm__name=name).metrics["mine"].tolist() == [1.0]


def use_barycenters(name):
    found = run(algorithm__name="feddual", algorithm__barycenter=name).metrics["barycenter"][0]
    assert {facts["iterations"] for facts in found.values()} == {77}


def use_commands(name):
    assert CliRunner().invoke(diagnostics.__main__.app, [name, "hello"]).output == "HELLO\n"


def use_datasets(name):
    found = run(dataset__name=name, dataset__size=70, partition__name="iid")
    assert found.histograms.sum(0).tolist() == [35, 35]
    assert found.model().input_shape == (None, 1)


def use_definitions(name):
    found = run(probes=[{"name": "gradient-norms", "every": 1, "definitions": [name]}]).probe("gradient-norms")
    own = found[(found["definition"] == "mine") & (found["normalisation"] == "raw")]
    assert set(own["value"]) == {1.0}
    assert own["layer"].nunique() == 2


def use_executors(name):
    run(runtime__executor=name, runtime__workers=3)
    assert sys.modules[plugins.find("executors", name).__module__].workers == [3]


def use_figures(name):
    Path("runs").mkdir()
    assert [path.read_text() for path in figures.draw(name, "runs", "out").files] == ["0"]


def use_models(name):
    assert run(model__name=name, model__width=2).weights()["mine/kernel"].shape == (6, 2)


def use_partitions(name):
    found = run(partition__name=name, partition__num_clients=5)
    assert found.partition.client(0).tolist() == list(range(48))


def use_probes(name):
    table = run(probes=[{"name": name}]).probe("mine")
    assert table["client"].nunique() == 3
    assert (table["seen"] > 0).all()


def use_sections(name):
    run()
    shown = CliRunner().invoke(feddual.cli.app, ["report", "run", *(["--section", name] if ":" in name else [])])
    assert shown.exit_code == 0, shown.output
    assert Path("run/report.html").read_text().count("A section of ours") >= 1


def use_sinks(name):
    run(sinks=[name], training__rounds=2)
    assert plugins.find("sinks", name).rows == [1, 2, "closed"]


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_one_more_is_one_file(kind, added):
    globals()[f"use_{kind}"](added)
    if ":" not in added:
        assert added in plugins.names(kind)
        shown = CliRunner().invoke(feddual.cli.app, ["list", kind, "--json"])
        assert "mine" in {row["name"] for row in json.loads(shown.stdout)}


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_what_comes_with_the_project_is_found_and_says_what_it_is(kind):
    rows = plugins.describe(kind)
    assert [name for name, _ in rows] == list(plugins.names(kind))
    for name, about in rows:
        assert plugins.find(kind, name) is not None
        assert about, f"{kind}: {name} says nothing of itself"


def test_what_is_not_there_is_named_with_what_is():
    with pytest.raises(feddual.UserError, match=r"^here: 'modle' is unknown; allowed: lenet5.*, or module:name$"):
        plugins.find("models", "modle", "here")
    with pytest.raises(feddual.UserError, match=r"^here: 'lenet_5' is unknown; did you mean 'lenet5'\?"):
        plugins.find("models", "lenet_5", "here")
    with pytest.raises(feddual.UserError, match=r"^here: cannot import 'no_module' of 'no_module:thing'"):
        plugins.find("models", "no_module:thing", "here")
    with pytest.raises(feddual.UserError, match=r"^here: module 'math' has no 'thing'"):
        plugins.find("models", "math:thing", "here")
    with pytest.raises(feddual.UserError, match=r"^here: 'math:pi' is 3\.14.*; every model is callable"):
        plugins.find("models", "math:pi", "here")
    with pytest.raises(feddual.UserError, match=r"every algorithm is a subclass of Algorithm"):
        plugins.find("algorithms", "math:sin", "here")


def test_a_package_that_cannot_be_imported_spoils_no_list(tmp_path, monkeypatch):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[feddual.models]\nbroken = no_module:thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert dict(plugins.describe("models"))["broken"].startswith("broken: 'broken': cannot import 'no_module'")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "datasets",
            "def mine(): return 1",
            r"dataset\.name: .*returned int; expected a feddual\.Dataset, or x_train,",
        ),
        ("datasets", "import numpy as np\ndef mine(): return (np.ones((3, 2)),) * 4", r"do not pair up"),
        ("partitions", "def mine(labels): return []", r"lacks the parameter num_clients"),
        ("partitions", "def mine(labels, num_clients: int = 3): return [[0]]", r"made 1 clients of 6"),
    ],
)
def test_what_ones_own_function_gives_is_looked_at(kind, text, message, tmp_path, monkeypatch):
    (tmp_path / "plugged_wrong.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(feddual.UserError, match=message):
        run(**{f"{kind.removesuffix('s')}__name": "plugged_wrong:mine", "training__clients_per_round": 1})
    sys.modules.pop("plugged_wrong")


def test_keys_are_the_parameters_of_the_function(tmp_path, monkeypatch):
    (tmp_path / "plugged_keys.py").write_text(
        "from __future__ import annotations\n"
        "def plain(labels, num_clients: int = 3, *, how='well', seed: int): ...\n"
        "def open_ended(labels, num_clients: int = 3, **more): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    resolved = feddual.resolve(TINY, {"partition.name": "plugged_keys:plain", "partition.seed": 4})
    assert resolved.partition.model_dump() == {
        "name": "plugged_keys:plain", "num_clients": 6, "how": "well", "seed": 4,
    }  # fmt: skip
    for given, message in (
        ({"seed": "x"}, r"partition\.seed: 'x' is not allowed"),
        ({"sed": 1}, "did you mean 'seed'"),
    ):
        with pytest.raises(feddual.UserError, match=message):
            feddual.resolve(resolved, {f"partition.{key}": value for key, value in given.items()})
    more = feddual.resolve(TINY, {"partition.name": "plugged_keys:open_ended", "partition.anything": [1]})
    assert more.partition.anything == [1]
    sys.modules.pop("plugged_keys")


EDITED = """
from feddual import Algorithm, Section

class Edited(Algorithm):
    class Params(Section):
        {key}: float = {value}

    def finish(self, server, acc, layout, num_clients):
        return super().finish(server, acc, layout, num_clients)[0], {{"told": self.params.{key}}}
"""


def test_what_is_edited_and_run_again_is_used_as_it_is_now(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second look the same to the cache
    told = []
    for key, value in (("first", 1.0), ("second", 2.0)):
        (tmp_path / "plugged_edited.py").write_text(EDITED.format(key=key, value=value))
        importlib.invalidate_caches()
        if "plugged_edited" in sys.modules:
            importlib.reload(sys.modules["plugged_edited"])
        overrides = {"algorithm.name": "plugged_edited:Edited", "training.rounds": 1}
        found = feddual.run(TINY, overrides, out=tmp_path / key, progress=False)
        told += found.metrics["told"].tolist()
        assert getattr(found.config.algorithm, key) == value
    assert told == [1.0, 2.0]
    sys.modules.pop("plugged_edited")
    workbench.forget()


def test_the_lists_on_the_command_line():
    counts = json.loads(CliRunner().invoke(feddual.cli.app, ["list", "--json"]).stdout)
    assert set(counts) == {*plugins.KINDS, "experiments", "studies"}
    assert counts["algorithms"] == 9
    experiments = CliRunner().invoke(feddual.cli.app, ["list", "experiments"]).stdout
    assert "Table 1, CIFAR-10 column" in experiments
    for command, shelf in (("run", "experiments"), ("study", "studies")):
        text = CliRunner(env={"COLUMNS": "500"}).invoke(feddual.cli.app, [command, "--help"]).stdout
        assert all(name in text for name in plugins.shelf(shelf)), command
    wrong = CliRunner().invoke(feddual.cli.app, ["list", "algorithm"])
    assert wrong.exit_code == 2
    assert "did you mean 'algorithms'?" in wrong.stderr


def test_help_and_import_touch_nothing_that_takes_time():
    heavy = "{'tensorflow', 'numpy', 'pandas', 'pydantic', 'yaml', 'rich.markdown', 'importlib.metadata'}"
    check = f"import sys; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import feddual; dir(feddual); {check}"], check=True)
    call = "from feddual.cli import app; app(['--help'], standalone_mode=False)"
    subprocess.run([sys.executable, "-c", f"{call}; {check}"], check=True, capture_output=True)


def test_all_that_is_public_can_be_had_and_is_listed():
    assert set(feddual.__all__) <= set(dir(feddual))
    for name in feddual.__all__:
        assert getattr(feddual, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = feddual.nothing


def test_views_show_the_client_and_the_round(tmp_path):
    seen = {}

    class Looking(feddual.Probe):
        name = "looking"

        def client_measure(self, view):
            seen[view.client_id] = view
            assert view.gradient(view.global_weights).shape == (view.layout.num_trainable,)
            assert view.test_logits(view.trained.weights).shape == (len(view.test_labels), 4)
            inputs, labels = view.test(7)
            assert len(labels) == len(inputs) == 7
            assert all(len(value) == 7 for value in view.activations(view.global_weights, inputs).values())
            return {}

        def record(self, view, measured, acc):
            seen["round"] = view

    feddual.run(TINY, {"training.rounds": 2}, out=tmp_path / "run", probes=[Looking(rounds=[2])], progress=False)
    view = seen.pop("round")
    assert (view.round_index, view.num_rounds, view.folder) == (2, 2, tmp_path / "run/probes/looking")
    assert (view.experiment.name, view.run_folder) == ("tiny", tmp_path / "run")
    assert view.weights.shape == view.previous.shape == (view.layout.size,)
    assert not np.array_equal(view.weights, view.previous)
    assert view.sizes.sum() == 240
    for client, shown in seen.items():
        assert (shown.round_index, shown.learning_rate) == (2, 0.001)
        assert len(shown.y) == view.sizes[client]
        np.testing.assert_array_equal(shown.global_weights, view.previous)
    assert not (tmp_path / "run/probes/looking/rounds.jsonl").exists()  # nothing was told

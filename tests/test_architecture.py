"""The house's rules, held by reading the imports. The table of rooms is also the picture in CONTRIBUTING.md."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from feddual.experiment import plugins

ROOT = Path(__file__).parents[1]
PACKAGES = ("feddual", "diagnostics", "figures")

# A module imports from its own room and from rooms above it.
ROOMS = {
    "feddual.errors": "the one exception for what a user can mend",
    "feddual._lazy": "TensorFlow and Keras, on first use",
    "feddual.display": "how things show themselves in a notebook",
    "feddual.seeding": "every random stream, from (seed, purpose, round, client, epoch)",
    "feddual.devices": "threads, devices, facts about the machine",
    "feddual.experiment": "what is asked for: config, schema, presets, plugins",
    "feddual.executors": "run functions on workers; know nothing of federated learning",
    "feddual.data": "data sets, files, partitions, federation",
    "feddual.functional": "a Keras model as a function of one weight vector",
    "feddual.models": "the zoo: builders with explicit layer names",
    "feddual.setting": "from a config to a model and data, the one way",
    "feddual.aggregation": "sums of client vectors",
    "feddual.barycenter": "every barycenter of client vectors",
    "feddual.algorithms": "one file each, client and server half together",
    "feddual.records": "paths and formats on disk, and what identifies an experiment",
    "feddual.probes": "the contract of measurements during training",
    "feddual.training": "local loop, evaluation, workbench, server optimizers, the only round loop",
    "feddual.studies": "grids of runs, the choice of settings",
    "feddual.api": "what a notebook uses",
    "feddual.cli": "commands, progress, doctor, quickstart: parses, calls, prints",
    "diagnostics.statistics": "every interval and test",
    "diagnostics.tables": "tables of measurements, as files",
    "diagnostics.progress": "a bar for points",
    "diagnostics.subject": "a run, a study's run or any Keras model with data",
    "diagnostics.surfaces": "directions, grids, fast paths, results",
    "diagnostics.curvature": "Hessian and GGN: products, eigenvalues, trace, density",
    "diagnostics.landscape": "surfaces, lines and spectra of a subject",
    "diagnostics.gradients": "definitions of gradient norms, probe, callback, replay",
    "diagnostics.forgetting": "what averaging breaks: definitions, probe, any Keras model",
    "diagnostics.merging": "clients' models, barriers, alignment, planes through clients",
    "diagnostics.trajectories": "checkpoints in the plane where they move most",
    "diagnostics.flatness": "models compared on one scale",
    "diagnostics.probes": "one file each, found by name",
    "diagnostics.commands": "of `python -m diagnostics`: one file each",
    "figures.charts": "one description of a chart, two back ends",
    "figures._rows": "the rows of the paper's tables, and their experiments",
    "figures._results": "the runs that figures draw from, and words for their numbers",
    "figures.paper": "the paper's figures and tables: one file each",
    "figures.general": "figures of any runs: one file each",
    "figures.report": "one HTML page: a file for each section",
}
# What looks down all the same, and why.
ASIDE = {
    ("feddual.api", "feddual.cli"): "shows a bar while it runs",
    ("feddual.studies", "feddual.cli"): "shows a bar while it runs",
    ("feddual.studies", "feddual.api"): "a study's runs are runs",
    ("feddual.cli", "diagnostics"): "the quickstart's story",
    ("feddual.cli", "figures"): "the quickstart's story, and the report",
    ("diagnostics", "figures.charts"): "results draw themselves when asked",
    ("diagnostics.landscape", "diagnostics.flatness"): "a landscape is asked for its sharpness",
}
# Third parties, and the only places that import them.
THIRD_PARTIES = {
    "ot": ("feddual.barycenter",),
    "ray": ("feddual.executors.ray",),
    "matplotlib": ("figures",),
    "plotly": ("figures",),
    "pyarrow": ("feddual.records",),
}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by name, parsed."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def imports(module: str, top_only: bool = False) -> set[str]:
    """What a module imports; names that are modules in full. Imports for types alone do not count."""
    tree, names = modules()[module], set()
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if top_only else ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules() else node.module for name in full.values()}
    return names


def room(module: str) -> str | None:
    """The room of a module; None for a package's own door."""
    return next((name for name in ROOMS if module == name or module.startswith(f"{name}.")), None)


def users_of(package: str) -> set[str]:
    return {
        module
        for module in modules()
        if any(name == package or name.startswith(f"{package}.") for name in imports(module))
    }


def test_every_module_has_a_room():
    doors = {*PACKAGES, *(f"{package}.__main__" for package in PACKAGES)}
    assert {module for module in modules() if room(module) is None} <= doors


def test_rooms_import_from_rooms_above_them_only():
    order = list(ROOMS)
    wrong = set()
    for module in modules():
        here = room(module)
        for name in imports(module):
            there = room(name)
            if here is None or there is None or order.index(there) <= order.index(here):
                continue
            if not any(module.startswith(above) and name.startswith(below) for above, below in ASIDE):
                wrong.add(f"{module} imports {name}")
    assert not wrong


def test_exceptions_are_still_needed():
    for above, below in ASIDE:
        assert any(user.startswith(above) for user in users_of(below)), f"{above} no longer imports {below}"


@pytest.mark.parametrize("package", THIRD_PARTIES)
def test_third_parties_stay_in_their_rooms(package):
    assert all(user.startswith(THIRD_PARTIES[package]) for user in users_of(package)), users_of(package)


def test_private_names_of_keras_stand_in_one_module():
    private = {"_flatten_layers", "_functional", "_operations", "_inbound_nodes", "_keras_history", "_nodes_by_depth"}
    private |= {"_call_has_training_arg", "_trainable_variables", "_non_trainable_variables"}
    for module, tree in modules().items():
        if module != "feddual.functional._keras":
            assert not private & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}, module


def test_no_module_imports_tensorflow_at_its_top():
    for module in modules():
        roots = {name.split(".")[0] for name in imports(module, top_only=True)}
        assert not roots & {"tensorflow", "keras"}, module


@pytest.mark.parametrize(
    "code",
    ["import feddual", "import diagnostics, figures", "import feddual.records.run_dir", "import feddual.cli.shell"],
)
def test_light_imports_stay_light(code):
    heavy = "{'tensorflow', 'keras', 'matplotlib', 'plotly', 'ot', 'pandas', 'scipy'}"
    check = f"import sys; {code}; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_modules_and_functions_stay_readable():
    """400 lines a module; 60 a function, its docstring aside."""
    for module, tree in modules().items():
        assert max((node.end_lineno or 0 for node in tree.body), default=0) <= 400, module
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = node.body[0]
                text = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
                assert node.end_lineno - node.lineno + 1 - text <= 60, f"{module}: {node.name}"


def test_a_class_has_its_name_alone():
    """One word, one thing: no two public classes of one name."""
    homes: dict[str, list[str]] = {}
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def picture() -> str:
    """The rooms, as CONTRIBUTING.md shows them."""
    width = max(map(len, ROOMS)) + 2
    return "\n".join(f"    {name:<{width}}{what}" for name, what in ROOMS.items())


def test_contributing_shows_the_rooms():
    assert picture() in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_contributing_says_what_to_touch_for_each_kind():
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert [row.split("`")[1] for row in rows] == sorted(plugins.KINDS)
    for row, kind in zip(rows, sorted(plugins.KINDS), strict=True):
        for home in plugins.KINDS[kind].homes:
            module, _, dictionary = home.partition(":")
            assert module.replace(".", "/") in row
            assert f"`{dictionary}`" in row or not dictionary

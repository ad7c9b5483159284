"""The rules of CONTRIBUTING.md, held by reading the imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for room in ("feddual", "diagnostics", "figures") for path in (ROOT / room).rglob("*.py"))
# The line of the architecture: a module imports nothing of what stands to its right.
LINE = [
    "data/datasets",
    "data/partition",
    "models",
    "data/federation",
    "functional/rewrites",
    "functional/forward",
    "training/local",
    "training/evaluation",
    "training/workbench",
    "training/engine",
    "api",
]


def imports(path: Path, top_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def users_of(package: str) -> set[str]:
    found = set()
    for path in MODULES:
        if any(name == package or name.startswith(f"{package}.") for name in imports(path)):
            found.add(str(path.relative_to(ROOT)))
    return found


def test_third_parties_stay_in_their_rooms():
    assert users_of("ot") <= {"feddual/barycenter.py"}
    assert users_of("ray") <= {"feddual/executors/ray.py"}
    for package in ("matplotlib", "plotly"):
        assert all(user.startswith(("figures/",)) for user in users_of(package))


def test_only_the_story_and_the_command_line_import_diagnostics_and_figures():
    for package in ("diagnostics", "figures"):
        users = {user for user in users_of(package) if user.startswith("feddual/")}
        assert users <= {"feddual/cli/look.py", "feddual/cli/quickstart.py"}


def test_diagnostics_do_not_import_the_engine():
    for module in ("training", "algorithms"):
        assert not {user for user in users_of(f"feddual.{module}") if user.startswith("diagnostics/")}


def test_the_line_is_straight():
    for position, name in enumerate(LINE):
        found = imports(ROOT / "feddual" / f"{name}.py")
        for right in LINE[position + 1 :]:
            assert f"feddual.{right.replace('/', '.')}" not in found, (
                f"{name} imports {right}, which stands to its right"
            )


def test_no_module_imports_tensorflow_at_its_top():
    for path in MODULES:
        top = imports(path, top_only=True)
        assert not {name for name in top if name.split(".")[0] in ("tensorflow", "keras")}, path


@pytest.mark.parametrize("code", ["import feddual", "import feddual.records.run_dir", "from feddual.cli import app"])
def test_light_imports_stay_light(code):
    heavy = "{'tensorflow', 'keras', 'matplotlib', 'plotly', 'ot', 'pandas', 'scipy'}"
    check = f"import sys; {code}; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_modules_stay_readable():
    for path in MODULES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path

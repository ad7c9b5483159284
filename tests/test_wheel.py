"""The built wheel holds everything: installed alone into an empty folder, it trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_trains(tmp_path):
    def run(*command, **more):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, **more)
        assert done.returncode == 0, done.stderr
        return done

    run("-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(ROOT))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    target = tmp_path / "installed"
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel))
    for file in (
        "py.typed",
        "experiment/presets/paper-fmnist.yaml",
        "data/fmnist_mini.npz",
        "data/LICENSE-fashion-mnist",
    ):
        assert (target / "feddual" / file).is_file()
    for file in ("page.html.j2", "page.css", "page.js"):
        assert (target / "figures" / "report" / file).is_file()
    code = (
        f"import feddual; assert feddual.__file__.startswith({str(target)!r}), feddual.__file__\n"
        "run = feddual.run('quickstart', {'training.rounds': 1}, out='run', progress=False)\n"
        "assert len(run.metrics) == 1"
    )
    run("-c", code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(target)})

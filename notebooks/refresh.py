"""Run notebooks from top to bottom and keep their outputs: `make notebooks`, or `python notebooks/refresh.py 03 05`.

What a machine or a moment decides is left out of the files (progress bars, timings, ids), so that running them again
changes little.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError

HERE = Path(__file__).parent
MINUTES = 5  # before a cell is given up: far more than a quiet machine needs
TRIES = 2
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder; an error in a cell is raised.

    Now and then a kernel's answer is lost, with the cell done and both sides waiting: then once more from the top.
    """
    for tries_left in reversed(range(TRIES)):
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(
            notebook, timeout=60 * MINUTES, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        try:
            return client.execute()
        except CellTimeoutError:
            if not tries_left:
                raise
            for made in ("runs", "out"):
                shutil.rmtree(folder / made, ignore_errors=True)
    raise AssertionError("unreachable")


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Leave out what differs from one run to the next."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02d}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_passing(output)]
            for output in cell.outputs:
                _forget_addresses(output)
    return notebook


def _is_passing(output: nbformat.NotebookNode) -> bool:
    """A progress bar and what it leaves behind, or what a library says on standard error."""
    data = output.get("data", {})
    return output.get("name") == "stderr" or WIDGET in data or data.get("text/plain") == ""


def _forget_addresses(output: nbformat.NotebookNode) -> None:
    """`<Thing at 0x7f...>` becomes `<Thing>`."""
    data = output.get("data", {})
    if "text/plain" in data:
        data["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", data["text/plain"])


def main(wanted: list[str]) -> None:
    """Refresh the notebooks whose names begin with one of these; all without any."""
    for path in sorted(HERE.glob("[0-9]*.ipynb")):
        if wanted and not path.name.startswith(tuple(wanted)):
            continue
        print(path.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "notebooks"
            shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("runs", "out", ".*"))
            nbformat.write(clean(execute(path, copy)), path)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The notebooks are well formed and have outputs, and their cells still give these outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repository import ROOT

pytestmark = pytest.mark.slow  # needs Jupyter

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

#: Values that replace the values of the cell tagged "parameters".
QUICKER = {"06-your-own-model": "steps = 5"}

#: Paths on a developer's machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|opt|work|Users|private|var)/")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    import nbformat  # takes seconds, which other tests need not wait for

    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> set[str]:
    """Return the kinds of outputs, without the widgets that are shown in a live notebook only."""
    found = {kind for output in cell.outputs for kind in output.get("data", {output.output_type})}
    widget = "application/vnd.jupyter.widget-view+json"
    return set() if widget in found else found


@each_notebook
def test_a_notebook_is_valid_and_was_run_from_top_to_bottom(path: Path) -> None:
    import nbformat

    notebook = read(path)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = set().union(*map(kinds, cells))
    assert "image/png" in shown
    assert not shown & {"error", "stderr"}
    for cell in cells:
        last = cell.source.rstrip().split("\n")[-1]
        if last.startswith(("na.plots.", "na.ALiBi(")):
            assert kinds(cell), last


@each_notebook
def test_a_notebook_is_small_and_names_no_machine(path: Path) -> None:
    assert path.stat().st_size < 400_000
    for cell in read(path).cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            texts.append(output.get("text", ""))
            texts += [t for kind, t in output.get("data", {}).items() if kind != "image/png"]
        for text in texts:
            assert not MACHINE_PATH.search(text), text


@each_notebook
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#:]+)\)", prose):
        assert (path.parent / target).exists(), target


#: Runs the code cells of a notebook one after the other, without the sockets of a Jupyter kernel:
#: messages of kernels that several processes start at one time get lost now and then.
RUN = """
import sys
import nbformat
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in nbformat.read(sys.argv[1], as_version=4).cells:
    if cell.cell_type == "code":
        shell.run_cell(cell.source, store_history=False).raise_error()
"""


@each_notebook
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += "\n" + QUICKER[path.stem]
    run(notebook, tmp_path / path.name)


def run(notebook: Any, quicker: Path) -> str:
    """Run a notebook from a file in the folder of notebooks; return what it prints."""
    import nbformat

    nbformat.write(notebook, quicker)
    done = subprocess.run(
        [sys.executable, "-c", RUN, quicker],
        cwd=ROOT / "notebooks",
        env={**os.environ, "MPLBACKEND": "agg", "IPYTHONDIR": str(quicker.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout

"""Execute the notebooks of the pages, each in a kernel and a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs/notebooks"
#: Longest time of a cell, seconds.
CELL_S = 240


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the outputs of a notebook's cells, after it was executed in ``folder``.

    Raises CellExecutionError with the traceback of a cell that fails.
    """
    kernel_environment(folder, monkeypatch)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert_stripped(notebook)
    client = NotebookClient(
        notebook, timeout=CELL_S, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def kernel_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels import this tree, and keep what they write in ``folder``."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(folder / ".jupyter"))


def assert_stripped(notebook: Any) -> None:
    """The repository has no outputs, which would differ with each execution."""
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def pictures(outputs: list[Any], kind: str) -> int:
    """Return how many outputs have a picture of a kind, such as ``image/png``."""
    return sum(kind in output.get("data", {}) for output in outputs)


def warnings(outputs: list[Any]) -> list[str]:
    """Return what the cells wrote to standard error."""
    return [output["text"] for output in outputs if output.get("name") == "stderr"]

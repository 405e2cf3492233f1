"""The page in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from ringlight.experiments.language.text import ScenarioError
from ringlight.extensions.page.beside import BESIDE

if TYPE_CHECKING:
    from ringlight.experiments.scripting.runs import Runs


def view(runs: Runs, height: int = 720) -> Any:
    """Return the page with these runs for a notebook, ``height`` pixels high; needs IPython.

    Raises ScenarioError if the run folder has no page, as one of a trace of jobs.
    """
    from IPython.display import HTML

    try:
        page = (runs.path / BESIDE).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(f"{runs.path}: there is no {BESIDE}") from None
    style = f"width: 100%; height: {height}px; border: 0"
    return HTML(
        f'<div><iframe srcdoc="{html.escape(page)}" style="{style}" title="Ringlight"></iframe></div>'
    )

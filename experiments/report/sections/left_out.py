"""Arms that the backend cannot run and runs that could not be made."""

from __future__ import annotations

from experiments.report.page import text
from experiments.report.report import Draw
from experiments.report.view import View

ORDER = 92
NEEDS: tuple[str, ...] = ()


def wanted(view: View) -> bool:
    return bool(view.not_run or view.failed)


def render(view: View, draw: Draw) -> str:
    backend = "simulation" if view.simulated else "emulation"
    items = [
        f"<li><b>{text(view.title(entry['arm']))}</b>: the {backend} refuses {text(entry['why'])}</li>"
        for entry in view.not_run
    ]
    items += [f"<li><b>{text(entry['run'])}</b>: {text(entry['why'])}</li>" for entry in view.failed]
    return f"<h2>Not run</h2><ul>{''.join(items)}</ul>"

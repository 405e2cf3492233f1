"""Arms that the backend cannot run and runs that could not be made."""

from __future__ import annotations

from ringlight.experiments.report.page import listing, text
from ringlight.experiments.report.view import Draw, View

ORDER = 92
TITLE = "Not run"


def wanted(view: View) -> bool:
    return bool(view.not_run or view.failed)


def render(view: View, draw: Draw) -> str:
    backend = "simulation" if view.simulated else "emulation"
    refused = [(view.title(entry["arm"]), f"the {backend} refuses {entry['why']}") for entry in view.not_run]
    failed = [(entry["run"], entry["why"]) for entry in view.failed]
    return listing(f"<b>{text(what)}</b>: {text(why)}" for what, why in (*refused, *failed))

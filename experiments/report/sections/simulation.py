"""What a simulation takes for granted."""

from __future__ import annotations

from ringlight.experiments.report.page import assumptions
from ringlight.experiments.report.view import Draw, View

ORDER = 91
TITLE = "What the simulation rests on"
FOLDED = True


def wanted(view: View) -> bool:
    return view.simulated and bool(view.environment.get("assumptions"))


def render(view: View, draw: Draw) -> str:
    return (
        "<p>The fabric, the schedules of the all-reduces and the "
        "controller's planner are those of the emulation. None of these assumptions was fitted to an "
        "emulated run; <code>ringlight crosscheck</code> compares the two and says which of them is off.</p>"
        f"{assumptions(view.environment['assumptions'])}"
    )

"""What a simulation takes for granted."""

from __future__ import annotations

from experiments.report.page import table, text
from experiments.report.report import Draw
from experiments.report.view import View

ORDER = 91
NEEDS: tuple[str, ...] = ()


def wanted(view: View) -> bool:
    return view.simulated and bool(view.environment.get("assumptions"))


def render(view: View, draw: Draw) -> str:
    rows = [
        f"<tr><td>{text(entry['what'])}</td><td>{text(entry['value'])}</td>"
        f"<td class='wide'>{text(entry['why'])}</td></tr>"
        for entry in view.environment["assumptions"]
    ]
    return (
        "<h2>What the simulation rests on</h2><p>The fabric, the schedules of the all-reduces and the "
        "controller's planner are those of the emulation. None of these assumptions was fitted to an "
        "emulated run; <code>ringlight crosscheck</code> compares the two and says which of them is off.</p>"
        f"{table(['assumption', 'value', 'why'], rows, 9)}"
    )

"""Packet switches that are left to others: who writes their tables, and when traffic came back."""

from __future__ import annotations

from collections.abc import Iterator

from ringlight.experiments.analysis.metrics import LIGHT
from ringlight.experiments.record.runs import Action, Run
from ringlight.experiments.report.page import table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import called, count, meaning, seconds

ORDER = 30
TITLE = "Packet switches of other controllers"
NEEDS = ("followed",)
_TIMES = ("wire_dark", "blackout", "followed")
_WRITES = {
    "none": "nobody: it learns addresses and floods",
    "app": "applications beside our controller",
    "ringlight": "our controller",
}


def render(view: View, draw: Draw) -> str:
    runs = [run for run in view.first.values() if run.plan.setting.fabric.foreign_switches]
    switches = [(run, name) for run in runs for name in run.plan.setting.fabric.packet_switches]
    who = table_of(
        switches,
        [
            ("packet switch", lambda at: text(at[1])),
            ("who writes its tables", lambda at: _who(at[0], at[1])),
            ("regroups with light there", lambda at: count(float(_moved(at[0], at[1])))),
        ],
        2,
        group=lambda at: text(at[0].plan.title),
    )
    when = table_of(
        [line for run in runs for line in _events(view, run)],
        [
            ("event", lambda line: text(f"{line[0].plan.name}: {line[0].plan.do}")),
            *((called(name), lambda line, name=name: seconds(line[1].number(name))) for name in _TIMES),
        ],
        1,
        group=lambda line: text(line[1].title),
    )
    return (
        "<p>Our controller moves light at these switches and tells of it; it neither reads nor writes tables "
        f"that are not its own. Followed: {meaning('followed')} {tag(view.label)}.</p>{who}{when}"
    )


def _who(run: Run, switch: str) -> str:
    controller = run.plan.setting.fabric.packet_switches[switch].controller
    return text(_WRITES.get(controller, f"the controller at {controller}"))


def _moved(run: Run, switch: str) -> int:
    """How often a regroup moved light at a switch that is left to others."""
    return sum(switch in (action.result.get("left_to_others") or {}) for action in run.later)


def _events(view: View, run: Run) -> Iterator[tuple[Action, Figures]]:
    for action in run.later:
        if action.plan.do in LIGHT:
            yield action, view.at(run.plan.arm, f"event {action.plan.name}")

"""Packet switches that are left to others: who writes their tables, and when traffic came back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringlight.experiments.analysis.metrics import LIGHT
from ringlight.experiments.record.runs import Action, Run
from ringlight.experiments.report.page import table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import called, count, meaning, seconds

ORDER = 30
TITLE = "Packet switches of other controllers"
NEEDS = ("followed",)
_AND = "; "
_TIMES = ("wire_dark", "blackout", "followed")
_WRITES = {
    "none": "nobody: it learns addresses and floods",
    "app": "applications beside our controller",
    "ringlight": "our controller",
}


def render(view: View, draw: Draw) -> str:
    runs = [run for run in view.first.values() if run.plan.setting.fabric.foreign_switches]
    who = "".join(_switches(alike, len(alike) < len(runs)) for alike in _alike(runs))
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


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose packet switches are written by the same, and had light moved as often, together."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        switches = run.plan.setting.fabric.packet_switches
        found.setdefault(tuple((name, _who(run, name), _moved(run, name)) for name in switches), []).append(
            run
        )
    return list(found.values())


def _switches(runs: Sequence[Run], named: bool) -> str:
    """One table for runs that are alike; ``named``: says which they are."""
    run = runs[0]
    shown = table_of(
        list(run.plan.setting.fabric.packet_switches),
        [
            ("packet switch", text),
            ("who writes its tables", lambda name: _who(run, name)),
            ("regroups with light there", lambda name: count(float(_moved(run, name)))),
        ],
        2,
    )
    return f"{f'<h3>{text(_AND.join(one.plan.title for one in runs))}</h3>' if named else ''}{shown}"


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

"""Switches that others change under a run: on record, said, judged and shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.rest.app import create_app
from ringlight.controller.service import Controller
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.backends.emulation import drifts
from ringlight.experiments.backends.emulation.drifts import DriftLog
from ringlight.experiments.client import Api, ApiError
from ringlight.experiments.record.events import Record, RunEnded
from ringlight.experiments.record.lab_records import SwitchDrifted, SwitchMended
from ringlight.experiments.report.report import render
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import _Run
from tests.simulated import experiment, records_of, with_links, with_workers
from tests.unit.page import Page, text_of
from tests.unit.test_controller_access import controller  # noqa: F401
from tests.unit.test_experiment_report import FABRIC, ONE_JOB, view_of_file
from tests.unit.test_web_bounds import serving_app

KILLED = "events: [{when: {at: 1 s}, do: kill, target: switch t0, back_after: 1 s}]\n"


def told(log: DriftLog, *, now: bool = True) -> list[tuple[Any, ...]]:
    return [
        (found.switch, found.what, found.text, found.planned)
        if isinstance(found, SwitchDrifted)
        else (found.switch, found.what, round(found.after_s, 3))
        for found in log.look(now=now)
        if isinstance(found, SwitchDrifted | SwitchMended)
    ]


def test_what_the_controller_says_of_switches_is_on_record_of_the_run(
    controller: Controller,  # noqa: F811
) -> None:
    bus = controller.bus
    (plan,) = experiment(KILLED).plans
    bus.publish("flow_drift", switch="t1", text="before the run")
    with serving_app(create_app(controller)) as port, Api(f"127.0.0.1:{port}") as api:
        log = DriftLog(api, plan)
        bus.publish("flows_mended", switch="t1", problem=None)
        assert told(log) == []
        drift = bus.publish(
            "flow_drift", switch="t1", text="1 rule is missing", missing=["a"]
        )
        bus.publish("job", job="x", state="RUNNING")
        bus.publish("drift", switch="ocs0", text="1->5 is missing", policy="mend")
        bus.publish("flow_drift", switch="t0", text="13 rules are missing")
        bus.publish("flows_mended", switch="t1", problem="it is refused")
        mended = bus.publish("flows_mended", switch="t1", problem=None)
        # There is time: the controller keeps them.
        assert told(log) == [
            ("t1", "flow table", "1 rule is missing", False),
            ("ocs0", "light", "1->5 is missing", False),
            ("t0", "flow table", "13 rules are missing", True),
            ("t1", "flow table", round(mended["t"] - drift["t"], 3)),
        ]
        assert told(log) == []
        bus.publish("drift_over", switch="ocs0")
        assert told(log, now=False) == []
        assert [one[:2] for one in told(log)] == [("ocs0", "light")]


def test_another_controller_numbers_its_events_anew() -> None:
    class Kept:
        """The bus of a controller, as its REST gives it."""

        def __init__(self) -> None:
            self.bus = EventBus()
            self.crowded = False

        def events(self, after: int) -> list[dict[str, Any]]:
            if self.crowded:
                raise ApiError(503, "256 listen to events already")
            return self.bus.subscribe(after).take()

    kept: Any = Kept()
    (plan,) = experiment().plans
    log = DriftLog(kept, plan)
    for number in range(5):
        kept.bus.publish("flow_drift", switch="t1", text=str(number))
    kept.crowded = True
    assert told(log) == []
    kept.crowded = False
    assert len(told(log)) == 5
    kept.bus = EventBus()
    kept.bus.publish("flow_drift", switch="t1", text="by the second")
    assert told(log) == []
    log.anew()
    assert told(log) == [("t1", "flow table", "by the second", False)]
    assert drifts.LOOK_S <= 1.0


def strange(
    planned: bool = False, mended: bool = True, late: bool = False
) -> Callable[[Any], list[Record]]:
    """As if somebody had written to a switch while the jobs ran, or after that."""

    def change(records: list[Record]) -> list[Record]:
        (end,) = [record for record in records if isinstance(record, RunEnded)]
        t = end.t + 1 if late else end.t / 2
        told = {"run": end.run, "switch": "tor0", "what": "flow table"}
        drift = SwitchDrifted(t=t, **told, text="2 rules are missing", planned=planned)
        back = [SwitchMended(t=t + 0.25, **told, after_s=0.25)] if mended else []
        return [*records[:-1], drift, *back, end]

    return change


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ({}, "for 0.25 s"),
        ({"mended": False}, "until the run ended"),
        ({"planned": True}, None),
        ({"late": True}, None),
    ],
)
def test_a_run_whose_switches_others_changed_is_doubtful(
    how: dict[str, bool], then: str | None
) -> None:
    found = experiment()
    records = strange(**how)(with_links(list(with_workers(records_of(found))), 0.993))
    fidelity = analyse(found, records, "measured").fidelity
    said = f"base: flow table of tor0: 2 rules are missing, which no event asked for, {then}"
    assert [reason["text"] for reason in fidelity["reasons"]] == (
        [said] if then else []
    )
    assert fidelity["verdict"] == ("doubtful" if then else "good")


def test_the_timeline_shows_it(tmp_path: Path) -> None:
    view = view_of_file(FABRIC + ONE_JOB, "small.yaml", strange())
    shown = text_of(Page(render(view, tmp_path)))
    assert "flow table of tor0: 2 rules are missing" in shown
    assert "restored by the controller" in shown
    assert "switch changed by others" in (tmp_path / "timeline.svg").read_text()
    assert "flow table" not in text_of(
        Page(render(view_of_file(FABRIC + ONE_JOB, "small.yaml"), tmp_path))
    )


def test_it_is_said_when_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    (plan,) = experiment().plans
    lab: Any = None
    _Run(lab, plan, lambda _: None, Reporter())._keep(
        [
            record
            for record in strange()([RunEnded(t=1.0)])
            if not isinstance(record, RunEnded)
        ]
    )
    said = capsys.readouterr().err
    assert re.search(r" s  +flow table of tor0: 2 rules are missing\n", said)
    assert re.search(
        r" s  +flow table of tor0 is as it should be again after 0\.25 s\n", said
    )

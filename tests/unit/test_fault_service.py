"""What becomes of a fault, where nothing is really broken."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ringlight.testbed.emulation import fault_courses as module
from ringlight.testbed.emulation.fault_courses import FaultCourses
from ringlight.testbed.emulation.fault_targets import read_request
from ringlight.testbed.emulation.faults import Faults
from tests.unit.test_controller_circuits import FABRIC


def test_a_fault_that_fails_as_nobody_expected_is_told_as_failed() -> None:
    server = MagicMock()
    server.stop.side_effect = TypeError("an integer is required")
    network = MagicMock()
    courses = FaultCourses(FABRIC, network, MagicMock(), server, {}, None)
    faults = Faults(FABRIC, network, courses)
    _, start = faults.ask(
        read_request({"do": "kill", "target": "server agent", "back_after_s": 1})
    )
    assert start is not None
    start()
    deadline = time.monotonic() + 5.0
    while (report := faults.reports()[0]).state == "asked":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert report.state == "failed"
    assert report.error == "kill server agent: internal error: an integer is required"
    server.start.assert_called_once()
    faults.close()


def run_backwards(faults: Faults, *asked: Mapping[str, Any]) -> None:
    """Ask for two faults, the second in place of the first, and let the second begin before the first."""
    first, last = (faults.ask(read_request(one)) for one in asked)
    for (report, start), state in ((last, "in force"), (first, "over")):
        assert start is not None
        start()
        deadline = time.monotonic() + 5.0
        while (
            next(one for one in faults.reports() if one.id == report.id).state != state
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_disturbance_that_was_asked_for_last_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[float] = []
    monkeypatch.setattr(
        module, "emulate", lambda _, wanted: told.append(wanted["loss"])
    )
    fabric = replace(FABRIC, onics={"g0": MagicMock(transmitters="tunable")})
    kept = {"agent": MagicMock()}
    network, manage = MagicMock(), {"g0": Path("agent.sock")}
    courses = FaultCourses(fabric, network, MagicMock(), MagicMock(), kept, manage)  # type: ignore[arg-type]
    faults = Faults(fabric, network, courses)
    ask = {"do": "disturb", "target": "control network"}
    run_backwards(faults, *({**ask, "control": {"loss": loss}} for loss in (0.1, 0.2)))
    assert told[-1] == 0.2
    faults.close()

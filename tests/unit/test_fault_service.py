"""What becomes of a fault, where nothing is really broken."""

from __future__ import annotations

import time
from unittest.mock import MagicMock

from ringlight.testbed.emulation.fault_targets import read_request
from ringlight.testbed.emulation.faults import Faults
from tests.unit.test_controller_circuits import FABRIC


def test_a_fault_that_fails_as_nobody_expected_is_told_as_failed() -> None:
    server = MagicMock()
    server.stop.side_effect = TypeError("an integer is required")
    faults = Faults(FABRIC, MagicMock(), MagicMock(), server, {}, None)
    _, start = faults.ask(read_request({"do": "kill", "target": "server agent", "back_after_s": 1}))
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

"""Every operation below ``/stats`` on a live controller, called as its description says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_controller_jobs import Run
from tests.integration.test_openapi import check_operations
from tests.integration.test_openapi import run as run

pytestmark = pytest.mark.root

CONFIGURATION = "tests/extensions/ofctl/integration/schemathesis.toml"
#: Operations that may not have succeeded once: OpenFlow 1.3 has no such question (501), Open vSwitch knows no
#: experimenter of ours, and there may be no such meter or group at that moment.
MAY_NOT_SUCCEED = {
    "GET /stats/meterdesc/{dpid}",
    "GET /stats/meterdesc/{dpid}/{meter_id}",
    "GET /stats/queuedesc/{dpid}",
    "GET /stats/queuedesc/{dpid}/{port}",
    "GET /stats/queuedesc/{dpid}/{port}/{queue_id}",
    "POST /stats/experimenter/{dpid}",
    "POST /stats/groupentry/modify",
    "POST /stats/meterentry/modify",
}


def test_every_operation_answers_as_described(run: Run, tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing,stateful", "--max-examples", "2")
    failed = check_operations(
        run, tmp_path / "events.ndjson", options, "^/stats/", CONFIGURATION
    )
    assert failed <= MAY_NOT_SUCCEED


def test_operations_answer_systematically(run: Run, tmp_path: Path, long: bool) -> None:
    if not long:
        pytest.skip("some hundreds of requests more; --long makes them")
    # It makes up thousands of changes of flows, groups and meters, of which these are none.
    paths = "^/stats/(port|role)"
    failed = check_operations(
        run, tmp_path / "events.ndjson", ("--phases", "coverage"), paths, CONFIGURATION
    )
    assert failed <= MAY_NOT_SUCCEED


def test_a_path_that_there_is_not_and_a_body_that_cannot_be_read(run: Run) -> None:
    answer = run.api.post("/stats/flowentry/explode")
    assert (answer.status_code, answer.json()) == (
        404,
        {"detail": "there is no path /stats/flowentry/explode"},
    )
    assert run.api.post("/stats/flowentry/add", content=b"nonsense").status_code == 400

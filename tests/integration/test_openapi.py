"""The API's own description against a live controller: schemathesis calls every operation and compares.

The same files serve the long form in CONTRIBUTING.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.controller_rig import FABRIC
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
#: Has what the examples in the API's description name, and keys of extensions, in a file among their tests.
EVERYTHING = {
    **FABRIC,
    **{
        key: value
        for file in sorted(ROOT.glob("tests/extensions/*/openapi_fabric.json"))
        for key, value in json.loads(file.read_text()).items()
    },
}
LIMIT_S = 240.0
#: The core's paths.
PATHS = "^/(v1/|metrics$)"
#: Operations that may not have succeeded once: there may be no READY job or regrouping at that moment.
MAY_NOT_SUCCEED = {
    "POST /v1/jobs/release",
    "GET /v1/regroup/{regroup_id}",
    # A fault of this number exists only by chance.
    "DELETE /v1/optical-switches/{name}/faults/{fault}",
    # Only a command in a container has output, and GPUs here are namespaces.
    "GET /v1/jobs/{job_id}/output/{rank}",
    # A workload's SHA-256 is not guessed.
    "GET /v1/workloads/{sha256}",
    "PUT /v1/workloads/{sha256}",
}
if EVERYTHING == FABRIC:
    # Planes with light beside packet switches, and O-NICs, are of extensions.
    MAY_NOT_SUCCEED |= {
        "GET /v1/planes/{name}",
        "GET /v1/planes/{name}/changes",
        "POST /v1/planes/plan",
        "GET /v1/onics/{gpu}",
        "GET /v1/onics/{gpu}/flows",
        "GET /v1/light-counters",
    }
CONFIGURATION = "tests/integration/schemathesis.toml"


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    run = Run(EVERYTHING)
    try:
        yield run
    finally:
        run.close()


def schemathesis(
    run: Run, report: Path, *options: str, configuration: str = CONFIGURATION
) -> subprocess.CompletedProcess[str]:
    """Calls the API; the events of the run are in the file ``report``."""
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", configuration),
            *(
                "run",
                f"http://127.0.0.1:{run.rest}/openapi.json",
                "--no-color",
                "--no-shrink",
            ),
            *(
                "--generation-database",
                "none",
                "--report-ndjson-path",
                str(report),
                *options,
            ),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def answers(report: Path) -> Iterator[tuple[str, int, bytes]]:
    """(operation, status, body) of every answer in a run's events."""
    for line in report.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for case, done in recorder.get("interactions", {}).items():
            response = done.get("response")
            made = recorder["cases"][case]["value"]
            if response is not None:
                body = base64.b64decode(
                    (response.get("content") or {}).get("$base64", "")
                )
                yield f"{made['method']} {made['path']}", response["status_code"], body


def check_operations(
    run: Run,
    report: Path,
    options: Sequence[str],
    paths: str,
    configuration: str = CONFIGURATION,
) -> set[str]:
    """Check that each operation answers as the API's description says, below paths of which ``paths`` is an
    expression. Return the operations that never succeeded."""
    # One worker, as ast.parse, which hypothesis calls, may fail where threads meet in it (CPython 3.11).
    some = ("--include-path-regex", paths, "--seed", "1", "--workers", "1")
    done = schemathesis(run, report, *some, *options, configuration=configuration)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    for operation, status, body in answers(report):
        statuses[operation][status] += 1
        if status >= 400:
            detail = json.loads(body)["detail"]
            assert isinstance(detail, str), (operation, body)
            assert detail, (operation, body)
            assert "\n" not in detail, (operation, body)
    described = {
        f"{method.upper()} {path}"
        for path, item in run.api.get("/openapi.json").json()["paths"].items()
        for method in item
        if re.search(paths, path)
    }
    assert described
    assert described <= statuses.keys()
    # What all that did is no more than a change of light, rules and jobs.
    reasons = run.api.get("/v1/health").json()["reasons"]
    assert [reason for reason in reasons if not reason.endswith("is down")] == []
    log = (run.state / "controller.log").read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
    return {operation for operation in described if min(statuses[operation]) >= 300}


def test_every_operation_answers_as_described(run: Run, tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing,stateful", "--max-examples", "2")
    assert (
        check_operations(run, tmp_path / "events.ndjson", options, PATHS)
        <= MAY_NOT_SUCCEED
    )


def test_operations_answer_systematically(run: Run, tmp_path: Path, long: bool) -> None:
    if not long:
        pytest.skip("some hundreds of requests more; --long makes them")
    paths = "^/v1/(circ|claims|ev|gpus|jobs|opt|reg|ser)"
    failed = check_operations(
        run, tmp_path / "events.ndjson", ("--phases", "coverage"), paths
    )
    assert failed <= MAY_NOT_SUCCEED


def test_faults_are_injected_into_the_labs_optical_switches(run: Run) -> None:
    path = "/v1/optical-switches/ocs0"
    assert run.api.delete(f"{path}/faults").status_code == 200
    made = run.api.post(f"{path}/faults", json={"kind": "deny", "count": 1})
    assert made.status_code == 200, made.text
    before = run.api.get(f"{path}/cross-connects").json()
    taken = {port for one in before for port in (one["ingress"], one["egress"])}
    size = run.api.get(path).json()["size"]
    ingress = next(port for port in range(size, 0, -1) if port not in taken)
    egress = next(
        port for port in range(2 * size, size, -1) if port not in taken | {20}
    )
    refused = run.api.put(f"{path}/cross-connects/{ingress}", json={"egress": egress})
    assert refused.status_code == 502, refused.text
    (fault,) = run.api.get(f"{path}/faults").json()
    assert (fault["kind"], fault["hits"], fault["left"]) == ("deny", 1, 0)
    assert (
        run.api.put(
            f"{path}/cross-connects/{ingress}", json={"egress": egress}
        ).status_code
        == 200
    )
    assert run.api.delete(f"{path}/cross-connects/{ingress}").status_code == 200
    assert run.api.delete(f"{path}/faults/{fault['id']}").json() == {
        "cleared": [fault["id"]]
    }
    wrong = run.api.post(f"{path}/faults", json={"kind": "port-failed"})
    assert wrong.status_code == 422
    assert wrong.json()["detail"].startswith("optical switch ocs0: port: ")
    assert run.api.get("/v1/optical-switches/nothing/faults").status_code == 404


def test_what_is_not_described_answers_in_the_same_shape(run: Run) -> None:
    for method, path, status, said in (
        ("GET", "/v1/nothing", 404, "there is no path /v1/nothing"),
        ("POST", "/v1/circuits/explode", 404, "there is no path /v1/circuits/explode"),
        ("PATCH", "/v1/fabric", 405, "/v1/fabric does not know the method PATCH"),
        ("PUT", "/v1/circuits", 422, "the body: Field required"),
    ):
        answer = run.api.request(method, path)
        assert (answer.status_code, answer.json()) == (status, {"detail": said})
    headers = {"content-type": "application/json"}
    for body in (b"\xff\xfe", b"{", b"nonsense"):
        answer = run.api.put("/v1/circuits", content=body, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("the body is not JSON")
    many = {
        "name": "big",
        "gpus": 2,
        "compute_s": 0.1,
        "iterations": 3,
        "gradient_bytes": 2**40,
    }
    answer = run.api.post("/v1/jobs", json=many)
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (
        422,
        "gradient_bytes",
    )


def test_the_event_stream_ends_when_it_is_told_to(run: Run) -> None:
    with contextlib.closing(
        run.api.get("/v1/events", params={"after": 0, "seconds": 0.3})
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.count("\nevent: ") >= 1
    events: list[dict[str, Any]] = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    last = events[-1]["id"]
    again = run.api.get(
        "/v1/events", params={"seconds": 0}, headers={"last-event-id": str(last - 1)}
    )
    assert f"id: {last}\n" in again.text
    assert (
        run.api.get("/v1/events", headers={"last-event-id": "latest"}).status_code
        == 422
    )

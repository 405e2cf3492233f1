"""Slices of a lab: two at once that train, refusals, restarts, and a lost cube that a spare one replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fault_client import FaultClient
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

FABRIC: dict[str, Any] = {
    "cubes": {
        "cube": "2x1",
        "count": 5,
        "gpu": "tpu7x",
        "rate": "10 Gbit/s",
        "slices": {"red": {"topology": "2x2"}},
    }
}
TRAIN = {"gradient_bytes": 96_400, "compute_s": 0.1, "iterations": 40}


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    with contextlib.closing(Run(FABRIC)) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with slice red of c0 and c1 alone, and no job."""
    yield shared
    shared.cancel_all()
    with FaultClient.of_inventory(shared.state / "inventory.json") as faults:
        for fault in faults.faults():
            if fault.state == "in force":
                faults.restore(fault.target)
    shared.wait(lambda: not lost(shared), "a GPU is not back")
    for name in slices(shared):
        answer = shared.api.delete(f"/v1/slices/{name}", params={"wait_s": 20})
        assert answer.status_code == 200, answer.text
    assert ready(create(shared, "red", "2x2", ["c0", "c1"]))["reason"] == "ACTIVE"


def lost(run: Run) -> list[str]:
    return list(run.api.get("/v1/health").json()["lost_gpus"])


def slices(run: Run) -> dict[str, Any]:
    listed = run.api.get("/v1/slices").json()
    assert listed["kind"] == "SliceList"
    return {item["metadata"]["name"]: item for item in listed["items"]}


def create(run: Run, name: str, topology: str, cubes: list[str]) -> dict[str, Any]:
    body = {
        "apiVersion": "accelerator.gke.io/v1beta1",
        "kind": "Slice",
        "metadata": {"name": name},
        "spec": {"type": "tpu7x", "topology": topology, "partitionIds": cubes},
    }
    answer = run.api.post("/v1/slices", json=body, params={"wait_s": 20})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def ready(document: dict[str, Any]) -> dict[str, Any]:
    (condition,) = document["status"]["conditions"]
    assert condition["type"] == "Ready"
    return dict(condition)


def reason(run: Run, name: str) -> str:
    return str(ready(slices(run)[name])["reason"])


def circuits(run: Run) -> set[tuple[str, str]]:
    lit = run.api.get("/v1/circuits").json()["circuits"]
    return {tuple(circuit["ends"]) for circuit in lit}


def ring(run: Run, name: str) -> list[str]:
    return list(run.api.get(f"/v1/slices/{name}/gpus").json()["ring"])


def training(run: Run, name: str, **more: Any) -> str:
    """Begin to train on all GPUs of a slice. Return the job."""
    job = run.submit(name, ring(run, name), **TRAIN | more)
    run.wait_state(job, "READY")
    run.release(job)
    return job


def test_two_slices_train_at_once_and_a_lost_cube_is_swapped(run: Run) -> None:
    run.wait(lambda: reason(run, "red") == "ACTIVE", "red is not active")
    blue = ready(create(run, "blue", "2x2", ["c3", "c2"]))
    assert (blue["status"], blue["reason"]) == ("True", "ACTIVE")
    blues = training(run, "blue", iterations=120)
    reds = training(run, "red")
    before = circuits(run)
    with FaultClient.of_inventory(run.state / "inventory.json") as faults:
        faults.lose("gpu g1")
        run.wait_state(reds, "FAILED")
        run.wait(lambda: reason(run, "red") == "ACTIVE_DEGRADED", "red is not degraded")
        assert ready(slices(run)["red"])["message"] == "GPU g1 of partition c0 is lost"
    health = run.api.get("/v1/health").json()["reasons"]
    assert any(line.startswith("slice red is ACTIVE_DEGRADED") for line in health)
    answer = run.api.post(
        "/v1/slices/red/swap", json={"partition": "c0"}, params={"wait_s": 20}
    )
    assert answer.status_code == 200, answer.text
    assert ready(answer.json())["reason"] == "ACTIVE"
    assert answer.json()["spec"]["partitionIds"] == ["c4", "c1"]
    # Four of five circuits of each of both cubes are others; light of blue is the same.
    of_blue = {f"r{number}" for number in range(4, 8)}
    untouched = {pair for pair in before if pair[0].split(":")[0] in of_blue}
    assert untouched
    assert untouched <= circuits(run)
    again = training(run, "red", iterations=10)
    run.wait_state(again, "SUCCEEDED")
    assert run.job(blues)["state"] == "RUNNING"
    run.wait_state(blues, "SUCCEEDED")


def test_a_slice_that_there_cannot_be_is_a_state_with_a_message(run: Run) -> None:
    before = circuits(run)
    for topology, cubes, message in (
        ("2x2", ["c7", "c3"], "there is no partition c7; they are c0 to c4"),
        ("2x2", ["c1", "c3"], "partition c1 is used by slice red"),
        ("2x2", ["c3"], "topology 2x2 needs 2 partitions, and 1 are given"),
        ("3x2", ["c3"], "topology 3x2: 3 is no multiple of 2"),
    ):
        condition = ready(create(run, "bad", topology, cubes))
        assert (condition["status"], condition["reason"]) == (
            "False",
            "SliceCreationFailed",
        )
        assert condition["message"].startswith(message)
    assert circuits(run) == before
    twice = {"metadata": {"name": "red"}, "spec": {"type": "tpu7x", "topology": "2x1"}}
    assert run.api.post("/v1/slices", json=twice).status_code == 409
    other = {"metadata": {"name": "new"}, "spec": {"type": "v6e", "topology": "2x1"}}
    answer = run.api.post("/v1/slices", json=other)
    assert answer.status_code == 422
    assert "this fabric has tpu7x, not v6e" in answer.text


def test_slices_outlast_the_controller(run: Run) -> None:
    create(run, "blue", "2x2", [])
    before, lit = slices(run), circuits(run)
    assert before["blue"]["spec"]["partitionIds"] == ["c2", "c3"]
    run.kill_controller()
    run.start_controller()
    assert slices(run) == before
    assert circuits(run) == lit


def test_light_that_somebody_takes_degrades_a_slice(run: Run) -> None:
    first = next(iter(circuits(run)))
    answer = run.api.patch("/v1/circuits", json={"remove": [first]})
    assert answer.status_code == 200, answer.text
    run.wait(lambda: reason(run, "red") == "ACTIVE_DEGRADED", "red is not degraded")
    assert "is dark" in ready(slices(run)["red"])["message"]
    run.api.patch("/v1/circuits", json={"add": [first]})
    run.wait(lambda: reason(run, "red") == "ACTIVE", "red is not active")


def test_a_slice_in_use_is_neither_ended_nor_swapped(run: Run) -> None:
    job = training(run, "red", iterations=200)
    answer = run.api.delete("/v1/slices/red")
    assert answer.status_code == 409
    assert f"is used by job {job}" in answer.text
    body = {"partition": "c0", "spare": "c4"}
    assert run.api.post("/v1/slices/red/swap", json=body).status_code == 409

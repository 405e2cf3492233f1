"""Jobs on a grid: real WSS processes, O-NIC agents and workers, driven through the controller's REST API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import parse_spec
from tests.fault_client import FaultClient
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

GRID = {
    "grids": {
        "n": {
            "rows": 2,
            "columns": 2,
            "gpu": "titan-v",
            "rate": "10 Gbit/s",
            "wavelengths": 2,
            "wss": {"profile": "ideal"},
        }
    }
}
NODES = ["n0", "n1", "n2", "n3"]


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    with closing(Run(GRID)) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with no job going on."""
    yield shared
    shared.cancel_all()
    shared.wait(lambda: not lit(shared), "light was left")


def submit(run: Run, name: str, **more: Any) -> str:
    body = {
        "name": name,
        "collective": "halving-doubling",
        "hold": True,
        "gradient_bytes": 96400,
    }
    body |= {"compute_s": 0.02, "iterations": 10, "seed": 7, "gpus": 4, **more}
    answer = run.api.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def refusal(run: Run, **body: Any) -> tuple[int, str]:
    """The same answer from the plan and from a job that was to be submitted."""
    body = {"collective": "halving-doubling"} | body
    plan = run.api.post("/v1/planes/plan", json=body)
    train = {"name": "no", "gradient_bytes": 96400, "compute_s": 0.0, "iterations": 1}
    answer = run.api.post("/v1/jobs", json=train | body)
    assert (plan.status_code, plan.json()["detail"]) == (
        answer.status_code,
        answer.json()["detail"],
    )
    assert "\n" not in answer.json()["detail"]
    return answer.status_code, answer.json()["detail"]


def lit(run: Run) -> dict[str, list[tuple[str, str, int]]]:
    """Who reaches whom on which wavelength, by switch, as the switches say."""
    for name in LIT:
        # The grid shows what was last read, and this reads.
        run.api.get(f"/v1/optical-switches/{name}/cross-connects").raise_for_status()
    switches = run.api.get("/v1/planes/n").json()["switches"]
    return {
        s["name"]: [(e["from"], e["to"], e["wavelength"]) for e in s["lit"]]
        for s in switches
        if s["lit"]
    }


def status(run: Run, gpu: str) -> dict[str, Any]:
    answer = run.api.get(f"/v1/onics/{gpu}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["status"])


LIT = {
    "n-r0": [("n0", "n1", 1), ("n1", "n0", 1)],
    "n-r1": [("n2", "n3", 1), ("n3", "n2", 1)],
    "n-c0": [("n0", "n2", 1), ("n2", "n0", 1)],
    "n-c1": [("n1", "n3", 1), ("n3", "n1", 1)],
}


def test_a_job_trains_over_its_own_light_and_leaves_none(run: Run) -> None:
    before = run.light_lost()
    assert lit(run) == {}
    plan = run.api.post(
        "/v1/planes/plan", json={"gpus": 4, "collective": "halving-doubling"}
    ).json()
    assert (plan["plane"], plan["ranks"]) == ("n", NODES)
    assert lit(run) == {}, "a plan changed something"
    red = submit(run, "red", iterations=30)
    job = run.wait_state(red, "READY")
    assert (job["plane"], job["switches"]) == ("n", ["n-c0", "n-c1", "n-r0", "n-r1"])
    assert lit(run) == LIT
    name_of = {
        node["ip"]: node["gpu"] for node in run.api.get("/v1/planes/n").json()["nodes"]
    }
    for gpu in NODES:
        peers = status(run, gpu)["peers"]
        held = {
            name_of[ip]: (way["port"], way["wavelength"]) for ip, way in peers.items()
        }
        assert held == {
            peer: (way["port"], way["wavelength"])
            for peer, way in plan["maps"][gpu].items()
        }
    assert refusal(run, ranks=["n0", "n1"]) == (
        409,
        "rank 0: GPU n0 is reserved by job red",
    )
    assert run.lightpaths() == set(), "light before anybody sends"
    run.release(red)
    seen = {
        (source, to, wavelength, 1)
        for lit in LIT.values()
        for source, to, wavelength in lit
    }
    assert run.lightpaths(1.2) == seen
    run.wait_state(red, "SUCCEEDED")
    assert len({e["parameters_sha256"] for e in run.events(red, "done")}) == 1
    assert len(run.events(red, "iteration")) == 120
    run.assert_all_light_arrived(before, red)
    flows = run.api.get("/v1/onics/n0/flows").json()["flows"]
    assert {flow["port"] for flow in flows} == {0, 1}
    run.wait(lambda: not lit(run), "the light stayed on")
    assert {status(run, gpu)["job"] for gpu in NODES} == {None}


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"gpus": 3}, 422, "3 nodes do not make a rectangle in grid n of 2 × 2"),
        ({"ranks": ["n0", "n3"]}, 422, "(n0, n3) share neither row nor column"),
        ({"gpus": 4, "collective": "ring"}, 422, "ranks 1 and 2 (n1, n2)"),
        ({"gpus": 2, "plane": "m"}, 422, "there is no plane m"),
    ],
)
def test_what_the_grid_cannot_carry_is_refused(
    run: Run, body: dict[str, Any], code: int, said: str
) -> None:
    found, detail = refusal(run, **body)
    assert found == code
    assert said in detail


def test_two_jobs_in_one_row_each_have_their_own_light(run: Run) -> None:
    before = run.light_lost()
    red, blue = (
        submit(run, "red", ranks=["n0", "n2"], gpus=None),
        submit(run, "blue", gpus=2),
    )
    for job in (red, blue):
        run.wait_state(job, "READY")
    both = {"n-c0": LIT["n-c0"], "n-c1": LIT["n-c1"]}
    assert lit(run) == both
    # What is about circuits has no say in a grid's light.
    assert run.api.post("/v1/regroup", json={"jobs": [red]}).status_code == 422
    assert run.api.post("/v1/regroup", json={"dry_run": True}).json()["jobs"] == []
    assert run.api.put("/v1/circuits", json={"circuits": []}).json()["problems"] == []
    assert lit(run) == both
    run.release(red)
    run.wait_state(red, "SUCCEEDED")
    run.wait(
        lambda: lit(run) == {"n-c1": LIT["n-c1"]}, "red's light stayed, or blue's went"
    )
    run.release(blue)
    run.wait_state(blue, "SUCCEEDED")
    run.assert_all_light_arrived(before, red, blue)


def test_training_goes_on_without_a_controller_and_a_new_one_changes_nothing(
    run: Run,
) -> None:
    lost = run.light_lost()
    # Long enough to outlast the start of a controller on a busy machine.
    red = submit(run, "red", iterations=150, compute_s=0.05)
    run.wait_state(red, "READY")
    run.release(red)
    run.wait(lambda: run.events(red, "iteration"), "no iterations")
    before = {gpu: status(run, gpu) for gpu in NODES}
    run.kill_controller()
    worker = run.state / "workers" / f"{red}-0" / "events.jsonl"

    def iterations() -> int:
        return sum(
            json.loads(x)["event"] == "iteration"
            for x in worker.read_text().splitlines()
        )

    had = iterations()
    run.wait(lambda: iterations() >= had + 10, "training stopped with the controller")
    run.start_controller()
    assert run.job(red)["state"] == "RUNNING"
    assert lit(run) == LIT
    for gpu in NODES:
        after = status(run, gpu)
        for key in ("epoch", "job", "map_version", "peers"):
            assert after[key] == before[gpu][key]
    run.wait_state(red, "SUCCEEDED")
    assert len(run.events(red, "iteration")) == 4 * 150
    run.assert_all_light_arrived(lost, red)
    log = (run.state / "controller.log").read_text()
    assert "repaired" not in log


def test_a_spare_takes_the_light_of_a_lost_gpu(run: Run) -> None:
    red = submit(
        run, "red", ranks=["n0", "n1"], gpus=None, iterations=60, on_loss="swap"
    )
    run.wait_state(red, "READY")
    run.release(red)
    run.wait(lambda: len(run.events(red, "iteration")) > 10, "no iterations")
    with FaultClient.of_inventory(run.state / "inventory.json") as faults:
        fault = faults.lose("gpu n1")
        run.wait(
            lambda: run.job(red)["losses"] and run.job(red)["state"] == "RUNNING",
            "red does not go on",
        )
        # n3 shares neither row nor column with n0.
        assert [rank["gpu"] for rank in run.job(red)["ranks"]] == ["n0", "n2"]
        assert lit(run) == {"n-c0": LIT["n-c0"]}
        assert status(run, "n1")["job"] is None
        job = run.wait_state(red, "SUCCEEDED")
        faults.restore("gpu n1")
        run.wait(lambda: faults.fault(fault).state == "over", "n1 is not back")
    spec = {
        "job": red,
        "rank": 0,
        "world_size": 2,
        "peers": ["10.0.0.1"] * 2,
        **job["spec"],
    }
    expected = train_in_one_process(parse_spec(spec))["parameters_sha256"]
    assert [event["parameters_sha256"] for event in run.events(red, "done")] == [
        expected
    ] * 2
    assert job["losses"][0]["iteration"] > 0

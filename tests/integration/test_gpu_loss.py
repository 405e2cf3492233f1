"""A GPU is lost while two jobs train: its job goes on from its newest state, and the other notices nothing.

Six GPUs of the disaggregation fabric, in jobs of three and two; the sixth is the spare.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ringlight.containers.worker.reference import Segment, train_in_one_process
from ringlight.containers.worker.spec import parse_spec
from ringlight.controller.web.client import http_client
from tests.fault_client import FaultClient
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

FABRIC: dict[str, Any] = {
    "servers": {
        f"s{i}": {"gpus": {f"g{2 * i}": "tesla-m40", f"g{2 * i + 1}": "tesla-m40"}}
        for i in range(3)
    },
    "packet_switches": {"tor0": {"ports": 4}, "tor1": {"ports": 4}},
    "optical_switches": {"ocs0": {"size": 12, "profile": "mems"}},
    "links": [
        *({"ends": [f"g{i}", f"ocs0:{i + 1}"], "rate": "10 Gbit/s"} for i in range(6)),
        *(
            {"ends": [f"tor0:{p}", f"ocs0:{6 + p}"], "rate": "10 Gbit/s"}
            for p in (1, 2, 3)
        ),
        *(
            {"ends": [f"tor1:{p}", f"ocs0:{9 + p}"], "rate": "10 Gbit/s"}
            for p in (1, 2, 3)
        ),
        {"ends": ["tor0:4", "tor1:4"], "rate": "1 Gbit/s"},
    ],
    "circuits": [[f"g{i}", f"tor{i // 3}:{i % 3 + 1}"] for i in range(6)],
}
RED, BLUE = ["g0", "g3", "g1"], ["g2", "g4"]
TRAIN = {
    "gradient_bytes": 96_400,
    "compute_s": 0.1,
    "iterations": 40,
    "batch": 28,
    "learning_rate": 0.05,
}


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with contextlib.closing(Run(FABRIC, request.param)) as run:
        yield run


@pytest.fixture
def faults(run: Run) -> Iterator[FaultClient]:
    """Every GPU that a test loses is back after it."""
    with FaultClient.of_inventory(run.state / "inventory.json") as client:
        yield client
        run.cancel_all()
        for fault in client.faults():
            if fault.state == "in force":
                client.restore(fault.target)
        run.wait(
            lambda: all(f.state != "in force" for f in client.faults()),
            "a GPU is not back",
        )


def going(run: Run, name: str, ranks: list[str], **more: Any) -> str:
    """A job that trains."""
    job = run.submit(name, ranks, **TRAIN | more)
    run.wait_state(job, "READY")
    run.release(job)
    run.wait(
        lambda: len(run.events(job, "iteration")) > 6 * len(ranks), "no iterations"
    )
    return job


def iterations(run: Run, job: str, attempt: int) -> list[dict[str, Any]]:
    workers = [
        f"{job}-{rank}" + (f"-r{attempt}" if attempt else "")
        for rank in range(len(RED))
    ]
    return [
        event for event in run.events(job, "iteration") if event["worker"] in workers
    ]


def exact(run: Run, job: str, ranks: int, *fewer: Segment) -> None:
    """All ranks ended with the parameters that one process computes."""
    document = run.wait_state(job, "SUCCEEDED")
    spec = {
        "job": job,
        "rank": 0,
        "world_size": ranks,
        "peers": ["10.0.0.1"] * ranks,
        **document["spec"],
    }
    expected = train_in_one_process(parse_spec(spec), [(ranks, 0), *fewer])
    done = run.events(job, "done")
    assert len(done) == len(document["ranks"])
    for event in done:
        assert {key: event[key] for key in expected} == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", ["namespace", "docker"], indirect=True)
def test_a_spare_takes_the_place_of_a_lost_gpu(run: Run, faults: FaultClient) -> None:
    blue = going(run, "blue", BLUE, iterations=100)
    red = going(run, "red", RED, on_loss="swap")
    assert (run.state / "workers" / f"{red}.checkpoint").is_dir()
    connections = {
        event["worker"]: event["connections"] for event in run.events(blue, "ready")
    }
    fault = faults.lose("gpu g3")
    run.wait(lambda: iterations(run, red, 1), "red does not go on")
    assert run.job(blue)["state"] == "RUNNING"
    document = run.job(red)
    assert [rank["gpu"] for rank in document["ranks"]] == ["g0", "g5", "g1"]
    (loss,) = document["losses"]
    assert loss["reason"] == "rank 1 on GPU g3 was killed by SIGKILL"
    exact(run, red, 3)
    exact(run, blue, 2)
    parted = {
        event["worker"]: event["connections"] for event in run.events(blue, "done")
    }
    assert parted == connections, "a connection of the other job was made anew"
    assert run.job(blue)["losses"] == []
    assert (run.state / "workers" / f"{red}-0" / "r1").is_dir(), (
        "a survivor's process did not stay"
    )
    first = loss["iteration"]
    again = iterations(run, red, 1)
    assert sorted({event["i"] for event in again}) == list(
        range(first, TRAIN["iterations"])
    )
    assert max(event["i"] for event in iterations(run, red, 0)) in (first - 1, first)
    run.wait(
        lambda: not (run.state / "workers" / f"{red}.checkpoint").exists(),
        "its states are left",
    )

    asked = faults.fault(fault).t_asked
    ended = max(event["allreduce_end"] for event in again if event["i"] == first)
    since = {
        "worker dead": loss["t_lost"],
        "rest stopped": loss["t_recovering"],
        "workers ready": max(event["t"] for event in run.events(red, "ready")),
        "released": loss["t_released"],
        f"end of iteration {first}": ended,
    }
    steps = ", ".join(f"{what} {t - asked:.2f} s" for what, t in since.items())
    sys.stderr.write(f"after the fault: {steps}\n")
    assert ended - asked < 20.0


@pytest.mark.parametrize("run", ["namespace"], indirect=True)
def test_without_a_spare_the_job_shrinks_and_then_fails(
    run: Run, faults: FaultClient
) -> None:
    blue = going(run, "blue", BLUE, on_loss="shrink", iterations=1000)
    red = going(run, "red", RED, on_loss="shrink", checkpoint_every=5)
    faults.kill(f"worker {red} 0")
    run.wait(lambda: iterations(run, red, 1), "red does not go on")
    faults.kill(f"worker {blue} 1")
    failed = run.wait_state(blue, "FAILED")["error"]
    assert (
        failed
        == "rank 1 on GPU g4 was killed by SIGKILL, and it cannot go on: one rank is too few"
    )
    (loss,) = run.job(red)["losses"]
    assert loss["ranks"] == ["g3", "g1"]
    assert loss["iteration"] % 5 == 0
    exact(run, red, 3, (2, loss["iteration"]))


@pytest.mark.parametrize("run", ["namespace"], indirect=True)
def test_gpus_are_lost_again_and_the_controller_dies_meanwhile(
    run: Run, faults: FaultClient
) -> None:
    red = going(run, "red", RED, on_loss="swap", spares=["g5", "g2"], iterations=60)
    spares = [run.state / "workers" / f"{red}-spare-{gpu}" for gpu in ("g2", "g5")]
    run.wait(
        lambda: all((spare / "orders").exists() for spare in spares),
        "nothing waits on the spares",
    )
    faults.lose("gpu g3")
    run.wait(lambda: run.job(red)["state"] == "RECOVERING", "not recovering")
    run.kill_controller()
    run.start_controller()
    run.wait(lambda: iterations(run, red, 1), "red does not go on")
    assert [rank["gpu"] for rank in run.job(red)["ranks"]] == ["g0", "g2", "g1"], (
        "all are on one switch"
    )
    faults.lose("gpu g2")
    run.wait(lambda: iterations(run, red, 2), "red does not go on")
    exact(run, red, 3)
    document = run.job(red)
    assert [rank["gpu"] for rank in document["ranks"]] == ["g0", "g5", "g1"]
    assert [(loss["gpu"], loss["spare"]) for loss in document["losses"]] == [
        ("g3", "g2"),
        ("g2", "g5"),
    ]
    told = [
        e["event"]
        for e in run.api.get(f"/v1/jobs/{red}/events").json()["events"]
        if "worker" not in e
    ]
    assert told == ["lost", "recovering", "recovered"] * 2
    assert [
        (spare / f"r{number}").is_dir() for number, spare in enumerate(spares, start=1)
    ] == [True, True]
    with http_client(run.processes.inventory["agent"], timeout_s=10.0) as agent:
        run.wait(
            lambda: (
                not [
                    host
                    for host in agent.get("/v1/hosts").json()
                    if host["kind"] == "worker"
                ]
            ),
            "workers are left",
        )

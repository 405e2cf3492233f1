"""Several clients of one controller: no change of light is lost, and GPUs are resources for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest

from tests.fault_client import FaultClient
from tests.integration.test_controller_jobs import Run
from tests.integration.test_gpu_loss import FABRIC

pytestmark = pytest.mark.root

ROUNDS = 20
CONFLICT = 409


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    with contextlib.closing(Run(FABRIC)) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with no job and the fabric's own circuits."""
    yield shared
    shared.cancel_all()
    answer = shared.api.put("/v1/circuits", json={"circuits": FABRIC["circuits"]})
    assert answer.status_code == 200, answer.text


def placed(document: dict[str, Any]) -> dict[str, str]:
    """The packet-switch port of each GPU, as an answer of ``GET /v1/circuits`` has it."""
    return {ends[0]: ends[1] for ends in (c["ends"] for c in document["circuits"])}


def swap(api: httpx.Client, one: str, other: str) -> str | None:
    """Read the circuits and put them with two GPUs changed. Return what a refusal said."""
    read = api.get("/v1/circuits")
    document = read.json()
    there = placed(document)
    names = {one: other, other: one}
    for circuit in document["circuits"]:
        gpu = circuit["ends"][0]
        circuit["ends"] = [gpu, there[names.get(gpu, gpu)]]
    answer = api.put(
        "/v1/circuits",
        json={"circuits": document["circuits"]},
        headers={"If-Match": read.headers["ETag"]},
    )
    if answer.status_code == CONFLICT:
        return str(answer.json()["detail"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["applied"]
    return None


def test_two_prologs_at_once_lose_no_update(run: Run) -> None:
    """In each round both read, then both put; who is refused reads who was quicker, and does it again."""
    together = Barrier(2, timeout=30)
    refusals: list[tuple[str, str]] = []

    def prolog(one: str, other: str) -> None:
        with httpx.Client(base_url=run.api.base_url, timeout=20) as api:
            for _ in range(ROUNDS):
                together.wait()
                while (refused := swap(api, one, other)) is not None:
                    refusals.append((one, refused))

    before = placed(run.api.get("/v1/circuits").json())
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(prolog, *gpus) for gpus in (("g0", "g3"), ("g1", "g4"))
        ]:
            done.result()
    # Each pair was swapped an even number of times, so an update that was lost would show.
    assert placed(run.api.get("/v1/circuits").json()) == before
    assert refusals
    for gpu, text in refusals:
        other = "g1" if gpu == "g0" else "g0"
        assert f"moved {other} from" in text


def test_twenty_clients_of_mixed_verbs(run: Run) -> None:
    """Each is refused or applied; the newest generation that was answered is that of the light."""

    def client(seed: int) -> int:
        draw, newest = random.Random(seed), 0
        with httpx.Client(base_url=run.api.base_url, timeout=60) as api:
            for _ in range(4):
                read = api.get("/v1/circuits").json()
                gpu = f"g{draw.randrange(6)}"
                if draw.random() < 0.5:
                    other = f"g{draw.randrange(6)}"
                    there = placed(read)
                    there[gpu], there[other] = there.get(other, ""), there.get(gpu, "")
                    body = [[name, port] for name, port in there.items() if port]
                    answer = api.put(
                        "/v1/circuits",
                        json={"circuits": body, "expect": read["generation"]},
                    )
                else:
                    tor = f"tor{draw.randrange(2)}"
                    answer = api.patch(
                        "/v1/circuits",
                        json={"add": [[gpu, tor]], "expect": read["generation"]},
                    )
                assert answer.status_code in (200, CONFLICT), answer.text
                if answer.status_code == CONFLICT:
                    text = answer.json()["detail"]
                    assert "moved g" in text or "has no free port" in text, text
                else:
                    newest = max(newest, answer.json()["generation"])
        return newest

    with ThreadPoolExecutor(20) as pool:
        newest = max(pool.map(client, range(20)))
    document = run.api.get("/v1/circuits").json()
    assert document["generation"] == newest > 0
    assert len(set(placed(document).values())) == len(document["circuits"])
    assert run.api.get("/v1/health").json()["status"] == "ok"


def test_the_answer_of_get_is_a_body_of_put(run: Run) -> None:
    document = run.api.get("/v1/circuits").json()
    again = run.api.put("/v1/circuits", json=document)
    assert again.status_code == 200, again.text
    assert run.api.get("/v1/circuits").json() == document
    # Its generation is what the change expects.
    assert swap(run.api, "g0", "g3") is None
    assert run.api.put("/v1/circuits", json=document).status_code == CONFLICT


def test_one_circuit_is_added_and_one_removed(run: Run) -> None:
    body = {"remove": [["g5", "tor1:3"]], "add": [["g2", "tor1"]]}
    answer = run.api.patch("/v1/circuits", json=body)
    assert answer.status_code == 200, answer.text
    there = placed(run.api.get("/v1/circuits").json())
    assert there["g2"] == "tor1:3"
    assert "g5" not in there
    full = run.api.patch("/v1/circuits", json={"add": [["g5", "tor1"]]})
    assert full.status_code == CONFLICT
    assert full.json()["detail"] == "add[0]: tor1 has no free port for g5"


def test_a_switchs_own_document_has_a_generation(run: Run) -> None:
    path = "/v1/optical-switches/ocs0/cross-connects"
    read = run.api.get(path)
    change = {"egress": read.json()[0]["egress"]}
    wrong = {"If-Match": '"1"'}
    answer = run.api.put(
        f"{path}/{read.json()[0]['ingress']}", json=change, headers=wrong
    )
    assert answer.status_code == CONFLICT
    right = {"If-Match": read.headers["ETag"]}
    answer = run.api.put(
        f"{path}/{read.json()[0]['ingress']}", json=change, headers=right
    )
    assert answer.status_code == 200, answer.text


def test_a_lost_gpu_is_lost_for_everybody(run: Run) -> None:
    def gpu(name: str) -> dict[str, Any]:
        return dict(run.api.get(f"/v1/gpus/{name}").json())

    assert gpu("g5") == gpu("g5") | {
        "state": "free",
        "attached": ["tor1:3"],
        "job": None,
    }
    with FaultClient(run.processes.inventory["agent"]) as faults:
        # Whoever breaks it: here not the controller.
        fault = faults.lose("gpu g5")
        run.wait(lambda: gpu("g5")["state"] == "lost", "g5 is not lost")
        assert run.api.get("/v1/health").json()["reasons"] == ["GPU g5 is lost"]
        circuits = run.api.get("/v1/circuits").json()["circuits"]
        assert [c["ends"][0] for c in circuits if c["lost"]] == ["g5"]
        edges = run.api.get("/v1/topology").json()["edges"]
        assert not [e for e in edges if "g5" in (e["from"], e["to"])]
        job = run.submit("red", ["g0", "g5"])
        failed = run.wait_state(job, "FAILED")
        assert failed["error"] == "not started: job red rank 1: GPU g5 is lost"
        refused = run.api.post("/v1/claims", json={"name": "red", "gpus": ["g5"]})
        assert refused.status_code == CONFLICT
        assert refused.json()["detail"] == "GPU g5 is lost"
        faults.restore("gpu g5")
        run.wait(lambda: faults.fault(fault).state == "over", "g5 is not back")
    run.wait(lambda: gpu("g5")["state"] == "free", "g5 is not free")
    told = [
        json.loads(line.removeprefix("data: "))
        for line in run.api.get("/v1/events?after=0&seconds=0.2").text.splitlines()
        if line.startswith("data: ") and '"event":"gpu"' in line.replace(" ", "")
    ]
    assert [(event["gpu"], event["lost"]) for event in told] == [
        ("g5", True),
        ("g5", False),
    ]


def test_an_idle_host_is_there_until_a_job_and_again_after_it(run: Run) -> None:
    answer = run.api.put("/v1/gpus/g0/host")
    assert answer.status_code == 200, answer.text
    host = answer.json()["host"]
    assert host["kind"] == "idle"
    assert Path(host["namespace"]).exists()
    job = run.submit("red", ["g0", "g1"], hold=False, iterations=2)
    run.wait_state(job, "SUCCEEDED")

    def idle() -> bool:
        now = run.api.get("/v1/gpus/g0").json()
        return now["host"] is not None and now["host"]["kind"] == "idle"

    run.wait(idle, "g0 has no idle host again", 10)
    assert run.api.put("/v1/gpus/nosuch/host").status_code == 404


def kinds(run: Run) -> dict[str, str | None]:
    """What is at each GPU's NIC."""
    gpus = run.api.get("/v1/gpus").json()
    return {gpu["name"]: (gpu["host"] or {}).get("kind") for gpu in gpus}


def test_all_gpus_have_idle_hosts_from_the_start_and_after_jobs() -> None:
    with contextlib.closing(Run(FABRIC, options=["--idle-hosts"])) as run:
        all_idle = dict.fromkeys((f"g{number}" for number in range(6)), "idle")
        assert kinds(run) == all_idle
        first = run.submit("red", ["g0", "g1"], hold=False, iterations=2)
        run.wait_state(first, "SUCCEEDED")
        run.wait(lambda: kinds(run) == all_idle, "not all are back", 10)
        # Neither a job that is cancelled nor a new controller leaves one without.
        second = run.submit("blue", ["g2", "g3"])
        run.wait_state(second, "READY")
        assert kinds(run)["g2"] == "worker"
        run.kill_controller()
        run.start_controller()
        run.cancel_all()
        run.wait(lambda: kinds(run) == all_idle, "not all are back", 10)
        gpu = run.api.get("/v1/gpus/g2").json()
        command = ["ip", "-n", Path(gpu["host"]["namespace"]).name, "-j", "addr"]
        found = subprocess.run(command, capture_output=True, timeout=10, check=True)
        assert gpu["ip"] in found.stdout.decode()


def claim(run: Run, name: str, *gpus: str, **more: Any) -> dict[str, Any]:
    answer = run.api.post("/v1/claims", json={"name": name, "gpus": list(gpus), **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.fixture
def claims(run: Run) -> Iterator[Run]:
    """The run, and no claim afterwards."""
    yield run
    for each in run.api.get("/v1/claims").json():
        if each["job"] is None:
            assert run.api.delete(f"/v1/claims/{each['name']}").status_code == 200


def switches(document: dict[str, Any]) -> set[str]:
    """The packet switches that a claim's GPUs are on."""
    return {
        port.partition(":")[0]
        for ports in document["attached"].values()
        for port in ports
    }


def test_claims_bring_gpus_together_two_at_a_time(claims: Run) -> None:
    """Each pair is on two packet switches; both are asked for at the same time, and keep what they get."""
    with ThreadPoolExecutor(2) as pool:
        red, blue = pool.map(
            lambda args: claim(claims, *args),
            (("red", "g0", "g3"), ("blue", "g1", "g4")),
        )
    for document in (red, blue):
        assert (document["state"], document["reason"]) == ("ACTIVE", None)
        now = claims.api.get(f"/v1/claims/{document['name']}").json()
        assert len(switches(now)) == 1
    # There already: nothing moves.
    assert claims.api.delete("/v1/claims/red").json()["state"] == "DEACTIVATING"
    assert claims.api.get("/v1/claims/red").status_code == 404
    generation = claims.api.get("/v1/circuits").json()["generation"]
    again = claim(claims, "red", "g0", "g3")
    assert (again["state"], again["fibres_moved"]) == ("ACTIVE", 0)
    assert again["generation"] == generation


def test_a_claim_that_a_switch_refuses_leaves_the_light(claims: Run) -> None:
    before = placed(claims.api.get("/v1/circuits").json())
    fault = claims.api.post(
        "/v1/optical-switches/ocs0/faults", json={"kind": "deny", "count": 1}
    )
    assert fault.is_success, fault.text
    failed = claim(claims, "red", "g0", "g3")
    assert (failed["state"], failed["undone"]) == ("FAILED", True)
    assert "ocs0" in failed["reason"]
    assert placed(claims.api.get("/v1/circuits").json()) == before
    # A failed claim holds nothing, and its name can be used again.
    assert claims.api.get("/v1/gpus/g0").json()["state"] == "free"
    assert claim(claims, "red", "g0", "g3")["state"] == "ACTIVE"


def test_jobs_and_claims_respect_each_other(claims: Run) -> None:
    claim(claims, "red", "g0", "g1")
    assert claims.api.get("/v1/gpus/g0").json()["claim"] == "red"
    body = {"gradient_bytes": 96400, "compute_s": 0.05, "iterations": 1}
    refused = claims.api.post(
        "/v1/jobs", json={"name": "blue", "ranks": ["g2", "g0"], **body}
    )
    assert (refused.status_code, refused.json()["detail"]) == (
        CONFLICT,
        "rank 1: GPU g0 is reserved by claim red",
    )
    refused = claims.api.post("/v1/jobs", json={"name": "blue", "gpus": 5, **body})
    assert refused.status_code == CONFLICT, refused.text
    job = claims.submit("blue", ["g2", "g3"])
    claims.wait_state(job, "READY")
    refused = claims.api.post("/v1/claims", json={"name": "green", "gpus": ["g2"]})
    assert refused.status_code == CONFLICT, refused.text
    # Two are left; the claim gets these.
    assert set(claim_of(claims, count=2)["gpus"]) == {"g4", "g5"}
    kept = claims.api.delete("/v1/claims/blue")
    assert (kept.status_code, kept.json()["detail"]) == (
        CONFLICT,
        "claim blue belongs to a job; cancel the job",
    )
    shown = {c["name"]: c["job"] for c in claims.api.get("/v1/claims").json()}
    assert shown == {"red": None, "green": None, "blue": job}


def claim_of(run: Run, count: int) -> dict[str, Any]:
    answer = run.api.post("/v1/claims", json={"name": "green", "count": count})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_claim_is_degraded_by_a_lost_gpu_and_kept_over_a_restart(claims: Run) -> None:
    def state() -> tuple[str, str | None]:
        now = claims.api.get("/v1/claims/red").json()
        return now["state"], now["reason"]

    claim(claims, "red", "g0", "g3")
    with FaultClient(claims.processes.inventory["agent"]) as faults:
        faults.lose("gpu g3")
        claims.wait(
            lambda: state() == ("ACTIVE_DEGRADED", "GPU g3 is lost"), "not degraded"
        )
        claims.kill_controller()
        claims.start_controller()
        claims.wait(
            lambda: state() == ("ACTIVE_DEGRADED", "GPU g3 is lost"), "not degraded"
        )
        faults.restore("gpu g3")
        claims.wait(lambda: state() == ("ACTIVE", None), "not active")
    assert len(switches(claims.api.get("/v1/claims/red").json())) == 1


def slowed(run: Run, seconds: float) -> None:
    """The next fibre is tuned so much later than usual."""
    body = {"kind": "slow", "seconds": seconds, "count": 1}
    answer = run.api.post("/v1/optical-switches/ocs0/faults", json=body)
    assert answer.is_success, answer.text


def mirrors(run: Run) -> str:
    """The cross-connects that the switch itself reports, without the controller."""
    address = run.processes.inventory["optical_switches"]["ocs0"]["address"]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as scpi:
        scpi.sendall(b":oxc:swit:conn:stat?\n")
        return scpi.makefile().readline()


def test_a_claim_whose_controller_dies_while_light_moves_is_active_after_it(
    claims: Run,
) -> None:
    slowed(claims, 2.0)
    made = claim(claims, "red", "g0", "g3", wait_s=0.0)
    assert made["state"] == "ACTIVATING"
    # Its change has begun by then, and goes on for longer.
    time.sleep(0.7)
    claims.kill_controller()
    claims.start_controller()
    now = claims.api.get("/v1/claims/red").json()
    assert (now["state"], now["reason"]) == ("ACTIVE", None)
    assert len(switches(now)) == 1
    assert claims.api.get("/v1/gpus/g3").json()["claim"] == "red"
    assert claims.api.get("/v1/health").json()["reasons"] == []


def test_light_and_claims_stay_while_the_controller_stands_still(claims: Run) -> None:
    before = claim(claims, "red", "g0", "g3")
    lit = mirrors(claims)
    controller = claims.processes.read_inventory()["processes"]["controller"]["pid"]
    os.kill(controller, signal.SIGSTOP)
    try:
        time.sleep(2.0)
        assert mirrors(claims) == lit
    finally:
        os.kill(controller, signal.SIGCONT)
    assert claims.api.get("/v1/claims/red").json() == before
    # A change that stands still with the controller is completed after it.
    slowed(claims, 1.0)
    assert claim(claims, "blue", "g1", "g4", wait_s=0.0)["state"] == "ACTIVATING"
    time.sleep(0.3)
    os.kill(controller, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(controller, signal.SIGCONT)

    def blue() -> bool:
        return bool(claims.api.get("/v1/claims/blue").json()["state"] == "ACTIVE")

    claims.wait(blue, "blue is not active", 20)
    now = claims.api.get("/v1/claims/red").json()
    assert (now["state"], now["attached"]) == ("ACTIVE", before["attached"])


COPPER: dict[str, Any] = {
    **FABRIC,
    "servers": {**FABRIC["servers"], "s3": {"gpus": {"g6": "tesla-m40"}}},
    "packet_switches": {"tor0": {"ports": 5}, "tor1": {"ports": 4}},
    "links": [*FABRIC["links"], {"ends": ["g6", "tor0:5"], "rate": "10 Gbit/s"}],
}


def test_a_gpu_that_is_cabled_to_a_packet_switch_is_attached() -> None:
    with contextlib.closing(Run(COPPER)) as run:
        gpu = run.api.get("/v1/gpus/g6").json()
        assert (gpu["state"], gpu["attached"]) == ("free", ["tor0:5"])
        circuits = run.api.get("/v1/circuits").json()["circuits"]
        assert "g6" not in {end for circuit in circuits for end in circuit["ends"]}
        # Light brings the others to it.
        made = claim(run, "red", "g6", "g3")
        assert (made["state"], made["reason"]) == ("ACTIVE", None)
        assert switches(made) == {"tor0"}
        assert made["attached"]["g6"] == ["tor0:5"]
        # Without a job there is nothing to regroup, and it is said at once.
        regrouped = run.api.post("/v1/regroup", json={}).json()
        assert (regrouped["state"], regrouped["unchanged"]) == (
            "DONE",
            "no job runs on packet switches",
        )
        text = run.api.get("/metrics").text
        assert 'ringlight_claims{state="ACTIVE"} 1.0' in text
        assert "ringlight_lost_gpus 0.0" in text

"""Jobs of real workers under the real server agent, driven through the controller's REST API."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlight.testbed.addresses import Addresses
from ringlight.testbed.faults import FaultClient
from ringlight.testbed.processes import LabProcesses
from ringlight.workloads.graph import Collective, Split
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.integration.controller_rig import FABRIC, free_port

pytestmark = pytest.mark.root

WAIT_S = 60.0
#: Ranks alternate between the packet switches, so that all of the ring crosses.
SPREAD = ["g0", "g2"]
TRAIN = {
    "gradient_bytes": 96400,
    "compute_s": 0.05,
    "iterations": 10,
    "seed": 7,
    "hold": True,
}


LIGHT_LOST = (
    "collisions",
    "receiver_overlaps",
    "misdirected",
    "dark_drops",
    "unset_drops",
)


class Run:
    """A testbed process and a controller process; ``runtime`` is that of the workers, ``options``: further
    ones of the testbed."""

    def __init__(
        self,
        fabric: dict[str, Any] = FABRIC,
        runtime: str = "namespace",
        options: Sequence[str] = (),
    ) -> None:
        self.rest = free_port()
        addresses = Addresses(f"127.0.0.1:{self.rest}", f"127.0.0.1:{free_port()}")
        self.processes = LabProcesses(
            fabric, runtime, addresses, ["--payload-scale", "100", *options]
        )
        self.lab, self.state = self.processes.lab, self.processes.state
        self.api = httpx.Client(
            base_url=f"http://{addresses.rest}", timeout=20.0, trust_env=False
        )
        self.processes.start()

    def kill_controller(self) -> None:
        """It stays away until :meth:`start_controller`."""
        self._fault(lambda faults: faults.kill("controller"), "in force")

    def start_controller(self) -> None:
        """Again, once it was killed."""
        self._fault(lambda faults: faults.restore("controller"), "over")
        self.processes.wait_healthy()

    def _fault(self, ask: Callable[[FaultClient], str], state: str) -> None:
        with FaultClient(self.processes.inventory["agent"]) as faults:
            fault = ask(faults)
            self.wait(
                lambda: faults.fault(fault).state == state, f"{fault} is not {state}"
            )

    def logs(self) -> str:
        return " | ".join(path.read_text()[-1500:] for path in self.state.glob("*.log"))

    def wait(self, condition: Any, complaint: str, timeout_s: float = WAIT_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{complaint}: {self.logs()}"
            time.sleep(0.05)
        return value

    def light_lost(self) -> dict[str, int]:
        """What no correct run may count on its wavelengths: packets lost since the testbed began."""
        totals = self.api.get("/v1/light-counters").json()["totals"]
        return {name: totals[name] for name in LIGHT_LOST}

    def assert_all_light_arrived(self, before: dict[str, int], *jobs: str) -> None:
        """While these jobs trained no light met other light, and only bytes that had arrived met the dark.

        A flow ends when all of it is acknowledged. What TCP sent again needlessly, as on a machine that
        stood still for a while, may wait at the port until then and finds the laser dark. That is rare;
        light that comes late or goes early loses something in every flow.
        """
        after = self.light_lost()
        assert after | {"dark_drops": before["dark_drops"]} == before
        sent_again = sum(
            event["retransmits"] for job in jobs for event in self.events(job, "done")
        )
        flows = sum(
            event["flows"] for job in jobs for event in self.events(job, "iteration")
        )
        assert flows
        assert after["dark_drops"] - before["dark_drops"] <= min(
            sent_again, flows // 10
        )

    def submit(self, name: str, ranks: list[str], **more: Any) -> str:
        answer = self.api.post(
            "/v1/jobs", json={"name": name, "ranks": ranks, **TRAIN, **more}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.api.get(f"/v1/jobs/{job}").json())

    def wait_state(
        self, job: str, state: str, timeout_s: float = WAIT_S
    ) -> dict[str, Any]:
        def there() -> bool:
            now = self.job(job)
            ended = now["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
            assert not ended or now["state"] == state, now
            return bool(now["state"] == state)

        self.wait(there, f"{job} is not {state}", timeout_s)
        return self.job(job)

    def release(self, *jobs: str) -> None:
        answer = self.api.post(
            "/v1/jobs/release", json={"jobs": list(jobs), "delay_s": 0.1}
        )
        assert answer.status_code == 200, answer.text

    def events(self, job: str, kind: str) -> list[dict[str, Any]]:
        events = self.api.get(f"/v1/jobs/{job}/events").json()["events"]
        return [event for event in events if event["event"] == kind]

    def lightpaths(self, seconds: float = 0.3) -> set[tuple[str, str, int | None, int]]:
        """All that the stream tells meanwhile of which GPU has light to which."""
        answer = self.api.get(f"/v1/events?rates=true&seconds={seconds}")
        told = [
            line.removeprefix("data: ")
            for line in answer.text.splitlines()
            if '"lightpaths"' in line
        ]
        return {
            tuple(one)
            for line in told
            for one in json.loads(line).get("lightpaths", [])
        }

    def worker_pid(self, worker: str) -> int:
        """The process that runs in a worker's directory."""
        wanted = self.state / "workers" / worker
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink() == wanted:
                    return int(entry.name)
        raise AssertionError(f"no process of worker {worker}")

    def cancel_all(self) -> None:
        for job in self.api.get("/v1/jobs").json():
            self.api.delete(f"/v1/jobs/{job['id']}")

    def close(self) -> None:
        self.api.close()
        self.processes.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    with contextlib.closing(Run()) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with no job going on and the fabric's own circuits lit."""
    answer = shared.api.put("/v1/circuits", json={"circuits": FABRIC["circuits"]})
    assert answer.status_code == 200, answer.text
    yield shared
    shared.cancel_all()


def test_two_jobs_train_side_by_side(run: Run) -> None:
    red, blue = run.submit("red", SPREAD), run.submit("blue", ["g1", "g3"])
    refused = run.api.post("/v1/jobs", json={"name": "third", "ranks": ["g1"], **TRAIN})
    assert refused.status_code == 409
    assert "GPU g1 is reserved by job blue" in refused.json()["detail"]
    too_big = run.api.post("/v1/jobs", json={"name": "third", "gpus": 5, **TRAIN})
    assert too_big.status_code == 422
    assert too_big.json()["detail"] == "5 GPUs are requested; the fabric has 4"
    for job in (red, blue):
        run.wait_state(job, "READY")
    run.release(red, blue)
    for job in (red, blue):
        run.wait_state(job, "SUCCEEDED")
        assert len({e["parameters_sha256"] for e in run.events(job, "done")}) == 1
        assert len(run.events(job, "iteration")) == 20
    starts = [e["t"] for job in (red, blue) for e in run.events(job, "started")]
    assert max(starts) - min(starts) < 1.0, "the jobs were not released together"


def test_a_graph_is_executed_over_the_fabric(run: Run) -> None:
    """Streams of each rank side by side: an all-reduce, exchanges of pairs, messages round a ring."""
    book = Book()
    everybody, pairs = book.group(range(4)), [book.group((0, 2)), book.group((1, 3))]
    writer = Writer(book)
    layer = writer.compute("layer", seconds=0.05)
    reduced = writer.collective(
        "gradients",
        Collective("all-reduce", "halving-doubling"),
        400_000,
        0,
        stream="dp",
        after=[layer],
    )
    skewed = Collective("all-to-all-v", split=Split(seed=7, skew=1.2))
    writer.collective("tokens", skewed, 200_000, 1, stream="ep", after=[layer])
    writer.send("activations", 100_000, 0, stream="out", after=[layer])
    came = writer.receive("activations", 100_000, 1, stream="in")
    writer.compute("update", seconds=0.02, after=[reduced, came])
    slots = [[everybody, pairs[rank % 2]] for rank in range(4)]
    peers = [[(rank + 1) % 4, (rank - 1) % 4] for rank in range(4)]
    packed = pack(book.workload("graph", [writer.done()], [0] * 4, slots, peers))
    digest = hashlib.sha256(packed).hexdigest()
    kind = {"content-type": "application/octet-stream"}
    answer = run.api.put(f"/v1/workloads/{digest}", content=packed, headers=kind)
    assert answer.status_code == 200, answer.text
    assert run.api.get(f"/v1/workloads/{digest}").json() == answer.json()
    wanted = {
        "name": "graph",
        "ranks": ["g0", "g1", "g2", "g3"],
        "workload": "graph",
        "graph": digest,
    }
    answer = run.api.post(
        "/v1/jobs", json={**wanted, "iterations": 5, "hold": True, "slower": {"2": 2.0}}
    )
    assert answer.status_code == 201, answer.text
    run.wait_state("graph", "READY")
    run.release("graph")
    run.wait_state("graph", "SUCCEEDED")
    for done in run.events("graph", "done"):
        assert done["results_checked"] >= 5 * 3
    iterations = run.events("graph", "iteration")
    assert sorted((event["rank"], event["i"]) for event in iterations) == [
        (rank, i) for rank in range(4) for i in range(5)
    ]
    for event in iterations:
        computed_s = event["compute_end"] - event["compute_start"]
        assert computed_s == pytest.approx(
            0.14 if event["rank"] == 2 else 0.07, abs=1e-3
        )
        # The update waits for the sum, and so for the straggler's layer.
        assert event["allreduce_end"] - event["compute_start"] >= 0.1 + 0.02 - 0.01
    refused = run.api.post(
        "/v1/jobs", json={**wanted, "ranks": ["g0", "g1"], "iterations": 1}
    )
    assert refused.status_code == 422
    assert refused.json()["detail"] == "graph: it is for 4 ranks, and the job has 2"


def test_regroup_while_training_keeps_every_worker(run: Run) -> None:
    red = run.submit("red", SPREAD, iterations=40)
    blue = run.submit("blue", ["g1", "g3"], iterations=40)
    for job in (red, blue):
        run.wait_state(job, "READY")
    dry = run.api.post("/v1/regroup", json={"dry_run": True}).json()
    assert dry["state"] == "PLANNED"
    assert dry["plan"]["crossing_bytes_before"] > 0
    assert dry["plan"]["crossing_bytes_after"] == 0
    assert dry["plan"]["fibres_moved"] == len(dry["plan"]["moves"]) == 2
    for entry in dry["plan"]["predicted"]:
        assert entry["after_s"] < entry["before_s"]
    assert len(run.api.get("/v1/circuits").json()["circuits"]) == 4

    run.release(red, blue)
    run.wait(lambda: len(run.events(red, "iteration")) > 8, "no iterations")
    made = run.api.post("/v1/regroup", json={}).json()
    assert made["state"] == "APPLYING"
    ended = run.wait(
        lambda: (
            (r := run.api.get(f"/v1/regroup/{made['id']}").json())["state"]
            != "APPLYING"
            and r
        ),
        "the regrouping did not end",
    )
    assert (ended["state"], ended["error"]) == ("DONE", None)
    assert [p["phase"] for p in ended["timeline"]][-1] == "ended"
    lit = {frozenset(c["ends"]) for c in run.api.get("/v1/circuits").json()["circuits"]}
    assert lit == {frozenset(pair) for pair in dry["plan"]["circuits"]}
    for job in (red, blue):
        run.wait_state(job, "SUCCEEDED")
        done = run.events(job, "done")
        assert len({e["parameters_sha256"] for e in done}) == 1
        ready = {e["worker"]: e["connections"] for e in run.events(job, "ready")}
        assert {e["worker"]: e["connections"] for e in done} == ready, (
            "a connection was made anew"
        )
    again = run.api.post("/v1/regroup", json={"jobs": [red]})
    assert again.status_code == 409
    assert red in again.json()["detail"]


def test_a_killed_worker_fails_its_job_within_5_s_and_the_other_goes_on(
    run: Run,
) -> None:
    red = run.submit("red", SPREAD, iterations=400)
    blue = run.submit("blue", ["g1", "g3"], iterations=30)
    for job in (red, blue):
        run.wait_state(job, "READY")
    run.release(red, blue)
    run.wait(lambda: run.events(red, "iteration"), "no iterations")
    os.kill(run.worker_pid(f"{red}-1"), signal.SIGKILL)
    killed = time.monotonic()
    job = run.wait_state(red, "FAILED", timeout_s=5.0)
    assert job["error"] == "rank 1 on GPU g2 was killed by SIGKILL"
    assert job["t_ended"] - killed < 5.0
    assert run.wait_state(blue, "SUCCEEDED")["error"] is None


def test_jobs_go_on_when_the_controller_is_killed_and_started_again(run: Run) -> None:
    red = run.submit("red", SPREAD, iterations=60)
    run.wait_state(red, "READY")
    run.release(red)
    run.wait(lambda: run.events(red, "iteration"), "no iterations")
    run.kill_controller()
    run.start_controller()
    assert run.job(red)["state"] in ("RUNNING", "SUCCEEDED")
    run.wait_state(red, "SUCCEEDED")
    assert len(run.events(red, "iteration")) == 120


def test_a_job_that_is_not_held_runs_and_can_be_cancelled(run: Run) -> None:
    red = run.submit("red", ["g0"], hold=False, iterations=1000)
    run.wait_state(red, "RUNNING")
    assert run.api.delete(f"/v1/jobs/{red}").json()["state"] == "CANCELLED"
    assert run.job(red)["state"] == "CANCELLED"

"""What a run asks of the controller, through the REST API, each with a deadline and read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.backends.emulation.processes import LabProcesses
from experiments.backends.protocol import BackendError
from experiments.client import ApiError, Unreachable
from fabric.topology import canonical

#: Deadlines in seconds: containers up and connected, a regroup, GPUs free again, an answer after trouble.
READY_S, REGROUP_S, FREE_S, ANSWER_S = 60.0, 60.0, 30.0, 15.0
#: A worker waits so long for its peers, seconds: on a busy machine the NICs of a job's containers come up one
#: after another, and whoever waits for the job should hear from it which rank is missing.
CONNECT_S = 45.0
#: Seconds from the release call to the common start.
RELEASE_DELAY_S = 0.3
#: States in which a job has ended.
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

Circuits = Sequence[tuple[str, str]]


def rank_of(event: Mapping[str, Any]) -> int:
    """Rank of the worker that an event is from."""
    return int(event["rank"]) if "rank" in event else int(str(event["worker"]).rsplit("-", 1)[1])


class Session:
    """Calls to one controller. Methods raise BackendError, one line, where something did not come about."""

    def __init__(self, processes: LabProcesses) -> None:
        self.processes = processes
        self.api = processes.api

    def get(self, path: str, **query: Any) -> Any:
        """GET, tried again while the controller is being started again."""
        return self.ask(lambda: self.api.get(path, **query))

    def ask(self, call: Callable[[], Any]) -> Any:
        """``call()``, tried again while the controller is being started again."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                return call()
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                self.processes.tend()
                time.sleep(0.1)

    def set_circuits(self, circuits: Circuits) -> None:
        """Light exactly these circuits and read them back. Raises BackendError where they do not stand."""
        answer = self.api.put("/v1/circuits", {"circuits": [list(c) for c in circuits], "dry_run": False})
        lit = self.lit_circuits()
        if lit != canonical(circuits):
            missing = [f"{a}-{b}" for a, b in canonical(circuits) if (a, b) not in lit]
            problems = answer.get("problems") or [f"missing {', '.join(missing) or 'none, but more is lit'}"]
            raise BackendError(f"circuits do not stand as asked: {problems[0]}")

    def lit_circuits(self) -> list[tuple[str, str]]:
        answer = self.api.get("/v1/circuits")
        entries = answer["circuits"] if isinstance(answer, dict) else answer
        return canonical(e["ends"] if isinstance(e, dict) else e for e in entries)

    def submit(self, request: Mapping[str, Any]) -> str:
        """Submit a job; waits for GPUs that the run before is still giving back."""
        deadline = time.monotonic() + FREE_S
        while True:
            try:
                return str(self.api.post("/v1/jobs", request)["id"])
            except ApiError as error:
                if error.status != 409 or time.monotonic() > deadline:
                    raise BackendError(f"job {request['name']}: {error}") from None
                time.sleep(0.05)

    def wait_ready(self, ids: Mapping[str, str]) -> None:
        deadline = time.monotonic() + READY_S
        waiting = dict(ids)
        while waiting:
            for name, job_id in list(waiting.items()):
                job = self.api.get(f"/v1/jobs/{job_id}")
                if job["state"] == "READY":
                    del waiting[name]
                elif job["state"] in ENDED:
                    raise BackendError(f"job {name} {job['state'].lower()}: {job['error']}")
            if waiting and time.monotonic() > deadline:
                raise BackendError(f"job {', '.join(waiting)} was not ready after {READY_S:.0f} s")
            self.processes.check()
            time.sleep(0.03)

    def release(self, ids: Iterable[str]) -> float:
        """Release jobs together; the common start (CLOCK_MONOTONIC seconds)."""
        ids = list(ids)
        self.api.post("/v1/jobs/release", {"jobs": ids, "delay_s": RELEASE_DELAY_S})
        return float(self.api.get(f"/v1/jobs/{ids[0]}")["t_released"])

    def begin_regroup(self, ids: Iterable[str]) -> str:
        return str(self.api.post("/v1/regroup", {"jobs": list(ids), "dry_run": False})["id"])

    def regroup_done(self, regroup_id: str) -> dict[str, Any] | None:
        """The regroup resource once it has ended well, else None. Raises BackendError when it failed."""
        found: dict[str, Any] = self.api.get(f"/v1/regroup/{regroup_id}")
        if found["state"] == "FAILED":
            raise BackendError(f"{regroup_id} failed: {found.get('error')}")
        return found if found["state"] not in ("PLANNED", "APPLYING") else None

    def wait_ended(self, ids: Mapping[str, str], patience_s: float) -> list[str]:
        """Wait until all jobs have ended; one line for each that did not succeed."""
        deadline = time.monotonic() + patience_s
        failures = []
        left = dict(ids)
        while left:
            for name, job_id in list(left.items()):
                job = self.get(f"/v1/jobs/{job_id}")
                if job["state"] in ENDED:
                    del left[name]
                    if job["state"] != "SUCCEEDED":
                        failures.append(f"job {name} {job['state'].lower()}: {job['error']}")
            if left and time.monotonic() > deadline:
                raise BackendError(f"job {', '.join(left)} had not ended after {patience_s:.0f} s")
            time.sleep(0.05)
        return failures

"""A job's states, reservation of GPUs, and the job manager with an agent that follows a script."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.worker.spec import parse_spec
from ringlight.controller.bus import EventBus
from ringlight.controller.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.job import (
    CAUSE_GRACE_S,
    FROM_ALL,
    TRANSITIONS,
    Job,
    JobState,
    Rank,
    note_event,
    note_workers,
    progress,
)
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import (
    CLAIM,
    JOB,
    Holder,
    Reservations,
    reserve,
)
from ringlight.controller.jobs.worker_settings import guest_request, worker_spec
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.store import Store
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.unit.test_controller_rules import FABRIC
from tests.unit.workloads import put

GPUS = ("g0", "g1", "g2", "g3", "g4", "g5")
BLUE = Holder(JOB, "blue")
SWITCHES = {
    "g0": "tor0",
    "g1": "tor0",
    "g2": "tor0",
    "g3": "tor1",
    "g4": "tor1",
    "g5": None,
}


def make_job(size: int = 3) -> Job:
    ranks = [Rank(i, f"g{i}") for i in range(size)]
    return Job(
        "red",
        "red",
        ranks,
        {},
        hold=True,
        t_submitted=0.0,
        state=JobState.STARTING,
        started=True,
    )


def say(job: Job, rank: int, event: str, t: float = 1.0, **more: Any) -> None:
    note_event(
        job, {"t": t, "event": event, "job": job.id, "worker": job.worker(rank), **more}
    )


def workers(job: Job, **exited: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The agent's list; ``r1={...}`` says how rank 1 exited, the others run."""
    found = {}
    for rank in job.ranks:
        gone = exited.get(f"r{rank.rank}")
        state = {"state": "running"} if gone is None else {"state": "exited", **gone}
        found[job.worker(rank.rank)] = state
    return found


def test_ready_needs_every_rank_and_started_means_running() -> None:
    job = make_job()
    for rank in (0, 1):
        say(job, rank, "ready")
    note_workers(job, workers(job))
    assert progress(job, 1.0) is JobState.STARTING
    say(job, 2, "ready")
    assert progress(job, 1.0) is JobState.READY
    job.state = JobState.READY
    say(job, 0, "started")
    assert progress(job, 1.0) is JobState.RUNNING


def test_a_job_goes_only_the_ways_of_the_page() -> None:
    assert set(TRANSITIONS) | {
        end for after in TRANSITIONS.values() for end in after
    } | set(FROM_ALL) == set(JobState)
    for before, after in itertools.product(JobState, JobState):
        job = make_job()
        job.state = before
        if not before.ended and after in {**TRANSITIONS[before], **FROM_ALL}:
            job.enter(after, 7.0)
            assert (job.state, job.t_ended) == (after, 7.0 if after.ended else None)
        else:
            with pytest.raises(
                ValueError, match=f"job red: no way leads from {before} to {after}"
            ):
                job.enter(after, 7.0)


def test_success_needs_every_exit_code_and_waits_for_the_last_words() -> None:
    job = make_job(2)
    job.state = JobState.RUNNING
    say(job, 0, "done")
    note_workers(job, workers(job, r0={"exit_code": 0}, r1={"exit_code": 0}))
    assert progress(job, 1.0) is JobState.RUNNING
    say(job, 1, "done")
    assert progress(job, 1.1) is JobState.SUCCEEDED


def test_the_cause_is_named_and_not_its_consequences() -> None:
    job = make_job()
    job.state = JobState.RUNNING
    say(job, 2, "failed", t=4.0, reason="connection reset", peer=1)
    note_workers(job, workers(job, r2={"exit_code": 3}))
    assert progress(job, 5.0) is JobState.RUNNING, (
        "the cause may come later than the consequence"
    )
    note_workers(
        job,
        workers(
            job,
            r0={"exit_code": 3},
            r1={"exit_code": 137, "signal": 9},
            r2={"exit_code": 3},
        ),
    )
    assert progress(job, 5.5) is JobState.FAILED
    assert job.error == "rank 1 on GPU g1 was killed by SIGKILL"


def test_an_own_failure_is_the_cause_even_if_it_left_no_word() -> None:
    job = make_job()
    job.state = JobState.RUNNING
    say(job, 0, "failed", t=4.0, reason="connection reset", peer=1)
    note_workers(job, workers(job, r0={"exit_code": 3}, r1={"exit_code": 1}))
    assert progress(job, 5.0) is JobState.FAILED
    assert job.error == "rank 1 on GPU g1 ended with exit code 1"


def test_without_a_cause_the_first_to_complain_is_named_after_the_grace() -> None:
    job = make_job()
    job.state = JobState.RUNNING
    say(job, 0, "failed", t=4.2, reason="no byte for 15 s", peer=2)
    say(job, 1, "failed", t=4.1, reason="no byte for 15 s", peer=0)
    note_workers(job, workers(job, r0={"exit_code": 3}, r1={"exit_code": 3}))
    assert progress(job, 5.0) is JobState.RUNNING
    assert progress(job, 5.1 + CAUSE_GRACE_S) is JobState.FAILED
    assert job.error == "rank 1 on GPU g1 lost a peer: no byte for 15 s (rank 0)"


@pytest.mark.parametrize(
    ("exited", "said"),
    [
        (
            {"exit_code": 137, "signal": 9, "oom": True},
            "rank 1 on GPU g1 ran out of memory",
        ),
        (
            {"exit_code": 2, "error": "bad spec"},
            "rank 1 on GPU g1 ended with exit code 2: bad spec",
        ),
        (
            {"exit_code": 1, "stderr_tail": "Traceback\n  …\nValueError: no"},
            "rank 1 on GPU g1 ended with exit code 1: ValueError: no",
        ),
        (
            {"exit_code": 5, "stderr_tail": "\x1b[31mred\x07 über\n"},
            "rank 1 on GPU g1 ended with exit code 5: ?[31mred? über",
        ),
        ({"exit_code": None, "signal": 99}, "rank 1 on GPU g1 was killed by signal 99"),
    ],
)
def test_each_cause_in_words(exited: Mapping[str, Any], said: str) -> None:
    job = make_job()
    note_workers(job, workers(job, r1=exited))
    assert progress(job, 0.0) is JobState.FAILED
    assert job.error == said


def test_a_worker_that_vanishes_fails_the_job() -> None:
    job = make_job()
    left = workers(job)
    del left[job.worker(1)]
    note_workers(job, left)
    assert progress(job, 0.0) is JobState.FAILED
    assert "rank 1 on GPU g1 is gone" in (job.error or "")


def test_a_list_made_before_the_start_was_over_proves_nothing() -> None:
    job = make_job()
    note_workers(job, {}, complete=False)
    assert progress(job, 0.0) is JobState.STARTING


def test_record_round_trip() -> None:
    job = make_job()
    job.state, job.error, job.ranks[1].signal = JobState.FAILED, "x", 9
    assert Job.from_record(job.record()).document() == job.document()


@given(st.integers(1, 8), st.dictionaries(st.sampled_from(GPUS), st.just(BLUE)))
def test_counted_reservation_takes_free_gpus_only(
    count: int, holders: dict[str, Holder]
) -> None:
    free = len(GPUS) - len(holders)
    if count > len(GPUS):
        with pytest.raises(InvalidError):
            reserve(GPUS, holders, SWITCHES, count)
    elif count > free:
        with pytest.raises(ConflictError):
            reserve(GPUS, holders, SWITCHES, count)
    else:
        chosen = reserve(GPUS, holders, SWITCHES, count)
        assert len(set(chosen)) == count
        assert not set(chosen) & holders.keys()


def test_a_gpu_that_is_out_is_not_counted() -> None:
    assert reserve(GPUS, {}, SWITCHES, 3, out={"g1"}) != ("g0", "g1", "g2")
    with pytest.raises(ConflictError, match="5 GPUs are requested; 4 of 6 are free"):
        reserve(GPUS, {"g0": BLUE}, SWITCHES, 5, out={"g1"})


def test_counted_reservation_prefers_one_switch_tightly() -> None:
    assert reserve(GPUS, {}, SWITCHES, 2) == ("g3", "g4")
    assert reserve(GPUS, {}, SWITCHES, 3) == ("g0", "g1", "g2")
    assert reserve(GPUS, {}, SWITCHES, 6) == ("g0", "g1", "g2", "g3", "g4", "g5")


@pytest.mark.parametrize(
    ("ranks", "error", "said"),
    [
        (["g0", "g9"], InvalidError, "rank 1: there is no GPU g9"),
        (["g0", "g0"], InvalidError, "rank 1: GPU g0 is used twice"),
        (["g0", "g1"], ConflictError, "rank 1: GPU g1 is reserved by job blue"),
    ],
)
def test_named_reservation_refuses(
    ranks: list[str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        reserve(GPUS, {"g1": BLUE}, SWITCHES, ranks)


def test_linktest_target_by_rank() -> None:
    job = make_job()
    job.spec = {"linktest": {"seconds": 1.0, "to": [1, None, 0]}}
    assert [
        worker_spec(job, r, ["a", "b", "c"])["linktest"]["to"] for r in range(3)
    ] == [1, None, 0]
    job.spec = {"linktest": {"seconds": 1.0, "to": 2}}
    assert [
        worker_spec(job, r, ["a", "b", "c"])["linktest"]["to"] for r in range(3)
    ] == [2, 2, None]


def test_a_straggler_computes_longer_than_its_peers() -> None:
    job = make_job()
    job.spec = {"compute_s": 0.2, "slower": {1: 1.5}}
    kept = Job.from_record(json.loads(json.dumps(job.record())))
    for one in (job, kept):
        specs = [worker_spec(one, rank, ["a", "b", "c"]) for rank in range(3)]
        assert [spec["compute_s"] for spec in specs] == [0.2, pytest.approx(0.3), 0.2]
        assert not any("slower" in spec for spec in specs)


class ScriptedAgent:
    """The agent's calls, answered from memory; the test plays the workers."""

    address = "script"

    def __init__(self) -> None:
        self.alive: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.released: list[tuple[list[str], float]] = []
        self.specs: dict[str, dict[str, Any]] = {}
        self.workloads: dict[str, bytes] = {}
        self.refuse: Exception | None = None
        self.lost: list[str] = []
        self.batches: list[dict[str, Mapping[str, Any]]] = []
        #: The iteration that every job is to go on from, and what was asked about states.
        self.state, self.asked, self.questions = 0, list[Any](), 0
        self.lock = threading.Lock()
        self.stuck, self.slow = threading.Event(), threading.Event()
        self.stuck.set()
        self.slow.set()

    def put_workload(self, digest: str, data: bytes) -> None:
        self.workloads[digest] = data

    def start(
        self, batch: Sequence[Mapping[str, Any]], *, timeout_s: float
    ) -> list[Any]:
        assert self.slow.wait(10)
        if self.refuse is not None:
            raise self.refuse
        for entry in batch:
            if entry["gpu"] in self.lost:
                raise ConflictError(
                    f"job {entry['job']} rank {entry['rank']}: GPU {entry['gpu']} is lost"
                )
        with self.lock:
            self.batches.append({})
            for entry in batch:
                attempt = f"-r{entry['attempt']}" if entry["attempt"] else ""
                name = f"{entry['job']}-{entry['rank']}{attempt}"
                self.batches[-1][name] = entry
                self.alive[name] = {
                    "id": name,
                    "job": entry["job"],
                    "rank": entry["rank"],
                    "state": "running",
                }
                self.specs[name] = entry["spec"]
        return []

    def release(self, ids: Sequence[str], at: float) -> None:
        self.released.append((list(ids), at))

    def workers(self, cursor: int) -> Mapping[str, Any]:
        with self.lock:
            listed = [dict(worker) for worker in self.alive.values()]
            told = {
                "cursor": len(self.events),
                "workers": listed,
                "events": self.events[cursor:],
            }
            return told | {"lost_gpus": list(self.lost)}

    def remove(self, worker: str) -> None:
        assert self.stuck.wait(10)
        with self.lock:
            self.alive.pop(worker, None)

    def halt(self, job: str) -> None:
        assert self.stuck.wait(10)
        with self.lock:
            self.alive = {
                name: worker
                for name, worker in self.alive.items()
                if worker["job"] != job
            }

    def start_spares(self, job: str, gpus: Sequence[str]) -> None:
        self.asked += [(job, "spare", gpu) for gpu in gpus]

    def ends(self, known: int, wait_s: float) -> int:
        time.sleep(0.01)
        with self.lock:
            self.questions += 1
            return sum(event["event"] == "exited" for event in self.events)

    def choose_state(self, job: str, without: Sequence[int]) -> int:
        if [worker for worker in self.alive.values() if worker["job"] == job]:
            raise ConflictError(f"job {job}: a worker has not been removed")
        self.asked.append((job, list(without)))
        return self.state

    def remove_states(self, job: str) -> None:
        self.asked.append((job, "removed"))

    def close(self) -> None:
        pass

    def say(self, worker: str, event: str, **more: Any) -> None:
        with self.lock:
            job = worker.partition("-")[0]
            self.events.append(
                {
                    "t": time.monotonic(),
                    "event": event,
                    "job": job,
                    "worker": worker,
                    **more,
                }
            )

    def exit(self, worker: str, code: int, signal: int | None = None) -> None:
        with self.lock:
            self.alive[worker] |= {
                "state": "exited",
                "exit_code": code,
                "signal": signal,
            }

    def kill(self, worker: str) -> None:
        """As when its GPU is gone: the kernel ends it."""
        self.say(worker, "exited", signal=9)
        with self.lock:
            self.alive[worker] |= {"state": "exited", "exit_code": None, "signal": 9}


class Site:
    """A job manager over a scripted agent; ``restart`` is what a crash and a new start do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.agent = ScriptedAgent()
        self.unreached = ""
        self.claims: dict[str, str] = {}
        self.manager = self._manager()

    def _manager(self) -> JobManager:
        reservations = Reservations()
        reservations.add(CLAIM, lambda: self.claims)
        manager = JobManager(
            FABRIC,
            self.agent,  # type: ignore[arg-type]
            Store(self.directory),
            EventBus(),
            lambda: SWITCHES,
            reservations=reservations,
            workloads=WorkloadFiles(self.directory / "workloads"),
            reaches=lambda gpu, others: (
                gpu != self.unreached and set(others) <= set(GPUS)
            ),
            busy_s=0.005,
            idle_s=0.01,
        )
        manager.start()
        return manager

    def restart(self) -> None:
        self.manager.stop()
        self.manager = self._manager()

    def submit(
        self, name: str, ranks: list[str], hold: bool = True, **more: Any
    ) -> dict[str, Any]:
        return self.manager.submit(
            name, ranks, {"gradient_bytes": 9640}, hold=hold, **more
        )

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def wait_state(self, job: str, state: JobState) -> dict[str, Any]:
        self.wait(lambda: self.manager.job(job)["state"] == state.value)
        return self.manager.job(job)

    def make_ready(self, job: str) -> None:
        self.wait(lambda: f"{job}-0" in self.agent.alive)
        for worker in self.workers(job):
            self.agent.say(worker, "ready")
        self.wait_state(job, JobState.READY)

    def workers(self, job: str) -> list[str]:
        return [rank["worker"] for rank in self.manager.job(job)["ranks"]]

    def run(self, name: str, ranks: list[str], **more: Any) -> None:
        self.submit(name, ranks, **more)
        self.make_ready(name)
        self.manager.release([name], 0.0)
        self.wait_state(name, JobState.RUNNING)

    def recovered(self, job: str, attempt: int) -> dict[str, Any]:
        """Once its workers were started again, and all were ready, and it was released."""
        self.wait(lambda: self.workers(job)[0].endswith(f"-r{attempt}"))
        self.wait(lambda: set(self.workers(job)) <= self.agent.alive.keys())
        for worker in self.workers(job):
            self.agent.say(worker, "ready")
        return self.wait_state(job, JobState.RUNNING)

    def own(self, job: str) -> list[dict[str, Any]]:
        told = self.manager.events(job, 0)["events"]
        return [
            event
            for event in told
            if event["event"] in ("lost", "recovering", "recovered")
        ]


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site(tmp_path / "state")
    yield made
    made.manager.stop()


def test_a_stored_job_that_cannot_be_used_is_set_aside_by_name(site: Site) -> None:
    for name, gpus in (
        ("red", ["g0", "g1"]),
        ("blue", ["g2", "g3"]),
        ("green", ["g4", "g5"]),
    ):
        site.submit(name, gpus)
        site.make_ready(name)
    site.manager.stop()
    stored = json.loads((site.directory / "jobs.json").read_text().splitlines()[-1])
    stored["jobs"][0]["spec"]["name"] = "\ud800"
    stored["jobs"][1]["state"] = "NO SUCH STATE"
    stored["jobs"][2]["plane"] = "nowhere"
    (site.directory / "jobs.json").write_text(json.dumps(stored) + "\n")
    site.restart()
    (kept,) = site.manager.jobs()
    assert kept["id"] == "red"
    assert kept["spec"]["name"] == "\ufffd"
    for _ in range(2):
        blue, green = site.manager.set_aside
        assert "the stored job blue cannot be used ('NO SUCH STATE'" in blue
        assert "the stored job green cannot be used (" in green
        assert "jobs_set_aside.json" in green
        # It is named, not named again, after the next start.
        site.restart()


def test_who_asks_for_fresh_events_has_what_a_worker_said_just_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlight.controller.jobs.manager._FRESH_S", 10.0)
    site.run("red", ["g0", "g1"])
    # No look of its own for a minute, after the one that is under way.
    site.manager._watch._busy_s = 60.0
    time.sleep(0.1)
    cursor = site.manager.events("red", 0)["cursor"]
    site.agent.say("red-0", "iteration", i=0)
    assert not site.manager.events("red", cursor)["events"]
    found = site.manager.events("red", cursor, fresh=True)["events"]
    assert [event["event"] for event in found] == ["iteration"]


def test_ends_of_workers_are_waited_for_while_there_is_a_job(site: Site) -> None:
    time.sleep(0.1)
    assert site.agent.questions == 0
    site.run("red", ["g0", "g1"])
    site.wait(lambda: site.agent.questions > 2)
    site.manager.cancel("red")
    site.wait(lambda: not site.agent.alive)
    site.wait(lambda: site.manager._book.jobs["red"].clean)
    time.sleep(0.1)
    asked = site.agent.questions
    time.sleep(0.2)
    assert site.agent.questions == asked


def test_a_held_job_from_submit_to_success(site: Site) -> None:
    assert site.submit("red", ["g0", "g1"])["state"] == "PENDING"
    site.make_ready("red")
    spec = site.agent.specs["red-1"]
    assert spec["peers"] == [FABRIC.gpus["g0"].ip, FABRIC.gpus["g1"].ip]
    assert (spec["rank"], spec["world_size"], spec["job"]) == (1, 2, "red")
    with pytest.raises(ConflictError, match="GPU g1 is reserved by job red"):
        site.submit("blue", ["g1"])
    before = time.monotonic()
    site.manager.release(["red"], 0.2)
    ids, at = site.agent.released[0]
    assert ids == ["red-0", "red-1"]
    assert before + 0.2 <= at < before + 5
    for rank in (0, 1):
        site.agent.say(f"red-{rank}", "done")
        site.agent.exit(f"red-{rank}", 0)
    site.wait_state("red", JobState.SUCCEEDED)
    site.wait(lambda: not site.agent.alive)
    assert [e["event"] for e in site.manager.events("red", 2)["events"]] == [
        "done",
        "done",
    ]
    assert site.submit("red", ["g0"])["id"] == "red-2"


def test_a_job_that_is_not_held_is_released_by_itself(site: Site) -> None:
    site.submit("red", ["g0"], hold=False)
    site.wait(lambda: "red-0" in site.agent.alive)
    site.agent.say("red-0", "ready")
    site.wait_state("red", JobState.RUNNING)
    assert site.agent.released[0][0] == ["red-0"]


def test_a_killed_worker_fails_its_job_and_no_other(site: Site) -> None:
    site.submit("red", ["g0", "g1"])
    site.submit("blue", ["g2"])
    site.make_ready("red")
    site.make_ready("blue")
    site.manager.release(["red", "blue"], 0.0)
    site.agent.exit("red-0", 3)
    time.sleep(0.05)
    site.agent.exit("red-1", 137, 9)
    job = site.wait_state("red", JobState.FAILED)
    assert job["error"] == "rank 1 on GPU g1 was killed by SIGKILL"
    site.wait(lambda: set(site.agent.alive) == {"blue-0"})
    assert site.manager.job("blue")["state"] == "RUNNING"


def test_release_is_all_or_none(site: Site) -> None:
    site.submit("red", ["g0"])
    site.make_ready("red")
    site.submit("blue", ["g1"])
    with pytest.raises(
        ConflictError, match=r"job blue is (PENDING|STARTING), not READY"
    ):
        site.manager.release(["red", "blue"], 0.0)
    with pytest.raises(NotFoundError):
        site.manager.release(["green"], 0.0)
    assert site.agent.released == []


def test_cancel_and_refused_start_free_the_gpus(site: Site) -> None:
    site.submit("red", ["g0"])
    site.make_ready("red")
    assert site.manager.cancel("red")["state"] == "CANCELLED"
    assert site.manager.cancel("red")["state"] == "CANCELLED"
    site.agent.refuse = UnavailableError("no image")
    site.submit("blue", ["g1"])
    assert site.wait_state("blue", JobState.FAILED)["error"] == "not started: no image"
    assert site.submit("green", ["g0", "g1"])["state"] == "PENDING"


def test_the_next_job_starts_once_the_last_ones_workers_are_gone(site: Site) -> None:
    site.submit("red", ["g0", "g1"])
    site.make_ready("red")
    site.agent.stuck.clear()
    site.manager.cancel("red")
    site.submit("blue", ["g1", "g2"])
    time.sleep(0.05)
    assert site.manager.job("blue")["state"] == "PENDING"
    assert "blue-0" not in site.agent.alive
    site.agent.stuck.set()
    site.wait_state("blue", JobState.STARTING)
    site.wait(lambda: set(site.agent.alive) == {"blue-0", "blue-1"})


def test_a_job_cancelled_while_its_workers_start_leaves_none(site: Site) -> None:
    site.agent.slow.clear()
    site.submit("red", ["g0"])
    site.wait_state("red", JobState.STARTING)
    site.manager.cancel("red")
    time.sleep(0.1)
    site.agent.slow.set()
    site.submit("blue", ["g0"])
    site.wait(lambda: set(site.agent.alive) == {"blue-0"})


def test_jobs_are_adopted_after_a_restart(site: Site) -> None:
    site.submit("red", ["g0", "g1"])
    site.make_ready("red")
    site.manager.release(["red"], 0.0)
    site.restart()
    assert site.manager.job("red")["state"] == "RUNNING"
    with pytest.raises(ConflictError, match="reserved by job red"):
        site.submit("blue", ["g0"])
    site.wait(lambda: len(site.manager.events("red", 0)["events"]) == 2)
    for rank in (0, 1):
        site.agent.say(f"red-{rank}", "done")
        site.agent.exit(f"red-{rank}", 0)
    site.wait_state("red", JobState.SUCCEEDED)


def test_a_restart_while_workers_were_being_started(site: Site) -> None:
    site.submit("red", ["g0", "g1"])
    site.wait(lambda: "red-1" in site.agent.alive)
    site.manager.stop()
    record = site.manager._book._store.read("jobs")
    record["jobs"][0]["started"] = False
    site.manager._book._store.write("jobs", record)
    site.agent.remove("red-1")
    site.restart()
    assert "restarted" in site.wait_state("red", JobState.FAILED)["error"]
    site.wait(lambda: not site.agent.alive)


# A GPU is lost


def test_a_lost_rank_goes_to_a_spare(site: Site) -> None:
    site.run("red", ["g3", "g0", "g1"], on_loss="swap")
    site.run("blue", ["g4"])
    site.agent.state = 7
    site.agent.exit("red-0", 3)
    site.agent.kill("red-1")
    job = site.recovered("red", 1)
    assert [(rank["gpu"], rank["state"]) for rank in job["ranks"]] == [
        ("g3", "ready"), ("g2", "ready"), ("g1", "ready"),
    ]  # fmt: skip
    assert site.agent.asked == [("red", [1])]
    for name, entry in site.agent.batches[-1].items():
        assert (entry["attempt"], entry["checkpoint"], entry["spec"]["resume"]) == (
            1,
            True,
            7,
        )
        assert entry["spec"]["peers"] == [
            FABRIC.gpus[gpu].ip for gpu in ("g3", "g2", "g1")
        ]
        assert name == f"red-{entry['rank']}-r1"
    (loss,) = job["losses"]
    assert loss["t_lost"] == next(
        e["t"] for e in site.agent.events if e["event"] == "exited"
    )
    assert loss["t_lost"] < loss["t_recovering"] < loss["t_released"]
    assert job["t_released"] < loss["t_lost"]
    expected = {
        "rank": 1,
        "gpu": "g0",
        "reason": "rank 1 on GPU g0 was killed by SIGKILL",
        "spare": "g2",
    }
    assert expected.items() <= loss.items()
    assert (loss["iteration"], loss["ranks"]) == (7, ["g3", "g2", "g1"])
    lost, recovering, recovered = site.own("red")
    assert (lost["rank"], lost["gpu"], lost["t"]) == (1, "g0", loss["t_lost"])
    assert (recovering["iteration"], recovering["ranks"]) == (7, loss["ranks"])
    assert recovered["t"] == loss["t_released"]
    assert site.agent.released[-1] == (
        [f"red-{rank}-r1" for rank in range(3)],
        loss["t_released"],
    )
    assert site.manager.job("blue")["state"] == "RUNNING"
    # Another worker of the lost rank's name would be none of its own.
    site.agent.say("red-1", "failed", reason="late")
    for worker in site.workers("red"):
        site.agent.say(worker, "done")
        site.agent.exit(worker, 0)
    assert site.wait_state("red", JobState.SUCCEEDED)["error"] is None
    site.wait(lambda: ("red", "removed") in site.agent.asked)
    assert site.submit("green", ["g2", "g0"])["state"] == "PENDING"


def test_without_the_lost_rank_the_others_move_up(site: Site) -> None:
    site.run("red", ["g0", "g1", "g2"], on_loss="shrink")
    site.agent.kill("red-0")
    job = site.recovered("red", 1)
    assert [rank["gpu"] for rank in job["ranks"]] == ["g1", "g2"]
    assert job["losses"][0]["spare"] is None
    assert "resume" not in site.agent.specs["red-0-r1"], (
        "no rank had a state: it begins anew"
    )
    site.agent.kill("red-1-r1")
    failed = site.wait_state("red", JobState.FAILED)["error"]
    assert (
        failed
        == "rank 1 on GPU g2 was killed by SIGKILL, and it cannot go on: one rank is too few"
    )
    site.wait(lambda: not site.agent.alive)


def test_every_loss_takes_another_spare_until_there_is_none(site: Site) -> None:
    site.run("red", ["g0", "g1"], on_loss="swap")
    site.run("blue", ["g2", "g3"])
    site.agent.kill("red-0")
    # g5 is dark, and only g4 is left.
    assert [rank["gpu"] for rank in site.recovered("red", 1)["ranks"]] == ["g4", "g1"]
    site.agent.kill("red-0-r1")
    error = site.wait_state("red", JobState.FAILED)["error"]
    assert error.endswith(
        "it cannot go on: spare GPUs needed: 1; free and reachable: none"
    )
    assert site.manager.job("blue")["state"] == "RUNNING"


def test_named_spares_are_kept(site: Site) -> None:
    site.run("red", ["g0", "g1"], on_loss="swap", spares=["g5", "g4"])
    site.wait(
        lambda: (
            {("red", "spare", "g5"), ("red", "spare", "g4")}
            <= set(map(tuple, site.agent.asked))
        )
    )
    with pytest.raises(ConflictError, match="GPU g4 is reserved by job red"):
        site.submit("blue", ["g4"])
    with pytest.raises(ConflictError, match="spares: GPU g1 is reserved by job red"):
        site.submit("blue", ["g2"], on_loss="swap", spares=["g1"])
    for spares, said in (
        (["g9"], "there is no GPU g9"),
        (["g2"], "used twice"),
        (["g3", "g3"], "used twice"),
    ):
        with pytest.raises(InvalidError, match=f"spares: .*{said}"):
            site.submit("blue", ["g2"], on_loss="swap", spares=spares)
    site.agent.kill("red-1")
    job = site.recovered("red", 1)
    assert ([rank["gpu"] for rank in job["ranks"]], job["spares"]) == (
        ["g0", "g4"],
        ["g5", "g4"],
    )
    site.agent.kill("red-1-r1")
    error = site.wait_state("red", JobState.FAILED)["error"]
    assert error.endswith("spare GPUs needed: 1; free and reachable of g5, g4: none")
    assert site.submit("blue", ["g2", "g4", "g5"])["state"] == "PENDING"


def test_claimed_gpus_are_no_jobs(site: Site) -> None:
    site.claims = {"g1": "blue", "g2": "blue"}
    with pytest.raises(ConflictError, match="rank 1: GPU g1 is reserved by claim blue"):
        site.submit("red", ["g0", "g1"])
    with pytest.raises(ConflictError, match="spares: GPU g2 is reserved by claim blue"):
        site.submit("red", ["g0"], on_loss="swap", spares=["g2"])
    with pytest.raises(ConflictError, match="5 GPUs are requested; 4 of 6 are free"):
        site.manager.submit("red", 5, {"gradient_bytes": 9640}, hold=True)
    # Both are in one list of claims, so no job gets the name of a claim.
    assert site.submit("blue", ["g0"])["id"] == "blue-2"


def test_no_claimed_gpu_stands_in_for_a_lost_one(site: Site) -> None:
    site.claims = dict.fromkeys(("g2", "g3", "g4"), "blue")
    site.run("red", ["g0", "g1"], on_loss="swap")
    site.agent.kill("red-1")
    error = site.wait_state("red", JobState.FAILED)["error"]
    assert error.endswith("spare GPUs needed: 1; free and reachable: none")


def test_a_spare_that_nothing_reaches_or_that_is_lost_is_passed_over(
    site: Site,
) -> None:
    site.unreached, site.agent.lost = "g1", ["g2"]
    site.run("red", ["g0"], on_loss="swap")
    site.agent.kill("red-0")
    assert [rank["gpu"] for rank in site.recovered("red", 1)["ranks"]] == ["g3"]


def test_gpus_that_are_lost_together_are_replaced_together(site: Site) -> None:
    site.run("red", ["g0", "g1", "g3"], on_loss="swap")
    site.agent.lost = ["g0", "g1"]
    site.agent.kill("red-1")
    job = site.recovered("red", 1)
    assert [rank["gpu"] for rank in job["ranks"]] == ["g4", "g2", "g3"]
    assert [loss["gpu"] for loss in job["losses"]] == ["g0", "g1"]
    assert site.agent.asked == [("red", [0, 1])]


def test_a_worker_that_ends_by_its_own_fault_is_no_loss(site: Site) -> None:
    site.run("red", ["g0", "g1"], on_loss="swap")
    site.agent.exit("red-0", 1)
    site.agent.exit("red-1", 3)
    assert "exit code 1" in site.wait_state("red", JobState.FAILED)["error"]
    assert site.manager.job("red")["losses"] == []


def test_a_worker_lost_before_the_start_fails_the_job(site: Site) -> None:
    site.submit("red", ["g0", "g1"], on_loss="swap")
    site.make_ready("red")
    site.agent.kill("red-0")
    assert "killed by SIGKILL" in site.wait_state("red", JobState.FAILED)["error"]


@pytest.mark.parametrize("hold", [True, False])
def test_a_gpu_lost_before_the_start_is_replaced_too(site: Site, hold: bool) -> None:
    """And the job waits for its release, if it is held, as it would have without the loss."""
    site.submit("red", ["g0", "g1"], on_loss="swap", hold=hold)
    site.wait(lambda: site.manager._book.jobs["red"].started)
    site.agent.lost = ["g0"]
    site.agent.kill("red-0")
    site.wait(lambda: "red-0-r1" in site.agent.alive)
    for worker in site.workers("red"):
        site.agent.say(worker, "ready")
    site.wait_state("red", JobState.READY if hold else JobState.RUNNING)
    if hold:
        assert site.manager.job("red")["t_released"] is None
        site.manager.release(["red"], 0.0)
    job = site.wait_state("red", JobState.RUNNING)
    (loss,) = job["losses"]
    assert [rank["gpu"] for rank in job["ranks"]] == [loss["spare"], "g1"]
    assert (loss["gpu"], loss["iteration"], loss["t_released"]) == (
        "g0",
        0,
        job["t_released"],
    )


def test_a_gpu_that_is_lost_before_its_worker_starts_is_replaced_too(
    site: Site,
) -> None:
    site.agent.lost = ["g0"]
    site.submit("red", ["g0", "g1"], on_loss="swap")
    site.wait(lambda: "red-0-r1" in site.agent.alive)
    assert site.manager.job("red")["losses"][0]["gpu"] == "g0"


def test_a_loss_during_the_recovery_is_one_more(site: Site) -> None:
    site.run("red", ["g0", "g1", "g3"], on_loss="swap")
    site.agent.state = 4
    site.agent.kill("red-1")
    site.wait(lambda: "red-1-r1" in site.agent.alive)
    site.agent.kill("red-1-r1")
    job = site.recovered("red", 2)
    assert [rank["gpu"] for rank in job["ranks"]] == ["g0", "g4", "g3"]
    assert [loss["gpu"] for loss in job["losses"]] == ["g1", "g2"]
    assert len({loss["t_released"] for loss in job["losses"]}) == 1
    assert [event["event"] for event in site.own("red")] == [
        "lost", "recovering", "lost", "recovering", "recovered",
    ]  # fmt: skip


def test_a_job_cancelled_while_it_recovers_leaves_nothing(site: Site) -> None:
    site.run("red", ["g0", "g1"], on_loss="swap")
    site.agent.slow.clear()
    site.agent.kill("red-1")
    site.wait(
        lambda: (
            site.manager.job("red")["losses"][0]["ranks"]
            if site.manager.job("red")["losses"]
            else 0
        )
    )
    site.manager.cancel("red")
    site.agent.slow.set()
    site.wait(lambda: ("red", "removed") in site.agent.asked)
    assert not site.agent.alive
    assert site.manager.job("red")["state"] == "CANCELLED"


def test_a_spare_on_which_nothing_starts_fails_the_job(site: Site) -> None:
    site.run("red", ["g0", "g1"], on_loss="swap")
    site.agent.refuse = UnavailableError("GPU g2 is lost")
    site.agent.kill("red-1")
    assert (
        site.wait_state("red", JobState.FAILED)["error"]
        == "not started: GPU g2 is lost"
    )


@pytest.mark.parametrize("moment", ["stopping", "starting", "ready", "running"])
def test_a_recovery_outlives_the_controller(site: Site, moment: str) -> None:
    site.run("red", ["g0", "g1", "g3"], on_loss="swap")
    site.agent.state = 9
    {"stopping": site.agent.stuck, "starting": site.agent.slow}.get(
        moment, threading.Event()
    ).clear()
    site.agent.kill("red-1")
    if moment == "stopping":
        site.wait_state("red", JobState.RECOVERING)
    else:
        site.wait(
            lambda: (
                [event["event"] for event in site.own("red")] == ["lost", "recovering"]
            )
        )
    if moment in ("ready", "running"):
        site.wait(lambda: "red-1-r1" in site.agent.alive)
        site.wait(lambda: site.manager._book.jobs["red"].started)
    if moment == "running":
        site.recovered("red", 1)
    before = site.manager.events("red", 0)["events"]
    threading.Timer(
        0.2, lambda: (site.agent.stuck.set(), site.agent.slow.set())
    ).start()
    site.restart()
    if moment == "running":
        site.wait(lambda: site.manager.events("red", 0)["events"] == before)
    else:
        site.recovered("red", 1)
        assert site.manager.events("red", 0)["events"][: len(before)] == before
    job = site.manager.job("red")
    assert [rank["gpu"] for rank in job["ranks"]] == ["g0", "g2", "g3"]
    assert [event["event"] for event in site.own("red")] == [
        "lost",
        "recovering",
        "recovered",
    ]
    assert len(job["losses"]) == 1
    assert set(site.agent.alive) == set(site.workers("red"))
    for worker in site.workers("red"):
        site.agent.say(worker, "done")
        site.agent.exit(worker, 0)
    site.wait_state("red", JobState.SUCCEEDED)


def packed_workload(ranks: int) -> tuple[str, bytes]:
    """Its SHA-256, and its bytes."""
    book = Book()
    writer = Writer(book)
    writer.compute("work", seconds=0.1)
    made = book.workload(
        "work", [writer.done()], [0] * ranks, [[]] * ranks, [[]] * ranks
    )
    data = pack(made)
    return hashlib.sha256(data).hexdigest(), data


def test_a_workload_that_was_put_reaches_the_workers_of_its_job(site: Site) -> None:
    digest, packed = packed_workload(2)
    assert put(site.manager.workloads, digest, packed) == {
        "sha256": digest, "name": "work", "ranks": 2, "operations": 2, "bytes": len(packed),
    }  # fmt: skip
    site.restart()
    spec = {"workload": "graph", "graph": digest, "iterations": 3, "slower": {1: 2.5}}
    site.manager.submit("red", ["g0", "g1"], spec, hold=True)
    site.wait(lambda: "red-1" in site.agent.alive)
    assert site.agent.workloads == {digest: packed}
    assert {entry["graph"] for entry in site.agent.batches[-1].values()} == {digest}
    told = [site.agent.specs[f"red-{rank}"] for rank in (0, 1)]
    assert [one["slower"] for one in told] == [1.0, 2.5]
    assert all("graph" not in one and one["iterations"] == 3 for one in told)


def test_a_workload_that_is_not_there_or_for_others_is_refused(site: Site) -> None:
    digest, packed = packed_workload(3)
    with pytest.raises(InvalidError, match=f"graph: there is no workload {digest}"):
        site.manager.submit("red", ["g0", "g1"], {"graph": digest}, hold=True)
    with pytest.raises(InvalidError, match="what was sent has SHA-256"):
        put(site.manager.workloads, "0" * 64, packed)
    with pytest.raises(InvalidError, match="this is no packed workload"):
        put(site.manager.workloads, hashlib.sha256(b"junk").hexdigest(), b"junk")
    with pytest.raises(NotFoundError, match=f"there is no workload {digest}"):
        site.manager.workloads.document(digest)
    put(site.manager.workloads, digest, packed)
    with pytest.raises(
        InvalidError, match="graph: it is for 3 ranks, and the job has 2"
    ):
        site.manager.submit("red", ["g0", "g1"], {"graph": digest}, hold=True)


def guest_job() -> Job:
    job = make_job()
    job.state, job.spec = (
        JobState.RUNNING,
        {"workload": "shell", "shell": {"command": "a", "deadline_s": 9.0}},
    )
    return job


def test_exit_codes_of_somebody_elses_command_mean_nothing_to_us() -> None:
    """3 is that of our worker when it lost a peer, which is never the cause."""
    job = guest_job()
    say(job, 1, "command_ended", 4.0, exit_code=1)
    say(job, 2, "command_ended", 3.0, exit_code=3)
    note_workers(
        job,
        workers(
            job, r2={"exit_code": 3, "stderr_tail": "no\nfile"}, r1={"exit_code": 1}
        ),
    )
    assert progress(job, 5.0) is JobState.FAILED
    assert job.error == "rank 2 on GPU g2 ended with exit code 3: file"


def test_a_holder_is_not_told_of_the_guest_but_of_its_deadline() -> None:
    job = guest_job()
    spec = worker_spec(job, 0, ["10.0.0.1", "10.0.0.2"])
    assert "shell" not in spec
    assert (spec["deadline_s"], spec["port"]) == (9.0, 29499)
    assert parse_spec(spec | {"peers": ["10.0.0.1", "10.0.0.2"]}).workload == "hold"
    assert guest_request(job) == {
        "kind": "shell",
        "settings": {"command": "a", "port": 29500},
    }
    assert guest_request(make_job()) is None

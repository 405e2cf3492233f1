"""Claims over a switch kept in memory: what is stored, and what happens to a claim while its light moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.controller.circuits import claims as claims_module
from ringlight.controller.circuits.claims import ClaimManager
from ringlight.controller.circuits.planner import Planned, Planner
from ringlight.controller.errors import ConflictError, NotFoundError
from ringlight.controller.jobs.job import JobState
from ringlight.controller.jobs.reservation import JOB, Reservations
from ringlight.controller.store import Store
from ringlight.fabric.cost import RingJob
from tests.unit.test_controller_circuits import Bench
from tests.unit.test_controller_rules import FABRIC, PORTS


class NoJobs(SimpleNamespace):
    lost_gpus: frozenset[str] = frozenset()

    def switches(self) -> dict[str, str | None]:
        return {}

    def running(self) -> list[Any]:
        return []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "state")
    bench.set(PORTS[:6])
    return bench


def manager(
    bench: Bench,
    jobs: NoJobs | None = None,
    planner: Planner | None = None,
    reservations: Reservations | None = None,
) -> ClaimManager:
    store = Store(bench.directory / "claims")
    planner = planner or Planner(FABRIC, bench.manager)
    made = ClaimManager(
        FABRIC,
        bench.manager,
        planner,
        jobs or NoJobs(),  # type: ignore[arg-type]
        bench.bus,
        store,
        reservations or Reservations(),
    )
    made.take_over()
    made.start()
    return made


def asked(claims: ClaimManager, name: str = "red", wait_s: float = 20.0) -> Any:
    return claims.claim(
        name, ["g0", "g4"], collective="ring", wait_s=wait_s, who="test"
    )


def test_a_claim_moves_light_and_outlasts_the_controller(bench: Bench) -> None:
    claims = manager(bench)
    made = asked(claims)
    assert (made.state, made.fibres_moved > 0) == ("ACTIVE", True)
    nodes = {
        port.partition(":")[0] for ports in made.attached.values() for port in ports
    }
    assert len(nodes) == 1
    claims.stop()
    again = manager(bench)
    assert again.get("red") == made
    again.stop()


class NotedPlanner(Planner):
    """Notes the GPUs whose fibres stay, of each plan."""

    def plan(self, rings: Iterable[RingJob], taken: Collection[str]) -> Planned:
        self.taken = set(taken)
        return super().plan(rings, taken)


def test_the_gpus_of_jobs_and_of_other_claims_keep_their_places(bench: Bench) -> None:
    planner, reservations = NotedPlanner(FABRIC, bench.manager), Reservations()
    reservations.add(JOB, lambda: {"g2": "train"})
    claims = manager(bench, planner=planner, reservations=reservations)
    asked(claims)
    assert planner.taken == {"g2"}
    claims.claim("blue", ["g1", "g5"], collective="ring", wait_s=20.0, who="test")
    assert planner.taken == {"g2", "g0", "g4"}
    with pytest.raises(
        ConflictError, match=r"gpus\[1\]: GPU g2 is reserved by job train"
    ):
        claims.claim("green", ["g3", "g2"], collective="ring", wait_s=0, who="test")
    claims.stop()


def test_a_lost_gpu_is_in_no_claim(bench: Bench) -> None:
    jobs = NoJobs()
    jobs.lost_gpus = frozenset({"g3"})
    claims = manager(bench, jobs)
    with pytest.raises(ConflictError, match="GPU g3 is lost"):
        claims.claim("red", ["g2", "g3"], collective="ring", wait_s=0, who="test")
    counted = claims.claim("red", 5, collective="ring", wait_s=20.0, who="test")
    assert set(counted.gpus) == {"g0", "g1", "g2", "g4", "g5"}
    claims.stop()


def test_a_claim_fails_if_other_plans_take_too_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "_TURN_S", 0.1)
    planner = Planner(FABRIC, bench.manager)
    claims = manager(bench, planner=planner)
    with planner.turn(1.0):
        made = asked(claims)
    assert (made.state, made.undone) == ("FAILED", True)
    assert "other planned light" in str(made.reason)
    assert claims.holders() == {}
    # The turn is free again.
    assert asked(claims).state == "ACTIVE"
    claims.stop()


def test_a_release_while_light_moves_ends_the_claim(bench: Bench) -> None:
    claims = manager(bench)
    # No change of light can begin meanwhile.
    with bench.manager.quiet(5.0) as quiet:
        assert quiet
        assert asked(claims, wait_s=0.05).state == "ACTIVATING"
        done: list[Any] = []
        release = threading.Thread(target=lambda: done.append(claims.release("red")))
        release.start()
        release.join(0.2)
        with pytest.raises(ConflictError):
            asked(claims)
    release.join(20.0)
    assert [claim.state for claim in done] == ["DEACTIVATING"]
    deadline = time.monotonic() + 20
    while claims.all() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(NotFoundError):
        claims.get("red")
    assert claims.holders() == {}
    claims.stop()


def test_who_waits_for_a_claim_is_answered_when_it_is_released(bench: Bench) -> None:
    claims = manager(bench)
    answers: list[Any] = []
    with bench.manager.quiet(5.0):
        waiting = threading.Thread(target=lambda: answers.append(asked(claims)))
        waiting.start()
        while "red" not in {claim.name for claim in claims.all()}:
            time.sleep(0.01)
        release = threading.Thread(target=claims.release, args=("red",))
        release.start()
        waiting.join(10.0)
    release.join(20.0)
    assert [claim.state for claim in answers] == ["DEACTIVATING"]
    claims.stop()


def test_a_stored_claim_that_cannot_be_used_is_named_and_kept(bench: Bench) -> None:
    claims = manager(bench)
    good = asked(claims)
    claims.stop()
    store = Store(bench.directory / "claims")
    records = store.read("claims")["claims"]
    other = {**records[0], "name": "blue", "gpus": ["g99"]}
    store.write("claims", {"claims": [{"name": "old"}, other, *records]})
    again = manager(bench)
    assert [claim.name for claim in again.all()] == ["red"]
    assert again.get("red").gpus == good.gpus
    assert len(again.set_aside) == 2
    assert again.set_aside[1] == "a stored claim cannot be used: there is no GPU g99"
    again.release("red")
    again.stop()
    kept = Store(bench.directory / "claims").read("claims")["claims"]
    assert [record["name"] for record in kept] == ["old", "blue"]


def test_a_gpu_that_is_back_heals_a_claim_without_any_event(bench: Bench) -> None:
    jobs = NoJobs()
    claims = manager(bench, jobs)
    asked(claims)
    for lost, state in (({"g4"}, "ACTIVE_DEGRADED"), (set(), "ACTIVE")):
        jobs.lost_gpus = frozenset(lost)
        for _ in range(100):
            if claims.get("red").state == state:
                break
            time.sleep(0.1)
        assert claims.get("red").state == state
    claims.stop()


def test_more_gpus_than_are_free_may_be_there_later(bench: Bench) -> None:
    claims = manager(bench)
    asked(claims)
    with pytest.raises(ConflictError, match="4 of 6 are free"):
        claims.claim("blue", 5, collective="ring", wait_s=0, who="test")
    claims.stop()


def test_a_job_with_the_name_of_a_failed_claim_is_the_one_that_is_returned(
    bench: Bench,
) -> None:
    bench.driver.refuse_add = True
    jobs = NoJobs()
    claims = manager(bench, jobs)
    assert asked(claims).state == "FAILED"
    job = SimpleNamespace(
        id="red", gpus=["g1"], plane=None, spec={}, state=JobState.RUNNING
    )
    jobs.running = lambda: [SimpleNamespace(**vars(job), t_submitted=1.0)]
    assert (claims.get("red").job, claims.get("red").gpus) == ("red", ("g1",))
    claims.stop()


def test_failed_claims_hold_no_gpus_and_are_forgotten(bench: Bench) -> None:
    bench.driver.refuse_add = True
    claims = manager(bench)
    for number in range(103):
        assert asked(claims, f"n{number}").state == "FAILED"
    assert claims.holders() == {}
    assert len(claims.all()) == 100
    assert claims.release("n102").state == "DEACTIVATING"
    assert len(claims.all()) == 99
    claims.stop()


def test_a_claim_that_cannot_be_stored_is_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = manager(bench)

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match="no space left"):
        asked(claims)
    assert claims.all() == []
    # A failed claim of the name keeps no GPUs, so the new one is new, too.
    monkeypatch.undo()
    bench.driver.refuse_add = True
    assert asked(claims).state == "FAILED"
    bench.driver.refuse_add = False
    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match="no space left"):
        asked(claims)
    assert [claim.state for claim in claims.all()] == ["FAILED"]
    claims.stop()

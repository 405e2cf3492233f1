"""Regroupings, without switches to speak to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.controller.circuits import regroup
from ringlight.controller.circuits.change import Target
from ringlight.controller.circuits.planner import Planner
from ringlight.controller.circuits.regroup import RegroupManager
from ringlight.controller.errors import ConflictError, NotFoundError
from ringlight.controller.jobs.reservation import CLAIM, JOB, Reservations
from ringlight.controller.store import Store
from ringlight.fabric.crossconnect import CrossConnect, Mode
from tests.unit.test_claims import NotedPlanner
from tests.unit.test_controller_circuits import FABRIC, PORTS, Bench


class NoJobs(SimpleNamespace):
    def running(self, job_ids: Any = None) -> list[Any]:
        return []


class MovedJobs(NoJobs):
    """A ring whose neighbours are on different packet switches."""

    def running(self, job_ids: Any = None) -> list[Any]:
        gpus = tuple(f"g{number}" for number in (0, 3, 1, 4))
        return [
            SimpleNamespace(
                id="red", gpus=gpus, plane=None, spec={"gradient_bytes": 9640}
            )
        ]


def _targets(bench: Bench, asked: Any) -> dict[str, Target]:
    targets = {}
    for name, change in asked["plan"]["cross_connects"].items():
        gone = {xc["ingress"] for xc in change["remove"]}
        kept = [
            xc for xc in bench.manager.cross_connects()[name] if xc.ingress not in gone
        ]
        added = [
            CrossConnect(xc["ingress"], xc["egress"], name=xc["name"])
            for xc in change["add"]
        ]
        targets[name] = Target((*kept, *added), Mode.REPLACE)
    return targets


def manager(
    bench: Bench,
    jobs: Any = NoJobs(),
    planner: Planner | None = None,
    reservations: Reservations | None = None,
) -> RegroupManager:
    store = Store(bench.directory / "regroups")
    planner = planner or Planner(FABRIC, bench.manager)
    book = reservations or Reservations()
    return RegroupManager(FABRIC, bench.manager, planner, jobs, bench.bus, store, book)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "state")
    assert made.set(PORTS[:6]) == []
    yield made
    made.intents.close()


@pytest.fixture
def regroups(bench: Bench) -> RegroupManager:
    return manager(bench)


def test_a_regrouping_that_moves_nothing_is_done_at_once(
    regroups: RegroupManager,
) -> None:
    made = regroups.start(None, dry_run=False, who="ann")
    assert made["plan"]["fibres_moved"] == 0
    assert made["state"] == "DONE"
    assert made["unchanged"] == "no job runs on packet switches"
    assert [moment["phase"] for moment in made["timeline"]][-1] == "ended"
    assert regroups.get(made["id"]) == made
    # Nothing waits for it.
    again = regroups.start(None, dry_run=False, who="ann")
    assert again["state"] == "DONE"
    regroups.stop()


def test_claimed_gpus_keep_their_places(bench: Bench) -> None:
    planner, reservations = NotedPlanner(FABRIC, bench.manager), Reservations()
    reservations.add(JOB, lambda: {"g0": "red", "g3": "red"})
    reservations.add(CLAIM, lambda: {"g5": "blue"})
    regroups = manager(bench, MovedJobs(), planner, reservations)
    assert regroups.start(None, dry_run=True, who="ann")["plan"]["fibres_moved"] > 0
    assert planner.taken == {"g5"}


def test_a_regrouping_waits_for_other_planned_light(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regroup, "_TURN_S", 0.05)
    planner = Planner(FABRIC, bench.manager)
    regroups = manager(bench, MovedJobs(), planner)
    with planner.turn(5.0), pytest.raises(ConflictError, match="other planned light"):
        regroups.start(["red"], dry_run=False, who="ann")
    assert regroups.all() == []
    with planner.turn(5.0):
        assert regroups.start(["red"], dry_run=True, who="ann")["state"] == "PLANNED"
    made = regroups.start(["red"], dry_run=False, who="ann")
    assert (made["state"], made["unchanged"]) == ("APPLYING", None)
    regroups.stop()
    assert regroups.get(made["id"])["state"] == "DONE"
    # It gives up its turn.
    again = regroups.start(["red"], dry_run=False, who="ann")
    assert again["state"] == "DONE"
    assert again["unchanged"] == "no circuit of these jobs would be better elsewhere"


def test_the_end_of_a_regrouping_that_moved_light_is_published_and_kept(
    bench: Bench,
) -> None:
    regroups = manager(bench, MovedJobs())
    events = bench.bus.subscribe()
    made = regroups.start(["red"], dry_run=False, who="ann")
    regroups.stop()
    states = [event["state"] for event in events.take() if event["event"] == "regroup"]
    events.close()
    assert states == ["APPLYING", "DONE"]
    found = regroups.get(made["id"])
    assert any(found["results"].values())
    bench.restart()
    again = manager(bench)
    again.take_over()
    assert again.get(made["id"]) == found


def test_old_plans_are_forgotten(
    regroups: RegroupManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regroup, "KEPT", 3)
    made = [regroups.start(None, dry_run=True, who="ann")["id"] for _ in range(5)]
    assert [one["id"] for one in regroups.all()] == made[-3:]
    with pytest.raises(NotFoundError):
        regroups.get(made[0])


def test_regroupings_outlast_the_controller_and_no_number_is_used_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regroup, "KEPT", 3)
    regroups = manager(bench)
    made = [regroups.start(None, dry_run=True, who="ann")["id"] for _ in range(5)]
    bench.restart()
    again = manager(bench)
    again.take_over()
    assert again.all() == regroups.all()
    assert again.start(None, dry_run=True, who="ann")["id"] == "regroup-6"
    assert sorted(path.name for path in (bench.directory / "regroups").iterdir()) == [
        f"regroup-{number}.json" for number in (4, 5, 6)
    ]
    assert made[-1] == "regroup-5"


@pytest.mark.parametrize("lit", [True, False])
def test_a_regrouping_that_the_controllers_end_cut_short_ends(
    bench: Bench, lit: bool
) -> None:
    regroups = manager(bench, MovedJobs())
    # The controller dies as soon as the light moves, or before.
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(regroup.threading.Thread, "start", lambda _thread: None)
        asked = regroups.start(["red"], dry_run=False, who="ann")
    assert asked["state"] == "APPLYING"
    assert asked["plan"]["fibres_moved"] > 0
    if lit:
        bench.manager.change(_targets(bench, asked), who="ann, regroup-1")
    bench.restart()
    again = manager(bench)
    again.take_over()
    found = again.get(asked["id"])
    assert found["state"] == ("DONE" if lit else "FAILED"), found
    assert (found["error"] is None) is lit
    assert found["timeline"][-1]["phase"] == "ended"
    later = manager(bench)
    later.take_over()
    assert later.all() == again.all()


def test_a_stored_regrouping_that_cannot_be_used_is_named(bench: Bench) -> None:
    regroups = manager(bench)
    made = regroups.start(None, dry_run=True, who="ann")["id"]
    folder = bench.directory / "regroups"
    (folder / "regroup-7.json").write_text('{"id": "regroup-7"}\n')
    (folder / "regroup-8.json").write_text("{")
    again = manager(bench)
    again.take_over()
    assert [one["id"] for one in again.all()] == [made]
    seventh, eighth = again.set_aside
    assert seventh.startswith("the stored regroup-7 cannot be used: it lacks dry_run, ")
    assert "regroup-8.json: not JSON" in eighth
    assert again.start(None, dry_run=True, who="ann")["id"] == "regroup-9"

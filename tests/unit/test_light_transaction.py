"""Changes of light over several switches: after any failure each is as before, or what is not is named."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.change import Change, Target
from ringlight.controller.circuits.drift import Policy, drift, mending
from ringlight.controller.circuits.intent import IntentDatabase
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.reconciler import Reconciler
from ringlight.controller.circuits.transaction import (
    Found,
    achieved,
    leftovers,
    standing,
    taken_back,
)
from ringlight.controller.errors import UnavailableError
from ringlight.controller.light.switches import Lights
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Indeterminate, Refused, Unreachable
from ringlight.controller.optical.model import (
    Capabilities,
    Plan,
    PortStatus,
    Snapshot,
    Timing,
    dual_sided,
)
from ringlight.controller.optical.planning import make_plan
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.watching import TableWatch
from ringlight.controller.store import Store
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
    check_matching,
)
from ringlight.fabric.schema import FabricSpec
from tests.unit.test_controller_rules import FakeTables

SIZE = 5
INGRESS, EGRESS = dual_sided(SIZE)
CAPABILITIES = Capabilities(INGRESS, EGRESS, 2)
CONNECTED = CrossConnectState.CONNECTED

matchings = st.tuples(
    st.permutations(sorted(EGRESS)), st.sets(st.sampled_from(sorted(INGRESS)))
).map(lambda drawn: frozenset(CrossConnect(i, drawn[0][i - 1]) for i in drawn[1]))


def reading(
    stand: Sequence[CrossConnect] | frozenset[CrossConnect],
    broken: frozenset[CrossConnect] = frozenset(),
    disabled: frozenset[int] = frozenset(),
) -> Snapshot:
    state = {
        xc: CrossConnectState.FAILED if xc in broken else CONNECTED for xc in stand
    }
    ports = {
        p: PortStatus(PortState.TUNED, p not in disabled) for p in INGRESS | EGRESS
    }
    return Snapshot("s", state, ports)


def subset(
    data: st.DataObject, group: Sequence[Any] | frozenset[Any]
) -> frozenset[Any]:
    return frozenset(
        data.draw(st.sets(st.sampled_from(sorted(group)))) if group else ()
    )


@settings(max_examples=300)
@given(
    matchings,
    matchings,
    matchings,
    st.sampled_from([Mode.UPDATE, Mode.REPLACE]),
    st.data(),
)
def test_what_a_change_did_is_taken_back_or_named(
    before: frozenset[CrossConnect],
    target: frozenset[CrossConnect],
    others: frozenset[CrossConnect],
    mode: Mode,
    data: st.DataObject,
) -> None:
    plan = make_plan(CAPABILITIES, reading(before), target, mode)
    # Any part of the removals came about, then any part of the additions that then fit, then strangers.
    stand = before - subset(data, frozenset(plan.remove))
    for xc in (*subset(data, frozenset(plan.add)), *sorted(others)):
        if fits(stand, xc):
            stand |= {xc}
    strangers = stand - before - set(plan.add)
    now = reading(stand)
    back = taken_back(plan, now)
    check_matching((stand - set(back.remove)) | set(back.add))
    assert set(back.remove) <= set(plan.add)
    assert set(back.add) <= set(plan.remove)
    # Any part of that came about too.
    gone, made = subset(data, frozenset(back.remove)), subset(data, frozenset(back.add))
    after = stand - gone
    for xc in made:
        if fits(after, xc):
            after |= {xc}
    left = leftovers({"s": plan}, {"s": reading(after)}, {"s": "stuck"})
    named = {one.cross_connect for one in left}
    assert (after ^ before) - strangers == named
    assert {one.cross_connect for one in left if one.state is Found.STANDS} <= after
    assert strangers <= after
    if gone == set(back.remove) and made == set(back.add):
        assert named <= before, "nothing of ours is left standing"
        for one in left:
            assert "made meanwhile, has its port" in one.reason
    unread = leftovers({"s": plan}, {"s": None}, {})
    assert {one.cross_connect for one in unread} >= named
    assert {one.state for one in unread} <= {Found.UNKNOWN}


def fits(stand: frozenset[CrossConnect], xc: CrossConnect) -> bool:
    return all(
        xc.ingress != other.ingress and xc.egress != other.egress for other in stand
    )


@settings(max_examples=300)
@given(matchings, matchings, matchings, st.booleans(), st.data())
def test_mending_makes_what_can_be_made_and_removes_no_more_than_it_may(
    wanted: frozenset[CrossConnect],
    stand: frozenset[CrossConnect],
    unwanted: frozenset[CrossConnect],
    exactly: bool,
    data: st.DataObject,
) -> None:
    broken, disabled = subset(data, stand), frozenset(subset(data, INGRESS | EGRESS))
    now = reading(stand, broken, disabled)
    found = drift(wanted, unwanted, now)
    job = mending(found, now, exactly=exactly)
    after = (stand - set(job.plan.remove)) | set(job.plan.add)
    check_matching(after)
    usable = {xc for xc in wanted if not {xc.ingress, xc.egress} & disabled}
    assert usable <= after
    assert job.cannot.keys() == wanted - usable - stand
    assert not (unwanted - wanted) & after
    assert set(job.plan.add) <= wanted
    assert (wanted & stand) - broken <= job.plan.keep, "light that is right was touched"
    if exactly:
        assert after <= wanted
    else:
        for xc in found.foreign - after:
            assert any(not fits(frozenset({xc}), made) for made in job.plan.add), (
                "it was in nobody's way"
            )
    if not found:
        assert not job.plan
        assert standing(now) == wanted


# Three switches, through the manager


class Died(BaseException):
    """The controller ends here; nothing of it runs on."""


class FaultySwitch(OpticalSwitchDriver):
    """A switch whose n-th write goes wrong: ``faults`` has what happens to each, in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name, CAPABILITIES)
        self.stand: set[CrossConnect] = set()
        self.faults: list[str] = []
        self.away = False
        self.slow_s = 0.0

    def _read(self, deadline: Deadline) -> Snapshot:
        if self.away:
            raise Unreachable("no session")
        if self.slow_s:
            time.sleep(self.slow_s)
        return reading(frozenset(self.stand))

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._write(batch, self.stand.difference_update)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        for xc in batch:
            if not fits(frozenset(self.stand), xc):
                raise Refused(f"{xc}: busy")
        self._write(batch, self.stand.update)

    def _write(self, batch: Sequence[CrossConnect], effect: Any) -> None:
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "refuse":
            raise Refused("mirror stuck")
        if fault == "half":
            effect(batch[:1])
            raise Refused("half a batch")
        if fault == "lie":
            return
        if fault == "die":
            raise Died
        if fault == "away":
            self.away = True
            raise Unreachable("no session")
        effect(batch)
        if fault == "die after":
            raise Died
        if fault == "lost":
            raise Indeterminate("no reply")
        if fault == "gone":
            self.away = True
            raise Indeterminate("no reply")


NAMES = ("a", "b", "c")
FABRIC = build_fabric(
    FabricSpec.model_validate(
        {
            "servers": {"s0": {"gpus": {"g0": "tesla-m40"}}},
            "packet_switches": {f"tor{t}": {"ports": 2} for t in range(3)},
            "optical_switches": {name: {"size": SIZE} for name in NAMES},
            "links": [
                {"ends": ["g0", "a:1"], "rate": "10 Gbit/s"},
                *(
                    {"ends": [f"tor{t}:1", f"{name}:2"], "rate": "10 Gbit/s"}
                    for t, name in enumerate(NAMES)
                ),
            ],
        }
    )
)


@dataclass
class Three:
    directory: Path

    def __post_init__(self) -> None:
        self.drivers = {name: FaultySwitch(name) for name in NAMES}
        self.start()

    def start(self) -> None:
        self.intents = IntentDatabase(self.directory / "circuits.sqlite")
        self.bus = EventBus()
        self.site = OpticalSite(
            self.drivers, {name: {} for name in NAMES}, self.bus, self.intents.try_note
        )
        self.forwarding = Forwarding(FABRIC, FakeTables())  # type: ignore[arg-type]
        self.manager = CircuitManager(
            FABRIC, self.site, self.forwarding, self.intents, self.bus
        )
        self.manager.adopt()

    def restart(self) -> None:
        self.intents.close()
        self.start()

    def change(self, sets: dict[str, frozenset[CrossConnect]], **more: Any) -> Change:
        targets = {
            name: Target(tuple(group), Mode.REPLACE) for name, group in sets.items()
        }
        return self.manager.change(targets, who="test", **more)

    def stands(self) -> dict[str, frozenset[CrossConnect]]:
        return {name: frozenset(driver.stand) for name, driver in self.drivers.items()}

    def wanted(self) -> dict[str, frozenset[CrossConnect]]:
        return {
            name: frozenset(group) for name, group in self.manager.intended().items()
        }


FAULTS = st.lists(
    st.sampled_from(["none", "none", "refuse", "half", "lie", "lost", "away", "gone"]),
    max_size=5,
)
sets = st.fixed_dictionaries(dict.fromkeys(NAMES, matchings))


@settings(max_examples=60, deadline=None)
@given(sets, sets, st.fixed_dictionaries(dict.fromkeys(NAMES, FAULTS)))
def test_after_any_failure_of_any_switches_all_is_done_or_as_before_or_named(
    before: dict[str, frozenset[CrossConnect]],
    after: dict[str, frozenset[CrossConnect]],
    faults: dict[str, list[str]],
) -> None:
    with TemporaryDirectory() as directory:
        three = Three(Path(directory))
        assert three.change(before).problems == ()
        for name, driver in three.drivers.items():
            driver.faults = list(faults[name])
        change = three.change(after)
        if change.undone:
            assert three.wanted() == before
            named = {(one.switch, one.cross_connect) for one in change.left}
            for name, stand in three.stands().items():
                assert {(name, xc) for xc in stand ^ before[name]} <= named
            for one in change.left:
                if one.state is not Found.UNKNOWN:
                    assert (one.cross_connect in three.stands()[one.switch]) == (
                        one.state is Found.STANDS
                    )
                    assert any(str(one) == text for text in change.problems)
            assert bool(change.left) == (change.outcome == "partly undone")
        else:
            assert change.problems == ()
            assert three.stands() == after == three.wanted()
        entry = three.intents.audit(limit=1)
        assert not entry or entry[0]["who"] == "test"
        # Whatever is left is mended once the switches do as they are told, also by a successor.
        for driver in three.drivers.values():
            driver.faults, driver.away, driver._reader._quiet_until = [], False, 0.0
        three.restart()
        three.manager.reconcile()
        assert three.stands() == (before if change.undone else after)
        assert all(view.complaint is None for view in three.site.views().values())
        three.intents.close()


@settings(max_examples=80, deadline=None)
@given(
    sets,
    sets,
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.integers(0, 4), st.sampled_from(["die", "die after"])),
        min_size=1,
    ),
    st.fixed_dictionaries(dict.fromkeys(NAMES, FAULTS)),
)
def test_a_controller_may_die_at_any_write_and_its_successor_meet_any_failure(
    before: dict[str, frozenset[CrossConnect]],
    after: dict[str, frozenset[CrossConnect]],
    deaths: dict[str, tuple[int, str]],
    faults: dict[str, list[str]],
) -> None:
    with TemporaryDirectory() as directory:
        three = Three(Path(directory))
        assert three.change(before).problems == ()
        for name, (number, death) in deaths.items():
            three.drivers[name].faults = ["none"] * number + [death]
        died = False
        try:
            three.change(after)
        except Died:
            died = True
        for name, driver in three.drivers.items():
            driver.faults = list(faults[name]) if died else []
        three.restart()
        for driver in three.drivers.values():
            driver.faults, driver.away, driver._reader._quiet_until = [], False, 0.0
        three.restart()
        three.manager.reconcile()
        assert three.intents.pending() is None
        assert three.stands() == three.wanted()
        assert three.wanted() == after or (died and three.wanted() == before)
        three.intents.close()


def xcs(*pairs: tuple[int, int]) -> frozenset[CrossConnect]:
    return frozenset(CrossConnect(i, SIZE + e) for i, e in pairs)


FIRST = {name: xcs((1, 1), (2, 2)) for name in NAMES}
SECOND = {name: xcs((1, 2), (2, 1), (3, 3)) for name in NAMES}


@pytest.fixture
def three(tmp_path: Path) -> Three:
    three = Three(tmp_path)
    assert three.change(FIRST).outcome == "done"
    return three


@pytest.mark.parametrize("name", NAMES)
def test_one_of_three_refuses_and_all_are_as_before(three: Three, name: str) -> None:
    # It removes, and does not add.
    three.drivers[name].faults = ["none", "refuse"]
    change = three.change(SECOND)
    assert (change.outcome, change.left) == ("undone", ())
    (problem,) = change.problems
    assert problem.startswith(f"optical switch {name}: ")
    assert "mirror stuck" in problem
    assert three.stands() == three.wanted() == FIRST
    assert three.site.views()[name].complaint is None


@pytest.mark.parametrize("stuck", [1, 2])
def test_a_controller_that_died_in_a_change_finishes_it_or_goes_back(
    three: Three, stuck: int
) -> None:
    """Intent on disk, two of three switches written, then nobody."""
    three.intents.begin("ann", SECOND)
    for name in NAMES[:2]:
        three.drivers[name].stand = set(SECOND[name])
    if stuck == 2:
        three.drivers["c"].faults = ["refuse"]
    three.restart()
    wanted = SECOND if stuck == 1 else FIRST
    assert three.stands() == three.wanted() == wanted
    assert three.intents.pending() is None
    ended = next(
        entry
        for entry in three.intents.audit()
        if entry["action"] in ("finish", "take back")
    )
    assert (ended["who"], ended["action"]) == (
        "reconciler",
        "finish" if stuck == 1 else "take back",
    )
    assert "ann" in str(ended["detail"])
    three.restart()
    assert three.stands() == wanted


def test_an_unfinished_change_goes_back_when_a_switch_is_away_and_that_one_when_it_returns(
    three: Three,
) -> None:
    three.intents.begin("ann", SECOND)
    three.drivers["a"].stand, three.drivers["b"].stand = (
        set(SECOND["a"]),
        set(SECOND["b"]),
    )
    three.drivers["b"].away = True
    three.restart()
    assert three.stands() == {**FIRST, "b": SECOND["b"]}
    three.drivers["b"].away = False
    three.manager.reconcile()
    assert three.stands() == three.wanted() == FIRST


FOREIGN = CrossConnect(4, SIZE + 4)


def meddle(three: Three) -> None:
    """Somebody moves 1 and adds 4 on b."""
    three.drivers["b"].stand = set(xcs((1, 5), (2, 2))) | {FOREIGN}


@pytest.mark.parametrize(
    ("policy", "stands", "intended"),
    [
        (Policy.MEND, FIRST["b"] | {FOREIGN}, FIRST["b"]),
        (Policy.REPAIR, FIRST["b"], FIRST["b"]),
        (Policy.ADOPT, xcs((1, 5), (2, 2), (4, 4)), xcs((1, 5), (2, 2), (4, 4))),
        (Policy.ALARM, xcs((1, 5), (2, 2), (4, 4)), FIRST["b"]),
    ],
)
def test_a_foreign_change_meets_the_policy(
    three: Three,
    policy: Policy,
    stands: frozenset[CrossConnect],
    intended: frozenset[CrossConnect],
) -> None:
    three.manager.set_policy("b", policy, "ann")
    meddle(three)
    for _ in range(3):
        three.manager.reconcile()
    assert three.stands() == {**FIRST, "b": stands}
    assert three.wanted() == {**FIRST, "b": intended}
    kept = three.bus.subscribe(0).take()
    # Told once, and that it is over where the switch carries what it should and nothing else.
    over = policy in (Policy.REPAIR, Policy.ADOPT)
    assert [e["switch"] for e in kept if e["event"] == "drift_over"] == ["b"] * over
    events = [e for e in kept if e["event"] == "drift"]
    assert len(events) == 1
    assert (
        events[0] | {"switch": "b", "policy": policy.value, "missing": ["1->6"]}
        == events[0]
    )
    assert events[0]["foreign"] == ["1->10", "4->9"]
    alarms = [alarm.text for alarm in three.site.alarms("b")]
    told = {
        Policy.MEND: ["4->9 was made by somebody else"],
        Policy.ALARM: [
            "is not as it should be: 1->6 is missing; 1->10, 4->9 were made by somebody else",
        ],
    }
    assert alarms == told.get(policy, [])
    audit = [(entry["who"], entry["action"]) for entry in three.intents.audit("b")]
    acted = {} if policy is Policy.ALARM else {("reconciler", policy.value)}
    assert {("ann", "policy"), ("outside", "drift"), *acted} <= set(audit)
    # What is settled stays so over a restart, and what stands is told again.
    three.restart()
    three.manager.reconcile()
    assert three.stands()["b"] == stands
    assert [alarm.text for alarm in three.site.alarms("b")] == alarms
    # The operator settles it by hand, once.
    three.manager.settle("b", Policy.REPAIR, "ann")
    assert three.stands()["b"] == intended
    assert three.site.alarms("b") == ()


def test_what_a_job_has_alone_is_no_drift_and_cannot_be_settled(three: Three) -> None:
    three.manager.set_policy(None, Policy.REPAIR, "ann")
    three.site.hold("red", ["b"])
    meddle(three)
    stand = three.stands()
    three.manager.reconcile()
    assert three.stands() == stand
    with pytest.raises(Exception, match="kept for job red"):
        three.manager.settle("b", Policy.REPAIR, "ann")
    three.site.release("red")
    three.manager.reconcile()
    assert three.stands() == FIRST
    assert [(e["who"], e["action"]) for e in three.intents.audit()[::-1]][-4:] == [
        ("job red", "hold"),
        ("job red", "release"),
        ("outside", "drift"),
        ("reconciler", "repair"),
    ]


def test_an_unreachable_switch_stops_the_change_and_a_full_disk_does_too(
    three: Three,
) -> None:
    three.drivers["c"].away = True
    with pytest.raises(UnavailableError, match="optical switch c"):
        three.change(SECOND)
    three.drivers["c"].away = False
    (pages,) = three.intents._db.execute("PRAGMA page_count").fetchone()
    three.intents._db.execute(f"PRAGMA max_page_count = {pages}")
    many = {
        name: frozenset(CrossConnect(i, SIZE + i, None, "x" * 4000) for i in INGRESS)
        for name in NAMES
    }
    with pytest.raises(UnavailableError, match="cannot be written"):
        three.change(many)
    assert three.stands() == three.wanted() == FIRST


def test_a_change_that_may_be_done_in_part_is_not_taken_back_and_stays_wanted(
    three: Three,
) -> None:
    three.drivers["b"].faults = ["refuse"]
    change = three.change(SECOND, whole=False)
    assert (change.outcome, change.undone) == ("problems", False)
    assert three.wanted() == SECOND
    three.manager.settle("b", Policy.MEND, "test")
    assert three.stands() == SECOND


def test_kept_light_is_never_written(three: Three) -> None:
    """No write of a change, a failure or a rollback names a cross-connect of both the old and new light."""
    written: list[CrossConnect] = []
    for driver in three.drivers.values():
        effect = driver._write

        def watched(
            batch: Sequence[CrossConnect], done: Any, effect: Any = effect
        ) -> None:
            written.extend(batch)
            effect(batch, done)

        driver._write = watched  # type: ignore[method-assign]
    second = {name: xcs((1, 1), (2, 3), (3, 2)) for name in NAMES}
    for name, faults in itertools.product(
        NAMES, (["refuse"], ["none", "half"], ["lost"], ["none", "lie"])
    ):
        three.drivers[name].faults = list(faults)
        three.change(second)
        three.drivers[name].faults = []
        three.drivers[name]._reader._quiet_until = 0.0
        three.change(FIRST)
    assert written
    assert CrossConnect(1, SIZE + 1) not in written


def test_a_switch_that_takes_long_to_answer_delays_no_word_of_another(
    three: Three,
) -> None:
    plane: Any = FakeTables()
    reconciler = Reconciler(
        FABRIC,
        plane,
        three.site,
        three.manager,
        three.forwarding,
        TableWatch(
            FABRIC, plane, three.forwarding, Store(three.directory / "store"), three.bus
        ),
        three.bus,
        period_s=0.1,
    )
    three.drivers["a"].slow_s = 5.0
    listener = three.bus.subscribe()
    reconciler.start()
    try:
        time.sleep(0.3)
        began = time.monotonic()
        meddle(three)
        while not any(event["event"] == "drift" for event in listener.take()):
            assert time.monotonic() < began + 4.0, "it had to wait for the slow one"
            time.sleep(0.01)
        # Changes of others need not wait either.
        assert (
            three.manager.change({"c": Target(tuple(SECOND["c"]))}, who="test").problems
            == ()
        )
        assert time.monotonic() < began + 4.5
    finally:
        three.drivers["a"].slow_s = 0.0
        reconciler.stop()


def test_achieved_asks_only_for_the_plan() -> None:
    plan = Plan("r", Mode.UPDATE, frozenset(), tuple(xcs((1, 1))), tuple(xcs((1, 2))))
    assert achieved(plan, reading(xcs((1, 2), (4, 4))))
    assert not achieved(plan, reading(xcs((1, 1))))
    assert not achieved(plan, reading(xcs((1, 2)), broken=xcs((1, 2))))


SETTLE_S = 0.4


@pytest.fixture
def settling(three: Three, monkeypatch: pytest.MonkeyPatch) -> Three:
    """What these switches show may still vanish for longer than anybody waits for anything else."""
    monkeypatch.setattr(
        "ringlight.controller.circuits.light_writer.PATIENCE_S", SETTLE_S / 4
    )
    for driver in three.drivers.values():
        driver._capabilities = replace(CAPABILITIES, timing=Timing(settle_s=SETTLE_S))
    return three


def test_a_change_lasts_as_long_as_its_switches_take_to_settle(settling: Three) -> None:
    began = time.monotonic()
    change = settling.change({"a": SECOND["a"]})
    assert (change.outcome, change.problems) == ("done", ())
    assert settling.stands()["a"] == SECOND["a"]
    # It is removed in one write and added in another, and each is looked at twice.
    assert time.monotonic() - began >= 2 * SETTLE_S


def test_light_of_a_job_has_the_time_to_settle(settling: Three) -> None:
    lights = Lights(settling.site, NAMES, patience_s=SETTLE_S / 4)
    try:
        assert lights.declared_s == SETTLE_S
        assert lights.set(SECOND, exactly=True) == (3, [])
        assert settling.stands() == SECOND
    finally:
        lights.close()


def test_a_switch_that_settles_is_not_taken_for_lost(settling: Three) -> None:
    driver, seen = settling.drivers["a"], settling.site.look("a")
    plan = driver.plan(SECOND["a"], Mode.REPLACE, snapshot=seen)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(settling.site.apply, "a", plan, timeout_s=5.0)
        while not driver.stand >= SECOND["a"]:
            time.sleep(0.005)
        with pytest.raises(UnavailableError, match="a: busy with another request"):
            settling.site.look("a", timeout_s=SETTLE_S / 10)
        assert settling.site.view("a").reachable
        assert settling.site.alarms("a") == ()
        assert under_way.result().deviations == ()

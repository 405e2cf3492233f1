"""The base class of the optical drivers, over a switch that is a dictionary."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import RefusedError, UnavailableError
from ringlight.controller.optical import safe_reading
from ringlight.controller.optical.alarms import los_alarms
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    DeadlineExceeded,
    Indeterminate,
    NoSuchPort,
    OpticalError,
    PartialApply,
    PortBusy,
    PortClash,
    PortDisabled,
    PortFailed,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    Rejected,
    StaleRevision,
    Unreachable,
    Unsupported,
    WrongSide,
)
from ringlight.controller.optical.model import (
    Alarm,
    Bounds,
    Capabilities,
    Identity,
    Plan,
    PortStatus,
    Snapshot,
    Timing,
    dual_sided,
)
from ringlight.controller.optical.plan_run import Verb
from ringlight.controller.optical.planning import make_plan
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
    check_matching,
)
from tests.drivers import converge

XC = CrossConnect
SIZE = 8
CONNECTED = CrossConnectState.CONNECTED


class Switch:
    """A switch in memory. ``wire``: every write it got. ``on_write`` runs before a write takes effect."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.lit: dict[XC, CrossConnectState] = {}
        self.disabled: set[int] = set()
        self.failed: set[int] = set()
        self.foreign: set[XC] = set()
        self.wire: list[tuple[str, tuple[XC, ...]]] = []
        self.reads = 0
        self.on_write: Callable[[str, Sequence[XC]], None] = lambda kind, batch: None
        self.after_write: Callable[[str, Sequence[XC]], None] = lambda kind, batch: None
        self.read_error: OpticalError | None = None


class MemoryDriver(OpticalSwitchDriver):
    """What a driver's author writes, and nothing more."""

    def __init__(
        self,
        switch: Switch,
        *,
        max_batch: int = 3,
        max_replace: int = 0,
        timing: Timing = Timing(),
        secrets: Sequence[str] = (),
    ) -> None:
        ingress, egress = dual_sided(switch.size)
        super().__init__(
            "memory",
            Capabilities(
                ingress,
                egress,
                max_batch,
                timing,
                max_replace,
                port_admin=True,
                ownership=True,
            ),
            secrets,
        )
        self.switch = switch

    def _open(self, deadline: Deadline) -> Identity:
        self._read(deadline)
        return Identity("none", "dictionary")

    def _read(self, deadline: Deadline) -> Snapshot:
        self.switch.reads += 1
        if self.switch.read_error:
            raise self.switch.read_error
        used = {p for xc in self.switch.lit for p in (xc.ingress, xc.egress)}
        ports = {
            p: PortStatus(
                PortState.FAILED
                if p in self.switch.failed
                else PortState.TUNED
                if p in used
                else PortState.BLOCKED,
                p not in self.switch.disabled,
            )
            for p in self.capabilities().ports
        }
        return Snapshot(
            self.name, dict(self.switch.lit), ports, frozenset(self.switch.foreign)
        )

    def _remove(self, batch: Sequence[XC], deadline: Deadline) -> None:
        self.switch.wire.append(("remove", tuple(batch)))
        self.switch.on_write("remove", batch)
        for xc in batch:
            del self.switch.lit[xc]
        self.switch.after_write("remove", batch)

    def _add(self, batch: Sequence[XC], deadline: Deadline) -> None:
        self.switch.wire.append(("add", tuple(batch)))
        self.switch.on_write("add", batch)
        for xc in batch:
            self.switch.lit[XC(xc.ingress, xc.egress)] = CONNECTED
        check_matching(self.switch.lit)
        self.switch.after_write("add", batch)

    def _replace(self, whole: Sequence[XC], deadline: Deadline) -> None:
        kept = self.switch.lit.keys() & set(whole)
        changed = tuple(xc for xc in (*self.switch.lit, *whole) if xc not in kept)
        self.switch.wire.append(("replace", changed))
        self.switch.on_write("replace", whole)
        check_matching(whole)
        self.switch.lit = {
            XC(xc.ingress, xc.egress): self.switch.lit.get(xc, CONNECTED)
            for xc in whole
        }
        self.switch.after_write("replace", whole)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        (self.switch.disabled.discard if enabled else self.switch.disabled.add)(port)


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def driver(switch: Switch) -> MemoryDriver:
    return MemoryDriver(switch)


def straight(*ports: int) -> set[XC]:
    return {XC(p, p + SIZE) for p in ports}


class TellingDriver(MemoryDriver):
    """One whose switch tells in one message what it shows after a write."""

    def _write_and_read(
        self, verb: Verb, batch: Sequence[XC], deadline: Deadline
    ) -> Snapshot:
        self._send(verb, batch, deadline)
        self.switch.wire.append(("told", ()))
        return self._read(deadline)


def test_only_the_last_write_is_asked_what_the_switch_shows(switch: Switch) -> None:
    driver = TellingDriver(switch, max_batch=2)
    converge(driver, straight(1, 2, 3))
    switch.wire.clear()
    switch.reads = 0
    began = time.monotonic()
    result = converge(driver, {XC(1, 2 + SIZE), XC(2, 1 + SIZE), XC(4, 4 + SIZE)})
    assert [verb for verb, _ in switch.wire] == ["remove", "add", "add", "told"]
    assert switch.reads == 2, "one to plan from, one that came with the last write"
    assert result.snapshot.taken_at > began
    assert set(switch.lit) == set(result.snapshot.cross_connects)
    assert all(
        r.t_lit == result.snapshot.taken_at for r in result.results if r.action == "add"
    )


@pytest.mark.parametrize(
    "timing",
    [
        Timing(dark=Bounds(0, 0, 0.03)),
        Timing(Bounds(0, 0, 0.03)),
        Timing(per_cross_connect_s=0.03),
    ],
)
def test_light_that_needs_time_is_read_when_that_has_passed(
    switch: Switch, timing: Timing
) -> None:
    driver = TellingDriver(switch, timing=timing)
    began = time.monotonic()
    result = converge(driver, straight(1))
    assert [verb for verb, _ in switch.wire] == ["add"]
    assert result.snapshot.taken_at >= began + 0.03


def test_what_is_told_with_a_write_is_no_better_than_another_reading(
    switch: Switch,
) -> None:
    driver = TellingDriver(switch)
    switch.after_write = lambda *_: switch.lit.clear()
    with pytest.raises(ReadBackMismatch):
        converge(driver, straight(1))
    switch.lit = dict.fromkeys(straight(1), CONNECTED)
    switch.after_write = lambda *_: switch.lit.update(
        dict.fromkeys(straight(1), CONNECTED)
    )
    with pytest.raises(ReadBackMismatch, match="still there"):
        converge(driver, (), delete=[1])
    switch.after_write = lambda *_: switch.lit.update(
        {XC(2, 1 + SIZE): CONNECTED, XC(3, 99): CONNECTED}
    )
    with pytest.raises(Indeterminate, match="read-back failed: impossible"):
        driver.apply(driver.plan(straight(1, 2), Mode.UPDATE))


# Planning


def test_add_repeat_and_delete(switch: Switch, driver: MemoryDriver) -> None:
    result = converge(driver, straight(1, 2))
    assert set(switch.lit) == straight(1, 2)
    assert [(r.action, r.state, r.reason) for r in result.results] == [
        ("add", CONNECTED, "")
    ] * 2
    assert all(r.t_lit is not None and r.t_dark is None for r in result.results)

    writes = len(switch.wire)
    again = converge(driver, straight(1, 2))
    assert not again.plan
    assert again.writes == 0
    assert len(switch.wire) == writes
    assert {r.action for r in again.results} == {"keep"}

    gone = converge(driver, (), delete=[1, 5])
    assert set(switch.lit) == straight(2)
    by_ingress = {r.ingress: r for r in gone.results}
    assert by_ingress[1].state is CrossConnectState.ABSENT
    assert by_ingress[1].t_dark is not None
    assert by_ingress[5].state is CrossConnectState.ABSENT
    assert by_ingress[5].egress is None
    assert gone.deviations == ()


@pytest.mark.parametrize(
    ("wanted", "error", "port"),
    [
        ({XC(99, 9)}, NoSuchPort, 99),
        ({XC(1, 0)}, NoSuchPort, 0),
        ({XC(9, 10)}, WrongSide, 9),
        ({XC(1, 2)}, WrongSide, 2),
        ({XC(1, 9), XC(2, 9)}, PortClash, 9),
        ({XC(1, 9), XC(1, 10)}, PortClash, 1),
        ({XC(3, 11)}, PortDisabled, 3),
        ({XC(5, 16)}, PortFailed, 16),
        ({XC(1, 12)}, PortBusy, 12),
    ],
)
def test_bad_requests_name_the_port_and_write_nothing(
    switch: Switch,
    driver: MemoryDriver,
    wanted: set[XC],
    error: type[OpticalError],
    port: int,
) -> None:
    switch.lit[XC(4, 12)] = CONNECTED
    switch.disabled, switch.failed = {3}, {16}
    with pytest.raises(error) as caught:
        converge(driver, wanted, Mode.SAFE)
    assert caught.value.port == port  # type: ignore[attr-defined]
    assert f"port {port}" in str(caught.value)
    assert isinstance(caught.value, Rejected)
    assert switch.wire == []


def test_other_rejections(switch: Switch, driver: MemoryDriver) -> None:
    switch.lit[XC(1, 9)] = CONNECTED
    with pytest.raises(Rejected, match="port 1 is both wanted and to be deleted"):
        driver.plan([XC(1, 10)], delete=[1])
    with pytest.raises(WrongSide):
        driver.plan([], delete=[9])
    with pytest.raises(NoSuchPort):
        driver.plan([], delete=[0])
    with pytest.raises(Unsupported, match="wavelength"):
        driver.plan([XC(1, 9, wavelength=3)])
    assert switch.wire == []


def test_removals_precede_additions_in_batches(
    switch: Switch, driver: MemoryDriver
) -> None:
    converge(driver, {XC(i, 9 + i % SIZE) for i in range(1, 9)})
    switch.wire.clear()
    converge(driver, {XC(i, 9 + (i + 1) % SIZE) for i in range(1, 9)})
    kinds = [kind for kind, _ in switch.wire]
    assert kinds == ["remove"] * 3 + ["add"] * 3
    assert [len(batch) for _, batch in switch.wire] == [3, 3, 2, 3, 3, 2]


def test_kept_cross_connects_are_not_written(
    switch: Switch, driver: MemoryDriver
) -> None:
    converge(driver, straight(1, 2, 3))
    switch.wire.clear()
    converge(driver, {XC(2, 11), XC(3, 10), *straight(1)}, Mode.REPLACE)
    assert XC(1, 9) not in {xc for _, batch in switch.wire for xc in batch}
    assert set(switch.lit) == {XC(1, 9), XC(2, 11), XC(3, 10)}


def test_a_switch_that_can_replaces_everything_in_one_write(switch: Switch) -> None:
    driver = MemoryDriver(switch, max_replace=3)
    converge(driver, straight(1, 2, 3))
    switch.wire.clear()
    result = converge(driver, {XC(2, 11), XC(3, 10), *straight(1)}, Mode.REPLACE)
    assert [kind for kind, _ in switch.wire] == ["replace"]
    assert set(switch.lit) == {XC(1, 9), XC(2, 11), XC(3, 10)}
    times = {(r.ingress, r.egress): r.t_dark for r in result.results}
    assert times[1, 9] is None
    assert times[2, 11] is not None


@pytest.mark.parametrize(
    ("wanted", "mode"),
    [
        # What others have made meanwhile may be removed in REPLACE mode only.
        ({XC(2, 11), XC(3, 10)}, Mode.UPDATE),
        # More than the write can carry.
        ({XC(1, 9), XC(2, 11), XC(3, 10), XC(4, 12)}, Mode.REPLACE),
        # Nothing to gain: only added, only removed.
        (straight(1, 2, 3), Mode.REPLACE),
        (straight(1), Mode.REPLACE),
    ],
)
def test_else_it_removes_and_adds(switch: Switch, wanted: set[XC], mode: Mode) -> None:
    driver = MemoryDriver(switch, max_replace=3)
    converge(
        driver, straight(1, 2) if wanted == straight(1, 2, 3) else straight(1, 2, 3)
    )
    switch.wire.clear()
    converge(driver, wanted, mode)
    assert "replace" not in [kind for kind, _ in switch.wire]
    assert wanted <= set(switch.lit)


def test_a_broken_cross_connect_is_not_left_as_it_is_by_a_replacement(
    switch: Switch,
) -> None:
    driver = MemoryDriver(switch, max_replace=8)
    converge(driver, straight(1, 2))
    switch.lit[XC(1, 9)] = CrossConnectState.FAILED
    converge(driver, {XC(1, 9), XC(2, 11)}, Mode.REPLACE)
    assert switch.lit == {XC(1, 9): CONNECTED, XC(2, 11): CONNECTED}


def test_ownership(switch: Switch, driver: MemoryDriver) -> None:
    switch.lit[XC(1, 9)] = CONNECTED
    switch.foreign = {XC(1, 9)}
    with pytest.raises(PortBusy, match="another owner"):
        converge(driver, {XC(1, 10)})
    with pytest.raises(PortBusy, match="another owner"):
        converge(driver, [], delete=[1])
    with pytest.raises(PortBusy):
        driver.plan({XC(1, 10)}, owned=())
    converge(driver, {XC(1, 10)}, owned={XC(1, 9)})
    assert set(switch.lit) == {XC(1, 10)}
    switch.foreign = {XC(1, 10)}
    converge(driver, (), Mode.REPLACE)
    assert not switch.lit


def test_a_broken_cross_connect_is_made_again(
    switch: Switch, driver: MemoryDriver
) -> None:
    switch.lit = {XC(1, 9): CrossConnectState.FAILED, XC(2, 10): CONNECTED}
    converge(driver, straight(1, 2), Mode.SAFE)
    assert switch.wire == [("remove", (XC(1, 9),)), ("add", (XC(1, 9),))]
    assert set(switch.lit.values()) == {CONNECTED}


def test_names_stay(switch: Switch, driver: MemoryDriver) -> None:
    converge(driver, {XC(1, 9, name="red")})
    converge(driver, straight(2))
    assert {xc.ingress: xc.name for xc in driver.snapshot().cross_connects} == {
        1: "red",
        2: None,
    }
    writes = len(switch.wire)
    converge(driver, {XC(1, 9, name="blue")})
    assert {xc.name for xc in driver.snapshot().cross_connects} == {"blue", None}
    assert len(switch.wire) == writes
    converge(driver, (), delete=[1])
    converge(driver, straight(1))
    assert {xc.name for xc in driver.snapshot().cross_connects} == {None}


# Faults


def test_a_failed_read_is_never_an_empty_switch(
    switch: Switch, driver: MemoryDriver
) -> None:
    converge(driver, straight(1))
    switch.read_error = ProtocolError("no list")
    for call in (driver.snapshot, driver.alarms, lambda: converge(driver, straight(2))):
        with pytest.raises(ProtocolError):
            call()
    assert set(switch.lit) == straight(1)


def test_an_impossible_reading_is_an_error(
    switch: Switch, driver: MemoryDriver
) -> None:
    switch.lit = {XC(1, 9): CONNECTED, XC(2, 9): CONNECTED}
    with pytest.raises(ProtocolError, match="impossible state"):
        driver.snapshot()
    switch.lit = {XC(1, 99): CONNECTED}
    with pytest.raises(ProtocolError, match="1->99"):
        driver.snapshot()
    switch.lit, switch.size = {}, SIZE
    driver._read = lambda deadline: Snapshot("memory", {}, {})  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="other ports"):
        driver.snapshot()


def test_another_writer_makes_the_plan_stale(
    switch: Switch, driver: MemoryDriver
) -> None:
    plan = driver.plan(straight(1))
    switch.lit[XC(5, 13)] = CONNECTED
    with pytest.raises(StaleRevision):
        driver.apply(plan)
    assert switch.wire == []
    assert (
        MemoryDriver(Switch()).snapshot().revision
        == MemoryDriver(Switch()).snapshot().revision
    )


def test_a_reading_a_moment_old_is_not_repeated(
    switch: Switch, driver: MemoryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_reading, "FRESH_S", 60.0)
    seen = driver.snapshot()
    plan = driver.plan(straight(1), snapshot=seen)
    switch.reads = 0
    assert driver.apply(plan, seen=seen).deviations == ()
    assert switch.reads == 1
    # Older than the driver's own write: read again.
    with pytest.raises(StaleRevision):
        driver.apply(plan, seen=seen)
    # Someone else came in between: the read-back tells.
    seen = driver.snapshot()
    plan = driver.plan(straight(2), Mode.REPLACE, snapshot=seen)
    switch.lit[XC(5, 13)] = CONNECTED
    with pytest.raises(ReadBackMismatch, match="someone else"):
        driver.apply(plan, seen=seen)
    # Too old.
    monkeypatch.setattr(safe_reading, "FRESH_S", 0.0)
    seen = driver.snapshot()
    plan = driver.plan(straight(3), snapshot=seen)
    switch.lit[XC(6, 14)] = CONNECTED
    with pytest.raises(StaleRevision):
        driver.apply(plan, seen=seen)


def test_one_write_that_would_remove_what_others_made_is_preceded_by_a_reading(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_reading, "FRESH_S", 60.0)
    driver = MemoryDriver(switch, max_replace=8)
    converge(driver, straight(1))
    seen = driver.snapshot()
    plan = driver.plan([XC(1, 10)], Mode.REPLACE, snapshot=seen)
    switch.lit[XC(5, 13)] = CONNECTED
    with pytest.raises(StaleRevision):
        driver.apply(plan, seen=seen)


def test_a_port_disabled_after_planning(switch: Switch, driver: MemoryDriver) -> None:
    plan = driver.plan(straight(1))
    assert driver.set_port_enabled(9, False).enabled is False
    with pytest.raises(PortDisabled):
        driver.apply(plan)
    with pytest.raises(PortDisabled):
        driver.plan(straight(1))
    assert switch.wire == []


class Silent(MemoryDriver):
    """Its switch answers no more readings once so many have been asked for."""

    answers = 1 << 30

    def _read(self, deadline: Deadline) -> Snapshot:
        if self.switch.reads >= self.answers:
            raise Unreachable("the switch closed the connection")
        return super()._read(deadline)


def test_a_port_whose_state_cannot_be_read_back_is_an_unknown_outcome(
    switch: Switch,
) -> None:
    driver = Silent(switch)
    driver.answers = 0
    with pytest.raises(
        Indeterminate, match="port 9: written, but the read-back failed"
    ):
        driver.set_port_enabled(9, False)
    assert switch.disabled == {9}


def test_what_became_of_a_port_is_noted_and_a_later_reading_that_fails_does_not_undo_it(
    switch: Switch,
) -> None:
    driver, noted = Silent(switch), list[tuple[Any, ...]]()
    site = OpticalSite(
        {"ocs0": driver},
        {"ocs0": {}},
        EventBus(),
        lambda *said, **_: noted.append(said),
    )
    driver.answers = 1
    assert site.set_port_enabled("ocs0", 9, False, who="ann").enabled is False
    assert noted == [("ann", "disable", "ocs0")]
    with pytest.raises(UnavailableError, match="outcome unknown"):
        site.set_port_enabled("ocs0", 9, True, who="ann")
    assert noted[1:] == [("ann", "enable", "ocs0", "failed")]


class Obstinate(MemoryDriver):
    """Its switch accepts a word about a port and does nothing, or says no."""

    says: Exception | None = None

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        if self.says is not None:
            raise self.says


@pytest.mark.parametrize("says", [None, Refused("SRCN: not allowed")])
def test_a_port_that_a_switch_leaves_as_it_is_is_not_a_switch_out_of_reach(
    switch: Switch, says: Exception | None
) -> None:
    driver = Obstinate(switch)
    driver.says = says
    site = OpticalSite({"ocs0": driver}, {"ocs0": {}}, EventBus())
    with pytest.raises(RefusedError, match="optical switch ocs0: "):
        site.set_port_enabled("ocs0", 9, False, who="ann")


class Metered(MemoryDriver):
    """Has a meter at every port; light comes in at ``sending`` and goes out over cross-connects."""

    sending: frozenset[int] = frozenset()

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        out = {
            xc.egress for xc in snapshot.cross_connects if xc.ingress in self.sending
        }
        ports = snapshot.ports
        return los_alarms(
            snapshot,
            {port: -3.0 if port in self.sending | out else -60.0 for port in ports},
        )


def alarms_published(bus: EventBus) -> list[tuple[str, int]]:
    events: list[Any] = bus.subscribe(after=0).take()
    return [
        (event["event"], event["port"]) for event in events if "alarm" in event["event"]
    ]


def test_a_port_that_never_had_light_does_not_raise_an_alarm(switch: Switch) -> None:
    driver, bus = Metered(switch), EventBus()
    site = OpticalSite({"ocs0": driver}, {"ocs0": {}}, bus)
    converge(driver, straight(1, 2))
    site.look("ocs0", with_alarms=True)
    # A lab in which no worker is up yet: the switch says so, but nothing has gone wrong.
    assert {alarm.port for alarm in site.alarms("ocs0")} == {1, 2}
    assert alarms_published(bus) == []
    driver.sending = frozenset({1})
    # Only the ports are read here; what the meters say is as old as before.
    site.look("ocs0")
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == []
    driver.sending = frozenset()
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == [("optical_alarm", 1)]
    driver.sending = frozenset({1, 2})
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == [("optical_alarm", 1), ("optical_alarm_cleared", 1)]
    driver.sending = frozenset({1})
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus)[2:] == [("optical_alarm", 2)]


def test_a_port_that_is_set_to_another_that_never_had_light_is_not_taken_to_have_lost_it(
    switch: Switch,
) -> None:
    driver, bus = Metered(switch), EventBus()
    site = OpticalSite({"ocs0": driver}, {"ocs0": {}}, bus)
    converge(driver, straight(1))
    driver.sending = frozenset({1})
    site.look("ocs0", with_alarms=True)
    converge(driver, straight(1, 2))
    site.look("ocs0")
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == []
    switch.failed.add(2)
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == [("optical_alarm", 2)]


def test_a_controller_that_is_started_again_takes_no_dark_port_for_one_that_never_had_light(
    switch: Switch,
) -> None:
    driver, bus = Metered(switch), EventBus()
    site = OpticalSite({"ocs0": driver}, {"ocs0": {}}, bus, anew=False)
    converge(driver, straight(1))
    site.look("ocs0", with_alarms=True)
    assert alarms_published(bus) == [("optical_alarm", 1)]


def test_reply_lost_after_effect(switch: Switch, driver: MemoryDriver) -> None:
    def lose(kind: str, batch: Sequence[XC]) -> None:
        switch.after_write = lambda kind, batch: None
        raise Indeterminate("no reply")

    switch.after_write = lose
    plan = driver.plan(straight(1))
    with pytest.raises(Indeterminate, match="read before retrying"):
        driver.apply(plan)
    assert set(switch.lit) == straight(1)
    with pytest.raises(StaleRevision):
        driver.apply(plan)
    switch.wire.clear()
    assert converge(driver, straight(1)).deviations == ()
    assert switch.wire == []

    switch.after_write = lose
    converge(driver, straight(1, 2))
    assert switch.wire == [("add", (XC(2, 10),))]


def test_the_next_read_waits_for_a_late_command(switch: Switch) -> None:
    timing = Timing(Bounds(0, 0, 0.03), 0.0, Bounds(0, 0, 0.05))
    driver = MemoryDriver(switch, timing=timing)

    def late(kind: str, batch: Sequence[XC]) -> None:
        switch.on_write = lambda kind, batch: None
        threading.Timer(
            0.04, lambda: switch.lit.update(dict.fromkeys(batch, CONNECTED))
        ).start()
        raise Indeterminate("no reply")

    switch.on_write = late
    converge(driver, straight(1))
    assert switch.wire == [("add", (XC(1, 9),))]
    assert set(switch.lit) == straight(1)


def test_failed_read_back_is_indeterminate(
    switch: Switch, driver: MemoryDriver
) -> None:
    plan = driver.plan(straight(1))

    def cut(kind: str, batch: Sequence[XC]) -> None:
        switch.read_error = Unreachable("gone")

    switch.after_write = cut
    with pytest.raises(Indeterminate, match="read-back failed"):
        driver.apply(plan)


def test_refused(switch: Switch, driver: MemoryDriver) -> None:
    def refuse(kind: str, batch: Sequence[XC]) -> None:
        if kind == "add" and batch[0].ingress > 3:
            raise Refused("-222 out of range")

    switch.on_write = refuse
    with pytest.raises(Refused, match="-222"):
        converge(driver, straight(4))
    assert not switch.lit
    with pytest.raises(PartialApply) as caught:
        converge(driver, straight(1, 2, 3, 4))
    assert caught.value.result is not None
    bad = caught.value.result.deviations
    assert [(r.ingress, r.state) for r in bad] == [(4, CrossConnectState.ABSENT)]
    assert "-222" in bad[0].reason
    assert set(switch.lit) == straight(1, 2, 3)


def test_read_back_decides_against_the_switchs_no(
    switch: Switch, driver: MemoryDriver
) -> None:
    def lie(kind: str, batch: Sequence[XC]) -> None:
        raise Refused("no")

    switch.after_write = lie
    assert converge(driver, straight(1)).deviations == ()


@pytest.mark.parametrize("kind", ["remove", "add"])
def test_read_back_decides_against_the_switchs_yes(
    switch: Switch, driver: MemoryDriver, kind: str
) -> None:
    switch.lit = dict.fromkeys(straight(1, 3), CONNECTED)

    def undo(done: str, batch: Sequence[XC]) -> None:
        for xc in batch if done == kind else ():
            if kind == "add":
                del switch.lit[xc]
            else:
                switch.lit[xc] = CONNECTED

    switch.after_write = undo
    with pytest.raises(ReadBackMismatch) as caught:
        converge(driver, {XC(2, 10)}, Mode.UPDATE, delete=[1])
    assert caught.value.result is not None
    assert [r.action for r in caught.value.result.deviations] == [kind]


def test_collateral_damage_and_intruders_are_reported(
    switch: Switch, driver: MemoryDriver
) -> None:
    converge(driver, straight(1, 2))

    def vanish(kind: str, batch: Sequence[XC]) -> None:
        del switch.lit[XC(2, 10)]
        switch.lit[XC(7, 15)] = CONNECTED

    switch.after_write = vanish
    with pytest.raises(ReadBackMismatch) as caught:
        converge(driver, straight(1, 2, 3), Mode.REPLACE)
    assert caught.value.result is not None
    assert {(r.action, r.ingress) for r in caught.value.result.deviations} == {
        ("keep", 2),
        ("foreign", 7),
    }


def test_waits_for_light_and_gives_the_times(switch: Switch) -> None:
    timing = Timing(dark=Bounds(0.01, 0.02, 0.5))
    driver = MemoryDriver(switch, timing=timing)
    converge(driver, straight(1))
    switch.on_write = lambda kind, batch: time.sleep(0.005)
    result = converge(driver, {XC(1, 10)})
    add = next(r for r in result.results if r.action == "add")
    assert add.t_dark is not None
    assert add.t_lit is not None
    assert 0.5 <= add.t_lit - add.t_dark < 5.0
    quick = converge(driver, {XC(1, 11)}, settle=False)
    add = next(r for r in quick.results if r.action == "add")
    assert add.t_lit is not None
    assert add.t_dark is not None
    assert add.t_lit - add.t_dark < 0.4


def test_does_not_wait_for_light_again_where_the_answer_says_that_it_is_there(
    switch: Switch,
) -> None:
    def dark_s(after_answer_s: float | None) -> float:
        timing = Timing(dark=Bounds(0.5, 0.5, 0.5), after_answer_s=after_answer_s)
        converge(MemoryDriver(switch, timing=timing), {XC(1, 9)})
        done = converge(MemoryDriver(switch, timing=timing), {XC(1, 10)})
        entry = next(r for r in done.results if r.action == "add")
        assert entry.t_lit is not None
        assert entry.t_dark is not None
        return entry.t_lit - entry.t_dark

    assert dark_s(None) >= 0.5
    # What is left is the receiver's, as this answer came at once.
    assert 0.1 <= dark_s(0.1) < 0.4
    assert dark_s(0.0) < 0.3


def test_a_write_that_takes_effect_later_than_declared_is_given_its_dark_time(
    switch: Switch,
) -> None:
    made = []

    def late(kind: str, batch: Sequence[XC]) -> None:
        time.sleep(0.1)
        made.append(time.monotonic())

    switch.on_write = late
    timing = Timing(Bounds(0.01, 0.01, 0.01), 0.0, Bounds(0.05, 0.05, 0.05))
    done = converge(MemoryDriver(switch, timing=timing), {XC(1, 9)})
    (entry,) = done.results
    assert entry.t_lit is not None
    assert entry.t_lit >= made[0] + 0.05


def test_a_slow_cross_connect_is_awaited_and_a_stuck_one_reported(
    switch: Switch,
) -> None:
    driver = MemoryDriver(switch, timing=Timing(dark=Bounds(0, 0, 0.01)))

    def pend(kind: str, batch: Sequence[XC]) -> None:
        switch.lit.update(dict.fromkeys(batch, CrossConnectState.PENDING_CONNECTION))

    def tune(kind: str, batch: Sequence[XC]) -> None:
        pend(kind, batch)
        threading.Timer(
            0.06, lambda: switch.lit.update(dict.fromkeys(batch, CONNECTED))
        ).start()

    switch.after_write = tune
    assert converge(driver, straight(1)).results[0].state is CONNECTED
    switch.after_write = pend
    with pytest.raises(ReadBackMismatch, match="no light by the deadline"):
        converge(driver, straight(2), timeout_s=0.2)
    result = converge(driver, straight(3), settle=False)
    assert {r.state for r in result.results if r.action == "add"} == {
        CrossConnectState.PENDING_CONNECTION
    }


def test_a_deadline_too_short_writes_nothing(switch: Switch) -> None:
    driver = MemoryDriver(switch, timing=Timing(dark=Bounds(5, 5, 5)))
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="nothing was written"):
        converge(driver, straight(1), timeout_s=2)
    assert time.monotonic() - started < 1.5
    assert switch.wire == []


def test_a_deadline_that_passes_half_way_is_indeterminate(
    switch: Switch, driver: MemoryDriver
) -> None:
    switch.on_write = lambda kind, batch: time.sleep(0.06)
    with pytest.raises(Indeterminate, match="1 of 2 writes"):
        driver.apply(driver.plan(straight(1, 2, 3, 4)), timeout_s=0.05)
    assert set(switch.lit) == straight(1, 2, 3)


def test_a_held_switch_respects_the_deadline(
    switch: Switch, driver: MemoryDriver
) -> None:
    entered = threading.Event()

    def hold(kind: str, batch: Sequence[XC]) -> None:
        entered.set()
        time.sleep(0.3)

    switch.on_write = hold
    thread = threading.Thread(target=lambda: converge(driver, straight(1)))
    thread.start()
    try:
        assert entered.wait(5)
        with pytest.raises(DeadlineExceeded, match="busy"):
            driver.snapshot(timeout_s=0.05)
    finally:
        thread.join()


def test_closed(driver: MemoryDriver) -> None:
    driver.close()
    driver.close()
    with pytest.raises(Unreachable, match="closed"):
        driver.snapshot()
    assert driver.open() == Identity("none", "dictionary")
    driver.snapshot()


def test_alarms_from_ports(switch: Switch, driver: MemoryDriver) -> None:
    switch.failed, switch.disabled = {3}, {4}
    assert [(a.kind, a.port) for a in driver.alarms()] == [
        ("PORT_FAILED", 3),
        ("PORT_DISABLED", 4),
    ]


def test_secrets_stay_out_of_logs_and_errors(
    switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    driver = MemoryDriver(switch, secrets=["hunter2"])

    def refuse(kind: str, batch: Sequence[XC]) -> None:
        raise Refused("bad login root:hunter2")

    switch.on_write = refuse
    with pytest.raises(Refused) as refused:
        converge(driver, straight(1))
    switch.on_write = lambda kind, batch: None
    switch.after_write = refuse
    converge(driver, straight(1))
    switch.read_error = ProtocolError("odd reply", "hello hunter2")
    with pytest.raises(ProtocolError) as odd:
        driver.snapshot()
    assert "hunter2" not in f"{refused.value}{odd.value}{odd.value.raw}{caplog.text}"
    assert "***" in str(refused.value)
    assert "refused, yet done" in caplog.text


def test_power_of_ports_without_a_meter_is_none(driver: MemoryDriver) -> None:
    assert driver.power_dbm([1, 9]) == {1: None, 9: None}
    with pytest.raises(NoSuchPort):
        driver.power_dbm([77])


def test_registry_names_what_is_wrong() -> None:
    for entry, message in (
        ({}, "not a driver's name"),
        ({"driver": "../x"}, "not a driver's name"),
        ({"driver": "base"}, "there is no driver 'base'"),
        ({"driver": "tl9"}, "there is no driver 'tl9'"),
        ({"driver": "scpi"}, "lacks 'address'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_driver("ocs0", entry, 8)


# Concurrency


def test_disjoint_changes_from_many_threads_end_in_the_union() -> None:
    size = 64
    switch = Switch(size)
    driver = MemoryDriver(switch)
    wanted = [XC(p, p % size + 1 + size) for p in range(1, size + 1)]
    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(converge, driver, [xc], Mode.SAFE) for xc in wanted]:
            assert future.result(timeout=30).deviations == ()
    assert set(switch.lit) == set(wanted)


def test_of_conflicting_changes_exactly_one_wins() -> None:
    switch = Switch(32)
    driver = MemoryDriver(switch)
    start = threading.Barrier(16)
    plans = [driver.plan([XC(p, 33)], Mode.SAFE) for p in range(1, 17)]

    def apply(plan: Plan) -> str:
        start.wait(10)
        try:
            driver.apply(plan)
        except StaleRevision:
            return "stale"
        return "won"

    def race(port: int) -> str:
        start.wait(10)
        try:
            converge(driver, [XC(port, 64)], Mode.SAFE)
        except PortBusy:
            return "busy"
        return "won"

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(apply, plans, timeout=30)) == ["stale"] * 15 + ["won"]
        assert sorted(pool.map(race, range(17, 33), timeout=30)) == ["busy"] * 15 + [
            "won"
        ]
    assert len(switch.lit) == 2


# Any sequence of changes, with and without faults


@st.composite
def matchings(draw: st.DrawFn) -> frozenset[XC]:
    ingress = draw(st.lists(st.integers(1, SIZE), unique=True, max_size=SIZE))
    egress = draw(st.permutations(range(SIZE + 1, 2 * SIZE + 1)))
    return frozenset(XC(i, e) for i, e in zip(ingress, egress, strict=False))


def model(
    present: frozenset[XC], wanted: frozenset[XC], mode: Mode
) -> frozenset[XC] | None:
    """What must stand afterwards; None if the change must be refused."""
    if mode is Mode.REPLACE:
        return wanted
    ports = {p for xc in wanted for p in (xc.ingress, xc.egress)}
    rest = {
        xc
        for xc in present - wanted
        if xc.ingress not in ports and xc.egress not in ports
    }
    if mode is Mode.SAFE and rest | wanted != present | wanted:
        return None
    return frozenset(rest | wanted)


@given(
    steps=st.lists(st.tuples(matchings(), st.sampled_from(Mode)), max_size=6),
    seed=st.integers(0, 2**16),
    faults=st.booleans(),
    max_replace=st.sampled_from([0, 4, 8]),
)
@settings(max_examples=200)
def test_any_sequence_follows_the_model(
    steps: list[tuple[frozenset[XC], Mode]], seed: int, faults: bool, max_replace: int
) -> None:
    switch = Switch()
    driver = MemoryDriver(switch, max_replace=max_replace)
    chance = random.Random(seed)

    def maybe_lose(kind: str, batch: Sequence[XC]) -> None:
        if faults and chance.random() < 0.3:
            raise Indeterminate("reply lost")

    switch.on_write = switch.after_write = maybe_lose
    for wanted, mode in steps:
        before = frozenset(switch.lit)
        expected = model(before, wanted, mode)
        writes = len(switch.wire)
        try:
            result = converge(driver, wanted, mode)
        except PortBusy:
            # After a lost reply a SAFE retry meets only what it made itself.
            assert expected is None
            assert frozenset(switch.lit) == before
            assert len(switch.wire) == writes
        except Indeterminate:
            assert faults
        else:
            assert (
                frozenset(switch.lit)
                == expected
                == frozenset(result.snapshot.cross_connects)
            )
            touched = {xc for _, batch in switch.wire[writes:] for xc in batch}
            assert not touched & before & wanted
            if not faults:
                assert result.plan.dark_ports == {
                    p for xc in touched for p in (xc.ingress, xc.egress)
                }
        check_matching(switch.lit)


@given(
    present=matchings(),
    wanted=matchings(),
    mode=st.sampled_from([Mode.UPDATE, Mode.REPLACE]),
)
def test_a_plan_is_no_bigger_than_it_must_be(
    present: frozenset[XC], wanted: frozenset[XC], mode: Mode
) -> None:
    ingress, egress = dual_sided(SIZE)
    can = Capabilities(ingress, egress, max_batch=100)
    ports = {p: PortStatus(PortState.BLOCKED) for p in can.ports}
    snapshot = Snapshot("s", dict.fromkeys(present, CONNECTED), ports)
    plan = make_plan(can, snapshot, wanted, mode)
    expected = model(present, wanted, mode)
    assert expected is not None
    assert set(plan.add) == expected - present
    assert set(plan.remove) == present - expected
    assert plan.keep == present & expected
    anew = make_plan(can, snapshot, wanted, mode, anew=True)
    assert set(anew.add) == wanted
    assert set(anew.remove) == (present - expected) | (present & wanted)
    assert anew.keep == present & expected - wanted

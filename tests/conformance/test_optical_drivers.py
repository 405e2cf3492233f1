"""What every optical switch driver must do, on a switch that really switches packets.

A new driver is a line in ``DRIVERS``: a rig from ``tests.conformance.rigs`` around its switch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.optical.base import OpticalSwitchDriver
from controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    NoSuchPort,
    OpticalError,
    PortBusy,
    PortClash,
    PortDisabled,
    PortFailed,
    ProtocolError,
    StaleRevision,
    Unreachable,
    Unsupported,
    WrongSide,
)
from controller.optical.registry import make_driver
from fabric.crossconnect import CrossConnect, CrossConnectState, Mode, PortState
from tests.conformance.network import Stream
from tests.conformance.rest_rigs import CalientRestRig, PolatisRestconfRig
from tests.conformance.rigs import HOSTS, SIZE, OpenFlowRig, Rig, ScpiRig, WssRig
from tests.conformance.tl1_rigs import CalientTl1Rig, PolatisTl1Rig
from tests.drivers import converge

DRIVERS = [
    pytest.param(ScpiRig, id="scpi"),
    pytest.param(WssRig, id="scpi-wss"),
    pytest.param(PolatisTl1Rig, id="polatis-tl1"),
    pytest.param(CalientTl1Rig, id="calient-tl1"),
    pytest.param(PolatisRestconfRig, id="polatis-restconf"),
    pytest.param(CalientRestRig, id="calient-rest"),
    pytest.param(OpenFlowRig, id="openflow"),
]

pytestmark = pytest.mark.root


@pytest.fixture(scope="class", params=DRIVERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig = request.param()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def driver(rig: Rig) -> Iterator[OpticalSwitchDriver]:
    """An open driver of a switch without cross-connects."""
    made = rig.driver()
    made.open()
    converge(made, (), Mode.REPLACE, settle=False)
    rig.writes()
    try:
        yield made
    finally:
        made.close()


def standing(driver: OpticalSwitchDriver) -> set[CrossConnect]:
    return set(driver.snapshot().cross_connects)


def writes_for(driver: OpticalSwitchDriver, removed: int, added: int) -> int:
    """How many writes it takes to remove and then add so many."""
    can = driver.capabilities()
    return -(-removed // (can.max_remove or can.max_batch)) + -(-added // can.max_batch)


def wait_for_light(since_s: float) -> None:
    """A switch whose process was held up is later than it declares; monotonic seconds."""
    time.sleep(max(0.0, since_s - time.monotonic()))


def at_rest(rig: Rig) -> dict[int, int]:
    """What every NIC has received, once nothing arrives any more of what was sent before."""
    deadline = time.monotonic() + 5
    found: dict[int, int] = {}
    while found != (now := {number: host.nic_received() for number, host in rig.hosts.items()}):
        assert time.monotonic() < deadline, "packets keep coming"
        found = now
        time.sleep(0.1)
    return found


class TestOpticalDriver:
    # Identity and reading

    def test_identity(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        who = driver.open()
        assert who.vendor
        assert who.model
        assert who.version

    def test_unreachable_is_told_apart(self, rig: Rig) -> None:
        nobody = rig.unreachable()
        started = time.monotonic()
        with pytest.raises(Unreachable):
            nobody.open(timeout_s=1)
        with pytest.raises(Unreachable):
            nobody.snapshot(timeout_s=1)
        assert time.monotonic() - started < 6
        nobody.close()

    def test_a_wrong_password_is_told_apart(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        stranger = rig.locked_out()
        if stranger is None:
            pytest.skip("this switch has no login")
        caplog.set_level(logging.DEBUG)
        try:
            for call in (stranger.open, stranger.snapshot):
                with pytest.raises(AuthFailed) as caught:
                    call()
                assert "wr0ng" not in str(caught.value)
        finally:
            stranger.close()
        assert "wr0ng" not in caplog.text

    def test_inventory(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        can = driver.capabilities()
        assert can.ingress == set(range(1, SIZE + 1))
        assert can.egress == set(range(SIZE + 1, 2 * SIZE + 1))
        ports = driver.snapshot().ports
        assert ports.keys() == can.ports
        failed = {port for port, status in ports.items() if status.state is PortState.FAILED}
        assert failed == ({rig.failed_port} if rig.failed_port else set())

    def test_empty(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        assert driver.snapshot().cross_connects == {}
        assert rig.truth() == set()

    def test_a_failed_read_raises(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 2)])
        rig.writes()
        with rig.broken_reads():
            for call in (
                lambda: driver.snapshot(timeout_s=1),
                lambda: converge(driver, [rig.xc(3, 4)], timeout_s=1),
                lambda: driver.alarms(timeout_s=1),
            ):
                with pytest.raises(OpticalError):
                    call()
        assert rig.writes() == []
        assert standing(driver) == {rig.xc(1, 2)}

    # Writing

    def test_add_and_repeat(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        result = converge(driver, [rig.xc(1, 2)])
        assert [(r.action, r.state, r.reason) for r in result.results] == [
            ("add", CrossConnectState.CONNECTED, "")
        ]
        assert rig.truth() == {rig.xc(1, 2)} == standing(driver)
        assert len(rig.writes()) == 1
        again = converge(driver, [rig.xc(1, 2)])
        assert not again.plan
        assert rig.writes() == []

    def test_add_many_in_one_write(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        wanted = {rig.xc(p, p) for p in range(1, SIZE)}
        converge(driver, wanted)
        assert len(rig.writes()) == 1
        assert rig.truth() == wanted == standing(driver)

    def test_names_stay(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [replace(rig.xc(1, 2), name="red"), rig.xc(2, 1)])
        converge(driver, [rig.xc(3, 4)])
        assert {x.name for x in driver.snapshot().cross_connects} == {"red", None}

    def test_move(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 2)])
        result = converge(driver, [rig.xc(1, 3)])
        assert rig.truth() == {rig.xc(1, 3)}
        by_action = {r.action: r for r in result.results}
        assert by_action["remove"].state is CrossConnectState.ABSENT
        assert by_action["add"].t_dark is not None
        assert by_action["add"].t_lit is not None
        assert by_action["add"].t_dark < by_action["add"].t_lit

    def test_swap(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 2), rig.xc(3, 4)])
        rig.writes()
        converge(driver, [rig.xc(1, 4), rig.xc(3, 2)])
        assert rig.truth() == {rig.xc(1, 4), rig.xc(3, 2)}
        assert len(rig.writes()) == writes_for(driver, 2, 2)

    def test_what_stands_is_made_anew_where_that_is_asked(
        self, rig: Rig, driver: OpticalSwitchDriver
    ) -> None:
        stays, goes, comes = rig.xc(1, 2), rig.xc(3, 4), rig.xc(5, 1)
        converge(driver, [stays, goes])
        rig.writes()
        plan = driver.plan([stays, comes], Mode.REPLACE, anew=True)
        assert (set(plan.remove), set(plan.add)) == ({stays, goes}, {stays, comes})
        result = driver.apply(plan)
        assert rig.truth() == {stays, comes} == standing(driver)
        assert not result.deviations
        assert len(rig.writes()) >= 2, "what stands is taken away by a write of its own"

    def test_cycle(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, rig.cycle(1, 2, 3, 4, 5))
        converge(driver, rig.cycle(5, 4, 3, 2, 1))
        assert rig.truth() == rig.cycle(5, 4, 3, 2, 1)

    def test_delete(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, rig.cycle(1, 2, 3))
        rig.writes()
        result = converge(driver, (), delete=[2, 7])
        assert rig.truth() == rig.cycle(1, 2, 3) - {rig.xc(2, 3)}
        assert {r.ingress for r in result.results if r.state is CrossConnectState.ABSENT} == {2, 7}
        assert len(rig.writes()) == 1
        absent = converge(driver, (), delete=[7])
        assert [r.state for r in absent.results if r.ingress == 7] == [CrossConnectState.ABSENT]
        assert rig.writes() == []

    def test_replace_with_nothing(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, rig.cycle(1, 2, 3))
        converge(driver, (), Mode.REPLACE)
        assert rig.truth() == set()

    # Safety

    def test_kept_circuits_are_untouched(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        kept = rig.xc(1, 2)
        converge(driver, [kept, *rig.cycle(3, 4, 5)])
        since, counted = rig.lit_since(kept), rig.packets(kept)
        wait_for_light(since)
        # Seldom enough that a switch in userspace that stands still for a while has room for them.
        with Stream(rig.hosts[1], 0.003) as stream:
            stream.wait(50)
            counts = []
            for _ in range(3):
                converge(driver, [kept, *rig.cycle(5, 4, 3)], Mode.REPLACE)
                converge(driver, rig.cycle(3, 4, 5))
                converge(driver, (), delete=[4])
                converge(driver, [rig.xc(4, 5)], Mode.SAFE)
                counts.append(rig.packets(kept))
            stream.wait(50)
        assert rig.hosts[2].received(stream, len(stream.sent) - 1) == list(range(len(stream.sent)))
        assert counted < counts[0] < counts[1] < counts[2]
        # Not written since. Where its age is what is asked for, a late answer makes it older, not younger.
        assert rig.lit_since(kept) < stream.sent[0]

    def test_safe_refuses_a_busy_port(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 2)])
        rig.writes()
        for wanted in ([rig.xc(3, 4), rig.xc(1, 5)], [rig.xc(3, 4), rig.xc(5, 2)]):
            with pytest.raises(PortBusy) as caught:
                converge(driver, wanted, Mode.SAFE)
            assert caught.value.holder == rig.xc(1, 2)
        assert rig.writes() == []
        assert rig.truth() == {rig.xc(1, 2)}

    @pytest.mark.parametrize(
        ("wanted", "error"),
        [
            ([CrossConnect(1, SIZE + 2), CrossConnect(3, SIZE + 2)], PortClash),
            ([CrossConnect(1, SIZE + 2), CrossConnect(1, SIZE + 3)], PortClash),
            ([CrossConnect(1, 2 * SIZE + 1)], NoSuchPort),
            ([CrossConnect(0, SIZE + 1)], NoSuchPort),
            ([CrossConnect(1, 2)], WrongSide),
            ([CrossConnect(SIZE + 1, SIZE + 2)], WrongSide),
        ],
    )
    def test_bad_requests_write_nothing(
        self, rig: Rig, driver: OpticalSwitchDriver, wanted: list[CrossConnect], error: type[OpticalError]
    ) -> None:
        coloured = [replace(one, wavelength=rig.wavelength) for one in wanted]
        with pytest.raises(error):
            converge(driver, coloured)
        assert rig.writes() == []
        assert rig.truth() == set()

    def test_a_failed_port_is_rejected(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        if rig.failed_port is None:
            pytest.skip("this switch reports no failed ports")
        with pytest.raises(PortFailed):
            converge(driver, [CrossConnect(1, rig.failed_port, rig.wavelength)])
        assert rig.writes() == []

    def test_a_disabled_port_blocks_light_and_keeps_its_cross_connect(
        self, rig: Rig, driver: OpticalSwitchDriver
    ) -> None:
        if not driver.capabilities().port_admin:
            pytest.skip("this switch cannot disable ports")
        egress = SIZE + 2
        converge(driver, [rig.xc(1, 2)])
        try:
            assert driver.set_port_enabled(egress, False).enabled is False
            with Stream(rig.hosts[1]) as stream:
                stream.wait(20)
            time.sleep(0.05)
            assert rig.hosts[2].received(stream) == []
            assert rig.truth() == {rig.xc(1, 2)} == standing(driver)
            assert [(a.kind, a.port) for a in driver.alarms() if a.port == egress] == [
                ("PORT_DISABLED", egress)
            ]
            with pytest.raises(PortDisabled):
                converge(driver, [rig.xc(3, 2)])
        finally:
            driver.set_port_enabled(egress, True)
        # A switch whose process is held up opens the port later than it declares, not never.
        arrived, sent, deadline = [], [0], time.monotonic() + 5
        while arrived != sent and time.monotonic() < deadline:
            with Stream(rig.hosts[1]) as stream:
                stream.wait(20)
            time.sleep(0.05)
            sent, arrived = list(range(len(stream.sent))), rig.hosts[2].received(stream)
        assert arrived == sent

    def test_what_another_owns_survives(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        rig.external_connect(rig.xc(1, 2))
        with pytest.raises(PortBusy):
            driver.plan([rig.xc(1, 3)], owned=[])
        if not driver.capabilities().ownership:
            pytest.skip("this switch does not record owners (checked with a list of owned ones)")
        with pytest.raises(PortBusy, match="another owner"):
            converge(driver, [rig.xc(1, 3)])
        converge(driver, [rig.xc(3, 4)])
        assert rig.truth() == {rig.xc(1, 2), rig.xc(3, 4)}
        converge(driver, (), Mode.REPLACE)
        assert rig.truth() == set()

    # Faults

    def test_reply_lost_after_effect(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        plan = driver.plan([rig.xc(1, 2)])
        rig.lose_next_reply(effect=True)
        with pytest.raises(Indeterminate):
            driver.apply(plan)
        assert len(rig.writes()) == 1
        with pytest.raises(StaleRevision):
            driver.apply(plan)
        assert converge(driver, [rig.xc(1, 2)]).deviations == ()
        assert rig.writes() == []
        assert rig.truth() == {rig.xc(1, 2)}

    @pytest.mark.parametrize("effect", [True, False])
    def test_converges_after_a_lost_command_or_reply(
        self, rig: Rig, driver: OpticalSwitchDriver, effect: bool
    ) -> None:
        converge(driver, [rig.xc(1, 2)])
        rig.lose_next_reply(effect)
        assert converge(driver, [rig.xc(1, 3), rig.xc(3, 2)]).deviations == ()
        assert rig.truth() == {rig.xc(1, 3), rig.xc(3, 2)}

    def test_a_dropped_session_is_made_anew(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, rig.cycle(1, 2, 3))
        rig.writes()
        rig.drop_sessions()
        assert standing(driver) == rig.cycle(1, 2, 3)
        converge(driver, rig.cycle(1, 2, 3))
        assert rig.writes() == []
        rig.drop_sessions()
        converge(driver, [rig.xc(1, 3), rig.xc(2, 1), rig.xc(3, 2)])
        assert rig.truth() == rig.cycle(3, 2, 1)

    def test_another_writer_makes_the_plan_stale(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        plan = driver.plan([rig.xc(1, 2)])
        rig.external_connect(rig.xc(3, 4))
        with pytest.raises(StaleRevision):
            driver.apply(plan)
        assert rig.writes() == []
        assert rig.truth() == {rig.xc(3, 4)}
        converge(driver, [rig.xc(1, 2)])
        assert rig.truth() == {rig.xc(1, 2), rig.xc(3, 4)}

    def test_a_deadline_too_short_changes_nothing(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 2)])
        plan = driver.plan([rig.xc(1, 3)])
        rig.writes()
        with pytest.raises(DeadlineExceeded):
            driver.apply(plan, timeout_s=driver.capabilities().timing.dark.typical_s / 2)
        assert rig.writes() == []
        assert rig.truth() == {rig.xc(1, 2)}

    # Concurrency and time

    def test_threads(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        wanted = [rig.xc(p, p % 7 + 1) for p in range(1, 8)]
        with ThreadPoolExecutor(7) as pool:
            for done in [pool.submit(converge, driver, [one], Mode.SAFE, timeout_s=30) for one in wanted]:
                assert done.result(60).deviations == ()
        assert rig.truth() == set(wanted)

        converge(driver, (), Mode.REPLACE)
        plans = [driver.plan([rig.xc(p, 1)]) for p in (2, 3, 4, 5)]
        outcomes = []
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(driver.apply, plan, timeout_s=30) for plan in plans]:
                outcomes.append(type(done.exception(60)))
        assert sorted(outcomes, key=str) == [type(None), *[StaleRevision] * 3]
        assert len(rig.truth()) == 1

    def test_dark_time_on_the_wire(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        timing = driver.capabilities().timing
        # A move is a removal, and then an addition whose command time passes in the dark.
        most_s = timing.lit_after_s(1) + timing.command.most_s + timing.per_cross_connect_s
        converge(driver, [rig.xc(1, 2)])
        dark, before_report, after_report = [], [], []
        for old, new in 2 * ((2, 3), (3, 4), (4, 2)):
            wait_for_light(rig.lit_since(rig.xc(1, old)))
            with Stream(rig.hosts[1], 0.0005) as stream:
                stream.wait(40)
                result = converge(driver, [rig.xc(1, new)])
                stream.wait(40)
            after = rig.hosts[new].received(stream, len(stream.sent) - 1)
            time.sleep(0.05)
            before = rig.hosts[old].received(stream)
            last, first = before[-1], after[0]
            if before != list(range(last + 1)) or after != list(range(first, len(stream.sent))):
                logging.info("more was lost than in one dark time")
                continue
            dark.append(stream.left[first] - stream.sent[last])
            added = next(r for r in result.results if r.action == "add")
            assert added.t_dark is not None
            assert added.t_lit is not None
            before_report.append(added.t_dark - stream.left[last + 1])
            after_report.append(stream.sent[first - 1] - added.t_lit)
            logging.info(
                "dark for %.1f ms, reported %.1f ms", dark[-1] * 1e3, (added.t_lit - added.t_dark) * 1e3
            )
        # A switch that is held up on a busy machine loses packets that were waiting in it for its light, or
        # before that. So not every move must do, but half of them lose what is sent in one dark time and
        # nothing else, and in two of these what the driver reports holds the darkness seen on the wire.
        assert len(dark) >= 3
        assert sorted(before_report)[1] <= 0.0
        assert sorted(after_report)[1] <= 0.05
        assert min(dark) >= timing.dark.least_s * 0.98
        assert sorted(dark)[1] <= 3 * most_s

    @given(data=st.data())
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    def test_any_sequence_follows_the_model(
        self, rig: Rig, driver: OpticalSwitchDriver, data: st.DataObject
    ) -> None:
        converge(driver, (), Mode.REPLACE, settle=False)
        model: set[CrossConnect] = set()
        for _ in range(data.draw(st.integers(1, 4))):
            mode = data.draw(st.sampled_from(Mode))
            inputs = data.draw(st.lists(st.integers(1, SIZE), unique=True, max_size=SIZE - 1))
            outputs = data.draw(st.permutations(range(1, SIZE)))
            wanted = {rig.xc(a, b) for a, b in zip(inputs, outputs, strict=False)}
            ports = {p for x in wanted for p in (x.ingress, x.egress)}
            in_the_way = {x for x in model - wanted if x.ingress in ports or x.egress in ports}
            rig.writes()
            if mode is Mode.SAFE and in_the_way:
                with pytest.raises(PortBusy):
                    converge(driver, wanted, mode)
                assert rig.writes() == []
            else:
                expected = wanted if mode is Mode.REPLACE else (model - in_the_way) | wanted
                converge(driver, wanted, mode, settle=False)
                removed, added = len(model - expected), len(expected - model)
                at_once = mode is Mode.REPLACE and driver.capabilities().max_replace and removed and added
                assert len(rig.writes()) == (1 if at_once else writes_for(driver, removed, added))
                model = expected
            assert rig.truth() == model == standing(driver)

    # Telemetry and life cycle

    def test_loss_of_signal(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        assert HOSTS < 6
        converge(driver, [rig.xc(1, 2), rig.xc(6, 3)])
        assert [a.port for a in driver.alarms() if a.kind == "LOS"] == [6]
        converge(driver, (), delete=[6])
        assert [a for a in driver.alarms() if a.kind == "LOS"] == []

    def test_light_without_a_cross_connect_goes_nowhere(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(2, 3)])
        for _ in range(2):
            before = at_rest(rig)
            with Stream(rig.hosts[1]) as stream:
                stream.wait(20)
            time.sleep(0.05)
            assert {number: host.nic_received() for number, host in rig.hosts.items()} == before
            # And again with what the driver makes of a switch that came back from nothing.
            rig.wipe()
            converge(driver, [rig.xc(2, 3)])

    def test_light_can_go_back_where_it_came_from(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, [rig.xc(1, 1)])
        assert rig.truth() == {rig.xc(1, 1)} == standing(driver)
        wait_for_light(rig.lit_since(rig.xc(1, 1)))
        before = rig.hosts[1].nic_received()
        with Stream(rig.hosts[1]) as stream:
            stream.wait(20)
        deadline = time.monotonic() + 5
        while rig.hosts[1].nic_received() - before < len(stream.sent) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert rig.hosts[1].nic_received() - before == len(stream.sent)

    def test_a_switch_that_lost_everything_is_seen_and_set_right(
        self, rig: Rig, driver: OpticalSwitchDriver
    ) -> None:
        converge(driver, rig.cycle(1, 2, 3))
        rig.wipe()
        assert driver.snapshot().cross_connects == {}
        converge(driver, rig.cycle(1, 2, 3))
        assert rig.truth() == rig.cycle(1, 2, 3)
        assert [a for a in driver.alarms() if a.kind == "SWITCH"] == []

    def test_power(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        if not driver.capabilities().power:
            assert driver.power_dbm([1]) == {1: None}
            pytest.skip("this switch has no power meters")
        converge(driver, [rig.xc(1, 2)])
        power = driver.power_dbm([1, 7, SIZE + 2, SIZE + 3])
        # Without light there is a meter's floor, or nothing that it could say.
        read = {port: -99.0 if value is None else value for port, value in power.items()}
        assert read[1] > read[SIZE + 2] > -10
        assert read[7] < -10
        assert read[SIZE + 3] < -40

    def test_close_leaves_nothing(self, rig: Rig) -> None:
        def held() -> tuple[int, int]:
            return threading.active_count(), len(os.listdir("/proc/self/fd"))

        before = held()
        for _ in range(10):
            one = rig.driver(direct=True)
            one.open()
            one.snapshot()
            one.close()
            one.close()
            with pytest.raises(Unreachable):
                one.snapshot()
        # Threads of the rig that served earlier drivers may end meanwhile, so there can be fewer.
        assert all(after <= was for after, was in zip(held(), before, strict=True))

    def test_circuits_outlive_the_driver(self, rig: Rig, driver: OpticalSwitchDriver) -> None:
        converge(driver, rig.cycle(1, 2, 3))
        driver.close()
        assert rig.truth() == rig.cycle(1, 2, 3)
        other = rig.driver()
        try:
            other.open()
            rig.writes()
            assert standing(other) == rig.cycle(1, 2, 3)
            assert not converge(other, rig.cycle(1, 2, 3), Mode.REPLACE).plan
            assert rig.writes() == []
        finally:
            other.close()


@pytest.mark.parametrize("rig", [pytest.param(WssRig, id="scpi-wss")], indirect=True, scope="class")
class TestWavelengthSelectiveSwitch:
    """What a driver and its switch do with wavelengths, beyond the class above on one wavelength."""

    @pytest.fixture(autouse=True)
    def tuned(self, rig: WssRig) -> None:
        for port in range(1, HOSTS + 1):
            rig.tune(port, rig.wavelength)

    def test_the_colour_decides_where_light_goes(self, rig: WssRig, driver: OpticalSwitchDriver) -> None:
        assert driver.capabilities().wavelengths == rig.wavelengths
        wanted = [CrossConnect(1, SIZE + 2, 1), CrossConnect(1, SIZE + 3, 2)]
        converge(driver, wanted)
        assert len(rig.writes()) == 1
        wait_for_light(max(rig.lit_since(one) for one in wanted))
        arrived = []
        for colour in (1, 2, 3):
            rig.tune(1, colour)
            with Stream(rig.hosts[1]) as stream:
                stream.wait(20)
            at_rest(rig)
            sent = list(range(len(stream.sent)))
            arrived.append([port for port in (2, 3) if rig.hosts[port].received(stream) == sent])
        assert arrived == [[2], [3], []]

    def test_every_pair_at_once(self, rig: WssRig, driver: OpticalSwitchDriver) -> None:
        wanted = {
            CrossConnect(i, SIZE + j, (j - i) % SIZE)
            for i in range(1, SIZE)
            for j in range(1, SIZE)
            if i != j
        }
        converge(driver, wanted)
        assert len(rig.writes()) == 1
        assert rig.truth() == wanted == standing(driver)
        again = converge(driver, wanted, Mode.REPLACE)
        assert not again.plan
        converge(driver, (), delete=[1])
        assert rig.truth() == {one for one in wanted if one.ingress != 1}

    def test_one_wavelength_changes_and_the_others_stay(
        self, rig: WssRig, driver: OpticalSwitchDriver
    ) -> None:
        kept = [CrossConnect(1, SIZE + 2, 2), CrossConnect(3, SIZE + 2, 4), CrossConnect(1, SIZE + 4, 5)]
        converge(driver, [*kept, CrossConnect(1, SIZE + 5, 6)])
        since = [rig.lit_since(one) for one in kept]
        wait_for_light(max(since))
        with Stream(rig.hosts[1]) as stream:
            stream.wait(20)
            result = converge(driver, [CrossConnect(3, SIZE + 5, 6)])
            stream.wait(20)
        assert rig.hosts[2].received(stream, len(stream.sent) - 1) == list(range(len(stream.sent)))
        assert [rig.lit_since(one) for one in kept] == since
        assert rig.truth() == {*kept, CrossConnect(3, SIZE + 5, 6)}
        # Only the one that had to go was dark.
        assert {(r.ingress, r.wavelength) for r in result.results if r.t_dark} == {(1, 6), (3, 6)}

    @pytest.mark.parametrize(
        ("wanted", "error"),
        [
            ([CrossConnect(1, SIZE + 2, 1), CrossConnect(3, SIZE + 2, 1)], PortClash),
            ([CrossConnect(1, SIZE + 2, 1), CrossConnect(1, SIZE + 3, 1)], PortClash),
            ([CrossConnect(1, SIZE + 2)], Unsupported),
            ([CrossConnect(1, SIZE + 2, SIZE)], Unsupported),
        ],
    )
    def test_bad_requests_write_nothing(
        self, rig: WssRig, driver: OpticalSwitchDriver, wanted: list[CrossConnect], error: type[OpticalError]
    ) -> None:
        with pytest.raises(error):
            converge(driver, wanted)
        assert rig.writes() == []

    def test_what_the_fabric_says_of_wavelengths_is_checked(self, rig: WssRig) -> None:
        entry = {"driver": "scpi", "address": rig.address, "wavelengths": SIZE + 1}
        other = make_driver("ocs0", entry, SIZE)
        with pytest.raises(
            ProtocolError, match=f"tells {SIZE} wavelengths apart, the fabric says {SIZE + 1}"
        ):
            other.open()
        other.close()

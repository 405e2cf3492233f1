"""Faults injected into the emulated switch: the core without I/O, and every driver against each of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PartialApply,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    StaleRevision,
    Unreachable,
)
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode, PortState, check_matching
from ringlight.fabric.optical_profiles import IDEAL, MEMS, Profile
from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Dark,
    Gate,
    Light,
    Rewire,
    SetAdmin,
    SetLabel,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.faulty_session import FaultySession
from ringlight.testbed.emulation.optical.monitors import alarms_of, power_dbm
from ringlight.testbed.emulation.optical.session import Switch, protocol_named
from ringlight.testbed.emulation.optical.switch_faults import (
    MAX_FAULTS,
    FaultError,
    Faults,
    FaultSpec,
    Kind,
    TooManyFaults,
)
from tests.drivers import PROTOCOLS, converge, entry_of
from tests.optical_model import ModelSwitch

SIZE = 16
S = 10**9


class Bench:
    """A device with faults and one SCPI client, at a time that is told."""

    def __init__(self, wavelengths: int = 0, profile: Profile = IDEAL) -> None:
        self.device = OpticalDevice(8, profile, wavelengths=wavelengths)
        for port in range(1, 9):
            self.device.receive(port, True)
        self.faults = Faults(self.device, ["scpi"])
        self.session = FaultySession(
            protocol_named("scpi").session(Switch("x", self.device)),
            "scpi",
            self.faults,
        )
        self.now_ns = 0
        self.effects: list[Any] = []

    def inject(self, kind: str, **more: Any) -> int:
        made, effects = self.faults.add(self.now_ns, FaultSpec(Kind(kind), **more))
        self.effects += effects
        return made.id

    def clear(self, number: int) -> None:
        self.effects += self.faults.clear(self.now_ns, number)

    def work(self, after_ns: int = 0) -> bytes:
        self.now_ns += after_ns
        out = b""
        for _ in range(20):
            self.effects += self.faults.advance(self.now_ns)
            self.effects += self.device.advance(self.now_ns)
            out += self.session.advance(self.now_ns)
        return out

    def say(self, text: str) -> bytes:
        self.session.feed(text.encode() + b"\n")
        return self.work()

    @property
    def wires(self) -> list[tuple[int, int]]:
        return [(wire.ingress, wire.egress) for wire in self.device.cross_connects()]


ADD = ":oxc:swit:conn:add (@1,2,3),(@9,10,11)"
ERROR = ":syst:err?"


def test_denied_changes_nothing_and_only_as_often_as_it_is_said() -> None:
    bench = Bench()
    bench.inject("deny", count=1)
    assert b"-240" in bench.say(f"{ADD};{ERROR}")
    assert (bench.wires, bench.effects) == ([], [])
    assert bench.say(f"{ADD};{ERROR}") == b'0,"No error"\n'
    assert bench.wires == [(1, 9), (2, 10), (3, 11)]
    (fault,) = bench.faults.all()
    assert (fault.hits, fault.left) == (1, 0)


def test_half_of_a_batch_is_done_the_removals_first() -> None:
    bench = Bench()
    bench.say(ADD)
    bench.effects.clear()
    bench.inject("half")
    assert b"-240" in bench.say(f":oxc:swit:conn:only (@1,4),(@9,12);{ERROR}")
    # Two go and one comes: of three the first.
    assert bench.wires == [(1, 9), (3, 11)]
    assert bench.effects == [Dark(2)]
    assert b"-240" in bench.say(f":oxc:swit:port:dis (@5,6);{ERROR}")
    assert (bench.device.admin(5), bench.device.admin(6)) == (
        Admin.DISABLED,
        Admin.ENABLED,
    )


def test_a_real_refusal_comes_first() -> None:
    bench = Bench()
    bench.inject("half")
    assert b"-222" in bench.say(f":oxc:swit:conn:add (@1,2),(@9,99);{ERROR}")
    assert bench.wires == []


def test_a_lost_reply_has_its_effect_and_the_connection_ends() -> None:
    bench = Bench()
    bench.inject("lose-reply", count=1, seconds=2.0)
    assert bench.say(f"{ADD};*opc?") == b""
    assert len(bench.wires) == 3
    assert not bench.session.over
    assert bench.session.next_ns == 2 * S
    assert bench.work(2 * S) == b""
    assert bench.session.over


def test_dropped_in_the_middle_of_a_batch() -> None:
    bench = Bench()
    bench.inject("drop")
    assert bench.say(f"{ADD};*opc?") == b""
    assert bench.wires == [(1, 9)]
    assert bench.session.over
    assert bench.session.next_ns is None


def test_slow_and_never_tuned_light() -> None:
    bench = Bench()
    bench.inject("slow", count=1, seconds=3.0)
    assert bench.say(":oxc:swit:conn:add (@1),(@9);*opc?") == b""
    assert bench.device.port_state(9, bench.now_ns) is PortState.TUNING
    assert bench.work(3 * S) == b"1\n"
    never = bench.inject("never-tunes", count=1)
    bench.say(":oxc:swit:conn:add (@2),(@10)")
    bench.work(10**6 * S)
    assert bench.device.port_state(10, bench.now_ns) is PortState.TUNING
    assert power_dbm(bench.device, 10, bench.now_ns) == IDEAL.dark_dbm
    bench.clear(never)
    assert bench.device.port_state(10, bench.now_ns) is PortState.TUNED


def test_whose_reply_waits_for_light_that_never_comes_has_it_when_the_fault_is_cleared() -> (
    None
):
    bench = Bench()
    never = bench.inject("never-tunes", count=1)
    assert bench.say(":oxc:swit:conn:add (@2),(@10);*opc?") == b""
    assert bench.work(10**6 * S) == b""
    bench.clear(never)
    assert bench.work() == b"1\n"
    assert bench.session.idle


def test_a_ghost_is_shown_and_dark_until_the_fault_is_cleared() -> None:
    bench = Bench()
    ghost = bench.inject("ghost", count=1)
    bench.say(":oxc:swit:conn:add (@1),(@9)")
    bench.say(":oxc:swit:conn:add (@2),(@10)")
    assert bench.say(":oxc:swit:conn:stat?") == b"(@1,2),(@9,10)\n"
    assert [
        effect.ingress for effect in bench.effects if isinstance(effect, Light)
    ] == [2]
    assert bench.device.mirrors.is_ghost(Wire(1, 9))
    assert bench.device.wires().keys() == {(2, None)}
    assert [
        alarm.port for alarm in alarms_of(bench.device, 0) if alarm.kind == "LOS"
    ] == [9]
    bench.clear(ghost)
    assert isinstance(bench.effects[-1], Light)
    assert not bench.device.mirrors.is_ghost(Wire(1, 9))
    # One that is gone by then does not come back.
    ghost = bench.inject("ghost")
    bench.say(":oxc:swit:conn:add (@3),(@11)")
    bench.say(":oxc:swit:conn:sub (@3),(@11)")
    assert bench.effects[-1] == Dark(3)
    bench.clear(ghost)
    assert bench.effects[-1] == Dark(3)


@pytest.mark.parametrize("kind", ["ghost", "never-tunes", "vanish"])
def test_a_fault_that_is_cleared_while_a_command_is_under_way_is_over(
    kind: str,
) -> None:
    bench = Bench(profile=MEMS)
    fault = bench.inject(kind)
    bench.say(":oxc:swit:conn:add (@1,2),(@9,10);*opc?")
    assert bench.wires == [], "its turn has not come"
    bench.clear(fault)
    assert bench.work(S) == b""
    assert bench.work(S) == b"1\n"
    bench.work(10 * S)
    assert len([effect for effect in bench.effects if isinstance(effect, Light)]) == 2
    assert [bench.device.port_state(port, bench.now_ns) for port in (9, 10)] == 2 * [
        PortState.TUNED
    ]
    assert bench.wires == [(1, 9), (2, 10)]


def test_a_writer_that_is_cleared_before_it_could_write_does_not() -> None:
    bench = Bench()
    writer = bench.inject("foreign-writer", ingress=1, egress=10)
    bench.session.feed(b"*opc?\n")
    bench.clear(writer)
    assert bench.work() == b"1\n"
    assert bench.wires == []


def test_there_is_a_most_of_faults() -> None:
    bench = Bench()
    for _ in range(MAX_FAULTS):
        bench.inject("deny")
    with pytest.raises(TooManyFaults):
        bench.inject("deny")
    bench.clear(1)
    bench.inject("deny", probability=0.0)
    assert len(bench.faults.all()) == MAX_FAULTS


def test_what_vanishes_does_so_after_its_time_unless_it_was_made_anew() -> None:
    bench = Bench()
    bench.inject("vanish", count=1)
    bench.say(":oxc:swit:conn:add (@1,2),(@9,10)")
    bench.work(S)
    bench.say(":oxc:swit:conn:sub (@2),(@10)")
    bench.say(":oxc:swit:conn:add (@2),(@10)")
    assert bench.faults.next_ns == 5 * S
    bench.work(4 * S - 1)
    assert len(bench.wires) == 2
    bench.work(1)
    assert bench.wires == [(2, 10)]
    assert bench.effects[-1] == Dark(1)


def test_what_would_have_vanished_stays_when_the_fault_is_cleared_before() -> None:
    bench = Bench()
    first, second = (
        bench.inject("vanish", count=1),
        bench.inject("vanish", count=1, seconds=7.0),
    )
    bench.say(":oxc:swit:conn:add (@1),(@9)")
    bench.work(S)
    bench.clear(first)
    assert bench.faults.next_ns == 7 * S
    bench.clear(second)
    bench.work(10 * S)
    assert bench.wires == [(1, 9)]
    assert Dark(1) not in bench.effects


def test_of_a_reply_that_was_cut_to_nothing_no_garbage_is_made() -> None:
    bench = Bench()
    for kind in ("truncate", "truncate", "garbage"):
        bench.inject(kind)
    assert bench.say("*opc?") == b""
    assert bench.session.over


def test_a_port_fails_at_once_and_works_when_it_is_cleared() -> None:
    bench = Bench()
    bench.say(ADD)
    first, second = (
        bench.inject("port-failed", port=9),
        bench.inject("port-failed", port=9),
    )
    assert bench.effects[-1] == Gate(9, Admin.FAILED)
    assert b"F" in bench.say(":oxc:swit:port:stat? (@9)")
    assert [fault.hits for fault in bench.faults.all()] == [1, 1]
    bench.clear(first)
    assert bench.device.admin(9) is Admin.FAILED
    bench.clear(second)
    assert bench.device.admin(9) is Admin.ENABLED
    assert isinstance(bench.effects[-2], Light)
    assert bench.effects[-1] == Gate(9, Admin.ENABLED)


def test_another_writer_comes_before_what_the_client_says() -> None:
    bench = Bench()
    bench.say(ADD)
    bench.inject("foreign-writer", count=1, ingress=1, egress=10)
    assert bench.say(":oxc:swit:conn:stat?") == b"(@1,3),(@10,11)\n"


@pytest.mark.parametrize("wavelengths", [0, 3])
@given(seed=st.integers(0, 1000), count=st.integers(1, 30))
def test_another_writer_leaves_a_matching(
    wavelengths: int, seed: int, count: int
) -> None:
    bench = Bench(wavelengths)
    bench.inject("foreign-writer", count=count, seed=seed)
    bench.inject("port-failed", port=2)
    for _ in range(count):
        bench.say("*opc?")
    check_matching(CrossConnect(*wire) for wire in bench.device.cross_connects())
    assert not [wire for wire in bench.device.cross_connects() if 2 in wire[:2]]
    assert bench.faults.get(1).hits == count


def test_replies_that_are_spoilt() -> None:
    bench = Bench()
    right = bench.say("*idn?")
    garbage = bench.inject("garbage", seed=3)
    said = bench.say("*idn?")
    assert (len(said), said[-1:]) == (len(right), b"\n")
    assert said != right
    bench.clear(garbage)
    late = bench.inject("late", seconds=1.0)
    assert bench.say("*idn?") == b""
    bench.clear(late)
    assert bench.say("*opc?") == b""
    assert bench.work(S) == right + b"1\n"
    drip = bench.inject("slow-drip", seconds=1.0)
    assert bench.say("*opc?") == b"1"
    assert bench.work(S) == b"\n"
    bench.clear(drip)
    bench.inject("truncate")
    assert bench.say("*idn?") == right[: len(right) // 2]
    assert bench.session.over


def test_the_same_seed_gives_the_same_faults() -> None:
    def refused(seed: int) -> list[bool]:
        bench = Bench()
        bench.inject("deny", probability=0.3, seed=seed)
        return [
            b"-240" in bench.say(f":oxc:swit:port:enab (@1);{ERROR}")
            for _ in range(200)
        ]

    assert refused(1) == refused(1) != refused(2)
    dice = random.Random(1)
    assert refused(1) == [dice.random() < 0.3 for _ in range(200)]


def test_a_fault_is_met_by_its_protocols_clients_alone() -> None:
    bench = Bench()
    faults = Faults(bench.device, ["scpi", "other"])
    made, _ = faults.add(0, FaultSpec(Kind.DENY, protocol="other"))
    spared, met = (
        FaultySession(
            protocol_named("scpi").session(Switch("x", bench.device)), protocol, faults
        )
        for protocol in ("scpi", "other")
    )
    spared.feed(ADD.encode() + b"\n")
    for now_ns in range(3):
        spared.advance(now_ns)
        bench.device.advance(now_ns)
    assert len(bench.wires) == 3
    met.feed(f":oxc:swit:disc:all;{ERROR}\n".encode())
    said = b""
    for now_ns in range(9):
        said += met.advance(now_ns)
        bench.device.advance(now_ns)
    assert b"-240" in said
    assert (len(bench.wires), made.hits) == (3, 1)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (
            {"kind": "deny", "protocol": "other"},
            "protocol: other; the switch speaks scpi",
        ),
        ({"kind": "deny", "probability": 1.5}, "probability: 1.5"),
        ({"kind": "deny", "probability": -0.1}, "probability: -0.1"),
        ({"kind": "deny", "count": 0}, "count: 0"),
        ({"kind": "deny", "seconds": 1.0}, "seconds: deny knows none"),
        ({"kind": "slow", "seconds": -1.0}, "seconds: -1"),
        ({"kind": "port-failed"}, "port: a port-failed names one"),
        ({"kind": "port-failed", "port": 17}, "port: there is no port 17"),
        ({"kind": "port-failed", "port": 1, "count": 2}, "fails at once"),
        ({"kind": "deny", "port": 1}, "port: a port-failed names one"),
        ({"kind": "deny", "ingress": 1, "egress": 9}, "of a foreign-writer only"),
        ({"kind": "foreign-writer", "ingress": 1}, "both or none"),
        (
            {"kind": "foreign-writer", "ingress": 9, "egress": 9},
            "ingress: 9 is not an ingress",
        ),
        (
            {"kind": "foreign-writer", "ingress": 1, "egress": 1},
            "egress: 1 is not an egress",
        ),
        (
            {"kind": "foreign-writer", "ingress": 1, "egress": 9, "wavelength": 1},
            "wavelength: 1",
        ),
        ({"kind": "foreign-writer", "wavelength": 1}, "goes with ingress and egress"),
        ({"kind": "autonomous"}, "speaks only scpi"),
    ],
)
def test_what_cannot_be_injected_is_named(
    fault: dict[str, Any], complaint: str
) -> None:
    bench = Bench()
    with pytest.raises(FaultError, match=complaint):
        bench.inject(**fault)
    assert bench.faults.all() == []


def test_a_spoilt_command_that_sets_up_ports_leaves_the_rest() -> None:
    bench = Bench()
    bench.inject("deny")
    bench.faults.speaker = bench.session
    tickets = [
        bench.device.submit(0, one) for one in (SetLabel(1, "x"), SetAdmin((1,), False))
    ]
    empty = bench.device.submit(0, Rewire((), only=True))
    bench.faults.speaker = None
    bench.work()
    assert [ticket.error is not None for ticket in (*tickets, empty)] == [
        True,
        True,
        True,
    ]
    assert (bench.device.label(1), bench.device.admin(1)) == ("", Admin.ENABLED)
    own = bench.device.submit(0, Rewire(((1, 9),)))
    bench.work()
    assert own.error is None, "what no client has sent is no write of theirs"


# Drivers

WANTED = [
    CrossConnect(1, SIZE + 2),
    CrossConnect(2, SIZE + 3),
    CrossConnect(3, SIZE + 1),
    CrossConnect(4, 20),
]
#: What a driver may say, by fault; None: nothing. And how many cross-connects stand then.
OUTCOMES: dict[str, tuple[tuple[type[OpticalError] | None, ...], int]] = {
    "deny": ((Refused,), 0),
    "half": ((PartialApply,), 2),
    "lose-reply": ((Indeterminate,), 4),
    "drop": ((Indeterminate,), 2),
    "slow": ((None,), 4),
    # Some protocols do not tell that mirrors move; where a reply waits for them it does not come.
    "never-tunes": ((None, ReadBackMismatch, Indeterminate), 4),
    "ghost": ((None,), 4),
    "foreign-writer": ((StaleRevision,), 1),
    "autonomous": ((None,), 4),
    "garbage": ((ProtocolError, DeadlineExceeded, Unreachable), 0),
    "truncate": ((None, ProtocolError, Unreachable), 0),
    # Some protocols say much.
    "slow-drip": ((None, DeadlineExceeded), 0),
    "late": ((None,), 4),
}
MORE: dict[str, dict[str, Any]] = {
    "slow": {"seconds": 0.1},
    "slow-drip": {"seconds": 0.00005},
    "late": {"seconds": 0.1},
    "foreign-writer": {"ingress": 5, "egress": SIZE + 5},
}


@pytest.fixture(scope="module", params=PROTOCOLS)
def switch(request: pytest.FixtureRequest) -> Iterator[ModelSwitch]:
    with ModelSwitch(request.param, SIZE) as made:
        yield made


@pytest.fixture(scope="module")
def driver(
    switch: ModelSwitch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpticalSwitchDriver]:
    password = tmp_path_factory.mktemp("faults") / "password"
    password.write_text("s3cret\n")
    made = make_driver(
        "ocs0", entry_of(switch.protocol, switch.address, "ann", password), SIZE
    )
    made.open()
    yield made
    made.close()


def test_what_nobody_asked_for_ends_no_connection_that_begins(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    if switch.protocol == "scpi":
        pytest.skip("scpi knows no message that was not asked for")
    fault = switch.inject("autonomous")
    try:
        for _ in range(2):
            driver.close()
            driver.open()
            assert driver.snapshot().ports.keys() == driver.capabilities().ports
        assert fault.hits > 4
    finally:
        switch.clear()


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_driver_meets_each_fault(
    switch: ModelSwitch, driver: OpticalSwitchDriver, kind: str
) -> None:
    if kind == "autonomous" and switch.protocol == "scpi":
        pytest.skip("scpi knows no message that was not asked for")
    expected, standing = OUTCOMES[kind]
    converge(driver, (), Mode.REPLACE)
    plan = driver.plan(WANTED)
    fault = switch.inject(kind, count=1, **MORE.get(kind, {}))
    said: type[OpticalError] | None = None
    started = time.monotonic()
    try:
        driver.apply(plan, timeout_s=1.0)
    except OpticalError as error:
        said = type(error)
        if isinstance(error, PartialApply):
            done = {
                result.egress for result in error.result.results if not result.reason
            }
            assert done == {wire.egress for wire in switch.cross_connects()}
    assert time.monotonic() - started < 5.0
    assert any(
        said is one or (said is not None and one is not None and issubclass(said, one))
        for one in expected
    )
    assert fault.hits == 1
    if said is None or kind not in ("truncate",):
        assert len(switch.cross_connects()) == (4 if said is None else standing)
    if kind == "ghost":
        assert switch.lit() == set()
        told = {17, 18, 19, 20} if driver.capabilities().light else set()
        assert {alarm.port for alarm in driver.alarms() if alarm.kind == "LOS"} == told
    switch.clear()
    assert converge(driver, WANTED, Mode.REPLACE).deviations == ()
    assert switch.lit() == set(WANTED) == switch.cross_connects()


def test_a_driver_sees_what_vanishes(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, (), Mode.REPLACE)
    switch.inject("vanish", count=1, seconds=0.05)
    converge(driver, WANTED)
    deadline = time.monotonic() + 5.0
    while driver.snapshot().cross_connects and time.monotonic() < deadline:
        time.sleep(0.02)
    assert driver.snapshot().cross_connects == {}
    switch.clear()
    converge(driver, WANTED)
    assert switch.lit() == set(WANTED)


def test_a_port_that_fails_is_dark_and_works_again(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, WANTED, Mode.REPLACE)
    switch.inject("port-failed", port=SIZE + 2)
    refused = [CrossConnect(5, SIZE + 2)]
    with pytest.raises(OpticalError):
        converge(driver, refused, timeout_s=1.0)
    switch.clear()
    converge(driver, refused)
    assert CrossConnect(5, SIZE + 2) in switch.lit()

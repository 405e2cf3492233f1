"""Safety: items 17 to 24, and 42."""

from __future__ import annotations

import time
from dataclasses import replace

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    NoSuchPort,
    OpticalError,
    PortBusy,
    PortClash,
    PortDisabled,
    PortFailed,
    WrongSide,
)
from ringlight.extensions.acceptance.checking import (
    Check,
    collecting,
    expect,
    raises,
    same,
)
from ringlight.extensions.acceptance.checks.writing import UNSEEN, stands
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.rigs.network import Stream
from ringlight.testbed.rigs.rig import Lacks, Rig, lacks

#: Twice the longest time by which an answer of a switch may be late here, seconds.
LATE_S = 1.0
CHECKS: list[Check] = []
check = collecting(CHECKS)


def wait_for_light(rig: Rig, cross_connect: CrossConnect) -> None:
    """Wait until the cross-connect carries light, if the switch reports when. A switch whose process was held
    up is later than it declares.
    """
    try:
        since_s = rig.lit_since(cross_connect)
    except Lacks:
        return
    time.sleep(max(0.0, since_s - time.monotonic()))


@check(17)
def kept_circuits_are_untouched(rig: Rig, driver: OpticalSwitchDriver) -> None:
    kept = rig.xc(1, 2)
    there, back = rig.cycle(3, 4, 5), rig.cycle(5, 4, 3)
    rig.host(1), rig.host(2)
    rig.change(driver, [kept, *there])
    since, counted = rig.lit_since(kept), rig.packets(kept)
    wait_for_light(rig, kept)
    expect(since <= time.monotonic(), "no light when it should be there")
    # Seldom enough that a switch in userspace that stands still for a while has room for them.
    with Stream(rig.hosts[1], 0.003) as stream:
        stream.wait(50)
        counts = []
        for _ in range(3):
            rig.change(driver, [kept, *back], Mode.REPLACE)
            rig.change(driver, there)
            rig.change(driver, (), delete=[rig.inputs[3]])
            rig.change(driver, [rig.xc(4, 5)], Mode.SAFE)
            counts.append(rig.packets(kept))
        stream.wait(50)
    arrived = rig.hosts[2].received(stream, len(stream.sent) - 1)
    same(
        len(stream.sent) - len(arrived),
        0,
        f"packets lost of {len(stream.sent)} on a kept circuit",
    )
    same(arrived, list(range(len(stream.sent))), "packets in order")
    expect(
        counted < counts[0] < counts[1] < counts[2],
        f"packets counted on it: {counted}, {counts}",
    )
    # Not written since. Where its age is what is asked for, a late answer makes it older, not younger.
    expect(rig.lit_since(kept) < stream.sent[0], "a kept circuit was written again")


@check(18)
def dark_are_the_ports_of_the_plan_and_no_others(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    before = {rig.xc(1, 2), *rig.cycle(3, 4, 5)}
    rig.change(driver, before)
    for circuit in before:
        wait_for_light(rig, circuit)
    # Where its age is what is asked for, a late answer makes light older: by less than half of this.
    time.sleep(LATE_S)
    started = time.monotonic() - LATE_S / 2
    after = {rig.xc(1, 2), rig.xc(3, 4), rig.xc(4, 3), rig.xc(5, 5)}
    result = rig.change(driver, after, Mode.REPLACE)
    made = {circuit for circuit in after if rig.lit_since(circuit) > started}
    went = before - after | made
    ports = {port for circuit in went for port in (circuit.ingress, circuit.egress)}
    same(ports, set(result.plan.dark_ports), "ports that went dark")
    same(made, set(result.plan.add), "made anew")


@check(19)
def safe_refuses_a_busy_port(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 2)])
    rig.writes()
    for target in ([rig.xc(1, 1)], [rig.xc(2, 2)]):
        with raises(PortBusy, "a busy port in SAFE mode") as caught:
            rig.change(driver, target, Mode.SAFE)
        same(caught.of("holder"), rig.xc(1, 2), "named as what holds it")
    same(rig.writes(), [], "written")
    same(rig.truth(), {rig.xc(1, 2)}, "there stands")


@check(19)
def safe_refuses_all_when_one_is_busy(rig: Rig, driver: OpticalSwitchDriver) -> None:
    requests = ([rig.xc(3, 4), rig.xc(1, 5)], [rig.xc(3, 4), rig.xc(5, 2)])
    rig.change(driver, [rig.xc(1, 2)])
    rig.writes()
    for some in requests:
        with raises(PortBusy, "a busy port among others in SAFE mode"):
            rig.change(driver, some, Mode.SAFE)
    same(rig.writes(), [], "written")
    same(rig.truth(), {rig.xc(1, 2)}, "there stands")


def _rejected(
    rig: Rig,
    driver: OpticalSwitchDriver,
    request: list[CrossConnect],
    error: type[OpticalError],
) -> None:
    coloured = [replace(xc, wavelength=rig.wavelength) for xc in request]
    text = ", ".join(map(str, request))
    with raises(error, f"the request {text}"):
        rig.change(driver, coloured)
    same(rig.writes(), [], f"written for {text}")
    same(rig.truth(), set(), f"after {text}, there stands")


@check(20)
def clashes_write_nothing(rig: Rig, driver: OpticalSwitchDriver) -> None:
    (first, other), (out, second) = rig.inputs[:2], rig.outputs[:2]
    _rejected(
        rig, driver, [CrossConnect(first, out), CrossConnect(other, out)], PortClash
    )
    _rejected(
        rig, driver, [CrossConnect(first, out), CrossConnect(first, second)], PortClash
    )


@check(21)
def wrong_ports_write_nothing(rig: Rig, driver: OpticalSwitchDriver) -> None:
    can = driver.capabilities()
    ingress, out = rig.inputs[0], rig.outputs[0]
    _rejected(rig, driver, [CrossConnect(ingress, max(can.ports) + 1)], NoSuchPort)
    _rejected(rig, driver, [CrossConnect(0, out)], NoSuchPort)
    if can.ingress & can.egress:
        return  # each port has both sides
    _rejected(rig, driver, [CrossConnect(ingress, rig.inputs[1])], WrongSide)
    _rejected(rig, driver, [CrossConnect(out, rig.outputs[1])], WrongSide)


@check(21)
def a_failed_port_is_rejected(rig: Rig, driver: OpticalSwitchDriver) -> None:
    if rig.failed_port is None:
        lacks("a port that is known to have failed")
    with raises(PortFailed, "a failed port"):
        rig.change(
            driver, [CrossConnect(rig.inputs[0], rig.failed_port, rig.wavelength)]
        )
    same(rig.writes(), [], "written")


@check(21, 42)
def a_disabled_port_is_rejected_and_keeps_its_cross_connect(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    if not driver.capabilities().port_admin:
        lacks("ports that can be disabled")
    egress = rig.outputs[1]
    rig.change(driver, [rig.xc(1, 2)])
    try:
        expect(
            driver.set_port_enabled(egress, False).enabled is False,
            "it is still enabled",
        )
        stands(rig, driver, {rig.xc(1, 2)})
        alarms = [(a.kind, a.port) for a in driver.alarms() if a.port == egress]
        same(alarms, [("PORT_DISABLED", egress)], "alarms of the port")
        with raises(PortDisabled, "a disabled port"):
            rig.change(driver, [rig.xc(2, 2)])
    finally:
        driver.set_port_enabled(egress, True)
    stands(rig, driver, {rig.xc(1, 2)})


@check(42)
def a_disabled_port_blocks_light(rig: Rig, driver: OpticalSwitchDriver) -> None:
    if not driver.capabilities().port_admin:
        lacks("ports that can be disabled")
    sender, receiver = rig.host(1), rig.host(2)
    egress = rig.outputs[1]
    rig.change(driver, [rig.xc(1, 2)])
    wait_for_light(rig, rig.xc(1, 2))
    try:
        driver.set_port_enabled(egress, False)
        with Stream(sender) as stream:
            stream.wait(20)
        time.sleep(0.05)
        same(receiver.received(stream), [], "packets that passed a disabled port")
    finally:
        driver.set_port_enabled(egress, True)
    # A switch whose process is held up opens the port later than it declares, not never.
    arrived: list[int] = []
    sent, deadline = [0], time.monotonic() + 5
    while arrived != sent and time.monotonic() < deadline:
        with Stream(sender) as stream:
            stream.wait(20)
        time.sleep(0.05)
        sent, arrived = list(range(len(stream.sent))), receiver.received(stream)
    same(arrived, sent, "packets that passed the port once it was enabled")


@check(22)
def what_is_not_ours_is_refused(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.external_connect(rig.xc(1, 2))
    with raises(PortBusy, "a port with another's cross-connect"):
        driver.plan([rig.xc(1, 1)], owned=[])
    same(rig.truth(), {rig.xc(1, 2)}, "there stands")


@check(22)
def what_another_owns_survives(rig: Rig, driver: OpticalSwitchDriver) -> None:
    if not driver.capabilities().ownership:
        lacks("a record of who made a cross-connect")
    rig.external_connect(rig.xc(1, 2))
    with raises(PortBusy, "another's port") as caught:
        rig.change(driver, [rig.xc(1, 1)])
    expect(
        "another owner" in str(caught.error), f"the reason is not said: {caught.error}"
    )
    rig.change(driver, [rig.xc(2, 1)])
    same(rig.truth(), rig.cycle(1, 2), "there stands")
    rig.change(driver, (), Mode.REPLACE)
    same(rig.truth(), set(), "there stands")


@check(24)
def removals_come_before_additions(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 1), rig.xc(2, 2)])
    rig.writes()
    # Not REPLACE, in which some can do both in one.
    rig.change(driver, rig.cycle(1, 2))
    kinds = [rig.is_removal(write) for write in rig.writes()]
    expect(kinds, f"writes for a swap: {UNSEEN}")
    expect(
        True in kinds and False in kinds,
        f"no removal or no addition among {len(kinds)} writes",
    )
    same(kinds, sorted(kinds, reverse=True), "removal first, by write")

"""Telemetry and life cycle: items 39 to 41, 43 and 44; light that goes where it should not."""

from __future__ import annotations

import os
import threading
import time

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import Unreachable
from ringlight.extensions.acceptance.checking import (
    Check,
    collecting,
    expect,
    raises,
    same,
    soon,
)
from ringlight.extensions.acceptance.checks.safety import wait_for_light
from ringlight.extensions.acceptance.checks.writing import stands
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode
from ringlight.testbed.rigs.network import Stream
from ringlight.testbed.rigs.rig import Rig, lacks

CHECKS: list[Check] = []
check = collecting(CHECKS)

#: Power of a port with light is above this, and of one without below, dBm.
LIGHT_DBM, DARK_DBM = -10.0, -40.0


def at_rest(rig: Rig) -> dict[int, int]:
    """Wait until packets that were sent before have arrived. Return the number received by every NIC, by
    faceplate.
    """
    deadline = time.monotonic() + 5
    counts: dict[int, int] = {}
    while counts != (
        now := {number: host.nic_received() for number, host in rig.hosts.items()}
    ):
        expect(time.monotonic() < deadline, "packets keep coming")
        counts = now
        time.sleep(0.1)
    return counts


@check(39)
def power_is_told_where_there_is_a_meter(rig: Rig, driver: OpticalSwitchDriver) -> None:
    power = driver.capabilities().power
    without = sorted({*rig.inputs, *rig.outputs} - power)
    same(
        driver.power_dbm(without[:1]),
        dict.fromkeys(without[:1]),
        "power of a port without a meter",
    )
    if not power:
        lacks("power meters")
    if 1 not in rig.plugged:
        lacks("light at faceplate 1")
    rig.change(driver, [rig.xc(1, 2)])
    unplugged = next((p for p in range(1, rig.pairs + 1) if p not in rig.plugged), None)
    idle = [rig.inputs[unplugged - 1]] if unplugged else []
    ingress, egress, other = rig.inputs[0], rig.outputs[1], rig.outputs[0]
    powers_dbm = driver.power_dbm([ingress, *idle, egress, other])
    # Without light there is a meter's floor, or nothing that it could say.
    read = {
        port: -99.0 if value is None else value for port, value in powers_dbm.items()
    }
    expect(
        read[egress] > LIGHT_DBM,
        f"egress {egress} with light has {read[egress]:.1f} dBm",
    )
    expect(
        read[ingress] >= read[egress],
        f"{read[ingress]:.1f} dBm in, {read[egress]:.1f} dBm out: a gain",
    )
    for port in idle:
        expect(
            read[port] < LIGHT_DBM,
            f"ingress {port} without a fibre has {read[port]:.1f} dBm",
        )
    expect(
        read[other] < DARK_DBM,
        f"egress {other} without light has {read[other]:.1f} dBm",
    )


def must_tell_light(driver: OpticalSwitchDriver) -> None:
    """Check that the switch reports whether light is there. Raises Lacks if it does not."""
    if not driver.capabilities().light:
        lacks("anything that tells where light is missing")


@check(40)
def loss_of_signal_is_raised_and_cleared(rig: Rig, driver: OpticalSwitchDriver) -> None:
    must_tell_light(driver)
    dark = next((p for p in range(1, rig.pairs + 1) if p not in rig.plugged), None)
    if dark is None or 1 not in rig.plugged:
        lacks("a port that is known to have light, and one that has none")

    def lost() -> list[int | None]:
        ours = {*rig.inputs, *rig.outputs}
        return [a.port for a in driver.alarms() if a.kind == "LOS" and a.port in ours]

    rig.change(driver, [rig.xc(1, 2), rig.xc(dark, 3)])
    same(lost(), [rig.inputs[dark - 1]], "loss of signal")
    rig.change(driver, (), delete=[rig.inputs[dark - 1]])
    same(lost(), [], "loss of signal without the circuit")


@check(40, 41)
def an_unplugged_fibre_is_noticed(rig: Rig, driver: OpticalSwitchDriver) -> None:
    must_tell_light(driver)
    rig.change(driver, [rig.xc(1, 2)])
    ingress = rig.inputs[0]

    def lost() -> bool:
        return any(a.kind == "LOS" and a.port == ingress for a in driver.alarms())

    expect(not lost(), "loss of signal with light")
    rig.plug(1, False)
    try:
        soon(lost, f"no alarm of port {ingress}, whose fibre was taken out,")
    finally:
        rig.plug(1, True)
    soon(lambda: not lost(), f"the alarm of port {ingress} was not cleared")


@check(17)
def light_without_a_cross_connect_goes_nowhere(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    sender = rig.host(1)
    rig.change(driver, [rig.xc(2, 3)])
    for _ in range(2):
        before = at_rest(rig)
        with Stream(sender) as stream:
            stream.wait(20)
        time.sleep(0.05)
        same(
            {number: host.nic_received() for number, host in rig.hosts.items()},
            before,
            "received",
        )
        # And again with what the driver makes of a switch that came back from nothing.
        rig.wipe()
        rig.change(driver, [rig.xc(2, 3)])


@check(7)
def light_can_go_back_where_it_came_from(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 1)])
    stands(rig, driver, {rig.xc(1, 1)})
    host = rig.host(1)
    wait_for_light(rig, rig.xc(1, 1))
    # What looked for the light may still be on its way back.
    before = at_rest(rig)[1]
    with Stream(host) as stream:
        stream.wait(20)
    deadline = time.monotonic() + 5
    while (
        host.nic_received() - before < len(stream.sent) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    time.sleep(0.05)
    same(host.nic_received() - before, len(stream.sent), "packets that came back")


# A reading that must be the truth: nothing is restarted here, so that it says nothing of item 43.
@check(4)
def a_switch_that_lost_everything_is_seen_and_set_right(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    rig.change(driver, rig.cycle(1, 2))
    rig.wipe()
    same(rig.standing(driver), set(), "the driver reads")
    rig.change(driver, rig.cycle(1, 2))
    stands(rig, driver, rig.cycle(1, 2))
    same([a for a in driver.alarms() if a.kind == "SWITCH"], [], "alarms")


@check(43)
def a_restart_leaves_what_its_mode_says(rig: Rig, driver: OpticalSwitchDriver) -> None:
    if not rig.recoveries:
        lacks("a switch that may be restarted")
    for mode in rig.recoveries:
        rig.change(driver, rig.cycle(1, 2), Mode.REPLACE)
        rig.restart(mode)
        left: set[CrossConnect] = set() if mode == "REMOVE" else rig.cycle(1, 2)
        stands(rig, driver, left)
        soon(
            lambda: (
                set(driver.snapshot().cross_connects.values())
                <= {CrossConnectState.CONNECTED}
            ),
            f"{mode}: not all that is left has light",
        )
        rig.change(driver, [rig.xc(1, 1)])
        same(
            rig.xc(1, 1) in rig.truth(),
            True,
            f"{mode}: a change after the restart stands",
        )


@check(44, writes=False)
def close_leaves_nothing(rig: Rig, driver: OpticalSwitchDriver) -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    driver.close()
    before = held()
    for _ in range(10):
        session = rig.driver(direct=True)
        session.open()
        session.snapshot()
        session.close()
        session.close()
        with raises(Unreachable, "a reading after close"):
            session.snapshot()
    # Threads of the rig that served earlier drivers may end meanwhile, so there can be fewer; those that
    # served these take a moment to notice.
    soon(
        lambda: all(after <= was for after, was in zip(held(), before, strict=True)),
        f"threads and descriptors: {before} before ten drivers, never again so few",
    )


@check(44)
def circuits_outlive_the_driver(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, rig.cycle(1, 2))
    driver.close()
    same(rig.truth(), rig.cycle(1, 2), "there stands")
    other = rig.driver()
    try:
        other.open()
        rig.writes()
        same(rig.standing(other), rig.cycle(1, 2), "another driver reads")
        expect(
            not rig.change(other, rig.cycle(1, 2), Mode.REPLACE).plan,
            "another driver changes something",
        )
        same(rig.writes(), [], "written")
    finally:
        other.close()

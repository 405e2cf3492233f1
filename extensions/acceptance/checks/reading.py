"""Identity and reading: items 1 to 6, and 45 if a password could be seen."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import AuthFailed, OpticalError, Unreachable
from ringlight.extensions.acceptance.checking import (
    Check,
    CheckFailed,
    collecting,
    expect,
    raises,
    same,
)
from ringlight.fabric.crossconnect import Mode, PortState
from ringlight.testbed.rigs.rig import WRONG_PASSWORD, Rig, lacks

CHECKS: list[Check] = []
check = collecting(CHECKS)

ANY_PASSWORD = "it accepts any password, so no refused login could be tried; an emulated switch needs --users FILE"


@contextmanager
def all_that_is_logged() -> Iterator[io.StringIO]:
    """Yield a text that gets every log line of this process during the block, at any level."""
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@check(1, writes=False)
def it_says_who_it_is(rig: Rig, driver: OpticalSwitchDriver) -> None:
    who = driver.open()
    missing = [
        part for part in ("vendor", "model", "version") if not getattr(who, part)
    ]
    expect(
        not missing,
        f"the Identity of {type(driver).__name__} has an empty {' and '.join(missing)}; "
        "return unknown if the switch does not report it",
    )


@check(1, writes=False)
def unreachable_is_told_apart(rig: Rig, driver: OpticalSwitchDriver) -> None:
    nobody = rig.unreachable()
    started = time.monotonic()
    try:
        with raises(Unreachable, "open without a switch"):
            nobody.open(timeout_s=1)
        with raises(Unreachable, "reading without a switch"):
            nobody.snapshot(timeout_s=1)
    finally:
        nobody.close()
    took_s = time.monotonic() - started
    expect(took_s < 6, f"two tries with a timeout of 1 s took {took_s:.1f} s")


@check(1, 45, writes=False)
def a_wrong_password_is_told_apart_and_never_shown(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    stranger = rig.locked_out()
    if stranger is None:
        lacks("a login")
    with all_that_is_logged() as log:
        try:
            for call in (stranger.open, stranger.snapshot):
                try:
                    call()
                except AuthFailed as error:
                    expect(
                        WRONG_PASSWORD not in str(error), "the error shows the password"
                    )
                else:
                    raise CheckFailed(ANY_PASSWORD)
        finally:
            stranger.close()
    expect(WRONG_PASSWORD not in log.getvalue(), "the log shows the password")


@check(2, writes=False)
def the_ports_are_those_declared(rig: Rig, driver: OpticalSwitchDriver) -> None:
    can = driver.capabilities()
    expect(
        set(rig.inputs) <= can.ingress, f"ingresses {rig.inputs} are not all declared"
    )
    expect(
        set(rig.outputs) <= can.egress, f"egresses {rig.outputs} are not all declared"
    )
    ports = driver.snapshot().ports
    same(set(ports), set(can.ports), "ports in a reading")
    failed = {
        port for port, status in ports.items() if status.state is PortState.FAILED
    }
    expected = {rig.failed_port} if rig.failed_port else set()
    same(failed & {*rig.inputs, *rig.outputs, *expected}, expected, "failed ports")


@check(3)
def an_empty_switch_reads_as_empty(rig: Rig, driver: OpticalSwitchDriver) -> None:
    same(rig.standing(driver), set(), "the driver reads")
    same(rig.truth(), set(), "there stands")


@check(4)
def a_reading_is_the_truth(rig: Rig, driver: OpticalSwitchDriver) -> None:
    if not rig.out_of_band:
        lacks("a view of the switch besides its management protocol")
    for target in ({rig.xc(1, 2)}, {rig.xc(1, 2), rig.xc(2, 1)}):
        rig.change(driver, target)
        same(rig.standing(driver), rig.truth(), "the driver reads")
        same(rig.truth(), target, "there stands")


@check(5)
def a_full_switch_reads_completely(rig: Rig, driver: OpticalSwitchDriver) -> None:
    target = {rig.xc(p, p) for p in range(1, rig.pairs + 1)}
    rig.change(driver, target, Mode.REPLACE, timeout_s=30)
    same(rig.standing(driver), target, "the driver reads")


@check(6)
def a_failed_reading_raises(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 2)])
    rig.writes()
    with rig.broken_reads():
        for what, call in (
            ("a spoilt reading", lambda: driver.snapshot(timeout_s=1)),
            (
                "a change on a spoilt reading",
                lambda: rig.change(driver, [rig.xc(2, 1)], timeout_s=1),
            ),
            ("alarms of a spoilt reading", lambda: driver.alarms(timeout_s=1)),
        ):
            with raises(OpticalError, what):
                call()
    same(rig.writes(), [], "written without a reading")
    same(rig.standing(driver), {rig.xc(1, 2)}, "the driver reads")

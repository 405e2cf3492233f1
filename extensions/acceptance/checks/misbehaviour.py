"""Faults: items 23 and 25 to 34."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    Indeterminate,
    OpticalError,
    PartialApply,
    ReadBackMismatch,
    Refused,
    StaleRevision,
)
from ringlight.controller.optical.model import CrossConnectResult
from ringlight.extensions.acceptance.checking import (
    Check,
    CheckFailed,
    collecting,
    expect,
    raises,
    same,
    soon,
)
from ringlight.extensions.acceptance.checks.writing import stands, wrote
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.testbed.rigs.rig import Rig, lacks

CHECKS: list[Check] = []
#: How much longer than its light may take a change is waited for that never has any, seconds.
NEVER_S = 2.0
#: How often a switch may be late before it counts as a failure.
LATE_TRIES = 3
check = collecting(CHECKS)


@check(25)
def a_reply_lost_after_its_effect(rig: Rig, driver: OpticalSwitchDriver) -> None:
    plan = driver.plan([rig.xc(1, 2)])
    rig.lose_next_reply(effect=True)
    with raises(Indeterminate, "a lost reply"):
        driver.apply(plan)
    wrote(rig, 1, "writes")
    with raises(StaleRevision, "the same plan once more"):
        driver.apply(plan)
    same(rig.change(driver, [rig.xc(1, 2)]).deviations, (), "deviations")
    same(rig.writes(), [], "written again")
    stands(rig, driver, {rig.xc(1, 2)})


def _converges(rig: Rig, driver: OpticalSwitchDriver, effect: bool) -> None:
    rig.change(driver, [rig.xc(1, 1)])
    rig.lose_next_reply(effect)
    same(rig.change(driver, [rig.xc(1, 2), rig.xc(2, 1)]).deviations, (), "deviations")
    stands(rig, driver, rig.cycle(1, 2))


@check(25)
def it_converges_after_a_lost_reply(rig: Rig, driver: OpticalSwitchDriver) -> None:
    _converges(rig, driver, True)


@check(26)
def it_converges_after_a_lost_command(rig: Rig, driver: OpticalSwitchDriver) -> None:
    _converges(rig, driver, False)


@check(26)
def a_dropped_session_is_made_anew(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, rig.cycle(1, 2, 3))
    rig.writes()
    rig.drop_sessions()
    same(rig.standing(driver), rig.cycle(1, 2, 3), "the driver reads")
    rig.change(driver, rig.cycle(1, 2, 3))
    same(rig.writes(), [], "written")
    rig.drop_sessions()
    rig.change(driver, rig.cycle(3, 2, 1))
    stands(rig, driver, rig.cycle(3, 2, 1))


@check(33)
def another_writer_makes_a_plan_stale(rig: Rig, driver: OpticalSwitchDriver) -> None:
    plan = driver.plan([rig.xc(1, 2)])
    rig.external_connect(rig.xc(2, 1))
    with raises(StaleRevision, "a plan made before another's write"):
        driver.apply(plan)
    same(rig.writes(), [], "written")
    same(rig.truth(), {rig.xc(2, 1)}, "there stands")
    rig.change(driver, [rig.xc(1, 2)])
    stands(rig, driver, rig.cycle(1, 2))


# Below, the switch itself misbehaves.


@contextlib.contextmanager
def straight(rig: Rig) -> Iterator[OpticalSwitchDriver]:
    """Yield an open driver with nothing between it and the switch that could misread the switch's replies."""
    driver = rig.driver(direct=True)
    try:
        driver.open()
        driver.snapshot()
        yield driver
    finally:
        driver.close()


@check(23)
def half_of_a_batch_is_reported_circuit_by_circuit(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    target = [rig.xc(p, p) for p in range(1, min(4, rig.pairs) + 1)]
    plan = driver.plan(target)
    with rig.fault("half", count=1):
        try:
            driver.apply(plan)
        except PartialApply as error:
            results = error.result.results if error.result is not None else ()
            done = {subject(r) for r in results if r.action == "add" and not r.reason}
            same(done, rig.truth(), "reported as done, and what stands")
            same(len(results), len(target), "circuits in the report")
            missing = [r for r in results if subject(r) not in done]
            expect(
                all(r.reason for r in missing), "a circuit is missing without a reason"
            )
        except Refused:
            same(rig.truth(), set(), "after a refusal of all, there stands")
        else:
            raise CheckFailed("half of a batch was refused, and it is called done")
    rig.change(driver, target)
    stands(rig, driver, set(target))


def subject(result: CrossConnectResult) -> CrossConnect:
    """Return the cross-connect that a result is about."""
    return CrossConnect(result.ingress, result.egress or 0, result.wavelength)


@check(27)
def an_idle_session_that_was_ended_is_made_anew(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    rig.change(driver, [rig.xc(1, 2)])
    rig.idle()
    same(rig.standing(driver), {rig.xc(1, 2)}, "the driver reads")
    rig.change(driver, [rig.xc(1, 1)])
    stands(rig, driver, {rig.xc(1, 1)})


@check(28)
def reports_in_between_are_no_replies(rig: Rig, driver: OpticalSwitchDriver) -> None:
    with straight(rig) as direct, rig.fault("autonomous"):
        rig.change(direct, rig.cycle(1, 2))
        rig.change(direct, [rig.xc(1, 1), rig.xc(2, 2)])
        stands(rig, direct, {rig.xc(1, 1), rig.xc(2, 2)})
        direct.alarms()


@check(29)
def a_refusal_is_a_failure(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 1)])
    for added, delete in (([rig.xc(2, 2)], ()), ([], [rig.inputs[0]])):
        plan = driver.plan(added, delete=delete)
        with (
            rig.fault("deny", count=1),
            raises(Refused, "a write that the switch refuses"),
        ):
            driver.apply(plan)
        stands(rig, driver, {rig.xc(1, 1)})


@check(30)
def what_cannot_be_understood_is_no_answer(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    rig.change(driver, [rig.xc(1, 1)])
    for kind in ("garbage", "truncate"):
        with straight(rig) as direct:
            with rig.fault(kind):
                with raises(OpticalError, f"a reading of {kind} bytes"):
                    direct.snapshot(timeout_s=0.5)
                with raises(OpticalError, f"a change on {kind} bytes"):
                    rig.change(direct, [rig.xc(2, 2)], timeout_s=0.5)
            same(
                rig.standing(direct),
                rig.truth(),
                f"after {kind} bytes, the driver reads",
            )
            rig.change(direct, [rig.xc(2, 2)])
            stands(rig, direct, {rig.xc(1, 1), rig.xc(2, 2)})
            rig.change(direct, (), delete=[rig.inputs[1]])


@check(30, 36)
def a_reply_that_drips_ends_at_the_deadline(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    rig.change(driver, [rig.xc(1, 1)])
    with straight(rig) as direct:
        with rig.fault("slow-drip", seconds=0.2):
            started = time.monotonic()
            with raises(OpticalError, "a reply of a byte every 0.2 s"):
                direct.snapshot(timeout_s=0.6)
            took_s = time.monotonic() - started
        expect(took_s < 3.0, f"a timeout of 0.6 s took {took_s:.1f} s")
        same(rig.standing(direct), {rig.xc(1, 1)}, "afterwards the driver reads")


@check(31)
def what_is_said_to_be_done_and_is_not_is_noticed(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    if not driver.capabilities().timing.lit_after_s(1):
        lacks("a declared dark time, after which it is read back")
    with raises(ReadBackMismatch, "a circuit that vanished when it was tuned"):
        # A switch whose process was held up tunes later than it declares, and is then read before.
        for _ in range(LATE_TRIES):
            with rig.fault("vanish", seconds=0.0, count=1):
                driver.apply(driver.plan([rig.xc(1, 2)]))
                soon(lambda: not rig.truth(), "the circuit did not vanish")
    same(rig.truth(), set(), "there stands")
    rig.change(driver, [rig.xc(1, 2)])
    stands(rig, driver, {rig.xc(1, 2)})


@check(32)
def a_circuit_that_never_tunes_is_told(rig: Rig, driver: OpticalSwitchDriver) -> None:
    plan = driver.plan([rig.xc(1, 2)])
    with rig.fault("never-tunes", count=1):
        try:
            # The switch is also read before the write, however busy its machine is.
            driver.apply(
                plan, timeout_s=driver.capabilities().timing.lit_after_s(1) + NEVER_S
            )
        except ReadBackMismatch as error:
            results = error.result.results if error.result is not None else ()
            expect(any(r.reason for r in results), "the reason is not told")
        except Indeterminate:
            pass  # it answers when the mirrors stand, which they do not
        else:
            expect(
                not rig.shows_tuning, "a circuit that never tunes is said to be made"
            )
            lacks("a protocol that tells a circuit whose mirrors still move")
    rig.change(driver, (), delete=[rig.inputs[0]])
    rig.change(driver, [rig.xc(1, 2)])
    stands(rig, driver, {rig.xc(1, 2)})

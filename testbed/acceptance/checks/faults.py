"""Faults: items 25, 26, 33 and what others of 25 to 34 a rig can bring about."""

from __future__ import annotations

from controller.optical.base import OpticalSwitchDriver
from controller.optical.errors import Indeterminate, StaleRevision
from testbed.acceptance.checking import Check, collecting, raises, same
from testbed.acceptance.checks.writing import stands
from testbed.acceptance.rig import Rig

CHECKS: list[Check] = []
check = collecting(CHECKS)


@check(25)
def a_reply_lost_after_its_effect(rig: Rig, driver: OpticalSwitchDriver) -> None:
    plan = driver.plan([rig.xc(1, 2)])
    rig.lose_next_reply(effect=True)
    with raises(Indeterminate, "a lost reply"):
        driver.apply(plan)
    same(len(rig.writes()), 1, "writes")
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

"""Writing: items 7 to 16."""

from __future__ import annotations

from dataclasses import replace

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.extensions.acceptance.checking import Check, collecting, expect, same
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode
from ringlight.testbed.rigs.rig import Rig

CHECKS: list[Check] = []
#: It is not the driver's fault if light changes by what the rig does not take for a write.
UNSEEN = "the rig has seen none, yet the switch has changed; WRITE of the rig's proxy says what one is"
check = collecting(CHECKS)


def writes_for(driver: OpticalSwitchDriver, removed: int, added: int) -> int:
    """Return the number of writes that removing and then adding so many cross-connects takes."""
    can = driver.capabilities()
    return -(-removed // (can.max_remove or can.max_batch)) + -(-added // can.max_batch)


def wrote(rig: Rig, expected: int, what: str) -> None:
    """Check how many writes the rig has seen since it was asked last. Raises CheckFailed.

    ``expected``: how many what has changed since then takes.
    """
    count = len(rig.writes())
    expect(count or not expected, f"{what}: {UNSEEN}")
    same(count, expected, what)


def stands(rig: Rig, driver: OpticalSwitchDriver, target: set[CrossConnect]) -> None:
    """Exactly this stands, and the driver reads it."""
    same(rig.truth(), target, "there stands")
    same(rig.standing(driver), target, "the driver reads")


@check(7, 9)
def adding_and_repeating(rig: Rig, driver: OpticalSwitchDriver) -> None:
    result = rig.change(driver, [rig.xc(1, 2)])
    done = [
        (r.action, str(r.state), r.reason) for r in result.results if r.action != "keep"
    ]
    same(done, [("add", "CONNECTED", "")], "reported")
    stands(rig, driver, {rig.xc(1, 2)})
    wrote(rig, 1, "writes for one cross-connect")
    again = rig.change(driver, [rig.xc(1, 2)])
    expect(not again.plan, "a repetition has a plan")
    same(rig.writes(), [], "written for a repetition")


@check(8)
def adding_many_in_few_writes(rig: Rig, driver: OpticalSwitchDriver) -> None:
    target = {rig.xc(p, p) for p in range(1, rig.pairs + 1)}
    rig.change(driver, target)
    wrote(
        rig,
        writes_for(driver, 0, len(target)),
        f"writes for {len(target)} cross-connects",
    )
    stands(rig, driver, target)


@check(10, 11)
def deleting_by_ingress_and_what_is_absent(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    rig.change(driver, rig.cycle(1, 2))
    rig.writes()
    first, other = rig.inputs[0], rig.inputs[1]
    result = rig.change(driver, (), delete=[first])
    stands(rig, driver, {rig.xc(2, 1)})
    same(
        {r.ingress for r in result.results if r.state is CrossConnectState.ABSENT},
        {first},
        "reported ABSENT",
    )
    wrote(rig, 1, "writes for one deletion")
    absent = rig.change(driver, (), delete=[first])
    states = [r.state for r in absent.results if r.ingress == first]
    same(states, [CrossConnectState.ABSENT], "reported of what was absent")
    same(rig.writes(), [], "written to delete what is absent")
    both = rig.change(driver, (), delete=[first, other])
    same(
        {r.ingress for r in both.results if r.state is CrossConnectState.ABSENT},
        {first, other},
        "ABSENT",
    )
    stands(rig, driver, set())


@check(12)
def moving(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 2)])
    result = rig.change(driver, [rig.xc(1, 1)])
    stands(rig, driver, {rig.xc(1, 1)})
    by_action = {r.action: r for r in result.results}
    same(by_action["remove"].state, CrossConnectState.ABSENT, "the old one")
    added = by_action["add"]
    if added.t_dark is None or added.t_lit is None:
        expect(False, "dark time is not reported")
    else:
        expect(added.t_dark < added.t_lit, "reported as lit before it was dark")


@check(13)
def swapping(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [rig.xc(1, 1), rig.xc(2, 2)])
    rig.writes()
    rig.change(driver, rig.cycle(1, 2))
    wrote(rig, writes_for(driver, 2, 2), "writes for a swap")
    stands(rig, driver, rig.cycle(1, 2))


@check(14)
def turning_a_cycle(rig: Rig, driver: OpticalSwitchDriver) -> None:
    around = tuple(range(1, min(5, rig.pairs) + 1))
    rig.xc(3, 3)  # a cycle of two is a swap
    rig.change(driver, rig.cycle(*around))
    rig.change(driver, rig.cycle(*around[::-1]))
    stands(rig, driver, rig.cycle(*around[::-1]))


@check(13)
def making_anew_what_stands_where_that_is_asked(
    rig: Rig, driver: OpticalSwitchDriver
) -> None:
    stays, goes, comes = rig.xc(1, 2), rig.xc(3, 4), rig.xc(5, 1)
    rig.change(driver, [stays, goes])
    rig.writes()
    # REPLACE would make circuits of others again, too.
    if rig.others:
        plan = driver.plan([stays, comes], delete=[goes.ingress], anew=True)
    else:
        plan = driver.plan([stays, comes], Mode.REPLACE, anew=True)
    same((set(plan.remove), set(plan.add)), ({stays, goes}, {stays, comes}), "planned")
    result = driver.apply(plan)
    stands(rig, driver, {stays, comes})
    expect(not result.deviations, f"deviations: {result.deviations}")
    writes = rig.writes()
    expect(writes, f"writes to make light anew: {UNSEEN}")
    expect(len(writes) >= 2, "what stands is not taken away by a write of its own")


@check(15)
def replacing_with_nothing(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, rig.cycle(1, 2))
    rig.change(driver, (), Mode.REPLACE)
    stands(rig, driver, set())


@check(16)
def names_stay(rig: Rig, driver: OpticalSwitchDriver) -> None:
    rig.change(driver, [replace(rig.xc(1, 1), name="red")])
    rig.change(driver, [rig.xc(2, 2)])
    names = {xc.name for xc in driver.snapshot().cross_connects if xc not in rig.others}
    same(names, {"red", None}, "names")

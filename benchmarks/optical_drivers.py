"""Control time through each driver. Needs root.

An emulated optical switch (a process of its own, eBPF datapath, no fibres), `ideal` profile, speaks every
management protocol. ``permutation``: from a random permutation of all ports to another, reading, plan, writes
and read-back included, by REPLACE and by UPDATE (which may only remove what is in the way). ``one``: moving
one circuit, likewise. Seconds.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import check_known, need_root, spread, tell
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.optical_drivers import protocols_of
from ringlight.testbed.rigs import rigs
from ringlight.testbed.rigs.emulated import ScpiRig


def optical_drivers(
    ports: int = 320, rounds: int = 5, moves: int = 200, driver: list[str] = []
) -> dict[str, Any]:
    """``rounds``: permutations in each mode; ``moves``: of one circuit; ``driver``: only these."""
    need_root()
    drivers = protocols_of("mems")
    check_known("--driver", driver, drivers)
    found: dict[str, Any] = {}
    for number, name in enumerate(driver or drivers):
        tell(name)
        rig_type = rigs()[name]
        assert issubclass(rig_type, ScpiRig)
        # The last egress of a rig has failed.
        with contextlib.closing(rig_type(ports + 1, "ideal", hosts=0)) as rig:
            found[name] = measure(
                rig.driver(direct=True), rig.outputs, rounds, moves, number
            )
    return {"ports": ports, "drivers": found}


PARTS = (optical_drivers,)


def measure(
    driver: OpticalSwitchDriver,
    outputs: Sequence[int],
    rounds: int,
    moves: int,
    seed: int,
) -> dict[str, Any]:
    dice = random.Random(seed)

    def permutation() -> list[CrossConnect]:
        chosen = dice.sample(outputs, len(outputs))
        return [
            CrossConnect(ingress, egress)
            for ingress, egress in enumerate(chosen, start=1)
        ]

    driver.open()
    found: dict[str, Any] = {}
    change_s(driver, permutation(), Mode.REPLACE)
    for mode in (Mode.REPLACE, Mode.UPDATE):
        times = [change_s(driver, permutation(), mode) for _ in range(rounds)]
        found[f"permutation_{mode.name.lower()}"] = spread(times)
    change_s(driver, [CrossConnect(1, outputs[0])], Mode.REPLACE)
    wanted = [[CrossConnect(1, outputs[number % 2])] for number in range(1, moves + 1)]
    found["one"] = spread(change_s(driver, one, Mode.UPDATE) for one in wanted)
    driver.close()
    return found


def change_s(
    driver: OpticalSwitchDriver, wanted: list[CrossConnect], mode: Mode
) -> float:
    """Seconds until all wanted are read back."""
    started = time.perf_counter()
    seen = driver.snapshot(timeout_s=30)
    plan = driver.plan(wanted, mode, snapshot=seen)
    result = driver.apply(plan, timeout_s=30, seen=seen)
    took = time.perf_counter() - started
    if not set(wanted) <= set(result.snapshot.cross_connects):
        raise RuntimeError("not as wanted")
    return took

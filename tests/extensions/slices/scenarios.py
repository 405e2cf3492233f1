"""What tests have to know of this extension's scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.record.runs import Run
from ringlight.fabric.parts import Port
from tests.scenario_notes import Notes


def _swapped(runs: Sequence[Run]) -> None:
    """Light of slice red is between the GPUs of c3 and c1 after a swap; that of blue is as before."""
    for run in runs:
        before = {frozenset(pair) for pair in run.circuits_before}
        after = {frozenset(pair) for pair in run.circuits}
        routers = {Port.parse(port).node for pair in after for port in pair}
        if run.plan.arm == "undisturbed":
            assert after == before
        else:
            assert routers == {"r2", "r3", "r4", "r5", "r6", "r7"}
            assert frozenset(("r5:2", "r4:3")) in before & after


NOTES = {"lost_cube": Notes(small={"training.iterations": 3}, shown=_swapped)}

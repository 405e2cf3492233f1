"""What this machine carries: the scale of runs that leave it to the machine (``scale: auto``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.carrying import MEASURED
from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.analysis.scaling import choose_scale
from ringlight.experiments.language.plan import ChosenScale, RunPlan

#: Seconds of a lab's bring-up, of each batch of links that are measured besides filling them, and of a run
#: besides its jobs; and what each GPU adds. Measured with 64 GPUs on two processors (2026-11-26): 6.4 to
#: 11.8 s, 1.1 to 5 s and 5 s.
LAB_S, BATCH_S, RUN_S = (2.0, 0.1), (0.5, 0.02), (1.0, 0.08)


@dataclass(frozen=True)
class Takes:
    """Seconds that an emulation takes: to build labs, to measure links, and of the runs."""

    bring_up: float
    links: float
    runs: float


def takes(plans: Sequence[RunPlan]) -> Takes:
    """How long these runs take where they are emulated, about."""
    from ringlight.experiments.backends.emulation.linktest import parts
    from ringlight.fabric.parts import canonical
    from ringlight.fabric.planes.divided.plugged import plugged

    bring_up = links = 0.0
    for setting in {id(plan.setting): plan.setting for plan in plans}.values():
        fabric = plugged(setting.fabric)
        gpus = len(fabric.gpus)
        found, _ = parts(fabric, canonical((str(a), str(b)) for a, b in fabric.circuits))
        batches = sum(len(part.batches) for part in found)
        bring_up += LAB_S[0] + LAB_S[1] * gpus
        links += batches * (setting.link_test_s + BATCH_S[0] + BATCH_S[1] * gpus)
    runs = sum(
        RUN_S[0] + RUN_S[1] * sum(job.gpus for job in plan.jobs) + max(expected_s(plan).values(), default=0.0)
        for plan in plans
    )
    return Takes(bring_up, links, runs)


def scale_here(plans: Sequence[RunPlan], *, fast_path: bool = False) -> ChosenScale:
    """One scale for all of these runs, with which this machine carries them. ``fast_path``: with that."""
    costs = MEASURED.fast() if fast_path else MEASURED
    return choose_scale(plans, costs, os.cpu_count() or 1)

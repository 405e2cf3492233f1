"""Rings of wavelengths: how their light is set between steps. How long that takes is ``setup``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from experiments.analysis.metrics import Context, metric
from experiments.analysis.metrics.light import spread
from experiments.analysis.prediction import ring_of
from experiments.record.events import RingSetUps
from experiments.record.runs import Run
from fabric.schedules import steps_named
from fabric.wdm import RingPlan, plan_ring


@lru_cache(maxsize=1)
def _ring_plan(context: Context) -> RingPlan | None:
    """Of the only job that a ring carries."""
    run = context.run
    ring, jobs = ring_of(run.plan.setting.fabric), [job for job in run.jobs.values() if job.gpus]
    if ring is None or not jobs:
        return None
    return plan_ring(run.plan.setting.fabric, ring, steps_named(jobs[0].plan.collective, len(jobs[0].gpus)))


@metric("count", of="fabric")
def set_ups(context: Context) -> int | None:
    """Changes of a ring's light on record."""
    rings = context.run.of(RingSetUps)
    return sum(len(ring.set_ups) for ring in rings) if rings else None


@spread("setup_write", "Of a ring's set-up, until the switches had it and it was read back")
def setup_write(run: Run) -> Sequence[float]:
    found = (change["write_s"] for ring in run.of(RingSetUps) for change in ring.set_ups)
    return [written for written in found if written is not None]


@metric("s", of="fabric", analytic=True)
def setup_declared(context: Context) -> float | None:
    """Set-up of a ring's light as its switches declare it."""
    rings = context.run.of(RingSetUps)
    return (rings[0].ring.get("statistics") or {}).get("declared_s") if rings else None


@metric("count", of="fabric", analytic=True)
def set_ups_per_allreduce(context: Context) -> int | None:
    """Steps of an all-reduce that change a ring's light."""
    if ring_of(context.run.plan.setting.fabric) is None:
        return None
    return next((found.set_ups for found in context.alone.values()), None)


@metric("count", of="fabric", analytic=True)
def wavelengths(context: Context) -> int | None:
    """Wavelengths of the ring."""
    ring = ring_of(context.run.plan.setting.fabric)
    return None if ring is None else ring.wavelengths


@metric("count", of="fabric", analytic=True)
def wavelengths_used(context: Context) -> int | None:
    """Of these, wavelengths that the all-reduce uses."""
    plan = _ring_plan(context)
    if plan is None:
        return None
    return len({emit.wavelength for peers in plan.transmit.values() for emit in peers.values()})

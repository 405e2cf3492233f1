"""Light of rings: what an all-reduce needs of it, and what setting it takes."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.extensions.wrht.records import RingSetUps
from ringlight.extensions.wrht.ring_plane import RingPlane

_RING = {
    "set_ups_per_allreduce": "Steps of an all-reduce that change a ring's light",
    "wavelengths": "Wavelengths of the ring",
    "wavelengths_used": "Wavelengths of the ring that the all-reduce uses",
}


@metric("count", of="fabric", known="analytic", makes=_RING)
def ring_plan(context: Context) -> Mapping[str, int]:
    """Return the counts of what the only job on a ring needs of the ring, by metric; empty without a ring."""
    plane = context.run.plan.on(RingPlane)
    if plane is None:
        return {}
    counts = {"wavelengths": plane.ring.wavelengths}
    fabric = context.run.plan.setting.fabric
    for job in context.run.jobs.values():
        if (
            job.gpus
            and job.plan.training is not None
            and job.plan.plane(fabric, job.gpus).light == "stepped"
        ):
            if model := context.alone.get(job.name):
                counts["set_ups_per_allreduce"] = model.set_ups
            counts["wavelengths_used"] = plane.wavelengths_used(
                job.gpus, job.plan.loop.collective
            )
    return counts


@metric("count", of="fabric", makes={"set_ups": "Changes of a ring's light on record"})
@metric(
    "s",
    of="fabric",
    known="analytic",
    makes={"setup_declared": "Set-up of a ring's light as its switches declare it"},
)
def ring_set_ups(context: Context) -> Mapping[str, float | None]:
    noted = context.run.of(RingSetUps)
    if not noted:
        return {}
    shown = noted[0].ring
    declared = (shown.get("statistics") or {}).get("declared_s")
    return {
        "set_ups": sum(len(note.set_ups) for note in noted),
        "setup_declared": declared,
    }

"""Count the parts of a workload's fabric per GPU, for users who know prices."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.fabric.planes.counts import of_fabric

#: Counts of :class:`fabric.parts.Counts`.
PARTS = {
    "nic_ports": "Ports of the GPUs",
    "transceivers": "Ends of fibres at GPUs and packet switches",
    "channels": "Wavelengths of all transceivers",
    "packet_switches": "Packet switches",
    "packet_ports": "Ports of packet switches in use",
    "optical_switches": "Optical switches",
    "optical_ports": "Ports of optical switches in use",
    "copper_cables": "Cables without transceivers",
}


@metric(
    "1",
    of="fabric",
    makes={f"{part}_per_gpu": f"{words}, per GPU" for part, words in PARTS.items()},
)
def built(context: Context) -> Mapping[str, float]:
    """Return the parts per GPU of a fabric that runs workloads, by metric; parts that the fabric lacks
    have no row."""
    plan = context.run.plan
    if all(job.workload is None for job in plan.jobs):
        return {}
    counts = of_fabric(plan.setting.fabric).per_gpu()
    return {f"{part}_per_gpu": count for part, count in counts.items() if count}

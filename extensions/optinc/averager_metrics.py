"""Figures of averagers (OptINC), and bytes of their jobs.

An emulated averager is a process: its processor time says nothing about light.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.metrics.training import exchanges
from ringlight.experiments.record.runs import SUCCEEDED, JobRun
from ringlight.extensions.optinc.averager_plane import AveragerPlane
from ringlight.extensions.optinc.averager_records import AveragersCounted
from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.whole_numbers.sums import sum_bits

_TAKEN = {
    "averager_cpu_share": "Largest share of one processor that any averager used during the all-reduces"
}
_LATENCY = {
    "averager_latency": "Median time from a frame's last byte to its answer's first byte, maximum over averagers"
}
_WRONG = {
    "averager_inputs": "Inputs of the tables of all averagers",
    "averager_inputs_wrong": "Inputs of the tables of all averagers whose answer is not the exact mean",
    "averager_checked": "Answers compared with the network itself while jobs ran",
    "averager_restarts": "Averagers that were restarted during the run",
}


@metric("%", makes=_TAKEN)
@metric("s", makes=_LATENCY)
@metric("count", makes=_WRONG)
def averagers(context: Context) -> Mapping[str, float]:
    """Return the figures of the averagers' processes by metric; empty if no averager received frames."""
    counters = [
        counted
        for record in context.run.of(AveragersCounted)
        for counted in record.averagers.values()
    ]
    used = [counted for counted in counters if counted["frames"]]
    if not used:
        return {}
    fabric, jobs = context.run.plan.setting.fabric, context.run.jobs.values()
    summed = [
        job
        for job in jobs
        if job.gpus and isinstance(job.plan.plane(fabric, job.gpus), AveragerPlane)
    ]
    busy_s = sum(took for job in summed for took in exchanges(job))
    values = {
        "averager_inputs": sum(counted["table"]["inputs"] for counted in used),
        "averager_inputs_wrong": sum(counted["table"]["wrong"] for counted in used),
        "averager_checked": sum(counted["checked"] for counted in used),
        "averager_restarts": sum(bool(counted["restarted"]) for counted in used),
        "averager_latency": max(counted["latency_s"]["median"] for counted in used),
    }
    # The processor time of a restarted averager before its restart is not known.
    if busy_s and not any(counted["restarted"] for counted in used):
        values["averager_cpu_share"] = (
            100 * max(counted["cpu_s"] for counted in used) / busy_s
        )
    return values


def _payload_bytes(context: Context, job: JobRun) -> float | None:
    """Return the bytes that a rank must send in a finished job: its gradients once.

    The gradients are codes of B bits if whole numbers are sent, else float32. None unless the job trained,
    succeeded and has all its iterations.
    """
    if (
        job.state != SUCCEEDED
        or job.plan.training is None
        or len(job.by_index) < job.plan.iterations
    ):
        return None
    plane = job.plan.plane(context.run.plan.setting.fabric, job.gpus)
    size = plane.times.payload_bytes(job.plan.loop.gradient_bytes)
    bits = parse_collective(job.plan.loop.collective).bits
    if bits is not None and not plane.sums:
        size *= bits / 32
    return size * job.plan.iterations


@metric("1", of="job")
def wire_over_payload(context: Context, job: JobRun) -> float | None:
    """Bytes on the wire over those of a rank's numbers, at the NIC port in the busier direction.

    Return the ratio; None if the payload or the bytes on the wire are not known.
    """
    payload = _payload_bytes(context, job)
    counts = [
        count
        for done in job.done.values()
        for nic in done.wire_bytes.values()
        for count in nic
    ]
    return max(counts) / payload if counts and payload else None


_SENT = {
    "sent_over_payload": "Bytes that a rank sent, without headers, over those of its numbers",
    "sent_over_payload_even": "Bytes that a rank of a ring of whole numbers would send, over those of "
    "its numbers, if sums had as many bits",
}


@metric("1", of="job", makes=_SENT)
def sent_over(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return the bytes that workers sent over their payload, by metric; empty if unknown or after a
    recovery."""
    payload = _payload_bytes(context, job)
    if not payload or not job.done or job.recoveries:
        return {}
    values = {
        "sent_over_payload": max(done.bytes_sent for done in job.done.values())
        / payload
    }
    if (bits := parse_collective(job.plan.loop.collective).bits) is not None:
        # Sums have B + ceil(log2 n) bits, means B, and as many of each are sent.
        share = 2 * bits / (sum_bits(bits, len(job.gpus)) + bits)
        values["sent_over_payload_even"] = values["sent_over_payload"] * share
    return values


@metric("%", of="job")
def answers_unlike_mean(_: Context, job: JobRun) -> float | None:
    """Averagers' answers that are not the mean of all (Eq. 8), counted in the reference process.

    Return per cent; None if the answers were not counted.
    """
    return None if job.unlike is None else 100 * job.unlike

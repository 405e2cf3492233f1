"""Averagers as photonic units: bytes sent to them, their parts, and their wrong answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s
from ringlight.experiments.language.plan import Loop
from ringlight.experiments.record.runs import JobRun
from ringlight.extensions.optinc.averager import Averager
from ringlight.extensions.optinc.averager_plane import AveragerPlane
from ringlight.extensions.optinc.averager_records import NetworkTried
from ringlight.extensions.optinc.averaging import Averaging, structure_of
from ringlight.extensions.optinc.photonics import carried
from ringlight.extensions.optinc.unit.structure import area_ratio, mzis, network_mzis
from ringlight.fabric.algorithms import parse_collective, steps_named


def averaging(context: Context, job: JobRun) -> Averaging | None:
    """Return the averagers that a job's all-reduces use; None if they use none."""
    if not job.gpus:
        return None
    plane = job.plan.plane(context.run.plan.setting.fabric, job.gpus)
    return plane.averaging if isinstance(plane, AveragerPlane) else None


def _training(context: Context, job: JobRun) -> Loop | None:
    """Return the training of a job that had GPUs, in a fabric with averagers, which the job may use or
    not; else None."""
    there = context.run.plan.setting.fabric.devices and job.gpus
    return job.plan.training if there else None


def _unit(context: Context, job: JobRun) -> Averager | None:
    """The only averager of a job. Those of a cascade have matrices that the table of layers has not."""
    tree = averaging(context, job)
    return tree.first[0] if tree is not None and tree.above is None else None


_SENT = {
    "port_sent": "Largest number of bytes that any rank sends in an all-reduce by its schedule, without "
    "packets' headers: chunks, or codes in frames with the scales of blocks",
    "port_scales": "Largest number of bytes of scales of blocks that any rank sends in an all-reduce",
}
_OVER = {
    "port_sent_over_payload": "Largest number of bytes that any rank sends in an all-reduce, over those of its "
    "payload: its gradient, or its codes"
}


@metric("bytes", of="job", known="analytic", makes=_SENT)
@metric("1", of="job", known="analytic", makes=_OVER)
def sent(context: Context, job: JobRun) -> Mapping[str, float]:
    loop = _training(context, job)
    if loop is None:
        return {}
    tree = averaging(context, job)
    if tree is not None:
        bytes_of = carried(tree, loop.gradient_bytes)
        coded = bytes_of.nic + bytes_of.scales
        over = coded / tree.code_bytes(loop.gradient_bytes)
        return {
            "port_sent": coded,
            "port_scales": bytes_of.scales,
            "port_sent_over_payload": over,
        }
    steps, bits = (
        steps_named(loop.collective, len(job.gpus)),
        parse_collective(loop.collective).bits or 32,
    )
    chunks = sum(np.bincount(step.sources, step.count, len(job.gpus)) for step in steps)
    vectors = float(np.max(chunks)) / steps.chunks
    # Numbers of fewer bits are a part of the float32 values that the gradient has.
    return {
        "port_sent": vectors * loop.gradient_bytes,
        "port_sent_over_payload": vectors * 32 / bits,
    }


@metric("s", of="job", known="analytic")
def iteration_ideal(context: Context, job: JobRun) -> float | None:
    """Iteration over averagers that computes, then all-reduces at full rate without waiting.

    Return seconds; None if the job does not train over averagers.
    """
    loop, setting = _training(context, job), context.run.plan.setting
    return (
        None
        if loop is None
        else loop.compute_s + ideal_all_reduce_s(setting, job.plan, job.gpus)
    )


_MADE_OF = {
    "unit_mzis": "Interferometers of a job's averager: its network and the parts around it"
}
_AREA = {
    "unit_area": "Interferometers of a job's averager over those of the same with no layer approximated",
    "unit_area_biased": "Interferometers of a job's averager over those with no layer "
    "approximated, with the light of biases on both sides",
    "network_area": "Interferometers of the network of a job's averager alone, over those of "
    "the same with no layer approximated",
}


@metric("count", of="job", known="analytic", makes=_MADE_OF)
@metric("1", of="job", known="analytic", makes=_AREA)
def made_of(context: Context, job: JobRun) -> Mapping[str, float]:
    unit = _unit(context, job)
    structure = structure_of(unit) if unit is not None else None
    if structure is None:
        return {}
    whole = replace(structure, approximated=frozenset())
    return {
        "unit_mzis": mzis(structure),
        "unit_area": area_ratio(structure),
        "unit_area_biased": area_ratio(structure, biases=True),
        "network_area": network_mzis(structure) / network_mzis(whole),
    }


_TRIED = {
    "inputs_tried": "Combinations of inputs that the network of a job's averager was tried with"
}
_WRONG = {
    "inputs_wrong": "Share of an averager's inputs that its network answers otherwise than the exact mean"
}
_OFF = {
    "output_off": "Largest distance of a network's output from its level, in levels: wrong from 0.5 on"
}


@metric("count", of="job", makes=_TRIED)
@metric("1", of="job", makes=_WRONG | _OFF)
def answered(context: Context, job: JobRun) -> Mapping[str, float]:
    unit, tried = (
        _unit(context, job),
        {note.averager: note for note in context.run.of(NetworkTried)},
    )
    last = None if unit is None else tried.get(unit.name)
    if last is None:
        return {}
    return {
        "inputs_tried": last.inputs,
        "inputs_wrong": last.wrong / last.inputs,
        "output_off": last.worst,
    }

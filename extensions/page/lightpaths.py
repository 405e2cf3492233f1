"""Reconstruct the lightpaths between GPUs in a run if light is not circuits: on rings, or divided by demand.

The form is that of the stream of a lab (``lightpaths`` of ``rates``), from the records of each change. If
there are no records, a job's light is that for what the job sends in an iteration, because its plane is then
lit once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ringlight.controller.light.documents import LitPair
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.experiments.record import events as record
from ringlight.experiments.record.events import ENDED, Record
from ringlight.extensions.sip_ml.allocation.demand import placed
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.fabric.planes.base import Misfit
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.steps import sent_in_steps
from ringlight.workloads.traffic import sent

#: Larger fabrics are drawn folded, without single lightpaths.
MOST_GPUS = 64
#: When (the lab's clock), which light, and whether it is dark yet.
_Turn = tuple[float, list[LitPair], bool]


def lightpaths(plan: RunPlan, records: Iterable[Record], begin: float) -> dict[str, Any]:
    """Return ``sets`` of lightpaths, and ``turns``.

    A turn has seconds after ``begin``, the job whose light changes, the index of its new set, and whether
    that set is still dark.
    """
    sets: dict[tuple[LitPair, ...], int] = {}
    turns = []
    known = list(records)
    if len(plan.setting.fabric.gpus) <= MOST_GPUS:
        for job in plan.jobs:
            for t, pairs, dark in _turns(plan, job, known):
                place = sets.setdefault(tuple(pairs), len(sets))
                turns.append([round(t - begin, 6), job.name, place, dark])
    return {"sets": [list(lit_pairs) for lit_pairs in sets], "turns": turns}


def _turns(plan: RunPlan, job: JobPlan, records: list[Record]) -> Iterator[_Turn]:
    states = [note for note in records if isinstance(note, record.JobState) and note.job == job.name]
    begin = next((note for note in states if note.state == "RUNNING"), None)
    if begin is None:
        return
    gpus = next((note.gpus for note in states if note.gpus), list(job.ranks))
    try:
        plane = job.plane(plan.setting.fabric, gpus)
    except Misfit:
        return
    if plane.stepped:
        yield from _stepped(plane, job, gpus, begin.t, records)
    elif plane.built:
        yield from _divided(plan, job, begin.t, gpus, records)
    yield from ((note.t, [], False) for note in states if note.state in ENDED)


def _stepped(
    plane: Any, job: JobPlan, gpus: list[str], begin: float, records: list[Record]
) -> Iterator[_Turn]:
    """A ring's light, set between the steps of the collective."""
    if job.training is None:
        return
    ring_plan = plane.plan(gpus, job.training.collective)
    settings = [
        [LitPair(a, b, ring_plan.transmit[a][b].wavelength, 1) for a, b in sorted(step.pairs)]
        for step in ring_plan.steps
    ]
    yield begin, settings[0], False
    notes = (setups for setups in records if isinstance(setups, record.RingSetUps))
    for change in {note.ring["name"]: note.set_ups for note in notes}.get(plane.name, ()):
        pairs = settings[change["step"] % len(settings)]
        yield change["t"], pairs, True
        yield change["t"] + change["total_s"], pairs, False


def _divided(
    plan: RunPlan, job: JobPlan, begin: float, gpus: list[str], records: list[Record]
) -> Iterator[_Turn]:
    given = [note for note in records if isinstance(note, record.LightGiven) and note.job == job.name]
    made = [
        decision
        for note in records
        if isinstance(note, record.LightDecisions) and note.job == job.name
        for decision in note.decisions
        if "lightpaths" in decision
    ]
    first = given[0].divisions[0]["t"] if given else begin
    if not given:
        yield begin, _for_iteration(plan, job, gpus), False
    for light in given:
        for division in light.divisions:
            counts = zip(light.pairs, division["lightpaths"], strict=True)
            yield division["t"], [LitPair(a, b, None, count) for (a, b), count in counts if count], False
    for note in made:
        pairs = [
            LitPair(gpu, peer, None, count)
            for gpu, peers in note["lightpaths"].items()
            for peer, count in peers.items()
        ]
        held = note["t"] + note["decide_s"] + note["hold_s"]
        if held > first:
            yield held, pairs, True
            yield held + note["dark_s"], pairs, False
    if given or made:
        return
    for back in records:
        if isinstance(back, record.JobRecovered) and back.job == job.name:
            yield back.at, _for_iteration(plan, job, back.gpus), False


def _for_iteration(plan: RunPlan, job: JobPlan, gpus: list[str]) -> list[LitPair]:
    """Return the light for what a job on these GPUs sends in an iteration; none if the fabric's is not
    divided."""
    fabric = plan.setting.fabric
    names = list(fabric.gpus)
    if job.workload is not None:
        demand = sent(job.workload)
    elif job.training is not None:
        demand = sent_in_steps(steps_named(job.training.collective, len(gpus)), job.training.gradient_bytes)
    else:
        return []
    try:
        counts = divider(fabric).counts(placed(demand, [names.index(gpu) for gpu in gpus], len(names)))
    except ValueError:
        return []
    return [LitPair(names[a], names[b], None, int(counts[a, b])) for a, b in np.argwhere(counts).tolist()]

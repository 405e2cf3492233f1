"""Reconstruct the lightpaths between GPUs in a run if light is not circuits, as their planes' carriers know.

The form is that of the stream of a lab (``lightpaths`` of ``rates``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ringlight.controller.light.documents import LitPair
from ringlight.experiments.backends.simulation.carriers import (
    Carrier,
    LightThen,
    LitJob,
    carriers,
)
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.experiments.record import events as record
from ringlight.experiments.record.events import ENDED, Record
from ringlight.fabric.planes.base import Misfit

#: Larger fabrics are drawn folded, without single lightpaths.
MOST_GPUS = 64


def lightpaths(
    plan: RunPlan, records: Iterable[Record], begin: float
) -> dict[str, Any]:
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


def _turns(plan: RunPlan, job: JobPlan, records: list[Record]) -> Iterator[LightThen]:
    states = [
        note
        for note in records
        if isinstance(note, record.JobState) and note.job == job.name
    ]
    begin = next((note for note in states if note.state == "RUNNING"), None)
    if begin is None:
        return
    gpus = next((note.gpus for note in states if note.gpus), list(job.ranks))
    try:
        plane = job.plane(plan.setting.fabric, gpus)
    except Misfit:
        return
    recorded = LitJob(plane, plan.setting.fabric, job, gpus, begin.t)
    carrier = carriers().get(plane.kind, Carrier)
    yield from carrier.light_over_time(recorded, records)
    yield from ((note.t, [], False) for note in states if note.state in ENDED)

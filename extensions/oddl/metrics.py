"""Light of grids: what it joins while jobs run, and how an all-reduce uses lasers and receivers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.rows import Value
from ringlight.experiments.record.runs import Run
from ringlight.extensions.oddl.grid_plane import GridPlane
from ringlight.extensions.oddl.records import GridLit
from ringlight.extensions.oddl.wavelengths import LightUse

_LIT = {
    "lit_pairs": "Pairs of nodes that the switches join by light",
    "lit_between_jobs": "Pairs of nodes that the switches join by light and that are not of one job",
}


@metric(
    "count",
    of="fabric",
    makes=_LIT,
    condemning={"lit_between_jobs": "wavelengths between jobs"},
)
def lit_pairs(context: Context) -> Mapping[str, int]:
    """Return counts of pairs that WSSs let through while the jobs ran, as read back, by metric; empty if they
    were not read."""
    run = context.run
    notes = run.of(GridLit)
    if not notes:
        return {}
    user = {gpu: job.name for job in run.jobs.values() for gpu in job.gpus}
    cross_connects = [
        xc for note in notes for switch in note.grid["switches"] for xc in switch["lit"]
    ]
    users = [(user.get(xc["from"]), user.get(xc["to"])) for xc in cross_connects]
    return {
        "lit_pairs": len(cross_connects),
        "lit_between_jobs": sum(a is None or a != b for a, b in users),
    }


_USE = {
    "receivers": "Receivers with at least one sender in an all-reduce",
    "contended": "Receivers with more than one sender in an all-reduce, which two flows may need at the same time",
    "senders": "Largest number of senders of one receiver",
    "lasers": "Lasers that send in an all-reduce",
    "tuned": "Lasers that send on more than one wavelength in an all-reduce",
    "retunes": "Changes of wavelength of all lasers in an all-reduce",
}


def _uses(run: Run) -> Iterator[LightUse]:
    """Yield the use of lasers and receivers of each training that had GPUs of a grid."""
    fabric = run.plan.setting.fabric
    for job in run.jobs.values():
        if job.gpus and job.plan.training is not None:
            plane = job.plan.plane(fabric, job.gpus)
            if isinstance(plane, GridPlane):
                yield plane.use(job.gpus, job.plan.loop.collective)


@metric(
    "",
    of="fabric",
    known="analytic",
    makes={
        "light_use_collisions_possible": "Whether two lightpaths could meet at a receiver"
    },
)
@metric(
    "count",
    of="fabric",
    known="analytic",
    makes={f"light_use_{name}": words for name, words in _USE.items()},
)
def use(context: Context) -> Mapping[str, Value]:
    """Return the use of lasers and receivers by an all-reduce of the jobs on a grid, by metric; empty if
    none trained there."""
    uses = list(_uses(context.run))
    if not uses:
        return {}
    total = functools.reduce(operator.add, uses)
    return {
        f"light_use_{name}": getattr(total, name)
        for name in (*_USE, "collisions_possible")
    }

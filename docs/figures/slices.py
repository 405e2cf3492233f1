"""Blocks of slices of cubes: two on the testbed, and a trace of requests for them."""

from __future__ import annotations

from docs.figures.cluster import hours
from docs.figures.parts import Block, Cell, Middle, Table, measured, of, simulated
from docs.figures.words import apart, seconds


def _job(title: str, job: str) -> list[Cell]:
    figures = (simulated("both", "jct", job), measured("both", "jct", job))
    return [
        title,
        *(of(seconds, measured("both", name, job)) for name in ("iteration", "allreduce", "jct")),
        of(seconds, figures[0]),
        of(apart, *figures),
    ]


def _requests(title: str, arm: str) -> list[Cell]:
    metrics = ("waited_mean", "waited_p95", "completion_mean")
    return [title, *(of(hours, Middle("simulated", arm, name, {}, ())) for name in metrics)]


def _of_lost_cube(title: str, arm: str, metric: str, subject: str) -> list[Cell]:
    figures = (simulated(arm, metric, subject), measured(arm, metric, subject))
    return [title, *(of(seconds, figure) for figure in reversed(figures)), of(apart, *figures)]


def _late(swapped: float, whole: float) -> str:
    """The time by which a job ends later because it lost its cube."""
    return seconds(swapped - whole)


def _late_apart(swapped: float, whole: float, measured_swapped: float, measured_whole: float) -> str:
    return apart(swapped - whole, measured_swapped - measured_whole)


def _of_delay(title: str) -> list[Cell]:
    arms = ("swapped", "undisturbed")
    ours, theirs = ([known(arm, "makespan", "run") for arm in arms] for known in (simulated, measured))
    return [title, of(_late, *theirs), of(_late, *ours), of(_late_apart, *ours, *theirs)]


BLOCKS: dict[str, Block] = {
    "slices": Table(
        "examples/slices",
        "slice | iteration | all-reduce | job | job, simulated | difference",
        [_job("red, 2x2x2 of two cubes", "job red"), _job("blue, 2x2x1 of one cube", "job blue")],
    ),
    "lost-cube": Table(
        "examples/lost_cube",
        "a lost cube | measured | simulated | difference",
        [
            _of_lost_cube("no cube is lost: the job", "undisturbed", "makespan", "run"),
            _of_lost_cube("a cube is lost: to the end of the job submitted again", "swapped", "makespan", "run"),
            _of_delay("so the job is late by"),
            _of_lost_cube("the swap, a part of this", "swapped", "reconfiguration", "event swap"),
            _of_lost_cube("the job submitted again, alone", "swapped", "jct", "job red-again"),
            _of_lost_cube("the job of the other slice", "swapped", "jct", "job blue"),
        ],
    ),
    "slices-64": Table(
        "slices_64",
        "64 cubes of 4 × 4 × 4 | waited, mean | waited, 95 % within | from request to end, mean",
        [
            _requests("blocks of a fixed torus", "torus"),
            _requests("slices of any cubes", "cubes"),
            _requests("blocks of a fixed torus, backfilled", "torus-backfill"),
            _requests("slices of any cubes, backfilled", "cubes-backfill"),
        ],
    ),
}

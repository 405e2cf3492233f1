"""Merges the schedules of several groups into one of all ranks, and turns chunks into bytes.

Ranks in the results are those of the whole workload; those of a single group stay its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import IntArray, Step, Steps, frozen


def in_bytes(steps: Steps, bounds: IntArray) -> Steps:
    """Return the schedule with chunks of one byte. Chunk k of ``steps`` was bytes ``bounds[k]`` to ``bounds[k
    + 1]``.

    Transfers of no bytes are left out.
    """

    def make() -> Iterator[Step]:
        for step in steps:
            size = bounds[step.first + step.count] - bounds[step.first]
            some = np.flatnonzero(size)
            yield Step(
                frozen(step.sources[some]),
                frozen(step.destinations[some]),
                frozen(bounds[step.first[some]]),
                frozen(size[some]),
                step.op,
            )

    return replace(steps, chunks=int(bounds[-1]), make=make)


def travelling(steps: Steps) -> Steps:
    """Return the schedule without transfers of a rank to itself."""

    def make() -> Iterator[Step]:
        for step in steps:
            away = np.flatnonzero(step.sources != step.destinations)
            yield (
                step
                if len(away) == len(step)
                else Step(
                    frozen(step.sources[away]),
                    frozen(step.destinations[away]),
                    frozen(step.first[away]),
                    frozen(step.count[away]),
                    step.op,
                )
            )

    return replace(steps, make=make)


def merged_steps(
    steps: Sequence[Steps], groups: Sequence[IntArray], ranks: int
) -> Steps:
    """Merge the schedules of groups that communicate at the same time, and return one schedule of ``ranks``
    ranks.

    All schedules have the same number of steps. Within a step, transfers between the same two ranks become
    one transfer. Steps that are equal in all groups share their arrays, like in the schedules.
    """
    same = all(schedule is steps[0] for schedule in steps)
    table = np.stack(groups) if same else None

    def of_all(step: Step) -> Step:
        assert table is not None
        count = np.tile(step.count, len(table))
        return _merged(
            table[:, step.sources].ravel(),
            table[:, step.destinations].ravel(),
            count,
            step,
            ranks,
        )

    def of_each(parts: Sequence[Step]) -> Step:
        sources, destinations = (
            np.concatenate(
                [
                    group[getattr(part, name)]
                    for group, part in zip(groups, parts, strict=True)
                ]
            )
            for name in ("sources", "destinations")
        )
        return _merged(
            sources,
            destinations,
            np.concatenate([p.count for p in parts]),
            parts[0],
            ranks,
        )

    def make() -> Iterator[Step]:
        if not same:
            yield from map(of_each, zip(*steps, strict=True))
            return
        known: dict[tuple[int, int, int, str], tuple[Step, Step]] = {}
        for step in steps[0]:
            # By identity; the step is kept so that its identity stays its own.
            key = (id(step.sources), id(step.destinations), id(step.count), step.op)
            if key not in known:
                known[key] = (step, of_all(step))
            yield known[key][1]

    return replace(steps[0], world_size=ranks, make=make)


def _merged(
    sources: npt.NDArray[np.int64],
    destinations: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    step: Step,
    ranks: int,
) -> Step:
    """Return a step with one transfer for each pair of ranks, without transfers of a rank to itself."""
    travels = sources != destinations
    pair = sources[travels] * ranks + destinations[travels]
    count = count[travels]
    pairs, of = np.unique(pair, return_inverse=True)
    if len(pairs) == len(pair):
        sources, destinations = sources[travels], destinations[travels]
    else:
        sources, destinations = pairs // ranks, pairs % ranks
        count = np.bincount(of, count, minlength=len(pairs)).astype(np.int64)
    return Step(
        frozen(sources),
        frozen(destinations),
        frozen(np.zeros(len(sources))),
        frozen(count),
        step.op,
    )

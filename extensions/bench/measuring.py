"""A collective over a range of sizes through a scenario's fabric: the table of nccl-tests.

Time is that of one call, from a row of calls after one that does not count. Algorithm bandwidth is size over
time; bus bandwidth is what every rank's link would need, were all of the way as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ringlight.experiments.language.checks import check_standing
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.experiments.record.events import Operations, Record, WorkerDone
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.fabric.kinds import KINDS, bus_factor
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_rate, format_size, format_time, parse_size
from ringlight.workloads.devices import scaled
from ringlight.workloads.formats.reading import read_algorithm
from ringlight.workloads.graph import Collective, Split
from ringlight.workloads.graph_writer import Book, Writer

JOB = "bench"
#: A link that gives less than this share of what is stated is named.
SLOW = 0.75
#: Sizes in one table.
MOST_SIZES = 64


@dataclass(frozen=True)
class Measured:
    """Time of a call and bandwidths in bits per second for one size, at the fabric's real rates."""

    size_bytes: int
    time_s: float
    algbw_bps: float
    busbw_bps: float


def parse_sizes(text: str, factor: float) -> tuple[int, ...]:
    """Return the sizes in bytes of ``64KiB..256MiB``, each ``factor`` times the one before, or of one size.

    Sizes are rounded to multiples of 4 bytes. Raises ValueError.
    """
    first, dots, last = text.partition("..")
    begin = parse_size(first)
    end = parse_size(last) if dots else begin
    if not 0 < begin <= end:
        raise ValueError(
            f"{text!r}: sizes go from one above 0 to one that is no smaller"
        )
    if factor <= 1:
        raise ValueError(f"a factor of {factor:g}; it must be above 1")
    sizes = []
    size = float(begin)
    while size <= end * (1 + 1e-9):
        sizes.append(round(size / 4) * 4 or 4)
        size *= factor
        if len(sizes) > MOST_SIZES:
            raise ValueError(
                f"{text!r}: more than {MOST_SIZES} sizes; use a larger factor"
            )
    return tuple(dict.fromkeys(sizes))


class RanksError(ValueError):
    """GPUs that cannot be the ranks of a collective."""


def is_file(algorithm: str) -> bool:
    """Return whether ``algorithm`` is the path of a file and not the name of an algorithm."""
    return algorithm.endswith(".xml") or "/" in algorithm


def what_of(kind: str, algorithm: str, skew: float = 0.0) -> Collective:
    """Return a collective, given its kind and the name of its algorithm, or the path of a file with one.

    If ``kind`` is "", the collective is that of the file, or an all-reduce. ``skew``: of an all-to-all-v.
    Raises ValueError.
    """
    if is_file(algorithm):
        collective = read_algorithm(Path(algorithm))
        if kind not in ("", collective.kind):
            raise ValueError(
                f"{algorithm} is an {collective.kind}, and --collective says {kind}"
            )
        return collective
    split = Split(skew=skew) if kind == "all-to-all-v" else None
    return Collective(kind or "all-reduce", algorithm, split=split)


def bench_plan(
    plan: RunPlan,
    what: Collective,
    sizes: Sequence[int],
    calls: int,
    ranks: Sequence[str] | None = None,
) -> RunPlan:
    """Return the run whose only job calls the collective for each size once, then ``calls`` times.

    ``ranks``: GPUs of the job in rank order; if None, those of all jobs of ``plan``. Raises ValueError.
    """
    fabric, scale = plan.setting.fabric, plan.setting.scale
    gpus = list(dict.fromkeys(gpu for job in plan.jobs for gpu in job.ranks)) or list(
        fabric.gpus
    )
    if ranks is not None:
        gpus = _checked(ranks, fabric)
    check_standing(plane_of(fabric, gpus))
    what.steps(len(gpus))
    book = Book()
    group = book.group(range(len(gpus)))
    writer = Writer(book)
    for size in sizes:
        for _ in range(1 + calls):
            writer.collective(format_size(size), what, size, 0)
    slots, nobody = np.full((len(gpus), 1), group), np.empty((len(gpus), 0))
    real = book.workload(what.kind, [writer.done()], np.zeros(len(gpus)), slots, nobody)
    job = JobPlan(
        JOB,
        JOB,
        tuple(gpus),
        len(gpus),
        1,
        workload=scaled(real, scale.time, scale.payload),
    )
    return replace(plan, name=JOB, title=what.kind, jobs=(job,), events=())


def _checked(ranks: Sequence[str], fabric: Fabric) -> list[str]:
    """Raises RanksError."""
    for number, gpu in enumerate(ranks):
        if gpu not in fabric.gpus:
            raise RanksError(
                f"there is no GPU {gpu!r}; there are {', '.join(fabric.gpus)}"
            )
        if gpu in ranks[:number]:
            raise RanksError(f"GPU {gpu} is named twice")
    if len(ranks) < 2:
        raise RanksError("a collective needs at least 2 GPUs")
    return list(ranks)


def words_on(
    plan: RunPlan, made: RunPlan, experiment: Experiment, *, whose: bool
) -> list[str]:
    """Return two lines that describe a table: the arm of ``plan``, and the ranks of the run made from
    ``plan``.

    ``whose``: add that the order of the ranks is the file's own.
    """
    there = len({other.point_name for other in experiment.plans})
    option = "--point" if any(other.point for other in experiment.plans) else "--arm"
    more = f"; one of {there}, choose with {option}" if there > 1 else ""
    less = "; without its events, light is as at the start" if plan.events else ""
    gpus = made.jobs[0].ranks
    jobs = [job.name for job in plan.jobs if job.ranks]
    of = (
        f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}" if jobs else "the fabric"
    )
    order = f" (the order of {of}; another with --ranks)" if whose else ""
    return [
        f"{_called(made)}, arm {plan.place} on {plan.setting.name}{more}{less}",
        f"{len(gpus)} ranks in this order: {' '.join(gpus)}{order}",
    ]


def _called(made: RunPlan) -> str:
    workload = made.jobs[0].workload
    assert workload is not None
    what = workload.collectives[0]
    if what.own is not None:
        return f"{what.kind} as {what.own.name}, {len(what.own.rows)} steps"
    return f"{what.kind} by {what.algorithm or KINDS[what.kind][0]}"


def measured(
    plan: RunPlan, records: Iterable[Record], sizes: Sequence[int], calls: int
) -> Iterator[Measured]:
    """Yield the mean time of a call and the bandwidths of each size, from the records of a :func:`bench_plan`
    run.
    """
    job = plan.job(JOB)
    assert job.workload is not None
    timed = [record for record in records if isinstance(record, Operations)]
    ends = np.max(
        [
            [operations.begin + end for _, end in operations.times_s]
            for operations in timed
        ],
        axis=0,
    )
    kind, dilation = job.workload.collectives[0].kind, plan.setting.scale.time
    for size, of_size in zip(sizes, ends.reshape(len(sizes), 1 + calls), strict=True):
        time_s = float(of_size[-1] - of_size[0]) / calls / dilation
        bps = 8 * size / time_s
        yield Measured(size, time_s, bps, bps * bus_factor(kind, job.gpus))


def checked(records: Iterable[Record]) -> int | None:
    """Return the number of result parts that were compared with the expected ones, None if nothing was
    computed.
    """
    counts = [r.results_checked for r in records if isinstance(r, WorkerDone)]
    return None if not counts or None in counts else sum(count or 0 for count in counts)


def slow_links(records: Iterable[Record], below: float = SLOW) -> list[LinkRate]:
    """Return the directions of links that gave less than the share ``below`` of their rate when they were
    filled.
    """
    return [
        r for r in records if type(r) is LinkRate and r.measured_bps < below * r.set_bps
    ]


def words_of(link: LinkRate) -> str:
    """Return a link's measured rate as one line, in per cent of the stated rate."""
    return f"link {link.link}, {link.direction}: {link.measured_bps / link.set_bps:.0%} of its stated rate"


def lines_of(
    measurements: Iterable[Measured], checked: int | None
) -> list[tuple[str, str, str, str, str]]:
    """Return the cells of the table: size, time, algorithm bandwidth, bus bandwidth, result.

    ``checked``: number of result parts that were right, None if nothing was computed. A wrong part ends the
    run.
    """
    result = "not computed" if checked is None else "exact"
    return [
        (
            format_size(measurement.size_bytes),
            format_time(measurement.time_s),
            format_rate(measurement.algbw_bps),
            format_rate(measurement.busbw_bps),
            result,
        )
        for measurement in measurements
    ]

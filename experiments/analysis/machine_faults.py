"""Faults of the machine: links that missed their rates, late timers, processors that others took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.lab_faults import (
    died,
    differing,
    drifted,
    stood_still,
)
from ringlight.experiments.analysis.reasons import Reason, over
from ringlight.experiments.analysis.statistics import median, percentile
from ringlight.experiments.record.lab_records import PortRate, ProcessorLoad
from ringlight.experiments.record.runs import Run

#: Seconds between two samples of the ports' throughput (10 Hz).
SERIES_STEP_S = 0.1
# From which value on a run is doubtful, and from which bad.
LINK_ERROR = (0.05, 0.10)
LATENESS_SHARE = (0.02, 0.05)
CPU_BUSY = (0.85, 0.95)
# A run is made once more where it took longer by so much while others had the processors.
RUN_OVER_MODEL = (1.10, 1.25)
#: Share of all processors' time from which on what was missed meanwhile is the machine's fault.
TAKEN = 0.05


def missed_links(rates: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """Return a reason for each rate that missed its setting."""
    reasons: list[Reason] = []
    for rate in rates:
        link = {
            key: rate[key] for key in ("fabric", "link", "direction") if key in rate
        }
        ratio = rate["measured_bps"] / rate["set_bps"]
        reasons += over(abs(ratio - 1), LINK_ERROR, "link_rate", **link, ratio=ratio)
    return reasons


def timers(runs: Iterable[Run]) -> dict[str, float | None]:
    """Return how late the timers that stand for computation woke: seconds, and shares of the computation.

    A value is None if there is nothing to count.
    """
    jobs = [job for run in runs for job in run.jobs.values()]
    times = [it.lateness_s for job in jobs for it in job.iterations]
    shares = [
        it.lateness_s / it.compute_s
        for job in jobs
        for it in job.iterations
        if it.compute_s
    ]
    return {
        "median_s": median(times),
        "p99_s": percentile(times, 0.99) if times else None,
        "max_s": max(times, default=None),
        "p99_share_of_compute": percentile(shares, 0.99) if shares else None,
    }


def late(timer: Mapping[str, float | None], **whose: str) -> Iterator[Reason]:
    """Yield a reason if timers woke late. ``whose``: the arm, if the reason is about an arm."""
    share = timer["p99_share_of_compute"] or 0.0
    yield from over(
        share, LATENESS_SHARE, "timers_late", p99_s=timer["p99_s"], share=share, **whose
    )


def loads(run: Run) -> list[ProcessorLoad]:
    """Return the records of the processors' load while jobs ran."""
    return [
        load for load in run.of(ProcessorLoad) if run.released <= load.t <= run.ended
    ]


def processors(run: Run) -> dict[str, float | None]:
    """Return shares (0..1) of the processors in a run: busy, stolen by the hypervisor, taken by other
    programs.

    Mean and 95th percentile of each; None if unknown, empty without records. The share of other programs is
    not a reason by itself: its effects show in links and timers, and it may explain them.
    """
    shares_by_name: dict[str, float | None] = {}
    for what in ("busy", "stolen", "others") if loads(run) else ():
        shares = [
            share for load in loads(run) if (share := getattr(load, what)) is not None
        ]
        shares_by_name[f"mean_{what}"] = statistics.mean(shares) if shares else None
        shares_by_name[f"p95_{what}"] = percentile(shares, 0.95) if shares else None
    return shares_by_name


def busy(run: Run) -> Iterator[Reason]:
    """Yield a reason if the lab itself took nearly all of the processors."""
    if records := loads(run):
        own = statistics.mean(load.busy - (load.others or 0.0) for load in records)
        yield from over(own, CPU_BUSY, "processors_busy", run=run.name, busy=own)


def taken(run: Run) -> float:
    """Return the share (0..1) of the processors' time in a run that the hypervisor or other programs took."""
    shares = processors(run)
    return sum(shares.get(f"mean_{what}") or 0.0 for what in ("stolen", "others"))


def machines_fault(run: Run, expected_s: Mapping[str, float]) -> list[Reason]:
    """Return the reasons to repeat a run: what the run missed while other programs had the processors; else
    empty.

    ``expected_s``: seconds that the model gives each job. A run that shows a fault of the emulator is never
    repeated, because it is evidence.
    """
    if taken(run) < TAKEN or any(
        (*died(run), *drifted(run), *stood_still(run), *differing(run))
    ):
        return []
    times = (run.ended - run.released) / max(expected_s.values())
    longer = over(times, RUN_OVER_MODEL, "run_over_model", run=run.name, over=times)
    return [*late(timers([run])), *busy(run), *longer]


def samples_missing(runs: Sequence[Run], rates: Iterable[PortRate]) -> dict[str, float]:
    """Return the share (0..1) of throughput samples that are missing, by run.

    Empty if no run has samples. Runs on fabrics without packet switches are left out.
    """
    times: dict[str, set[float]] = {}
    for rate in rates:
        times.setdefault(rate.run, set()).add(rate.t)
    shares: dict[str, float] = {}
    for run in runs:
        if times and run.plan.setting.fabric.packet_switches:
            sampled = {
                t for t in times.get(run.name, ()) if run.released <= t <= run.ended
            }
            expected = (run.ended - run.released) / SERIES_STEP_S
            shares[run.name] = (
                max(0.0, 1 - len(sampled) / expected) if expected >= 1 else 0.0
            )
    return shares

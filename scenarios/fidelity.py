"""Whether a run gave what it was set to give, and so whether its figures can be believed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scenarios.records import SIMULATED, Event, JobRun, Run

#: Seconds between two values of the utilisation series (10 Hz).
SERIES_STEP_S = 0.1
# From which value on a run is doubtful, and from which bad.
LINK_ERROR = (0.05, 0.10)
LATENESS_SHARE = (0.02, 0.05)
CPU_BUSY = (0.85, 0.95)
SAMPLES_MISSING = (0.05, 0.20)
ALL_REDUCE_OVER_IDEAL = (1.10, 1.25)


def parameters_identical(job: JobRun) -> bool:
    """Whether all ranks ended with the same parameters, bit by bit, equal to the one-process reference.

    False too when a rank's or the reference's hash is missing: what was not shown is not claimed.
    """
    hashes = {event["parameters_sha256"] for event in job.done.values()}
    return (
        len(job.done) == len(job.gpus)
        and len(hashes) == 1
        and job.reference_sha256 is not None
        and hashes == {job.reference_sha256}
    )


def percentile(values: Iterable[float], share: float) -> float:
    """Smallest value that is not exceeded by ``share`` (0..1) of the values; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Verdict:
    """Collects reasons; the verdict is the worst of them."""

    def __init__(self) -> None:
        self.levels: list[int] = [0]
        self.reasons: list[str] = []

    def check(self, value: float, limits: tuple[float, float], reason: str) -> None:
        level = sum(value > limit for limit in limits)
        if level:
            self.add(level, reason)

    def add(self, level: int, reason: str) -> None:
        self.levels.append(level)
        self.reasons.append(reason)

    @property
    def verdict(self) -> str:
        return ("good", "doubtful", "bad")[max(self.levels)]


def no_fidelity() -> dict[str, Any]:
    """In place of a verdict on the testbed where there was none: the run was simulated."""
    timer = judge_timers([], 1.0, Verdict())
    return {
        "verdict": SIMULATED,
        "reasons": [],
        "links": [],
        "timer": timer,
        "cpu": {},
        "switches_restarted": {},
        "samples_missing": {},
    }


def judge_links(events: Sequence[Event], verdict: Verdict) -> list[dict[str, Any]]:
    """Every link that was measured, against its setting."""
    links = [
        {
            "link": e["link"],
            "direction": e["direction"],
            "set_bps": e["set_bps"],
            "measured_bps": e["measured_bps"],
            "ratio": e["measured_bps"] / e["set_bps"],
        }
        for e in events
        if e["event"] == "link_rate"
    ]
    for link in links:
        verdict.check(
            abs(link["ratio"] - 1),
            LINK_ERROR,
            f"link {link['link']} ({link['direction']}) gave {100 * link['ratio']:.1f} % of its setting",
        )
    if not links:
        verdict.add(1, "no link was measured")
    return links


def judge_timers(runs: Sequence[Run], compute_s: float, verdict: Verdict) -> dict[str, float | None]:
    """How late the timers woke that stand for ``compute_s`` seconds of computation."""
    late = [it.lateness_s for run in runs for job in run.jobs.values() for it in job.iterations]
    if not late:
        return dict.fromkeys(("median_ms", "p99_ms", "max_ms", "p99_share_of_compute"))
    p99_s = percentile(late, 0.99)
    verdict.check(
        p99_s / compute_s,
        LATENESS_SHARE,
        f"compute timers woke {1000 * p99_s:.1f} ms late (99th percentile), "
        f"{100 * p99_s / compute_s:.1f} % of the compute time",
    )
    return {
        "median_ms": 1000 * statistics.median(late),
        "p99_ms": 1000 * p99_s,
        "max_ms": 1000 * max(late),
        "p99_share_of_compute": p99_s / compute_s,
    }


def judge_processors(runs: Sequence[Run], verdict: Verdict) -> dict[str, Any]:
    """Shares of the processors in each run: how busy they were, and what the hypervisor took of that.

    The latter is no reason by itself: it shows in links and timers, whose reason it may be.
    """
    cpu: dict[str, Any] = {}
    for run in runs:
        shares = [(busy, stolen) for t, busy, stolen in run.cpu if run.released <= t <= run.ended]
        if shares:
            busy = [share for share, _ in shares]
            stolen = [share for _, share in shares if share is not None]
            cpu[run.name] = {
                "mean_busy": statistics.mean(busy),
                "p95_busy": percentile(busy, 0.95),
                "mean_stolen": statistics.mean(stolen) if stolen else None,
                "p95_stolen": percentile(stolen, 0.95) if stolen else None,
            }
            verdict.check(
                cpu[run.name]["mean_busy"],
                CPU_BUSY,
                f"processors were {100 * statistics.mean(busy):.0f} % busy during {run.name}",
            )
    return cpu


def judge_switches(runs: Sequence[Run], verdict: Verdict) -> dict[str, int]:
    """How often optical switches died in each run and were started again by the testbed."""
    restarted = {run.name: run.noted("switch_restarted") for run in runs}
    for name, notes in restarted.items():
        for switch in dict.fromkeys(note["switch"] for note in notes):
            verdict.add(1, f"{name}: optical switch {switch} died and was started again")
    return {name: sum(note["times"] for note in notes) for name, notes in restarted.items()}


def judge_samples(
    runs: Sequence[Run], series: Sequence[Mapping[str, Any]], verdict: Verdict
) -> dict[str, float]:
    """Share of each run's throughput samples that are missing."""
    shares = {}
    for run in runs:
        times = {s["t"] for s in series if s.get("run") == run.name and run.released <= s["t"] <= run.ended}
        wanted = (run.ended - run.released) / SERIES_STEP_S
        shares[run.name] = max(0.0, 1 - len(times) / wanted) if wanted >= 1 else 0.0
        verdict.check(
            shares[run.name],
            SAMPLES_MISSING,
            f"{100 * shares[run.name]:.0f} % of the throughput samples of {run.name} are missing",
        )
    return shares


def judge_parameters(runs: Sequence[Run], verdict: Verdict) -> None:
    """Every job's ranks and its one-process reference must agree bit by bit."""
    for run in runs:
        for job in run.jobs.values():
            if not parameters_identical(job):
                verdict.add(
                    2, f"{run.name}: the ranks of {job.name} and the reference do not agree bit by bit"
                )

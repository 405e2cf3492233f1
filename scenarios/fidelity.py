"""Whether a run gave what it was set to give, and so whether its figures can be believed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from scenarios.records import SIMULATED, Event, JobRun, Run

#: Seconds between two values of the utilisation series (10 Hz).
SERIES_STEP_S = 0.1
# From which value on a run is doubtful, and from which bad.
LINK_ERROR = (0.05, 0.10)
LATENESS_SHARE = (0.02, 0.05)
CPU_BUSY = (0.85, 0.95)
SAMPLES_MISSING = (0.05, 0.20)
ALL_REDUCE_OVER_IDEAL = (1.10, 1.25)
# A run is made once more where it took longer by so much while others had the processors.
RUN_OVER_MODEL = (1.10, 1.25)
#: Share of all processors' time from which on what was missed meanwhile is the machine's fault.
TAKEN = 0.05


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


#: Why a run is not simply good; docs/result-schema.md says what data each comes with.
Code = Literal[
    "link_rate",
    "links_not_measured",
    "timers_late",
    "processors_busy",
    "switch_restarted",
    "samples_missing",
    "all_reduce_over_ideal",
    "baseline_over_model",
    "parameters_differ",
    "payload_lost",
    "light_astray",
    "run_over_model",
]
Level = Literal["doubtful", "bad"]
LEVELS: tuple[Level, Level] = ("doubtful", "bad")

_SENTENCES: dict[Code, Callable[[Mapping[str, Any]], str]] = {
    "link_rate": lambda of: (
        f"link {of['link']} ({of['direction']}) gave {100 * of['ratio']:.1f} % of its setting"
    ),
    "links_not_measured": lambda of: "no link was measured",
    "timers_late": lambda of: (
        f"compute timers woke {1000 * of['p99_s']:.1f} ms late (99th percentile), "
        f"{100 * of['share']:.1f} % of the compute time"
    ),
    "processors_busy": lambda of: (
        f"processors were {100 * of['busy']:.0f} % busy during {of['run']}, without what others took"
    ),
    "switch_restarted": lambda of: f"{of['run']}: optical switch {of['switch']} died and was started again",
    "samples_missing": lambda of: (
        f"{100 * of['share']:.0f} % of the throughput samples of {of['run']} are missing"
    ),
    "all_reduce_over_ideal": lambda of: (
        f"case {of['case']}: the regrouped all-reduce took {of['over']:.2f} times its ideal"
        if "case" in of
        else f"the all-reduce of {of['gradient_bytes'] / 1e6:g} MB on {of['fabric']} "
        f"took {of['over']:.2f} times its ideal"
    ),
    "baseline_over_model": lambda of: (
        f"training on {of['fabric']} took {of['over']:.3f} times the model's time"
    ),
    "parameters_differ": lambda of: (
        f"{of['run']}: the ranks of {of['job']} and the reference do not agree bit by bit"
    ),
    "payload_lost": lambda of: f"{of['run']}: {of['bytes']} bytes of payload were sent and not received",
    "run_over_model": lambda of: f"{of['run']} took {of['over']:.2f} times the model's time",
    "light_astray": lambda of: f"{of['run']}: {of['count']} {of['counter'].replace('_', ' ')}",
}


@dataclass(frozen=True)
class Reason:
    """Why a run is doubtful or bad: a code, and the data that its sentence is made of."""

    code: Code
    level: Level
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The sentence, without a full stop."""
        return _SENTENCES[self.code](self.data)

    def as_json(self) -> dict[str, Any]:
        """For result.json: ``code``, ``level``, the data, and the sentence as ``text``."""
        return {"code": self.code, "level": self.level, **self.data, "text": self.text}


class Verdict:
    """Collects reasons; the verdict is the worst of them."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def check(self, value: float, limits: tuple[float, float], code: Code, **data: Any) -> None:
        """A reason where the value is over the first limit (doubtful) or the second (bad)."""
        level = sum(value > limit for limit in limits)
        if level:
            self.add(LEVELS[level - 1], code, **data)

    def add(self, level: Level, code: Code, **data: Any) -> None:
        reason = Reason(code, level, data)
        if reason not in self.reasons:
            self.reasons.append(reason)

    @property
    def verdict(self) -> str:
        levels = {reason.level for reason in self.reasons}
        return next((level for level in reversed(LEVELS) if level in levels), "good")

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "reasons": [reason.as_json() for reason in self.reasons]}


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
        "repeated": [],
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
            "stolen": e.get("stolen"),
            "others": e.get("others"),
        }
        for e in events
        if e["event"] == "link_rate"
    ]
    for reason in missed_links(links):
        verdict.add(reason.level, reason.code, **reason.data)
    if not links:
        verdict.add("doubtful", "links_not_measured")
    return links


def missed_links(rates: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """A reason for each rate that missed its setting."""
    missed = Verdict()
    for rate in rates:
        ratio = rate["measured_bps"] / rate["set_bps"]
        link, direction = rate["link"], rate["direction"]
        off = abs(ratio - 1)
        missed.check(off, LINK_ERROR, "link_rate", link=link, direction=direction, ratio=ratio)
    return missed.reasons


def repeated(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What was made once more because others had the processors, with both figures."""
    return [
        {key: value for key, value in e.items() if key not in ("t", "event")}
        for e in events
        if e["event"] == "repeated"
    ]


def judge_timers(runs: Sequence[Run], compute_s: float, verdict: Verdict) -> dict[str, float | None]:
    """How late the timers woke that stand for ``compute_s`` seconds of computation."""
    late = [it.lateness_s for run in runs for job in run.jobs.values() for it in job.iterations]
    if not late:
        return dict.fromkeys(("median_ms", "p99_ms", "max_ms", "p99_share_of_compute"))
    p99_s = percentile(late, 0.99)
    verdict.check(
        p99_s / compute_s,
        LATENESS_SHARE,
        "timers_late",
        p99_s=p99_s,
        share=p99_s / compute_s,
    )
    return {
        "median_ms": 1000 * statistics.median(late),
        "p99_ms": 1000 * p99_s,
        "max_ms": 1000 * max(late),
        "p99_share_of_compute": p99_s / compute_s,
    }


def judge_processors(runs: Sequence[Run], verdict: Verdict) -> dict[str, Any]:
    """Shares of the processors in each run: how busy they were, and what the hypervisor and others took.

    What others took is no reason by itself: it shows in links and timers, whose reason it may be.
    """
    cpu: dict[str, Any] = {}
    for run in runs:
        if not run.cpu:
            continue
        # Whether others' share did harm is seen in links and timers; a full machine alone does none.
        own = statistics.mean(load.busy - (load.others or 0.0) for load in run.cpu)
        verdict.check(own, CPU_BUSY, "processors_busy", run=run.name, busy=own)
        cpu[run.name] = {
            f"{how}_{what}": _share(run, what, of)
            for what in ("busy", "stolen", "others")
            for how, of in (("mean", statistics.mean), ("p95", partial(percentile, share=0.95)))
        }
    return cpu


def _share(run: Run, what: str, of: Callable[[Sequence[float]], float]) -> float | None:
    found = [share for load in run.cpu if (share := getattr(load, what)) is not None]
    return of(found) if found else None


def taken(run: Run) -> float:
    """Share (0..1) of the processors' time that the lab could not have in a run: stolen, or others'."""
    shares = (_share(run, what, statistics.mean) for what in ("stolen", "others"))
    return sum(share for share in shares if share is not None)


def machines_fault(run: Run, compute_s: float, expected_s: float | None) -> list[Reason]:
    """Why a run should be made once more: what it missed while others had the processors. Else nothing.

    ``compute_s``: seconds of one iteration's computation. ``expected_s``: what the model says that the run
    takes, or None. A run that shows a fault of ours is never made again: it is evidence.
    """
    if taken(run) < TAKEN:
        return []
    faults, missed = Verdict(), Verdict()
    judge_switches([run], faults)
    judge_parameters([run], faults)
    judge_timers([run], compute_s, missed)
    judge_processors([run], missed)
    if expected_s is not None:
        over = (run.ended - run.released) / expected_s
        missed.check(over, RUN_OVER_MODEL, "run_over_model", run=run.name, over=over)
    return [] if faults.reasons else missed.reasons


def judge_switches(runs: Sequence[Run], verdict: Verdict) -> dict[str, int]:
    """How often optical switches died in each run and were started again by the testbed."""
    restarted = {run.name: run.noted("switch_restarted") for run in runs}
    for name, notes in restarted.items():
        for switch in dict.fromkeys(note["switch"] for note in notes):
            verdict.add("doubtful", "switch_restarted", run=name, switch=switch)
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
        share = shares[run.name]
        verdict.check(share, SAMPLES_MISSING, "samples_missing", run=run.name, share=share)
    return shares


def judge_parameters(runs: Sequence[Run], verdict: Verdict) -> None:
    """Every job's ranks and its one-process reference must agree bit by bit."""
    for run in runs:
        for job in run.jobs.values():
            if not parameters_identical(job):
                verdict.add("bad", "parameters_differ", run=run.name, job=job.name)

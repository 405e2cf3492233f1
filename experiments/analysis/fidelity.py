"""Whether a testbed gave what it was set to give, and so whether its figures can be believed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from experiments.analysis.metrics import Context
from experiments.analysis.metrics.exactness import identical
from experiments.analysis.metrics.light import FORBIDDEN, counted, pairs_lit
from experiments.analysis.metrics.payload import payload_lost
from experiments.analysis.metrics.training import allreduce_ideal, allreduce_over_ideal
from experiments.analysis.prediction import ring_of
from experiments.analysis.setups import set_up_times
from experiments.analysis.statistics import percentile
from experiments.record.events import (
    LinkRate,
    LinkRateDisturbed,
    PortRate,
    ProcessorLoad,
    Record,
    Repeated,
    RingSetUps,
    SwitchRestarted,
)
from experiments.record.runs import SUCCEEDED, JobRun, Run

#: Seconds between two samples of the ports' throughput (10 Hz).
SERIES_STEP_S = 0.1
# From which value on a run is doubtful, and from which bad.
LINK_ERROR = (0.05, 0.10)
LATENESS_SHARE = (0.02, 0.05)
CPU_BUSY = (0.85, 0.95)
SAMPLES_MISSING = (0.05, 0.20)
ALL_REDUCE_OVER_IDEAL = (1.10, 1.25)
#: What is concluded from a baseline's time are ratios of this size; rings' collectives differ by factors.
BASELINE_OVER_MODEL, BASELINE_OVER_MODEL_OF_RINGS = (1.01, 1.03), (1.05, 1.10)
# A run is made once more where it took longer by so much while others had the processors.
RUN_OVER_MODEL = (1.10, 1.25)
#: Share of all processors' time from which on what was missed meanwhile is the machine's fault.
TAKEN = 0.05
#: What must be 0 where a step's light stands before anybody sends; TCP sends again what is lost, later.
NEVER_ON_RINGS = ("dark_drops", "unset_drops", "unrouted")

Level = Literal["doubtful", "bad"]
LEVELS: tuple[Level, Level] = ("doubtful", "bad")
#: Why a run is not simply good, by its code, with the data that the sentence is made of.
SENTENCES = {
    "link_rate": "link {link} ({direction}) gave {ratio:.1%} of its setting",
    "links_not_measured": "no link was measured",
    "timers_late": "compute timers woke {p99_s:.4f} s late (99th percentile), {share:.1%} of the computing",
    "processors_busy": "processors were {busy:.0%} busy during {run}, without what others took",
    "switch_restarted": "{run}: optical switch {switch} died and was started again",
    "samples_missing": "{share:.0%} of the throughput samples of {run} are missing",
    "all_reduce_over_ideal": "{run}: {job}'s all-reduce, alone on its links, took {over:.2f} times the ideal",
    "baseline_over_model": "{run}: {job}, a baseline, took {over:.3f} times the model's time",
    "parameters_differ": "{run}: the ranks of {job} and the reference do not agree bit by bit",
    "payload_lost": "{run}: {bytes} bytes of payload were sent and not received",
    "run_over_model": "{run} took {over:.2f} times the model's time",
    "light_astray": "{run}: {count} {counter}",
}


@dataclass(frozen=True)
class Reason:
    """Why a run is doubtful or bad: a code, and the data that its sentence is made of."""

    code: str
    level: Level
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The sentence, without a full stop."""
        return SENTENCES[self.code].format(**self.data).replace("%", " %")

    def as_json(self) -> dict[str, Any]:
        """For result.json: ``code``, ``level``, the data, and the sentence as ``text``."""
        return {"code": self.code, "level": self.level, **self.data, "text": self.text}


class Verdict:
    """Collects reasons; the verdict is the worst of them."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def check(self, value: float, limits: tuple[float, float], code: str, **data: Any) -> None:
        """A reason where the value is over the first limit (doubtful) or the second (bad)."""
        level = sum(value > limit for limit in limits)
        if level:
            self.add(LEVELS[level - 1], code, **data)

    def add(self, level: Level, code: str, **data: Any) -> None:
        reason = Reason(code, level, data)
        if reason not in self.reasons:
            self.reasons.append(reason)

    @property
    def verdict(self) -> str:
        levels = {reason.level for reason in self.reasons}
        return next((level for level in reversed(LEVELS) if level in levels), "good")

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "reasons": [reason.as_json() for reason in self.reasons]}


def judged(
    runs: Sequence[Run],
    records: Iterable[Record],
    rates: Iterable[PortRate],
    *,
    baselines: Collection[str],
    untimed: Collection[str],
) -> dict[str, Any]:
    """The verdict on measured runs, and what it rests on. ``rates``: the ports' throughput.

    ``baselines``: arms that others are compared with. ``untimed``: arms of whose computing no figure is made.
    """
    records, verdict = list(records), Verdict()
    rings = any(ring_of(run.plan.setting.fabric) for run in runs)
    checked = {
        "links": judge_links(records, verdict),
        "timer": judge_timers([run for run in runs if run.plan.arm not in untimed], verdict),
        "cpu": judge_processors(runs, verdict),
        "switches_restarted": judge_switches(runs, verdict),
        "repeated": [
            {key: value for key, value in vars(record).items() if key not in ("t", "run")}
            for record in records
            if isinstance(record, Repeated)
        ],
        "samples_missing": judge_samples(runs, rates, verdict),
    }
    limits = BASELINE_OVER_MODEL_OF_RINGS if rings else BASELINE_OVER_MODEL
    judge_by_model(runs, baselines, limits, verdict)
    judge_parameters(runs, verdict)
    for run in runs:
        judge_light(run, verdict)
    return {**verdict.as_json(), **checked}


def judge_links(records: Iterable[Record], verdict: Verdict) -> list[dict[str, Any]]:
    """Every link that was measured, against its setting."""
    links = [
        {
            "fabric": rate.fabric,
            "link": rate.link,
            "direction": rate.direction,
            "set_bps": rate.set_bps,
            "measured_bps": rate.measured_bps,
            "ratio": rate.measured_bps / rate.set_bps,
            "stolen": rate.stolen,
            "others": rate.others,
        }
        for rate in records
        if isinstance(rate, LinkRate) and not isinstance(rate, LinkRateDisturbed)
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
        missed.check(abs(ratio - 1), LINK_ERROR, "link_rate", link=link, direction=direction, ratio=ratio)
    return missed.reasons


def judge_timers(runs: Sequence[Run], verdict: Verdict) -> dict[str, float | None]:
    """How late the timers woke that stand for computation."""
    late = [
        (it.lateness_s, it.lateness_s / job.plan.compute_s)
        for run in runs
        for job in run.jobs.values()
        for it in job.iterations
    ]
    if not late:
        return dict.fromkeys(("median_s", "p99_s", "max_s", "p99_share_of_compute"))
    times = [late_s for late_s, _ in late]
    p99_s, share = percentile(times, 0.99), percentile((share for _, share in late), 0.99)
    verdict.check(share, LATENESS_SHARE, "timers_late", p99_s=p99_s, share=share)
    return {
        "median_s": statistics.median(times),
        "p99_s": p99_s,
        "max_s": max(times),
        "p99_share_of_compute": share,
    }


def loads(run: Run) -> list[ProcessorLoad]:
    """The processors' load while jobs ran."""
    return [load for load in run.of(ProcessorLoad) if run.released <= load.t <= run.ended]


def judge_processors(runs: Sequence[Run], verdict: Verdict) -> dict[str, Any]:
    """Shares of the processors in each run: how busy they were, and what the hypervisor and others took.

    What others took is no reason by itself: it shows in links and timers, whose reason it may be.
    """
    cpu: dict[str, Any] = {}
    for run in runs:
        if not (found := loads(run)):
            continue
        own = statistics.mean(load.busy - (load.others or 0.0) for load in found)
        verdict.check(own, CPU_BUSY, "processors_busy", run=run.name, busy=own)
        cpu[run.name] = {
            f"{how}_{what}": _share(run, what, of)
            for what in ("busy", "stolen", "others")
            for how, of in (("mean", statistics.mean), ("p95", partial(percentile, share=0.95)))
        }
    return cpu


def _share(run: Run, what: str, of: Callable[[Sequence[float]], float]) -> float | None:
    found = [share for load in loads(run) if (share := getattr(load, what)) is not None]
    return of(found) if found else None


def taken(run: Run) -> float:
    """Share (0..1) of the processors' time that the lab could not have in a run: stolen, or others'."""
    shares = (_share(run, what, statistics.mean) for what in ("stolen", "others"))
    return sum(share for share in shares if share is not None)


def machines_fault(run: Run, expected_s: Mapping[str, float]) -> list[Reason]:
    """Why a run should be made once more: what it missed while others had the processors. Else nothing.

    ``expected_s``: what the model says of its jobs. A run that shows a fault of ours is never made again: it
    is evidence.
    """
    if taken(run) < TAKEN:
        return []
    faults, missed = Verdict(), Verdict()
    judge_switches([run], faults)
    judge_parameters([run], faults)
    judge_timers([run], missed)
    judge_processors([run], missed)
    over = (run.ended - run.released) / max(expected_s.values())
    missed.check(over, RUN_OVER_MODEL, "run_over_model", run=run.name, over=over)
    return [] if faults.reasons else missed.reasons


def judge_switches(runs: Sequence[Run], verdict: Verdict) -> dict[str, int]:
    """How often optical switches died unasked in each run and were started again by the testbed."""
    restarted = {run.name: run.of(SwitchRestarted) for run in runs}
    for name, notes in restarted.items():
        for switch in dict.fromkeys(note.switch for note in notes):
            verdict.add("doubtful", "switch_restarted", run=name, switch=switch)
    return {name: sum(note.times for note in notes) for name, notes in restarted.items()}


def judge_samples(runs: Sequence[Run], rates: Iterable[PortRate], verdict: Verdict) -> dict[str, float]:
    """Share of each run's throughput samples that are missing, where any run has some."""
    times: dict[str, set[float]] = {}
    for rate in rates:
        times.setdefault(rate.run, set()).add(rate.t)
    shares: dict[str, float] = {}
    for run in runs:
        if not times or not run.plan.setting.fabric.packet_switches:
            continue
        found = {t for t in times.get(run.name, ()) if run.released <= t <= run.ended}
        wanted = (run.ended - run.released) / SERIES_STEP_S
        share = shares[run.name] = max(0.0, 1 - len(found) / wanted) if wanted >= 1 else 0.0
        verdict.check(share, SAMPLES_MISSING, "samples_missing", run=run.name, share=share)
    return shares


def judge_by_model(
    runs: Sequence[Run], baselines: Collection[str], limits: tuple[float, float], verdict: Verdict
) -> None:
    """Jobs that had their links for themselves while nothing happened, against the model: there it is exact
    but for headers, losses and what a machine takes by itself."""
    for run in runs:
        if any(action.begun > run.released for action in run.actions):
            continue
        context = Context(run, "measured")
        for job in run.jobs.values():
            if job.jct_s is not None and _undisturbed(context, job):
                _judge_job(context, job, limits if run.plan.arm in baselines else None, verdict)


def _undisturbed(context: Context, job: JobRun) -> bool:
    found, alone = context.predicted.get(job.name), context.alone.get(job.name)
    return found is not None and alone is not None and found.jct_s <= alone.jct_s * (1 + 1e-9)


def _judge_job(context: Context, job: JobRun, limits: tuple[float, float] | None, verdict: Verdict) -> None:
    model, over = context.predicted[job.name], allreduce_over_ideal(context, job)
    said: dict[str, Any] = {"run": context.run.name, "job": job.name}
    ideal_s = allreduce_ideal(context, job)
    # Where light is waited for, or the job's own edges share a link, NICs are not what counts.
    if over is not None and ideal_s and not model.set_ups and model.all_reduce_s <= ideal_s * (1 + 1e-9):
        verdict.check(over, ALL_REDUCE_OVER_IDEAL, "all_reduce_over_ideal", over=over, **said)
    if limits is not None and job.jct_s is not None:
        times = set_up_times(context.run)
        waits_s = job.plan.iterations * model.set_ups * statistics.median(times) if times else 0.0
        over = job.jct_s / (model.jct_s + waits_s)
        verdict.check(over, limits, "baseline_over_model", over=over, **said)


def judge_parameters(runs: Sequence[Run], verdict: Verdict) -> None:
    """Of every job that ended well the ranks and the one-process reference must agree bit by bit."""
    for run in runs:
        for job in run.jobs.values():
            if job.state == SUCCEEDED and not identical(job):
                verdict.add("bad", "parameters_differ", run=run.name, job=job.name)


def judge_light(run: Run, verdict: Verdict) -> None:
    """Light between jobs, payload that got lost, and what kernel and agents must never count."""
    lit = pairs_lit(run)
    if lit and lit[1]:
        verdict.add("bad", "light_astray", run=run.name, count=lit[1], counter="wavelengths between jobs")
    lost = payload_lost(Context(run, "measured"))
    if lost and all(job.state == SUCCEEDED and not job.losses for job in run.jobs.values()):
        verdict.add("bad", "payload_lost", run=run.name, bytes=lost)
    never: list[tuple[Level, str]] = [("bad", name) for name in FORBIDDEN]
    if run.of(RingSetUps):
        never += [("doubtful", name) for name in NEVER_ON_RINGS]
    for level, name in never:
        if count := counted(run, name):
            verdict.add(level, "light_astray", run=run.name, counter=name.replace("_", " "), count=count)

"""Judge whether a testbed gave what it was set to give, and so whether its figures can be believed."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringlight.experiments.analysis.differences import (
    FIGURES,
    REACH_PERCENT,
    Entry,
    Known,
    cause_of,
    compared,
    signed,
)
from ringlight.experiments.analysis.freezes import outside, stalled, standstills
from ringlight.experiments.analysis.metrics import Context, metrics
from ringlight.experiments.analysis.metrics.light import counters
from ringlight.experiments.analysis.metrics.training import by_model
from ringlight.experiments.analysis.metrics.workers import identical, payload
from ringlight.experiments.analysis.statistics import median, percentile
from ringlight.experiments.record.events import (
    Aborted,
    EventLate,
    LinkRate,
    PortRate,
    ProcessBack,
    ProcessEnded,
    ProcessorLoad,
    Record,
    Repeated,
    RingSetUps,
    RunEnded,
    SwitchDrifted,
    WorkerLost,
    process_called,
)
from ringlight.experiments.record.runs import SUCCEEDED, JobRun, Run

#: Seconds between two samples of the ports' throughput (10 Hz).
SERIES_STEP_S = 0.1
# From which value on a run is doubtful, and from which bad.
LINK_ERROR = (0.05, 0.10)
LATENESS_SHARE = (0.02, 0.05)
CPU_BUSY = (0.85, 0.95)
SAMPLES_MISSING = (0.05, 0.20)
ALL_REDUCE_OVER_IDEAL = (1.10, 1.25)
#: What is concluded from a baseline's time are ratios of this size; rings' collectives differ by factors.
BASELINE_OVER_MODEL, BASELINE_OVER_MODEL_IN_STEPS = (1.01, 1.03), (1.05, 1.10)
#: A job that took this much longer than simulated makes a run bad. With other events than `PLAIN_EVENTS` it
#: is doubtful only, as the simulation assumes what a fault or a move of light costs.
BAD_OVER_SIMULATED = 1.25
# A run is made once more where it took longer by so much while others had the processors.
RUN_OVER_MODEL = (1.10, 1.25)
#: Share of all processors' time from which on what was missed meanwhile is the machine's fault.
TAKEN = 0.05
#: What must be 0 where a step's light stands before anybody sends; TCP sends again what is lost, later.
NEVER_ON_RINGS = ("dark_drops", "unset_drops", "unrouted")

#: Ends of workers that others bring about: what a program does wrong ends it otherwise.
KILLED = ("killed by SIGKILL", "killed by SIGTERM")

#: What may be made to happen in a run whose failures and stalls are judged: of a fault they are a result.
PLAIN_EVENTS = ("start", "cancel")

Level = Literal["doubtful", "bad"]
#: Why a run is not simply good, by its code, with the data that the sentence is made of.
SENTENCES = {
    "link_rate": "link {link} ({direction}) gave {ratio:.1%} of its setting",
    "links_not_measured": "no link was measured",
    "timers_late": "compute timers woke {p99_s:.4f} s late (99th percentile), {share:.1%} of the computing",
    "processors_busy": "processors were {busy:.0%} busy during {run}, without what others took",
    "process_restarted": "{run}: {process} died ({how}) and was started again",
    "process_gone": "{run}: {process} died ({how}) and was not back when the run ended",
    "worker_killed": "{run}: rank {rank} of {job} on GPU {gpu} was lost ({reason}), and {job} went on",
    "process_frozen": "{run}: {process} stood still for {for_s:.1f} s ({how})",
    "frozen_outside_runs": "outside of a whole run {process} stood still for {for_s:.1f} s ({how})",
    "drifted_outside_runs": "outside of a whole run: {said}, which no event asked for",
    "worker_stalled": "{run}: rank {rank} of {job} moved no byte for {for_s:.1f} s (iteration {iteration})",
    "job_failed": "{run}: job {job} failed: {reason}",
    "job_killed": "{run}: job {job} failed: {reason}, which no event asked for",
    "event_late": "{run}: {said}",
    "switch_drifted": "{run}: {said}, which no event asked for, {then}",
    "aborted": "the experiment ended early: {reason}",
    "samples_missing": "{share:.0%} of the throughput samples of {run} are missing",
    "all_reduce_over_ideal": "{run}: {job}'s all-reduce, alone on its links, took {over:.2f} times the ideal",
    "baseline_over_model": "{run}: {job}, a baseline, took {over:.3f} times the model's time",
    "unlike_simulation": "{run}: {job} is unlike its simulation: {said}",
    "unlike_model": "{run}: {job} took {measured_s:.4g} s, by the model {model_s:.4g} s",
    "ended_otherwise": "{run}: {job} ended {state}, in the simulation {simulated}",
    "parameters_differ": "{run}: the ranks of {job} and the reference do not agree bit by bit",
    "payload_lost": "{run}: {bytes} bytes of payload were sent and not received",
    "run_over_model": "{run} took {over:.2f} times the predicted time",
    "light_astray": "{run}: {count} {counter}",
}


#: Reasons that say how long something took, and not why.
OF_MODELS = (
    "all_reduce_over_ideal",
    "baseline_over_model",
    "unlike_simulation",
    "unlike_model",
    "ended_otherwise",
    "samples_missing",
)


@dataclass(frozen=True)
class Compared:
    """A job beside its simulation: its ``state`` here and there, and where it succeeded in both its
    ``figures`` (``differences.compared``)."""

    state: str
    simulated: str
    figures: Entry | None

    @property
    def beyond(self) -> dict[str, dict[str, float]]:
        """The figures that are beyond the simulation's reach."""
        figures = self.figures or {}
        return {
            figure: figures[figure]
            for figure, most in REACH_PERCENT.items()
            if figures and abs(figures[figure]["difference_percent"]) > most
        }


@dataclass(frozen=True)
class Reason:
    """Reason for which a run is doubtful or bad: a code, and the data of its sentence."""

    code: str
    level: Level
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The reason as a sentence, without a full stop."""
        sentence = SENTENCES[self.code].format(**self.data)
        # A cause is a sentence already.
        sentence = sentence.replace(" %", "%").replace("%", " %")
        return f"{sentence}, in {self.data['arm']}" if "arm" in self.data else sentence

    def as_json(self) -> dict[str, Any]:
        """Return the reason for result.json: ``code``, ``level``, the data, and the sentence as ``text``."""
        return {"code": self.code, "level": self.level, **self.data, "text": self.text}


def over(value: float, limits: tuple[float, float], code: str, **data: Any) -> Iterator[Reason]:
    """Yield a reason if the value is over the first limit (doubtful) or the second (bad)."""
    if value > limits[0]:
        yield Reason(code, "bad" if value > limits[1] else "doubtful", data)


def judged(
    contexts: Sequence[Context],
    records: Iterable[Record],
    rates: Iterable[PortRate],
    *,
    baselines: Collection[str],
    untimed: Collection[str],
) -> dict[str, Any]:
    """Return the verdict on measured runs and on each arm, and its grounds. ``rates``: throughput of the
    ports.

    ``baselines``: arms with which others are compared. ``untimed``: arms whose computing has no figure.
    """
    records, runs = list(records), [context.run for context in contexts]
    links = [_link(record) for record in records if type(record) is LinkRate]
    arms = dict.fromkeys(run.plan.arm for run in runs)
    timed = [arm for arm in arms if arm not in untimed]
    missing = samples_missing(runs, rates)
    reasons_found = [
        *missed_links(links),
        *([] if links else [Reason("links_not_measured", "doubtful", {})]),
        *(reason for arm in timed for reason in late(timers(_of(arm, runs)), arm=arm)),
        *(reason for run in runs for reason in busy(run)),
        *(reason for run in runs for reason in died(run)),
        *(reason for run in runs for reason in drifted(run)),
        *(reason for run in runs for reason in stood_still(run)),
        *(reason for run in runs for reason in failed(run)),
        *(reason for context in contexts for reason in without_bytes(context)),
        *between_runs(records, runs),
        *broken_off(records),
    ]
    for name, share in missing.items():
        reasons_found += over(share, SAMPLES_MISSING, "samples_missing", run=name, share=share)
    stepped = any(job.plane(run.plan.setting.fabric).stepped for run in runs for job in run.plan.jobs)
    limits = BASELINE_OVER_MODEL_IN_STEPS if stepped else BASELINE_OVER_MODEL
    for context in contexts:
        reasons_found += beside_model(context, limits if context.run.plan.arm in baselines else None)
    reasons_found += [reason for run in runs for reason in differing(run)]
    reasons_found += [reason for context in contexts for reason in astray(context)]
    # Last, as what is known of a run may be the cause.
    rates_of_links = [record for record in records if type(record) is LinkRate]
    beside = {
        context.run.name: beside_simulation(context, rates_of_links, reasons_found) for context in contexts
    }
    for context in contexts:
        reasons_found += unlike_simulation(context.run, beside[context.run.name], reasons_found)
    reasons = [reason for number, reason in enumerate(reasons_found) if reason not in reasons_found[:number]]
    of_arms = [_concerned(reason, runs) for reason in reasons]
    return {
        "verdict": _worst(reasons),
        "arms": {
            arm: _worst(r for r, concerned in zip(reasons, of_arms, strict=True) if arm in concerned)
            for arm in arms
        },
        "reasons": [
            {**reason.as_json(), "arms": concerned}
            for reason, concerned in zip(reasons, of_arms, strict=True)
        ],
        "simulated": {run.name: _figures(run, beside[run.name]) for run in runs if beside[run.name]},
        "not_compared": {
            context.run.name: context.foretold.why_not
            for context in contexts
            if context.foretold is not None and context.foretold.why_not is not None
        },
        "links": links,
        "timer": timers([run for arm in timed for run in _of(arm, runs)]),
        "cpu": {run.name: shares for run in runs if (shares := processors(run))},
        "processes_restarted": {run.name: deaths(run) for run in runs},
        "switches_restarted": {
            run.name: sum(d["kind"] == "optical switch" and not d["planned"] for d in deaths(run))
            for run in runs
        },
        "repeated": [
            {key: value for key, value in vars(record).items() if key not in ("t", "run")}
            for record in records
            if isinstance(record, Repeated)
        ],
        "samples_missing": missing,
    }


def _of(arm: str, runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.plan.arm == arm]


def _worst(reasons: Iterable[Reason]) -> str:
    levels = {reason.level for reason in reasons}
    return next((level for level in ("bad", "doubtful") if level in levels), "good")


def _concerned(reason: Reason, runs: Sequence[Run]) -> list[str]:
    """Return the arms that a reason is about: its own or its run's, those on its fabric, or all."""
    data = reason.data
    mine = [
        run
        for run in runs
        if data.get("run") in (None, run.name)
        and data.get("arm") in (None, run.plan.arm)
        and data.get("fabric") in (None, run.plan.setting.name)
    ]
    return list(dict.fromkeys(run.plan.arm for run in mine))


def _link(rate: LinkRate) -> dict[str, Any]:
    """Return a link's rate against its setting."""
    link = {key: value for key, value in vars(rate).items() if key not in ("t", "run", "busy")}
    return link | {"ratio": rate.measured_bps / rate.set_bps}


def missed_links(rates: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """Return a reason for each rate that missed its setting."""
    reasons: list[Reason] = []
    for rate in rates:
        link = {key: rate[key] for key in ("fabric", "link", "direction") if key in rate}
        ratio = rate["measured_bps"] / rate["set_bps"]
        reasons += over(abs(ratio - 1), LINK_ERROR, "link_rate", **link, ratio=ratio)
    return reasons


def timers(runs: Iterable[Run]) -> dict[str, float | None]:
    """Return how late the timers that stand for computation woke: seconds, and shares of the computation.

    A value is None if there is nothing to count.
    """
    jobs = [job for run in runs for job in run.jobs.values()]
    times = [it.lateness_s for job in jobs for it in job.iterations]
    shares = [it.lateness_s / it.compute_s for job in jobs for it in job.iterations if it.compute_s]
    return {
        "median_s": median(times),
        "p99_s": percentile(times, 0.99) if times else None,
        "max_s": max(times, default=None),
        "p99_share_of_compute": percentile(shares, 0.99) if shares else None,
    }


def late(timer: Mapping[str, float | None], **whose: str) -> Iterator[Reason]:
    """Yield a reason if timers woke late. ``whose``: the arm, if the reason is about an arm."""
    share = timer["p99_share_of_compute"] or 0.0
    yield from over(share, LATENESS_SHARE, "timers_late", p99_s=timer["p99_s"], share=share, **whose)


def loads(run: Run) -> list[ProcessorLoad]:
    """Return the records of the processors' load while jobs ran."""
    return [load for load in run.of(ProcessorLoad) if run.released <= load.t <= run.ended]


def processors(run: Run) -> dict[str, float | None]:
    """Return shares (0..1) of the processors in a run: busy, stolen by the hypervisor, taken by other
    programs.

    Mean and 95th percentile of each; None if unknown, empty without records. The share of other programs is
    not a reason by itself: its effects show in links and timers, and it may explain them.
    """
    shares_by_name: dict[str, float | None] = {}
    for what in ("busy", "stolen", "others") if loads(run) else ():
        shares = [share for load in loads(run) if (share := getattr(load, what)) is not None]
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
    if taken(run) < TAKEN or any((*died(run), *drifted(run), *stood_still(run), *differing(run))):
        return []
    times = (run.ended - run.released) / max(expected_s.values())
    longer = over(times, RUN_OVER_MODEL, "run_over_model", run=run.name, over=times)
    return [*late(timers([run])), *busy(run), *longer]


def deaths(run: Run) -> list[dict[str, Any]]:
    """Return every process of the lab that died, planned or not.

    ``away_s``: seconds until the process was back; None if it did not come back.
    """
    backs, deaths_found = run.of(ProcessBack), []
    for death in run.of(ProcessEnded):
        back = next(
            (b for b in backs if (b.kind, b.name) == (death.kind, death.name) and b.t >= death.t), None
        )
        data = {key: getattr(death, key) for key in ("kind", "name", "how", "planned", "t")}
        deaths_found.append({**data, "away_s": None if back is None else back.t - death.t})
    return deaths_found


def died(run: Run) -> Iterator[Reason]:
    """Yield reasons for processes and workers that died though no event of the run killed them.

    Also yield a reason for each event that came late because of a death.
    """
    unasked = {(d["kind"], d["name"]): d for d in deaths(run) if not d["planned"]}
    for (kind, name), death in unasked.items():
        code = "process_gone" if death["away_s"] is None else "process_restarted"
        data = {"kind": kind, "name": name, "process": process_called(kind, name), "how": death["how"]}
        yield Reason(code, "doubtful", {"run": run.name, **data})
    for event in run.of(EventLate):
        if not event.asked:
            event_data = {
                key: getattr(event, key) for key in ("name", "planned", "came", "late_s", "away_s", "said")
            }
            yield Reason("event_late", "doubtful", {"run": run.name, **event_data})
    takes_workers = any(
        action.plan.target is not None and action.plan.target.kind in ("worker", "gpu")
        for action in run.actions
    )
    for job in run.jobs.values():
        if job.state == "FAILED" and _was_killed(job) and not takes_workers:
            yield Reason("job_killed", "doubtful", {"run": run.name, "job": job.name, "reason": job.reason})
        for loss in job.losses if job.state != "FAILED" else ():
            if not _was_asked(run, loss):
                lost = {"job": job.name, "rank": loss.rank, "gpu": loss.gpu, "reason": loss.reason}
                yield Reason("worker_killed", "doubtful", {"run": run.name, **lost})


def drifted(run: Run) -> Iterator[Reason]:
    """Yield a reason for each switch that was not as set while jobs ran, though no event of the run
    changed it."""
    for drift, mended in run.drifts:
        if drift.planned or drift.t > run.ended or (mended is not None and mended.t < run.released):
            continue
        then = "until the run ended" if mended is None else f"for {mended.t - drift.t:.2f} s"
        data = {"switch": drift.switch, "what": drift.what, "said": drift.said, "then": then}
        yield Reason("switch_drifted", "doubtful", {"run": run.name, **data})


def stood_still(run: Run) -> Iterator[Reason]:
    """Yield a reason for each process that stood still for longer than its work tolerates."""
    for standstill in standstills(run.records):
        yield Reason("process_frozen", "doubtful", {"run": run.name, **standstill.told()})


def between_runs(records: Sequence[Record], runs: Sequence[Run]) -> Iterator[Reason]:
    """Yield reasons for faults in link tests and in runs that were broken off.

    The faults are processes that stood still, and switches that were not as the testbed left them.
    """
    aside = [r.set_aside for r in records if isinstance(r, Repeated) and r.set_aside is not None]
    records_outside = outside(records, runs, aside)
    for standstill in standstills(records_outside):
        yield Reason("frozen_outside_runs", "doubtful", standstill.told())
    for drift in records_outside:
        if isinstance(drift, SwitchDrifted) and not drift.planned:
            data = {"switch": drift.switch, "what": drift.what, "said": drift.said}
            yield Reason("drifted_outside_runs", "doubtful", data)


def failed(run: Run) -> Iterator[Reason]:
    """Yield a reason for each job that failed and was not killed, if no event disturbed the run.

    Jobs that were allowed to fail are left out. So are guests, whose exit code is their own affair.
    """
    if any(action.plan.do not in PLAIN_EVENTS for action in run.actions):
        return
    for job in run.jobs.values():
        ours = job.plan.guest is None and not job.plan.may_fail
        if job.state == "FAILED" and ours and not _was_killed(job):
            yield Reason("job_failed", "doubtful", {"run": run.name, "job": job.name, "reason": job.reason})


def without_bytes(context: Context) -> Iterator[Reason]:
    """Yield a reason for each rank at which no byte moved for longer than its job explains.

    Yield nothing if an event disturbed the run, or if the model does not know the time of an iteration.
    """
    run = context.run
    if any(action.plan.do not in PLAIN_EVENTS for action in run.actions):
        return
    for name, job in run.jobs.items():
        model = context.predicted.get(name)
        if model is None or not job.plan.iterations:
            continue
        for iteration in stalled(job.iterations, model.jct_s / job.plan.iterations):
            where = {"run": run.name, "job": name, "rank": iteration.rank, "iteration": iteration.i}
            yield Reason("worker_stalled", "doubtful", {**where, "for_s": iteration.max_stall_s})


def _was_killed(job: JobRun) -> bool:
    return any(sent in (job.reason or "") for sent in KILLED)


def broken_off(records: Sequence[Record]) -> Iterator[Reason]:
    """Yield a reason if the experiment ended early and has not been resumed since."""
    last = next((record for record in reversed(records) if isinstance(record, Aborted | RunEnded)), None)
    if isinstance(last, Aborted):
        yield Reason("aborted", "doubtful", {"reason": last.reason})


def _was_asked(run: Run, loss: WorkerLost) -> bool:
    """Return whether an event of the run may explain a lost worker: it took the worker, its GPU, a link or
    a switch."""
    targets = [action.plan.target for action in run.actions if action.plan.do in ("lose", "kill", "cut")]
    return any(
        target.kind in ("link", "switch") or target.names in ((loss.gpu,), (loss.job, str(loss.rank)))
        for target in targets
        if target is not None
    )


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
            sampled = {t for t in times.get(run.name, ()) if run.released <= t <= run.ended}
            expected = (run.ended - run.released) / SERIES_STEP_S
            shares[run.name] = max(0.0, 1 - len(sampled) / expected) if expected >= 1 else 0.0
    return shares


def beside_model(context: Context, limits: tuple[float, float] | None) -> Iterator[Reason]:
    """Yield reasons for jobs that differ from the model, though they had their links for themselves and
    nothing happened.

    The model is exact there, except for headers, losses and the machine's own time. ``limits``: limits of a
    baseline; None for other arms.
    """
    run = context.run
    if any(action.begun > run.released for action in run.actions):
        return
    for name, job in run.jobs.items():
        model, by_itself = context.predicted.get(name), context.alone.get(name)
        if job.jct_s is None or model is None or by_itself is None:
            continue
        if model.jct_s > by_itself.jct_s * (1 + 1e-9):
            continue
        common, modelled = {"run": run.name, "job": name}, by_model(context, job)
        model_s = modelled.get("jct_predicted_with_setup", model.jct_s)
        unsimulated = context.foretold is not None and context.foretold.run is None
        if unsimulated and abs(model_s / job.jct_s - 1) > REACH_PERCENT["completion_s"] / 100:
            took = {"measured_s": job.jct_s, "model_s": model_s}
            yield Reason("unlike_model", "doubtful", {**common, **took})
        # Where light is waited for, or the job's own edges share a link, NICs are not what counts.
        if not model.set_ups and model.all_reduce_s <= modelled["allreduce_ideal"] * (1 + 1e-9):
            times = modelled.get("allreduce_over_ideal", 0.0)
            yield from over(times, ALL_REDUCE_OVER_IDEAL, "all_reduce_over_ideal", over=times, **common)
        if limits is not None:
            times = job.jct_s / model_s
            yield from over(times, limits, "baseline_over_model", over=times, **common)


def beside_simulation(
    context: Context, links: Sequence[LinkRate], known: Sequence[Reason]
) -> dict[str, Compared]:
    """Return each job of a run compared with the simulation of the run, by name; empty without a simulation.

    ``links``: measured link rates. ``known``: reasons that were found before.
    """
    run, foretold = context.run, context.foretold
    if foretold is None or foretold.run is None:
        return {}
    other = foretold.run
    bearing = Known(links, [reason.as_json() for reason in known], foretold.payload_share)
    comparisons = {}
    for name, job in run.jobs.items():
        theirs = other.jobs[name]
        both = job.jct_s is not None and theirs.jct_s is not None and job.iterations and theirs.iterations
        figures = compared([run], other, name, bearing) if both else None
        comparisons[name] = Compared(job.state, theirs.state, figures)
    return comparisons


def unlike_simulation(run: Run, beside: Mapping[str, Compared], known: Sequence[Reason]) -> Iterator[Reason]:
    """Yield reasons for jobs that have a figure beyond the simulation's reach, or that ended otherwise."""
    for name, job in beside.items():
        common: dict[str, Any] = {"run": run.name, "job": name}
        if SUCCEEDED in (job.state, job.simulated) and job.state != job.simulated:
            yield Reason(
                "ended_otherwise", "doubtful", {**common, "state": job.state, "simulated": job.simulated}
            )
        if job.figures is None:
            continue
        far = {figure: pair for figure, pair in job.beyond.items() if figure in _judged(run, name)}
        if not far:
            continue
        cause = cause_of(job.figures) or _other_reason(run, known)
        words = [
            f"{FIGURES[figure]} {pair['emulated']:.4g} s, simulated {pair['simulated']:.4g} s "
            f"({signed(pair['difference_percent'])}%)"
            for figure, pair in far.items()
        ]
        sentence = f"{', '.join(words)}; {'no cause is known' if cause is None else f'cause: {cause}'}"
        completion = job.figures["completion_s"]
        quiet = all(action.plan.do in PLAIN_EVENTS for action in run.later)
        longer = completion["emulated"] > BAD_OVER_SIMULATED * completion["simulated"]
        yield Reason(
            "unlike_simulation",
            "bad" if quiet and longer else "doubtful",
            {**common, "figures": far, "cause": cause, "said": sentence},
        )


def _other_reason(run: Run, known: Sequence[Reason]) -> str | None:
    """Return another known fault of a run, in words; None if no other is known."""
    mine = (
        reason
        for reason in known
        if reason.code not in OF_MODELS
        and (reason.data.get("run"), reason.data.get("arm")) in ((run.name, None), (None, run.plan.arm))
    )
    first = next(mine, None)
    return None if first is None else first.text.removeprefix(f"{run.name}: ")


def _judged(run: Run, job: str) -> list[str]:
    """Return the figures of a job that are compared: a workload's iteration has no all-reduce of its own."""
    return [figure for figure in FIGURES if figure != "allreduce_s" or run.plan.job(job).training is not None]


def _figures(run: Run, jobs: Mapping[str, Compared]) -> dict[str, Any]:
    """Return the figures on both sides of each job that was compared."""
    return {
        name: {figure: job.figures[figure] for figure in _judged(run, name)}
        for name, job in jobs.items()
        if job.figures is not None
    }


def differing(run: Run) -> Iterator[Reason]:
    """Yield a reason for each succeeded training job whose parameters differ between ranks or from the
    reference.

    The reference is the same training in one process.
    """
    for job in run.jobs.values():
        if job.state == SUCCEEDED and job.plan.training is not None and not identical(job):
            yield Reason("parameters_differ", "bad", {"run": run.name, "job": job.name})


def _condemning(context: Context) -> Mapping[str, float]:
    """Return the counts that must be 0 in a correct run, by what each counts."""
    entries = [entry for entry in metrics().values() if entry.condemning]
    counts = {compute: compute(context) for compute in {entry.compute: None for entry in entries}}
    return {entry.condemning: counts[entry.compute].get(entry.name, 0) for entry in entries}


def astray(context: Context) -> Iterator[Reason]:
    """Yield reasons for light between jobs, lost payload, and counters of kernel and agents that must stay
    0."""
    run, counted = context.run, counters(context)

    def light(level: Level, counter: str, count: float) -> Iterator[Reason]:
        if count:
            yield Reason("light_astray", level, {"run": run.name, "count": count, "counter": counter})

    for words, count in _condemning(context).items():
        yield from light("bad", words, count)
    lost = payload(context).get("payload_lost", 0)
    if lost and all(job.state == SUCCEEDED and not job.losses for job in run.jobs.values()):
        yield Reason("payload_lost", "bad", {"run": run.name, "bytes": lost})
    for name in NEVER_ON_RINGS if run.of(RingSetUps) else ():
        yield from light("doubtful", name.replace("_", " "), counted.get(name, 0))

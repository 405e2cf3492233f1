"""Faults of a lab's processes and switches during runs and between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.freezes import outside, stalled, standstills
from ringlight.experiments.analysis.metrics import Context, metrics
from ringlight.experiments.analysis.metrics.light import counters
from ringlight.experiments.analysis.metrics.workers import identical, payload
from ringlight.experiments.analysis.reasons import Level, Reason
from ringlight.experiments.record.events import (
    Aborted,
    EventLate,
    Record,
    Repeated,
    RunEnded,
    WorkerLost,
)
from ringlight.experiments.record.lab_records import (
    ProcessBack,
    ProcessEnded,
    SwitchDrifted,
    process_called,
)
from ringlight.experiments.record.light_records import StepSetUps
from ringlight.experiments.record.runs import SUCCEEDED, JobRun, Run

#: What must be 0 where a step's light stands before anybody sends; TCP sends again what is lost, later.
NEVER_STEPPED = ("dark_drops", "unset_drops", "unrouted")

#: Ends of workers that others bring about: what a program does wrong ends it otherwise.
KILLED = ("killed by SIGKILL", "killed by SIGTERM")

#: What may be made to happen in a run whose failures and stalls are judged: of a fault they are a result.
PLAIN_EVENTS = ("start", "cancel")


def deaths(run: Run) -> list[dict[str, Any]]:
    """Return every process of the lab that died, planned or not.

    ``away_s``: seconds until the process was back; None if it did not come back.
    """
    backs, ended = run.of(ProcessBack), []
    for death in run.of(ProcessEnded):
        back = next(
            (
                b
                for b in backs
                if (b.kind, b.name) == (death.kind, death.name) and b.t >= death.t
            ),
            None,
        )
        data = {
            key: getattr(death, key) for key in ("kind", "name", "how", "planned", "t")
        }
        ended.append({**data, "away_s": None if back is None else back.t - death.t})
    return ended


def died(run: Run) -> Iterator[Reason]:
    """Yield reasons for processes and workers that died though no event of the run killed them.

    Also yield a reason for each event that came late because of a death.
    """
    unasked = {(d["kind"], d["name"]): d for d in deaths(run) if not d["planned"]}
    for (kind, name), death in unasked.items():
        code = "process_gone" if death["away_s"] is None else "process_restarted"
        data = {
            "kind": kind,
            "name": name,
            "process": process_called(kind, name),
            "how": death["how"],
        }
        yield Reason(code, "doubtful", {"run": run.name, **data})
    for event in run.of(EventLate):
        if not event.asked:
            keys = ("name", "planned", "came", "late_s", "away_s")
            event_data = {key: getattr(event, key) for key in keys}
            data = {"run": run.name, **event_data, "said": event.sentence}
            yield Reason("event_late", "doubtful", data)
    takes_workers = any(
        action.plan.target is not None and action.plan.target.kind in ("worker", "gpu")
        for action in run.actions
    )
    for job in run.jobs.values():
        if job.state == "FAILED" and _was_killed(job) and not takes_workers:
            yield Reason(
                "job_killed",
                "doubtful",
                {"run": run.name, "job": job.name, "reason": job.reason},
            )
        for loss in job.losses if job.state != "FAILED" else ():
            if not _was_asked(run, loss):
                lost = {
                    "job": job.name,
                    "rank": loss.rank,
                    "gpu": loss.gpu,
                    "reason": loss.reason,
                }
                yield Reason("worker_killed", "doubtful", {"run": run.name, **lost})


def drifted(run: Run) -> Iterator[Reason]:
    """Yield a reason for each switch that was not as set while jobs ran, though no event of the run
    changed it."""
    for drift, mended in run.drifts:
        if (
            drift.planned
            or drift.t > run.ended
            or (mended is not None and mended.t < run.released)
        ):
            continue
        then = (
            "until the run ended"
            if mended is None
            else f"for {mended.t - drift.t:.2f} s"
        )
        data = {
            "switch": drift.switch,
            "what": drift.what,
            "said": drift.sentence,
            "then": then,
        }
        yield Reason("switch_drifted", "doubtful", {"run": run.name, **data})


def stood_still(run: Run) -> Iterator[Reason]:
    """Yield a reason for each process that stood still for longer than its work tolerates."""
    for standstill in standstills(run.records):
        yield Reason(
            "process_frozen", "doubtful", {"run": run.name, **standstill.data()}
        )


def between_runs(records: Sequence[Record], runs: Sequence[Run]) -> Iterator[Reason]:
    """Yield reasons for faults in link tests and in runs that were broken off.

    The faults are processes that stood still, and switches that were not as the testbed left them.
    """
    aside = [
        r.set_aside
        for r in records
        if isinstance(r, Repeated) and r.set_aside is not None
    ]
    records_outside = outside(records, runs, aside)
    for standstill in standstills(records_outside):
        yield Reason("frozen_outside_runs", "doubtful", standstill.data())
    for drift in records_outside:
        if isinstance(drift, SwitchDrifted) and not drift.planned:
            data = {"switch": drift.switch, "what": drift.what, "said": drift.sentence}
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
            yield Reason(
                "job_failed",
                "doubtful",
                {"run": run.name, "job": job.name, "reason": job.reason},
            )


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
            where = {
                "run": run.name,
                "job": name,
                "rank": iteration.rank,
                "iteration": iteration.i,
            }
            yield Reason(
                "worker_stalled", "doubtful", {**where, "for_s": iteration.max_stall_s}
            )


def _was_killed(job: JobRun) -> bool:
    return any(sent in (job.reason or "") for sent in KILLED)


def broken_off(records: Sequence[Record]) -> Iterator[Reason]:
    """Yield a reason if the experiment ended early and has not been resumed since."""
    last = next(
        (
            record
            for record in reversed(records)
            if isinstance(record, Aborted | RunEnded)
        ),
        None,
    )
    if isinstance(last, Aborted):
        yield Reason("aborted", "doubtful", {"reason": last.reason})


def _was_asked(run: Run, loss: WorkerLost) -> bool:
    """Return whether an event of the run may explain a lost worker: it took the worker, its GPU, a link or
    a switch."""
    targets = [
        action.plan.target
        for action in run.actions
        if action.plan.do in ("lose", "kill", "cut")
    ]
    return any(
        target.kind in ("link", "switch")
        or target.names in ((loss.gpu,), (loss.job, str(loss.rank)))
        for target in targets
        if target is not None
    )


def differing(run: Run) -> Iterator[Reason]:
    """Yield a reason for each succeeded training job whose parameters differ between ranks or from the
    reference.

    The reference is the same training in one process.
    """
    for job in run.jobs.values():
        if (
            job.state == SUCCEEDED
            and job.plan.training is not None
            and not identical(job)
        ):
            yield Reason("parameters_differ", "bad", {"run": run.name, "job": job.name})


def _condemning(context: Context) -> Mapping[str, float]:
    """Return the counts that must be 0 in a correct run, by what each counts."""
    entries = [entry for entry in metrics().values() if entry.condemning]
    counts = {
        compute: compute(context)
        for compute in {entry.compute: None for entry in entries}
    }
    return {
        entry.condemning: counts[entry.compute].get(entry.name, 0) for entry in entries
    }


def astray(context: Context) -> Iterator[Reason]:
    """Yield reasons for light between jobs, lost payload, and counters of kernel and agents that must stay
    0."""
    run, counted = context.run, counters(context)

    def light(level: Level, counter: str, count: float) -> Iterator[Reason]:
        if count:
            yield Reason(
                "light_astray",
                level,
                {"run": run.name, "count": count, "counter": counter},
            )

    for words, count in _condemning(context).items():
        yield from light("bad", words, count)
    lost = payload(context).get("payload_lost", 0)
    if lost and all(
        job.state == SUCCEEDED and not job.losses for job in run.jobs.values()
    ):
        yield Reason("payload_lost", "bad", {"run": run.name, "bytes": lost})
    for name in NEVER_STEPPED if run.derived(StepSetUps) else ():
        yield from light("doubtful", name.replace("_", " "), counted.get(name, 0))

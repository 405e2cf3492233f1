"""Every job of every arm: where it ran, how long it waited and took, and what became of it."""

from __future__ import annotations

from ringlight.experiments.record.runs import JobRun
from ringlight.experiments.report.page import NOTHING, folded_if_long, mark, table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View, cell, real
from ringlight.experiments.report.words import percent, seconds, upper_first

ORDER = 25
TITLE = "Jobs"
NEEDS = ("state",)
#: More GPUs than these are counted, not listed.
_MOST_GPUS = 8
#: What columns say that only some experiments have.
_EXPLAINED = {
    "simulated": "the JCT of a simulation of the same run, as the models do not know all of it",
    "waited": "queueing delay, from a job's arrival until it has its GPUs",
    "start-up": "from then until its workers are ready",
    "stands for": "the JCT in real time, divided by the file's time scale",
    "GPU use": "share of the job's time that its GPUs computed",
    "crossing": "share of neighbouring ranks on different packet switches at the end",
    "slowdown": "from arrival to end, over what the model says that the job takes alone",
}


def wanted(view: View) -> list[Figures]:
    return list(view.each("job"))


def render(view: View, draw: Draw) -> str:
    columns = [
        ("job", lambda at: text(at.name)),
        ("GPUs", lambda at: text(_placed(_job(at)))),
        ("state", state),
        ("JCT", cell("jct")),
        ("simulated", cell("jct_simulated")),
        ("stands for", lambda at: seconds(real(at, "jct"))),
        ("iteration", cell("iteration")),
        ("all-reduce", cell("allreduce")),
        ("arrival", _arrival),
        ("waited", lambda at: seconds(at.number("queueing_delay") or None)),
        ("start-up", lambda at: seconds(at.number("start_up") or None)),
        ("GPU use", lambda at: percent(at.number("gpu_utilisation"), 0)),
        ("crossing", lambda at: percent(at.number("fragmentation"), 0)),
        ("slowdown", lambda at: at.figure("slowdown") if len(view.plans[at.arm].jobs) > 1 else NOTHING),
    ]
    group = (lambda at: text(at.title)) if len(view.fixed) > 1 else None
    shown = table_of(wanted(view), columns, 3, group=group)
    there = [head for head in _EXPLAINED if f">{head}</th>" in shown]
    explained = "".join(f" {upper_first(head)}: {_EXPLAINED[head]}." for head in there)
    shown = folded_if_long(f"{len(wanted(view))} jobs", len(wanted(view)), shown)
    return (
        f'{shown}<p class="quiet">All {tag(view.label)}, seconds as emulated; GPUs in rank order. JCT: job '
        "completion time, from its release to its end; iteration and all-reduce are medians over ranks and "
        f"iterations.{explained}{_failures(view)}{view.says('jobs')}</p>"
    )


def _job(at: Figures) -> JobRun:
    return at.view.first[at.arm].jobs[at.name]


def _placed(job: JobRun) -> str:
    if len(job.gpus) > _MOST_GPUS:
        return f"{len(job.gpus)}: {job.gpus[0]} to {job.gpus[-1]}"
    return " ".join(job.gpus) + (f" → {' '.join(job.last_gpus)}" if job.last_gpus != job.gpus else "")


def state(at: Figures) -> str:
    """What became of a job; marked where it did not succeed."""
    word = str(at.value("state") or NOTHING).lower()
    return mark("bad", word) if word in ("failed", "cancelled") else word


def _arrival(at: Figures) -> str:
    """Arrival time, seconds since the first release, where not all jobs start at once."""
    arrived, plan = _job(at).arrived, at.view.plans[at.arm]
    if arrived is None or all(job.start.at_once for job in plan.jobs):
        return NOTHING
    return seconds(max(0.0, arrived - at.view.first[at.arm].released))


def _failures(view: View) -> str:
    """Why jobs failed; all that did were perhaps meant to."""
    found = [
        f" {run.plan.title}: {name} {job.state.lower()}{', as expected' * job.plan.may_fail}: {job.reason}."
        for run in view.runs
        for name, job in run.jobs.items()
        if job.state not in ("SUCCEEDED", "") and job.reason
    ]
    return text("".join(dict.fromkeys(found)))

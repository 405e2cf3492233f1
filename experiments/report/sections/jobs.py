"""Every job of every arm: where it ran, how long it waited and took, and what became of it."""

from __future__ import annotations

from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.view import View, job_of
from experiments.report.words import YES_NO, figure, percent, seconds

ORDER = 20
NEEDS = ("state",)
#: More GPUs than these are counted, not listed.
_MOST_GPUS = 8
#: Columns that only some experiments have: head and metric.
_SOMETIMES = (
    ("arrival", None),
    ("waited", "queueing_delay"),
    ("GPU use", "gpu_utilisation"),
    ("crossing", "fragmentation"),
    ("slowdown", "slowdown"),
    ("loss", "loss_last"),
    ("identical", "parameters_identical"),
)


def wanted(view: View) -> bool:
    return bool(view.fixed)


def render(view: View, draw: Draw) -> str:
    columns = [head for head, metric in _SOMETIMES if _is_there(view, head, metric)]
    rows: list[str] = []
    for arm in view.fixed:
        if len(view.fixed) > 1:
            width = 6 + len(columns)
            rows.append(f'<tr class="group"><td colspan="{width}">{text(view.title(arm))}</td></tr>')
        rows += [_job(view, arm, subject, columns) for subject in view.subjects(arm, "job")]
    head = ["job", "GPUs", "state", "JCT", "iteration", "all-reduce", *columns]
    said = f" {text(view.says('jobs'))}" if view.says("jobs") else ""
    return (
        f"<h2>Jobs</h2>{table(head, rows, 3)}"
        f'<p class="quiet">All {tag(view.label)}, seconds as emulated; GPUs in rank order. JCT: job '
        "completion time, from its release to its end; iteration and all-reduce are medians over ranks and "
        f"iterations.{_explained(columns)}{_failures(view)}{said}</p>"
    )


def _is_there(view: View, head: str, metric: str | None) -> bool:
    if metric is None:
        return any(not job.start.at_once for plan in view.plans.values() for job in plan.jobs)
    if metric == "queueing_delay":
        return any(row.value for row in view.rows if row.metric == metric)
    if metric == "slowdown":
        return any(len(plan.jobs) > 1 for plan in view.plans.values()) and metric in view.metrics
    return metric in view.metrics


def _explained(columns: list[str]) -> str:
    said = {
        "waited": "Waited: queueing delay, from a job's arrival to its release.",
        "GPU use": "GPU use: share of the job's time that its GPUs computed.",
        "crossing": "Crossing: share of neighbouring ranks on different packet switches at the end.",
        "slowdown": "Slowdown: from arrival to end, over what the model says that the job takes alone.",
        "identical": (
            "Identical: all ranks ended with the same parameters bit by bit, equal to the same "
            "training in one process."
        ),
    }
    return "".join(f" {words}" for head, words in said.items() if head in columns)


def _failures(view: View) -> str:
    """Why jobs failed; all that did were perhaps meant to."""
    found = []
    for run in view.runs:
        for name, job in run.jobs.items():
            if job.state not in ("SUCCEEDED", "") and job.reason:
                meant = ", as expected" if job.plan.may_fail else ""
                found.append(f"{run.plan.title}: {name} {job.state.lower()}{meant}: {job.reason}")
    return "".join(f" {text(line)}." for line in dict.fromkeys(found))


def _job(view: View, arm: str, subject: str, columns: list[str]) -> str:
    name, run = job_of(subject), view.first(arm)
    job = run.jobs[name] if run is not None else None
    gpus = job.gpus if job is not None else ()
    placed = " ".join(gpus) if len(gpus) <= _MOST_GPUS else f"{len(gpus)}: {gpus[0]} to {gpus[-1]}"
    if job is not None and job.last_gpus != gpus and len(gpus) <= _MOST_GPUS:
        placed += f" → {' '.join(job.last_gpus)}"
    arrived = None
    if run is not None and job is not None and job.arrived is not None:
        arrived = max(0.0, job.arrived - run.released)
    state = str(view.value(arm, subject, "state") or "–").lower()
    optional = {
        "arrival": seconds(arrived),
        "waited": figure(view.row(arm, subject, "queueing_delay")),
        "GPU use": percent(view.number(arm, subject, "gpu_utilisation"), 0),
        "crossing": percent(view.number(arm, subject, "fragmentation"), 0),
        "slowdown": figure(view.row(arm, subject, "slowdown")),
        "loss": _loss(view, arm, subject),
        "identical": YES_NO[view.value(arm, subject, "parameters_identical")],
    }
    cells = [
        text(name),
        text(placed),
        f'<b class="bad">{state}</b>' if state in ("failed", "cancelled") else state,
        *(figure(view.row(arm, subject, metric)) for metric in ("jct", "iteration", "allreduce")),
        *(optional[head] for head in columns),
    ]
    return row(cells, 3)


def _loss(view: View, arm: str, subject: str) -> str:
    first, last = (view.number(arm, subject, name) for name in ("loss_first", "loss_last"))
    return "–" if first is None or last is None else f"{first:.2f} → {last:.2f}"

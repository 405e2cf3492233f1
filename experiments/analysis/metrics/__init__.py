"""Metrics: each a small pure function of a run, found here. A new one is a function in a new file.

    @metric("s", of="job")
    def jct(context: Context, job: JobRun) -> float | None:
        "Job completion time: from the job's release to its end."
        return job.jct_s

It is called as the function is, and said to be what the first line of its docstring says. What it returns
becomes a row; None becomes none. ``of`` says what it is called for, and so the rows' subject: ``run`` once,
``fabric`` once, ``job`` for each job, ``event`` for each event of the timeline that took place, ``event job``
for each of these and each job; ``each`` yields (subject, value) itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from experiments.analysis.prediction import Circuits, Predicted, predict_jobs
from experiments.analysis.rows import Label, Row, Value
from experiments.record.runs import Run

Of = Literal["run", "fabric", "job", "event", "event job", "each"]
Compute = Callable[..., Any]
Unit = Literal["s", "bit/s", "bytes", "%", "1", "count", ""]
#: Events that move light.
LIGHT = ("regroup", "circuits")


@dataclass(frozen=True, eq=False)
class Context:
    """All that a metric may look at. ``label``: how figures of this run are known."""

    run: Run
    label: Label

    @property
    def simulated(self) -> bool:
        return self.label == "simulated"

    @cached_property
    def predicted(self) -> Mapping[str, Predicted]:
        """What the models say of each job that had GPUs: of those of the beginning together, of others alone.

        They know of nothing that happens, so there is nothing where an event came while jobs ran.
        """
        run = self.run
        if any(action.plan.do != "start" and action.begun > run.released for action in run.actions):
            return {}
        placed = {name: job.gpus for name, job in run.jobs.items() if job.gpus}
        first = {name: gpus for name, gpus in placed.items() if run.jobs[name].plan.start.at_once}
        groups = [first, *({name: gpus} for name, gpus in placed.items() if name not in first)]
        return {name: found for group in groups for name, found in self.predict(group).items()}

    @cached_property
    def alone(self) -> Mapping[str, Predicted]:
        """The same of each job as if it were the only one."""
        if len(self.run.jobs) == 1 and self.predicted:
            return self.predicted
        jobs = self.run.jobs.items()
        return {k: v for name, job in jobs if job.gpus for k, v in self.predict({name: job.gpus}).items()}

    def predict(
        self, gpus: Mapping[str, tuple[str, ...]], circuits: Circuits | None = None
    ) -> Mapping[str, Predicted]:
        """What the models say of some jobs together, as it is lit at the end; nothing if one has no path."""
        try:
            return predict_jobs(self.run.plan, gpus, self.run.circuits if circuits is None else circuits)
        except ValueError:
            # A job without a path, which may be what the run is about.
            return {}


@dataclass(frozen=True)
class Metric:
    """``help``: what it is, in one line. ``analytic``: computed from a model, whatever the run's label."""

    name: str
    unit: Unit
    help: str
    of: Of
    analytic: bool
    compute: Callable[..., Any]

    def values(self, context: Context) -> Iterator[tuple[str, Value]]:
        """(subject, value) of a run."""
        run = context.run
        if self.of == "each":
            yield from self.compute(context)
        elif self.of in ("run", "fabric"):
            yield "run" if self.of == "run" else f"fabric {run.plan.setting.name}", self.compute(context)
        elif self.of == "job":
            for name, job in run.jobs.items():
                yield f"job {name}", self.compute(context, job)
        elif self.of == "event":
            for action in run.actions:
                yield f"event {action.plan.name}", self.compute(context, action)
        else:
            for action in run.actions:
                for name, job in run.jobs.items():
                    yield f"event {action.plan.name} job {name}", self.compute(context, action, job)


_FOUND: dict[str, Metric] = {}


def metric(
    unit: Unit, *, of: Of = "run", analytic: bool = False, name: str = "", help: str = ""
) -> Callable[[Compute], Compute]:
    """Makes a function a metric. ``name`` and ``help``: in place of its own, for one that makes several.

    Raises ValueError for a name that another file's has.
    """

    def register(compute: Compute) -> Compute:
        said = help or (compute.__doc__ or "").partition("\n")[0].removesuffix(".")
        found = Metric(name or compute.__name__, unit, said, of, analytic, compute)
        before = _FOUND.setdefault(found.name, found)
        if before.compute.__module__ != compute.__module__:
            raise ValueError(f"metric {found.name}: {before.compute.__module__} has one of this name")
        return compute

    return register


@cache
def _all_read() -> None:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)


def metrics() -> Mapping[str, Metric]:
    """All metrics by name, those of every file in this folder."""
    _all_read()
    return _FOUND


def rows_of(run: Run, label: Label) -> list[Row]:
    """All figures of one run."""
    context, plan = Context(run, label), run.plan
    return [
        Row(
            plan.arm,
            subject,
            found.name,
            value,
            found.unit,
            "analytic" if found.analytic else label,
            plan.point,
            plan.repeat,
        )
        for found in metrics().values()
        for subject, value in found.values(context)
        if value is not None
    ]


def table() -> str:
    """All metrics as a table in Markdown, for docs/metrics.md."""
    of: Mapping[Of, str] = {"each": "messages"}
    lines = ["| metric | unit | of | |", "|---|---|---|---|"]
    for name, found in sorted(metrics().items()):
        said = f"{found.help} (analytic)" if found.analytic else found.help
        lines.append(f"| `{name}` | {found.unit} | {of.get(found.of, found.of)} | {said} |")
    return "\n".join(lines) + "\n"


def selected(rows: Iterable[Row], name: str) -> list[Row]:
    """The rows of a metric, and of those called after it with a dot: its definitions."""
    return [row for row in rows if row.metric == name or row.metric.startswith(f"{name}.")]

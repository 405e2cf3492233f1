"""Metrics: each a small pure function of a run, in a file of this folder or of an extension.

    @metric("s", of="job")
    def jct(context: Context, job: JobRun) -> float | None:
        "Job completion time: from the job's release to its end."
        return job.jct_s

It is called as the function is, and said to be what the first line of its docstring says. What it returns
becomes a row; None becomes none. ``of`` says what it is called for, and so the rows' subject: ``run`` once,
``fabric`` once, ``job`` for each job, ``event`` for each event of the timeline that took place, ``event job``
for each of these and each job; ``traffic`` for each job of guests and each direction of a link;
``messages`` for each kind of fault of control messages.

Figures that are computed together are one function with ``makes``: their names, and what each is said to be.
It returns values by name. Those of several units have a ``metric`` line for each unit.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Literal

from ringlight.experiments.analysis.prediction import (
    Foretell,
    Foretold,
    Predicted,
    by_phase,
    packet_view,
    predict_jobs,
)
from ringlight.experiments.analysis.rows import Label, Row, Value
from ringlight.experiments.record.light_records import StepSetUps
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.fabric.extension import loaded
from ringlight.fabric.paths import NoPathError, PacketView

Of = Literal["run", "fabric", "job", "traffic", "event", "event job", "messages"]
Compute = Callable[..., Any]
Unit = Literal["s", "bit/s", "bytes", "%", "1", "count", ""]
#: What can happen to control messages on purpose, as O-NICs' agents count it.
MESSAGE_FAULTS = ("lost", "duplicated", "reordered", "blocked")


@dataclass(frozen=True, eq=False)
class Context:
    """All that a metric may look at. ``label``: how figures of this run are known. ``foretell``: what
    simulates a run plan, for comparison with a measured run."""

    run: Run
    label: Label
    foretell: Foretell | None = None

    @property
    def simulated(self) -> bool:
        return self.label == "simulated"

    @cached_property
    def predicted(self) -> Mapping[str, Predicted]:
        """Predictions of the models for each job that had GPUs: first jobs together, other jobs alone.

        The models know no events, so the predictions are empty if an event came while jobs ran. Jobs that ran
        next to jobs that began at another time are left out.
        """
        run = self.run
        if any(
            action.plan.do != "start" and action.begun > run.released
            for action in run.actions
        ):
            return {}
        placed = {name: job.gpus for name, job in run.jobs.items() if job.gpus}
        first = {
            name: gpus
            for name, gpus in placed.items()
            if run.jobs[name].plan.start.at_once
        }
        groups = [
            first,
            *({name: gpus} for name, gpus in placed.items() if name not in first),
        ]
        by_itself = [group for group in groups if not self._beside_others(group)]
        return {
            name: prediction
            for group in by_itself
            for name, prediction in self.predict(group).items()
        }

    def _beside_others(self, names: Collection[str]) -> bool:
        """Return whether some of these jobs ran while a job ran that is not among them."""
        jobs = self.run.jobs
        return any(
            _ran_together(jobs[name], jobs[other])
            for name in names
            for other in jobs
            if other not in names
        )

    @cached_property
    def view_before(self) -> PacketView:
        """The fabric with its light of the start."""
        return packet_view(self.run.plan.setting.fabric, self.run.circuits_before)

    @cached_property
    def view(self) -> PacketView:
        """The fabric with its light of the end."""
        return packet_view(self.run.plan.setting.fabric, self.run.circuits)

    @cached_property
    def foretold(self) -> Foretold | None:
        """The simulation of a measured run; None of one that was simulated, or that nobody simulates.

        Jobs that came later have their workers there as long after their GPUs were free as was measured.
        """
        run = self.run
        if self.foretell is None or self.simulated:
            return None
        ends = [job.end for job in run.jobs.values() if job.end is not None]
        started = [
            replace(job.plan, start_up_s=_start_up_s(job, ends))
            for job in run.jobs.values()
        ]
        return self.foretell(replace(run.plan, jobs=tuple(started)))

    def simulate(self) -> None:
        """Simulate a measured run now."""
        _ = self.foretold

    @cached_property
    def phases(self) -> Mapping[str, tuple[float, float]]:
        """Least and greatest simulated completion time, seconds, of jobs of which the moments decide at which
        later jobs begin, by name."""
        return {} if self.foretell is None else by_phase(self.run.plan, self.foretell)

    @cached_property
    def alone(self) -> Mapping[str, Predicted]:
        """Predictions of the models for each job that had GPUs as if it were the only one."""
        if len(self.run.jobs) == 1 and self.predicted:
            return self.predicted
        jobs = self.run.jobs.items()
        return {
            k: v
            for name, job in jobs
            if job.gpus
            for k, v in self.predict({name: job.gpus}).items()
        }

    @cached_property
    def _known(self) -> dict[Hashable, Mapping[str, Predicted]]:
        return {}

    def predict(
        self, gpus: Mapping[str, tuple[str, ...]], *, before: bool = False
    ) -> Mapping[str, Predicted]:
        """Return the predictions of the models for some jobs together, by name; empty if a job has no path.

        ``before``: with the light of the start, not of the end.
        """
        key = before, tuple(gpus.items())
        if key not in self._known:
            try:
                predictions = predict_jobs(
                    self.run.plan, gpus, self.view_before if before else self.view
                )
            except NoPathError:
                # That may be what the run is about.
                predictions = {}
            self._known[key] = predictions
        return self._known[key]

    @cached_property
    def set_up_times(self) -> list[float]:
        """Seconds from the request of each flow to its light, or from the end of a step to the light of the
        next if it changed between them."""
        of_steps = (
            change["total_s"]
            for note in self.run.derived(StepSetUps)
            for change in note.set_ups
        )
        return [*(flow.set_up_s for flow in self.run.lit_flows), *of_steps]


def _ran_together(first: JobRun, other: JobRun) -> bool:
    if first.released is None or other.released is None:
        return False
    ends = (math.inf if job.end is None else job.end for job in (first, other))
    return max(first.released, other.released) < min(ends)


def _start_up_s(job: JobRun, ends: Sequence[float]) -> float:
    """Seconds from the moment that a later job could have had its GPUs, when it came or the last of the
    others ended that it waited for, to its release; 0 for jobs of the beginning."""
    if (
        job.plan.start.at_once
        or job.arrived is None
        or job.granted is None
        or job.released is None
    ):
        return 0.0
    free = max([job.arrived, *(end for end in ends if end <= job.granted)])
    return max(0.0, job.released - free)


@dataclass(frozen=True)
class Metric:
    """``help``: what it is, in one line. ``known``: how, where not as the run's label says: ``analytic`` from
    a model, ``simulated`` from a simulation of a measured run. ``unscaled``: a time that is real, or
    that of software, which no scale changes.
    ``compute``: gives its value by its name, with those that are computed with it. ``file``: its module.
    ``column``: its heading in the command's table of jobs, of an extension's metric that is shown there.
    ``condemning``: what it counts, in words, if a run where it is not 0 cannot be believed."""

    name: str
    unit: Unit
    help: str
    of: Of
    known: Label | None
    compute: Compute
    file: str
    column: str = ""
    unscaled: bool = False
    condemning: str = ""


_FOUND: dict[str, Metric] = {}


def metric(
    unit: Unit,
    *,
    of: Of = "run",
    known: Label | None = None,
    makes: Mapping[str, str] | None = None,
    column: str = "",
    unscaled: bool = False,
    condemning: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Compute], Compute]:
    """Return a decorator that registers a function as a metric, or as the metrics in ``makes``.

    ``condemning``: by the names of those that must be 0 in a correct run.
    The decorator raises ValueError for a name that a metric of another file has.
    """

    def register(function: Compute) -> Compute:
        own = function.__name__
        compute = function if makes else lambda *what: {own: function(*what)}
        helps = makes or {
            own: (function.__doc__ or "").partition("\n")[0].removesuffix(".")
        }
        for name, help in helps.items():
            bad = condemning.get(name, "")
            entry = Metric(
                name,
                unit,
                help,
                of,
                known,
                compute,
                function.__module__,
                column,
                unscaled,
                bad,
            )
            before = _FOUND.setdefault(name, entry)
            if before.file != entry.file:
                raise ValueError(f"metric {name}: {before.file} has one of this name")
        return function

    return register


@cache
def metrics() -> Mapping[str, Metric]:
    """Return all metrics by name: those of every file in this folder and of the extensions.

    Their order, and so that of a run's rows, does not depend on which file was imported first.
    """
    here = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    modules = [*map(importlib.import_module, here), *loaded("metrics")]
    place_of = {module.__name__: place for place, module in enumerate(modules)}
    ordered = sorted(
        _FOUND.values(), key=lambda entry: place_of.get(entry.file, len(modules))
    )
    return {entry.name: entry for entry in ordered}


def _subjects(run: Run) -> Mapping[Of, Mapping[str, tuple[Any, ...]]]:
    """Return subjects by their kind, each with the arguments for metrics of that kind."""
    jobs = {f"job {name}": (job,) for name, job in run.jobs.items()}
    events = {f"event {action.plan.name}": (action,) for action in run.actions}
    links = {
        f"traffic {name} {link['from']} > {link['to']}": (job, link)
        for name, job in run.jobs.items()
        for link in (job.links.links if job.links is not None else ())
    }
    return {
        "run": {"run": ()},
        "fabric": {f"fabric {run.plan.setting.name}": ()},
        "job": jobs,
        "traffic": links,
        "event": events,
        "event job": {
            f"{e} {j}": (*action, *job)
            for e, action in events.items()
            for j, job in jobs.items()
        },
        "messages": {f"messages {kind}": (kind,) for kind in MESSAGE_FAULTS},
    }


def rows_of(context: Context) -> list[Row]:
    """Return all figures of one run as rows."""
    plan, subjects = context.run.plan, _subjects(context.run)
    computed: dict[tuple[Compute, str], Mapping[str, Value]] = {}
    rows = []
    for name, entry in metrics().items():
        label = entry.known or context.label
        for subject, what in subjects[entry.of].items():
            key = entry.compute, subject
            if key not in computed:
                computed[key] = entry.compute(context, *what)
            if (value := computed[key].get(name)) is not None:
                rows.append(
                    Row(
                        plan.arm,
                        subject,
                        name,
                        value,
                        entry.unit,
                        label,
                        plan.point,
                        plan.repeat,
                    )
                )
    return rows


#: So many metrics that differ only in the end of their names are one row of the table.
_FAMILY = 8


def table(package: str = __name__) -> str:
    """Return the metrics of a package as a table in Markdown: the core's for docs/metrics.md, an extension's
    for its page. A large family, such as ``exposed.all_gather`` to ``exposed.tp``, is one row."""
    entries = {
        name: entry
        for name, entry in sorted(metrics().items())
        if entry.file.startswith(f"{package}.")
    }
    families: dict[str, list[str]] = {}
    for name in entries:
        families.setdefault(name.rpartition(".")[0], []).append(name)
    del families[""]
    lines = ["| metric | unit | of | |", "|---|---|---|---|"]
    for name, entry in entries.items():
        words = f"{entry.help} ({entry.known})" if entry.known else entry.help
        family, _, kind = name.rpartition(".")
        if len(kinds := families.get(family, [])) >= _FAMILY:
            if name != kinds[0]:
                continue
            ends = ", ".join(f"`{member.rpartition('.')[2]}`" for member in kinds)
            words = f"{words.replace(kind.replace('_', '-'), 'KIND')}. KIND: {ends}"
            name = f"{family}.KIND"
        lines.append(f"| `{name}` | {entry.unit} | {entry.of} | {words} |")
    return "\n".join(lines) + "\n"

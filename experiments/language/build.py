"""Builds one concrete run as plain data: fabric, jobs and events in emulated units."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringlight.experiments.language.checks import check_run
from ringlight.experiments.language.draft import Draft
from ringlight.experiments.language.event_checks import loss_rule
from ringlight.experiments.language.job_keys import ALL
from ringlight.experiments.language.job_sources import Sourced, job_source, source_of
from ringlight.experiments.language.model_keys import EITHER, inside, keys_of
from ringlight.experiments.language.paths import AUTO, names_of
from ringlight.experiments.language.plan import (
    EventPlan,
    JobPlan,
    Loop,
    RunPlan,
    Scale,
    Setting,
    SourcePlan,
    Start,
)
from ringlight.experiments.language.plan_values import (
    collective_of,
    compute_s_of,
    costs_of,
    event_of,
    faults_of,
    gradient_bytes_of,
    iterations_of,
    longest_queue_s,
    with_ports,
)
from ringlight.experiments.language.sections import Resolver, checked, text_of
from ringlight.experiments.language.spec import (
    EventSpec,
    JobSpec,
    RunSpec,
    TitledFabricSpec,
    TrainingSpec,
)
from ringlight.experiments.language.text import at_key, resolved, within
from ringlight.experiments.language.workloads import (
    WorkloadSpec,
    emulated,
    problem_of,
    workload_of,
)
from ringlight.fabric.building import build_fabric
from ringlight.fabric.keys import fabric_keys
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import under
from ringlight.workloads.graph import Workload

T = TypeVar("T")
#: A section that is left out.
_NOTHING: dict[str, Any] = {}
#: Types of sections.
_KINDS = {name: inside(RunSpec, name) for name in keys_of(RunSpec)}
#: Where the machine chooses the scale, a link is filled for at least so many times as its queue lasts, which
#: is TCP's round trip, but no longer than so many seconds. At 2 Mbit/s and with a queue of 1.4 s, links gave
#: 92 to 98 % of their settings in 2 s, while all-reduces took 1 to 3 % longer than they should.
QUEUES, LONGEST_TEST_S = 3, 10.0
#: Name of a fabric that is the file's only one.
ONLY_FABRIC = "fabric"


@dataclass(frozen=True)
class Concrete:
    """One run as a mapping: the file with all that an arm and a point put in its place."""

    arm: str
    title: str
    point: Mapping[str, Any]
    raw: Mapping[str, Any]


class Builder:
    """Makes run plans; what many runs of a file have in common is made once. ``directory``: of the file;
    ``scale``: of runs that leave it to the machine (``AUTO``)."""

    def __init__(self, directory: Path, scale: Scale = Scale()) -> None:
        self._directory, self._scale = directory, scale
        #: Names of the runs that leave their scale to the machine.
        self.auto: set[str] = set()
        self._resolved = Resolver()
        self._made: dict[Hashable, Any] = {}
        #: All files that workloads were read from.
        self.files: dict[Path, None] = {}
        self._looked_at: set[Any] = set()

    def plan(self, run: Concrete, name: str) -> RunPlan:
        """Return the plan of a run named ``name``. Raises ValueError, ``key: what is wrong``."""
        raw = run.raw
        tcp, link_test = (self._section(raw, name) for name in ("tcp", "link_test"))
        if raw.get("scale") == AUTO:
            self.auto.add(name)
            scale = self._scale
        else:
            scale = self._section(raw, "scale")
        fabric_name, where = self._chosen(raw)
        spec, section, key = self._fabric_section(raw, where)
        fabric = self._fabric(where, spec, key)
        test_s = link_test.duration
        if name in self.auto:
            test_s = max(
                test_s,
                min(LONGEST_TEST_S, QUEUES * scale.time * longest_queue_s(fabric)),
            )
        setting = self._setting(
            Setting(
                fabric_name,
                spec.title or fabric_name,
                fabric,
                section,
                scale,
                tcp,
                test_s,
            )
        )
        events = self._events(raw, scale)
        source: SourcePlan | None = None
        jobs: tuple[JobPlan, ...] = ()
        if raw["jobs"] is None:
            events = self._of_no_job(events)
        elif (key_of_source := source_of(raw["jobs"])) is not None:
            source, jobs, more = self._sourced(key_of_source, raw, setting, events)
            if not jobs:
                return RunPlan(
                    name, run.title, run.arm, run.point, 1, setting, (), source=source
                )
            events = (*events, *more)
        else:
            jobs = self._jobs(raw, scale, fabric, events)
        section = self._section(raw, "control")
        with at_key("control"):
            control = faults_of(section, scale)
        draft = Draft(where, key, fabric, jobs, events, control)
        check_run(draft, self._looked_at)
        events = tuple(with_ports(event, fabric) for event in events)
        return RunPlan(
            name,
            run.title,
            run.arm,
            run.point,
            1,
            setting,
            jobs,
            events,
            control,
            tuple((str(a), str(b)) for a, b in fabric.circuits),
            {gpu: fabric.onics[gpu].tuning_s * scale.time for gpu in fabric.agents},
            costs_of(self._section(raw, "costs"), tcp.headers, scale),
            source,
        )

    def check_fabrics(self, raw: Mapping[str, Any]) -> None:
        """All fabrics, also those that no run uses. Raises ValueError, ``key: what is wrong``."""
        fabrics = raw.get("fabrics")
        if "fabrics" in raw and (not isinstance(fabrics, dict) or not fabrics):
            raise ValueError("fabrics: should be a mapping of names to fabrics")
        for name in fabrics or ():
            if not isinstance(name, str):
                raise ValueError(
                    f"fabrics.{name}: a name should be a text; write it in quotes"
                )
            where = f"fabrics.{name}"
            spec, _, key = self._fabric_section(raw, where)
            self._fabric(where, spec, key)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object that was made before under this key; else make and keep it."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def read(self, name: str, how: Callable[[Path], T], key: Hashable = None) -> T:
        """Return what ``how`` returns of a file below the scenario's directory. ``key``: what else decides
        that."""

        def made() -> T:
            path = self._directory / name
            self.files[path] = None
            return how(path)

        return self.once(("file", name, key), made)

    def _section(self, raw: Mapping[str, Any], name: str) -> Any:
        """A section that may be left out, checked."""
        return self._checked(
            name,
            _KINDS[name],
            raw.get(name, _NOTHING),
            raw.get("parameters") or _NOTHING,
        )

    def _checked(self, where: str, kind: Any, written: Any, parameters: Any) -> Any:
        value, text = self._resolved(written, where, parameters)
        return self.once(
            (where, text), lambda: checked(kind, value, written, parameters, where)
        )

    def _chosen(self, raw: Mapping[str, Any]) -> tuple[str, str]:
        """Name and key of the fabric of a run."""
        written, fabrics = raw.get("fabric"), raw.get("fabrics") or {}
        if written is None:
            if len(fabrics) == 1:
                return next(iter(fabrics)), f"fabrics.{next(iter(fabrics))}"
            why = f"; name one of {', '.join(fabrics)}" if fabrics else ""
            raise ValueError(f"fabric: missing{why}")
        if isinstance(written, Mapping):
            return ONLY_FABRIC, "fabric"
        name = resolved(written, "fabric", raw.get("parameters") or {})
        if not isinstance(name, str) or name not in fabrics:
            there = (
                f"; there are {', '.join(fabrics)}"
                if fabrics
                else "; there is no section fabrics"
            )
            raise ValueError(f"fabric: there is no fabric {name}{there}")
        return name, f"fabrics.{name}"

    def _fabric_section(
        self, raw: Mapping[str, Any], where: str
    ) -> tuple[TitledFabricSpec, dict[str, Any], str]:
        """A fabric's section checked, as written for the lab's processes, and what tells it from others."""
        written = (
            raw["fabric"]
            if where == "fabric"
            else raw["fabrics"][where.removeprefix("fabrics.")]
        )
        parameters = raw.get("parameters") or {}
        section, key = self._resolved(written, where, parameters)
        spec = self.once(
            ("fabric", key),
            lambda: checked(TitledFabricSpec, section, written, parameters, where),
        )
        return (
            spec,
            {name: value for name, value in section.items() if name != "title"},
            key,
        )

    def _fabric(self, where: str, spec: TitledFabricSpec, key: str) -> Fabric:
        with within(where):
            return self.once(("built", key), lambda: build_fabric(spec))

    def _setting(self, setting: Setting) -> Setting:
        """The first setting from which the same lab is built."""
        section = dict(setting.section)
        for name, fabric_key in fabric_keys().items():
            if fabric_key.per_run and section.get(name):
                unset = dict.fromkeys(fabric_key.per_run)
                section[name] = {
                    entry: {**keys, **unset} for entry, keys in section[name].items()
                }
        key = text_of(
            [
                setting.name,
                section,
                [setting.scale.time, setting.scale.payload],
                [
                    setting.tcp.congestion_control,
                    setting.tcp.rto_min,
                    setting.link_test_s,
                ],
            ]
        )
        return self.once(("setting", key), lambda: setting)

    def _events(self, raw: Mapping[str, Any], scale: Scale) -> tuple[EventPlan, ...]:
        parameters = raw.get("parameters") or {}
        written = raw.get("events") or []
        if isinstance(written, str):
            written = resolved(written, "events", parameters)
        if not isinstance(written, list):
            raise ValueError("events: should be a list")
        names = names_of(written)
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ValueError(f"events.{name}: two events have this name")
        return tuple(
            event_of(
                name,
                self._checked(f"events.{name}", EventSpec, entry, parameters),
                scale,
            )
            for name, entry in zip(names, written, strict=True)
        )

    def _sourced(
        self,
        key: str,
        raw: Mapping[str, Any],
        setting: Setting,
        events: Sequence[EventPlan],
    ) -> Sourced:
        jobs, source = raw["jobs"], job_source(key)
        spec = self._checked(
            f"jobs.{key}", source.spec, jobs[key], raw.get("parameters") or _NOTHING
        )
        if len(jobs) > 1:
            other = next(job for job in jobs if job != key)
            raise ValueError(
                f"jobs.{other}: there are no jobs beside those of jobs.{key}"
            )
        return source.plan(spec, setting, events, self)

    def _of_no_job(self, events: tuple[EventPlan, ...]) -> tuple[EventPlan, ...]:
        if events:
            raise ValueError(
                "events: they happen while jobs train; give jobs, or training"
            )
        return events

    def _jobs(
        self,
        raw: Mapping[str, Any],
        scale: Scale,
        fabric: Fabric,
        events: Sequence[EventPlan],
    ) -> tuple[JobPlan, ...]:
        parameters = raw.get("parameters") or {}
        written, named = self._with_workloads(raw, parameters)
        jobs: dict[str, JobSpec] = self._checked(
            "jobs", _KINDS["jobs"], written, parameters
        )
        if not jobs:
            raise ValueError("jobs: there is none")
        held = {gpu for job in jobs.values() for gpu in job.ranks or ()}
        plans = []
        for number, (name, job) in enumerate(jobs.items()):
            where = f"jobs.{name}"
            ranks = tuple(fabric.gpus) if job.ranks == ALL else job.ranks or ()
            world_size = len(ranks) or job.gpus or 0
            loop, workload, iterations = None, None, 1
            if (guest := job.guest(scale, self._directory)) is not None:
                with within(where):
                    self.files |= dict.fromkeys(job.files(self._directory))
            elif job.workload is not None:
                try:
                    workload = self._workload(job.workload, world_size, scale)
                except ValueError as error:
                    raise ValueError(
                        problem_of(named.get(name, f"{where}.workload"), error)
                    ) from None
                iterations = job.workload.iterations
            else:
                own = job.training
                if not own and "training" not in raw:
                    keys = " or ".join(job.does())
                    raise ValueError(
                        f"{where}: give it {keys}, as the file has no training"
                    )
                training = self._training(
                    where, raw.get("training", _NOTHING), own, parameters
                )
                iterations = iterations_of(training, world_size)
                loop = Loop(
                    model=training.model,
                    collective=collective_of(
                        training.collective, fabric, ranks, world_size
                    ),
                    gradient_bytes=gradient_bytes_of(
                        training, scale, where if "gradient" in own else ""
                    ),
                    compute_s=compute_s_of(training, where if "gpu" in own else "")
                    * scale.time,
                    batch=training.batch,
                    seed=training.seed if "seed" in own else training.seed + number,
                    learning_rate=training.learning_rate,
                    synchronised=training.synchronised,
                )
            plans.append(
                JobPlan(
                    name=name,
                    title=job.title or name,
                    ranks=ranks,
                    gpus=world_size,
                    iterations=iterations,
                    training=loop,
                    workload=workload,
                    light="once" if job.workload is None else job.workload.light,
                    guest=guest,
                    start=Start(
                        job.start.at * scale.time, job.start.after, job.start.event
                    ),
                    on_loss=loss_rule(name, ranks, job.spares, held, events),
                    spares=job.spares,
                    beacon_s=job.beacon * scale.time,
                    stragglers=job.slower,
                    recovery_s=None
                    if job.recovery is None
                    else job.recovery * scale.time,
                    start_up_s=job.start_up * scale.time,
                    may_fail=job.may_fail,
                )
            )
        return tuple(plans)

    def _with_workloads(
        self, raw: Mapping[str, Any], parameters: Any
    ) -> tuple[Any, Mapping[str, str]]:
        """The jobs, with workloads in place of their names, and where those of such jobs stand."""
        jobs, known = raw["jobs"], raw.get("workloads") or _NOTHING
        # Also those that no job of this run has.
        self._section(raw, "workloads")
        named = {}
        for name, job in jobs.items() if isinstance(jobs, Mapping) else ():
            written = job.get("workload") if isinstance(job, Mapping) else None
            if not isinstance(written, str):
                continue
            where = f"jobs.{name}.workload"
            entry = resolved(written, where, parameters)
            if entry not in known:
                there = (
                    f"there are {', '.join(known)}"
                    if known
                    else "there is no section workloads"
                )
                raise ValueError(f"{where}: there is no workload {entry}; {there}")
            named[name] = str(entry)
        if not named:
            return jobs, {}
        changed = {
            name: {**jobs[name], "workload": known[entry]}
            for name, entry in named.items()
        }
        return {**jobs, **changed}, {
            name: f"workloads.{entry}" for name, entry in named.items()
        }

    def _workload(self, workload: WorkloadSpec, ranks: int, scale: Scale) -> Workload:
        def make() -> Workload:
            made = workload_of(workload, ranks, self._directory)
            self.files |= dict.fromkeys(workload.files_read(ranks, self._directory))
            return made

        key = (
            "workload",
            workload.model_dump_json(exclude={"iterations", "light"}),
            ranks,
        )
        return self.once((*key, scale), lambda: emulated(self.once(key, make), scale))

    def _training(
        self, where: str, common: Any, own: Mapping[str, Any], parameters: Any
    ) -> TrainingSpec:
        """Return the training of a job: the file's training, in which the job's own keys take precedence."""
        if not own:
            training: TrainingSpec = self._checked(
                "training", TrainingSpec, common, parameters
            )
            return training
        if not isinstance(common, Mapping):
            raise ValueError(f"training: should be a mapping, not {common!r}")
        kept = {
            key: value for key, value in common.items() if EITHER.get(key) not in own
        }
        try:
            training = self._checked(
                "training", TrainingSpec, {**kept, **own}, parameters
            )
        except ValueError as error:
            key = str(error).partition(":")[0].removeprefix("training.")
            if key in common and key not in own:
                raise
            raise ValueError(under(where, error)) from None
        return training

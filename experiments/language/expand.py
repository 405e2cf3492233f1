"""A scenario file to run plans: every arm at every point of its sweep, as often as it says.

An arm is a list of values for dotted paths, and so is a point of a sweep; they are put into the file as it
was read, one after the other, and what comes out is one concrete run. What is wrong with it is said in terms
of what the user wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ringlight.experiments.language.build import Builder, Concrete
from ringlight.experiments.language.file_checks import check_file
from ringlight.experiments.language.job_sources import source_of
from ringlight.experiments.language.model_keys import keys_of
from ringlight.experiments.language.overrides import (
    Override,
    Put,
    overrides_of_arms,
    overrides_of_points,
    under_override,
)
from ringlight.experiments.language.paths import AUTO, NEAR, nearest_of, put
from ringlight.experiments.language.plan import ChosenScale, RunPlan, Setting
from ringlight.experiments.language.sections import checked
from ringlight.experiments.language.spec import FileSpec, RunSpec
from ringlight.experiments.language.text import (
    SCENARIO_BYTES,
    ScenarioError,
    parse_yaml,
    read_sets,
    read_text,
    resolved,
)
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.link_effects import delay_s

#: Gives one scale for runs that leave it to the machine, which are at their real rates and sizes.
ScaleFor = Callable[[Sequence[RunPlan]], ChosenScale]
#: The job of a file that has none: on all GPUs.
ONLY_JOB = {"train": {"ranks": "all"}}
#: Most points of a sweep: a mistyped range must not fill the memory.
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Experiment:
    """A checked scenario file. ``spec``: what it says of all its runs; ``text``: the file; ``files``: what
    workloads were read from, by the names that lead there from the file's directory. ``sets``: what was put
    in place of the file's, each ``PATH=VALUE``. ``scale``: what runs got that leave it to the machine
    (``scale: auto``); None where none does. ``unread``: by arm the runs that are left out, of an arm of which
    one point was asked for (``most_gpus`` of :func:`load`)."""

    path: str
    text: str
    spec: FileSpec
    plans: tuple[RunPlan, ...]
    files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    scale: ChosenScale | None = None
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms in the order of the file."""
        return tuple(self.titles)

    def plans_of(
        self, arms: Collection[str] = (), points: Collection[str] = ()
    ) -> list[RunPlan]:
        """Return the runs of some arms, at some points (``RunPlan.point_name``); all by default.

        Raises ScenarioError, naming the known ones, for an unknown arm or point.
        """
        for arm in arms:
            if arm not in self.arms:
                raise ScenarioError(
                    f"{self.path}: there is no arm {arm}; there are {', '.join(self.arms)}"
                )
        plans = [plan for plan in self.plans if not arms or plan.arm in arms]
        names = {plan.point_name for plan in plans}
        for point in points:
            if point not in names:
                elsewhere = arms and any(
                    plan.point_name == point for plan in self.plans
                )
                of = f" of arm {', '.join(arms)}" if elsewhere else ""
                raise ScenarioError(
                    f"{self.path}: there is no point {point}{of}; there are {places(plans)}"
                )
        return [plan for plan in plans if not points or plan.point_name in points]

    def one_setting(self, arm: str | None = None, point: str | None = None) -> Setting:
        """Return the setting of an arm, of a point, or the only one. Raises ScenarioError naming those to
        choose from.
        """
        plans = self.plans_of([arm] if arm else [], [point] if point else [])
        settings: dict[int, RunPlan] = {}
        for plan in plans:
            settings.setdefault(id(plan.setting), plan)
        if len(settings) == 1:
            return plans[0].setting
        of_arms = {
            plan.arm: {id(p.setting) for p in plans if p.arm == plan.arm}
            for plan in plans
        }
        if all(len(identities) == 1 for identities in of_arms.values()):
            raise ScenarioError(
                f"{self.path}: it has several fabrics; name one by its arm with --arm: {', '.join(of_arms)}"
            )
        raise ScenarioError(
            f"{self.path}: its sweep has {len(settings)} fabrics; choose one with --point, or say with "
            f"--set PATH=VALUE what is not to be swept; there are {places(list(settings.values()))}"
        )

    @property
    def directory(self) -> Path:
        """Folder to which the file's paths are relative."""
        return Path(self.path).parent

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Return the title of each arm in tables."""
        return {plan.arm: plan.title for plan in self.plans}


def places(plans: Sequence[RunPlan], most: int = 12) -> str:
    """Return points of some runs with their values, as one line; of more than ``most`` the first ones and the
    last.
    """
    names = list(dict.fromkeys(plan.place for plan in plans))
    if len(names) > most:
        names = [*names[: most - 2], f"… ({len(names)} in all)", names[-1]]
    return ", ".join(names)


def load(
    path: str | Path,
    *,
    repeat: int | None = None,
    sets: Sequence[str] = (),
    metrics: Mapping[str, str] | None = None,
    parts: Callable[[], Collection[str]] | None = None,
    scale_for: ScaleFor | None = None,
    auto: bool = False,
    most_gpus: float = math.inf,
) -> Experiment:
    """Return the experiment in a YAML file. Raises ScenarioError, one line naming file and key.

    ``repeat``: in place of the file's. ``sets``: each ``PATH=VALUE``, in place of the value that the file,
    its arms and its sweeps have there. ``metrics``: of results, with their units, and ``parts``: of a report,
    to check the file's references to them. ``scale_for``: chooses a scale if the file leaves it to the
    machine; without ``scale_for`` such a file is refused. ``auto``: leave the scale to the machine if the
    file states none. ``most_gpus``: of an arm with a larger job only the first point is read, the others are
    counted.
    """
    text = read_text(path, SCENARIO_BYTES)
    return parse(
        text,
        str(path),
        repeat=repeat,
        sets=sets,
        metrics=metrics,
        parts=parts,
        scale_for=scale_for,
        auto=auto,
        most_gpus=most_gpus,
    )


def parse(
    text: str,
    path: str,
    *,
    repeat: int | None = None,
    sets: Sequence[str] = (),
    metrics: Mapping[str, str] | None = None,
    parts: Callable[[], Collection[str]] | None = None,
    scale_for: ScaleFor | None = None,
    auto: bool = False,
    most_gpus: float = math.inf,
) -> Experiment:
    """Return the experiment in a text, like :func:`load`. ``path``: name of the text in errors. Raises
    ScenarioError.
    """
    raw = parse_yaml(text, path)
    try:
        values = read_sets(sets)
        if is_only_fabric(raw):
            raw = {"name": _name_of(path), **raw}
        raw = with_sets(raw, values)
        spec = _file_spec(raw)
        if auto and not _says_of_scale(raw, spec, values):
            raw["scale"] = AUTO
        builder, scale = Builder(Path(path).parent), None
        plans, unread = _plans(
            raw, spec, repeat or spec.repeat, builder, values, most_gpus
        )
        if builder.auto:
            if scale_for is None:
                raise ValueError(
                    "scale: auto: nothing here knows the machine that is to choose it"
                )
            scale = scale_for(
                [plan for plan in plans if plan.point_name in builder.auto]
            )
            builder = Builder(Path(path).parent, scale.scale)
            plans, unread = _plans(
                raw, spec, repeat or spec.repeat, builder, values, most_gpus
            )
        jobs = {plan.arm: [job.name for job in plan.jobs] for plan in plans}
        check_file(spec, list(jobs), jobs, metrics, parts)
    except ValueError as error:
        raise ScenarioError(f"{path}: {_as_written(str(error), raw)}") from None
    files = (file.relative_to(Path(path).parent).as_posix() for file in builder.files)
    return Experiment(path, text, spec, plans, tuple(files), tuple(sets), scale, unread)


def is_only_fabric(raw: Mapping[str, Any], sets: Collection[str] = ()) -> bool:
    """Return whether a file has no jobs, so that it can be built and not run."""
    arms = raw.get("arms")
    changes = arms.values() if isinstance(arms, Mapping) else ()
    paths = [
        *raw,
        *sets,
        *(path for arm in changes if isinstance(arm, Mapping) for path in arm),
    ]
    return not {"jobs", "training"} & set(map(_section_of, map(str, paths)))


def _name_of(path: str) -> str:
    """Return a name for a file that has none, made from its file name."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-")[:40]
    return name if name[:1].isalpha() else f"fabric-{name}"[:40].rstrip("-")


def _says_of_scale(
    raw: Mapping[str, Any], spec: FileSpec, sets: Mapping[str, Any]
) -> bool:
    """Return whether a file states a scale, or has a source of jobs, which may need none."""
    paths = [*sets, *(path for arm in spec.arms.values() for path in arm)]
    paths += [path for sweep in spec.sweep for path in sweep.over]
    stated = "scale" in raw or "scale" in map(_section_of, paths)
    return stated or source_of(raw.get("jobs")) is not None


def with_sets(raw: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content with these values (``read_sets``) put in, except in its arms and sweeps.

    A path that exists in the file's arms alone changes nothing here.
    """
    for path, value in sets.items():
        with suppress(ValueError):
            raw = put(raw, path, value)
    return dict(raw)


def _file_spec(raw: Mapping[str, Any]) -> FileSpec:
    known = tuple(dict.fromkeys((*keys_of(FileSpec), *keys_of(RunSpec))))
    for key in raw:
        if key not in known:
            near = (
                nearest_of(str(key), known, NEAR) or f"; there are {', '.join(known)}"
            )
            raise ValueError(f"{key}: unknown key{near}")
    parameters = raw.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"parameters: should be a mapping, not {parameters!r:.60}")
    sections = {key: value for key, value in raw.items() if key in keys_of(FileSpec)}
    if "sweep" in sections:
        sections["sweep"] = _sweeps(sections["sweep"], parameters)
    # Arms and points are put into the file before its references are followed.
    later = ("parameters", "arms", "sweep")
    value = {
        key: v if key in later else resolved(v, key, parameters)
        for key, v in sections.items()
    }
    spec: FileSpec = checked(FileSpec, value, sections, parameters)
    return spec


def _sweeps(written: Any, parameters: Mapping[str, Any]) -> Any:
    """A list of sweeps, whichever way it is written; a list of values may be a parameter's."""
    if isinstance(written, Mapping) and "over" not in written:
        written = {"over": written}
    listed = [written] if isinstance(written, Mapping) else written
    if not isinstance(listed, list):
        return listed
    return [
        {
            **sweep,
            "over": {
                path: resolved(values, f"sweep.{path}", parameters)
                for path, values in sweep["over"].items()
            },
        }
        if isinstance(sweep, Mapping) and isinstance(sweep.get("over"), Mapping)
        else sweep
        for sweep in listed
    ]


def _plans(
    raw: Mapping[str, Any],
    spec: FileSpec,
    repeat: int,
    builder: Builder,
    sets: Mapping[str, Any],
    most_gpus: float,
) -> tuple[tuple[RunPlan, ...], dict[str, int]]:
    """The plans of a file, and how many runs are left out of arms with a job of more than ``most_gpus``."""
    if raw.get("jobs") is None:
        raw = {**raw, "jobs": None if is_only_fabric(raw, sets) else ONLY_JOB}
    builder.check_fabrics(raw)
    arms = overrides_of_arms(spec)
    for number, sweep in enumerate(spec.sweep):
        count = math.prod(len(values) for values in sweep.over.values())
        if count > MOST_POINTS:
            raise ValueError(
                f"sweep[{number}].over: {count} points; at most {MOST_POINTS}"
            )
        for arm in sweep.arms or ():
            if arm not in arms:
                raise ValueError(
                    f"sweep[{number}].arms: there is no arm {arm}; there are {', '.join(arms)}"
                )
    plans: list[RunPlan] = []
    unread: dict[str, int] = {}
    put_once = Put(raw)
    last = [Override(path, value, f"--set {path}") for path, value in sets.items()]
    for arm, overrides in arms.items():
        points = overrides_of_points(spec, arm, sets)
        for number, point in enumerate(points, start=1):
            name = arm if len(points) == 1 and not point else f"{arm}-{number}"
            plans.append(
                _plan(builder, put_once, spec, arm, name, [*overrides, *point, *last])
            )
            if number < len(points) and any(
                job.gpus > most_gpus for job in plans[-1].jobs
            ):
                unread[arm] = (len(points) - 1) * repeat
                break
    names: dict[str, str] = {}
    for plan in plans:
        if plan.name in names:
            other = names[plan.name] if plan.arm == plan.name else plan.arm
            raise ValueError(f"arms.{plan.name}: a point of arm {other} has that name")
        names[plan.name] = plan.arm
    plans = _with_one_setting_each(plans)
    repeated = (
        plan
        if number == 1
        else replace(plan, name=f"{plan.name}-r{number}", repeat=number)
        for number in range(1, repeat + 1)
        for plan in plans
    )
    return tuple(repeated), unread


def _plan(
    builder: Builder,
    put_once: Put,
    spec: FileSpec,
    arm: str,
    name: str,
    overrides: Sequence[Override],
) -> RunPlan:
    changed = put_once(overrides)
    point = {
        override.path: override.value for override in overrides if override.of_point
    }
    arm_keys = spec.arms.get(arm, {})
    title = str(arm_keys.get("title", arm))
    try:
        plan = builder.plan(Concrete(arm, title, point, changed), name)
        # An arm that is nothing but a fabric is called as that is.
        return (
            replace(plan, title=plan.setting.title)
            if arm_keys.keys() == {"fabric"}
            else plan
        )
    except ValueError as error:
        problem = str(error)
    try:
        builder.plan(Concrete(arm, title, {}, put_once([])), name)
    except ValueError as error:
        if str(error) == problem and not _varies(problem, spec):
            raise  # The file's own problem, and no arm's.
    raise ValueError(under_override(problem, overrides, spec, arm, point))


def _varies(problem: str, spec: FileSpec) -> bool:
    """Return whether arms or points change anything in the section that a problem is in."""
    paths = [*(path for arm in spec.arms.values() for path in arm)]
    paths += [path for sweep in spec.sweep for path in sweep.over]
    return _section_of(problem.partition(":")[0]) in map(_section_of, paths)


def _section_of(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _with_one_setting_each(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """One object for each setting, which says what some run of it does to O-NICs and links."""
    settings_by_id = {id(plan.setting): plan.setting for plan in plans}
    disturbed = {id(plan.setting) for plan in plans if _disturbs(plan)}
    delayed = {
        id(plan.setting)
        for plan in plans
        if any(delay_s(event.effects) for event in plan.events)
    }
    settings = {
        number: replace(
            setting, onic_faults=number in disturbed, delays=number in delayed
        )
        for number, setting in settings_by_id.items()
    }
    return [replace(plan, setting=settings[id(plan.setting)]) for plan in plans]


def _disturbs(plan: RunPlan) -> bool:
    """Return whether a run gives the O-NICs' agents settings that differ from those with which the lab was
    built.
    """
    setting = plan.setting
    if not setting.fabric.agents:
        return False
    built = {
        gpu: setting.fabric.onics[gpu].tuning_s * setting.scale.time
        for gpu in plan.tuning_s
    }
    faults = plan.control != ControlFaults() or any(
        event.do == "disturb" for event in plan.events
    )
    return faults or built != plan.tuning_s


def _as_written(problem: str, raw: Mapping[str, Any]) -> str:
    """The keys of lists of which the file has only one entry, written without a list."""
    for key, inner in (("sweep", "over"), ("compare", "")):
        written = raw.get(key)
        if isinstance(written, Mapping):
            first = (
                f"{key}[0].{inner}" if inner and inner not in written else f"{key}[0]"
            )
            if problem.startswith(first):
                return problem.replace(first, key, 1)
    return problem

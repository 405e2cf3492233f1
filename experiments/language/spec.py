"""Strict forms of the sections of a scenario file.

``RunSpec`` makes up one run, which arms and sweeps may change. ``FileSpec`` has the keys that are the same
for all runs. Names that refer to other entries are checked elsewhere (``checks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    create_model,
    model_validator,
)

from ringlight.experiments.language.job_keys import Factor, JobKeys, Words, listed
from ringlight.experiments.language.link_events import DO, LinkEventKeys
from ringlight.experiments.language.plan import OnLoss, Scale, Tcp
from ringlight.experiments.language.profiles import compute_seconds
from ringlight.experiments.language.targets import parse_target
from ringlight.experiments.language.workloads import WorkloadSpec
from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.guests import guest_kinds
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.units import parse_rate, parse_size, parse_time
from ringlight.fabric.values import Duration, Name, Rate, Size, Strict
from ringlight.workloads.job_settings import Training

ParameterName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
#: Name of an experiment, an arm or an event.
LongName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]


@dataclass(frozen=True)
class Names:
    """Marks a key whose value, values or keys are names of other entries: arms, metrics or swept paths."""

    what: str


ArmName = Annotated[str, Names("arm")]
Metric = Annotated[Words, Names("metric")]
Metrics = Annotated[tuple[Words, ...], BeforeValidator(listed), Names("metric")]
Arms = Annotated[
    tuple[str, ...], BeforeValidator(listed), Field(min_length=1), Names("arm")
]
SweptPath = Annotated[str, Names("swept path")]
SweptPaths = Annotated[
    tuple[str, ...], BeforeValidator(listed), Field(min_length=1), Names("swept path")
]
#: Values of swept paths, one list for each.
Places = Annotated[
    dict[str, Annotated[list[Any], Field(min_length=1)]], Names("swept path")
]
Share = Annotated[float, Field(ge=0, le=1)]


def _no_file(value: object) -> object:
    if isinstance(value, Mapping):
        raise ValueError(
            "an algorithm of a file is a job's workload: workload: {collective: {file: FILE}, size: SIZE}"
        )
    return value


def _known_collective(name: str) -> str:
    return str(parse_collective(name))


#: Name of an all-reduce; for which numbers of ranks it can be made shows with the job.
Collective = Annotated[
    str, BeforeValidator(_no_file), AfterValidator(_known_collective)
]


class ParameterSpec(Strict):
    """A named setting, where it comes from (``source``) and the reason for it (``why``).

    ``fitted_to``: the published figures, each ``ARM.METRIC``, from which the value was derived; agreement
    with these is a fit.
    """

    value: str | int | float | tuple[Any, ...]
    source: Literal["paper", "derived", "assumed"]
    why: Words
    fitted_to: tuple[str, ...] = ()


class TrainingSpec(Strict):
    """Training of a job. ``batch`` is samples per GPU and iteration.

    GPU time of an iteration: ``gpu``, a column of the table of GPU times, or ``compute``, the time itself;
    without any, a job is nothing but its all-reduces. ``synchronised``: no rank begins a step of one before
    all have ended the step before, as always on a ring of wavelengths. How long: ``samples``, a data set that
    a job goes through once, whatever its size, or ``iterations``. ``gradient``: what is all-reduced, in place
    of the model's.
    """

    model: Literal["vgg16", "resnet50"]
    gpu: str | None = None
    compute: Duration | None = None
    batch: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)] | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    gradient: Size | None = None
    collective: Collective = "ring"
    synchronised: bool = False
    seed: int = 7
    learning_rate: Annotated[float, Field(gt=0)] = Training.learning_rate

    @model_validator(mode="after")
    def _one_of_each(self) -> TrainingSpec:
        if (self.gpu is None) == (self.compute is None):
            raise ValueError(
                "give either gpu (a column of the table of GPU times) or compute (a time)"
            )
        if (self.samples is None) == (self.iterations is None):
            raise ValueError("give either samples (of the data set) or iterations")
        return self

    @property
    def compute_s(self) -> float:
        """GPU seconds of one iteration, not scaled. Raises ValueError as :func:`compute_seconds`."""
        if self.compute is not None:
            return self.compute
        assert self.gpu is not None
        return compute_seconds(self.model, self.gpu, self.batch)


class LinkTestSpec(Strict):
    """``duration``: how long each link is filled before the runs, in emulated time."""

    duration: Annotated[Duration, Field(gt=0)] = 0.8


class CostsSpec(Strict):
    """Costs that a simulation counts of each step in addition to its transfers, and an emulation has by
    nature.

    ``latency`` before a transfer's first byte counts (by default the plane's), ``segment`` of a ring that its
    light passes, ``addition``: the rate at which a rank adds what it received.
    """

    latency: Duration | None = None
    segment: Duration = 0.0
    addition: Rate | None = None


class ControlSpec(Strict):
    """Faults of the control network between O-NICs' agents: ``delay`` added to every message, shares that
    are lost, sent twice and held back."""

    delay: Duration = 0.0
    loss: Share = 0.0
    duplicate: Share = 0.0
    reorder: Share = 0.0


def _with_guests() -> type[JobKeys]:
    """Return a job with the keys of all kinds of guests."""
    kinds = tuple(kind.job() for kind in guest_kinds().values())
    return create_model("JobSpec", __base__=kinds or JobKeys)


if TYPE_CHECKING:
    JobSpec = JobKeys
else:
    JobSpec = _with_guests()


class WhenSpec(Strict):
    """One of: ``start``, ``at``, ``job`` with ``iteration``, ``granted``, ``started``, ``ended``,
    ``after``."""

    start: bool = False
    at: Duration | None = None
    job: Name | None = None
    iteration: Annotated[int, Field(ge=1)] | None = None
    granted: Name | None = None
    started: Name | None = None
    ended: Name | None = None
    after: str | None = None

    @model_validator(mode="after")
    def _one(self) -> WhenSpec:
        if (self.job is None) != (self.iteration is None):
            raise ValueError("job and iteration go together")
        given = [
            self.start or None,
            self.at,
            self.job,
            self.granted,
            self.started,
            self.ended,
            self.after,
        ]
        if sum(value is not None for value in given) != 1:
            raise ValueError(
                "give one of start, at, job with iteration, granted, started, ended, after"
            )
        return self


class EventSpec(LinkEventKeys):
    """Something that is made to happen; see docs/experiments.md for its keys."""

    name: LongName | None = None
    when: Annotated[
        WhenSpec,
        BeforeValidator(lambda value: {"start": True} if value == "start" else value),
    ]
    do: Literal[DO]  # type: ignore[valid-type]
    target: Annotated[Any, AfterValidator(parse_target)] = None
    back_after: Duration = 0.0
    jobs: tuple[Name, ...] = ()
    then: OnLoss | None = None
    circuits: tuple[tuple[str, str], ...] = ()
    control: ControlSpec | None = None


class TitledFabricSpec(FabricSpec):
    """A fabric and what tables call it."""

    title: Words | None = None


class RunSpec(Strict):
    """Sections that make up one run.

    ``fabric``: a fabric, or the name of one of ``fabrics``. Likewise a job's workload may be the name of one
    of ``workloads``.
    """

    parameters: dict[ParameterName, ParameterSpec] = Field(default_factory=dict)
    scale: Scale = Scale()
    fabric: TitledFabricSpec | None = None
    fabrics: dict[Name, TitledFabricSpec] = Field(default_factory=dict)
    training: TrainingSpec | None = None
    workloads: dict[LongName, WorkloadSpec] = Field(default_factory=dict)
    tcp: Tcp = Tcp()
    link_test: LinkTestSpec = LinkTestSpec()
    control: ControlSpec = ControlSpec()
    costs: CostsSpec = CostsSpec()
    jobs: Annotated[dict[Name, JobSpec], Field(min_length=1)]
    events: tuple[EventSpec, ...] = ()


class PaperSpec(Strict):
    """The paper that an experiment is after: all that its pages say about it. Without one they say nothing.

    ``citation``: as the pages' foot has it. ``model``: a paper of an extension, whose closed forms stand
    beside the runs' figures. ``says``: sentences by the part of the page that shows them.
    ``limits``: what cannot be claimed about the paper, each with the reason.
    """

    citation: Words
    model: str | None = None
    says: dict[str, Words] = Field(default_factory=dict)
    limits: dict[str, Words] = Field(default_factory=dict)


class CompareSpec(Strict):
    """``arms`` against ``baseline`` (all others without it): ``metrics`` of ``job`` (without it, of all).

    ``limit``: the most that the first metric's ratio should be.
    """

    name: LongName | None = None
    title: Words | None = None
    baseline: ArmName
    arms: Arms | None = None
    job: Name | None = None
    metrics: Annotated[Metrics, Field(min_length=1)] = ("jct", "iteration", "allreduce")
    limit: Factor | None = None


class Figure(Strict):
    """A published figure: ``value`` in ``unit`` (s, bit/s, bytes, % or 1)."""

    value: float
    unit: str = "1"


def parse_figure(value: object) -> object:
    """Return a number, or a text with a unit, as ``value`` and ``unit``. Raises ValueError naming the
    expected form.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(
            f"{value!r} is no figure; write a number, or one with its unit, such as '109 s'"
        )
    if not isinstance(value, str):
        return {"value": value}
    if value.endswith("%"):
        return {"value": value[:-1].strip(), "unit": "%"}
    for parse, unit in (
        (parse_time, "s"),
        (parse_rate, "bit/s"),
        (parse_size, "bytes"),
    ):
        try:
            return {"value": parse(value), "unit": unit}
        except ValueError:
            continue
    raise ValueError(
        f"{value!r} is no figure; write a number, or one with its unit, such as '109 s'"
    )


def quantity(value: object) -> tuple[float, str] | None:
    """Return a swept value as a number in SI units with its unit; None if it is not a number."""
    try:
        figure = parse_figure(value)
    except ValueError:
        return None
    assert isinstance(figure, dict)
    try:
        return float(figure["value"]), str(figure.get("unit", "1"))
    except ValueError:
        return None


Published = Annotated[Figure, BeforeValidator(parse_figure)]


class PublishedSpec(Strict):
    """A figure of a paper: of ``metric`` of ``job`` (where the metric has one) in ``arm``; with ``over``, its
    ratio to that of another arm. ``words``: the paper's own.

    ``at``: values of swept paths; the figure is the mean over them. ``over_at``: of the other arm, one for
    each, where its paths are others.

    ``standing``: what agreement is worth, with the reason (``why``), where no parameter is ``fitted_to`` it;
    ``free`` for a row that no parameter was derived from although one is fitted to others of its metric.
    """

    arm: ArmName
    metric: Metric
    job: Name | None = None
    over: ArmName | None = None
    at: Places = Field(default_factory=dict)
    over_at: Places = Field(default_factory=dict)
    value: Published | None = None
    range: tuple[Published, Published] | None = None
    words: Words | None = None
    source: Words | None = None
    standing: Literal["predicted", "identity", "range", "free"] | None = None
    why: Words | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> PublishedSpec:
        if (self.value is None) == (self.range is None):
            raise ValueError("give either value or range")
        if (self.standing is None) != (self.why is None):
            raise ValueError(
                "standing and why go together: what agreement is worth, and the reason"
            )
        return self


class SweepSpec(Strict):
    """``arms`` (all without it) at every combination of values of the dotted paths ``over``. ``metrics``: one
    with a ``title`` has a picture and a table of each; without them of the first that is compared."""

    title: Words | None = None
    metrics: Metrics = ()
    arms: Arms | None = None
    over: Annotated[Places, Field(min_length=1)]


class BreakEvenSpec(Strict):
    """Up to which set-up time ``metric`` of ``arm`` stays within ``tolerance`` times that of ``baseline``,
    by swept point."""

    arm: ArmName
    baseline: ArmName
    metric: Metric = "exchange"
    tolerance: Annotated[float, Field(gt=1)] = 1.05


class CrossoverSpec(Strict):
    """Up to which value of the path ``along`` each of ``arms`` has less of ``metric`` than the others."""

    arms: Arms
    along: SweptPath
    metric: Metric = "allreduce"


class SearchSpec(Strict):
    """The values of the paths ``along`` with the least ``metric``, for each arm and point of what else is
    swept."""

    along: SweptPaths
    metric: Metric = "jct"

    @property
    def made(self) -> tuple[str, str]:
        """The metrics that it adds: the least, and where that is."""
        return f"{self.metric}_best", f"{self.metric}_best_at"


class FileSpec(Strict):
    """Keys of a file that are the same for all its runs.

    ``arms``: dotted paths with their values, in addition to ``title`` and ``like``.
    """

    name: LongName
    description: str = ""
    parameters: dict[ParameterName, ParameterSpec] = Field(default_factory=dict)
    paper: PaperSpec | None = None
    arms: Annotated[dict[LongName, dict[str, Any]], Field(min_length=1)] = Field(
        default_factory=dict
    )
    sweep: Annotated[tuple[SweepSpec, ...], BeforeValidator(listed)] = ()
    repeat: Annotated[int, Field(ge=1, le=1000)] = 1
    compare: Annotated[tuple[CompareSpec, ...], BeforeValidator(listed)] = ()
    published: tuple[PublishedSpec, ...] = ()
    break_even: BreakEvenSpec | None = None
    crossover: CrossoverSpec | None = None
    search: SearchSpec | None = None

    def fitted_by(self, figure: PublishedSpec) -> tuple[str, ...]:
        """Return the names of the parameters that were derived from a published figure."""
        if figure.standing == "free":
            return ()
        key = f"{figure.arm}.{figure.metric}"
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if key in parameter.fitted_to
        )

"""A scenario file: checked strictly, so that every mistake is one line naming the file and the key.

A value anywhere outside ``parameters`` may be written ``$name``: it stands for ``parameters.name.value``,
and so each figure that an experiment rests on is written once, with where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from experiments.language import plan
from experiments.language.profiles import MODELS, compute_seconds, scaled_gradient_bytes
from experiments.language.text import (
    parse_yaml,
    problems_of,
    read_text,
    resolve_references,
)
from fabric.frames import Frames, choose_frames
from fabric.schedules import steps_named
from fabric.schema import Duration, FabricSpec, Name, Strict, build_fabric
from fabric.topology import Fabric, Port, optical_neighbour


class ParameterSpec(Strict):
    """A named setting, where it comes from (``source``) and the reason for it (``why``).

    ``fitted_to``: keys of the published figures from which the value was derived; agreement with these is
    a fit, with all other published figures a prediction.
    """

    value: str | int | float | tuple[Any, ...]
    source: Literal["paper", "derived", "assumed"]
    why: Annotated[str, Field(min_length=1)]
    fitted_to: tuple[str, ...] = ()


class ScaleSpec(Strict):
    """D and S: rates are divided by ``time * payload``, times multiplied by ``time``, gradients divided
    by ``payload``; the ratio of compute to communication stays."""

    time: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    payload: Annotated[float, Field(gt=0, le=1e9)] = 1.0


def _known_collective(name: str) -> str:
    steps_named(name, 2)
    return name


#: Name of an all-reduce; for which numbers of ranks it can be made shows with the job.
Collective = Annotated[str, AfterValidator(_known_collective)]


class TrainingSpec(Strict):
    """What every job trains. ``batch`` is samples per GPU and iteration.

    GPU time of an iteration: ``gpu``, a column of the table of GPU times, or ``compute``, the time itself.
    How long: ``samples``, a data set that a job goes through once, whatever its size, or ``iterations``.
    """

    model: Literal["vgg16", "resnet50"]
    gpu: str | None = None
    compute: Annotated[Duration, Field(gt=0)] | None = None
    batch: Annotated[int, Field(ge=1)]
    samples: Annotated[int, Field(ge=1)] | None = None
    iterations: Annotated[int, Field(ge=1)] | None = None
    collective: Collective = "ring"
    seed: int = 7
    learning_rate: Annotated[float, Field(gt=0)] = 0.05

    @model_validator(mode="after")
    def _one_of_each(self) -> TrainingSpec:
        if (self.gpu is None) == (self.compute is None):
            raise ValueError("give either gpu (a column of the table of GPU times) or compute (a time)")
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


class TcpSpec(Strict):
    """``rto_min``: least retransmission time-out of the workers' sockets."""

    congestion_control: Literal["reno", "cubic", "bbr"] = "reno"
    rto_min: Duration = 0.2


class PublishedGainSpec(Strict):
    """What a paper says in ``words`` of the watched job's GPU utilisation, and what ``gain`` (regrouped over
    fragmented, from and to) is read out of it."""

    words: Annotated[str, Field(min_length=1)]
    gain: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class PublishedSpec(Strict):
    """Completion times that a paper reports for a case, and what it says of utilisation."""

    fragmented: Duration
    regrouped: Duration
    utilisation: PublishedGainSpec | None = None


class CaseSpec(Strict):
    """Jobs that run at once, each a list of GPUs in rank order; ``watched`` is the one reported."""

    title: str
    watched: Name
    jobs: Annotated[dict[Name, tuple[Name, ...]], Field(min_length=1)]
    published: PublishedSpec | None = None


class VariantSpec(Strict):
    """A case run once more, fragmented, with other ranks for some jobs."""

    case: Name
    title: str
    jobs: dict[Name, tuple[Name, ...]]


class RatioSpec(Strict):
    """Two parameters, the second of which is varied as ``of`` over so much; ``between``: where to look for
    what would hit a published figure. ``called``: in words."""

    called: Annotated[str, Field(min_length=1)]
    of: str
    to: str
    values: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    between: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class SensitivitySpec(Strict):
    """What ``ringlight sensitivity`` varies: a ratio of two rates, single parameters, and jobs' GPUs.

    ``slower``: by GPU type, the factor by which its computing takes longer or shorter.
    """

    ratio: RatioSpec | None = None
    parameters: dict[str, tuple[str | int | float, ...]] = Field(default_factory=dict)
    jobs: dict[Name, VariantSpec] = Field(default_factory=dict)
    slower: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)


class LiveSpec(Strict):
    """A case in which the controller regroups while the jobs train, once the watched job has done
    ``after_iterations``. Workers send each other a UDP beacon every ``beacon``."""

    case: Name
    after_iterations: Annotated[int, Field(ge=1)]
    beacon: Duration = 0.005


class LinkTestSpec(Strict):
    """``duration``: how long each link is filled before the runs, in emulated time."""

    duration: Annotated[Duration, Field(gt=0)] = 0.8


class PaperSpec(Strict):
    """The paper that a scenario is after: all that its pages say about it. Without one they say nothing.

    ``citation``: as the pages' foot has it. ``says``: sentences by the part of the page that shows them.
    ``limits``: what cannot be claimed about the paper, each with the reason.
    """

    citation: Annotated[str, Field(min_length=1)]
    says: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    limits: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)


#: Parts of a regrouping's page that may say something about a paper.
PARTS = ("completion", "series", "utilisation")


def check_paper(paper: PaperSpec | None, parts: Iterable[str], published: Iterable[str]) -> None:
    """Raises ValueError for a part that the page does not have, and for published figures without a paper.

    ``published``: the keys of such figures in the file.
    """
    for key in published:
        if paper is None:
            raise ValueError(f"{key}: of which paper? The section paper is missing")
    for part in paper.says if paper is not None else ():
        if part not in parts:
            raise ValueError(f"paper.says.{part}: the page has no such part; there are {', '.join(parts)}")


class CommonSpec(Strict):
    """What every kind of scenario says."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    description: str
    scale: ScaleSpec = ScaleSpec()
    parameters: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ParameterSpec] = Field(
        default_factory=dict
    )
    paper: PaperSpec | None = None
    training: TrainingSpec
    tcp: TcpSpec = TcpSpec()
    link_test: LinkTestSpec = LinkTestSpec()


class ScenarioSpec(CommonSpec):
    fabric: FabricSpec
    cases: Annotated[dict[Name, CaseSpec], Field(min_length=1)]
    variants: dict[Name, VariantSpec] = Field(default_factory=dict)
    live: LiveSpec | None = None
    sensitivity: SensitivitySpec | None = None


@dataclass(frozen=True)
class Document:
    """A scenario file: ``spec`` is its content with every ``$name`` replaced, ``text`` the file."""

    path: str
    text: str
    spec: CommonSpec

    @property
    def time_scale(self) -> float:
        """D: emulated seconds per real second."""
        return self.spec.scale.time

    @property
    def rate_scale(self) -> float:
        """D * S: real bits per second per emulated one."""
        return self.spec.scale.time * self.spec.scale.payload

    @property
    def compute_s(self) -> float:
        """Emulated seconds of GPU time in one iteration."""
        return self.spec.training.compute_s * self.time_scale

    @property
    def gradient_bytes(self) -> int:
        """Emulated bytes of one gradient, a multiple of 4."""
        return scaled_gradient_bytes(self.spec.training.model, self.spec.scale.payload)

    def iterations(self, world_size: int) -> int:
        """Iterations that ``world_size`` ranks do: as stated, or as many as go through the data once."""
        training = self.spec.training
        if training.iterations is not None:
            return training.iterations
        assert training.samples is not None
        return math.ceil(training.samples / (training.batch * world_size))


@dataclass(frozen=True)
class Setting(Document):
    """One fabric of a scenario and what is trained on it: all that a lab is built from.

    ``fabric`` is what the section describes, ``raw_fabric`` the section as written (units as strings) for
    the processes that read it. ``onic_faults``: the O-NICs' agents may be told to lose control messages.
    """

    fabric: Fabric
    raw_fabric: dict[str, Any]
    onic_faults: bool = False

    @cached_property
    def frames(self) -> Frames:
        """Frame size and queues as emulated. Raises ValueError naming a link that cannot be filled."""
        return choose_frames(self.fabric, self.time_scale, self.spec.scale.payload)

    @cached_property
    def lab_setting(self) -> plan.Setting:
        """What its lab is built from, as every experiment has it."""
        spec = self.spec
        return plan.Setting(
            name=spec.name,
            title=spec.name,
            fabric=self.fabric,
            section=self.raw_fabric,
            scale=plan.Scale(spec.scale.time, spec.scale.payload),
            tcp=plan.Tcp(spec.tcp.congestion_control, spec.tcp.rto_min),
            link_test_s=spec.link_test.duration,
            onic_faults=self.onic_faults,
        )


@dataclass(frozen=True)
class Scenario(Setting):
    """A checked scenario of the regrouping kind."""

    spec: ScenarioSpec


def load_scenario(path: str | Path) -> Scenario:
    """The scenario in a YAML file. Raises ScenarioError, one line naming file and key."""
    return parse_scenario(read_text(path), str(path))


def parse_scenario(text: str, path: str) -> Scenario:
    """As :func:`load_scenario`, from text; ``path`` is what errors call it."""
    raw = parse_yaml(text, path)
    with problems_of(path, raw):
        resolved = resolve_references(raw)
        spec = ScenarioSpec.model_validate(resolved)
        scenario = Scenario(path, text, spec, described("fabric", spec.fabric), resolved["fabric"])
        check_training(scenario)
        _check(scenario)
    return scenario


def described(where: str, spec: FabricSpec) -> Fabric:
    """The fabric that a section describes. Raises ValueError that begins with ``where``."""
    try:
        return build_fabric(spec)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def check_training(document: Document) -> None:
    """Raises ValueError naming the key of what is trained that cannot be."""
    spec = document.spec
    try:
        _ = document.compute_s
    except ValueError as error:
        raise ValueError(f"training.gpu: {error}") from None
    if document.gradient_bytes < 1024:
        raise ValueError(
            f"scale.payload: {spec.scale.payload:g} leaves {document.gradient_bytes} bytes of the "
            f"{MODELS[spec.training.model].gradient_bytes} byte gradient; at least 1024 are needed"
        )


def check_frames(where: str, setting: Setting) -> None:
    """Whether TCP can fill the links as emulated. Raises ValueError naming link and reason."""
    try:
        _ = setting.frames
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def _check(scenario: Scenario) -> None:
    """What pydantic cannot see: names that refer to other entries, sizes against the fabric."""
    spec = scenario.spec
    check_paper(
        spec.paper, PARTS, [f"cases.{name}.published" for name, c in spec.cases.items() if c.published]
    )
    check_frames("fabric", scenario)
    if spec.training.collective != "ring":
        raise ValueError("training.collective: a regrouping is planned and predicted for rings only")
    lit = {port.node for circuit in scenario.fabric.circuits for port in circuit}
    for name, case in spec.cases.items():
        _check_jobs(scenario.fabric, lit, f"cases.{name}.jobs", case.jobs)
        if case.watched not in case.jobs:
            raise ValueError(f"cases.{name}.watched: there is no job {case.watched} in this case")
    varied = {f"variants.{name}": variant for name, variant in spec.variants.items()}
    if spec.sensitivity is not None:
        varied |= {f"sensitivity.jobs.{name}": entry for name, entry in spec.sensitivity.jobs.items()}
    for key, variant in varied.items():
        _check_case(spec, f"{key}.case", variant.case)
        case = spec.cases[variant.case]
        for job in variant.jobs:
            if job not in case.jobs:
                raise ValueError(f"{key}.jobs.{job}: case {variant.case} has no job {job}")
        _check_jobs(scenario.fabric, lit, f"{key}.jobs", {**case.jobs, **variant.jobs})
    _check_fits(spec)
    if spec.sensitivity is not None:
        _check_sensitivity(scenario, spec.sensitivity)
    if spec.live is not None:
        _check_case(spec, "live.case", spec.live.case)
        case = spec.cases[spec.live.case]
        iterations = scenario.iterations(len(case.jobs[case.watched]))
        if spec.live.after_iterations >= iterations:
            raise ValueError(
                f"live.after_iterations: {spec.live.after_iterations}, but job {case.watched} "
                f"has only {iterations} iterations"
            )


def published_figures(spec: ScenarioSpec) -> tuple[str, ...]:
    """The keys of all published figures of a scenario."""
    return tuple(
        f"cases.{name}.published.{key}"
        for name, case in spec.cases.items()
        if case.published is not None
        for key in type(case.published).model_fields
        if getattr(case.published, key) is not None
    )


def standing(spec: ScenarioSpec, *figures: str) -> str:
    """``fitted``, ``predicted`` or ``free``: what agreement with published figures (keys) is worth.

    Fitted when parameters were derived from each of them, predicted when from not all, free when one of
    them is not published, so that there is nothing to agree with.
    """
    if not set(figures) <= set(published_figures(spec)):
        return "free"
    used = {key for parameter in spec.parameters.values() for key in parameter.fitted_to}
    return "fitted" if set(figures) <= used else "predicted"


def _check_fits(spec: ScenarioSpec) -> None:
    known = published_figures(spec)
    for name, parameter in spec.parameters.items():
        for key in parameter.fitted_to:
            if key not in known:
                raise ValueError(f"parameters.{name}.fitted_to: there is no published figure {key}")


def _check_sensitivity(scenario: Scenario, varied: SensitivitySpec) -> None:
    parameters = scenario.spec.parameters
    named = {f"sensitivity.parameters.{name}": name for name in varied.parameters}
    if varied.ratio is not None:
        named |= {"sensitivity.ratio.of": varied.ratio.of, "sensitivity.ratio.to": varied.ratio.to}
    for where, name in named.items():
        if name not in parameters:
            raise ValueError(f"{where}: there is no parameter {name}")
    kinds = {gpu.model for gpu in scenario.fabric.gpus.values()}
    for kind in varied.slower:
        if kind not in kinds:
            raise ValueError(
                f"sensitivity.slower: there is no GPU {kind}; there are {', '.join(sorted(kinds))}"
            )


def _check_case(spec: ScenarioSpec, where: str, case: str) -> None:
    if case not in spec.cases:
        raise ValueError(f"{where}: there is no case {case}; there are {', '.join(spec.cases)}")


def _check_jobs(fabric: Fabric, lit: set[str], where: str, jobs: Mapping[str, tuple[str, ...]]) -> None:
    holder: dict[str, str] = {}
    for job, ranks in jobs.items():
        key = f"{where}.{job}"
        if len(ranks) < 2:
            raise ValueError(f"{key}: {len(ranks)} ranks; a job needs at least 2 to exchange gradients")
        if len(ranks) > len(fabric.gpus):
            raise ValueError(f"{key}: {len(ranks)} ranks, but the fabric has {len(fabric.gpus)} GPUs")
        for gpu in ranks:
            if gpu not in fabric.gpus:
                raise ValueError(f"{key}: there is no GPU {gpu}")
            if gpu in holder:
                other = "twice in this job" if holder[gpu] == job else f"by job {holder[gpu]} too"
                raise ValueError(f"{key}: GPU {gpu} is used {other}")
            if gpu not in lit and optical_neighbour(fabric, Port(gpu, 0)) is not None:
                raise ValueError(f"{key}: GPU {gpu} has no circuit in fabric.circuits, so it is dark")
            holder[gpu] = job

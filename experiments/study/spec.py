"""The third kind of scenario: a study that only the simulator runs, of all-reduces on a ring of wavelengths.

A file of this kind has ``study``. It sweeps nodes, wavelengths, gradients and set-up times about one base
point and asks who is fastest where. Nothing of it is built, so thousands of nodes are as easy as nine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from experiments.language.spec import PaperSpec, ParameterSpec
from experiments.language.text import ScenarioError, parse_yaml, problems_of, read_text, resolve_references
from experiments.study.points import NO_COSTS, Costs, Crossover, Point, Run, Task, message_sizes
from experiments.study.systems import CHARGES, RINGS, SYSTEMS, WRHT, Place, check_leaf
from fabric import light
from fabric.schema import Duration, Name, Rate, Size, Strict

#: Most nodes and wavelengths; beyond, a point takes minutes and gigabytes.
MOST_NODES, MOST_WAVELENGTHS = 16384, 1024
Count = Annotated[int, Field(ge=1)]
Decibel = Annotated[float, Field(ge=0)]
Oversubscription = Annotated[float, Field(ge=1)]


class BaseSpec(Strict):
    """The point about which everything is swept, one thing at a time."""

    nodes: Count
    wavelengths: Count
    rate: Rate
    set_up: Duration
    gradient: Name


class MessagesSpec(Strict):
    """Sizes of message from ``least`` to ``most``, ``points`` of them in equal ratios."""

    least: Size
    most: Size
    points: Annotated[int, Field(ge=2, le=200)]


class ElectricalSpec(Strict):
    """A tree of two levels: ``leaf`` GPUs under each leaf switch, each at ``rate``; ``latency`` of a step.

    ``oversubscription``: what GPUs below a leaf could send over what its trunk carries; the first is used
    where nothing else is said.
    """

    rate: Rate
    leaf: Count
    oversubscription: Annotated[tuple[Oversubscription, ...], Field(min_length=1)]
    latency: Duration


class AdditionSpec(Strict):
    """``rate`` at which a node adds what it received; ``counted``: whether all runs count that time."""

    rate: Rate
    counted: bool = False


class LightSpec(Strict):
    """What light costs in each step besides the set-up: ``ends``, to be sent and received, and ``segment``,
    for every segment passed. Counted only in runs of their own."""

    ends: Duration
    segment: Duration


class LossSpec(Strict):
    """How far light gets: the budget is ``launch_dbm - sensitivity_dbm - margin_db`` less ``fixed_db``, and
    each of ``segment_db`` is one assumption of what passing a segment with its node's switch costs."""

    launch_dbm: float
    sensitivity_dbm: float
    margin_db: Decibel
    fixed_db: dict[str, Decibel] = Field(default_factory=dict)
    segment_db: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

    @property
    def budget_db(self) -> float:
        """What the segments may cost together."""
        spent = [self.margin_db, *self.fixed_db.values()]
        return light.received_dbm(self.launch_dbm, spent) - self.sensitivity_dbm

    def reach(self, segment_db: float) -> int:
        """Segments that light passes; 0 when it does not get through one."""
        return light.reach(self.budget_db, segment_db)


class PublishedFigureSpec(Strict):
    """``percent`` by which a paper says WRHT is faster than a system, taken to be ``taken_for``."""

    percent: Annotated[float, Field(gt=0, lt=100)]
    taken_for: str


class PublishedSpec(Strict):
    source: Annotated[str, Field(min_length=1)]
    figures: Annotated[tuple[PublishedFigureSpec, ...], Field(min_length=1)]
    nodes: Annotated[tuple[Count, ...], Field(min_length=1)]


class SweepsSpec(Strict):
    """Everything under ``study``. Gradients, rates and times are real ones; nothing is scaled.

    ``groups``: sizes of WRHT's groups to try at the base, besides the largest that the wavelengths allow.
    ``reach``: segments that a lightpath may pass, tried at the base.
    """

    systems: Annotated[tuple[str, ...], Field(min_length=2)]
    nodes: Annotated[tuple[Annotated[int, Field(ge=2, le=MOST_NODES)], ...], Field(min_length=1)]
    wavelengths: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_WAVELENGTHS)], ...], Field(min_length=1)]
    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]
    set_up: Annotated[tuple[Duration, ...], Field(min_length=1)]
    gradients: Annotated[dict[Name, Size], Field(min_length=1)]
    messages: MessagesSpec
    base: BaseSpec
    electrical: ElectricalSpec
    addition: AdditionSpec | None = None
    light: LightSpec | None = None
    groups: tuple[int, ...] = ()
    reach: tuple[int, ...] = ()
    loss: LossSpec | None = None
    published: PublishedSpec | None = None


#: Parts of a study's page that may say something about a paper.
PARTS = ("systems", "memory", "loss", "left_out", "published")


class StudySpec(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    description: str
    parameters: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ParameterSpec] = Field(
        default_factory=dict
    )
    paper: PaperSpec | None = None
    study: SweepsSpec


@dataclass(frozen=True)
class Study:
    """A checked scenario of this kind: ``spec`` is the file's content with every ``$name`` replaced."""

    path: str
    text: str
    spec: StudySpec

    @property
    def sweeps(self) -> SweepsSpec:
        return self.spec.study

    @property
    def base_bytes(self) -> int:
        """Bytes of the base's gradient."""
        return self.sweeps.gradients[self.sweeps.base.gradient]

    @property
    def base(self) -> Place:
        """The place of the base, of an optical system."""
        base = self.sweeps.base
        return Place(base.nodes, base.wavelengths, base.rate, leaf=self.sweeps.electrical.leaf)

    def place(self, system: str, place: Place, oversubscription: float | None = None) -> Place:
        """The place for a system: an electrical one has rate and oversubscription of its own."""
        if SYSTEMS[system].medium == "optical":
            return place
        electrical = self.sweeps.electrical
        factor = electrical.oversubscription[0] if oversubscription is None else oversubscription
        return replace(
            place, wavelengths=1, rate_bps=electrical.rate, reach=None, group=None, oversubscription=factor
        )

    @property
    def optical(self) -> list[str]:
        """The optical systems of the study."""
        return [name for name in self.sweeps.systems if SYSTEMS[name].medium == "optical"]

    @property
    def electrical(self) -> list[str]:
        return [name for name in self.sweeps.systems if SYSTEMS[name].medium == "electrical"]


def is_study(path: str | Path) -> bool:
    """Whether a file is a study. Raises ScenarioError when it cannot be read."""
    return "study" in parse_yaml(read_text(path), str(path))


def load_study(path: str | Path) -> Study:
    """The study in a YAML file. Raises ScenarioError, one line naming file and key."""
    return parse_study(read_text(path), str(path))


def parse_study(text: str, path: str) -> Study:
    """As :func:`load_study`, from text; ``path`` is what errors call it."""
    raw = parse_yaml(text, path)
    if "study" not in raw:
        raise ScenarioError(f"{path}: study: missing")
    with problems_of(path, raw):
        study = Study(path, text, StudySpec.model_validate(resolve_references(raw)))
        _check(study)
    return study


def _check(study: Study) -> None:
    """What pydantic cannot see. Raises ValueError beginning with the key."""
    sweeps = study.sweeps
    if sweeps.published and study.spec.paper is None:
        raise ValueError("study.published: of which paper? The section paper is missing")
    for part in study.spec.paper.says if study.spec.paper is not None else ():
        if part not in PARTS:
            raise ValueError(f"paper.says.{part}: the page has no such part; there are {', '.join(PARTS)}")
    for index, name in enumerate(sweeps.systems):
        _known(f"study.systems[{index}]", name)
        if name in sweeps.systems[:index]:
            raise ValueError(f"study.systems[{index}]: {name} is there twice")
    for name in ("wrht", "ring"):
        if name not in sweeps.systems:
            raise ValueError(f"study.systems: {name} is missing; the study compares the others with it")
    base = sweeps.base
    for key, value, among in (
        ("nodes", base.nodes, sweeps.nodes),
        ("wavelengths", base.wavelengths, sweeps.wavelengths),
        ("rate", base.rate, sweeps.rates),
        ("set_up", base.set_up, sweeps.set_up),
    ):
        if value not in among:
            swept = "rates" if key == "rate" else key
            raise ValueError(f"study.base.{key}: it is not among study.{swept}, which is swept about it")
    if base.gradient not in sweeps.gradients:
        known = ", ".join(sweeps.gradients)
        raise ValueError(f"study.base.gradient: there is no gradient {base.gradient}; there are {known}")
    if sweeps.messages.most <= sweeps.messages.least:
        raise ValueError("study.messages.most: it must be above study.messages.least")
    for index, group in enumerate(sweeps.groups):
        if group < 2:
            raise ValueError(f"study.groups[{index}]: groups of {group}: a group has at least 2 nodes")
        if group > 2 * base.wavelengths + 1:
            raise ValueError(
                f"study.groups[{index}]: groups of {group} need {group // 2} wavelengths in each direction; "
                f"the ring of study.base has {base.wavelengths}"
            )
    for index, reach in enumerate(sweeps.reach):
        if reach < 1:
            raise ValueError(f"study.reach[{index}]: a reach of {reach} segments joins nothing")
    if sweeps.loss is not None:
        for index, lost in enumerate(sweeps.loss.segment_db):
            if sweeps.loss.reach(lost) < 1:
                raise ValueError(
                    f"study.loss.segment_db[{index}]: {lost:g} dB in each segment leave a reach of 0 of a "
                    f"budget of {sweeps.loss.budget_db:g} dB"
                )
    published = sweeps.published
    for index, figure in enumerate(published.figures if published else ()):
        where = f"study.published.figures[{index}].taken_for"
        _known(where, figure.taken_for)
        if figure.taken_for not in sweeps.systems:
            raise ValueError(f"{where}: {figure.taken_for} is not among study.systems")
    for index, nodes in enumerate(published.nodes if published else ()):
        if nodes not in sweeps.nodes:
            raise ValueError(f"study.published.nodes[{index}]: {nodes} is not among study.nodes")
    if study.electrical:
        for nodes in sweeps.nodes:
            try:
                check_leaf(replace(study.base, nodes=nodes))
            except ValueError as error:
                raise ValueError(f"study.electrical.leaf: {error}") from None


def _known(where: str, system: str) -> None:
    if system not in SYSTEMS:
        raise ValueError(f"{where}: there is no system {system}; there are {', '.join(SYSTEMS)}")


# --- what is simulated ----------------------------------------------------------------------------


def usual_costs(study: Study) -> Costs:
    """What every run counts beside set-ups and transfers: local additions, where the study says so."""
    addition = study.sweeps.addition
    return Costs(add_bps=addition.rate) if addition is not None and addition.counted else NO_COSTS


def tasks(study: Study) -> list[Task]:
    """Everything to simulate, longest first as far as that is known beforehand."""
    found: dict[tuple[str, Place], dict[Run, None]] = {}
    for system, place, run in _runs(study):
        found.setdefault((system, place), {})[run] = None
    latency = study.sweeps.electrical.latency
    points: list[Task] = [
        Point(system, place, tuple(runs), latency) for (system, place), runs in found.items()
    ]
    # Those with the most lightpaths take longest; begun last, one of them would be waited for alone.
    points.sort(key=_weight, reverse=True)
    return [*points, *dict.fromkeys(_crossovers(study))]


def _weight(task: Task) -> float:
    assert isinstance(task, Point)
    lanes = task.place.wavelengths if SYSTEMS[task.system].striped else 1
    return task.place.nodes * lanes * len(task.runs)


def _runs(study: Study) -> Iterator[tuple[str, Place, Run]]:
    sweeps, base = study.sweeps, study.base
    usual = usual_costs(study)
    set_up = sweeps.base.set_up
    sizes = message_sizes(sweeps.messages.least, sweeps.messages.most, sweeps.messages.points)
    models = [float(size) for size in sweeps.gradients.values()]

    def both(sizes: Sequence[float], set_ups: Sequence[float]) -> Iterator[Run]:
        for size, time, charge in itertools.product(sizes, set_ups, CHARGES):
            yield Run(size, time, charge, usual)

    for system in sweeps.systems:
        optical = SYSTEMS[system].medium == "optical"
        here = study.place(system, base)
        # At the base: every size and model with every set-up.
        for run in both([*sizes, *models], sweeps.set_up if optical else (set_up,)):
            yield system, here, run
        for run in _extras(study):
            yield system, here, run
        # Along nodes and wavelengths: every model; off the axes the base's gradient alone.
        for nodes, wavelengths in itertools.product(sweeps.nodes, sweeps.wavelengths):
            place = study.place(system, replace(base, nodes=nodes, wavelengths=wavelengths))
            on_axis = nodes == base.nodes or wavelengths == base.wavelengths
            for run in both(models if on_axis else [float(study.base_bytes)], (set_up,)):
                yield system, place, run
        if not optical:
            for nodes, factor in itertools.product(sweeps.nodes, sweeps.electrical.oversubscription):
                place = study.place(system, replace(base, nodes=nodes), factor)
                for run in both(models, (set_up,)):
                    yield system, place, run
    for system in WRHT:
        if system in sweeps.systems:
            for reach in reaches(study):
                for run in both(models, (set_up,)):
                    yield system, replace(base, reach=reach), run
            for group in sweeps.groups:
                for run in both(models, (set_up,)):
                    yield system, replace(base, group=group), run


def reaches(study: Study) -> list[int]:
    """The reaches to try: those listed and those that follow from the budget of losses."""
    loss = study.sweeps.loss
    derived = [loss.reach(lost) for lost in loss.segment_db] if loss else []
    # Beyond half a turn nothing is too far.
    most = study.base.nodes
    return sorted({min(reach, most) for reach in (*study.sweeps.reach, *derived)})


def extras(study: Study) -> dict[str, Costs]:
    """What the model leaves out and runs of their own count, by what it is called."""
    sweeps, usual = study.sweeps, usual_costs(study)
    found = {}
    if sweeps.light is not None:
        found["the light's way"] = replace(usual, ends_s=sweeps.light.ends, segment_s=sweeps.light.segment)
    if sweeps.addition is not None and not sweeps.addition.counted:
        found["local additions"] = replace(usual, add_bps=sweeps.addition.rate)
    if sweeps.light is not None and "local additions" in found:
        found["both"] = replace(found["the light's way"], add_bps=found["local additions"].add_bps)
    return found


def _extras(study: Study) -> Iterator[Run]:
    for costs in extras(study).values():
        for size, charge in itertools.product(study.sweeps.gradients.values(), CHARGES):
            yield Run(float(size), study.sweeps.base.set_up, charge, costs)


def _crossovers(study: Study) -> Iterator[Crossover]:
    sweeps, base = study.sweeps, study.base
    latency, usual = sweeps.electrical.latency, usual_costs(study)
    set_up = sweeps.base.set_up
    for wrht in WRHT:
        if wrht not in sweeps.systems:
            continue
        # Against every optical system at the base, and against the rings along every axis.
        for other, charge in itertools.product(study.optical, CHARGES):
            if other not in WRHT:
                for costs in (usual, *extras(study).values()):
                    yield Crossover(wrht, other, base, set_up, charge, latency, costs)
        rings = [name for name in RINGS if name in sweeps.systems]
        for ring, charge in itertools.product(rings, CHARGES):
            places = [
                *(replace(base, nodes=n) for n in sweeps.nodes),
                *(replace(base, wavelengths=w) for w in sweeps.wavelengths),
                *(replace(base, rate_bps=rate) for rate in sweeps.rates),
            ]
            for place in places:
                yield Crossover(wrht, ring, place, set_up, charge, latency, usual)
            for time in sweeps.set_up:
                yield Crossover(wrht, ring, base, time, charge, latency, usual)

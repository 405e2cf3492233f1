"""The second kind of scenario: one training job, run on each of several fabrics and compared.

A file of this kind has ``fabrics`` in place of ``fabric``. Each fabric gets a lab of its own, one after the
other. On each, the job runs on all GPUs, in the order in which the fabric lists them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from experiments.language.profiles import ELEMENT_BYTES
from experiments.language.text import ScenarioError, parse_yaml, problems_of, read_text, resolve_references
from fabric.cost import steps_time
from fabric.grid import LightUse, Ways, light_use, ways_for
from fabric.schedules import steps_named
from fabric.schema import Duration, FabricSpec, Name, Size, Strict
from fabric.steps import Steps
from fabric.topology import Fabric, Grid, Port, WdmRing
from fabric.wdm import RingPlan, plan_ring, set_up_steps
from scenarios.prediction import all_reduce_time
from scenarios.schema import (
    Collective,
    CommonSpec,
    Document,
    Scenario,
    Setting,
    check_frames,
    check_paper,
    check_training,
    described,
    parse_scenario,
)

#: What ``kill`` may be besides a GPU whose O-NIC's agent is meant.
CONTROLLER = "controller"
#: Least bytes of a gradient: the model that is really trained has to fit (containers/worker/model.py).
LEAST_GRADIENT_BYTES = 9640

#: Parts of a comparison's page that may say something about a paper.
PARTS = ("training_time", "same_training", "collectives", "sweep")

Share = Annotated[float, Field(ge=0, le=1)]


class ComparedFabricSpec(FabricSpec):
    """A fabric and what it is called in tables. ``collective``: in place of the training's.

    ``jobs``: GPUs in rank order of each job that trains there at the same time as the others. The baseline's
    first is on every fabric, and is what is compared. Without it one job, on all GPUs.
    """

    title: Annotated[str, Field(min_length=1)]
    collective: Collective | None = None
    jobs: Annotated[dict[Name, tuple[Name, ...]], Field(min_length=1)] | None = None


#: Keys of :class:`ComparedFabricSpec` that describe no hardware.
_NO_HARDWARE = ("title", "collective", "jobs")
#: The compared job where the baseline names none.
ONLY_JOB = "train"


class PublishedComparisonSpec(Strict):
    """What a paper reports, by fabric: training times and accuracies (%)."""

    source: str
    training_time: dict[Name, Duration]
    accuracy_percent: dict[Name, float] = Field(default_factory=dict)


class ControlFaultsSpec(Strict):
    """Shares of the control messages between O-NICs that are lost, sent twice, and held back."""

    loss: Share = 0.0
    duplicate: Share = 0.0
    reorder: Share = 0.0


class TroubleSpec(Strict):
    """The job once more on ``fabric``, with something going wrong.

    ``kill``: ``controller``, or a GPU whose O-NIC's agent is meant; it gets SIGKILL once every rank has done
    ``after_iterations``. ``absence``: the controller is started again only after so long, in seconds of the
    emulation; an agent is started again by the testbed at once. ``control``: faults of the control network
    during the whole run. ``iterations``: of this run (without it, the training's).
    """

    title: Annotated[str, Field(min_length=1)]
    fabric: Name
    kill: Name | None = None
    after_iterations: Annotated[int, Field(ge=1)] = 1
    absence: Duration = 0.0
    iterations: Annotated[int, Field(ge=1)] | None = None
    control: ControlFaultsSpec = ControlFaultsSpec()


class SweepSpec(Strict):
    """Short jobs: on ``fabric`` for every combination of the lists, on the baseline for every gradient.

    ``control_delay``: added to every control message, so twice to a handshake. ``tuning``: of the lasers.
    ``gradient``: bytes to all-reduce. All are those of the real fabric. ``tolerance``: up to which slowdown
    of the all-reduce switching per flow pays. ``compute``: GPU time of an iteration, short: it only keeps the
    real gradient's computation out of the all-reduce.
    """

    fabric: Name
    tolerance: Annotated[float, Field(gt=1)] = 1.05
    iterations: Annotated[int, Field(ge=2)] = 6
    compute: Annotated[Duration, Field(gt=0)]
    control_delay: Annotated[tuple[Duration, ...], Field(min_length=1)]
    tuning: Annotated[tuple[Duration, ...], Field(min_length=1)]
    gradient: Annotated[tuple[Size, ...], Field(min_length=1)]


class ComparisonSpec(CommonSpec):
    """``baseline``: the fabric whose training time the others' are divided by. ``limit``: the most that this
    ratio should be."""

    fabrics: Annotated[dict[Name, ComparedFabricSpec], Field(min_length=2)]
    baseline: Name
    limit: Annotated[float, Field(gt=0)] | None = None
    published: PublishedComparisonSpec | None = None
    trouble: dict[Name, TroubleSpec] = Field(default_factory=dict)
    sweep: SweepSpec | None = None


@dataclass(frozen=True)
class Comparison(Document):
    """A checked scenario of this kind. ``settings``: what a lab is built from, by fabric, baseline first."""

    spec: ComparisonSpec
    settings: Mapping[str, Setting]

    @property
    def world_size(self) -> int:
        """Ranks of every job."""
        return len(self.ranks(self.spec.baseline))

    @property
    def job(self) -> str:
        """Name of the compared job, which runs on every fabric: the baseline's first."""
        return next(iter(self.spec.fabrics[self.spec.baseline].jobs or {ONLY_JOB: ()}))

    def jobs(self, fabric: str) -> dict[str, tuple[str, ...]]:
        """The jobs that train on a fabric at once: GPUs in rank order, the compared job first."""
        found = self.spec.fabrics[fabric].jobs or {self.job: tuple(self.settings[fabric].fabric.gpus)}
        return {name: found[name] for name in sorted(found, key=lambda name: name != self.job)}

    def ranks(self, fabric: str) -> tuple[str, ...]:
        """The compared job's GPUs on a fabric, in rank order."""
        return self.jobs(fabric)[self.job]

    def collective(self, fabric: str) -> str:
        """The all-reduce that the job uses on a fabric."""
        return self.spec.fabrics[fabric].collective or self.spec.training.collective

    def steps(self, fabric: str) -> Steps:
        """Its schedule."""
        return steps_named(self.collective(fabric), self.world_size)

    def ring_plan(self, fabric: str) -> RingPlan | None:
        """How a fabric's ring of wavelengths carries it; None where there is no ring."""
        found = self.settings[fabric].fabric
        ring = ring_of(found)
        return None if ring is None else plan_ring(found, ring, self.steps(fabric))

    def ways(self, fabric: str) -> Ways | None:
        """Which wavelengths of a fabric's grid lead from rank to rank, in all jobs; None without a grid."""
        grid = grid_of(self.settings[fabric].fabric)
        if grid is None:
            return None
        each = [ways_for(grid, ranks, self.steps(fabric)) for ranks in self.jobs(fabric).values()]
        return {node: peers for ways in each for node, peers in ways.items()}

    def light_use(self, fabric: str) -> LightUse | None:
        """What an all-reduce of each job asks of a grid's lasers and receivers; None without a grid."""
        ways = self.ways(fabric)
        if ways is None:
            return None
        uses = (light_use(ways, ranks, self.steps(fabric)) for ranks in self.jobs(fabric).values())
        return functools.reduce(operator.add, uses)

    def set_ups(self, fabric: str) -> int:
        """Steps of an all-reduce that wait once for light: on a grid all, on a ring those that change it."""
        if grid_of(self.settings[fabric].fabric) is not None:
            return self.steps(fabric).steps
        plan = self.ring_plan(fabric)
        return 0 if plan is None else sum(set_up_steps(plan))

    def all_reduce_s(self, fabric: str, gradient_bytes: float, set_up_s: float = 0.0) -> float:
        """Emulated seconds of an all-reduce by the model; ``set_up_s``: of each step that waits for light."""
        setting = self.settings[fabric]
        steps, found = self.steps(fabric), setting.fabric
        if grid_of(found) is None and ring_of(found) is None:
            scaled_bytes = gradient_bytes * setting.rate_scale
            transfers_s = steps_time(found, {}, self.ranks(fabric), steps, scaled_bytes)
        else:
            rate_bps = min(nic_rate_bps(setting, gpu) for gpu in found.gpus)
            lightpaths = ring_of(found) is not None
            transfers_s = all_reduce_time(steps, gradient_bytes, rate_bps, lightpaths=lightpaths)
        return transfers_s + self.set_ups(fabric) * set_up_s

    def expected_s(self, fabric: str, request: Mapping[str, Any], set_up_s: float = 0.0) -> float:
        """Emulated seconds that a job should take, by the model."""
        exchange_s = self.all_reduce_s(fabric, request["gradient_bytes"], set_up_s)
        return float(request["iterations"] * (request["compute_s"] + exchange_s))


def nic_rate_bps(setting: Setting, gpu: str) -> float:
    """Emulated bits per second of a GPU's slowest NIC port."""
    links = setting.fabric.link_at
    ports = setting.fabric.onics[gpu].ports if gpu in setting.fabric.onics else 1
    return min(links[Port(gpu, number)].rate_bps for number in range(ports)) / setting.rate_scale


def grid_of(fabric: Fabric) -> Grid | None:
    """The grid of a fabric that has one."""
    return next(iter(fabric.grids.values()), None)


def ring_of(fabric: Fabric) -> WdmRing | None:
    """The ring of a fabric that has one."""
    return next(iter(fabric.rings.values()), None)


def load(path: str | Path) -> Scenario | Comparison:
    """The scenario in a YAML file, of whichever kind. Raises ScenarioError, one line naming file and key."""
    return parse(read_text(path), str(path))


def parse(text: str, path: str) -> Scenario | Comparison:
    """As :func:`load`, from text; ``path`` is what errors call it."""
    raw = parse_yaml(text, path)
    if "fabrics" in raw:
        return parse_comparison(text, path)
    if "study" in raw:
        raise ScenarioError(f"{path}: a study is only simulated: ringlight simulate {path}")
    return parse_scenario(text, path)


def parse_comparison(text: str, path: str) -> Comparison:
    """Raises ScenarioError, one line naming the file and the key."""
    raw = parse_yaml(text, path)
    with problems_of(path, raw):
        resolved = resolve_references(raw)
        spec = ComparisonSpec.model_validate(resolved)
        settings = {}
        for name in sorted(spec.fabrics, key=lambda name: name != spec.baseline):
            written = resolved["fabrics"][name]
            section = {key: value for key, value in written.items() if key not in _NO_HARDWARE}
            fabric = described(f"fabrics.{name}", spec.fabrics[name])
            settings[name] = Setting(path, text, spec, fabric, section, _needs_faults(spec, name))
        comparison = Comparison(path, text, spec, settings)
        check_training(comparison)
        _check(comparison)
    return comparison


def _needs_faults(spec: ComparisonSpec, fabric: str) -> bool:
    """Whether a run on the fabric disturbs its control network."""
    swept = spec.sweep is not None and spec.sweep.fabric == fabric
    return swept or any(
        trouble.fabric == fabric and trouble.control != ControlFaultsSpec()
        for trouble in spec.trouble.values()
    )


def _check(comparison: Comparison) -> None:
    """Names that refer to other entries, and whether the job fits every fabric."""
    spec = comparison.spec
    check_paper(spec.paper, PARTS, ["published"] if spec.published else [])
    _known(comparison, "baseline", spec.baseline)
    for name in comparison.settings:
        _check_jobs(comparison, name)
    sizes = {name: len(comparison.ranks(name)) for name in comparison.settings}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in sizes.items())
        raise ValueError(f"fabrics: the job needs as many GPUs on each, but {said}")
    if comparison.world_size < 2:
        raise ValueError("fabrics: a job needs at least 2 GPUs to exchange gradients")
    if comparison.gradient_bytes < LEAST_GRADIENT_BYTES:
        raise ValueError(
            f"scale.payload: {spec.scale.payload:g} leaves {comparison.gradient_bytes} bytes of gradient; "
            f"the model that is trained needs {LEAST_GRADIENT_BYTES}"
        )
    for name in comparison.settings:
        _check_fabric(comparison, name)
    for key in ("training_time", "accuracy_percent"):
        for name in getattr(spec.published, key, ()):
            _known(comparison, f"published.{key}", name)
    for name, trouble in spec.trouble.items():
        _check_trouble(comparison, f"trouble.{name}", trouble)
    if spec.sweep is not None:
        _check_sweep(comparison, spec.sweep)


def _check_jobs(comparison: Comparison, name: str) -> None:
    """Whether a fabric's own jobs have GPUs of it, each its own, and are alike."""
    jobs = comparison.spec.fabrics[name].jobs
    if jobs is None:
        return
    fabric, where = comparison.settings[name].fabric, f"fabrics.{name}.jobs"
    if fabric.rings:
        raise ValueError(f"{where}: a ring of wavelengths carries one job, on all its nodes")
    user: dict[str, str] = {}
    compared = comparison.job
    if compared not in jobs:
        raise ValueError(f"{where}: job {compared}, which is compared, is not there")
    for job, gpus in jobs.items():
        if len(gpus) != len(jobs[compared]):
            raise ValueError(
                f"{where}.{job}: {len(gpus)} GPUs, but {compared} has {len(jobs[compared])}; jobs that run "
                "at once are alike"
            )
        for gpu in gpus:
            if gpu not in fabric.gpus:
                raise ValueError(f"{where}.{job}: there is no GPU {gpu}")
            if gpu in user:
                raise ValueError(f"{where}.{job}: GPU {gpu} is used by {user[gpu]} already")
            user[gpu] = job


def _check_fabric(comparison: Comparison, name: str) -> None:
    """Whether the job and its collective fit a fabric."""
    fabric, where = comparison.settings[name].fabric, f"fabrics.{name}"
    check_frames(where, comparison.settings[name])
    if fabric.circuits:
        raise ValueError(f"{where}.circuits: a compared fabric has none; its links are fixed")
    for kind in ("grids", "rings"):
        count = len(getattr(fabric, kind))
        if count > 1:
            raise ValueError(f"{where}.{kind}: {count} {kind}; the job runs on one")
    if fabric.grids and fabric.rings:
        raise ValueError(f"{where}: a grid and a ring; the job runs on one of them")
    grid, ring = grid_of(fabric), ring_of(fabric)
    own = comparison.spec.fabrics[name].collective is not None
    what = f"{where}.collective" if own else "training.collective"
    collective = comparison.collective(name)
    try:
        comparison.steps(name)
        if grid is not None:
            comparison.ways(name)
        elif ring is not None:
            comparison.ring_plan(name)
    except ValueError as error:
        raise ValueError(f"{what}: {collective} on fabric {name}: {error}") from None
    light = grid or ring
    for gpu in itertools.chain.from_iterable(comparison.jobs(name).values()):
        if light is not None and gpu not in light.nodes:
            raise ValueError(f"{where}.servers: GPU {gpu} is not on {light.name}; the job runs on all GPUs")
        if light is None and Port(gpu, 0) not in fabric.link_at:
            raise ValueError(f"{where}.links: GPU {gpu} is not plugged in")
    if light is None:
        try:
            comparison.all_reduce_s(name, 0.0)
        except ValueError as error:
            raise ValueError(f"{where}.links: {error}") from None


def _known(comparison: Comparison, where: str, name: str) -> Fabric:
    if name not in comparison.settings:
        raise ValueError(f"{where}: there is no fabric {name}; there are {', '.join(comparison.settings)}")
    return comparison.settings[name].fabric


def _agents(fabric: Fabric) -> set[str]:
    """GPUs whose O-NIC has a control agent: those of grids."""
    return {gpu for gpu, onic in fabric.onics.items() if onic.transmitters == "tunable"}


def _check_trouble(comparison: Comparison, where: str, trouble: TroubleSpec) -> None:
    fabric = _known(comparison, f"{where}.fabric", trouble.fabric)
    if trouble.kill not in (None, CONTROLLER) and trouble.kill not in _agents(fabric):
        raise ValueError(
            f"{where}.kill: {trouble.kill} is neither controller nor a GPU whose O-NIC has an agent"
        )
    if trouble.absence and trouble.kill != CONTROLLER:
        raise ValueError(f"{where}.absence: only the controller can be kept away")
    if trouble.control != ControlFaultsSpec() and not _agents(fabric):
        raise ValueError(f"{where}.control: fabric {trouble.fabric} has no O-NICs with agents")
    total = trouble.iterations or comparison.iterations(comparison.world_size)
    if trouble.kill is not None and trouble.after_iterations >= total:
        raise ValueError(f"{where}.after_iterations: {trouble.after_iterations}, but it does only {total}")


def _check_sweep(comparison: Comparison, sweep: SweepSpec) -> None:
    if not _agents(_known(comparison, "sweep.fabric", sweep.fabric)):
        raise ValueError(f"sweep.fabric: fabric {sweep.fabric} has no O-NICs with agents")
    if len(sweep.control_delay) * len(sweep.tuning) < 2:
        raise ValueError("sweep: one control_delay and one tuning; a line needs two different set-ups")
    if comparison.collective(sweep.fabric) != comparison.collective(comparison.spec.baseline):
        raise ValueError(f"sweep.fabric: {sweep.fabric} and the baseline use different collectives")
    for index, size in enumerate(sweep.gradient):
        if scaled(size, comparison) < LEAST_GRADIENT_BYTES:
            raise ValueError(
                f"sweep.gradient[{index}]: scale.payload leaves {scaled(size, comparison)} bytes; the model "
                f"that is trained needs {LEAST_GRADIENT_BYTES}"
            )


def scaled(size: int, document: Document) -> int:
    """Emulated bytes of a gradient of ``size`` bytes, a whole number of elements."""
    return max(1, round(size / document.spec.scale.payload / ELEMENT_BYTES)) * ELEMENT_BYTES


def setting_named(document: Scenario | Comparison, name: str | None) -> Setting:
    """The setting of one fabric of a scenario. Raises ScenarioError naming what there is."""
    if isinstance(document, Scenario):
        if name is not None:
            raise ScenarioError(f"{document.path}: it has one fabric, which has no name; leave --fabric out")
        return document
    if name is None or name not in document.settings:
        wrong = "it has several fabrics" if name is None else f"there is no fabric {name}"
        raise ScenarioError(
            f"{document.path}: {wrong}; name one with --fabric: {', '.join(document.settings)}"
        )
    return document.settings[name]


def jobs_of(comparison: Comparison, fabric: str, request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is asked of the controller for each job of a run; each after the first has a seed of its own.

    ``request``: keys of ``POST /v1/jobs`` besides name and ranks.
    """
    return {
        job: {"name": job, "ranks": list(gpus), **request, "seed": request["seed"] + number}
        for number, (job, gpus) in enumerate(comparison.jobs(fabric).items())
    }


def job_settings(comparison: Comparison, fabric: str) -> dict[str, Any]:
    """Keys of ``POST /v1/jobs`` on a fabric, besides name and ranks."""
    training = comparison.spec.training
    return {
        "workload": "train",
        "collective": comparison.collective(fabric),
        "gradient_bytes": comparison.gradient_bytes,
        "compute_s": comparison.compute_s,
        "iterations": comparison.iterations(comparison.world_size),
        "batch": training.batch,
        "seed": training.seed,
        "learning_rate": training.learning_rate,
    }

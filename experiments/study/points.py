"""What a study simulates: points, each one system at one place with its runs, and crossovers of two systems.

A point is a plain value and so is what it found, so that points can be computed in other processes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.study.systems import SYSTEMS, ClosedForm, Place, System
from fabric import wdm
from fabric.steps import Steps
from fabric.topology import Reconfigure
from fabric.trees import leaf_spine
from testbed.simulation.networks import PacketNetwork, RingNetwork
from testbed.simulation.phases import Phases, StepCost

#: Gradients between which a crossover is looked for, bytes.
LEAST_BYTES, MOST_BYTES = 1.0, 1e13


@dataclass(frozen=True)
class Costs:
    """What a step costs beside set-up and transfer.

    ``ends_s`` and ``segment_s``: seconds that light takes at its two ends, and for each segment that it
    passes, before its first byte. ``add_bps``: rate at which a rank adds what it received (bits per second;
    None: adding takes no time).
    """

    ends_s: float = 0.0
    segment_s: float = 0.0
    add_bps: float | None = None


NO_COSTS = Costs()


@dataclass(frozen=True)
class Run:
    """One all-reduce: of ``bytes``, with ``set_up_s`` charged as ``charge`` says."""

    bytes: float
    set_up_s: float
    charge: Reconfigure
    costs: Costs = NO_COSTS


@dataclass(frozen=True)
class Point:
    """A system at a place and what it is run with. ``latency_s``: of a step of an electrical system."""

    system: str
    place: Place
    runs: tuple[Run, ...]
    latency_s: float = 0.0


@dataclass(frozen=True)
class Crossover:
    """The gradient at which ``other`` becomes as fast as ``system``."""

    system: str
    other: str
    place: Place
    set_up_s: float
    charge: Reconfigure
    latency_s: float = 0.0
    costs: Costs = NO_COSTS


Task = Point | Crossover


@dataclass(frozen=True)
class _Prepared:
    """A system's schedule on its network; both are good for any run."""

    system: System
    place: Place
    steps: Steps
    phases: Callable[[float, float], Phases]
    latency_s: float

    def time_s(self, run: Run) -> float:
        """Simulated seconds."""
        optical = self.system.medium == "optical"
        # An electrical step has no light to set; it has the latency of its messages.
        cost = StepCost(
            run.set_up_s if optical else 0.0,
            run.charge if optical else "each-step",
            0.0 if run.costs.add_bps is None else 8 / run.costs.add_bps,
        )
        return self.simulated(run.costs).time(run.bytes, cost).total_s

    def simulated(self, costs: Costs) -> Phases:
        """Its phases where the light's way takes what ``costs`` says."""
        optical = self.system.medium == "optical"
        return self.phases(costs.ends_s, costs.segment_s) if optical else self.phases(self.latency_s, 0.0)

    @functools.cached_property
    def closed(self) -> ClosedForm:
        return self.system.closed(self.place)

    def closed_s(self, run: Run) -> float | None:
        """Seconds by the closed form; None for what it does not have."""
        form, rate = self.closed, self.place.rate_bps
        if self.system.medium == "electrical":
            return form.time_s(run.bytes, rate, self.latency_s, "each-step", run.costs.add_bps)
        if run.costs.ends_s or run.costs.segment_s:
            return None
        return form.time_s(run.bytes, rate, run.set_up_s, run.charge, run.costs.add_bps)


#: Tasks of one process often share their ring.
_wdm_ring = functools.lru_cache(maxsize=32)(wdm.wdm_ring)


def prepare(system: str, place: Place, latency_s: float = 0.0) -> _Prepared:
    """Raises ValueError for a system that does not fit the place."""
    chosen = SYSTEMS[system]
    steps = chosen.steps(place)
    if chosen.medium == "electrical":
        leaf = min(place.leaf, place.nodes)
        leaves = place.nodes // leaf
        tree = leaf_spine(leaves, leaf, place.rate_bps, oversubscription=place.oversubscription)
        fabric = tree.fabric()

        def packets(ends_s: float, segment_s: float) -> Phases:
            return Phases(PacketNetwork(fabric, latency_s=ends_s), tuple(fabric.gpus), steps)

        return _Prepared(chosen, place, steps, functools.cache(packets), latency_s)
    around, ring = _wdm_ring("n", place.nodes, place.wavelengths, place.rate_bps)

    def light(ends_s: float, segment_s: float) -> Phases:
        network = RingNetwork(around, ring, segment_s=segment_s, latency_s=ends_s)
        return Phases(network, ring.nodes, steps)

    return _Prepared(chosen, place, steps, functools.cache(light), latency_s)


#: For crossovers, which ask for the same few systems again and again.
_prepared = functools.lru_cache(maxsize=24)(prepare)


def work(task: Task) -> dict[str, Any]:
    """What a task found, as JSON could hold it; ``wall_s`` is how long it took.

    A point: ``runs`` with ``total_s`` (simulated) and ``closed_s`` (analytic) of each. A crossover:
    ``simulated_bytes`` and ``analytic_bytes``, None where one of the two is faster from ``LEAST_BYTES`` to
    ``MOST_BYTES``, which ``faster`` then names. Raises ValueError naming what does not fit.
    """
    began = time.perf_counter()
    found = _point(task) if isinstance(task, Point) else _crossover(task)
    return {**found, "wall_s": time.perf_counter() - began}


def _point(point: Point) -> dict[str, Any]:
    ready = prepare(point.system, point.place, point.latency_s)
    runs = [
        {**asdict(run), "total_s": ready.time_s(run), "closed_s": ready.closed_s(run)} for run in point.runs
    ]
    return {
        "kind": "point",
        "system": point.system,
        "place": asdict(point.place),
        "steps": ready.steps.steps,
        "wavelengths_used": ready.simulated(point.runs[0].costs).wavelengths,
        "closed": asdict(ready.closed),
        "runs": runs,
    }


def _crossover(task: Crossover) -> dict[str, Any]:
    one, other = (_prepared(name, task.place, task.latency_s) for name in (task.system, task.other))

    def behind(time_of: Callable[[_Prepared, Run], float | None], size: float) -> float:
        run = Run(size, task.set_up_s, task.charge, task.costs)
        a, b = time_of(one, run), time_of(other, run)
        assert a is not None
        assert b is not None
        return a - b

    simulated, faster = _sign_change(functools.partial(behind, _Prepared.time_s))
    analytic = None
    if not (task.costs.ends_s or task.costs.segment_s):
        analytic, _ = _sign_change(functools.partial(behind, _Prepared.closed_s))
    return {
        "kind": "crossover",
        "system": task.system,
        "other": task.other,
        "place": asdict(task.place),
        "set_up_s": task.set_up_s,
        "charge": task.charge,
        "costs": asdict(task.costs),
        "simulated_bytes": simulated,
        "analytic_bytes": analytic,
        "faster": (task.system if faster < 0 else task.other) if faster else None,
    }


def _sign_change(behind: Callable[[float], float]) -> tuple[float | None, float | None]:
    """(the size at which ``behind`` is 0, None), or (None, its sign) when it does not change."""
    first, last = behind(LEAST_BYTES), behind(MOST_BYTES)
    if first == 0 or last == 0 or (first < 0) == (last < 0):
        return None, float(np.sign(first or last))
    # Half a second's import, which every scenario would wait for.
    from scipy.optimize import brentq

    # Times grow in proportion to the size, so the first chord of the search nearly hits.
    return float(brentq(behind, LEAST_BYTES, MOST_BYTES, xtol=1e-6, rtol=1e-12)), None


def message_sizes(least: float, most: float, points: int) -> list[float]:
    """Sizes from ``least`` to ``most`` bytes in equal ratios, whole bytes."""
    return [float(round(x)) for x in np.geomspace(least, most, points)]

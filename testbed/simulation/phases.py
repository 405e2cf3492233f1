"""Times a collective whose steps are synchronised: no rank begins one before all ended the last.

Then a step depends on nothing but its own transfers, and steps that are equal need to be computed only once:
a ring of 4,096 ranks has 8,190 steps, but one phase.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringlight.fabric.light import Reconfigure
from ringlight.fabric.steps import Step, Steps, check_ranks
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.maxmin import drain
from ringlight.testbed.simulation.networks import Network, Routes


@dataclass(frozen=True)
class StepCost:
    """Cost of a step apart from its transfers.

    ``set_up_s``: seconds before its first byte, to set circuits or to make up messages; in each step, or only
    in a step with a circuit that the step before did not have. ``in_steps``, with an entry for each step,
    overrides ``when``: it gives which steps are set up. ``reduce_s_per_byte``: seconds that a rank takes to
    add one received byte, after it has received all of a step. Raises ValueError for a negative cost.
    """

    set_up_s: float = 0.0
    when: Reconfigure = "each-step"
    reduce_s_per_byte: float = 0.0
    in_steps: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        for name in ("set_up_s", "reduce_s_per_byte"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be 0 or more")


@dataclass(frozen=True)
class CollectiveTime:
    """Seconds of one collective: ``total_s`` is ``set_up_s`` plus transfers plus ``reduce_s``.

    ``step_s``: of each step. ``phases``: how many different ones had to be computed.
    """

    total_s: float
    set_up_s: float
    reduce_s: float
    step_s: FloatArray
    phases: int


def check_vector(vector_bytes: float) -> float:
    """Return the size in bytes, if it is possible. Raises ValueError for a negative or infinite one."""
    if not (math.isfinite(vector_bytes) and vector_bytes >= 0):
        raise ValueError(f"a vector of {vector_bytes} bytes; it must be 0 or more")
    return vector_bytes


def check_cost(cost: StepCost, steps: Steps) -> None:
    """Check a cost. Raises ValueError if it belongs to a schedule with another number of steps."""
    if cost.in_steps and len(cost.in_steps) != steps.steps:
        raise ValueError(
            f"in_steps has {len(cost.in_steps)} entries; {steps.name} has {steps.steps} steps"
        )


def synchronous(
    network: Network,
    ranks: Sequence[str],
    steps: Steps,
    vector_bytes: float,
    cost: StepCost | None = None,
) -> CollectiveTime:
    """Return the time of a collective over a vector of ``vector_bytes`` bytes. ``ranks``: the GPU of each
    rank.

    Chunks are taken as equal. Raises ValueError for a schedule of another number of ranks, and for transfers
    that have no way in the network.
    """
    check_ranks(steps, len(ranks))
    check_vector(vector_bytes)
    return Phases(network, ranks, steps).time(vector_bytes, cost)


class Phases:
    """A collective taken apart into the phases that differ, to be timed for many sizes and costs.

    ``wavelengths``: channels that it uses in each direction, None if its steps have none. Raises ValueError
    as :func:`synchronous`.
    """

    def __init__(self, network: Network, ranks: Sequence[str], steps: Steps) -> None:
        check_ranks(steps, len(ranks))
        self._steps = steps
        # By phase: its transfers, and the most chunks that one rank adds.
        self._transfers: list[Transfers] = []
        self._added: list[float] = []
        self.wavelengths: int | None = None
        order: list[int] = []
        new: list[bool] = []
        kept: list[Step] = []
        phases: list[Step] = []
        known: dict[object, int] = {}
        transfers: dict[bytes, Transfers] = {}
        lights: dict[tuple[int, int], bool] = {}
        for number, step in enumerate(steps):
            key = _identity(step)
            if key not in known:
                # Arrays made again may be equal.
                content = _content(step)
                if (content, step.op) not in known:
                    known[content, step.op] = len(phases)
                    phases.append(step)
                    if content not in transfers:
                        transfers[content] = Transfers(network, ranks, step, number)
                    self._transfers.append(transfers[content])
                    self._added.append(_added(step))
                    if step.wavelengths is not None:
                        self.wavelengths = max(
                            self.wavelengths or 0,
                            int(step.wavelengths.max(initial=-1)) + 1,
                        )
                known[key] = known[content, step.op]
                kept.append(step)  # so that the identities stay theirs
            phase = known[key]
            if order and (order[-1], phase) not in lights:
                lights[order[-1], phase] = needs_new_light(
                    step, phases[order[-1]], len(ranks)
                )
            new.append(lights[order[-1], phase] if order else True)
            order.append(phase)
        self._order = np.array(order, dtype=np.int64)
        self._times = np.bincount(self._order, minlength=len(phases))
        self._new = np.array(new, dtype=np.bool_)

    @property
    def runs(self) -> list[PhaseRun]:
        """Return the steps in order, consecutive equal ones as one."""
        order = self._order
        begins = np.flatnonzero(np.diff(order, prepend=-1)).tolist()
        return [
            PhaseRun(
                self._transfers[k],
                end - begin,
                int(self._new[begin:end].sum()),
                self._added[k],
            )
            for begin, end in itertools.pairwise([*begins, len(order)])
            for k in (int(order[begin]),)
        ]

    def time(self, vector_bytes: float, cost: StepCost | None = None) -> CollectiveTime:
        """Return the time of the collective over ``vector_bytes`` bytes. Raises ValueError for an impossible
        size.
        """
        check_vector(vector_bytes)
        cost = cost or StepCost()
        chunk_bytes = vector_bytes / self._steps.chunks
        transfers = np.array([transfers(chunk_bytes) for transfers in self._transfers])
        reducing = np.array(self._added) * chunk_bytes * cost.reduce_s_per_byte
        set_ups = np.full(len(self._order), True)
        if cost.in_steps:
            check_cost(cost, self._steps)
            set_ups = np.array(cost.in_steps)
        elif cost.when == "changed-only":
            set_ups = self._new
        set_up_s, reduce_s = (
            cost.set_up_s * np.count_nonzero(set_ups),
            math.fsum(self._times * reducing),
        )
        return CollectiveTime(
            math.fsum([set_up_s, reduce_s, *(self._times * transfers)]),
            set_up_s,
            reduce_s,
            cost.set_up_s * set_ups + (transfers + reducing)[self._order],
            len(self._transfers),
        )


class Transfers:
    """The transfers of a phase over a network: their ``routes``, and ``chunks`` that each takes [transfers].

    ``capacity``: of the network's links, bytes per second. Called with the bytes of a chunk, it returns how
    many seconds pass until the last of them has ended.
    """

    def __init__(
        self, network: Network, ranks: Sequence[str], step: Step, number: int
    ) -> None:
        self.routes = network.routes(ranks, step, number) if len(step) else _NOWHERE
        self.chunks = step.count.astype(np.float64)
        self.capacity = network.capacity_bps / 8
        starts, of = np.unique(self.routes.latency_s, return_inverse=True)
        self._starts, self._per_byte = starts, None
        if len(starts) <= 1 or np.bincount(self.routes.links).max() == 1:
            # Transfers that begin together, or share no link, take times in proportion to their sizes.
            self._per_byte = np.zeros(len(starts))
            np.maximum.at(self._per_byte, of, self._drained(1.0, None))
        self._known: dict[float, float] = {}

    def __call__(self, chunk_bytes: float) -> float:
        if len(self.chunks) == 0:
            return 0.0
        if self._per_byte is not None:
            return float((self._starts + self._per_byte * chunk_bytes).max())
        if chunk_bytes not in self._known:
            self._known[chunk_bytes] = float(
                self._drained(chunk_bytes, self.routes.latency_s).max()
            )
        return self._known[chunk_bytes]

    def _drained(self, chunk_bytes: float, starts: FloatArray | None) -> FloatArray:
        routes = self.routes
        return drain(
            routes.offsets,
            routes.links,
            self.capacity,
            self.chunks * chunk_bytes,
            starts,
        )


_NOWHERE = Routes(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


class PhaseRun(NamedTuple):
    """``steps`` equal steps in a row: ``set_ups`` of them are set up when only new circuits are.

    ``added``: the most chunks that one rank has to add in each.
    """

    transfers: Transfers
    steps: int
    set_ups: int
    added: float


def _added(step: Step) -> float:
    """Return how many chunks the busiest rank adds."""
    if len(step) == 0 or step.op != "reduce":
        return 0.0
    return float(np.bincount(step.destinations, step.count).max())


def _arrays(step: Step) -> tuple[object, ...]:
    # Which chunks travel does not matter, only how many.
    return (
        step.sources,
        step.destinations,
        step.count,
        step.wavelengths,
        step.clockwise,
    )


def _identity(step: Step) -> object:
    return (*map(id, _arrays(step)), step.op)


def _content(step: Step) -> bytes:
    digest = hashlib.blake2b()
    for array in _arrays(step):
        digest.update(b"-" if array is None else array.tobytes())  # type: ignore[attr-defined]
        digest.update(b"|")
    return digest.digest()


def needs_new_light(step: Step, before: Step, ranks: int) -> bool:
    """Return whether a step has a circuit that the step before did not have."""
    circuits, there = _circuits(step, ranks), np.sort(_circuits(before, ranks))
    if len(there) == 0:
        return len(circuits) > 0
    indices = np.minimum(np.searchsorted(there, circuits), len(there) - 1)
    return not (there[indices] == circuits).all()


def _circuits(step: Step, ranks: int) -> IntArray:
    """Return one number for each of the step's circuits, made of its ends, its wavelength and its
    direction.
    """
    ends = step.sources * ranks + step.destinations
    if step.wavelengths is None or step.clockwise is None:
        return ends
    return (step.wavelengths * ranks * ranks + ends) * 2 + step.clockwise

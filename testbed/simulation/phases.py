"""How long a collective takes when its steps are synchronised: no rank begins one before all ended the last.

Then a step depends on nothing but its own transfers, and steps that are alike need to be computed only once:
a ring of 4,096 ranks has 8,190 steps, but one phase.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fabric.schedules import Step, Steps, check_ranks
from testbed.simulation.maxmin import FloatArray, IntArray, drain
from testbed.simulation.networks import Network


@dataclass(frozen=True)
class StepCost:
    """What a step costs apart from its transfers.

    ``set_up_s``: seconds before its first byte, to set circuits or to make up messages; in each step, or
    only in one that lights a circuit that the step before had not. ``in_steps``, with an entry for each step,
    says which of them are set up in place of ``when``. ``reduce_s_per_byte``: seconds that a
    rank takes to add one received byte, after it has received all of a step. Raises ValueError for a
    negative cost.
    """

    set_up_s: float = 0.0
    when: Literal["each step", "new circuits"] = "each step"
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
    """The size, if it can be one. Raises ValueError."""
    if not (math.isfinite(vector_bytes) and vector_bytes >= 0):
        raise ValueError(f"a vector of {vector_bytes} bytes; it must be 0 or more")
    return vector_bytes


def check_cost(cost: StepCost, steps: Steps) -> None:
    """Raises ValueError when the cost is one of a schedule with another number of steps."""
    if cost.in_steps and len(cost.in_steps) != steps.steps:
        raise ValueError(f"in_steps has {len(cost.in_steps)} entries; {steps.name} has {steps.steps} steps")


def synchronous(
    network: Network, ranks: Sequence[str], steps: Steps, vector_bytes: float, cost: StepCost | None = None
) -> CollectiveTime:
    """The collective over a vector of ``vector_bytes`` bytes, ``ranks`` giving the GPU of each rank.

    Chunks are taken as equal. Raises ValueError for a schedule of another number of ranks, and as the
    network for transfers that have no way.
    """
    check_ranks(steps, len(ranks))
    check_vector(vector_bytes)
    cost = cost or StepCost()
    check_cost(cost, steps)
    chunk_bytes = vector_bytes / steps.chunks
    capacity = network.capacity_bps / 8
    known: dict[object, tuple[float, float]] = {}
    durations, set_up, reducing = [], 0.0, 0.0
    lit: IntArray | None = None
    lit_key: object = None
    kept: list[Step] = []
    phases = 0
    for number, step in enumerate(steps):
        key = _identity(step)
        if key not in known:
            # Arrays made anew may say the same thing.
            same = _content(step)
            if same not in known:
                known[same] = _phase(network, capacity, ranks, step, number, chunk_bytes, cost)
                phases += 1
            known[key] = known[same]
            kept.append(step)  # so that the identities stay theirs
        transfer_s, reduce_s = known[key]
        set_up_s = cost.set_up_s
        if cost.in_steps:
            set_up_s *= cost.in_steps[number]
        elif cost.when == "new circuits" and set_up_s:
            if lit is not None and (key == lit_key or _within(_circuits(step, len(ranks)), lit)):
                set_up_s = 0.0
            if key != lit_key:
                lit_key, lit = key, _circuits(step, len(ranks))
        set_up += set_up_s
        reducing += reduce_s
        durations.append(set_up_s + transfer_s + reduce_s)
    step_s = np.array(durations)
    return CollectiveTime(math.fsum(durations), set_up, reducing, step_s, phases)


def _arrays(step: Step) -> tuple[object, ...]:
    # Which chunks travel does not matter, only how many.
    return (step.sources, step.destinations, step.count, step.wavelengths, step.clockwise)


def _identity(step: Step) -> object:
    return (*map(id, _arrays(step)), step.op)


def _content(step: Step) -> object:
    digest = hashlib.blake2b()
    for array in _arrays(step):
        digest.update(b"-" if array is None else array.tobytes())  # type: ignore[attr-defined]
        digest.update(b"|")
    return (digest.digest(), step.op)


def _circuits(step: Step, ranks: int) -> IntArray:
    """One number for each of the step's circuits: its ends, its wavelength and its direction."""
    ends = step.sources * ranks + step.destinations
    if step.wavelengths is None or step.clockwise is None:
        return ends
    return (step.wavelengths * ranks * ranks + ends) * 2 + step.clockwise


def _within(now: IntArray, lit: IntArray) -> bool:
    return bool(np.isin(now, lit).all())


def _phase(
    network: Network, capacity: FloatArray, ranks: Sequence[str], step: Step, number: int,
    chunk_bytes: float, cost: StepCost,
) -> tuple[float, float]:  # fmt: skip
    """Seconds of the step's transfers, and of adding what they brought."""
    if len(step) == 0:
        return 0.0, 0.0
    routes = network.routes(ranks, step, number)
    sizes: FloatArray = np.multiply(step.count, chunk_bytes, dtype=np.float64)
    ends = drain(routes.offsets, routes.links, capacity, sizes, routes.latency_s)
    reduce_s = 0.0
    if step.op == "reduce" and cost.reduce_s_per_byte:
        reduce_s = float(np.bincount(step.destinations, sizes).max()) * cost.reduce_s_per_byte
    return float(ends.max()), reduce_s

"""The scale at which a machine can emulate runs: D, S and with them the frames (``scale: auto``).

With D every rate, message and timer becomes slower by the same factor, and the run longer. S divides bytes
alone: it saves processor time without making the run longer, but a message or a queue of few frames is not
the stated one any more. So S is as large as frames allow; D is the least with which processors, timers and
steps are honest; and with that D, S is made smaller again as far as processors have room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringlight.experiments.analysis.carrying import (
    REFERENCE,
    Costs,
    Traffic,
    ports_of,
    traffics_of,
)
from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.language.plan import ChosenScale, JobPlan, RunPlan
from ringlight.fabric.frames import ETHERNET_BYTES, LARGEST_MTU_BYTES, QUEUE_FRAMES

#: Shares of the processors' time that sending and forwarding may take while jobs send: the most, and up to
#: how much S is made smaller again. A run doubts itself where all that it does takes 0.85; with 64 GPUs that
#: was 0.74 to 0.89 where sending and forwarding were to take 0.4 to 0.57.
FULL, EASY = 0.3, 0.15
#: Share of one processor that Open vSwitch may take, which forwards in one thread.
SWITCHING = 0.7
#: Share of a computation by which its timer may wake late (a run doubts itself from 0.02 on), and of the time
#: to send that steps may take besides their bytes.
LATE_TIMERS, LATE_STEPS = 0.0125, 0.02
#: Frames in those messages with which most bytes travel; ``MOST_BYTES`` is their share.
MESSAGE_FRAMES, MOST_BYTES = 8, 0.9
#: The largest D and S.
MOST = 1e6

#: What may limit a scale: parts of the machine, and what they have to keep.
PROCESSORS, SWITCH, TIMERS, STEPS = (
    "processors",
    "Open vSwitch's thread",
    "timers",
    "latency of steps",
)
NOTHING = "nothing of this machine"


@dataclass(frozen=True)
class _Sending:
    """Traffic of jobs that send at once, each in ``seconds`` at real rates; packet switches' ``ports``."""

    jobs: Sequence[tuple[Traffic, float]]
    ports: int

    def work(self, costs: Costs, payload: float) -> tuple[float, float]:
        """Return the processors that all jobs need at real speed, and Open vSwitch's part of these
        processors."""
        total = switching = 0.0
        for traffic, seconds in self.jobs:
            frames, switched = traffic.frames(LARGEST_MTU_BYTES, payload)
            forwards = switched * (costs.switched + self.ports * costs.port) / seconds
            total += (
                traffic.messages * costs.message + frames * costs.frame
            ) / seconds + forwards
            switching += forwards
        return total, switching


def choose_scale(
    plans: Sequence[RunPlan],
    costs: Costs,
    processors: int,
    costs_of: str = REFERENCE,
    machines: int = 1,
) -> ChosenScale:
    """Return one scale for all ``plans``, which are at their real rates and sizes, so that they can be
    compared.

    ``costs_of``: machine on which ``costs`` were measured. ``machines``: number of equal machines of a lab,
    each with an Open vSwitch of its own. ``processors``: number of processors of all machines together.
    """
    known = [(plan, traffics_of(plan, plan.jobs)) for plan in plans if plan.repeat == 1]
    sending = [_sending(plan, traffics) for plan, traffics in known]
    sending += [
        _link_test(plan) for plan in {id(plan.setting): plan for plan in plans}.values()
    ]

    def work(payload: float) -> tuple[float, float]:
        each = [load.work(costs, payload) for load in sending]
        return max(total for total, _ in each), max(switching for _, switching in each)

    longest = max(
        1.0,
        min(min(_most_payloads(plan, traffics.values())) for plan, traffics in known),
    )
    total, switching = work(longest)
    wants = {
        PROCESSORS: total / (FULL * processors),
        SWITCH: switching / machines / SWITCHING,
        TIMERS: max(
            _for_timers(plan, traffics.values(), costs, processors)
            for plan, traffics in known
        ),
        STEPS: max(_for_steps(load, costs) for load in sending),
    }
    limit = max(wants, key=lambda part: wants[part])
    time = _rounded(min(MOST, max(1.0, wants[limit])), math.ceil)
    room = EASY * processors * time
    payload = _rounded(_least_payload(lambda s: work(s)[0] <= room, longest), math.ceil)
    payload = min(payload, max(1.0, _rounded(longest, math.floor)))
    return ChosenScale(
        time=time,
        payload=payload,
        limit=limit if wants[limit] > 1 else NOTHING,
        wants={part: round(want, 3) for part, want in wants.items()},
        busy=round(work(payload)[0] / time, 3),
        costs=costs_of,
    )


def _sending(plan: RunPlan, traffics: Mapping[str, Traffic]) -> _Sending:
    """Jobs that run together. Where light is moved meanwhile, they may then send as if each were alone."""
    moved = any(event.do in moving_events() for event in plan.events)
    jobs = []
    for job in [job for job in plan.jobs if job.start.at_once] or plan.jobs:
        traffic = traffics.get(job.name)
        if traffic is None or not traffic.most_bytes:
            continue
        alone_s = (
            8
            * traffic.most_bytes
            / min(nic_rate_bps(plan.setting, gpu) for gpu in _gpus(plan, job))
        )
        shared_s = traffic.seconds - traffic.compute_s
        jobs.append((traffic, alone_s if moved or shared_s <= 0 else shared_s))
    return _Sending(jobs, ports_of(plan))


def _link_test(plan: RunPlan) -> _Sending:
    """All GPUs fill their links at once."""
    gpus = list(plan.setting.fabric.gpus)
    sizes = np.array([nic_rate_bps(plan.setting, gpu) / 8 for gpu in gpus])
    switches = np.full(len(gpus), 1.0 if plan.setting.fabric.packet_switches else 0.0)
    # What is sent in a second, as one long message.
    filled = Traffic(
        np.ones(len(gpus)), sizes, switches, float(sizes.max()), 0.0, 1.0, 0.0
    )
    return _Sending([(filled, 1.0)], ports_of(plan))


def _most_payloads(plan: RunPlan, traffics: Iterable[Traffic]) -> Iterator[float]:
    """The largest payload scales with which switches' queues, and typical messages, hold enough frames."""
    fabric = plan.setting.fabric
    frame = LARGEST_MTU_BYTES + ETHERNET_BYTES
    for link in fabric.links:
        if {link.a.node, link.b.node} & fabric.packet_switches.keys():
            yield link.rate_bps / 8 * link.queue_s / (QUEUE_FRAMES * frame)
    for traffic in traffics:
        if traffic.most_bytes:
            order = np.argsort(traffic.sizes)
            sums = np.cumsum((traffic.calls * traffic.sizes)[order])
            typical = traffic.sizes[order][
                np.searchsorted(sums, (1 - MOST_BYTES) * sums[-1])
            ]
            yield float(typical) / (MESSAGE_FRAMES * frame)
    yield MOST


def _for_timers(
    plan: RunPlan, traffics: Iterable[Traffic], costs: Costs, processors: int
) -> float:
    """Time scale that timers need: all ranks' computations may end at once, and the last then wakes late."""
    least_s = min(
        (traffic.compute_s for traffic in traffics if traffic.compute_s > 0),
        default=math.inf,
    )
    ranks = min(sum(job.gpus for job in plan.jobs), len(plan.setting.fabric.gpus))
    return costs.wake * ranks / processors / (LATE_TIMERS * least_s)


def _for_steps(sending: _Sending, costs: Costs) -> float:
    return max(
        (t.steps * costs.step / (LATE_STEPS * seconds) for t, seconds in sending.jobs),
        default=0.0,
    )


def _gpus(plan: RunPlan, job: JobPlan) -> Sequence[str]:
    return list(job.ranks or plan.setting.fabric.gpus)[: job.gpus]


def _least_payload(enough: Callable[[float], bool], most: float) -> float:
    """Return the smallest payload scale from 1 to ``most`` that is ``enough``; ``most`` if none is."""
    low, high = 1.0, most
    if enough(low):
        return low
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounded(number: float, how: Callable[[float], int]) -> float:
    """Return the number with two significant digits, rounded by ``how``."""
    digits = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{how(round(number / digits, 6)) * digits:.6g}")

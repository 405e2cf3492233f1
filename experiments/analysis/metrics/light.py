"""Light that is asked for: how long flows and steps waited for it, and what O-NICs and switches counted."""

from __future__ import annotations

import functools
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.analysis.metrics import Context, metric
from experiments.analysis.prediction import grid_of
from experiments.analysis.rows import Value
from experiments.analysis.setups import lit_flows, set_up_s, set_up_times
from experiments.analysis.statistics import percentile
from experiments.record.events import Flow, FlowsLost, GridLit, LightCounters, OnicsSimulated
from experiments.record.runs import Run
from fabric.grid import LightUse, light_use, ways_for
from fabric.schedules import steps_named

#: What must be 0 in every correct run; the kernel counts it.
FORBIDDEN = ("collisions", "receiver_overlaps", "misdirected")
#: What O-NICs count; the rest WSSs do.
OF_ONICS = ("light_tx_bytes", "unrouted")
#: What kernel and agents count, by name. A packet that is dropped in a WSS is sent again by TCP.
COUNTERS = {
    "collisions": "Lights of one wavelength that met at a receiver",
    "receiver_overlaps": "Lights that met at a receiver, of any wavelength",
    "misdirected": "Packets that light brought to an O-NIC for which they were not meant",
    "dark_drops": "Packets dropped in a WSS whose cross-connect was not ready",
    "unset_drops": "Packets dropped in a WSS on a wavelength without a cross-connect",
    "blocked_drops": "Packets dropped in a WSS at a port that was disabled or had failed",
    "unplugged_drops": "Packets dropped in a WSS at a port with nothing plugged in",
    "dim_drops": "Packets dropped because their light would have been too weak",
    "light_tx_bytes": "Bytes that O-NICs sent into the light, some headers included",
    "unrouted": "Packets for a peer that no port of the O-NIC leads to",
}

#: Figures of a spread, by the end of their names.
_PARTS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "p50": statistics.median,
    "p99": functools.partial(percentile, share=0.99),
    "max": max,
}
_SAID = {"p50": "median", "p99": "99th percentile", "max": "longest"}


def spread(name: str, help: str) -> Callable[[Callable[[Run], Sequence[float]]], Any]:
    """Makes the median, the 99th percentile and the longest of some times of a run three metrics."""

    def register(times: Callable[[Run], Sequence[float]]) -> None:
        def part(of: Callable[[Sequence[float]], float]) -> Callable[[Context], float | None]:
            return lambda context: of(found) if (found := times(context.run)) else None

        for word, of in _PARTS.items():
            metric("s", of="fabric", name=f"{name}_{word}", help=f"{help}: {_SAID[word]}")(part(of))

    return register


@spread("setup", "From a flow's request, or the end of a ring's step, to the light")
def setup(run: Run) -> Sequence[float]:
    return set_up_times(run)


@spread("idle_setup", "From the request to the light, of flows that stood in no queue")
def idle_setup(run: Run) -> Sequence[float]:
    return [set_up_s(flow) for flow in lit_flows(run) if not flow.waited]


@spread("open", "From the worker's wish for a flow to the light, the wait for its own transmitter included")
def opened(run: Run) -> Sequence[float]:
    return [flow.t_lit - flow.t_open for flow in lit_flows(run) if flow.t_lit is not None]


@spread("lit", "From the light of a flow to its end")
def lit(run: Run) -> Sequence[float]:
    return [
        flow.t_close - flow.t_lit
        for flow in lit_flows(run)
        if flow.t_close is not None and flow.t_lit is not None
    ]


def _flows_asked(run: Run) -> int:
    return sum(it.flows for job in run.jobs.values() for it in job.iterations)


@metric("count", of="fabric")
def flows(context: Context) -> int | None:
    """Flows of O-NICs on record."""
    return len(context.run.of(Flow)) or None


@metric("count", of="fabric")
def flows_expected(context: Context) -> int | None:
    """Flows that the workers asked for."""
    return _flows_asked(context.run) or None


@metric("count", of="fabric")
def flows_per_iteration(context: Context) -> float | None:
    """Flows that the workers asked for in an iteration."""
    first = next(iter(context.run.jobs.values()))
    asked = _flows_asked(context.run)
    return asked / len(first.by_index) if asked and first.by_index else None


@metric("count", of="fabric")
def flows_waited(context: Context) -> int | None:
    """Flows that stood in a queue."""
    found = context.run.of(Flow)
    return sum(flow.waited for flow in found) if found else None


@metric("count", of="fabric")
def flows_not_traced(context: Context) -> int | None:
    """Flows that an agent forgot before they were read."""
    run = context.run
    return sum(note.count for note in run.of(FlowsLost)) if run.of(Flow) else None


def pairs_lit(run: Run) -> tuple[int, int] | None:
    """What the WSSs let through while the jobs ran, as read back; None where nobody read it.

    Pairs of nodes that light leads between, and those of them that are not of one job.
    """
    notes = run.of(GridLit)
    if not notes:
        return None
    user = {gpu: job.name for job in run.jobs.values() for gpu in job.gpus}
    lit = [xc for note in notes for switch in note.grid["switches"] for xc in switch["lit"]]
    astray = sum(user.get(xc["from"]) is None or user.get(xc["from"]) != user.get(xc["to"]) for xc in lit)
    return len(lit), astray


@metric("count", of="fabric")
def lit_pairs(context: Context) -> int | None:
    """Pairs of nodes that the switches let light through between."""
    found = pairs_lit(context.run)
    return found[0] if found else None


@metric("count", of="fabric")
def lit_between_jobs(context: Context) -> int | None:
    """Of these, pairs that are not of one job."""
    found = pairs_lit(context.run)
    return found[1] if found else None


def _total(value: float | Sequence[float]) -> float:
    return value if isinstance(value, int | float) else sum(value)


def counted(run: Run, name: str) -> float | None:
    """By how much a counter of switches or O-NICs rose in a run; None where it was not read twice."""
    if name == "receiver_overlaps" and (simulated := run.of(OnicsSimulated)):
        return simulated[-1].receiver_overlaps
    moments = {note.moment: note for note in run.of(LightCounters)}
    if not {"before", "after"} <= moments.keys():
        return None
    before, after = moments["before"].kernel, moments["after"].kernel
    if name in OF_ONICS:
        return sum(
            _total(now[name]) - _total(before["onics"][gpu][name]) for gpu, now in after["onics"].items()
        )
    old: dict[str, dict[str, int]] = before["switches"]
    new: dict[str, dict[str, int]] = after["switches"]
    return sum(now.get(name, 0) - old[switch].get(name, 0) for switch, now in new.items())


def _count(name: str) -> Callable[[Context], float | None]:
    return lambda context: counted(context.run, name)


for _name, _help in COUNTERS.items():
    metric("bytes" if _name.endswith("bytes") else "count", of="fabric", name=_name, help=_help)(
        _count(_name)
    )


def _agents(run: Run) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Epoch and counters of each agent before and after a run."""
    moments = {note.moment: note.agents for note in run.of(LightCounters)}
    if not {"before", "after"} <= moments.keys():
        return None
    return moments["before"], moments["after"]


def _messages(run: Run) -> tuple[int, int] | None:
    """Messages that all agents sent in a run, and flows done; None when one began anew."""
    if simulated := run.of(OnicsSimulated):
        return sum(simulated[-1].messages.values()), simulated[-1].flows
    agents = _agents(run)
    if agents is None:
        return None
    before, after = agents
    if before.keys() != after.keys() or any(before[gpu]["epoch"] != after[gpu]["epoch"] for gpu in after):
        return None
    pairs = [(before[gpu]["counters"], after[gpu]["counters"]) for gpu in after]
    sent = sum(sum(b["sent"].values()) - sum(a["sent"].values()) for a, b in pairs)
    return sent, sum(b["flows_done"] - a["flows_done"] for a, b in pairs)


@metric("count", of="fabric")
def control_messages(context: Context) -> int | None:
    """Messages between O-NICs' agents."""
    found = _messages(context.run)
    return found[0] if found else None


@metric("count", of="fabric")
def control_messages_per_flow(context: Context) -> float | None:
    """Messages between O-NICs' agents for each flow."""
    found = _messages(context.run)
    return found[0] / found[1] if found and found[1] else None


@metric("count", of="fabric")
def agents_restarted(context: Context) -> int | None:
    """O-NICs' agents that began anew."""
    agents = _agents(context.run)
    if agents is None:
        return 0 if context.run.of(OnicsSimulated) else None
    before, after = agents
    return sum(int(entry["epoch"] != before[gpu]["epoch"]) for gpu, entry in after.items() if gpu in before)


@metric("count", of="each")
def control_faults(context: Context) -> list[tuple[str, int]]:
    """Control messages lost, doubled or held back on purpose.

    An agent that died forgot its own.
    """
    agents = _agents(context.run)
    if agents is None:
        return []
    before, after = agents
    total: dict[str, int] = {}
    for gpu, entry in after.items():
        old = before.get(gpu)
        same_life = old is not None and old["epoch"] == entry["epoch"]
        for name, count in entry["counters"].get("faults", {}).items():
            began = old["counters"].get("faults", {}).get(name, 0) if same_life and old else 0
            total[name] = total.get(name, 0) + count - began
    return [(f"messages {name}", count) for name, count in total.items()]


@functools.lru_cache(maxsize=1)
def _light_use(context: Context) -> LightUse | None:
    """What an all-reduce of each job asks of a grid's lasers and receivers; None without a grid."""
    run = context.run
    grid = grid_of(run.plan.setting.fabric)
    if grid is None:
        return None
    jobs = [
        (job.gpus, steps_named(job.plan.collective, len(job.gpus))) for job in run.jobs.values() if job.gpus
    ]
    each = [ways_for(grid, gpus, steps) for gpus, steps in jobs]
    ways = {node: peers for found in each for node, peers in found.items()}
    return functools.reduce(operator.add, (light_use(ways, gpus, steps) for gpus, steps in jobs))


def _use(name: str) -> Callable[[Context], Value]:
    def value(context: Context) -> Value:
        use = _light_use(context)
        return None if use is None else getattr(use, name)

    return value


for _name, _help in {
    "receivers": "Receivers that anybody sends to in an all-reduce",
    "contended": "Of these, receivers of more than one sender, where two flows may want one at a time",
    "senders": "The most senders of one receiver",
    "lasers": "Lasers that send in an all-reduce",
    "tuned": "Of these, lasers with more than one wavelength",
    "retunes": "Changes of wavelength of all lasers in an all-reduce",
}.items():
    metric("count", of="fabric", analytic=True, name=f"light_use_{_name}", help=_help)(_use(_name))
metric(
    "",
    of="fabric",
    analytic=True,
    name="light_use_collisions_possible",
    help="Whether lights could meet at all",
)(_use("collisions_possible"))

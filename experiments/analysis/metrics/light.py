"""Light that is asked for: waits of flows and steps for it, and counters of O-NICs and switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.statistics import median, percentile
from ringlight.experiments.record.light_records import (
    Flow,
    FlowsLost,
    LightCounters,
    OnicsSimulated,
    StepSetUps,
)
from ringlight.experiments.record.runs import Run

#: What must be 0 in every correct run; the kernel counts it.
FORBIDDEN = ("collisions", "receiver_overlaps", "misdirected")
#: What kernel and agents count, by name: of WSSs. A packet that is dropped there is sent again by TCP.
COUNTERS = {
    "collisions": "Flows of one wavelength that met at a receiver",
    "receiver_overlaps": "Flows of any wavelength that met at a receiver",
    "misdirected": "Packets that arrived at an O-NIC for which they were not meant",
    "dark_drops": "Packets dropped in a WSS (wavelength-selective switch) whose cross-connect was not ready",
    "unset_drops": "Packets dropped in a WSS (wavelength-selective switch) on a wavelength without a cross-connect",
    "blocked_drops": "Packets dropped in a WSS (wavelength-selective switch) at a port that was disabled "
    "or had failed",
    "unplugged_drops": "Packets dropped in a WSS (wavelength-selective switch) at a port with nothing plugged in",
    "dim_drops": "Packets dropped because their light would have been too weak",
    "error_drops": "Packets dropped with bit errors, because their light was weak",
}
#: And of O-NICs.
OF_ONICS = {
    "unrouted": "Packets for a peer that no port of the O-NIC leads to",
    "light_tx_bytes": "Bytes that O-NICs sent into lightpaths, some headers included",
}
#: Times given as median, 99th percentile and maximum.
TIMES = {
    "setup": "From a flow's request, or the end of a ring's step, to its lightpath",
    "idle_setup": "From the request of a flow that was not queued to its lightpath",
    "open": "From the worker's request for a flow to its lightpath, the wait for its own transmitter included",
    "lit": "Duration of a flow's lightpath",
    "setup_write": "Part of a ring's set-up until its circuits were written and read back",
}
_PARTS = {"p50": "median", "p99": "99th percentile", "max": "longest"}


def _between(flows: Iterable[Flow], begin: str, end: str) -> list[float]:
    """Return the seconds from one time of a flow to another, for each flow that has both."""
    times = ((getattr(flow, begin), getattr(flow, end)) for flow in flows)
    return [b - a for a, b in times if a is not None and b is not None]


@metric(
    "s",
    of="fabric",
    makes={
        f"{k}_{part}": f"{help}: {words}"
        for k, help in TIMES.items()
        for part, words in _PARTS.items()
    },
)
def waits(context: Context) -> Mapping[str, float | None]:
    """Return the times of set-ups and flows, seconds by metric, in a fabric whose O-NICs request light."""
    lit_flows = context.run.lit_flows
    written = (
        change["write_s"]
        for note in context.run.derived(StepSetUps)
        for change in note.set_ups
    )
    times = {
        "setup": context.set_up_times,
        "idle_setup": [flow.set_up_s for flow in lit_flows if not flow.waited],
        "open": _between(lit_flows, "t_open", "t_lit"),
        "lit": _between(lit_flows, "t_lit", "t_close"),
        "setup_write": [write_s for write_s in written if write_s is not None],
    }
    values_by_name: dict[str, float | None] = {}
    for name, values in times.items():
        if values:
            figures = median(values), percentile(values, 0.99), max(values)
            values_by_name |= {
                f"{name}_{part}": figure
                for part, figure in zip(_PARTS, figures, strict=True)
            }
    return values_by_name


_FLOWS = {
    "flows": "Flows of O-NICs on record",
    "flows_expected": "Flows that the workers requested",
    "flows_per_iteration": "Flows that the workers requested in an iteration",
    "flows_waited": "Flows that were queued",
    "flows_not_traced": "Flows dropped from an agent's log before they were read",
}


@metric("count", of="fabric", makes=_FLOWS)
def flows(context: Context) -> Mapping[str, float]:
    """Return counts of flows by metric."""
    run = context.run
    counts: dict[str, float] = {}
    if traced := run.of(Flow):
        counts["flows"], counts["flows_waited"] = (
            len(traced),
            sum(flow.waited for flow in traced),
        )
        counts["flows_not_traced"] = sum(note.count for note in run.of(FlowsLost))
    if expected := sum(it.flows for job in run.jobs.values() for it in job.iterations):
        counts["flows_expected"] = expected
        if iterations := len(next(iter(run.jobs.values())).by_index):
            counts["flows_per_iteration"] = expected / iterations
    return counts


def before_and_after(run: Run) -> tuple[LightCounters, LightCounters] | None:
    """Return the counters before and after a run; None unless both were read."""
    moments = {note.moment: note for note in run.of(LightCounters)}
    return (
        (moments["before"], moments["after"])
        if {"before", "after"} <= moments.keys()
        else None
    )


def _rise(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float:
    """Return the increase of a counter, summed over nodes or over their ports."""

    def total(counters: Mapping[str, float | Sequence[float]]) -> float:
        """Return the count of a node, the sum over its ports."""
        value = counters.get(name, 0)
        return value if isinstance(value, int | float) else sum(value)

    return sum(total(now) - total(before[node]) for node, now in after.items())


@metric("bytes", of="fabric", makes={"light_tx_bytes": OF_ONICS["light_tx_bytes"]})
@metric(
    "count",
    of="fabric",
    makes={**COUNTERS, "unrouted": OF_ONICS["unrouted"]},
    condemning={name: name.replace("_", " ") for name in FORBIDDEN},
)
def counters(context: Context) -> Mapping[str, float]:
    """Return the increase of the counters of switches and O-NICs in a run, by metric; empty if not read
    twice."""
    counts: dict[str, float] = {}
    if notes := before_and_after(context.run):
        for kind, names in (("switches", COUNTERS), ("onics", OF_ONICS)):
            before, after = (note.kernel[kind] for note in notes)
            counts |= {name: _rise(before, after, name) for name in names}
    if simulated := context.run.of(OnicsSimulated):
        counts["receiver_overlaps"] = simulated[-1].receiver_overlaps
    return counts


_CONTROL = {
    "control_messages": "Messages between O-NICs' agents",
    "control_messages_per_flow": "Messages between O-NICs' agents for each flow",
    "agents_restarted": "O-NICs' agents that restarted",
}


@metric("count", of="fabric", makes=_CONTROL)
def control(context: Context) -> Mapping[str, float]:
    """Return counts of the O-NICs' agents by metric.

    An agent that restarted has lost the count of its earlier messages. Messages are then left out.
    """
    counts: dict[str, float] = {}
    if simulated := context.run.of(OnicsSimulated):
        counts["agents_restarted"] = 0
        sent, flows_done = sum(simulated[-1].messages.values()), simulated[-1].flows
    elif notes := before_and_after(context.run):
        before, after = (note.agents for note in notes)
        both = before.keys() & after.keys()
        counts["agents_restarted"] = sum(
            before[gpu]["epoch"] != after[gpu]["epoch"] for gpu in both
        )
        if counts["agents_restarted"] or before.keys() != after.keys():
            return counts
        pairs = [(before[gpu]["counters"], after[gpu]["counters"]) for gpu in after]
        sent = sum(sum(b["sent"].values()) - sum(a["sent"].values()) for a, b in pairs)
        flows_done = sum(b["flows_done"] - a["flows_done"] for a, b in pairs)
    else:
        return counts
    counts["control_messages"] = sent
    if flows_done:
        counts["control_messages_per_flow"] = sent / flows_done
    return counts


@metric("count", of="messages")
def control_faults(context: Context, kind: str) -> int | None:
    """Control messages lost, doubled or held back on purpose.

    Return the count; None if no agent counts such faults. Counters of an agent that died are not included.
    """
    total = None
    if notes := before_and_after(context.run):
        before, after = (note.agents for note in notes)
        for gpu, entry in after.items():
            if kind in entry["counters"].get("faults", {}):
                same_life = gpu in before and before[gpu]["epoch"] == entry["epoch"]
                began = (
                    before[gpu]["counters"].get("faults", {}).get(kind, 0)
                    if same_life
                    else 0
                )
                total = (total or 0) + entry["counters"]["faults"][kind] - began
    return total

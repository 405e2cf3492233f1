"""Sets an emulated and a simulated run folder of one experiment side by side. Pure functions.

 All times are seconds of the emulation. Differences
are of the simulated figure from the emulated one, in per cent of the emulated one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.record.events import Flow, Iteration, LinkRate, ProcessorLoad, RingSetUps
from experiments.record.runs import JobRun, Run

SCHEMA_VERSION = 3
#: An iteration, and the all-reduce alone, may differ by so much, per cent. The all-reduce is what is
#: simulated: in an iteration it stands beside computing, which both sides merely wait for.
LIMIT_PERCENT = 10.0
JUDGED = ("iteration_s", "allreduce_s")
#: Iterations closer than this, with all-reduces closer than that: nothing is called off.
AGREE_PERCENT, AGREE_ALL_REDUCE_PERCENT = 1.0, 5.0
#: Segments sent again by a rank in an iteration from which on TCP is named as a cause.
MANY_RETRANSMITS = 0.5

#: What makes two runs the same: arm and point of the sweep.
Key = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Side:
    """One of the two: its folder's whole runs, the links that were measured, its result and environment."""

    name: str
    runs: Sequence[Run]
    links: Sequence[LinkRate]
    result: Mapping[str, Any]
    environment: Mapping[str, Any]


def key_of(run: Run) -> Key:
    return run.plan.arm, tuple(run.plan.point.items())


def crosscheck(emulated: Side, simulated: Side, limit_percent: float = LIMIT_PERCENT) -> dict[str, Any]:
    """The object of ``crosscheck.json``. Raises ValueError when the two have no finished run in common.

    Runs that only one of them has are named in ``not_compared``, and so are jobs that did not succeed. Of an
    emulated run that was repeated, every figure is the mean over the repetitions.
    """
    measured, computed = _by_key(emulated.runs), _by_key(simulated.runs)
    entries = []
    missing = []
    for key, theirs in computed.items():
        ours = measured.get(key)
        if ours is None:
            continue
        for job in theirs[0].jobs:
            if all(run.jobs[job].jct_s is not None for run in (*ours, theirs[0])):
                entries.append(_entry(ours, theirs[0], job, emulated, simulated, limit_percent))
            else:
                missing.append(f"{theirs[0].name}, job {job}")
    if not entries:
        raise ValueError("the two have no finished run in common")
    missing += [run.name for key, runs in measured.items() if key not in computed for run in runs]
    missing += [run.name for key, runs in computed.items() if key not in measured for run in runs]
    return {
        "schema": SCHEMA_VERSION,
        "experiment": simulated.result["experiment"],
        "limit_percent": limit_percent,
        "within_limit": all(entry["within_limit"] for entry in entries),
        "worst": {figure: _worst(entries, figure) for figure in JUDGED},
        "emulated": {
            "run": emulated.environment["run"],
            "folder": emulated.name,
            "runtime": emulated.environment.get("runtime"),
            "complete": emulated.result["complete"],
            "fidelity": emulated.result["fidelity"]["verdict"],
            "reasons": emulated.result["fidelity"]["reasons"],
            "links": link_range(emulated.links),
        },
        "simulated": {
            "run": simulated.environment["run"],
            "folder": simulated.name,
            "assumptions": simulated.environment.get("assumptions", []),
            "left_out": simulated.environment.get("left_out", []),
            "payload_share": simulated.environment.get("payload_share", 1.0),
        },
        "entries": entries,
        "not_compared": missing,
    }


def _worst(entries: Sequence[Mapping[str, Any]], figure: str) -> dict[str, Any]:
    """Run and job with the largest difference of a figure."""
    worst = max(entries, key=lambda entry: abs(entry[figure]["difference_percent"]))
    return {
        "run": worst["run"],
        "job": worst["job"],
        "difference_percent": worst[figure]["difference_percent"],
    }


def link_range(links: Iterable[LinkRate]) -> dict[str, float] | None:
    """Least, median and greatest measured rate of a link over its setting; None where none was measured."""
    ratios = [link.measured_bps / link.set_bps for link in links]
    if not ratios:
        return None
    return {"least": min(ratios), "median": statistics.median(ratios), "most": max(ratios)}


def _by_key(runs: Sequence[Run]) -> dict[Key, list[Run]]:
    grouped: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[key_of(run)].append(run)
    return grouped


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _whole_s(it: Iteration) -> float:
    return it.allreduce_end - it.compute_start


def _figures(jobs: Sequence[JobRun], of: Callable[[Iteration], float]) -> float:
    return _mean(of(it) for job in jobs for it in job.iterations)


def _pair(emulated: float, simulated: float) -> dict[str, float]:
    difference = 100 * (simulated / emulated - 1) if emulated > 0 else 0.0
    return {"emulated": emulated, "simulated": simulated, "difference_percent": difference}


def _entry(
    ours: Sequence[Run], theirs: Run, job: str, emulated: Side, simulated: Side, limit_percent: float
) -> dict[str, Any]:
    """One job in one run. ``ours`` are the emulated repetitions."""
    real, ideal = [run.jobs[job] for run in ours], [theirs.jobs[job]]

    def compared(of: Callable[[Iteration], float]) -> dict[str, float]:
        return _pair(_figures(real, of), _figures(ideal, of))

    iteration = compared(lambda it: it.allreduce_end - it.compute_start)
    exchange = compared(lambda it: it.all_reduce_s)
    completion = _pair(_mean(record.jct_s or 0.0 for record in real), ideal[0].jct_s or 0.0)
    found: dict[str, Any] = {
        # Its plain name: one that was made again has another.
        "run": theirs.name,
        "arm": theirs.plan.arm,
        "title": theirs.plan.title,
        "point": dict(theirs.plan.point),
        "job": job,
        "ranks": len(ideal[0].gpus),
        "repeats": len(ours),
        "iteration_s": iteration,
        "allreduce_s": exchange,
        "completion_s": completion,
        "within_limit": all(
            abs(figure["difference_percent"]) <= limit_percent for figure in (iteration, exchange)
        ),
        "causes": _causes(ours, theirs, job, emulated, simulated),
        "series": {"emulated": series(real[0]), "simulated": series(ideal[0])},
    }
    found["off"] = which_is_off(found)
    found["why"] = reasons(found)
    return found


def series(job: JobRun) -> list[float]:
    """Seconds of each iteration, on its slowest rank."""
    longest: dict[int, float] = {}
    for it in job.iterations:
        longest[it.i] = max(longest.get(it.i, 0.0), it.allreduce_end - it.compute_start)
    return [longest[index] for index in sorted(longest)]


def _causes(ours: Sequence[Run], theirs: Run, job: str, emulated: Side, simulated: Side) -> dict[str, Any]:
    """What is known of where the difference comes from.

    Seconds of an iteration by which the emulation is longer: ``gap_s`` all of it, ``timers_s`` compute timers
    that woke late (on the iteration's slowest rank, for which the others wait), ``links_s`` links that gave
    less payload than the simulation takes, ``set_up_s`` light that was longer in coming, ``rest_s`` none of
    these. ``light_s``: seconds of an iteration in which a rank waits for light (of a ring, all of them), or
    None where light stays; ``light_by``: whether the agents or the controller switch it. ``verdict``: reasons
    of the emulation's verdict on itself about links, and about processors during the run. ``contended``:
    whether there were other jobs in the run. ``busy``: mean busy share of the processors meanwhile.
    """
    real, ideal = [run.jobs[job] for run in ours], [theirs.jobs[job]]
    gap_s = _figures(real, _whole_s) - _figures(ideal, _whole_s)
    timers_s = _slowest_compute_s(real) - _slowest_compute_s(ideal)
    ends = _ends(theirs, ideal[0])
    ratio = _link_ratio(emulated.links, ends)
    share = simulated.environment.get("payload_share", 1.0)
    links_s = 0.0
    if ratio is not None:
        links_s = _figures(ideal, lambda it: it.all_reduce_s) * (share / ratio - 1)
    light = {"emulated": light_s(ours, job), "simulated": light_s([theirs], job)}
    set_up_s = (light["emulated"] or 0.0) - (light["simulated"] or 0.0) if None not in light.values() else 0.0
    busy = [load.busy for run in ours for load in run.of(ProcessorLoad) if load.t >= run.released]
    again = [done.retransmits for record in real for done in record.done.values()]
    rounds = sum(len(record.iterations) for record in real)
    return {
        "gap_s": gap_s,
        "timers_s": timers_s,
        "links_s": links_s,
        "set_up_s": set_up_s,
        "rest_s": gap_s - timers_s - links_s - set_up_s,
        "retransmits_per_rank_and_iteration": sum(again) / rounds,
        "light_s": light,
        "light_by": "controller" if theirs.of(RingSetUps) else "agents" if theirs.of(Flow) else None,
        "busy": _mean(busy) if busy else None,
        "contended": len(theirs.jobs) > 1,
        "light_moved": light_moved(theirs),
        "verdict": _of_itself(emulated, ours, ends),
    }


def light_moved(run: Run) -> bool:
    """Whether circuits changed while jobs trained."""
    return any(
        action.plan.do in ("regroup", "circuits") and action.begun > run.released for action in run.actions
    )


def _ends(run: Run, job: JobRun) -> set[str]:
    """The nodes whose links hold the job up.

    Those are the packet switches where the job's ring crosses from one to another (before a live regroup, as
    that takes most of the time), else the job's GPUs.
    """
    circuits = run.circuits_before if light_moved(run) else run.circuits
    switch_of = {gpu.partition(":")[0]: port.partition(":")[0] for gpu, port in circuits}
    on = [switch_of.get(gpu) for gpu in job.gpus]
    crosses = any(a != b for a, b in zip(on, on[1:] + on[:1], strict=True))
    return set(switch_of.values()) if crosses else set(job.gpus)


def _joins(direction: str, ends: set[str]) -> bool:
    """Whether the direction of a measured link (``A to B``) has one of the nodes at an end."""
    return bool(ends & set(direction.split(" to ")))


def _link_ratio(links: Iterable[LinkRate], ends: set[str]) -> float | None:
    """Median of the measured rate over the setting, of the links at some nodes."""
    ratios = [link.measured_bps / link.set_bps for link in links if _joins(link.direction, ends)]
    return statistics.median(ratios) if ratios else None


def _of_itself(side: Side, runs: Sequence[Run], ends: set[str]) -> list[Mapping[str, Any]]:
    """A run's reasons for its verdict on itself: the links at some nodes, and processors in some runs."""
    names = {run.name for run in runs}
    return [
        reason
        for reason in side.result["fidelity"]["reasons"]
        if (reason["code"] == "link_rate" and _joins(reason["direction"], ends))
        or (reason["code"] == "processors_busy" and reason["run"] in names)
    ]


def _slowest_compute_s(jobs: Sequence[JobRun]) -> float:
    """Seconds that an iteration's slowest rank computes, mean over iterations."""
    longest: dict[tuple[int, int], float] = {}
    for number, job in enumerate(jobs):
        for it in job.iterations:
            longest[number, it.i] = max(longest.get((number, it.i), 0.0), it.compute_s)
    return _mean(longest.values())


def light_s(runs: Sequence[Run], job: str) -> float | None:
    """Seconds of an iteration in which a rank waits for light, mean; None where its light is not switched.

    With an agent's flows: from the worker's wish to the light, all flows of a rank one after the other. On a
    ring: from a step's end to the light of the next, all changes of an all-reduce.
    """
    waits, rounds = 0.0, 0
    switched = False
    for run in runs:
        record = run.jobs[job]
        iterations = len({it.i for it in record.iterations})
        mine = set(record.gpus)
        flows = [flow for flow in run.of(Flow) if flow.gpu in mine and flow.t_lit is not None]
        changes = [change for note in run.of(RingSetUps) for change in note.set_ups]
        switched |= bool(flows or changes)
        waits += sum((flow.t_lit or 0.0) - flow.t_open for flow in flows) / len(record.gpus)
        waits += sum(change["total_s"] for change in changes)
        rounds += iterations
    return waits / rounds if switched else None


def which_is_off(entry: Mapping[str, Any]) -> str:
    """``neither``, ``emulation`` or ``simulation``: whose part of the difference is the greater.

    The emulation's: links and timers below what the scenario says, and the time of kernel, software switches,
    workers and agents, which share this machine's processors and stand for hardware. The simulation's: what
    the scenario has and it leaves out, TCP and the controller, and steps that it lets overlap less. Where the
    emulation says of itself that its links or processors failed it, it is off.
    """
    if (
        abs(entry["iteration_s"]["difference_percent"]) < AGREE_PERCENT
        and abs(entry["allreduce_s"]["difference_percent"]) < AGREE_ALL_REDUCE_PERCENT
    ):
        return "neither"
    causes = entry["causes"]
    emulations, simulations = causes["timers_s"] + causes["links_s"], 0.0
    if causes["rest_s"] < 0 or _names_what_is_left_out(causes):
        simulations += causes["rest_s"]
    else:
        emulations += causes["rest_s"]
    if causes["light_by"] == "controller":
        simulations += causes["set_up_s"]
    else:
        emulations += causes["set_up_s"]
    return "emulation" if causes["verdict"] or abs(emulations) > abs(simulations) else "simulation"


def _names_what_is_left_out(causes: Mapping[str, Any]) -> bool:
    """Whether TCP or the controller had a hand in what is not explained otherwise."""
    return bool(causes["retransmits_per_rank_and_iteration"] >= MANY_RETRANSMITS or causes["light_moved"])


def reasons(entry: Mapping[str, Any]) -> list[str]:
    """Why the two differ, as far as the runs tell: sentences without a full stop, the weightiest first."""
    if entry["off"] == "neither":
        return ["they agree"]
    causes = entry["causes"]
    light = causes["light_s"]
    waited = ""
    if None not in light.values():
        waited = (
            f"light that was longer in coming: {1000 * light['emulated']:.1f} ms of an iteration are spent "
            f"waiting for it, simulated {1000 * light['simulated']:.1f} ms"
            + (" (the controller's own time is not)" if causes["light_by"] == "controller" else "")
        )
    parts: list[tuple[float, str]] = []
    for seconds, what in (
        (causes["timers_s"], "compute timers that woke late"),
        (causes["links_s"], "links that carried less payload than the simulation takes (acknowledgements)"),
        (causes["set_up_s"], waited),
    ):
        if abs(seconds) >= 0.05 * abs(causes["gap_s"]):
            parts.append((seconds, f"{_milliseconds(seconds)} from {what}"))
    rest = causes["rest_s"]
    if abs(rest) >= 0.05 * abs(causes["gap_s"]):
        parts.append((rest, f"{_milliseconds(rest)} from {_rest(entry)}"))
    said = [line for _, line in sorted(parts, key=lambda part: -abs(part[0]))]
    return [*said, *(f"the emulation says of itself: {reason['text']}" for reason in causes["verdict"][:2])]


def _milliseconds(seconds: float) -> str:
    return f"{signed(1000 * seconds)} ms"


def signed(value: float) -> str:
    """With one digit, its sign, and a proper minus."""
    return f"{value:+.1f}".replace("-", "−")


def _rest(entry: Mapping[str, Any]) -> str:
    """What neither timers nor links explain, by what else differs."""
    causes = entry["causes"]
    if causes["rest_s"] < 0:
        slower = "; another job, slower than simulated, left it more of what they share"
        return (
            "what the simulation makes wait and the emulation does not: a worker passes on the part of a "
            f"chunk that it has{slower if causes['contended'] else ''}"
        )
    again = causes["retransmits_per_rank_and_iteration"]
    found = []
    if again >= MANY_RETRANSMITS:
        found.append(
            f"TCP ({again:.1f} segments sent again by each rank in an iteration): pauses after a loss, and "
            "rates about the fair share, of which the lowest sets the pace of a collective"
        )
    if causes["light_moved"]:
        found.append("the controller's own time and TCP's recovery when light is moved")
    if not _names_what_is_left_out(causes):
        busy = "" if causes["busy"] is None else f" (processors {100 * causes['busy']:.0f} % busy on average)"
        found.append(f"kernel, software switches and workers, whose time is not simulated{busy}")
    return " and ".join(found)

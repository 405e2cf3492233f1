"""``result.json`` of a comparison, from a run's events: pure functions, no I/O, no clock.

Times are seconds of the emulation (real time times D), sizes emulated bytes, unless a name or
``docs/result-schema.md`` says otherwise.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fabric.parity import ratio_interval, set_up_line
from scenarios.comparison import (
    CONTROLLER,
    Comparison,
    TroubleSpec,
    job_settings,
    nic_rate_bps,
    ring_of,
    scaled,
)
from scenarios.fidelity import (
    ALL_REDUCE_OVER_IDEAL,
    Level,
    Verdict,
    judge_links,
    judge_parameters,
    judge_processors,
    judge_switches,
    judge_timers,
    no_fidelity,
    parameters_identical,
    percentile,
    repeated,
)
from scenarios.prediction import break_even_set_up
from scenarios.records import SIMULATED, Event, Iteration, JobRun, Run, read_runs
from scenarios.results import (
    SCHEMA_VERSION,
    completion_s,
    labels_of,
    median_all_reduce_s,
    median_iteration_s,
    utilisation,
)

#: Training time of the baseline over the model's: from which value on a run is doubtful, and from which bad.
#: What is concluded from it are ratios of this size.
BASELINE_OVER_MODEL = (1.01, 1.03)
#: The same of a comparison with rings of wavelengths, whose collectives differ by factors.
BASELINE_OVER_MODEL_OF_RINGS = (1.05, 1.10)
#: What must be 0 in every correct run; the kernel counts it.
FORBIDDEN = ("collisions", "receiver_overlaps", "misdirected")
#: What must be 0 where a step's light stands before anybody sends; TCP sends again what is lost, later.
NEVER_ON_RINGS = ("dark_drops", "unset_drops", "unrouted")
#: The kernel's ways to lose a packet in a WSS; TCP sends it again.
DROPS = ("dark_drops", "unset_drops", "blocked_drops", "unplugged_drops", "dim_drops")

#: What kind of number each entry of the result holds; the first pattern that matches decides.
LABELS: tuple[tuple[str, str], ...] = (
    ("schema", "setting"),
    ("scale.*", "setting"),
    ("settings.*", "setting"),
    ("comparison.limit", "setting"),
    ("comparison.published.*", "published"),
    ("*.predicted.*", "analytic"),
    ("*.ideal_allreduce_s", "analytic"),
    ("*.ranks", "setting"),
    ("*.collective", "setting"),
    ("*.steps", "setting"),
    ("fabrics.*.ring.wavelengths*", "setting"),
    ("fabrics.*.ring.set_ups_per_allreduce", "setting"),
    ("fabrics.*.ring.declared_ms", "setting"),
    ("*.light_use.*", "analytic"),
    ("*.iterations", "setting"),
    ("*.after_iterations", "setting"),
    ("*.absence_s", "setting"),
    ("*.quarantine_s", "setting"),
    ("*.control.*", "setting"),
    ("sweep.tolerance", "setting"),
    ("sweep.points.*.real.*", "setting"),
    ("sweep.points.*.gradient_bytes", "setting"),
    ("sweep.*.analytic*", "analytic"),
    ("*.set_bps", "setting"),
    ("fabrics.*", "measured"),
    ("comparison.*", "measured"),
    ("trouble.*", "measured"),
    ("sweep.*", "measured"),
    ("fidelity.*", "measured"),
    ("duration_s", "measured"),
)


def build_comparison(
    comparison: Comparison,
    events: Sequence[Event],
    series: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The object of ``result.json``. ``environment``: of it ``run``, ``runtime``, ``duration_s`` and
    ``onic_timings`` are used.

    ``series`` is not: switches do not see what passes in the light.
    """
    runs = read_runs(events)
    simulated = environment.get("runtime") == SIMULATED
    fabrics = {name: _fabric(comparison, name, runs) for name in comparison.settings}
    fabrics = {name: found for name, found in fabrics.items() if found}
    trouble = {name: _trouble(comparison, name, runs, environment) for name in comparison.spec.trouble}
    trouble = {name: found for name, found in trouble.items() if found}
    sweep = _sweep(comparison, runs)
    return {
        "schema": SCHEMA_VERSION,
        "kind": "comparison",
        "scenario": comparison.spec.name,
        "run": environment.get("run"),
        "runtime": environment.get("runtime"),
        "complete": len(fabrics) == len(comparison.settings)
        and (simulated or len(trouble) == len(comparison.spec.trouble))
        and (comparison.spec.sweep is None or sweep is not None),
        "duration_s": environment.get("duration_s"),
        "scale": {"time": comparison.spec.scale.time, "payload": comparison.spec.scale.payload},
        "settings": {
            "compute_s": comparison.compute_s,
            "gradient_bytes": comparison.gradient_bytes,
            "collective": comparison.spec.training.collective,
            "model": comparison.spec.training.model,
            "congestion_control": comparison.spec.tcp.congestion_control,
            "baseline": comparison.spec.baseline,
        },
        "fabrics": fabrics,
        "comparison": _compared(comparison, fabrics, runs),
        "trouble": trouble,
        "sweep": sweep,
        "fidelity": no_fidelity() if simulated else _fidelity(comparison, runs, events, fabrics, sweep),
        "simulation": environment.get("simulation"),
        "labels": labels_of(environment, LABELS),
    }


def runs_on(runs: Sequence[Run], fabric: str) -> list[Run]:
    """The undisturbed runs of the whole training on a fabric, by repetition."""
    return [run for run in runs if run.kind == "fabric" and run.case == fabric]


def compared_job(run: Run) -> JobRun:
    """The compared job of a run: the first, and most often the only one."""
    return next(iter(run.jobs.values()))


def _fabric(comparison: Comparison, name: str, runs: Sequence[Run]) -> dict[str, Any] | None:
    mine = runs_on(runs, name)
    if not mine:
        return None
    request = job_settings(comparison, name)
    times = [completion_s(run, comparison.job) for run in mine]
    jobs = [compared_job(run) for run in mine]
    ring = _ring_figures(comparison, name, mine[-1])
    set_up = [flow_figures(run)["setup_ms"]["p50"] for run in mine if run.noted("flow")]
    if ring is not None and ring["set_up_ms"] is not None:
        set_up = [ring["set_up_ms"]["p50"]]
    predicted = {"completion_s": comparison.expected_s(name, request)}
    if set_up:
        set_up_s = statistics.median(set_up) / 1000
        predicted["with_measured_setup_s"] = comparison.expected_s(name, request, set_up_s)
    return {
        "title": comparison.spec.fabrics[name].title,
        "gpus": list(comparison.ranks(name)),
        "ranks": comparison.world_size,
        "collective": request["collective"],
        "steps": comparison.steps(name).steps,
        "iterations": request["iterations"],
        "completion_s": statistics.median(times),
        "iteration_s": statistics.median(median_iteration_s(job) for job in jobs),
        "allreduce_s": statistics.median(median_all_reduce_s(job) for job in jobs),
        "ideal_allreduce_s": comparison.all_reduce_s(name, request["gradient_bytes"]),
        "predicted": predicted,
        "over_model": statistics.median(times) / predicted["completion_s"],
        "utilisation": statistics.median(utilisation(run, comparison.job) for run in mine),
        "repeats": times,
        **_training_figures(mine[-1]),
        "parameters_identical": all(parameters_identical(job) for run in mine for job in run.jobs.values())
        if not mine[-1].simulated
        else None,
        "jobs": _side_by_side(mine) if len(mine[-1].jobs) > 1 else None,
        "lit": lit_pairs(mine[-1]),
        "flows": flow_figures(mine[-1]) if mine[-1].noted("flow") else None,
        "light": light_figures(mine[-1]),
        "light_use": _light_use(comparison, name),
        "ring": ring,
    }


def _side_by_side(runs: Sequence[Run]) -> dict[str, Any]:
    """Each of several jobs that ran at once: medians over the repetitions."""
    return {
        name: {
            "gpus": list(first.gpus),
            "completion_s": statistics.median(completion_s(run, name) for run in runs),
            "iteration_s": statistics.median(median_iteration_s(run.jobs[name]) for run in runs),
            "allreduce_s": statistics.median(median_all_reduce_s(run.jobs[name]) for run in runs),
            "parameters_identical": None
            if runs[-1].simulated
            else all(parameters_identical(run.jobs[name]) for run in runs),
        }
        for name, first in runs[-1].jobs.items()
    }


def lit_pairs(run: Run) -> dict[str, int] | None:
    """What the WSSs let through while the jobs ran, as read back. None where nobody read it.

    ``pairs``: of nodes that light leads between; ``between_jobs``: those that are not of one job.
    """
    notes = run.noted("grid")
    if not notes:
        return None
    user = {gpu: job.name for job in run.jobs.values() for gpu in job.gpus}
    lit = [xc for note in notes for switch in note["grid"]["switches"] for xc in switch["lit"]]
    return {
        "pairs": len(lit),
        "between_jobs": sum(
            user.get(xc["from"]) is None or user.get(xc["from"]) != user.get(xc["to"]) for xc in lit
        ),
    }


def _light_use(comparison: Comparison, name: str) -> dict[str, Any] | None:
    """What an all-reduce asks of a grid's lasers and receivers; None without a grid."""
    use = comparison.light_use(name)
    return None if use is None else {**asdict(use), "collisions_possible": use.collisions_possible}


def _ring_figures(comparison: Comparison, name: str, run: Run) -> dict[str, Any] | None:
    """A ring's wavelengths and the times in which its light was set between two steps; None without ring.

    ``set_up_ms``: from the end of the last flow of a step to the light of the next, and of that ``write_ms``,
    until the switches had it and it was read back.
    """
    plan = comparison.ring_plan(name)
    if plan is None:
        return None
    ring = ring_of(comparison.settings[name].fabric)
    assert ring is not None
    used = {emit.wavelength for peers in plan.transmit.values() for emit in peers.values()}
    noted: Event = next(iter(run.noted("ring")), {"set_ups": [], "ring": None})
    set_ups = noted["set_ups"]
    written = [1000 * change["write_s"] for change in set_ups if change["write_s"] is not None]
    declared_s = ((noted["ring"] or {}).get("statistics") or {}).get("declared_s")
    return {
        "nodes": len(ring.nodes),
        "wavelengths": ring.wavelengths,
        "wavelengths_used": len(used),
        "set_ups_per_allreduce": comparison.set_ups(name),
        "set_ups": len(set_ups),
        "set_up_ms": _spread(1000 * change["total_s"] for change in set_ups) if set_ups else None,
        "write_ms": _spread(written) if written else None,
        "declared_ms": None if declared_s is None else 1000 * declared_s,
    }


def _training_figures(run: Run) -> dict[str, Any]:
    """What the ranks ended with, and whether every byte that was sent arrived; all None when simulated.

    Loss and accuracy are those of the compared job; the rest is of all jobs of the run.
    """
    if run.simulated:
        names = (
            "loss_first",
            "loss_last",
            "accuracy",
            "parameters_sha256",
            "parameters_identical",
            "payload",
        )
        return dict.fromkeys(names)
    first = compared_job(run).done.get(0)
    done = [event for job in run.jobs.values() for event in job.done.values()]
    everyone = len(done) == sum(len(job.gpus) for job in run.jobs.values())
    return {
        "loss_first": first["loss_first"] if first else None,
        "loss_last": first["loss_last"] if first else None,
        "accuracy": first["accuracy"] if first else None,
        "parameters_sha256": first["parameters_sha256"] if first else None,
        "parameters_identical": all(parameters_identical(job) for job in run.jobs.values()),
        "payload": {
            "sent_bytes": sum(e["bytes_sent"] for e in done),
            "received_bytes": sum(e["bytes_received"] for e in done),
            "lost_bytes": sum(e["bytes_sent"] - e["bytes_received"] for e in done) if everyone else None,
            "retransmitted_segments": sum(e.get("retransmits", 0) for e in done),
        },
    }


def flow_figures(run: Run) -> dict[str, Any]:
    """Of all flows of a run: how long from the request to the light, and how long the light was used.

    ``setup_ms``: request to light. ``idle_setup_ms``: the same of flows that stood in no queue. ``open_ms``:
    from the worker's wish to light, so with the wait for the own transmitter. ``lit_ms``: light to close.
    """
    flows = run.noted("flow")
    free = [flow for flow in flows if not flow["waited"]]
    iterations = {it.index for it in compared_job(run).iterations}
    expected = sum(it.flows for job in run.jobs.values() for it in job.iterations)
    return {
        "count": len(flows),
        "expected": expected,
        "not_traced": sum(note["count"] for note in run.noted("flows_lost")),
        "per_iteration": expected / max(1, len(iterations)),
        "waited": len(flows) - len(free),
        "setup_ms": _spread(1000 * (f["t_lit"] - f["t_request"]) for f in flows),
        "idle_setup_ms": _spread(1000 * (f["t_lit"] - f["t_request"]) for f in free),
        "open_ms": _spread(1000 * (f["t_lit"] - f["t_open"]) for f in flows),
        "lit_ms": _spread(1000 * (f["t_close"] - f["t_lit"]) for f in flows),
    }


def _spread(values: Any) -> dict[str, float | None]:
    found = sorted(values)
    if not found:
        return {"p50": None, "p99": None, "max": None}
    return {"p50": statistics.median(found), "p99": percentile(found, 0.99), "max": found[-1]}


def light_figures(run: Run) -> dict[str, Any] | None:
    """What the kernel and the agents counted in a run; None without O-NICs.

    Bytes are those of packets, some headers included. A figure is None where a counter was read on one side
    only or began anew.
    """
    moments = {note["moment"]: note for note in run.noted("light")}
    if simulated := run.noted("onics"):
        return _simulated_light(simulated[-1])
    if not {"before", "after"} <= moments.keys():
        return None
    before, after = moments["before"], moments["after"]
    switches = {
        name: sum(
            counters.get(name, 0) - before["kernel"]["switches"][switch].get(name, 0)
            for switch, counters in after["kernel"]["switches"].items()
        )
        for name in (*FORBIDDEN, *DROPS)
    }
    onics = {
        name: sum(
            _total(counters[name]) - _total(before["kernel"]["onics"][gpu][name])
            for gpu, counters in after["kernel"]["onics"].items()
        )
        for name in ("light_tx_bytes", "unrouted")
    }
    messages, flows = _messages(before["agents"], after["agents"])
    return {
        **switches,
        **onics,
        "control_messages": messages,
        "messages_per_flow": messages / flows if messages is not None and flows else None,
        "agents_restarted": sum(
            entry["epoch"] != before["agents"][gpu]["epoch"]
            for gpu, entry in after["agents"].items()
            if gpu in before["agents"]
        ),
    }


def _simulated_light(note: Event) -> dict[str, Any]:
    """The same of a simulation, which has the agents' state machines but no packets."""
    messages, flows = sum(note["messages"].values()), note["flows"]
    return {
        **dict.fromkeys((*FORBIDDEN, *DROPS, "light_tx_bytes", "unrouted")),
        "receiver_overlaps": note["receiver_overlaps"],
        "control_messages": messages,
        "messages_per_flow": messages / flows if flows else None,
        "agents_restarted": 0,
    }


def _total(value: float | Sequence[float]) -> float:
    return value if isinstance(value, int | float) else sum(value)


def _messages(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int | None, int]:
    """Messages that all agents sent between two readings, and flows done; None when one began anew."""
    if before.keys() != after.keys() or any(before[gpu]["epoch"] != after[gpu]["epoch"] for gpu in after):
        return None, 0
    pairs = [(before[gpu]["counters"], after[gpu]["counters"]) for gpu in after]
    sent = sum(sum(b["sent"].values()) - sum(a["sent"].values()) for a, b in pairs)
    return sent, sum(b["flows_done"] - a["flows_done"] for a, b in pairs)


def laps(run: Run) -> list[float]:
    """Seconds from the end of one iteration of the compared job to that of the next, last rank each."""
    ends = [max(it.end for it in group) for group in _by_iteration(compared_job(run))]
    return [end - before for before, end in itertools.pairwise([run.released, *ends])]


def exchanges(run: Run) -> list[float]:
    """Seconds of each all-reduce alone: from the end of the last rank's compute to the last rank's end."""
    groups = _by_iteration(compared_job(run))
    return [max(it.end for it in group) - max(it.compute_end for it in group) for group in groups]


def _by_iteration(job: JobRun) -> list[list[Iteration]]:
    return [list(group) for _, group in itertools.groupby(job.iterations, key=lambda it: it.index)]


def _told_apart(comparison: Comparison, name: str, runs: Sequence[Run]) -> dict[str, Any] | None:
    """How small a slowdown the runs could have shown, by the spread of iterations and of all-reduces.

    ``setup_us``: the set-up of a flow, in real time, that would make so small a difference to the training.
    None where nothing varies.
    """
    mine, base = runs_on(runs, name), runs_on(runs, comparison.spec.baseline)
    if mine[-1].simulated or any(len(laps(group[0])) < 2 for group in (mine, base)):
        return None
    found: dict[str, Any] = {}
    for what, samples in (("iteration", laps), ("allreduce", exchanges)):
        over, under = ([x for run in group for x in samples(run)] for group in (mine, base))
        interval = ratio_interval(over, under)
        found[what] = {**asdict(interval), "low": interval.low, "high": interval.high}
    waits = comparison.set_ups(name)
    lap_s = statistics.fmean(x for run in base for x in laps(run))
    least_s = found["iteration"]["half_width"] * lap_s / comparison.time_scale
    return {**found, "setup_us": 1e6 * least_s / waits if waits else None}


def _compared(
    comparison: Comparison, fabrics: Mapping[str, Any], runs: Sequence[Run]
) -> dict[str, Any] | None:
    """The other fabrics against the baseline; None when one was not run."""
    spec = comparison.spec
    if len(fabrics) < len(comparison.settings):
        return None
    base = fabrics[spec.baseline]
    base_model_s = base["predicted"].get("with_measured_setup_s", base["predicted"]["completion_s"])
    others = [name for name in fabrics if name != spec.baseline]
    ratios: dict[str, Any] = {}
    for name in others:
        each = [a / b for a, b in zip(fabrics[name]["repeats"], base["repeats"], strict=False)]
        predicted = fabrics[name]["predicted"]
        ratios[name] = {
            "training_time": fabrics[name]["completion_s"] / base["completion_s"],
            "iteration": fabrics[name]["iteration_s"] / base["iteration_s"],
            "allreduce": fabrics[name]["allreduce_s"] / base["allreduce_s"],
            "repeats": each,
            "spread": max(each) - min(each),
            "told_apart": _told_apart(comparison, name, runs),
            "predicted": {
                "training_time": predicted.get("with_measured_setup_s", predicted["completion_s"])
                / base_model_s
            },
            "within_limit": None
            if spec.limit is None
            else fabrics[name]["completion_s"] / base["completion_s"] <= spec.limit,
        }
    # The order in which a collective adds decides the last bits: only the same one gives the same.
    hashes: dict[str, set[str | None]] = {}
    for found in fabrics.values():
        hashes.setdefault(found["collective"], set()).add(found["parameters_sha256"])
    return {
        "baseline": spec.baseline,
        "limit": spec.limit,
        "ratios": ratios,
        "parameters_identical": all(found["parameters_identical"] for found in fabrics.values())
        and all(len(group) == 1 for group in hashes.values())
        if base["parameters_identical"] is not None
        else None,
        "accuracy_equal": len({found["accuracy"] for found in fabrics.values()}) == 1
        if base["accuracy"] is not None
        else None,
        "published": _published(comparison),
    }


def _published(comparison: Comparison) -> dict[str, Any] | None:
    published = comparison.spec.published
    if published is None:
        return None
    base = published.training_time.get(comparison.spec.baseline)
    return {
        "source": published.source,
        "training_time_s": dict(published.training_time),
        "accuracy_percent": dict(published.accuracy_percent),
        "ratios": {
            name: time / base
            for name, time in published.training_time.items()
            if base and name != comparison.spec.baseline
        },
    }


def slowest_iterations(job: JobRun) -> list[Iteration]:
    """Of every iteration the rank that ended last, in order."""
    return [max(group, key=lambda it: it.end) for group in _by_iteration(job)]


def trouble_window(run: Run, spec: TroubleSpec) -> tuple[float, float] | None:
    """From when what is killed was away until when it was back (CLOCK_MONOTONIC seconds)."""
    killed = next((note for note in run.noted("trouble") if note["happened"] == "killed"), None)
    if killed is None:
        return None
    later = [note["t"] for note in run.noted("trouble") if note["t"] > killed["t"]]
    return killed["t"], min(later, default=killed["t"] + spec.absence)


def _quarantine_s(timings: Mapping[str, float]) -> float | None:
    """How long an agent that was started again grants nothing, by its own declaration."""
    if not {"lease_s", "guard_s"} <= timings.keys():
        return None
    return timings["lease_s"] + timings["guard_s"]


def _trouble(
    comparison: Comparison, name: str, runs: Sequence[Run], environment: Mapping[str, Any]
) -> dict[str, Any] | None:
    run = next((run for run in runs if run.kind == "trouble" and run.variant == name), None)
    if run is None:
        return None
    spec = comparison.spec.trouble[name]
    timings = (environment.get("onic_timings") or {}).get(spec.fabric) or {}
    window = trouble_window(run, spec)
    each = slowest_iterations(compared_job(run))
    groups: dict[str, list[float]] = {"before": [], "during": [], "after": []}
    for it in each:
        when = "before"
        if window is not None and it.end > window[0]:
            when = "during" if it.start < window[1] else "after"
        groups[when].append(it.end - it.start)
    middle = {when: statistics.median(spans) if spans else None for when, spans in groups.items()}
    clean = runs_on(runs, spec.fabric)
    usual = statistics.median(median_iteration_s(compared_job(r)) for r in clean) if clean else None
    return {
        "title": spec.title,
        "fabric": spec.fabric,
        "killed": spec.kill,
        "after_iterations": spec.after_iterations,
        "absence_s": spec.absence if spec.kill == CONTROLLER else None,
        "away_s": None if window is None else window[1] - window[0],
        "quarantine_s": _quarantine_s(timings) if spec.kill not in (None, CONTROLLER) else None,
        "control": spec.control.model_dump(),
        "iterations": len(each),
        "completion_s": completion_s(run, comparison.job),
        "iteration_s": {**middle, "undisturbed_run": usual},
        "longest_iteration_s": {when: max(spans, default=None) for when, spans in groups.items()},
        "during_over_before": middle["during"] / middle["before"]
        if middle["during"] and middle["before"]
        else None,
        **_training_figures(run),
        "flows": flow_figures(run) if run.noted("flow") else None,
        "light": light_figures(run),
        "control_network": _control_faults(run),
    }


def _control_faults(run: Run) -> dict[str, int] | None:
    """Control messages lost, doubled and held back on purpose; an agent that died forgot its own."""
    after = next((note for note in run.noted("light") if note["moment"] == "after"), None)
    before = next((note for note in run.noted("light") if note["moment"] == "before"), None)
    if after is None or before is None:
        return None
    total: dict[str, int] = {}
    for gpu, entry in after["agents"].items():
        old = before["agents"].get(gpu)
        same_life = old is not None and old["epoch"] == entry["epoch"]
        for name, count in entry["counters"].get("faults", {}).items():
            started = old["counters"].get("faults", {}).get(name, 0) if same_life and old else 0
            total[name] = total.get(name, 0) + count - started
    return total or None


def _sweep(comparison: Comparison, runs: Sequence[Run]) -> dict[str, Any] | None:
    """The points of the sweep, and by gradient the line through them and the break-even.

    All from the all-reduces alone, last rank to last rank; a slowdown is over what the line gives without any
    set-up, so it is the set-ups' and not that of a baseline which is slow for reasons of its own.
    """
    spec = comparison.spec.sweep
    if spec is None:
        return None
    swept = [run for run in runs if run.kind == "sweep"]
    base = {
        run.point["gradient_bytes"]: statistics.median(exchanges(run))
        for run in swept
        if run.case == comparison.spec.baseline
    }
    points = []
    setting = comparison.settings[spec.fabric]
    rate_bps = min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus)
    steps = comparison.steps(spec.fabric)
    for run in swept:
        real = run.point
        if run.case != spec.fabric or real["gradient_bytes"] not in base or not run.noted("flow"):
            continue
        size = scaled(int(real["gradient_bytes"]), comparison)
        idle = comparison.all_reduce_s(spec.fabric, size)
        set_up_s = flow_figures(run)["setup_ms"]["p50"] / 1000
        points.append(
            {
                "real": dict(real),
                "gradient_bytes": size,
                "setup_ms": 1000 * set_up_s,
                "allreduce_s": statistics.median(exchanges(run)),
                "baseline_allreduce_s": base[real["gradient_bytes"]],
                "ideal_allreduce_s": idle,
                "analytic_slowdown": 1 + steps.steps * set_up_s / idle,
                "parameters_identical": parameters_identical(compared_job(run))
                if not run.simulated
                else None,
                **{
                    name: (light_figures(run) or {}).get(name) for name in ("collisions", "receiver_overlaps")
                },
            }
        )
    if len(base) < len(spec.gradient) or len(points) < len(spec.gradient) * len(spec.tuning) * len(
        spec.control_delay
    ):
        return None
    scale = comparison.time_scale
    break_even = []
    for real_bytes in spec.gradient:
        size = scaled(real_bytes, comparison)
        mine = [point for point in points if point["real"]["gradient_bytes"] == real_bytes]
        line = set_up_line([(point["setup_ms"] / 1000, point["allreduce_s"]) for point in mine])
        if not (line.waits > 0 and line.free_s > 0):
            # So disturbed that longer set-ups seem to cost nothing: there is nothing to conclude.
            return None
        for point in mine:
            point["slowdown"] = point["allreduce_s"] / line.free_s
        measured_ms = 1000 * line.break_even_s(spec.tolerance * line.free_s)
        over_baseline_ms = 1000 * line.break_even_s(spec.tolerance * base[real_bytes])
        alone = break_even_set_up(steps, size, rate_bps, spec.tolerance)
        training = break_even_set_up(steps, size, rate_bps, spec.tolerance, comparison.compute_s)
        break_even.append(
            {
                "real_gradient_bytes": real_bytes,
                "gradient_bytes": size,
                "least_flow_bytes": size / steps.chunks,
                "setup_ms": measured_ms,
                "stands_for_ms": measured_ms / scale,
                "least_measured_setup_ms": min(point["setup_ms"] for point in mine),
                "over_baseline_setup_ms": over_baseline_ms,
                "over_baseline_stands_for_ms": over_baseline_ms / scale,
                "free_allreduce_s": line.free_s,
                "baseline_allreduce_s": base[real_bytes],
                "ideal_allreduce_s": mine[0]["ideal_allreduce_s"],
                "waits": line.waits,
                "analytic_setup_ms": 1000 * alone,
                "analytic_stands_for_ms": 1000 * alone / scale,
                "analytic_with_compute_ms": 1000 * training,
                "analytic_with_compute_stands_for_ms": 1000 * training / scale,
            }
        )
    return {
        "fabric": spec.fabric,
        "tolerance": spec.tolerance,
        "steps": steps.steps,
        "points": points,
        "break_even": break_even,
    }


def _fidelity(
    comparison: Comparison,
    runs: Sequence[Run],
    events: Sequence[Event],
    fabrics: Mapping[str, Any],
    sweep: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Whether the emulation gave what it was set to give, and so whether the figures can be believed."""
    verdict = Verdict()
    # The sweep's compute is short on purpose and in none of its figures.
    timed = [run for run in runs if run.kind != "sweep"]
    checked = {
        "links": judge_links(events, verdict),
        "timer": judge_timers(timed, comparison.compute_s, verdict),
        "cpu": judge_processors(runs, verdict),
        "switches_restarted": judge_switches(runs, verdict),
        "repeated": repeated(events),
        "samples_missing": {},
    }
    base = fabrics.get(comparison.spec.baseline)
    if base:
        # On a grid every flow has to be set up, which is no fault of the emulation's.
        predicted = base["predicted"].get("with_measured_setup_s", base["predicted"]["completion_s"])
        over_model = base["completion_s"] / predicted
        verdict.check(
            over_model,
            BASELINE_OVER_MODEL_OF_RINGS
            if any(found["ring"] for found in fabrics.values())
            else BASELINE_OVER_MODEL,
            "baseline_over_model",
            fabric=comparison.spec.baseline,
            over=over_model,
        )
    for point in sweep["points"] if sweep else ():
        over = point["baseline_allreduce_s"] / point["ideal_allreduce_s"]
        size = point["real"]["gradient_bytes"]
        verdict.check(
            over,
            ALL_REDUCE_OVER_IDEAL,
            "all_reduce_over_ideal",
            gradient_bytes=size,
            fabric=comparison.spec.baseline,
            over=over,
        )
    judge_parameters(runs, verdict)
    for run in runs:
        _judge_light(run, verdict)
    return {**verdict.as_json(), **checked}


def _judge_light(run: Run, verdict: Verdict) -> None:
    lit = lit_pairs(run)
    if lit and lit["between_jobs"]:
        verdict.add(
            "bad", "light_astray", run=run.name, count=lit["between_jobs"], counter="wavelengths_between_jobs"
        )
    payload = _training_figures(run)["payload"]
    if payload and payload["lost_bytes"]:
        verdict.add("bad", "payload_lost", run=run.name, bytes=payload["lost_bytes"])
    light = light_figures(run)
    if light is None:
        return
    astray: list[tuple[Level, Sequence[str]]] = [("bad", FORBIDDEN)]
    if run.noted("ring"):
        astray.append(("doubtful", NEVER_ON_RINGS))
    for level, names in astray:
        for name in names:
            if light[name]:
                verdict.add(level, "light_astray", run=run.name, counter=name, count=light[name])

"""``result.json`` from a run's events: pure functions, no I/O, no clock.

Times are seconds of the emulating host's clock unless a name says otherwise, rates are bits per second as
emulated (real rate / (D * S)). ``docs/result-schema.md`` describes the object; :data:`LABELS` says of each
number in it whether it was measured, computed from a model (analytic), published or set.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fabric.cost import ring_all_reduce_time
from fabric.topology import Port
from scenarios.fidelity import (
    ALL_REDUCE_OVER_IDEAL,
    SERIES_STEP_S,
    Verdict,
    judge_links,
    judge_parameters,
    judge_processors,
    judge_samples,
    judge_switches,
    judge_timers,
    no_fidelity,
    parameters_identical,
    repeated,
)
from scenarios.prediction import predict_completions
from scenarios.records import SIMULATED, Event, JobRun, Run, read_runs
from scenarios.schema import Scenario, standing
from scenarios.utilisation import activities, agreement, by_definition, waiting_range

SCHEMA_VERSION = 2
#: Beacon gaps shorter than this are not recorded by the worker.
BEACON_FLOOR_S = 0.02

#: What kind of number each entry of the result holds; the first pattern that matches decides.
LABELS: tuple[tuple[str, str], ...] = (
    ("schema", "setting"),
    ("scale.*", "setting"),
    ("settings.*", "setting"),
    ("*.published.*", "published"),
    ("*.predicted.*", "analytic"),
    ("*.ideal_allreduce_s*", "analytic"),
    ("*.waiting_counted*", "analytic"),
    ("*.utilisations.overlap.*", "analytic"),
    ("*.utilisations.full_rate.*", "analytic"),
    ("*.ranks", "setting"),
    ("*.iterations", "setting"),
    ("*.after_iterations", "setting"),
    ("live.limit_ms", "setting"),
    ("live.dark_time_declared_ms.*", "setting"),
    ("*.set_bps", "setting"),
    ("cases.*", "measured"),
    ("variants.*", "measured"),
    ("live.*", "measured"),
    ("fidelity.*", "measured"),
    ("duration_s", "measured"),
)


def label_of(path: str, labels: Sequence[tuple[str, str]] = LABELS) -> str | None:
    """``measured``, ``analytic``, ``published`` or ``setting`` for a dotted path into the result."""
    return next((label for pattern, label in labels if fnmatch.fnmatchcase(path, pattern)), None)


def labels_of(
    environment: Mapping[str, Any], labels: Sequence[tuple[str, str]] = LABELS
) -> list[dict[str, str]]:
    """The list for result.json; what a testbed would have measured is labelled simulated in a simulation."""
    word = SIMULATED if environment.get("runtime") == SIMULATED else "measured"
    return [{"path": path, "label": word if label == "measured" else label} for path, label in labels]


def completion_s(run: Run, job: str) -> float:
    """Seconds from the common release of a run's jobs to the end of the job's last iteration."""
    return run.jobs[job].end - run.released


def utilisation(run: Run, job: str) -> float:
    """Share (0..1) of the job's time, release to end, that its GPUs spent in compute; mean over GPUs."""
    record = run.jobs[job]
    computing = sum(it.compute_s for it in record.iterations)
    return computing / (len(record.gpus) * completion_s(run, job))


def median_all_reduce_s(job: JobRun) -> float:
    """Median seconds of an all-reduce over all ranks and iterations, waiting for slower ranks included."""
    return statistics.median(it.all_reduce_s for it in job.iterations)


def median_iteration_s(job: JobRun) -> float:
    """Median seconds of an iteration over all ranks."""
    return statistics.median(it.end - it.start for it in job.iterations)


def nic_rate_bps(scenario: Scenario, gpu: str) -> float:
    """Emulated bits per second of a GPU's NIC port."""
    return scenario.fabric.link_at[Port(gpu, 0)].rate_bps / scenario.rate_scale


def reduction_percent(fragmented_s: float, regrouped_s: float) -> float:
    """Per cent of the fragmented completion time that regrouping saves."""
    return 100 * (fragmented_s - regrouped_s) / fragmented_s


def connections_unchanged(job: JobRun) -> bool:
    """Whether every rank ended with the TCP connections (peer and both ports) that it began with."""

    def table(event: Event) -> list[tuple[Any, ...]]:
        return sorted((c["peer"], c["local_port"], c["remote_port"]) for c in event["connections"])

    return len(job.done) == len(job.gpus) and all(
        rank in job.ready and table(job.ready[rank]) == table(done) for rank, done in job.done.items()
    )


def utilisation_series(run: Run, step_s: float = SERIES_STEP_S) -> list[dict[str, Any]]:
    """Share of each ``step_s`` that each GPU spent in compute: rows of t (seconds since release), job,
    gpu, utilisation (0..1). Every GPU has a row for every step until its job ends."""
    rows: list[dict[str, Any]] = []
    for job in run.jobs.values():
        steps = max(1, int((job.end - run.released) / step_s) + 1)
        for rank, gpu in enumerate(job.gpus):
            busy = [0.0] * steps
            for it in job.iterations:
                if it.rank == rank:
                    _add_interval(busy, it.start - run.released, it.compute_end - run.released, step_s)
            rows += [
                {"t": round(k * step_s, 6), "job": job.name, "gpu": gpu, "utilisation": min(1.0, b / step_s)}
                for k, b in enumerate(busy)
            ]
    return rows


def _add_interval(bins: list[float], start: float, end: float, step: float) -> None:
    """Add the part of [start, end) that falls into each bin of width ``step``."""
    start = max(start, 0.0)
    for k in range(int(start / step), min(int(end / step) + 1, len(bins))):
        bins[k] += max(0.0, min(end, (k + 1) * step) - max(start, k * step))


def build_result(
    scenario: Scenario,
    events: Sequence[Event],
    series: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The object of ``result.json``.

    ``series``: throughput samples with ``run`` and ``t``. ``environment``: the run's environment.json; of
    it ``run``, ``runtime``, ``duration_s`` and ``optical_profiles`` are used.
    """
    runs = read_runs(events)
    cases = {name: _case(scenario, name, runs) for name in scenario.spec.cases}
    cases = {name: case for name, case in cases.items() if case}
    variants = {name: _variant(scenario, name, runs) for name in scenario.spec.variants}
    variants = {name: variant for name, variant in variants.items() if variant}
    live_run = next((run for run in runs if run.kind == "live" and scenario.spec.live), None)
    return {
        "schema": SCHEMA_VERSION,
        "scenario": scenario.spec.name,
        "run": environment.get("run"),
        "runtime": environment.get("runtime"),
        "complete": len(cases) == len(scenario.spec.cases)
        and len(variants) == len(scenario.spec.variants)
        and (live_run is not None or scenario.spec.live is None),
        "duration_s": environment.get("duration_s"),
        "scale": {"time": scenario.spec.scale.time, "payload": scenario.spec.scale.payload},
        "settings": {
            "compute_s": scenario.compute_s,
            "gradient_bytes": scenario.gradient_bytes,
            "collective": scenario.spec.training.collective,
            "model": scenario.spec.training.model,
            "congestion_control": scenario.spec.tcp.congestion_control,
        },
        "cases": cases,
        "variants": variants,
        "live": _live(scenario, live_run, environment) if live_run else None,
        "utilisation": agreement(scenario.spec, cases),
        "fidelity": no_fidelity()
        if environment.get("runtime") == SIMULATED
        else _fidelity(scenario, runs, events, series, cases),
        "simulation": environment.get("simulation"),
        "labels": labels_of(environment),
    }


def _job_figures(scenario: Scenario, run: Run, job: str) -> dict[str, Any]:
    record = run.jobs[job]
    return {
        "gpus": list(record.gpus),
        "ranks": len(record.gpus),
        "iterations": scenario.iterations(len(record.gpus)),
        "completion_s": completion_s(run, job),
        "iteration_s": median_iteration_s(record),
        "allreduce_s": median_all_reduce_s(record),
        "utilisation": utilisation(run, job),
        "loss_first": record.done[0]["loss_first"] if 0 in record.done else None,
        "loss_last": record.done[0]["loss_last"] if 0 in record.done else None,
        "accuracy": record.done[0]["accuracy"] if 0 in record.done else None,
        "parameters_identical": None if run.simulated else parameters_identical(record),
        "connections_unchanged": None if run.simulated else connections_unchanged(record),
    }


def _predicted(scenario: Scenario, run: Run, circuits: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Model's completion of each job of a run, in emulated seconds."""
    jobs = {name: job.gpus for name, job in run.jobs.items()}
    return predict_completions(scenario, circuits, jobs)


def _case(scenario: Scenario, name: str, runs: Sequence[Run]) -> dict[str, Any] | None:
    case = scenario.spec.cases[name]
    mine = [run for run in runs if run.kind == "case" and run.case == name]
    fragmented = [run for run in mine if run.placement == "fragmented"]
    regrouped = [run for run in mine if run.placement == "regrouped"]
    if not fragmented or not regrouped:
        return None
    job = case.watched
    placements = {"fragmented": fragmented, "regrouped": regrouped}
    times = {p: [completion_s(run, job) for run in group] for p, group in placements.items()}
    repeats = [
        {"fragmented": slow, "regrouped": fast, "reduction_percent": reduction_percent(slow, fast)}
        for slow, fast in zip(times["fragmented"], times["regrouped"], strict=False)
    ]
    middle = {p: statistics.median(values) for p, values in times.items()}
    reductions = [entry["reduction_percent"] for entry in repeats]
    gpus = regrouped[0].jobs[job].gpus
    ideal = ring_all_reduce_time(
        len(gpus), scenario.gradient_bytes, min(nic_rate_bps(scenario, gpu) for gpu in gpus)
    )
    predicted = {p: _predicted(scenario, group[0], group[0].circuits)[job] for p, group in placements.items()}
    last = {p: group[-1] for p, group in placements.items()}
    window = max(completion_s(run, job) for run in last.values())
    claimed = case.published.utilisation.gain if case.published and case.published.utilisation else None
    defined = by_definition(
        activities(last["fragmented"], job, ideal, window),
        activities(last["regrouped"], job, ideal, window),
        claimed,
    )
    return {
        "title": case.title,
        "watched": job,
        "completion_s": middle,
        "reduction_percent": reduction_percent(middle["fragmented"], middle["regrouped"]),
        "utilisation": {
            p: statistics.median(utilisation(run, job) for run in group) for p, group in placements.items()
        },
        "utilisations": defined,
        "waiting_counted": waiting_range(defined["compute"], claimed),
        "allreduce_over_ideal": statistics.median(median_all_reduce_s(run.jobs[job]) for run in regrouped)
        / ideal,
        "ideal_allreduce_s": ideal,
        "predicted": {
            "completion_s": predicted,
            "reduction_percent": reduction_percent(predicted["fragmented"], predicted["regrouped"]),
        },
        "published": _published(scenario, name),
        "repeats": repeats,
        "reduction_spread_points": max(reductions) - min(reductions),
        "jobs": {
            name_: {p: _job_figures(scenario, group[-1], name_) for p, group in placements.items()}
            for name_ in case.jobs
        },
        "circuits": {p: [list(circuit) for circuit in group[-1].circuits] for p, group in placements.items()},
    }


def _published(scenario: Scenario, case: str) -> dict[str, Any] | None:
    published = scenario.spec.cases[case].published
    if published is None:
        return None
    key = f"cases.{case}.published"
    return {
        "completion_s": {"fragmented": published.fragmented, "regrouped": published.regrouped},
        "reduction_percent": reduction_percent(published.fragmented, published.regrouped),
        "utilisation": None
        if published.utilisation is None
        else {"words": published.utilisation.words, "gain": list(published.utilisation.gain)},
        "standing": {
            "fragmented": standing(scenario.spec, f"{key}.fragmented"),
            "regrouped": standing(scenario.spec, f"{key}.regrouped"),
            "reduction_percent": standing(scenario.spec, f"{key}.fragmented", f"{key}.regrouped"),
            "utilisation": standing(scenario.spec, f"{key}.utilisation"),
        },
    }


def _variant(scenario: Scenario, name: str, runs: Sequence[Run]) -> dict[str, Any] | None:
    run = next((r for r in runs if r.kind == "variant" and r.variant == name), None)
    if run is None:
        return None
    variant = scenario.spec.variants[name]
    job = scenario.spec.cases[variant.case].watched
    predicted = _predicted(scenario, run, run.circuits)
    return {
        "title": variant.title,
        "case": variant.case,
        "watched": job,
        "completion_s": completion_s(run, job),
        "utilisation": utilisation(run, job),
        "predicted": {"completion_s": predicted[job]},
        "jobs": {other: _job_figures(scenario, run, other) for other in run.jobs},
    }


def moved_gpus(regroup: Mapping[str, Any]) -> set[str]:
    """Names of the GPUs whose fibres a regroup moves."""
    return {Port.parse(move["gpu"]).node for move in regroup["plan"]["moves"]}


def phases(regroup: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(phase, CLOCK_MONOTONIC seconds at which it was reached) of a regroup, in order."""
    return sorted(((e["phase"], float(e["t"])) for e in regroup["timeline"]), key=lambda entry: entry[1])


def regroup_window(regroup: Mapping[str, Any]) -> tuple[float, float]:
    """First and last time (CLOCK_MONOTONIC seconds) of a regroup's timeline."""
    times = [t for _, t in phases(regroup)]
    return min(times), max(times)


def light_window(regroup: Mapping[str, Any]) -> tuple[float, float]:
    """From the command that removes light to the end of a regroup (CLOCK_MONOTONIC seconds)."""
    begin, end = regroup_window(regroup)
    return dict(phases(regroup)).get("remove_light", begin), end


def dark_intervals(regroup: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(cross-connect, dark from, lit again) of every cross-connect that a regroup made, as its optical
    switch's driver reports them; (CLOCK_MONOTONIC seconds). Empty where nothing is reported."""
    return [
        (f"{switch} {entry['ingress']}→{entry['egress']}", entry["t_dark"], entry["t_lit"])
        for switch, results in (regroup.get("results") or {}).items()
        for entry in results
        if entry.get("t_dark") is not None and entry.get("t_lit") is not None
    ]


def light_off_s(regroup: Mapping[str, Any]) -> float | None:
    """Seconds from the controller's command to remove light until it knows the new light to be there: an
    upper bound of the dark time on the wire but for the receivers' re-training. None if nothing moved."""
    reached = dict(phases(regroup))
    if "remove_light" not in reached or "light_added" not in reached:
        return None
    return reached["light_added"] - reached["remove_light"]


def beacon_gaps(run: Run, moved: set[str], window: tuple[float, float]) -> list[dict[str, Any]]:
    """Beacon gaps that touch a moved GPU (as receiver or sender) and overlap the window, longest first."""
    gaps = []
    for job in run.jobs.values():
        for rank, done in job.done.items():
            for gap in done.get("beacon_gaps") or []:
                pair = (job.gpus[gap["peer"]], job.gpus[rank])
                if moved & set(pair) and gap["t_end"] >= window[0] and gap["t_start"] <= window[1]:
                    gaps.append(
                        {
                            "job": job.name,
                            "from": pair[0],
                            "to": pair[1],
                            "t_start": gap["t_start"],
                            "t_end": gap["t_end"],
                            "ms": 1000 * (gap["t_end"] - gap["t_start"]),
                        }
                    )
    return sorted(gaps, key=lambda gap: -gap["ms"])


def _live(scenario: Scenario, run: Run, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the regroup while the jobs train.

    Blackout is reported in three ways. ``beacon_gap_ms``: the longest time without a UDP beacon between
    two ranks of which at least one was moved, overlapping the change of light (5 ms beacons, so up to 5
    ms of it is waiting; a path without a gap above 20 ms counts as none). ``wire_dark_ms``: the longest
    time for which the optical switch reports a moved cross-connect dark. ``tcp_stall_ms``: the longest
    time in which no byte of an all-reduce moved at some rank, as far as it lies after the command that
    removes light, if it began before the new light was known to be there. ``blackout_ms`` is the worst of
    the three. ``tcp_stall_usual_ms`` stands beside it for comparison and excuses nothing: what stalls are
    like on this fabric without a regroup, the median over the earlier iterations of their worst.
    """
    assert scenario.spec.live is not None
    assert run.regroup is not None
    regroup = run.regroup["regroup"]
    moved = moved_gpus(regroup)
    window = regroup_window(regroup)
    gaps = beacon_gaps(run, moved, light_window(regroup))
    dark = [1000 * (lit - off) for _, off, lit in dark_intervals(regroup)]
    off = light_off_s(regroup)
    dark_from, lit_by = light_window(regroup)
    during = [
        end - max(begin, dark_from)
        for job in run.jobs.values()
        for it in job.iterations
        for begin, end in it.stalls
        if end > dark_from and begin < lit_by
    ]
    before: dict[tuple[str, int], float] = {}
    for job in run.jobs.values():
        for it in job.iterations:
            if it.end < window[0]:
                key = job.name, it.index
                before[key] = max(before.get(key, 0.0), it.stall_s)
    stall = max(during, default=0.0)
    usual = statistics.median(before.values()) if before else 0.0
    beacon = gaps[0]["ms"] if gaps else 0.0
    profiles = environment.get("optical_profiles") or {}
    declared = {
        name: [1000 * float(profile[f"dark_{bound}_s"]) for bound in ("min", "typ", "max")]
        for name, profile in profiles.items()
        if "dark_max_s" in profile
    }
    worst_dark = max((bounds[-1] for bounds in declared.values()), default=None)
    predicted = {
        "fragmented": _predicted(scenario, run, run.circuits_before),
        "regrouped": _predicted(scenario, run, run.circuits),
    }
    watched = scenario.spec.cases[run.case].watched
    return {
        "case": run.case,
        "watched": watched,
        "after_iterations": scenario.spec.live.after_iterations,
        "blackout_ms": max(beacon, 1000 * stall, max(dark, default=0.0)),
        "beacon_gap_ms": None if run.simulated else beacon,
        "wire_dark_ms": max(dark, default=None),
        "light_off_ms": None if off is None else 1000 * off,
        "tcp_stall_ms": 1000 * stall,
        "tcp_stall_usual_ms": 1000 * usual,
        "dark_time_declared_ms": declared,
        "limit_ms": None if worst_dark is None else worst_dark + 100,
        "regroup_ms": 1000 * (window[1] - window[0]),
        "fibres_moved": len(regroup["plan"]["moves"]),
        "moved": sorted(moved),
        "parameters_identical": None
        if run.simulated
        else all(parameters_identical(job) for job in run.jobs.values()),
        "connections_unchanged": None
        if run.simulated
        else all(connections_unchanged(job) for job in run.jobs.values()),
        "all_ranks_finished": run.simulated
        or all(len(job.done) == len(job.gpus) for job in run.jobs.values()),
        "iteration_s": {
            "before": _median_iteration(run.jobs[watched], end=window[0]),
            "after": _median_iteration(run.jobs[watched], start=window[1]),
        },
        "predicted": {
            p: {job: t / scenario.iterations(len(run.jobs[job].gpus)) for job, t in times.items()}
            for p, times in predicted.items()
        },
        "gaps": gaps[:20],
        "jobs": {job: _job_figures(scenario, run, job) for job in run.jobs},
        "circuits": {
            "before": [list(circuit) for circuit in run.circuits_before],
            "after": [list(circuit) for circuit in run.circuits],
        },
    }


def _median_iteration(job: JobRun, *, start: float = 0.0, end: float = float("inf")) -> float | None:
    """Median seconds of the iterations that lie wholly between ``start`` and ``end``."""
    chosen = [it.end - it.start for it in job.iterations if it.start >= start and it.end <= end]
    return statistics.median(chosen) if chosen else None


def _fidelity(
    scenario: Scenario,
    runs: Sequence[Run],
    events: Sequence[Event],
    series: Sequence[Mapping[str, Any]],
    cases: Mapping[str, Any],
) -> dict[str, Any]:
    """Whether the emulation gave what it was set to give, and so whether the figures can be believed."""
    verdict = Verdict()
    checked = {
        "links": judge_links(events, verdict),
        "timer": judge_timers(runs, scenario.compute_s, verdict),
        "cpu": judge_processors(runs, verdict),
        "switches_restarted": judge_switches(runs, verdict),
        "repeated": repeated(events),
        "samples_missing": judge_samples(runs, series, verdict),
    }
    for name, case in cases.items():
        over = case["allreduce_over_ideal"]
        verdict.check(over, ALL_REDUCE_OVER_IDEAL, "all_reduce_over_ideal", case=name, over=over)
    judge_parameters(runs, verdict)
    return {**verdict.as_json(), **checked}

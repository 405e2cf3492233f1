"""How a regrouping's figures depend on what was assumed and fitted: ``ringlight sensitivity``.

Everything is computed, by the all-send model and by simulation in virtual time; nothing is measured. Pure
but for the printing of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from experiments.language.text import ScenarioError, parse_yaml
from fabric.cost import RingJob, ring_all_reduce_time
from fabric.placement import regroup
from fabric.schedules import ring
from fabric.units import format_rate, parse_rate
from fabric.utilisation import DEFINITIONS, Activity, counted_over_computing, gain_of
from scenarios.prediction import predict_completions
from scenarios.results import nic_rate_bps, reduction_percent
from scenarios.schema import Scenario, parse_scenario, standing
from scenarios.simulated import SimulationOptions, with_frames
from scenarios.simulated_regrouping import busy, idle_within, network_of
from scenarios.utilisation import activity, by_definition
from testbed.simulation.engine import Engine
from testbed.simulation.jobs import Compute, Job, simulate
from testbed.simulation.networks import scaled

Jobs = Mapping[str, Sequence[str]]
Circuit = tuple[str, str]
#: Of a ratio that is looked for, how near is near enough.
_NEAR = 0.0005


@dataclass(frozen=True)
class Times:
    """Seconds (emulated) to the end of the watched job, and what its GPUs did (of a simulation)."""

    fragmented_s: float
    regrouped_s: float
    fragmented: tuple[Activity, ...] = ()
    regrouped: tuple[Activity, ...] = ()

    @property
    def reduction_percent(self) -> float:
        return reduction_percent(self.fragmented_s, self.regrouped_s)

    @property
    def speed_up(self) -> float:
        return self.fragmented_s / self.regrouped_s


def placements(scenario: Scenario, jobs: Jobs) -> tuple[list[Circuit], list[Circuit]]:
    """Circuits as lit at the start, and as the controller's planner would have them for the jobs."""
    now = list(scenario.fabric.circuits)
    rings = [
        RingJob.all_reduce(name, gpus, float(scenario.gradient_bytes), scenario.compute_s)
        for name, gpus in jobs.items()
    ]
    after = regroup(scaled(scenario.fabric, scenario.rate_scale), now, rings).circuits
    return [(str(a), str(b)) for a, b in now], [(str(a), str(b)) for a, b in after]


def all_send(scenario: Scenario, case: str, jobs: Jobs) -> Times:
    """By the model of ``fabric.cost``."""
    watched = scenario.spec.cases[case].watched
    slow, fast = (predict_completions(scenario, lit, jobs)[watched] for lit in placements(scenario, jobs))
    return Times(slow, fast)


def in_virtual_time(
    scenario: Scenario, case: str, jobs: Jobs, slower: Mapping[str, float] | None = None
) -> Times:
    """By simulation, as ``ringlight simulate`` does it. ``slower``: by GPU type, factor of its computing."""
    watched = scenario.spec.cases[case].watched
    fabric = scaled(scenario.fabric, scenario.rate_scale)
    options = with_frames(scenario, SimulationOptions())
    found = []
    for circuits in placements(scenario, jobs):
        factors = {
            name: {rank: (slower or {}).get(fabric.gpus[gpu].model, 1.0) for rank, gpu in enumerate(gpus)}
            for name, gpus in jobs.items()
        }
        engine = Engine(trace=True)
        results = simulate(
            network_of(fabric, circuits, options),
            [
                Job(
                    name,
                    tuple(gpus),
                    ring(len(gpus)),
                    scenario.gradient_bytes,
                    Compute(scenario.compute_s, stragglers=factors[name]),
                    scenario.iterations(len(gpus)),
                )
                for name, gpus in jobs.items()
            ],
            engine=engine,
        )
        for result in results.values():
            if result.failed:
                raise ValueError(f"job {result.name}: {result.failed}")
        found.append((results[watched], busy(engine, engine.passed or ())))
    gpus = jobs[watched]
    full_rate_s = ring_all_reduce_time(
        len(gpus), scenario.gradient_bytes, min(nic_rate_bps(scenario, gpu) for gpu in gpus)
    )
    window_s = max(result.end_s for result, _ in found)
    did = []
    for result, moved in found:
        of_ranks = []
        for rank, gpu in enumerate(gpus):
            spans = []
            for it in result.iterations:
                begin, computed, end = (float(t[rank]) for t in (it.begin_s, it.computed_s, it.end_s))
                still = math.fsum(b - a for a, b in idle_within(moved.get(gpu, []), computed, end))
                spans.append((computed - begin, end - computed, end - computed - still))
            of_ranks.append(activity(spans, full_rate_s, result.end_s, window_s))
        did.append(tuple(of_ranks))
    return Times(found[0][0].end_s, found[1][0].end_s, *did)


METHODS: Mapping[str, Callable[[Scenario, str, Jobs], Times]] = {
    "all-send model": all_send,
    "simulated": in_virtual_time,
}


def with_parameters(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """The scenario with other values of some parameters. Raises ScenarioError as the file would."""
    raw = parse_yaml(scenario.text, scenario.path)
    for name, value in values.items():
        raw["parameters"][name]["value"] = value
    # The live regroup has nothing to do with it, and may not fit fewer iterations.
    raw.pop("live", None)
    return parse_scenario(yaml.safe_dump(raw, allow_unicode=True), scenario.path)


def with_ratio(scenario: Scenario, value: float) -> Scenario:
    """The scenario with the rate ``to`` such that ``of`` is so many times as much."""
    found = scenario.spec.sensitivity
    if found is None or found.ratio is None:
        raise ScenarioError(f"{scenario.path}: sensitivity.ratio: missing")
    rate_bps = parse_rate(str(scenario.spec.parameters[found.ratio.of].value))
    return with_parameters(scenario, {found.ratio.to: f"{rate_bps / value / 1e9:.9f} Gbit/s"})


def ratio_that_hits(
    scenario: Scenario, case: str, method: Callable[[Scenario, str, Jobs], Times], percent: float
) -> float | None:
    """The ratio for which a case's reduction is ``percent``, by bisection; None where there is none."""
    spec = scenario.spec.sensitivity
    if spec is None or spec.ratio is None:
        return None

    def over(value: float) -> float:
        jobs = scenario.spec.cases[case].jobs
        return method(with_ratio(scenario, value), case, jobs).reduction_percent - percent

    low, high = spec.ratio.between
    if over(low) > 0 or over(high) < 0:
        return None
    while high - low > _NEAR:
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) < 0 else (low, middle)
    return (low + high) / 2


def sensitivity(scenario: Scenario) -> dict[str, Any]:
    """All that the section ``sensitivity`` asks for. Raises ScenarioError where there is none."""
    spec = scenario.spec.sensitivity
    if spec is None:
        raise ScenarioError(f"{scenario.path}: sensitivity: missing; it says what to vary")
    return {
        "scenario": scenario.spec.name,
        "reductions": list(_reductions(scenario)),
        "hits": list(_hits(scenario)),
        "utilisation": list(_utilisation(scenario)),
        "counter": _counter(scenario),
    }


def _entry(scenario: Scenario, what: str, value: str, cases: Mapping[str, Jobs]) -> dict[str, Any]:
    return {
        "what": what,
        "value": value,
        "reduction_percent": {
            case: {name: method(scenario, case, jobs).reduction_percent for name, method in METHODS.items()}
            for case, jobs in cases.items()
        },
    }


def _reductions(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Reductions (per cent) of every case as it is, and with one thing changed after the other."""
    spec = scenario.spec.sensitivity
    assert spec is not None
    cases = {name: case.jobs for name, case in scenario.spec.cases.items()}
    yield _entry(scenario, "as in the file", "", cases)
    for entry in spec.jobs.values():
        jobs = {**cases[entry.case], **entry.jobs}
        order = "; ".join(f"{name} {' '.join(gpus)}" for name, gpus in entry.jobs.items())
        yield _entry(scenario, entry.title, order, {entry.case: jobs})
    if spec.ratio is not None:
        for value in spec.ratio.values:
            changed = with_ratio(scenario, value)
            rate = format_rate(parse_rate(str(changed.spec.parameters[spec.ratio.to].value)))
            yield _entry(changed, spec.ratio.called, f"{value:g} ({rate})", cases)
    for name, settings in spec.parameters.items():
        for setting in settings:
            yield _entry(with_parameters(scenario, {name: setting}), name, str(setting), cases)


def _hits(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """For each case and method the ratio that hits what is published, and what it predicts of the others."""
    published = {name: case.published for name, case in scenario.spec.cases.items() if case.published}
    for name, method in METHODS.items():
        for case, figures in published.items():
            percent = reduction_percent(figures.fragmented, figures.regrouped)
            ratio = ratio_that_hits(scenario, case, method, percent)
            others = {}
            if ratio is not None:
                changed = with_ratio(scenario, ratio)
                others = {
                    other: method(changed, other, changed.spec.cases[other].jobs).reduction_percent
                    for other in published
                    if other != case
                }
            yield {"method": name, "case": case, "percent": percent, "ratio": ratio, "others": others}


def _claims(scenario: Scenario) -> dict[str, tuple[float, float]]:
    return {
        name: case.published.utilisation.gain
        for name, case in scenario.spec.cases.items()
        if case.published and case.published.utilisation
    }


def _utilisation(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Utilisation of the watched job by definition, simulated; and once more with unequal GPUs."""
    spec = scenario.spec.sensitivity
    assert spec is not None
    claims = _claims(scenario)
    ways: list[tuple[str, dict[str, float]]] = [("all GPUs alike", {})]
    if spec.slower:
        said = ", ".join(f"{kind} in {factor:g} of the time" for kind, factor in spec.slower.items())
        ways.append((f"computing on {said}", dict(spec.slower)))
    for what, slower in ways:
        cases = {
            name: in_virtual_time(scenario, name, case.jobs, slower)
            for name, case in scenario.spec.cases.items()
        }
        found = {
            name: by_definition(times.fragmented, times.regrouped, claims.get(name))
            for name, times in cases.items()
        }
        for definition in DEFINITIONS:
            yield {
                "gpus": what,
                "definition": definition,
                "cases": {name: entries[definition] for name, entries in found.items()},
            }


def _counter(scenario: Scenario) -> dict[str, Any] | None:
    """From the published figures alone: what a counter that shows the gain of one case shows of the others.

    Takes the work of an iteration to be the same in all cases, and iterations as the scenario has them.
    None where utilisation is published for fewer than two cases.
    """
    claims = _claims(scenario)
    if len(claims) < 2:
        return None
    published: dict[str, dict[str, Any]] = {}
    for name, gain in claims.items():
        case = scenario.spec.cases[name]
        assert case.published is not None
        times = case.published
        published[name] = {
            "speed_up": times.fragmented / times.regrouped,
            "iteration_s": times.fragmented / scenario.iterations(len(case.jobs[case.watched])),
            "gain": gain,
        }
    first, *others = published
    base = published[first]
    implied: dict[str, list[float]] = {}
    apart: dict[str, float] = {}
    for name in others:
        other = published[name]
        longer = other["iteration_s"] / base["iteration_s"]
        spans = [counted_over_computing(base["speed_up"], gain) * longer for gain in base["gain"]]
        implied[name] = [gain_of(other["speed_up"], k) for k in spans]
        needed = counted_over_computing(other["speed_up"], other["gain"][1])
        apart[name] = needed / max(spans)
    return {
        "given": first,
        "speed_up": {name: figures["speed_up"] for name, figures in published.items()},
        "gain": {name: list(figures["gain"]) for name, figures in published.items()},
        "implied_gain": implied,
        "apart": apart,
    }


# --- as text --------------------------------------------------------------------------------------


def markdown(scenario: Scenario, found: Mapping[str, Any]) -> str:
    """The tables of :func:`sensitivity` as Markdown."""
    parts = [_reductions_table(scenario, found), _hits_table(scenario, found)]
    parts += [_utilisation_table(scenario, found), _counter_text(found)]
    return "\n\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _reductions_table(scenario: Scenario, found: Mapping[str, Any]) -> str:
    cases = list(scenario.spec.cases)
    head = ["changed", "to", *(f"({case}) {name}" for case in cases for name in METHODS)]
    rows: list[list[str]] = []
    for case in cases:
        published = scenario.spec.cases[case].published
        if published and not rows:
            rows.append(["published", "", *_published_cells(scenario)])
    for entry in found["reductions"]:
        cells = [entry["what"], entry["value"]]
        for case in cases:
            reductions = entry["reduction_percent"].get(case, {})
            cells += [f"{reductions[name]:.1f} %" if name in reductions else "" for name in METHODS]
        rows.append(cells)
    return f"Reduction of the watched job's completion time:\n\n{_table(head, rows)}"


def _published_cells(scenario: Scenario) -> list[str]:
    cells = []
    for name, case in scenario.spec.cases.items():
        said = ""
        if case.published:
            key = f"cases.{name}.published"
            percent = reduction_percent(case.published.fragmented, case.published.regrouped)
            said = f"{percent:.1f} %, {standing(scenario.spec, f'{key}.fragmented', f'{key}.regrouped')}"
        cells += [said, *[""] * (len(METHODS) - 1)]
    return cells


def _hits_table(scenario: Scenario, found: Mapping[str, Any]) -> str:
    spec = scenario.spec.sensitivity
    if spec is None or spec.ratio is None or not found["hits"]:
        return ""
    rows = [
        [
            entry["method"],
            f"({entry['case']}) {entry['percent']:.1f} %",
            "none" if entry["ratio"] is None else f"{entry['ratio']:.2f}",
            ", ".join(f"({case}) {percent:.1f} %" for case, percent in entry["others"].items()),
        ]
        for entry in found["hits"]
    ]
    head = ["", "to hit", f"{spec.ratio.called} needed", "which then predicts"]
    return f"What one case alone would ask for:\n\n{_table(head, rows)}"


def _utilisation_table(scenario: Scenario, found: Mapping[str, Any]) -> str:
    cases = list(scenario.spec.cases)
    claims = _claims(scenario)
    head = ["GPUs", "what counts as busy", *(f"({case})" for case in cases)]
    rows = []
    if claims:
        words = [f"{claims[c][0]:g} to {claims[c][1]:g} ×" if c in claims else "" for c in cases]
        rows.append(["", "published", *words])
    for entry in found["utilisation"]:
        cells = [entry["gpus"], DEFINITIONS[entry["definition"]].title]
        for case in cases:
            share = entry["cases"][case]
            shown = f"{100 * share['fragmented']:.0f} → {100 * share['regrouped']:.0f} %"
            judged = {True: ", agrees", False: ", does not", None: ""}[share["consistent"]]
            cells.append(f"{shown}, {share['gain']:.2f} ×{judged}")
        rows.append(cells)
    return f"GPU utilisation of the watched job, simulated:\n\n{_table(head, rows)}"


def _counter_text(found: Mapping[str, Any]) -> str:
    counter = found["counter"]
    if counter is None:
        return ""
    given = counter["given"]
    told = []
    for case, gains in counter["implied_gain"].items():
        low, high = counter["gain"][case]
        told.append(
            f"in case ({case}) {min(gains):.2f} to {max(gains):.2f} (published {low:g} to {high:g}); to show "
            f"it, what it counts besides the work would have to weigh {counter['apart'][case]:.0f} times as "
            f"much as in case ({given})"
        )
    low, high = counter["gain"][given]
    return (
        "From the published figures alone: a counter that sees the same work in every iteration and some "
        f"share of the time that is left, and shows a gain of {low:g} to {high:g} at the speed-up of "
        f"{counter['speed_up'][given]:.2f} of case ({given}), shows {'; '.join(told)}."
    )

"""result.json of a study: tables of what its points found, and a verdict in words made from these numbers."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from experiments.study.points import LEAST_BYTES, MOST_BYTES, Costs, Run, message_sizes
from experiments.study.spec import Study, extras, reaches, tasks, usual_costs
from experiments.study.systems import CHARGES, RINGS, SYSTEMS, WRHT, Place, fitting_group
from experiments.study.verdict import verdict
from fabric.topology import Reconfigure
from fabric.wrht import exchange_wavelengths, plan

#: Steps of WRHT as derived by hand from the paper's construction, by (wavelengths, nodes): collecting up to
#: one root and back, and with an exchange at the top where its wavelengths fit.
DERIVED_STEPS: Mapping[tuple[int, int], tuple[int, int]] = {
    (64, 64): (2, 2), (64, 128): (2, 2), (64, 256): (4, 3), (64, 512): (4, 3), (64, 1024): (4, 3),
    (64, 2048): (4, 3), (64, 3072): (4, 4), (64, 4096): (4, 4),
    (16, 1024): (4, 4), (16, 2048): (6, 5), (16, 3072): (6, 5), (16, 4096): (6, 5),
    (4, 1024): (8, 7), (4, 4096): (8, 8),
}  # fmt: skip
#: Every kind of number in result.json; the first pattern that matches a path decides.
LABELS = (
    ("published.figures.*.percent", "published"),
    ("steps.*.derived*", "analytic"),
    ("*analytic*", "analytic"),
    ("*closed*", "analytic"),
    ("loss.*", "analytic"),
    ("published.figures.*.needed*", "analytic"),
    ("settings.*", "setting"),
    ("*", "simulated"),
)


#: (system, other, set-up, charge, place, costs) of a crossover.
_Pair = tuple[str, str, float, Reconfigure, Place, Costs]


class Found:
    """What the points of a run folder found, to be asked by system, place and run."""

    def __init__(self, points: Iterable[Mapping[str, Any]]) -> None:
        self.crossovers: dict[_Pair, Mapping[str, Any]] = {}
        self.points: dict[tuple[str, Place], Mapping[str, Any]] = {}
        self._runs: dict[tuple[str, Place, Run], Mapping[str, Any]] = {}
        for point in points:
            place = Place(**point["place"])
            if point["kind"] == "crossover":
                keys = [point[key] for key in ("system", "other", "set_up_s", "charge")]
                self.crossovers[*keys, place, Costs(**point["costs"])] = point
                continue
            self.points[point["system"], place] = point
            for run in point["runs"]:
                key = Run(run["bytes"], run["set_up_s"], run["charge"], Costs(**run["costs"]))
                self._runs[point["system"], place, key] = run

    def run(self, system: str, place: Place, run: Run) -> Mapping[str, Any] | None:
        """``total_s`` (simulated) and ``closed_s`` (analytic), or None where it was not simulated."""
        return self._runs.get((system, place, run))


def build_study(
    study: Study, points: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The object of result.json. Seconds, bytes, bits per second; None for what was not simulated."""
    found = Found(points)
    result: dict[str, Any] = {
        "schema": 1,
        "scenario": study.spec.name,
        "run": environment["run"],
        "runtime": "simulated",
        "kind": "study",
        "complete": len(points) == len(tasks(study)),
        "duration_s": environment.get("duration_s"),
        "settings": _settings(study),
        "systems": _systems(study, found),
        "steps": _steps(study, found),
        "agreement": _agreement(found),
        "models": _models(study, found),
        "messages": _messages(study, found),
        "fastest": _fastest(study, found),
        "nodes": _along(study, found, "nodes", study.sweeps.nodes),
        "wavelengths": _along(study, found, "wavelengths", study.sweeps.wavelengths),
        "set_up": _along_set_up(study, found),
        "grid": _grid(study, found),
        "crossovers": _crossovers(study, found),
        "groups": _groups(study, found),
        "reach": _reach(study, found),
        "loss": _loss(study),
        "left_out": _left_out(study, found),
        "published": _published(study, found),
        "labels": [{"path": path, "label": label} for path, label in LABELS],
    }
    result["verdict"] = verdict(study, result)
    return result


def _settings(study: Study) -> dict[str, Any]:
    base, sweeps = study.sweeps.base, study.sweeps
    return {
        "nodes": base.nodes,
        "wavelengths": base.wavelengths,
        "rate_bps": base.rate,
        "set_up_s": base.set_up,
        "gradient": base.gradient,
        "gradients_bytes": dict(sweeps.gradients),
        "electrical": sweeps.electrical.model_dump(mode="json"),
        "additions_counted": usual_costs(study).add_bps is not None,
    }


def _usual(study: Study, size: float, charge: Reconfigure, set_up_s: float | None = None) -> Run:
    time = study.sweeps.base.set_up if set_up_s is None else set_up_s
    return Run(float(size), time, charge, usual_costs(study))


def _systems(study: Study, found: Found) -> dict[str, Any]:
    """What each system is at the base: its closed form and the wavelengths that its schedule uses."""
    systems = {}
    for name in study.sweeps.systems:
        system = SYSTEMS[name]
        place = study.place(name, study.base)
        point = found.points.get((name, place))
        closed = asdict(system.closed(place))
        systems[name] = {
            "title": system.title,
            "medium": system.medium,
            "striped": system.striped,
            "steps": point["steps"] if point else None,
            "wavelengths_used": point["wavelengths_used"] if point else None,
            "analytic": closed,
        }
        if "hierarchical" in name:
            systems[name]["group"] = fitting_group(place.nodes, place.wavelengths)
    return systems


def _steps(study: Study, found: Found) -> list[dict[str, Any]]:
    """Steps and wavelengths of WRHT for every number of nodes and wavelengths."""
    rows = []
    for wavelengths, nodes in itertools.product(study.sweeps.wavelengths, study.sweeps.nodes):
        place = replace(study.base, nodes=nodes, wavelengths=wavelengths)
        collect, exchange = plan(nodes, wavelengths), plan(nodes, wavelengths, top="exchange")
        top = len(collect.levels[-1].groups[0])
        point = found.points.get(("wrht", place))
        best = found.points.get(("wrht-exchange", place))
        derived = DERIVED_STEPS.get((wavelengths, nodes))
        levels = math.ceil(round(math.log(nodes, 2 * wavelengths + 1), 9))
        rows.append(
            {
                "wavelengths": wavelengths,
                "nodes": nodes,
                "group": collect.group,
                "levels": len(collect.levels),
                "steps": point["steps"] if point else None,
                "wavelengths_used": collect.wavelengths_used,
                "analytic_steps": 2 * levels,
                "top": top,
                "exchange_wavelengths_analytic": exchange_wavelengths(top),
                "exchange_steps": best["steps"] if best else None,
                "exchanges": exchange.exchanges,
                "longest_segments": collect.longest_segments,
                "buffer_vectors": collect.buffer_vectors,
                "derived_steps": derived[0] if derived else None,
                "derived_best": derived[1] if derived else None,
            }
        )
    return rows


def _agreement(found: Found) -> dict[str, Any]:
    """How far simulation and closed forms are apart, over every run that has both."""
    worst: dict[str, Any] = {"largest_relative_difference": 0.0, "system": None, "nodes": None}
    compared = alone = 0
    for (system, place), point in found.points.items():
        for run in point["runs"]:
            if run["closed_s"] is None:
                alone += 1
                continue
            compared += 1
            off = abs(run["total_s"] / run["closed_s"] - 1)
            if off > worst["largest_relative_difference"]:
                worst = {"largest_relative_difference": off, "system": system, "nodes": place.nodes}
    pairs = [c for c in found.crossovers.values() if c["simulated_bytes"] and c["analytic_bytes"]]
    off = max((abs(c["simulated_bytes"] / c["analytic_bytes"] - 1) for c in pairs), default=0.0)
    return {
        "points": len(found.points), "runs_compared": compared, "runs_without_closed_form": alone, **worst,
        "crossovers": len(found.crossovers), "crossovers_compared": len(pairs),
        "crossovers_largest_relative_difference": off,
    }  # fmt: skip


def _total(found: Found, system: str, place: Place, run: Run) -> float | None:
    record = found.run(system, place, run)
    return None if record is None else float(record["total_s"])


def _models(study: Study, found: Found) -> dict[str, Any]:
    """At the base, by charge, gradient and system: seconds simulated and by the closed form."""
    return {
        charge: {
            model: {
                system: found.run(system, study.place(system, study.base), _usual(study, size, charge))
                for system in study.sweeps.systems
            }
            for model, size in study.sweeps.gradients.items()
        }
        for charge in CHARGES
    }


def _messages(study: Study, found: Found) -> list[dict[str, Any]]:
    """At the base: seconds of every system over the size of the message."""
    sizes = message_sizes(**study.sweeps.messages.model_dump())
    rows = []
    for charge, time, system in itertools.product(CHARGES, study.sweeps.set_up, study.sweeps.systems):
        place = study.place(system, study.base)
        if SYSTEMS[system].medium == "electrical":
            time = study.sweeps.base.set_up
        totals = [_total(found, system, place, _usual(study, size, charge, time)) for size in sizes]
        row = {"charge": charge, "set_up_s": time, "system": system, "bytes": sizes, "total_s": totals}
        if row not in rows:
            rows.append(row)
    return rows


def classes(study: Study) -> dict[str, list[str]]:
    """Whom WRHT is compared with: systems that keep to one wavelength for a transfer, and all on the ring."""
    optical = study.optical
    return {
        "one wavelength": [name for name in optical if not SYSTEMS[name].striped],
        "any": optical,
    }


def _fastest(study: Study, found: Found) -> list[dict[str, Any]]:
    """At the base: the fastest system for each size and set-up, by class of systems."""
    sizes = message_sizes(**study.sweeps.messages.model_dump())
    rows = []
    for (name, systems), charge, time in itertools.product(
        classes(study).items(), CHARGES, study.sweeps.set_up
    ):
        winners: list[str | None] = []
        leads: list[float | None] = []
        for size in sizes:
            run = _usual(study, size, charge, time)
            totals = {s: t for s in systems if (t := _total(found, s, study.base, run)) is not None}
            if not totals:
                winners.append(None)
                leads.append(None)
                continue
            # At a tie the first of the study's list, so that the map does not flicker.
            least = min(totals.values())
            winners.append(next(s for s, t in totals.items() if t <= least * (1 + 1e-9)))
            others = [t for s, t in totals.items() if s not in WRHT]
            mine = [t for s, t in totals.items() if s in WRHT]
            leads.append(min(mine) / min(others) if mine and others else None)
        rows.append(
            {
                "systems": name,
                "charge": charge,
                "set_up_s": time,
                "bytes": sizes,
                "fastest": winners,
                "wrht_over_best_other": leads,
            }
        )
    return rows


def _along(study: Study, found: Found, field: str, values: Sequence[int]) -> list[dict[str, Any]]:
    """Seconds at the base with one thing of the place changed."""
    rows = []
    for value, charge, (model, size) in itertools.product(
        sorted(values), CHARGES, study.sweeps.gradients.items()
    ):
        place = replace(study.base, **{field: value})
        totals = {
            system: _total(found, system, study.place(system, place), _usual(study, size, charge))
            for system in study.sweeps.systems
        }
        rows.append({field: value, "charge": charge, "gradient": model, "total_s": totals})
    return rows


def _along_set_up(study: Study, found: Found) -> list[dict[str, Any]]:
    rows = []
    for time, charge, (model, size) in itertools.product(
        sorted(study.sweeps.set_up), CHARGES, study.sweeps.gradients.items()
    ):
        totals = {
            system: _total(found, system, study.base, _usual(study, size, charge, time))
            for system in study.optical
        }
        rows.append({"set_up_s": time, "charge": charge, "gradient": model, "total_s": totals})
    return rows


def _grid(study: Study, found: Found) -> list[dict[str, Any]]:
    """The base's gradient and set-up for every number of nodes and wavelengths."""
    rows = []
    for nodes, wavelengths, charge in itertools.product(
        study.sweeps.nodes, study.sweeps.wavelengths, CHARGES
    ):
        place = replace(study.base, nodes=nodes, wavelengths=wavelengths)
        run = _usual(study, study.base_bytes, charge)
        totals = {system: _total(found, system, place, run) for system in study.optical}
        rows.append({"nodes": nodes, "wavelengths": wavelengths, "charge": charge, "total_s": totals})
    return rows


def _crossovers(study: Study, found: Found) -> dict[str, Any]:
    """Where others become as fast as WRHT: along every axis the rings, and at the base all of them."""
    sweeps, base, usual = study.sweeps, study.base, usual_costs(study)
    set_up = sweeps.base.set_up
    mine = [name for name in WRHT if name in sweeps.systems]

    def row(system: str, other: str, place: Place, time: float, charge: Reconfigure, costs: Costs) -> Any:
        record = found.crossovers.get((system, other, time, charge, place, costs))
        if record is None:
            return None
        return {
            "system": system, "other": other, "charge": charge, "nodes": place.nodes,
            "wavelengths": place.wavelengths, "rate_bps": place.rate_bps, "set_up_s": time,
            **{key: record[key] for key in ("simulated_bytes", "analytic_bytes", "faster")},
        }  # fmt: skip

    def rows(places: Iterable[tuple[Place, float]], others: Sequence[str], costs: Costs = usual) -> list[Any]:
        made = [
            row(system, other, place, time, charge, costs)
            for charge, system, (place, time), other in itertools.product(CHARGES, mine, list(places), others)
        ]
        return [entry for entry in made if entry is not None]

    others = [name for name in study.optical if name not in WRHT]
    rings = [name for name in RINGS if name in sweeps.systems]
    return {
        "systems": rows([(base, set_up)], others),
        "nodes": rows([(replace(base, nodes=n), set_up) for n in sorted(sweeps.nodes)], rings),
        "wavelengths": rows(
            [(replace(base, wavelengths=w), set_up) for w in sorted(sweeps.wavelengths)], rings
        ),
        "rates": rows([(replace(base, rate_bps=rate), set_up) for rate in sorted(sweeps.rates)], rings),
        "set_up": rows([(base, time) for time in sorted(sweeps.set_up)], rings),
        "left_out": {name: rows([(base, set_up)], others, costs) for name, costs in extras(study).items()},
    }


def _groups(study: Study, found: Found) -> list[dict[str, Any]]:
    """WRHT at the base in smaller groups: memory at a representative against steps."""
    base = study.base
    rows = []
    for group in [*sorted(study.sweeps.groups), None]:
        place = replace(base, group=group)
        tree = plan(base.nodes, base.wavelengths, group)
        rows.append(
            {
                "group": tree.group,
                "wavelengths_used": tree.wavelengths_used,
                "steps": tree.steps,
                "vectors": tree.buffer_vectors,
                "longest_segments": tree.longest_segments,
                "buffer_bytes": {
                    model: tree.buffer_vectors * size for model, size in study.sweeps.gradients.items()
                },
                "total_s": {
                    model: _total(found, "wrht", place, _usual(study, size, "each-step"))
                    for model, size in study.sweeps.gradients.items()
                },
            }
        )
    return rows


def _reach(study: Study, found: Found) -> list[dict[str, Any]]:
    """WRHT at the base when light gets only so far; the last row is without a limit."""
    rows = []
    for reach in [*reaches(study), None]:
        place = replace(study.base, reach=reach)
        entry: dict[str, Any] = {"reach": reach}
        for system in WRHT:
            if system not in study.sweeps.systems:
                continue
            tree = plan(
                place.nodes, place.wavelengths, top="collect" if system == "wrht" else "exchange", reach=reach
            )
            entry[system] = {
                "steps": tree.steps,
                "vectors": tree.buffer_vectors,
                "longest_segments": tree.longest_segments,
                "total_s": {
                    model: _total(found, system, place, _usual(study, size, "each-step"))
                    for model, size in study.sweeps.gradients.items()
                },
            }
        rows.append(entry)
    return rows


def _loss(study: Study) -> dict[str, Any] | None:
    """Reach by the budget of losses: segments that light passes before it is too weak."""
    loss = study.sweeps.loss
    if loss is None:
        return None
    longest = plan(study.base.nodes, study.base.wavelengths).longest_segments
    return {
        "budget_db": loss.budget_db,
        "rows": [{"segment_db": lost, "reach": loss.reach(lost)} for lost in sorted(loss.segment_db)],
        "longest_segments": longest,
        "most_segment_db": loss.budget_db / longest,
    }


def _left_out(study: Study, found: Found) -> dict[str, Any]:
    """At the base: seconds with what the model leaves out, by what it is called."""
    kinds = {"as it is": usual_costs(study), **extras(study)}
    return {
        charge: {
            model: {
                system: {
                    name: _total(
                        found, system, study.place(system, study.base),
                        Run(float(size), study.sweeps.base.set_up, charge, costs),
                    )
                    for name, costs in kinds.items()
                }
                for system in study.sweeps.systems
            }
            for model, size in study.sweeps.gradients.items()
        }
        for charge in CHARGES
    }  # fmt: skip


# --- the paper's percentages ----------------------------------------------------------------------


def _published(study: Study, found: Found) -> dict[str, Any] | None:
    """Each published percentage beside every one of ours that this study has anyway.

    Ours are means over ``published.nodes`` of 1 - WRHT's over the other's: number of steps, and time for
    each gradient and over all of them, set-up charged either way, each trunk of an electrical tree.
    """
    published = study.sweeps.published
    if published is None:
        return None
    figures = []
    for figure in published.figures:
        ours = _ours(study, found, figure.taken_for, published.nodes)
        closest = min(ours, key=lambda o: abs(o["percent"] - figure.percent), default=None)
        figures.append(
            {
                "percent": figure.percent,
                "taken_for": figure.taken_for,
                "ours": ours,
                "closest": closest,
                # As exactly as it is printed.
                "exact": [o["assumptions"] for o in ours if round(o["percent"], 2) == figure.percent],
                "needed_bytes": _needed(study, figure.percent, figure.taken_for, published.nodes),
            }
        )
    return {"source": published.source, "nodes": list(published.nodes), "figures": figures}


def _ours(study: Study, found: Found, other: str, nodes: Sequence[int]) -> list[dict[str, Any]]:
    electrical = SYSTEMS[other].medium == "electrical"
    factors = study.sweeps.electrical.oversubscription if electrical else (None,)
    ours = []
    for system in (name for name in WRHT if name in study.sweeps.systems):
        title = SYSTEMS[system].title
        steps = []
        for n in nodes:
            place = replace(study.base, nodes=n)
            a = found.points.get((system, place))
            b = found.points.get((other, study.place(other, place)))
            if a and b:
                steps.append(100 * (1 - a["steps"] / b["steps"]))
        if len(steps) == len(nodes):
            said = f"number of steps alone; {title}"
            ours.append({"percent": statistics.fmean(steps), "each": steps, "assumptions": said})
        for charge, factor in itertools.product(CHARGES, factors):
            by_model = {}
            for model, size in study.sweeps.gradients.items():
                run = _usual(study, size, charge)
                reductions = []
                for n in nodes:
                    place = replace(study.base, nodes=n)
                    mine = _total(found, system, place, run)
                    theirs = _total(found, other, study.place(other, place, factor), run)
                    if mine is not None and theirs is not None:
                        reductions.append(100 * (1 - mine / theirs))
                if len(reductions) == len(nodes):
                    by_model[model] = statistics.fmean(reductions)
            said = (
                f"set-up {'in each step' if charge == 'each-step' else 'only where light changes'}; {title}"
            )
            said += "" if factor is None else f"; trunks {factor:g}:1"
            ours += [
                {"percent": percent, "assumptions": f"time, {model}; {said}"}
                for model, percent in by_model.items()
            ]
            if len(by_model) == len(study.sweeps.gradients) > 1:
                mean = statistics.fmean(by_model.values())
                ours.append({"percent": mean, "assumptions": f"time, mean of the gradients; {said}"})
    return ours


def _needed(study: Study, percent: float, other: str, nodes: Sequence[int]) -> dict[str, float | None]:
    """The gradient for which the closed forms give the percentage, by charge; None where none does.

    With rate, set-up and wavelengths of the base, WRHT collecting, means over ``nodes``.
    """
    latency = study.sweeps.electrical.latency

    def off(exponent: float, charge: Reconfigure) -> float:
        size, values = 10.0**exponent, []
        for n in nodes:
            place = replace(study.base, nodes=n)
            there = study.place(other, place)
            mine = (
                SYSTEMS["wrht"].closed(place).time_s(size, place.rate_bps, study.sweeps.base.set_up, charge)
            )
            form = SYSTEMS[other].closed(there)
            optical = SYSTEMS[other].medium == "optical"
            theirs = form.time_s(
                size, there.rate_bps, study.sweeps.base.set_up if optical else latency,
                charge if optical else "each-step",
            )  # fmt: skip
            values.append(100 * (1 - mine / theirs))
        return statistics.fmean(values) - percent

    return {charge: _root(functools.partial(off, charge=charge)) for charge in CHARGES}


def _root(function: Callable[[float], float]) -> float | None:
    low, high = math.log10(LEAST_BYTES), math.log10(MOST_BYTES)
    first, last = function(low), function(high)
    if abs(first - last) < 1e-9 or (first < 0) == (last < 0):
        return None
    from scipy.optimize import brentq

    return float(10.0 ** brentq(function, low, high))

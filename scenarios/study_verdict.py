"""The verdict of a study in words, made from the numbers of its result and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fabric.units import format_size, format_time
from scenarios.study import Study
from scenarios.study_systems import SYSTEMS, WRHT, Charge


def verdict(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Where WRHT wins and where it loses: paragraphs ``{"kind": wins|loses|note, "text"}``, from the numbers
    of the result alone."""
    return [
        *_verdict_on_rings(study, result),
        *_verdict_on_striping(study, result),
        *_verdict_on_charge(study, result),
        *_verdict_on_trees(study, result),
        *_verdict_on_electrical(study, result),
        *_verdict_on_memory(study, result),
        *_verdict_on_reach(study, result),
        *_verdict_on_figures(result),
    ]


def _say(kind: str, text: str) -> dict[str, str]:
    return {"kind": kind, "text": text}


def _at_base(study: Study) -> str:
    base = study.sweeps.base
    return (
        f"{base.nodes:,} nodes, {base.wavelengths} wavelengths of {base.rate / 1e9:g} Gbit/s, "
        f"{format_time(base.set_up)} of set-up"
    )


def _pair(
    result: Mapping[str, Any], system: str, other: str, charge: Charge, axis: str = "systems"
) -> Mapping[str, Any] | None:
    for entry in result["crossovers"][axis]:
        if (entry["system"], entry["other"], entry["charge"]) == (system, other, charge):
            return dict(entry)
    return None


def wins_up_to(pair: Mapping[str, Any] | None) -> float | None:
    """The size below which WRHT is faster: 0 never, infinity always, None unknown."""
    if pair is None:
        return None
    if pair["simulated_bytes"] is not None:
        return float(pair["simulated_bytes"])
    return math.inf if pair["faster"] == pair["system"] else 0.0


def models_beyond(study: Study, size: float) -> tuple[list[str], list[str]]:
    """Gradients (below, above) a size."""
    below = [name for name, own in study.sweeps.gradients.items() if own < size]
    return below, [name for name in study.sweeps.gradients if name not in below]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verdict_on_rings(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    for system in (name for name in WRHT if name in study.sweeps.systems):
        size = wins_up_to(_pair(result, system, "ring", "each step"))
        if size is None:
            continue
        title = SYSTEMS[system].title
        if size == 0:
            found.append(_say("loses", f"{title} is never faster than the ring on one wavelength."))
            continue
        below, above = models_beyond(study, size)
        text = (
            f"Against the ring on one wavelength, with the set-up charged on each of its steps, {title} wins "
            f"for gradients up to {format_size(size)} ({_at_base(study)})."
        )
        if below:
            text += f" That covers {_listed(below)}."
        if above:
            text += f" It loses for {_listed(above)}."
        found.append(_say("wins" if below else "loses", text))
        hierarchical = wins_up_to(_pair(result, system, "hierarchical-ring", "each step"))
        if hierarchical is not None and hierarchical < size:
            below, above = models_beyond(study, hierarchical)
            group = result["systems"]["hierarchical-ring"]["group"]
            found.append(
                _say(
                    "loses" if above else "wins",
                    f"A hierarchical ring in groups of {group} takes "
                    f"{result['systems']['hierarchical-ring']['steps']} steps instead of the ring's "
                    f"{result['systems']['ring']['steps']:,} and sends no more. Against it {title} wins only "
                    + (f"up to {format_size(hierarchical)}" if hierarchical else "never")
                    + (f"; {_listed(above)} {'are' if len(above) > 1 else 'is'} beyond." if above else "."),
                )
            )
    return found


def _verdict_on_striping(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    others = [name for name in study.optical if SYSTEMS[name].striped and name != "wrht-striped"]
    sizes: dict[str, float] = {}
    for other in others:
        size = wins_up_to(_pair(result, "wrht", other, "each step"))
        if size is not None:
            sizes[other] = size
    if not sizes:
        return []
    base = study.sweeps.base
    best = min(sizes, key=lambda name: sizes[name])
    ring = sizes.get("ring-striped")
    times = result["models"]["each step"][base.gradient]
    text = (
        "WRHT gives each transfer one wavelength. Systems that spread a transfer over all of them take that "
        f"advantage away: the tree, rings and hierarchical rings so striped are at least one of them as fast "
        f"from {format_size(sizes[best])} on ({SYSTEMS[best].title})."
    )
    if ring is not None and math.isfinite(ring):
        text += f" Against the striped ring alone, WRHT wins up to {format_size(ring)}"
        text += f" because that still pays {result['systems']['ring-striped']['steps']:,} set-ups."
    fastest = min((n for n in others if times.get(n)), key=lambda n: times[n]["total_s"], default=None)
    if fastest is not None and times.get("wrht"):
        ratio = times["wrht"]["total_s"] / times[fastest]["total_s"]
        text += (
            f" For {base.gradient} {SYSTEMS[fastest].title} takes {format_time(times[fastest]['total_s'])}, "
            f"WRHT {format_time(times['wrht']['total_s'])}, {ratio:.3g} times as long."
        )
    found.append(_say("loses", text))
    return found


def _verdict_on_charge(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    each = wins_up_to(_pair(result, "wrht", "ring", "each step"))
    new = wins_up_to(_pair(result, "wrht", "ring", "new circuits"))
    if each is None or new is None:
        return []
    if new == 0:
        return [
            _say(
                "loses",
                "All of WRHT's advantage over the ring rests on charging the set-up on each of the ring's "
                "steps. But a ring uses the same lightpaths in every step. Charged only where light is new, "
                "the ring sets up once and is faster than WRHT for every size of gradient.",
            )
        ]
    return [
        _say(
            "wins" if new >= each else "loses",
            f"With set-up charged only for new circuits WRHT beats the ring up to {format_size(new)} instead "
            f"of {format_size(each)}.",
        )
    ]


def _verdict_on_trees(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    size = wins_up_to(_pair(result, "wrht", "binary-tree", "each step"))
    if size != math.inf:
        return []
    mine, theirs = result["systems"]["wrht"]["steps"], result["systems"]["binary-tree"]["steps"]
    return [
        _say(
            "wins",
            f"WRHT beats a binary tree on one wavelength for every size: both send whole vectors, WRHT in "
            f"{mine} steps instead of {theirs}.",
        )
    ]


def _verdict_on_electrical(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    base = study.sweeps.base
    electrical = study.sweeps.electrical
    if "electrical-ring" not in study.sweeps.systems:
        return []
    rows = [r for r in result["messages"] if r["charge"] == "each step" and r["set_up_s"] == base.set_up]
    by = {row["system"]: row for row in rows}
    mine = by["wrht"]
    for other in study.electrical:
        better = [
            size
            for size, a, b in zip(mine["bytes"], mine["total_s"], by[other]["total_s"], strict=True)
            if a is not None and b is not None and a < b
        ]
        title = SYSTEMS[other].title
        factor = electrical.oversubscription[0]
        where = f"a tree with trunks {factor:g}:1 and {format_time(electrical.latency)} per step"
        if len(better) == len(mine["bytes"]):
            found.append(_say("wins", f"{title} on {where}: WRHT is faster for every size swept."))
        elif better:
            found.append(
                _say(
                    "wins" if base.gradient in models_beyond(study, max(better))[0] else "loses",
                    f"{title} on {where}: WRHT is faster up to about {format_size(max(better))}, of "
                    f"the sizes "
                    "swept.",
                )
            )
        else:
            found.append(_say("loses", f"{title} on {where}: WRHT is never faster, of the sizes swept."))
    return found


def _verdict_on_memory(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    row = result["groups"][-1]
    largest = max(study.sweeps.gradients, key=lambda name: study.sweeps.gradients[name])
    return [
        _say(
            "loses",
            f"A representative receives {row['vectors']} whole vectors at once: "
            f"{format_size(row['buffer_bytes'][largest])} for {largest} "
            f"({row['vectors']} × {format_size(study.sweeps.gradients[largest])}), and needs as many "
            f"receivers.",
        )
    ]


def _verdict_on_reach(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    rows, base = result["reach"], study.sweeps.base
    if len(rows) < 2:
        return []
    free = rows[-1]["wrht"]
    limited = [row for row in rows[:-1] if row["wrht"]["steps"] > free["steps"]]
    if not limited:
        return []
    worst = limited[0]["wrht"]
    text = (
        f"Its light has to pass {free['longest_segments']} nodes in one go. With a reach of "
        f"{limited[0]['reach']} segments it takes {worst['steps']} steps instead of {free['steps']}"
    )
    before, after = free["total_s"][base.gradient], worst["total_s"][base.gradient]
    if before and after:
        text += f" and {format_time(after)} instead of {format_time(before)} for {base.gradient}"
    return [_say("loses", text + ".")]


def _verdict_on_figures(result: Mapping[str, Any]) -> list[dict[str, str]]:
    published = result["published"]
    if published is None:
        return []
    exact = [f for f in published["figures"] if f["exact"]]
    missed = [f for f in published["figures"] if not f["exact"]]
    text = ""
    for figure in exact:
        text += (
            f"Of the paper's percentages {figure['percent']:.2f} % is reproduced exactly, taken as the one "
            f"against {SYSTEMS[figure['taken_for']].title}: it is a ratio of numbers of steps. "
        )
    if missed:
        listed = _listed([f"{figure['percent']:.2f}" for figure in missed])
        text += (
            f"{listed} % {'are' if len(missed) > 1 else 'is'} not reproduced: the paper's settings are not "
            "known, and nothing here was fitted to them."
        )
    return [_say("note", text.strip())]

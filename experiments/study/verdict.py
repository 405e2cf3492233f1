"""The verdict of a study in words, made from the numbers of its result and nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.study.spec import Study
from experiments.study.systems import RINGS, SYSTEMS, WRHT
from fabric.topology import Reconfigure
from fabric.units import format_rate, format_size, format_time


def verdict(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Where WRHT wins and where it loses: paragraphs ``{"kind": wins|loses|note, "text"}``, from the numbers
    of the result alone."""
    return [
        *_verdict_on_small(study, result),
        *_verdict_on_rings(study, result),
        *_verdict_on_striping(study, result),
        *_verdict_on_charge(study, result),
        *_verdict_on_trees(study, result),
        *_verdict_on_electrical(study, result),
        *_verdict_on_memory(study, result),
        *_verdict_on_additions(study, result),
        *_verdict_on_reach(study, result),
        *_verdict_on_figures(result),
    ]


def _say(kind: str, text: str) -> dict[str, str]:
    return {"kind": kind, "text": text}


def at_base(study: Study) -> str:
    """The point about which everything is swept, in words."""
    base = study.sweeps.base
    return (
        f"{base.nodes:,} nodes, {base.wavelengths} wavelengths of {format_rate(base.rate)}, "
        f"{format_time(base.set_up)} of set-up"
    )


def _pair(
    result: Mapping[str, Any], system: str, other: str, charge: Reconfigure, axis: str = "systems"
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


def strongest_ring(study: Study) -> str:
    """The ring on one wavelength that a study has, the one on both fibres rather than on one."""
    return next(name for name in reversed(RINGS) if name in study.sweeps.systems)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _fastest_up_to(
    study: Study, result: Mapping[str, Any], charge: Reconfigure, striped: bool
) -> tuple[str, float] | None:
    """The form of WRHT that is the fastest of all for longest, and up to which gradient; others may be
    striped or not."""
    best: tuple[str, float] | None = None
    for system in (name for name in WRHT if name in study.sweeps.systems):
        sizes = [
            size
            for other in study.optical
            if other not in (*WRHT, "wrht-striped") and (striped or not SYSTEMS[other].striped)
            if (size := wins_up_to(_pair(result, system, other, charge))) is not None
        ]
        if sizes and (best is None or min(sizes) > best[1]):
            best = (system, min(sizes))
    return best


def _verdict_on_small(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    plain = _fastest_up_to(study, result, "each-step", False)
    if plain is None:
        return []
    system, size = plain
    if size == 0:
        return [_say("loses", "WRHT is the fastest for no size of gradient, even where each step sets up.")]
    limit = "for every size" if size == math.inf else f"up to {format_size(size)}"
    text = (
        f"Where every step pays for its set-up ({at_base(study)}), few steps are what counts for small "
        f"gradients: of the systems that give a transfer one wavelength, {SYSTEMS[system].title} is the "
        f"fastest {limit}"
    )
    any_of = _fastest_up_to(study, result, "each-step", True)
    if any_of is not None and any_of[1] < size:
        text += f", of all on the ring, striped ones included, up to {format_size(any_of[1])}"
    _, above = models_beyond(study, size)
    if len(above) == len(study.sweeps.gradients):
        text += ". All models' gradients here are larger"
    return [_say("wins", text + ".")]


#: What a ring is called in a sentence.
_SPOKEN = {
    "ring": "the ring on one wavelength of one fibre",
    "bidirectional-ring": "the bidirectional ring, on one wavelength of both fibres",
}


def _verdict_on_rings(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    pairs = itertools.product(
        (name for name in WRHT if name in study.sweeps.systems),
        [name for name in reversed(RINGS) if name in study.sweeps.systems],
    )
    for system, other in pairs:
        size = wins_up_to(_pair(result, system, other, "each-step"))
        if size is None:
            continue
        title = SYSTEMS[system].title
        if size == 0:
            found.append(_say("loses", f"{title} is never faster than {_SPOKEN[other]}."))
            continue
        below, above = models_beyond(study, size)
        limit = "for every size" if size == math.inf else f"for gradients up to {format_size(size)}"
        text = f"Against {_SPOKEN[other]}, set-up in each step, {title} wins {limit}."
        text += f" That covers {_listed(below)}." if below else ""
        text += f" It loses for {_listed(above)}." if above else ""
        found.append(_say("wins" if below else "loses", text))
    for other in ("bidirectional-hierarchical-ring", "hierarchical-ring"):
        if other in study.sweeps.systems:
            found += _verdict_on_hierarchical(study, result, other)
    return found


def _verdict_on_hierarchical(study: Study, result: Mapping[str, Any], other: str) -> list[dict[str, str]]:
    found = []
    sizes = {
        system: size
        for system in WRHT
        if (size := wins_up_to(_pair(result, system, other, "each-step"))) is not None
    }
    if sizes and (largest := max(sizes.values())) < math.inf:
        ring = result["systems"][other]
        fibres = "both fibres" if other.startswith("bidirectional") else "one fibre"
        _, above = models_beyond(study, largest)
        each = _listed(
            [f"{format_size(size) if size else 'never'} ({SYSTEMS[s].title})" for s, size in sizes.items()]
        )
        found.append(
            _say(
                "loses" if above else "wins",
                f"A hierarchical ring on {fibres}, in groups of {ring['group']}, takes {ring['steps']} steps "
                "instead of "
                f"the ring's {result['systems']['ring']['steps']:,} and sends no more. Against it WRHT wins "
                "only "
                f"up to {each}" + (f"; {_listed(above)} lie beyond." if above else "."),
            )
        )
    return found


def _verdict_on_striping(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    others = [name for name in study.optical if SYSTEMS[name].striped and name != "wrht-striped"]
    sizes = {
        other: size
        for other in others
        if (size := wins_up_to(_pair(result, "wrht", other, "each-step"))) is not None
    }
    if not sizes:
        return []
    gradient = study.sweeps.base.gradient
    each = "; ".join(
        f"{SYSTEMS[name].title}: "
        f"{'never' if not size else 'always' if size == math.inf else format_size(size)}"
        for name, size in sizes.items()
    )
    text = (
        "WRHT gives each transfer one wavelength. Where the others may spread a transfer over all "
        "wavelengths that their step leaves free, WRHT wins only up to these sizes, set-up in each step: "
        f"{each}."
    )
    times = {name: result["models"]["each-step"][gradient].get(name) for name in ("wrht", *others)}
    known = {name: found["total_s"] for name, found in times.items() if found}
    if "wrht" in known and len(known) > 1:
        best = min((name for name in known if name != "wrht"), key=lambda name: known[name])
        text += (
            f" For {gradient} WRHT takes {format_time(known['wrht'])}, {SYSTEMS[best].title} "
            f"{format_time(known[best])}: {known['wrht'] / known[best]:.3g} times as long."
        )
    beyond = models_beyond(study, min(sizes.values()))[1]
    return [_say("loses" if beyond else "wins", text)]


def _verdict_on_charge(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    ring = strongest_ring(study)
    each = wins_up_to(_pair(result, "wrht", ring, "each-step"))
    new = wins_up_to(_pair(result, "wrht", ring, "changed-only"))
    if each is None or new is None:
        return []
    if new == 0:
        return [
            _say(
                "loses",
                "All of WRHT's advantage over the ring rests on charging the set-up on each of the ring's "
                "steps. But a ring uses the same lightpaths in every step. Charged only where light changes, "
                "the ring sets up once and, where steps cost nothing else, is faster for every size of "
                "gradient.",
            )
        ]
    return [
        _say(
            "wins" if new >= each else "loses",
            f"With set-up charged only where light changes WRHT beats the ring up to {format_size(new)} "
            f"instead of {format_size(each)}.",
        )
    ]


def _verdict_on_trees(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    size = wins_up_to(_pair(result, "wrht", "binary-tree", "each-step"))
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
    rows = [r for r in result["messages"] if r["charge"] == "each-step" and r["set_up_s"] == base.set_up]
    by = {row["system"]: row for row in rows}
    mine = by["wrht"]
    for other in study.electrical:
        pairs = list(zip(mine["total_s"], by[other]["total_s"], strict=True))
        if any(None in pair for pair in pairs):
            continue
        better = [size for size, (a, b) in zip(mine["bytes"], pairs, strict=True) if a < b]
        title = SYSTEMS[other].title
        factor = electrical.oversubscription[0]
        where = f"a tree with trunks {factor:g}:1 and {format_time(electrical.latency)} per step"
        covers = [name for name, size in study.sweeps.gradients.items() if better and size >= better[0]]
        if len(better) == len(mine["bytes"]):
            found.append(_say("wins", f"{title} on {where}: WRHT is faster for every size swept."))
        elif better and better[-1] == mine["bytes"][-1]:
            text = f"{title} on {where}: WRHT is faster from about {format_size(better[0])} on."
            found.append(_say("wins" if base.gradient in covers else "loses", text))
        elif better:
            text = f"{title} on {where}: WRHT is faster up to about {format_size(better[-1])} only."
            found.append(
                _say("wins" if base.gradient in models_beyond(study, better[-1])[0] else "loses", text)
            )
        else:
            found.append(_say("loses", f"{title} on {where}: WRHT is faster for no size swept."))
    return found


def _verdict_on_memory(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    row = result["groups"][-1]
    largest = max(study.sweeps.gradients, key=lambda name: study.sweeps.gradients[name])
    text = (
        f"A representative receives {row['vectors']} whole vectors at once: "
        f"{format_size(row['buffer_bytes'][largest])} for {largest} ({row['vectors']} × "
        f"{format_size(study.sweeps.gradients[largest])}), and needs as many receivers."
    )
    least = next((other for other in result["groups"] if other["steps"] == row["steps"]), row)
    if least["group"] < row["group"]:
        text += (
            f" Groups of {least['group']} take as many steps and need "
            f"{format_size(least['buffer_bytes'][largest])} and {least['wavelengths_used']} wavelengths: the "
            "largest group that the wavelengths allow is not the best one."
        )
    return [_say("loses", text)]


def _verdict_on_additions(study: Study, result: Mapping[str, Any]) -> list[dict[str, str]]:
    gradient, ring = study.sweeps.base.gradient, strongest_ring(study)
    found = result["left_out"]["each-step"][gradient].get("wrht", {})
    before, after = found.get("as it is"), found.get("local additions")
    if not before or not after:
        return []
    text = (
        f"Adding up what it received takes a representative time that is usually left out: with it "
        f"{gradient} takes {format_time(after)} instead of {format_time(before)}"
    )
    for pair in result["crossovers"]["left_out"].get("local additions", []):
        if (pair["system"], pair["other"], pair["charge"]) == ("wrht", ring, "each-step"):
            size = wins_up_to(pair)
            usual = wins_up_to(_pair(result, "wrht", ring, "each-step"))
            if size and usual and usual < math.inf:
                text += (
                    f", and WRHT beats {_SPOKEN[ring]}, up to {format_size(size)} instead of "
                    f"{format_size(usual)}"
                )
    return [_say("loses", text + ".")]


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
        f"{limited[0]['reach']} segments, and relays by a heuristic of ours, it takes {worst['steps']} "
        f"steps instead of {free['steps']}"
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
    missed = [f for f in published["figures"] if f["ours"] and not f["exact"]]
    if not (exact or missed):
        return []
    text = ""
    for figure in exact:
        text += (
            f"Of the published percentages {figure['percent']:.2f} % is reproduced exactly, taken as the one "
            f"against {SYSTEMS[figure['taken_for']].title}: it is a ratio of numbers of steps, and the "
            "parameters say whether nodes and wavelengths were inferred from it. "
        )
    if missed:
        listed = _listed([f"{figure['percent']:.2f}" for figure in missed])
        text += f"{listed} % {'are' if len(missed) > 1 else 'is'} not reproduced: its settings are not known."
    return [_say("note", text.strip())]

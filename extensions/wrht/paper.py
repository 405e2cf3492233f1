"""WRHT (Dai et al.): closed forms of all-reduces on optical rings and electrical trees; its claim.

A closed form says, without making the schedule, how many steps a collective has, in how many of them light is
set anew, how often the whole vector passes the narrowest link, and how many vectors the busiest rank
adds. An all-reduce then takes set-ups · a + vectors · d/B.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.base import AS_WRITTEN, AtBase
from ringlight.experiments.analysis.published import means, saved
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.spec import quantity
from ringlight.experiments.papers import Finding, analytic
from ringlight.experiments.record.runs import Run
from ringlight.extensions.wrht.ring_plane import RingPlane
from ringlight.extensions.wrht.schedule import WrhtPlan, exchange_wavelengths, plan
from ringlight.extensions.wrht.wdm import stripes
from ringlight.fabric.algorithms import Collective, fitting_group, parse_collective
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_size, format_time

WRHT = ("wrht", "wrht-exchange")


@dataclass(frozen=True)
class ClosedForm:
    """``steps`` of a collective, ``new`` of them with light that the one before had not; ``vectors``: the
    whole gradient passes the narrowest link so many times; ``added``: vectors that the busiest rank adds."""

    steps: int
    new: int
    vectors: float
    added: float


def closed_forms(run: Run, latency_s: float = 0.0) -> Iterator[Row]:
    """Yield rows by the closed form for a run that times one all-reduce; none for other runs or collectives.

    WRHT also gets the lightpaths that one node receives at the same time, and the segments of its longest
    lightpath.

    ``latency_s``: emulated seconds of every step, in addition to those of the file.
    """
    job, plan = next(iter(run.jobs.values())), run.plan
    if job.timed is None:
        return
    row, collective = analytic(run), parse_collective(job.plan.loop.collective)
    if collective.algorithm == "wrht":
        vectors, longest = _needs(collective, job.plan.gpus)
        yield row("received_at_once", vectors * job.plan.loop.gradient_bytes, "bytes")
        yield row("longest_lightpath", longest, "count")
    form = closed_form(plan)
    # How headers and segments slow a transfer down is not in it.
    if form is not None and not plan.costs.segment_s and not plan.costs.headers:
        yield row("allreduce_closed", _time_s(plan, form, latency_s), "s")
        yield row("vectors_closed", form.vectors, "1")
        yield row("set_ups_closed", form.new, "count")
        yield row("added_closed", form.added, "1")


def _time_s(plan: RunPlan, form: ClosedForm, latency_s: float) -> float:
    (job,), fabric, plane = plan.jobs, plan.setting.fabric, plan.on(RingPlane)
    rate_bps = next(
        link.rate_bps
        for link in fabric.links
        if {link.a.node, link.b.node} & fabric.gpus.keys()
    )
    set_ups = (
        form.new
        if plane is not None and plane.ring.reconfigure == "changed-only"
        else form.steps
    )
    # An electrical step has no light to set; it has the latency of its messages.
    set_up_s = plane.declared_s(plan.setting.scale.time) if plane is not None else 0.0
    waiting_s = set_ups * set_up_s + form.steps * (
        plan.latency_s(job.plane(fabric)) + latency_s
    )
    adding = 0.0 if plan.costs.add_bps is None else form.added / plan.costs.add_bps
    return (
        waiting_s
        + (form.vectors / (rate_bps / plan.setting.scale.rate) + adding)
        * 8
        * job.loop.gradient_bytes
    )


def closed_form(plan: RunPlan) -> ClosedForm | None:
    """Return the closed form for the only job of a plan.

    None if its collective has no closed form, or if ranks do not follow the order of the fabric's GPUs.
    """
    (job,), fabric = plan.jobs, plan.setting.fabric
    if job.ranks and job.ranks != job.plane(fabric).nodes:
        return None
    if (plane := plan.on(RingPlane)) is not None:
        return on_ring(
            parse_collective(job.loop.collective), job.gpus, plane.ring.wavelengths
        )
    leaf, oversubscription = _tree_of(fabric)
    forms = {"ring": _electrical_ring, "recursive-doubling": _recursive_doubling}
    form = forms.get(job.loop.collective)
    return None if form is None else form(job.gpus, leaf, oversubscription)


def on_ring(collective: Collective, nodes: int, wavelengths: int) -> ClosedForm | None:
    """Return the closed form on a ring of ``wavelengths`` each way; None for WRHT that is striped and
    relayed."""
    lanes, both = (
        wavelengths if collective.striped else 1,
        collective.algorithm.startswith("bidirectional"),
    )
    if collective.algorithm == "wrht":
        return _wrht(collective, nodes, wavelengths)
    if collective.algorithm.endswith("hierarchical-ring"):
        m = collective.group or fitting_group(nodes, wavelengths)
        return _hierarchical(
            nodes, m, wavelengths if collective.striped else None, both
        )
    if collective.algorithm.endswith("ring"):
        passes = 2 * (nodes - 1) / nodes / lanes / _ways(nodes, both)
        return ClosedForm(2 * (nodes - 1), 1, passes, (nodes - 1) / nodes)
    if collective.algorithm == "binary-tree":
        depth = math.ceil(math.log2(nodes))
        return ClosedForm(2 * depth, 2 * depth, 2 * depth / lanes, depth)
    return None


@functools.lru_cache(maxsize=128)
def _tree(collective: Collective, nodes: int) -> WrhtPlan:
    top = "exchange" if collective.exchange else "collect"
    return plan(
        nodes, collective.wavelengths or 1, collective.group, top, collective.reach
    )


@functools.lru_cache(maxsize=128)
def _needs(collective: Collective, nodes: int) -> tuple[int, int]:
    """Return the vectors that one node receives at the same time, and the segments of the longest
    lightpath."""
    tree = _tree(collective, nodes)
    return tree.buffer_vectors, tree.longest_segments


def _levels(
    collective: Collective, nodes: int, wavelengths: int
) -> list[tuple[int, bool]]:
    """Return (size of the largest group, whether it exchanges) of each level, without limit of reach."""
    levels: list[tuple[int, bool]] = []
    left = nodes
    while left > 1:
        if collective.exchange and exchange_wavelengths(left) <= wavelengths:
            return [*levels, (left, True)]
        size = min(collective.group or 2 * wavelengths + 1, left)
        levels.append((size, False))
        left = -(-left // size)
    return levels


def _wrht(collective: Collective, nodes: int, wavelengths: int) -> ClosedForm | None:
    if collective.reach is not None:
        if collective.striped:
            return None
        # How relays add up has no closed form: the plan counts the steps, the formula gives their time.
        tree = _tree(collective, nodes)
        added = sum(
            max(len(group) for group in level.groups) - 1 for level in tree.levels
        )
        return ClosedForm(tree.steps, tree.steps, tree.steps, added)
    levels = _levels(collective, nodes, wavelengths)
    steps = sum(1 if last else 2 for _, last in levels)
    passes = sum(
        (1 if last else 2)
        / (stripes(wavelengths, size // 2) if collective.striped else 1)
        for size, last in levels
    )
    return ClosedForm(steps, steps, passes, sum(size - 1 for size, _ in levels))


def _ways(ranks: int, both: bool) -> int:
    """Parts that a ring sends at once, one each way; two ranks have only one way to each other."""
    return 2 if both and ranks > 2 else 1


def _hierarchical(nodes: int, m: int, striped_on: int | None, both: bool) -> ClosedForm:
    groups = nodes // m
    # Inside a group the light back to its first member lies over that of the other half, on as many more.
    inside, across = (
        (stripes(striped_on, _ways(m, both)), stripes(striped_on, m))
        if striped_on
        else (1, 1)
    )
    new = (2 if m > 1 else 0) + (1 if groups > 1 else 0)
    passes = 2 * (m - 1) / m / inside / _ways(m, both) + 2 * (
        groups - 1
    ) / nodes / across / _ways(groups, both)
    return ClosedForm(
        2 * (m - 1) + 2 * (groups - 1), new, passes, (m - 1) / m + (groups - 1) / nodes
    )


def _tree_of(fabric: Fabric) -> tuple[int, float]:
    """GPUs under a leaf of a tree with one spine, and what they could send over what its trunk carries."""
    leaves = max(1, len(fabric.packet_switches) - 1)
    of_gpus = [
        link.rate_bps
        for link in fabric.links
        if link.a.node in fabric.gpus or link.b.node in fabric.gpus
    ]
    trunks_bps = sum(link.rate_bps for link in fabric.links) - sum(of_gpus)
    return len(of_gpus) // leaves, sum(of_gpus) / trunks_bps if trunks_bps > 0 else 1.0


def _electrical_ring(n: int, leaf: int, oversubscription: float) -> ClosedForm:
    # One flow leaves each leaf: it is slowed only where the trunk is narrower than one GPU's link.
    slow = max(1.0, oversubscription / min(leaf, n)) if n > leaf else 1.0
    return ClosedForm(2 * (n - 1), 2 * (n - 1), 2 * (n - 1) / n * slow, (n - 1) / n)


def _recursive_doubling(n: int, leaf: int, oversubscription: float) -> ClosedForm:
    depth = n.bit_length() - 1
    fold = n - (1 << depth)
    inside = min(depth, leaf.bit_length() - 1)
    # Ranks beyond the power of two fold in and out, and theirs are whole leaves away where n is above a leaf.
    away = oversubscription if n > leaf else 1.0
    vectors = inside + (depth - inside) * away + (2 * away if fold else 0)
    steps = depth + (2 if fold else 0)
    return ClosedForm(steps, steps, vectors, depth + (1 if fold else 0))


# --- the verdict ----------------------------------------------------------------------------------

GRADIENT, COLLECTIVE = "training.gradient", "training.collective"
RECONFIGURE, LOSS = (
    "fabrics.light.rings.n.reconfigure",
    "fabrics.light.rings.n.wss.loss_db",
)


def verdict(base: AtBase) -> Iterator[Finding]:
    """Yield findings: in which cases WRHT wins or loses, from the rows alone."""
    rivals = [arm for arm in base.experiment.arms if not arm.startswith("wrht")]
    plain = [arm for arm in rivals if not arm.endswith("-striped")]
    yield from _on_small(base, plain, rivals)
    for other in plain:
        yield from _on_one(base, other)
    yield from _on_striping(base, [arm for arm in rivals if arm.endswith("-striped")])
    yield from _on_charge(base)
    yield from _on_memory(base)
    yield from _on_additions(base)
    yield from _on_loss(base)
    yield from _on_figures(base)


def _up_to(
    base: AtBase, arm: str, other: str, changed: Mapping[str, Any] = AS_WRITTEN
) -> float | None:
    """Return the gradient below which an arm is faster, bytes: 0 never, infinity always.

    None if it is not known, or if the other arm is ahead at first.
    """
    row = base.row_at(arm, f"faster_up_to.{other}", changed)
    if row is None:
        return None
    return (
        row.value
        if is_number(row.value)
        else {"always": math.inf, "never": 0.0}[str(row.value)]
    )


def _models(base: AtBase) -> dict[str, float]:
    """Return the bytes of the gradients for which the file has a parameter, by its name."""
    swept = {place.point[GRADIENT] for place in base.table if GRADIENT in place.point}
    named = {
        name: spec.value
        for name, spec in base.experiment.spec.parameters.items()
        if spec.value in swept
    }
    return {
        name: size[0]
        for name, value in named.items()
        if (size := quantity(value)) is not None
    }


def _limit(size: float) -> str:
    return "for every size" if size == math.inf else f"up to {format_size(size)}"


def _covers(base: AtBase, size: float) -> str:
    """Return the models whose gradients are below and above a size in bytes, in words."""
    below = [name for name, own in _models(base).items() if own < size]
    above = [name for name in _models(base) if name not in below]
    return (f" That covers {listed(below)}." if below else "") + (
        f" It loses for {listed(above)}." if above else ""
    )


def _on_small(
    base: AtBase, plain: Sequence[str], rivals: Sequence[str]
) -> Iterator[Finding]:
    """Yield findings: the gradient size up to which a form of WRHT is fastest on the ring."""

    def best(against: Sequence[str]) -> tuple[float, str] | None:
        sizes_by_arm = []
        for arm in WRHT:
            sizes = [
                size
                for other in against
                if (size := _up_to(base, arm, other)) is not None
            ]
            sizes_by_arm += [(min(sizes), arm)] if sizes else []
        return max(sizes_by_arm, default=None)

    plain_best, any_of = best(plain), best(rivals)
    if plain_best is None or any_of is None:
        return
    text = (
        "If every step pays for its set-up, few steps matter most for small gradients. With one wavelength for "
        f"each transfer, {base.titles[plain_best[1]]} is the fastest {_limit(plain_best[0])}"
    )
    text += (
        f"; against striped algorithms as well, {_limit(any_of[0])}"
        if any_of[0] < plain_best[0]
        else ""
    )
    beyond = all(own > plain_best[0] for own in _models(base).values())
    yield Finding(
        "wins" if plain_best[0] else "loses",
        text + (". All models' gradients here are larger." if beyond else "."),
    )


def _on_one(base: AtBase, other: str) -> Iterator[Finding]:
    """Yield findings: both forms of WRHT against another arm, with a set-up in each step."""
    sizes = {
        arm: size for arm in WRHT if (size := _up_to(base, arm, other)) is not None
    }
    title = base.titles[other]
    for arm in WRHT:
        later = base.row_at(arm, f"faster_from.{other}")
        if later is not None and is_number(later.value):
            yield Finding(
                "wins",
                f"{title}: {base.titles[arm]} is faster from {format_size(later.value)} on.",
            )
    if not sizes:
        return
    most = max(sizes.values())
    if len(set(sizes.values())) == 1:
        sentence = (
            f"WRHT, with exchange or without, is faster {_limit(most)}"
            if most
            else "WRHT is never faster"
        )
    else:
        sentence = listed(
            [
                f"{base.titles[arm]} is {f'faster {_limit(size)}' if size else 'never faster'}"
                for arm, size in sizes.items()
            ]
        )
    wins = any(own < most for own in _models(base).values())
    yield Finding(
        "wins" if wins else "loses",
        f"{title}: {sentence}.{_covers(base, most) if most < math.inf else ''}",
    )


def _on_striping(base: AtBase, striped: Sequence[str]) -> Iterator[Finding]:
    sizes = {
        other: size
        for other in striped
        if (size := _up_to(base, "wrht", other)) is not None
    }
    if sizes:
        each = ". ".join(
            f"{base.titles[other]}: {_limit(size) if size else 'never'}"
            for other, size in sizes.items()
        )
        yield Finding(
            "loses"
            if min(sizes.values()) < min(_models(base).values(), default=0.0)
            else "wins",
            "WRHT gives each transfer one wavelength. If the other algorithms spread a transfer over all "
            f"wavelengths that their step leaves free, WRHT wins only for these sizes. {each}.",
        )


def _on_charge(base: AtBase) -> Iterator[Finding]:
    for other in ("bidirectional-ring", "ring"):
        each, new = (
            _up_to(base, "wrht", other),
            _up_to(base, "wrht", other, {RECONFIGURE: "changed-only"}),
        )
        if each and new == 0:
            yield Finding(
                "loses",
                f"{base.titles[other]}: all of WRHT's advantage is due to charging the set-up on each of the "
                "ring's steps. But a ring uses the same lightpaths in every step. Charged only when light "
                "changes, it sets up once and is faster for every size of gradient.",
            )
        elif each and new is not None:
            text = f"{base.titles[other]}: charged only when light changes, WRHT wins {_limit(new)}, not "
            yield Finding("wins" if new >= each else "loses", f"{text}{_limit(each)}.")


def _on_memory(base: AtBase) -> Iterator[Finding]:
    models = _models(base)
    if not models:
        return
    name = max(models, key=lambda model: models[model])
    written = base.experiment.spec.parameters[name].value
    held = base.number("wrht", "received_at_once", {GRADIENT: written})
    if held is None:
        return
    text = (
        f"A representative receives {held / models[name]:.0f} whole vectors at the same time "
        f"(for {name} {format_size(held)}), and needs as many receivers."
    )
    steps = base.number("wrht", "steps", {GRADIENT: written})
    for row in base.table.each("wrht", "steps"):
        group = row.point.get(COLLECTIVE)
        smaller = group not in (None, "wrht") and row.point[GRADIENT] == written
        if smaller and steps is not None and row.value == steps:
            less = base.number(
                "wrht", "received_at_once", {GRADIENT: written, COLLECTIVE: group}
            )
            if less is not None:
                text += (
                    f" As {group} it takes as many steps and needs {format_size(less)}."
                )
                break
    yield Finding("loses", text)


def _on_additions(base: AtBase) -> Iterator[Finding]:
    model = next(iter(_models(base)), None)
    if model is None:
        return
    written = base.experiment.spec.parameters[model].value
    before = base.number("wrht", "allreduce", {GRADIENT: written})
    for row in base.table.each("wrht", "allreduce"):
        costs = row.point.get("costs") or {}
        if row.point.get(GRADIENT) != written or before is None:
            continue
        each = row.point.get(RECONFIGURE, "each-step") == "each-step"
        if set(costs) == {"addition"} and each and is_number(row.value):
            yield Finding(
                "loses",
                "A representative needs time to add the vectors that it received, which the base leaves out. With "
                f"it {model} takes {format_time(row.value)} instead of {format_time(before)}.",
            )
            return


def _on_loss(base: AtBase) -> Iterator[Finding]:
    by_loss = base.along("wrht", "steps", LOSS)
    longest = base.row_at("wrht", "longest_lightpath")
    if len(by_loss) < 2 or longest is None:
        return
    free, most = by_loss[min(by_loss)], max(by_loss)
    kept = max(lost for lost, steps in by_loss.items() if steps == free)
    yield Finding(
        "loses",
        f"WRHT's longest lightpath passes {longest.value} segments. The largest swept loss in each node's "
        f"switch with which that is possible is {kept:g} dB. At {most:g} dB WRHT takes {by_loss[most]:,} steps "
        f"instead of {free}, with relays chosen by our own heuristic.",
    )


def _on_figures(base: AtBase) -> Iterator[Finding]:
    published = [mean for mean in means(base.experiment.spec, base.table) if mean.ours]
    exact, missed = (
        [
            f"{saved(mean.ratio):.2f} %"
            for mean in published
            if mean.reproduced == expected
        ]
        for expected in (True, False)
    )
    text = (
        f"Fitted: {listed(exact)}; the parameters inferred from it are marked."
        if exact
        else ""
    )
    text += (
        f" Not reproduced: {listed(missed)}, whose settings are not known."
        if missed
        else ""
    )
    if text:
        yield Finding("note", text.strip())


def listed(words: Sequence[str]) -> str:
    """Return words joined with commas and a last "and"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))

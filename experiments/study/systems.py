"""All-reduces on a ring of wavelengths and on an electrical tree: the schedule of each, and its closed form.

A system is one function that makes its schedule and one that says, without making it, how many steps it has,
in how many of them light has to be set anew, how often the whole vector passes the narrowest link, and how
many vectors a rank has to add. The simulator runs the schedules; the closed forms stand beside it as a check.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fabric import schedules, wdm
from fabric.steps import Step, Steps, frozen, frozen_bool
from fabric.topology import Reconfigure
from fabric.wrht import exchange_wavelengths, plan, wrht

#: Which steps pay for setting light.
CHARGES: tuple[Reconfigure, ...] = ("each-step", "changed-only")


@dataclass(frozen=True)
class Place:
    """Where a collective runs.

    Optical: ``nodes`` around a ring with ``wavelengths`` in each direction, each at ``rate_bps``; lightpaths
    of at most ``reach`` segments; WRHT in groups of at most ``group``, None for as many as the wavelengths
    allow. Electrical: ``leaf`` GPUs under each leaf of a tree, each at ``rate_bps``, a leaf's trunk
    ``oversubscription`` times narrower than they are together.
    """

    nodes: int
    wavelengths: int
    rate_bps: float
    reach: int | None = None
    group: int | None = None
    leaf: int = 32
    oversubscription: float = 1.0


@dataclass(frozen=True)
class ClosedForm:
    """``steps`` of a collective, ``new`` of them with light that the one before had not; ``vectors``: the
    whole gradient passes the narrowest link so many times; ``added``: vectors that the busiest rank adds."""

    steps: int
    new: int
    vectors: float
    added: float

    def set_ups(self, charge: Reconfigure) -> int:
        return self.steps if charge == "each-step" else self.new

    def time_s(
        self, vector_bytes: float, rate_bps: float, set_up_s: float, charge: Reconfigure,
        add_bps: float | None = None,
    ) -> float:  # fmt: skip
        """Seconds: set-ups, the vectors at the rate, and adding what came at ``add_bps``, where it counts."""
        adding = 0.0 if add_bps is None else self.added / add_bps
        passing = self.vectors / rate_bps
        return self.set_ups(charge) * set_up_s + (passing + adding) * 8 * vector_bytes


@dataclass(frozen=True)
class System:
    """``title`` for tables; ``medium``; ``striped``: a transfer may use several wavelengths at once.

    ``steps`` and ``closed`` raise ValueError for a place that they do not fit.
    """

    title: str
    medium: Literal["optical", "electrical"]
    striped: bool
    steps: Callable[[Place], Steps]
    closed: Callable[[Place], ClosedForm]


# --- schedules ------------------------------------------------------------------------------------


def compact(steps: Steps) -> Steps:
    """The same collective with steps that are alike made one object: good for its time, not for its sums.

    Steps are alike when the same arrays travel the same way; which chunks they are is that of the first.
    """
    known: dict[object, Step] = {}
    order = []
    for step in steps:
        arrays = (step.sources, step.destinations, step.count, step.wavelengths, step.clockwise)
        order.append(known.setdefault((*map(id, arrays), step.op), step))
    return replace(steps, make=lambda: iter(order))


@functools.lru_cache(maxsize=64)
def _compact(make: Callable[..., Steps], *of: int) -> Steps:
    """``make(*of)``, compact; made once for all wavelengths and rates."""
    return compact(make(*of))


def stripes(wavelengths: int, used: int) -> int:
    """How many stripes every transfer of a step gets that uses ``used`` of the wavelengths: a divisor of
    ``wavelengths``, so that steps with different numbers of stripes can cut the vector into equal parts."""
    return max(s for s in range(1, wavelengths // used + 1) if wavelengths % s == 0)


def striped(steps: Steps, wavelengths: int) -> Steps:
    """A collective on a ring with every step cut into as many stripes as its wavelengths leave room for.

    Steps without wavelengths get theirs by :func:`fabric.wdm.assign`, which raises ValueError when they do
    not fit.
    """

    def make() -> Iterator[Step]:
        done: dict[int, tuple[Step, Step]] = {}
        for number, step in enumerate(steps):
            if id(step) not in done:
                # The step is kept, so that its identity stays its own.
                done[id(step)] = (step, _striped(step, steps.world_size, wavelengths, number))
            yield done[id(step)][1]

    return Steps(f"{steps.name}, striped", steps.world_size, steps.chunks * wavelengths, steps.steps, make)


def _striped(step: Step, nodes: int, wavelengths: int, number: int) -> Step:
    coloured = step if step.wavelengths is not None else wdm.assign(step, nodes, wavelengths, number)
    assert coloured.wavelengths is not None
    assert coloured.clockwise is not None
    used = int(coloured.wavelengths.max(initial=0)) + 1
    cut = stripes(wavelengths, used)
    part = step.count * (wavelengths // cut)
    each = np.arange(cut)[:, None]
    return Step(
        frozen(np.tile(step.sources, cut)),
        frozen(np.tile(step.destinations, cut)),
        frozen((step.first * wavelengths + each * part).ravel()),
        frozen(np.tile(part, cut)),
        step.op,
        frozen((coloured.wavelengths + each * used).ravel()),
        frozen_bool(np.tile(coloured.clockwise, cut)),
    )


def fitting_group(nodes: int, wavelengths: int) -> int:
    """Group size of a hierarchical ring: the divisor of ``nodes`` with the fewest steps among those that the
    wavelengths carry. Neighbouring groups' rings overlap on as many lightpaths as a group has nodes."""
    fit = (m for m in range(1, min(nodes, wavelengths) + 1) if nodes % m == 0)
    return min(fit, key=lambda m: (m + nodes // m, m))


def _hierarchical(place: Place, both: bool = False) -> Steps:
    group = fitting_group(place.nodes, place.wavelengths)
    make = schedules.bidirectional_hierarchical_ring if both else schedules.hierarchical_ring
    return _compact(make, place.nodes, group)


def _on_ring(steps: Steps, place: Place) -> Steps:
    return wdm.on_ring(steps, place.wavelengths)


def _wrht(place: Place) -> Steps:
    return wrht(place.nodes, place.wavelengths, place.group, reach=place.reach)


def _exchange(place: Place) -> Steps:
    return wrht(place.nodes, place.wavelengths, place.group, top="exchange", reach=place.reach)


# --- closed forms ---------------------------------------------------------------------------------


def _levels(place: Place, exchange: bool) -> list[tuple[int, bool]]:
    """(size of the largest group, whether it exchanges) of each level of WRHT, without limit of reach."""
    found: list[tuple[int, bool]] = []
    left = place.nodes
    while left > 1:
        if exchange and exchange_wavelengths(left) <= place.wavelengths:
            return [*found, (left, True)]
        size = min(place.group or 2 * place.wavelengths + 1, left)
        found.append((size, False))
        left = -(-left // size)
    return found


def _wrht_closed(place: Place, exchange: bool) -> ClosedForm:
    if place.reach is not None:
        # How relays add up has no closed form: the plan counts the steps, the formula gives their time.
        top: Literal["exchange", "collect"] = "exchange" if exchange else "collect"
        tree = plan(place.nodes, place.wavelengths, place.group, top=top, reach=place.reach)
        added = sum(max(len(g) for g in level.groups) - 1 for level in tree.levels)
        return ClosedForm(tree.steps, tree.steps, tree.steps, added)
    levels = _levels(place, exchange)
    steps = sum(1 if last else 2 for _, last in levels)
    return ClosedForm(steps, steps, steps, sum(size - 1 for size, _ in levels))


def _wrht_striped_closed(place: Place) -> ClosedForm:
    one = _wrht_closed(place, False)
    if place.reach is not None:
        raise ValueError("WRHT with stripes has no closed form with a limited reach")
    vectors = sum(2 / stripes(place.wavelengths, size // 2) for size, _ in _levels(place, False))
    return replace(one, vectors=vectors)


def _ways(ranks: int, both: bool) -> int:
    """In how many parts a ring sends at once, one each way; two ranks have only one way to each other."""
    return 2 if both and ranks > 2 else 1


def _ring_closed(place: Place, lanes: int, both: bool = False) -> ClosedForm:
    n = place.nodes
    return ClosedForm(2 * (n - 1), 1, 2 * (n - 1) / n / lanes / _ways(n, both), (n - 1) / n)


def _hierarchical_closed(place: Place, stripe: bool, both: bool = False) -> ClosedForm:
    n, w = place.nodes, place.wavelengths
    m = fitting_group(n, w)
    g = n // m
    # Inside a group the light back to its first member lies over that of the other half, on as many more.
    inside, across = (stripes(w, _ways(m, both)), stripes(w, m)) if stripe else (1, 1)
    new = (2 if m > 1 else 0) + (1 if g > 1 else 0)
    vectors = 2 * (m - 1) / m / inside / _ways(m, both) + 2 * (g - 1) / n / across / _ways(g, both)
    return ClosedForm(2 * (m - 1) + 2 * (g - 1), new, vectors, (m - 1) / m + (g - 1) / n)


def _tree_closed(place: Place, lanes: int) -> ClosedForm:
    depth = math.ceil(math.log2(place.nodes))
    return ClosedForm(2 * depth, 2 * depth, 2 * depth / lanes, depth)


def check_leaf(place: Place) -> None:
    """Raises ValueError when the GPUs do not fill leaves of a power of two."""
    if place.leaf & (place.leaf - 1):
        raise ValueError(f"leaves of {place.leaf} GPUs; it must be a power of 2")
    if place.nodes > place.leaf and place.nodes % place.leaf:
        raise ValueError(f"{place.nodes} nodes do not fill leaves of {place.leaf}")


def _electrical_ring_closed(place: Place) -> ClosedForm:
    n = place.nodes
    # One flow leaves each leaf: it is slowed only where the trunk is narrower than one GPU's link.
    slow = max(1.0, place.oversubscription / min(place.leaf, n)) if n > place.leaf else 1.0
    return ClosedForm(2 * (n - 1), 2 * (n - 1), 2 * (n - 1) / n * slow, (n - 1) / n)


def _recursive_doubling_closed(place: Place) -> ClosedForm:
    n = place.nodes
    depth = n.bit_length() - 1
    fold = n - (1 << depth)
    inside = min(depth, place.leaf.bit_length() - 1)
    # Ranks beyond the power of two fold in and out, and theirs are whole leaves away where n is above a leaf.
    away = place.oversubscription if n > place.leaf else 1.0
    vectors = inside + (depth - inside) * away + (2 * away if fold else 0)
    steps = depth + (2 if fold else 0)
    return ClosedForm(steps, steps, vectors, depth + (1 if fold else 0))


SYSTEMS: Mapping[str, System] = {
    "wrht": System("WRHT", "optical", False, _wrht, lambda p: _wrht_closed(p, False)),
    "wrht-exchange": System(
        "WRHT, exchange at the top", "optical", False, _exchange, lambda p: _wrht_closed(p, True)
    ),
    "wrht-striped": System(
        "WRHT, idle wavelengths striped", "optical", True,
        lambda p: striped(_wrht(p), p.wavelengths), _wrht_striped_closed,
    ),
    "ring": System(
        "Ring, one wavelength", "optical", False,
        lambda p: _on_ring(_compact(schedules.ring, p.nodes), p), lambda p: _ring_closed(p, 1),
    ),
    "ring-striped": System(
        "Ring, striped", "optical", True,
        lambda p: striped(_compact(schedules.ring, p.nodes), p.wavelengths),
        lambda p: _ring_closed(p, p.wavelengths),
    ),
    "hierarchical-ring": System(
        "Hierarchical ring", "optical", False,
        lambda p: _on_ring(_hierarchical(p), p), lambda p: _hierarchical_closed(p, False),
    ),
    "hierarchical-ring-striped": System(
        "Hierarchical ring, striped", "optical", True,
        lambda p: striped(_hierarchical(p), p.wavelengths), lambda p: _hierarchical_closed(p, True),
    ),
    "bidirectional-ring": System(
        "Bidirectional ring, one wavelength", "optical", False,
        lambda p: _on_ring(_compact(schedules.bidirectional_ring, p.nodes), p),
        lambda p: _ring_closed(p, 1, True),
    ),
    "bidirectional-ring-striped": System(
        "Bidirectional ring, striped", "optical", True,
        lambda p: striped(_compact(schedules.bidirectional_ring, p.nodes), p.wavelengths),
        lambda p: _ring_closed(p, p.wavelengths, True),
    ),
    "bidirectional-hierarchical-ring": System(
        "Bidirectional hierarchical ring", "optical", False,
        lambda p: _on_ring(_hierarchical(p, True), p), lambda p: _hierarchical_closed(p, False, True),
    ),
    "bidirectional-hierarchical-ring-striped": System(
        "Bidirectional hierarchical ring, striped", "optical", True,
        lambda p: striped(_hierarchical(p, True), p.wavelengths),
        lambda p: _hierarchical_closed(p, True, True),
    ),
    "binary-tree": System(
        "Binary tree", "optical", False,
        lambda p: _on_ring(_compact(schedules.binary_tree, p.nodes), p), lambda p: _tree_closed(p, 1),
    ),
    "binary-tree-striped": System(
        "Binary tree, striped", "optical", True,
        lambda p: striped(schedules.binary_tree(p.nodes), p.wavelengths),
        lambda p: _tree_closed(p, p.wavelengths),
    ),
    "electrical-ring": System(
        "Electrical ring", "electrical", False,
        lambda p: _compact(schedules.ring, p.nodes), _electrical_ring_closed,
    ),
    "electrical-recursive-doubling": System(
        "Electrical recursive doubling", "electrical", False,
        lambda p: schedules.recursive_doubling(p.nodes), _recursive_doubling_closed,
    ),
}  # fmt: skip
WRHT = ("wrht", "wrht-exchange")
#: Rings on one wavelength, of one fibre and of both; WRHT crosses them along every axis of a study.
RINGS = ("ring", "bidirectional-ring")

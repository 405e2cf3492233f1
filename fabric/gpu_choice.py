"""Choose the GPUs of a job so that they are on few packet switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", str, int)


def fewest_parts(free: Mapping[Key, int], count: int) -> list[tuple[Key, int]]:
    """Return (part, GPUs) for each part that gives a job some of ``count`` GPUs; [] for a count of 0.

    All come from the part that they fill most tightly, else from as few parts as possible, those with the
    most free GPUs first. Of equals the first by name. Raises ValueError if there are too few.
    """
    if not count:
        return []
    fitting = [(left, part) for part, left in free.items() if left >= count]
    if fitting:
        return [(min(fitting)[1], count)]
    parts = []
    for part in sorted(free, key=lambda part: (-free[part], part)):
        taken = min(free[part], count)
        if taken:
            parts.append((part, taken))
            count -= taken
        if not count:
            return parts
    raise ValueError(f"{count} GPUs too few are free")


def gpus_together(
    free: Sequence[str], switch_of: Mapping[str, str | None], count: int
) -> tuple[str, ...]:
    """Return the GPUs of a job of which only the number is given, as the controller places jobs.

    They are of the packet switch that they fill most tightly, else of as few as possible, and dark GPUs come
    last. ``free``: GPUs in order, at least ``count``. ``switch_of``: the packet switch that each is lit to.
    """
    groups: dict[str, list[str]] = {}
    for gpu in free:
        groups.setdefault(switch_of.get(gpu) or "", []).append(gpu)
    lit_counts = {name: len(group) for name, group in groups.items() if name}
    dark = groups.get("", [])
    beside = min(count, sum(lit_counts.values()))
    chosen = [
        gpu
        for name, taken in fewest_parts(lit_counts, beside)
        for gpu in groups[name][:taken]
    ]
    return (*chosen, *dark[: count - beside])


def spares_for(
    ranks: Sequence[str], free: Sequence[str], switch_of: Mapping[str, str | None]
) -> list[str]:
    """Return the GPUs of ``free`` that are lit to a packet switch, as the controller takes spares.

    The first are on the packet switches that have the most of ``ranks``.
    """
    beside = Counter(switch_of.get(gpu) for gpu in ranks)
    return sorted(
        (gpu for gpu in free if switch_of.get(gpu)),
        key=lambda gpu: -beside[switch_of.get(gpu)],
    )

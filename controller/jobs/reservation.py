"""Which GPUs a job gets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ringlight.controller.errors import ConflictError, InvalidError


def reserve(
    gpus: Sequence[str],
    holders: Mapping[str, str],
    switch_of: Mapping[str, str | None],
    wanted: Sequence[str] | int,
) -> tuple[str, ...]:
    """The GPUs of a job in rank order.

    ``gpus``: all of the fabric; ``holders``: the job that has each taken one; ``switch_of``: the packet
    switch each is lit to. ``wanted``: the GPUs by name, or how many: then those of the switch that they
    fill most tightly, or of as few switches as possible. Raises InvalidError for what can never be,
    ConflictError for what cannot be now.
    """
    if isinstance(wanted, int):
        return _choose(gpus, holders, switch_of, wanted)
    seen: set[str] = set()
    for rank, gpu in enumerate(wanted):
        if gpu not in gpus:
            raise InvalidError(f"rank {rank}: there is no GPU {gpu}")
        if gpu in seen:
            raise InvalidError(f"rank {rank}: GPU {gpu} is used twice")
        seen.add(gpu)
    for rank, gpu in enumerate(wanted):
        if gpu in holders:
            raise ConflictError(f"rank {rank}: GPU {gpu} is reserved by job {holders[gpu]}")
    return tuple(wanted)


def spares_for(ranks: Sequence[str], free: Sequence[str], switch_of: Mapping[str, str | None]) -> list[str]:
    """The GPUs of ``free`` that are lit to a packet switch, first those where most of ``ranks`` are."""
    beside = Counter(switch_of.get(gpu) for gpu in ranks)
    return sorted((gpu for gpu in free if switch_of.get(gpu)), key=lambda gpu: -beside[switch_of.get(gpu)])


def _choose(
    gpus: Sequence[str], holders: Mapping[str, str], switch_of: Mapping[str, str | None], count: int
) -> tuple[str, ...]:
    if count > len(gpus):
        raise InvalidError(f"the job wants {count} GPUs; the fabric has {len(gpus)}")
    free = [gpu for gpu in gpus if gpu not in holders]
    if count > len(free):
        raise ConflictError(f"the job wants {count} GPUs; {len(free)} of {len(gpus)} are free")
    groups: dict[str, list[str]] = {}
    for gpu in free:
        groups.setdefault(switch_of.get(gpu) or "", []).append(gpu)
    fitting = [name for name in groups if name and len(groups[name]) >= count]
    if fitting:
        best = min(fitting, key=lambda name: (len(groups[name]), name))
        return tuple(groups[best][:count])
    order = sorted(groups, key=lambda name: (not name, -len(groups[name]), name))
    return tuple([gpu for name in order for gpu in groups[name]][:count])

"""Algorithms of an all-reduce by their names, those of extensions too, and the collectives that names stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ringlight.fabric.schedules import (
    bidirectional_hierarchical_ring,
    bidirectional_ring,
    binary_tree,
    coprime_rings,
    halving_doubling,
    hierarchical_ring,
    recursive_doubling,
    ring,
    ring_of_bits,
)
from ringlight.fabric.steps import Steps
from ringlight.fabric.whole_numbers.blocks import code_type


@dataclass(frozen=True)
class Collective:
    """A collective as its name says.

    That is ``ALGORITHM[-WAVELENGTHS][-group-M][-reach-R][-bits-B][-exchange][-striped]``.

    ``wavelengths``: of the ring that it is for, in each direction; of coprime rings their number.
    ``group``: ranks in each. ``reach``: segments that a lightpath may pass. ``bits``: of whole numbers that a
    ring adds up in place of float32 values (:func:`ring_of_bits`). ``exchange``: an all-to-all step at the
    top if it fits. ``striped``: each transfer spread over the wavelengths that its step leaves free.
    """

    algorithm: str
    wavelengths: int | None = None
    group: int | None = None
    reach: int | None = None
    bits: int | None = None
    exchange: bool = False
    striped: bool = False

    @property
    def kind(self) -> Algorithm:
        """Return the algorithm. Raises ValueError for an unknown one."""
        return algorithm(self.algorithm)

    @property
    def stepless(self) -> bool:
        """Return whether its plane runs the collective, so that it has no steps."""
        return self.kind.steps is None

    def __str__(self) -> str:
        words = [self.algorithm]
        words += [str(self.wavelengths)] if self.wavelengths is not None else []
        words += [f"group-{self.group}"] if self.group is not None else []
        words += [f"reach-{self.reach}"] if self.reach is not None else []
        words += [f"bits-{self.bits}"] if self.bits is not None else []
        words += ["exchange"] if self.exchange else []
        return "-".join([*words, "striped"] if self.striped else words)


@dataclass(frozen=True)
class Algorithm:
    """An all-reduce by its name, in the core or in ``Extension.collectives``.

    ``steps``: returns the steps of a collective among so many ranks; None if its plane does it. ``options``:
    those that its name may have besides, by their names in :class:`Collective`. ``plane``: returns the plane
    that a job on these GPUs of a fabric has for it, if only one kind of plane can; raises
    :class:`fabric.planes.base.Misfit`. ``coloured``: whether its steps say the wavelengths of transfers.
    ``worker``: loads how workers carry it out if it has no steps (``containers.worker.reducers.Reducer``).
    """

    steps: Callable[[Collective, int], Steps] | None
    options: frozenset[str] = frozenset({"striped"})
    plane: Callable[[Any, Sequence[str]], Any] | None = None
    coloured: bool = False
    worker: Callable[[], Any] | None = None


def _grouped(
    make: Callable[[int, int | None], Steps],
) -> Callable[[Collective, int], Steps]:
    """Return the steps of a collective with groups of its own size, or as its wavelengths allow."""

    def steps(collective: Collective, ranks: int) -> Steps:
        if not (collective.group or collective.wavelengths):
            return make(ranks, None)
        return make(
            ranks, collective.group or fitting_group(ranks, collective.wavelengths or 1)
        )

    return steps


def _ring(collective: Collective, ranks: int) -> Steps:
    return (
        ring(ranks) if collective.bits is None else ring_of_bits(ranks, collective.bits)
    )


def _coprime_rings(collective: Collective, ranks: int) -> Steps:
    if collective.wavelengths and not collective.striped:
        return coprime_rings(ranks, collective.wavelengths)
    return coprime_rings(ranks)


#: Collectives that need nothing but a world size, by the name that a scenario uses.
STEPS: dict[str, Callable[[int], Steps]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "recursive-doubling": recursive_doubling,
    "binary-tree": binary_tree,
    "hierarchical-ring": hierarchical_ring,
    "bidirectional-ring": bidirectional_ring,
    "bidirectional-hierarchical-ring": bidirectional_hierarchical_ring,
    "coprime-rings": coprime_rings,
}


def _plain(make: Callable[[int], Steps]) -> Algorithm:
    return Algorithm(lambda _, ranks: make(ranks))


#: Those of the core, by the name that a scenario uses.
_GROUPS = frozenset({"striped", "wavelengths", "group"})


_ALGORITHMS: dict[str, Algorithm] = {
    name: _plain(make) for name, make in STEPS.items()
} | {
    "ring": Algorithm(_ring, frozenset({"striped", "bits"})),
    "hierarchical-ring": Algorithm(_grouped(hierarchical_ring), _GROUPS),
    "bidirectional-hierarchical-ring": Algorithm(
        _grouped(bidirectional_hierarchical_ring), _GROUPS
    ),
    "coprime-rings": Algorithm(_coprime_rings, frozenset({"striped", "wavelengths"})),
}


def _of_extensions() -> Mapping[str, Callable[[], Algorithm]]:
    """Return what loads the algorithms of extensions, by name."""
    # Workers start sooner without it.
    from ringlight.fabric.extension import loaders

    return loaders("collectives")


def algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name, of the core or an extension. Raises ValueError if there is none."""
    if name in _ALGORITHMS:
        return _ALGORITHMS[name]
    if (load := _of_extensions().get(name)) is None:
        raise ValueError(
            f"there is no collective {name!r}; there are {', '.join(algorithm_names())}"
        )
    return load()


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms, those of extensions last."""
    return (*_ALGORITHMS, *_of_extensions())


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<algorithm>{'|'.join(names)})(?:-(?P<wavelengths>[1-9][0-9]{{0,3}}))?"
        r"(?:-group-(?P<group>[1-9][0-9]{0,3}))?(?:-reach-(?P<reach>[1-9][0-9]{0,3}))?"
        r"(?:-bits-(?P<bits>[1-9][0-9]?))?(?P<exchange>-exchange)?(?P<striped>-striped)?"
    )


def parse_collective(name: str) -> Collective:
    """Return the collective of a name. Raises ValueError, listing the known names, for another name."""
    # Workers start sooner where the core's names are enough.
    match = _pattern(tuple(_ALGORITHMS)).fullmatch(name) or _pattern(
        algorithm_names()
    ).fullmatch(name)
    if match is None:
        raise ValueError(
            f"there is no collective {name!r}; there are {', '.join(algorithm_names())}"
        )
    wavelengths, group, reach, bits = (
        int(match[key]) if match[key] else None
        for key in ("wavelengths", "group", "reach", "bits")
    )
    flags = bool(match["exchange"]), bool(match["striped"])
    read = Collective(match["algorithm"], wavelengths, group, reach, bits, *flags)
    fit = read.kind.options | ({"wavelengths"} if read.striped else set())
    for option in ("wavelengths", "group", "reach", "bits", "exchange", "striped"):
        if getattr(read, option) and option not in fit:
            raise ValueError(f"collective {name!r}: {read.algorithm} has no {option}")
    if read.bits is not None:
        if read.striped:
            raise ValueError(
                f"collective {name!r}: whole numbers are not spread over wavelengths"
            )
        try:
            code_type(read.bits)
        except ValueError as error:
            raise ValueError(f"collective {name!r}: {error}") from None
    return read


def fitting_group(nodes: int, wavelengths: int) -> int:
    """Return the group size of a hierarchical ring on a ring of wavelengths.

    It is the divisor of ``nodes`` with the fewest steps among those that the wavelengths carry. Neighbouring
    groups' rings overlap on as many lightpaths as a group has nodes.
    """
    fit = (m for m in range(1, min(nodes, wavelengths) + 1) if nodes % m == 0)
    return min(fit, key=lambda m: (m + nodes // m, m))


def steps_named(name: str, ranks: int) -> Steps:
    """Return a collective by the name that a scenario uses (:class:`Collective`).

    Raises ValueError for another name, a striped one, and
    less than one rank.
    """
    collective = parse_collective(name)
    if collective.striped:
        raise ValueError(
            f"collective {name}: a transfer on several wavelengths at once is only simulated"
        )
    return unstriped_steps(collective, ranks)


def unstriped_steps(collective: Collective, ranks: int) -> Steps:
    """Return the steps of a collective before any striping.

    Raises ValueError for a collective that its plane does, and for less than one rank.
    """
    make = collective.kind.steps
    if make is None:
        raise ValueError(
            f"collective {collective}: its plane does it, so it has no steps between ranks"
        )
    return make(collective, ranks)

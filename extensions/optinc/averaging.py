"""Averagers in a fabric (OptINC): what each computes, its servers, and the all-reduce's time.

An averager of the first level has a GPU on each port; N of them may have one above, which then averages for
the servers of all (section III, cascade). All servers of the highest one send frames of codes at once, and
each frame is answered to all of them: a stream through two hops, or through four in two levels. An averager
of the first level leaves its decimals for the one above (Eq. 10), or drops them (Eq. 9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringlight.extensions.optinc.averager import Averager, averagers_in
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.structure import CASES, Structure, mzis
from ringlight.extensions.optinc.unit.wire import FRAME, HEADER_BYTES, Form
from ringlight.fabric.parts import Link
from ringlight.fabric.steps import Step, Steps, frozen
from ringlight.fabric.topology import Fabric
from ringlight.fabric.whole_numbers.blocks import block_count

#: Cases of ``structure.CASES`` whose trained weights come with the program (``unit.weights``).
TRAINED = ("8bit_4",)
#: Bytes of a gradient's value, and of a block's exponent as ranks tell it each other.
_VALUE_BYTES, _SCALE_BYTES = 4, 2


@dataclass(frozen=True)
class Hop:
    """Cables that a frame passes at once, as codes of ``form``; ``rate_bps`` of the slowest."""

    form: Form
    rate_bps: float

    def seconds(self, codes: int, share: float = 1.0) -> float:
        """Return the seconds of a frame of ``codes`` numbers on the cable.

        ``share``: of its rate, without headers.
        """
        return 8 * (HEADER_BYTES + self.form.bytes_of(codes)) / (self.rate_bps * share)


@dataclass(frozen=True)
class Averaging:
    """The averagers that a job's ranks send to. ``first``: of the first level, ``above``: the one above them,
    if any. ``servers``: GPUs in the order of ports."""

    first: tuple[Averager, ...]
    above: Averager | None
    servers: tuple[str, ...]

    @property
    def bits(self) -> int:
        """Bits of each number that a rank sends."""
        return self.first[0].bits

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Return the hops that each frame passes, in order: up to the highest averager and down again."""
        plain = Form(self.bits)
        nics = _slowest([cable for link in self.first for cable in link.cables])
        if self.above is None:
            return (Hop(plain, nics), Hop(plain, nics))
        between = _slowest(self.above.cables)
        up = Form(self.bits, coding(self.first[0], self.above).leaving)
        return (
            Hop(plain, nics),
            Hop(up, between),
            Hop(plain, between),
            Hop(plain, nics),
        )

    def code_bytes(self, gradient_bytes: int) -> int:
        """Return the bytes of the codes of a gradient of float32 values.

        A rank sends and receives them once.
        """
        return Form(self.bits).bytes_of(gradient_bytes // _VALUE_BYTES)

    def ideal_s(self, gradient_bytes: int) -> float:
        """Return the seconds of the codes on the slowest hop, with nothing else."""
        codes = gradient_bytes // _VALUE_BYTES
        return max(8 * hop.form.bytes_of(codes) / hop.rate_bps for hop in self.hops)

    def stream_s(
        self, gradient_bytes: int, share: float = 1.0, latency_s: float = 0.0
    ) -> float:
        """Return the seconds from the first frame's begin to the last answer's end.

        All ranks send at once. Frames follow each other without a gap; a hop hands on a frame when it has all
        of it. ``share``: of a rate, what packets' headers leave. ``latency_s``: of each hop, before its first
        byte counts.
        """
        frames, last = divmod(gradient_bytes // _VALUE_BYTES, FRAME)
        hops = self.hops
        whole = [hop.seconds(FRAME, share) for hop in hops]
        rest = [hop.seconds(last, share) if last or not frames else 0.0 for hop in hops]
        total_s = sum(rest)
        for number in range(len(hops) if frames else 0):
            # The last whole frame is through hop ``number``; what is left goes on from there.
            most = max(whole[: number + 1])
            total_s = max(
                total_s,
                sum(whole[: number + 1]) + (frames - 1) * most + sum(rest[number:]),
            )
        return total_s + len(hops) * latency_s


def scale_bytes(gradient_bytes: int) -> int:
    """Return the bytes of the exponents of a gradient's blocks."""
    return _SCALE_BYTES * block_count(gradient_bytes // _VALUE_BYTES)


def scales_sent(gradient_bytes: int, ranks: int) -> int:
    """Return the bytes of exponents that a rank sends by :func:`scale_steps`.

    The rank is the one with the largest part of the blocks.
    """
    blocks = block_count(gradient_bytes // _VALUE_BYTES)
    part = -(-blocks // ranks)
    return _SCALE_BYTES * (blocks - part + (ranks - 1) * part)


def scale_steps(ranks: int) -> Steps:
    """Return the steps by which ranks agree on the largest exponents.

    Each rank gets all exponents of its part of the blocks, then sends the largest to the others.
    """
    pairs = [(rank, to) for rank in range(ranks) for to in range(ranks) if rank != to]
    sources, destinations = (frozen([pair[end] for pair in pairs]) for end in (0, 1))
    ones = frozen(np.ones(len(pairs)))

    def make() -> Iterator[Step]:
        if pairs:
            yield Step(sources, destinations, destinations, ones, "reduce")
            yield Step(sources, destinations, sources, ones, "replace")

    return Steps("scales", ranks, ranks, 2 if pairs else 0, make)


def coding(
    averager: Averager, above: Averager | None = None, below: Averager | None = None
) -> Coding:
    """Return the meaning of a unit's signals; ``above`` it, or ``below`` at its ports, may be another unit.

    Raises ValueError for a coding that cannot be.
    """
    leaving = averager.ports if above is not None and averager.decimals else 1
    arriving = below.ports if below is not None and below.decimals else 1
    return Coding(averager.bits, averager.ports, arriving=arriving, leaving=leaving)


def structure_of(averager: Averager) -> Structure | None:
    """Return the layers of an averager's network, ``approximated`` as the averager has them.

    Return None if none are known for its bits and ports. Raises ValueError for a layer that is not there, or
    that cannot be cut into squares.
    """
    for structure in CASES.values():
        if structure.coding == Coding(averager.bits, averager.ports):
            if averager.approximated is None:
                return structure
            first, last = averager.approximated
            return replace(structure, approximated=frozenset(range(first, last + 1)))
    return None


def averaging_of(fabric: Fabric, ranks: Sequence[str]) -> Averaging:
    """Return the averagers of a job on GPUs ``ranks``.

    Raises ValueError naming the GPU or the averagers that do not fit.
    """
    averagers = averagers_in(fabric)
    if not averagers:
        raise ValueError("the fabric has no averagers")
    averager_of = {
        cable.a.node: averager
        for averager in averagers.values()
        for cable in averager.cables
    }
    tops: dict[str, str] = {}
    for gpu in ranks:
        if gpu not in averager_of:
            raise ValueError(f"GPU {gpu} is plugged into no averager")
        top = averager_of[gpu]
        tops[averager_of.get(top.name, top).name] = gpu
    if len(tops) > 1:
        (lower, first), (other, second) = list(tops.items())[:2]
        raise ValueError(
            f"GPU {first} is on averager {lower}, GPU {second} on {other}, and none is above both"
        )
    top = averagers[next(iter(tops))]
    below = tuple(averagers[name] for name in _below(top) if name in averagers)
    servers = tuple(name for lower in below or (top,) for name in _below(lower))
    if set(servers) != set(ranks):
        lacking = next(gpu for gpu in servers if gpu not in ranks)
        raise ValueError(
            f"averager {top.name} waits for {len(servers)} servers, and GPU {lacking} is not one of the ranks"
        )
    return Averaging(below or (top,), top if below else None, servers)


def not_ideal(fabric: Fabric) -> str | None:
    """Return the key of the first averager whose light is not ideal; None if there is none."""
    names = (
        name
        for name, averager in averagers_in(fabric).items()
        if not averager.imperfect.ideal
    )
    return next((f"averagers.{name}.imperfect" for name in names), None)


def check_averagers(fabric: Fabric) -> None:
    """Raise ValueError naming an averager that could not work."""
    averagers = averagers_in(fabric)
    above = {
        cable.a.node: averager
        for averager in averagers.values()
        for cable in averager.cables
    }
    for name, averager in averagers.items():
        where = f"averagers.{name}"
        plugged = {cable.b.number for cable in averager.cables}
        for number in range(1, averager.ports + 1):
            if number not in plugged:
                raise ValueError(
                    f"{where}: nothing is plugged into its port {number}; it waits for all ports"
                )
        below = [averagers[node] for node in _below(averager) if node in averagers]
        if below and len(below) < averager.ports:
            raise ValueError(
                f"{where}: GPUs and averagers at its ports; all must be the one or the other"
            )
        if below and name in above:
            raise ValueError(
                f"{where}: averagers above and below it; there are at most two levels"
            )
        for other in below[1:]:
            for key in ("ports", "decimals"):
                if getattr(other, key) != getattr(below[0], key):
                    raise ValueError(
                        f"averagers.{other.name}.{key}: not as that of {below[0].name} beside it"
                    )
        for other in below:
            if other.bits != averager.bits:
                raise ValueError(
                    f"averagers.{other.name}.bits: {other.bits}, but {name} above it has {averager.bits}"
                )
        if not averager.decimals and name not in above:
            raise ValueError(
                f"{where}.decimals: no averager is above it that could have them"
            )
        _check_network(
            where,
            averager,
            coding(averager, above.get(name), below[0] if below else None),
        )


def _check_network(where: str, averager: Averager, its: Coding) -> None:
    """Check that there is a network with such weights. Raises ValueError if there is not."""
    if not averager.imperfect.ideal and averager.network == "exact":
        raise ValueError(
            f"{where}.imperfect: the exact mean has no light; network is trained or designed"
        )
    if averager.approximated is not None:
        _check_layers(f"{where}.approximated", averager)
    if averager.network == "trained" and its not in [
        CASES[case].coding for case in TRAINED
    ]:
        raise ValueError(
            f"{where}.network: no trained weights for {_said(its)}; there are those for "
            f"{', '.join(_said(CASES[case].coding) for case in TRAINED)}"
        )
    cases = {(case.coding.bits, case.coding.servers) for case in CASES.values()}
    if averager.network == "designed" and (its.bits, its.servers) not in cases:
        there = ", ".join(
            f"{bits} bits on {servers} ports" for bits, servers in sorted(cases)
        )
        raise ValueError(
            f"{where}.network: no network is designed for {_said(its)}; there are {there}"
        )


def _check_layers(where: str, averager: Averager) -> None:
    try:
        structure = structure_of(averager)
        if structure is None:
            raise ValueError(
                f"no layers are known for {averager.bits} bits on {averager.ports} ports"
            )
        mzis(structure)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _said(its: Coding) -> str:
    decimals = " with decimals" if max(its.arriving, its.leaving) > 1 else ""
    return f"{its.bits} bits on {its.servers} ports{decimals}"


def _below(averager: Averager) -> list[str]:
    return [cable.a.node for cable in averager.cables]


def _slowest(cables: Sequence[Link]) -> float:
    return min(cable.rate_bps for cable in cables)

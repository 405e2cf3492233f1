"""The keys ``averagers`` and ``averaging`` of a fabric file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ringlight.extensions.optinc.averager import Averager, AveragerNetwork, Imperfect
from ringlight.fabric.keys import (
    Assembly,
    CabledNode,
    FabricKey,
    WrittenLink,
    with_parts,
)
from ringlight.fabric.parts import Link
from ringlight.fabric.topology import Fabric, port_name
from ringlight.fabric.trees import QUEUE_S, Tree, leaf_spine
from ringlight.fabric.values import Duration, Loss, Name, Rate, Strict, under


def _layers(value: object) -> object:
    """Return ``4-7`` as the first and the last layer."""
    match = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(
            f"{value!r} are no layers; write the first and the last, such as '4-6'"
        )
    return int(match[1]), int(match[2])


class ImperfectSpec(Strict):
    """An averager's light that is not ideal: ``phase_bits`` of a phase, ``phase_error`` in radians,
    ``loss_db`` of each interferometer, ``noise`` of detectors and of ``transmitters`` in levels, ``mismatch``
    of transmitters as a part of their light; these are standard deviations, drawn from ``seed``. ``bias`` and
    ``scale``: by which part the constant light, and all light that enters, is too bright."""

    phase_bits: int | None = Field(default=None, ge=1, le=52)
    phase_error: float = Field(default=0.0, ge=0, le=10)
    loss_db: Loss = 0.0
    noise: float = Field(default=0.0, ge=0, le=10)
    transmitters: float = Field(default=0.0, ge=0, le=10)
    mismatch: float = Field(default=0.0, ge=0, le=1)
    bias: float = Field(default=0.0, ge=-1, le=1)
    scale: float = Field(default=0.0, ge=-1, le=1)
    seed: int = Field(default=0, ge=0)


#: Most ports of an averager.
MOST_PORTS = 64


class _UnitSpec(Strict):
    """Common to an averager and the short form of several. ``bits`` of a number. ``network``: what it
    computes; ``approximated``: which of its layers, ``4-6``, in place of the usual ones. ``decimals``: of the
    first level, whether they go on (Eq. 10)."""

    bits: Literal[8, 16]
    network: AveragerNetwork = "exact"
    decimals: bool = True
    approximated: Annotated[tuple[int, int], BeforeValidator(_layers)] | None = None
    imperfect: ImperfectSpec = ImperfectSpec()


class AveragerSpec(_UnitSpec):
    """``ports``: 1, 2, … for NIC port 1 of GPUs, or for port 0 of averagers of the first level."""

    ports: int = Field(ge=2, le=MOST_PORTS)


class AveragingSpec(_UnitSpec):
    """Short for ``servers`` GPUs that are each on one packet switch and on averagers: on one, or with two
    ``levels`` on as many as each has ports, and one more above. ``rate``: of every link and cable."""

    servers: int = Field(ge=2, le=4096)
    levels: Literal[1, 2] = 1
    gpu: str = Field(default="gpu", min_length=1)
    rate: Rate
    queue: Duration = QUEUE_S

    def tree(self) -> Tree:
        """Return the packet switch with the servers' links."""
        return leaf_spine(1, self.servers, self.rate, queue_s=self.queue)

    def averagers(self) -> dict[str, AveragerSpec]:
        """Return the averagers as they would be written out, the one above the others last.

        Raises ValueError if the servers do not fill two levels, or are too many for the ports of an averager.
        """
        ports = round(self.servers ** (1 / self.levels))
        if ports**self.levels != self.servers:
            raise ValueError(
                f"servers: {self.servers}; two levels have a square number of them, 16 or 64 say"
            )
        if ports > MOST_PORTS:
            raise ValueError(
                f"servers: {self.servers}; an averager has up to {MOST_PORTS} ports"
            )
        unit = {key: getattr(self, key) for key in _UnitSpec.model_fields}
        made = {"ports": ports, **unit}
        averagers = {
            f"avg{k}": AveragerSpec.model_construct(**made)
            for k in range(self.servers // ports)
        }
        if self.levels > 1:
            # There is none above it that could have its decimals.
            averagers[f"avg{ports}"] = AveragerSpec.model_construct(
                **{**made, "decimals": True}
            )
        return averagers

    def cables(self, ports: int) -> list[WrittenLink]:
        """Return the cables of averagers of so many ports, those of the servers first and in order."""
        ends = [
            (f"g{k}:1", f"avg{k // ports}:{k % ports + 1}") for k in range(self.servers)
        ]
        if self.levels > 1:
            ends += [(f"avg{k}:0", f"avg{ports}:{k + 1}") for k in range(ports)]
        return [WrittenLink("averaging", pair, self.rate, self.queue) for pair in ends]


def _plug(specs: Mapping[str, AveragerSpec], assembly: Assembly) -> None:
    there = assembly.parts.setdefault("averagers", {})
    for name, spec in specs.items():
        imperfect = Imperfect(**spec.imperfect.model_dump())
        there[name] = Averager(
            name,
            spec.ports,
            spec.bits,
            spec.network,
            spec.decimals,
            (),
            spec.approximated,
            imperfect,
        )
        assembly.devices[name] = CabledNode("averager", spec.ports, _cable)


def _add_averagers(specs: Mapping[str, AveragerSpec], assembly: Assembly) -> None:
    for name in specs:
        if name in assembly.devices:
            raise ValueError(
                f"averagers.{name}: averaging has an averager of this name"
            )
    _plug(specs, assembly)


def _add_averaging(spec: AveragingSpec, assembly: Assembly) -> None:
    try:
        made = spec.averagers()
    except ValueError as error:
        raise ValueError(under("averaging", error)) from None
    _plug(made, assembly)
    assembly.links += spec.cables(next(iter(made.values())).ports)


def _cable(link: Link, assembly: Assembly) -> Link:
    """Return the link as an averager has it. Raises ValueError for what an averager is not plugged into."""
    averagers = assembly.parts["averagers"]
    for cable in (link, replace(link, a=link.b, b=link.a)):
        a, b = cable.a, cable.b
        if b.node in averagers and b.number > 0:
            if a.node in assembly.gpus and a.number == 1:
                return cable
            if a.node in averagers and a.node != b.node and a.number == 0:
                return cable
    raise ValueError(
        f"{link.a} and {link.b}: an averager's ports from 1 take NIC port 1 of a GPU or port 0 of another "
        "averager"
    )


def _finish(fabric: Fabric) -> Fabric:
    """Return the fabric with the averagers' cables. Raises ValueError naming one that could not work."""
    if fabric.onics:
        keys = " and ".join(sorted(fabric.parts.keys() - {"averagers"}))
        raise ValueError(
            f"averagers: their servers have NICs for packets, and {keys} have O-NICs"
        )
    averagers = {
        name: replace(
            averager,
            cables=tuple(
                sorted(
                    (cable for cable in fabric.cables if cable.b.node == name),
                    key=lambda cable: cable.b,
                )
            ),
        )
        for name, averager in fabric.parts["averagers"].items()
    }
    made = with_parts(fabric, averagers=averagers)
    # Here, as it needs numpy, and few fabrics have any.
    from ringlight.extensions.optinc.averaging import check_averagers

    check_averagers(made)
    return made


def _slowed(
    averagers: Mapping[str, Averager], time: float, rate: float
) -> Mapping[str, Averager]:
    return {
        name: replace(
            averager,
            cables=tuple(
                replace(cable, rate_bps=cable.rate_bps / rate)
                for cable in averager.cables
            ),
        )
        for name, averager in averagers.items()
    }


@dataclass(frozen=True)
class AveragerCables:
    """An averager; ``cables``: what is plugged into its ports, each a pair of port names."""

    name: str
    ports: int
    cables: list[tuple[str, str]]


def _document(fabric: Fabric) -> list[AveragerCables]:
    return [
        AveragerCables(
            averager.name,
            averager.ports,
            [
                (port_name(fabric, cable.a), port_name(fabric, cable.b))
                for cable in averager.cables
            ],
        )
        for averager in fabric.parts.get("averagers", {}).values()
    ]


def _plugged(fabric: Fabric) -> Fabric:
    # Here, as few fabrics need it.
    from ringlight.extensions.optinc.averaging import not_ideal

    if (why := not_ideal(fabric)) is not None:
        raise ValueError(
            f"{why}: only computed; light is ideal in an emulated averager"
        )
    return fabric


AVERAGERS = FabricKey(
    dict[Name, AveragerSpec],
    add=_add_averagers,
    devices="averager",
    plugged=_plugged,
    finish=_finish,
    slowed=_slowed,
    documents=list[AveragerCables],
    document=_document,
)
AVERAGING = FabricKey(AveragingSpec | None, add=_add_averaging, tree=AveragingSpec.tree)

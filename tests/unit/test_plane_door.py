"""Planes, keys of the fabric file, light and carriers that come by the door of extensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from ringlight.controller.light.provider import providers
from ringlight.experiments.backends.simulation.carriers import carriers
from ringlight.fabric import extension, keys
from ringlight.fabric.algorithms import algorithm_names, parse_collective
from ringlight.fabric.extension import (
    Extension,
    ExtensionError,
    InstalledExtension,
    entries_of,
)
from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.parts import Gpu, Link, Plugged, Port
from ringlight.fabric.planes.base import Lighting, Plane
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.planes.kinds import PlaneKind, parts_of_planes
from ringlight.fabric.topology import Fabric
from tests.door import door

HERE = Path(__file__).stem


@dataclass(frozen=True)
class WirePlane(Plane):
    kind: ClassVar[str] = "wire"
    light: ClassVar[Lighting] = "asked"


def wires(fabric: Fabric) -> list[WirePlane]:
    """Return the wires of a fabric."""
    return [
        WirePlane(fabric, name, nodes)
        for name, nodes in fabric.parts.get("wires", {}).items()
    ]


def add_wires(value: dict[str, str], assembly: Assembly) -> None:
    """Join two GPUs by each wire."""
    for name, model in value.items():
        a, b = (
            Gpu.numbered(f"{name}{i}", f"{name}-s{i}", model, len(assembly.gpus) + i)
            for i in range(2)
        )
        link = Link(Port(a.name, 0), Port(b.name, 0), 1e9, 0.02)
        assembly.plug("wires", name, (a.name, b.name), Plugged((a, b), [], [], [link]))


WIRE = PlaneKind(planes=f"{HERE}:wires")
WIRES = FabricKey(dict[str, str], add=add_wires)
OTHER = InstalledExtension(
    Extension(
        "wire", fabric={"wires": f"{HERE}:WIRES"}, planes={"wire": f"{HERE}:WIRE"}
    ),
    "tests.unit",
)


@pytest.fixture
def with_wires() -> Iterator[None]:
    """An extension with a key of the fabric file and planes."""
    with door(OTHER, readers=(keys.fabric_keys, parts_of_planes)):
        yield


def test_what_a_key_adds_becomes_a_plane(with_wires: None) -> None:
    assembly = Assembly({})
    add = keys.fabric_keys()["wires"].add
    assert add is not None
    add({"w": "a100"}, assembly)
    fabric = Fabric(
        assembly.gpus,
        {},
        {},
        tuple(assembly.plugged["wires.w"].links),
        parts=assembly.parts,
    )
    assert [str(plane) for plane in lit_planes(fabric)] == ["wire w"]
    assert keys.plugged(fabric) is fabric
    assert keys.slowed_parts(fabric, 10.0, 100.0) == fabric.parts


def test_a_gpu_is_added_once() -> None:
    assembly = Assembly({})
    add_wires({"w": "a100"}, assembly)
    with pytest.raises(ValueError, match=r"wires\.w: w-s0 has GPU w0 too"):
        add_wires({"w": "a100"}, assembly)


def test_two_extensions_cannot_have_one_key() -> None:
    other = InstalledExtension(
        Extension("again", fabric={"wires": f"{HERE}:WIRES"}), "tests.unit"
    )
    with pytest.raises(ExtensionError, match="again: fabric: there is a wires already"):
        entries_of("fabric", (OTHER, other))


def test_each_kind_of_plane_has_all_that_carries_its_jobs() -> None:
    kinds = parts_of_planes("planes").keys()
    assert {provider.kind for provider in providers()} == kinds
    assert carriers().keys() > kinds
    assert "packets" in carriers()


def test_collectives_come_by_the_door_too() -> None:
    for name in extension.loaders("collectives"):
        assert name in algorithm_names()
        assert parse_collective(name).algorithm == name

"""Interconnects that are plugged together, as the controller and the testbed read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.errors import StartError
from ringlight.controller.inventory import Inventory, read_inventory
from ringlight.controller.running import read_fabric
from ringlight.fabric.building import build_fabric
from ringlight.fabric.keys import plugged
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.__main__ import load_fabric
from ringlight.testbed.emulation.buildable import check_fabric, check_names
from ringlight.testbed.emulation.onic.wiring import (
    Standing,
    array_wavelengths,
    is_tagged,
    standing_light,
)
from ringlight.testbed.lab import Lab


def interconnect(**keys: Any) -> Fabric:
    spec = {"gpu": "a100", "gpus": 5, "rate": "100 Gbit/s", **keys}
    return plugged(build_fabric(FabricSpec.model_validate({"interconnect": spec})))


def test_where_light_stands_a_peer_has_a_queue_for_each_number_of_lightpaths() -> None:
    planes = interconnect(kind="parallel-ocs", switches=4)
    light = standing_light(planes, "g1", lambda real: real / 100)
    peers = [planes.gpus[gpu].ip for gpu in ("g0", "g2", "g3", "g4")]
    assert light == Standing(tuple(peers), 0.25e9, 4)
    assert list(light.queues.items()) == list(zip(peers, (1, 5, 9, 13), strict=True))
    times = {"interval": "5 ms", "dark": "1 ms"}
    ring = interconnect(kind="demand-ring", wavelength="50 Gbit/s", **times)
    # A wavelength in each direction, so two lightpaths.
    light = standing_light(ring, "g1", lambda real: real)
    assert light is not None
    assert (light.rate_bps, light.most) == (50e9, 2)
    for made in (planes, ring):
        assert (made.agents, array_wavelengths(made, "g0")) == ((), None)
        check_fabric(made)
        check_names(Lab("test"), made)


def test_light_tells_its_own_colour_on_rings_only() -> None:
    planes = interconnect(kind="parallel-ocs", switches=2)
    ring = interconnect(
        kind="demand-ring", wavelength="50 Gbit/s", interval="5 ms", dark="1 ms"
    )
    tagged = {
        name
        for made in (planes, ring)
        for name in made.optical_switches
        if is_tagged(made, name)
    }
    assert tagged == {*ring.optical_switches}


def test_an_onic_in_the_inventory_says_whether_its_light_stands(tmp_path: Path) -> None:
    ocs = {
        "kind": "parallel-ocs",
        "gpu": "a100",
        "gpus": 2,
        "rate": "1 Gbit/s",
        "switches": 1,
    }
    fabric = plugged(build_fabric(FabricSpec.model_validate({"interconnect": ocs})))
    path = tmp_path / "inventory.json"

    def read(place: dict[str, Any]) -> Inventory:
        onics = dict.fromkeys(fabric.onics, place)
        path.write_text(
            json.dumps({"lab": "abcd", "optical_switches": {"q0": {}}, "onics": onics})
        )
        return read_inventory(path, fabric)

    stands = read({"transmitters": "array", "standing": True})
    assert (stands.flow_sockets(), stands.onics["g0"].flow) == ({}, None)
    asked = {"transmitters": "array", "flow": "/flow.sock", "directory": "/onic"}
    with pytest.raises(StartError, match=r"onics\.g0\.standing is False, not True"):
        read(asked)
    with pytest.raises(StartError, match=r"onics\.g0: .*does not stand needs flow"):
        read({"transmitters": "array", "directory": "/onic"})


INTERCONNECT = {"gpus": 4, "gpu": "a100", "rate": "200 Gbit/s"}


def test_an_interconnect_is_plugged_together(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    one = INTERCONNECT | {"kind": "parallel-ocs", "switches": 2}
    path.write_text(json.dumps({"interconnect": one}))
    for fabric in (read_fabric(path), load_fabric(path)):
        assert fabric.optical_switches.keys() == {"q0", "q1"}
    path.write_text(json.dumps({"interconnect": one | {"switches": 33}}))
    with pytest.raises(ValueError, match=r"fabric\.json: interconnect\.switches: 33"):
        load_fabric(path)
    path.write_text(json.dumps({"interconnect": INTERCONNECT | {"kind": "ideal"}}))
    with pytest.raises(StartError, match=r"interconnect\.kind: it is simulated"):
        read_fabric(path)

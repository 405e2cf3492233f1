"""A lab in other processes: where its nodes are."""

from __future__ import annotations

import pytest

from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.attached import Attached, NodePlace, OtherMachine
from ringlight.testbed.lab import Lab, LabError

FABRIC = {
    "servers": {"s": {"gpus": {"g0": "t", "g1": "t"}}},
    "packet_switches": {"p0": {"ports": 2}, "p1": {"ports": 2}},
    "links": [
        {"ends": ["g0", "p0:1"], "rate": "1 Gbit/s"},
        {"ends": ["g1", "p1:1"], "rate": "1 Gbit/s"},
        {"ends": ["p0:2", "p1:2"], "rate": "1 Gbit/s"},
    ],
}
THERE = {"name": "machine m2", "run": "/v1/machines/m2/run"}


def test_a_node_on_another_machine_has_its_place_and_the_route_of_commands_there() -> (
    None
):
    switches = {"p0": {"dpid": 1}, "p1": {"dpid": 2, "lab": "zz8z", "elsewhere": THERE}}
    fabric = build_fabric(FabricSpec.model_validate(FABRIC))
    lab = Attached(Lab("zz9z"), {"packet_switches": switches}, fabric, None, None)
    assert lab.place("p0") == NodePlace(None)
    assert lab.place("p0").command(["true"]) == ["true"]
    away = lab.place("p1")
    assert away.elsewhere == OtherMachine("machine m2", "/v1/machines/m2/run")
    assert lab.bridge("p1") == Lab("zz8z").bridge("p1")
    with pytest.raises(LabError, match="tcpdump: only on machine m2 itself"):
        away.command(["tcpdump"])

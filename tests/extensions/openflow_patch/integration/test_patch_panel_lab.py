"""An optical switch made of Open vSwitch in a lab: its ports, and what becomes of it when it is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.faults import FaultClient
from tests.integration.labs import agent_client, running_testbed
from tests.integration.test_faults import Rig, ofctl

pytestmark = pytest.mark.root

FABRIC: dict[str, Any] = {
    "servers": {"s0": {"gpus": {"g0": "test", "g1": "test"}}},
    "packet_switches": {"tor0": {"ports": 2}},
    "optical_switches": {"ocs0": {"size": 4, "driver": "openflow", "profile": "ideal"}},
    "links": [
        {"ends": ["g0", "ocs0:1"], "rate": "1 Gbit/s"},
        {"ends": ["g1", "tor0:2"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:1", "ocs0:3"], "rate": "1 Gbit/s"},
    ],
}
WAIT = (sys.executable, "-c", "import time; time.sleep(100)", "{job}")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    fabric = build_fabric(FabricSpec.model_validate(FABRIC))
    with (
        running_testbed(fabric, runtime="namespace", command=WAIT) as testbed,
        agent_client(testbed) as agent,
        FaultClient(testbed.inventory["agent"]) as faults,
    ):
        yield Rig(testbed, faults, agent)


def test_what_is_plugged_in_is_at_the_ports_of_its_bridge(rig: Rig) -> None:
    entry = rig.testbed.inventory["optical_switches"]["ocs0"]
    assert entry["driver"] == "openflow"
    rig.start("g0").raise_for_status()
    shown = subprocess.run(
        ["ovs-ofctl", "-O", "OpenFlow13", "show", entry["bridge"]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"dpid:{entry['dpid']:016x}" in shown
    for port in (1, 3):
        assert f" {port}({rig.lab.interface('ocs0', port)})" in shown


def test_killed_it_loses_its_controller_and_no_light(rig: Rig) -> None:
    bridge = rig.lab.bridge("ocs0")
    ofctl(bridge, "add-flow", "priority=7,in_port=1,actions=output:2")
    target = openvswitch.vsctl("get", "controller", bridge, "target")
    over = rig.faults.kill("switch ocs0", back_after_s=0.3)
    rig.done(over)
    assert openvswitch.vsctl("get", "controller", bridge, "target") != target
    rig.back(over)
    assert openvswitch.vsctl("get", "controller", bridge, "target") == target
    assert "priority=7" in ofctl(bridge, "dump-flows")
    ofctl(bridge, "del-flows")

"""Faults of an emulated lab, seen from the kernel and from Open vSwitch; no controller is there."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.faults import FaultError, FaultReport
from tests.drivers import converge
from tests.fault_client import FaultClient
from tests.integration.labs import agent_client, running_testbed, until

pytestmark = pytest.mark.root

#: Two packet switches with two cables between them, one of them also plugged into an optical switch; and two
#: that are not our controller's.
FABRIC: dict[str, Any] = {
    "servers": {"s0": {"gpus": {f"g{i}": "test" for i in range(4)}}},
    "packet_switches": {
        "tor0": {"ports": 4},
        "tor1": {"ports": 4},
        "tor2": {"ports": 1, "controller": "tcp:127.0.0.1:9"},
        "tor3": {"ports": 1, "controller": "none"},
    },
    "optical_switches": {
        "ocs0": {"size": 4, "profile": "ideal"},
    },
    "links": [
        {"ends": ["g0", "tor0:1"], "rate": "1 Gbit/s"},
        {"ends": ["g1", "tor1:1"], "rate": "1 Gbit/s"},
        {"ends": ["g2", "ocs0:1"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:2", "ocs0:2"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:3", "tor1:3"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:4", "tor1:4"], "rate": "1 Gbit/s"},
        {"ends": ["tor2:1", "tor3:1"], "rate": "1 Gbit/s"},
    ],
}
WAIT = (sys.executable, "-c", "import time; time.sleep(100)", "{job}")


class Rig:
    """A testbed in this process with clients of its agent and of its faults."""

    def __init__(
        self, testbed: emulated.Testbed, faults: FaultClient, agent: httpx.Client
    ) -> None:
        self.testbed, self.faults, self.agent = testbed, faults, agent
        self.lab = testbed.settings.lab

    def start(self, gpu: str, rank: int = 0, attempt: int = 0) -> httpx.Response:
        body = {"job": "red", "rank": rank, "gpu": gpu, "spec": {}, "attempt": attempt}
        return self.agent.post("/v1/workers", json=body)

    def worker(self, name: str) -> dict[str, Any]:
        return next(
            w
            for w in self.agent.get("/v1/workers").json()["workers"]
            if w["id"] == name
        )

    def done(self, fault: str) -> FaultReport:
        until(
            lambda: self.faults.fault(fault).state not in ("asked",),
            10,
            lambda: str(self.faults.faults()),
        )
        found = self.faults.fault(fault)
        assert found.error is None
        return found

    def back(self, fault: str, timeout_s: float = 10.0) -> FaultReport:
        until(
            lambda: self.faults.fault(fault).state in ("over", "failed"),
            timeout_s,
            lambda: str(self.faults.faults()),
        )
        found = self.faults.fault(fault)
        assert found.error is None
        assert found.t_done is not None
        assert found.t_back is not None
        return found

    def carrier(self, node: str, port: int) -> bool:
        """Whether the kernel sees a carrier at a switch's port; a port that is down has none."""
        if node == "ocs0":
            return self._carrier(
                "-n", self.lab.namespace(node), "link", "show", f"p{port}"
            )
        return self._carrier("link", "show", self.lab.interface(node, port))

    def nic_carrier(self, worker: str) -> bool:
        return self._carrier("-n", self.lab.namespace(worker), "link", "show", "eth0")

    def _carrier(self, *words: str) -> bool:
        flags = self._ip(*words).partition("<")[2].partition(">")[0].split(",")
        return "LOWER_UP" in flags

    def _ip(self, *words: str) -> str:
        return subprocess.run(
            ["ip", *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout

    def ovs_link(self, node: str, port: int) -> str:
        """What Open vSwitch reports of a port: ``up`` or ``down``."""
        name = self.lab.interface(node, port)
        words = ["ovs-vsctl", "get", "Interface", name, "link_state"]
        return subprocess.run(
            words, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()


@pytest.fixture(scope="module")
def lab_rig() -> Iterator[Rig]:
    fabric = build_fabric(FabricSpec.model_validate(FABRIC))
    with (
        running_testbed(fabric, runtime="namespace", command=WAIT) as testbed,
        agent_client(testbed) as agent,
        FaultClient(testbed.inventory["agent"]) as faults,
    ):
        yield Rig(testbed, faults, agent)


@pytest.fixture
def rig(lab_rig: Rig) -> Iterator[Rig]:
    yield lab_rig
    for fault in lab_rig.faults.faults():
        if fault.state in ("asked", "in force") and not fault.target.startswith(
            "worker"
        ):
            lab_rig.faults.restore(fault.target)
            lab_rig.back(fault.id)
    for worker in lab_rig.agent.get("/v1/workers").json()["workers"]:
        assert lab_rig.agent.delete(f"/v1/workers/{worker['id']}").status_code == 200


def test_a_cut_cable_has_no_carrier_until_it_is_restored(rig: Rig) -> None:
    ends = (("tor0", 3), ("tor1", 3))
    fault = rig.done(rig.faults.cut("tor0:3", "tor1:3"))
    assert (fault.do, fault.target, fault.state) == (
        "cut",
        "link tor0:3 tor1:3",
        "in force",
    )
    assert not any(rig.carrier(*end) for end in ends)
    for end in ends:
        until(lambda end=end: rig.ovs_link(*end) == "down", 10.0)
    assert all(rig.carrier(node, 4) for node in ("tor0", "tor1"))
    # Either way round it is the same cable.
    with pytest.raises(
        FaultError, match=rf"link tor0:3 tor1:3: fault {fault.id} \(cut\) is in force"
    ) as refused:
        rig.faults.cut("tor1:3", "tor0:3")
    assert refused.value.status == 409
    assert rig.faults.restore("link tor1:3 tor0:3") == fault.id
    over = rig.back(fault.id)
    assert over.t_asked <= over.t_done <= over.t_back  # type: ignore[operator]
    assert all(rig.carrier(*end) for end in ends)
    for end in ends:
        until(lambda end=end: rig.ovs_link(*end) == "up", 10.0)


def test_a_cut_for_a_time_ends_by_itself(rig: Rig) -> None:
    over = rig.back(rig.faults.cut("tor0:4", "tor1:4", back_after_s=0.5))
    assert 0.5 <= over.t_back - over.t_done < 3.0  # type: ignore[operator]
    assert rig.carrier("tor0", 4)


@pytest.mark.parametrize(("gpu", "far"), [("g0", ("tor0", 1)), ("g2", ("ocs0", 1))])
def test_the_nic_of_a_worker_loses_its_carrier_and_keeps_its_settings(
    rig: Rig, gpu: str, far: tuple[str, int]
) -> None:
    """Whether it comes before the cut or after."""
    rig.start(gpu).raise_for_status()
    until(lambda: rig.nic_carrier("red-0"), 5)
    routes = rig._ip("-n", rig.lab.namespace("red-0"), "route").replace(" linkdown", "")
    fault = rig.done(rig.faults.lose(f"nic {gpu}"))
    assert not rig.nic_carrier("red-0")
    assert (
        rig._ip("-n", rig.lab.namespace("red-0"), "route").replace(" linkdown", "")
        == routes
    )
    assert rig.agent.delete("/v1/workers/red-0").status_code == 200
    rig.start(gpu).raise_for_status()
    # Nobody brings the other end up, neither the testbed nor an optical switch that sees a new cable.
    with pytest.raises(pytest.fail.Exception):
        until(lambda: rig.nic_carrier("red-0"), 1.0)
    assert not rig.carrier(*far)
    rig.faults.restore(f"nic {gpu}")
    rig.back(fault.id)
    assert rig.nic_carrier("red-0")


def test_a_killed_worker_is_told_with_its_signal(rig: Rig) -> None:
    rig.start("g0").raise_for_status()
    with pytest.raises(FaultError, match=r"there is no worker red 1; there are red 0$"):
        rig.faults.kill("worker red 1")
    fault = rig.done(rig.faults.kill("worker red 0"))
    assert (fault.state, fault.t_back) == ("over", None)
    assert rig.worker("red-0")["signal"] == 9
    with pytest.raises(
        FaultError, match="worker red 0 has ended already: killed by SIGKILL"
    ):
        rig.faults.kill("worker red 0")
    # Its job is started anew elsewhere before the dead one has been removed.
    rig.start("g1", attempt=1).raise_for_status()
    rig.done(rig.faults.kill("worker red 0"))
    assert rig.worker("red-0-r1")["signal"] == 9


def test_a_lost_gpu_ends_its_worker_and_takes_no_other_until_it_is_restored(
    rig: Rig,
) -> None:
    rig.start("g0").raise_for_status()
    rig.start("g1", rank=1).raise_for_status()
    fault = rig.done(rig.faults.lose("gpu g0"))
    assert rig.worker("red-0")["signal"] == 9
    assert rig.worker("red-1")["state"] == "running"
    assert rig.agent.get("/v1/workers").json()["lost_gpus"] == ["g0"]
    assert rig.agent.delete("/v1/workers/red-0").status_code == 200
    refused = rig.start("g0")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "job red rank 0: GPU g0 is lost",
    )
    rig.faults.restore("gpu g0")
    rig.back(fault.id)
    rig.start("g0").raise_for_status()
    until(lambda: rig.nic_carrier("red-0"), 5)


def ofctl(bridge: str, command: str, *more: str) -> str:
    words = ["ovs-ofctl", "-O", "OpenFlow13", command, bridge, *more]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=10, check=True
    ).stdout


def test_a_killed_packet_switch_is_dark_and_forgets_its_flows(rig: Rig) -> None:
    rig.start("g0").raise_for_status()
    bridge = rig.lab.bridge("tor0")
    ofctl(bridge, "add-flow", "priority=7,ip,nw_dst=10.82.0.3,actions=output:3")
    target = openvswitch.vsctl("get", "controller", bridge, "target")
    fault = rig.done(rig.faults.kill("switch tor0"))
    assert "priority=7" not in ofctl(bridge, "dump-flows")
    assert openvswitch.vsctl("get", "controller", bridge, "target") != target
    assert not any(rig.carrier("tor0", port) for port in (1, 2, 3, 4))
    assert not rig.carrier("tor1", 3)
    assert not rig.nic_carrier("red-0")
    # A cut of one of its cables outlives its return.
    cut = rig.done(rig.faults.cut("tor0:4", "tor1:4"))
    rig.faults.restore("switch tor0")
    rig.back(fault.id)
    assert openvswitch.vsctl("get", "controller", bridge, "target") == target
    assert all(rig.carrier(node, 3) for node in ("tor0", "tor1"))
    assert rig.nic_carrier("red-0")
    assert not rig.carrier("tor0", 4)
    rig.faults.restore("link tor0:4 tor1:4")
    rig.back(cut.id)
    assert rig.carrier("tor0", 4)


def test_a_killed_packet_switch_goes_back_to_its_own_controller(rig: Rig) -> None:
    bridges = [rig.lab.bridge(name) for name in ("tor2", "tor3")]
    for name in ("tor2", "tor3"):
        fault = rig.done(rig.faults.kill(f"switch {name}"))
        assert not rig.carrier(name, 1)
        rig.faults.restore(f"switch {name}")
        rig.back(fault.id)
        assert rig.carrier(name, 1)
    assert openvswitch.vsctl("get-controller", bridges[0]).split() == [
        "tcp:127.0.0.1:9"
    ]
    assert openvswitch.vsctl("get-controller", bridges[1]) == ""
    assert "actions=NORMAL" in ofctl(bridges[1], "dump-flows")


def test_a_killed_optical_switch_stays_lit_and_away_for_as_long_as_asked(
    rig: Rig,
) -> None:
    entry = dict(rig.testbed.inventory["optical_switches"]["ocs0"])
    driver = make_driver("ocs0", entry, 4)
    wanted = {CrossConnect(1, 6), CrossConnect(2, 5)}
    driver.open()
    converge(driver, wanted)
    driver.close()
    fault = rig.done(rig.faults.kill("switch ocs0", back_after_s=4.0))
    with pytest.raises(
        FaultError, match=r"switch ocs0: fault f\d+ \(kill\) is in force"
    ):
        rig.faults.kill("switch ocs0")
    host, port = entry["address"].rsplit(":", 1)
    time.sleep(1.0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1.0)
    lit = Datapath.resume(rig.lab.bpf_dir / "ocs0")
    assert {ingress for ingress, _ in lit.cross_connects()} == {1, 2}
    lit.close()
    # A fibre is cut meanwhile: the switch that is started anew does not bring it up again.
    cut = rig.done(rig.faults.cut("tor0:2", "ocs0:2"))
    over = rig.back(fault.id)
    assert over.t_back - over.t_done >= 4.0  # type: ignore[operator]
    now = rig.testbed.inventory["optical_switches"]["ocs0"]
    assert (now["pid"] != entry["pid"], now["restarts"]) == (True, 0)
    driver = make_driver("ocs0", now, 4)
    driver.open()
    assert driver.snapshot().cross_connects.keys() == wanted
    driver.close()
    assert not rig.carrier("ocs0", 2)
    rig.faults.restore("link ocs0:2 tor0:2")
    rig.back(cut.id)
    assert rig.carrier("ocs0", 2)


def test_a_killed_server_agent_does_not_answer_and_its_workers_go_on(rig: Rig) -> None:
    rig.start("g0").raise_for_status()
    with pytest.raises(FaultError, match="back_after_s: is missing"):
        rig.faults.kill("server agent")
    fault = rig.faults.kill("server agent", back_after_s=1.0)

    refusals = []

    def answers() -> bool:
        try:
            rig.faults.faults()
        except FaultError as error:
            refusals.append(error)
            return False
        return True

    until(lambda: not answers(), 10.0)
    until(answers, 15.0)
    assert {error.status for error in refusals} == {None}
    assert "does not answer" in str(refusals[0])
    over = rig.back(fault)
    assert 1.0 <= over.t_back - over.t_done < 4.0  # type: ignore[operator]
    assert rig.worker("red-0")["state"] == "running"

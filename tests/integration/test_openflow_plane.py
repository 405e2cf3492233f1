"""The OpenFlow plane against a real Open vSwitch bridge."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ringlight.controller.openflow.errors import (
    ListenError,
    NotConnectedError,
    SwitchRefusedError,
    SwitchTimeoutError,
)
from ringlight.controller.openflow.messages import FlowMod, SwitchEvent
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.testbed.lab import new_lab
from ringlight.testbed.rigs.network import run

pytestmark = pytest.mark.root

DPID = 0x51
WAIT_S = 20.0
TO_A = {"eth_type": 0x0800, "ipv4_dst": "10.82.0.2"}


@dataclass
class Site:
    plane: OpenFlowPlane
    bridge: str
    label: str

    def dump(self) -> str:
        return run(
            "ovs-ofctl", "-O", "OpenFlow13", "--no-names", "dump-flows", self.bridge
        )

    def control(self, on: bool) -> None:
        # Port 1 answers nobody. Without any controller a switch would drop its flows.
        port = self.plane.port if on else 1
        run(
            "ovs-vsctl",
            "--timeout=15",
            "set-controller",
            self.bridge,
            f"tcp:127.0.0.1:{port}",
        )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    lab = new_lab()
    bridge = lab.bridge("tor0")
    plane = OpenFlowPlane("127.0.0.1", 0)
    with lab.hold():
        try:
            plane.start()
            command = [
                "add-br",
                bridge,
                "--",
                "set",
                "bridge",
                bridge,
                "datapath_type=netdev",
            ]
            command += ["fail_mode=secure", f"external_ids:ringlight={lab.id}"]
            command += [f"other_config:datapath-id={DPID:016x}"]
            for port in (1, 2, 3):
                name = lab.interface("tor0", port)
                command += ["--", "add-port", bridge, name]
                command += [
                    "--",
                    "set",
                    "interface",
                    name,
                    "type=internal",
                    f"ofport_request={port}",
                ]
            run("ovs-vsctl", "--timeout=15", *command)
            made = Site(plane, bridge, f"external_ids:ringlight={lab.id}")
            made.control(True)
            plane.wait_for([DPID], WAIT_S)
            yield made
        finally:
            plane.stop()
            with contextlib.suppress(RuntimeError):
                run("ovs-vsctl", "--timeout=15", "--if-exists", "del-br", bridge)
        for path in lab.state_dir.iterdir():
            path.unlink()
        lab.state_dir.rmdir()


@pytest.fixture
def plane(site: Site) -> OpenFlowPlane:
    site.plane.wait_for([DPID], WAIT_S)
    site.plane.send_flows(DPID, [FlowMod("delete", 0, {})], timeout_s=WAIT_S)
    assert site.plane.flows(DPID, timeout_s=WAIT_S) == []
    return site.plane


def test_flows_are_there_once_send_flows_returns(
    site: Site, plane: OpenFlowPlane
) -> None:
    mods = [FlowMod("add", 7, TO_A, (3,), cookie=0x524C), FlowMod("add", 0, {})]
    plane.send_flows(DPID, mods, timeout_s=WAIT_S)
    assert "cookie=0x524c" in site.dump()
    by_priority = {
        entry.priority: entry for entry in plane.flows(DPID, timeout_s=WAIT_S)
    }
    assert by_priority[7].match == TO_A
    assert by_priority[7].out_ports == (3,)
    assert by_priority[7].cookie == 0x524C
    assert by_priority[0].out_ports == ()


def test_replace_modify_and_strict_delete(plane: OpenFlowPlane) -> None:
    plane.send_flows(
        DPID,
        [FlowMod("add", 7, TO_A, (3,)), FlowMod("add", 8, TO_A, (1,))],
        timeout_s=WAIT_S,
    )
    plane.send_flows(DPID, [FlowMod("modify_strict", 7, TO_A, (2,))], timeout_s=WAIT_S)
    assert {(e.priority, e.out_ports) for e in plane.flows(DPID, timeout_s=WAIT_S)} == {
        (7, (2,)),
        (8, (1,)),
    }
    plane.send_flows(DPID, [FlowMod("delete_strict", 8, TO_A)], timeout_s=WAIT_S)
    assert [e.priority for e in plane.flows(DPID, timeout_s=WAIT_S)] == [7]


@pytest.mark.parametrize(
    "match",
    [{"eth_type": 0x0800, "ipv4_dst": "10.82.0.0/255.255.0.0"}, {"metadata": "5/7"}],
)
def test_masked_match_survives_the_round_trip(
    plane: OpenFlowPlane, match: dict[str, int | str]
) -> None:
    plane.send_flows(DPID, [FlowMod("add", 7, match, (1,))], timeout_s=WAIT_S)
    (entry,) = plane.flows(DPID, timeout_s=WAIT_S)
    assert entry.match == match
    plane.send_flows(DPID, [FlowMod("delete_strict", 7, entry.match)], timeout_s=WAIT_S)
    assert plane.flows(DPID, timeout_s=WAIT_S) == []


def test_an_error_of_the_switch_names_the_message(plane: OpenFlowPlane) -> None:
    good = FlowMod("add", 7, TO_A, (3,))
    lacks_ethertype = FlowMod("add", 7, {"ipv4_dst": "10.82.0.2"}, (3,))
    with pytest.raises(SwitchRefusedError, match="BAD_PREREQ") as caught:
        plane.send_flows(DPID, [good, lacks_ethertype, good], timeout_s=WAIT_S)
    assert caught.value.index == 1


def test_many_flows_come_back_over_several_replies(plane: OpenFlowPlane) -> None:
    matches = [
        {"eth_type": 0x0800, "ipv4_dst": f"10.83.{i // 250}.{i % 250 + 1}"}
        for i in range(2000)
    ]
    plane.send_flows(
        DPID, [FlowMod("add", 7, m, (1,)) for m in matches], timeout_s=WAIT_S
    )
    assert len(plane.flows(DPID, timeout_s=WAIT_S)) == 2000


def test_answers_find_their_caller_when_many_ask(plane: OpenFlowPlane) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        match = {"eth_type": 0x0800, "ipv4_dst": f"10.84.0.{number}"}
        for out in (1, 2, 3) * 5:
            plane.send_flows(
                DPID, [FlowMod("add", 100 + number, match, (out,))], timeout_s=WAIT_S
            )
            mine = [
                e
                for e in plane.flows(DPID, timeout_s=WAIT_S)
                if e.priority == 100 + number
            ]
            if [e.out_ports for e in mine] != [(out,)]:
                wrong.append(f"{number}: {mine}")
            plane.port_stats(DPID, timeout_s=WAIT_S)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_ports_statistics_and_description(plane: OpenFlowPlane) -> None:
    assert [port.number for port in plane.ports(DPID)] == [1, 2, 3]
    assert {stats.port_no for stats in plane.port_stats(DPID, timeout_s=WAIT_S)} == {
        1,
        2,
        3,
    }
    assert plane.desc(DPID).hardware == "Open vSwitch"


def test_unknown_switch_deadline_and_taken_port(plane: OpenFlowPlane) -> None:
    with pytest.raises(NotConnectedError, match="switch 99"):
        plane.flows(99, timeout_s=1)
    with pytest.raises(NotConnectedError, match="99"):
        plane.wait_for([DPID, 99], 0.05)
    with pytest.raises(SwitchTimeoutError):
        plane.flows(DPID, timeout_s=0.0)
    with pytest.raises(ListenError, match=f"127.0.0.1:{plane.port} is already in use"):
        OpenFlowPlane("127.0.0.1", plane.port).start()


def test_reconnect_keeps_flows_and_tells_subscribers(
    site: Site, plane: OpenFlowPlane
) -> None:
    plane.send_flows(DPID, [FlowMod("add", 7, TO_A, (3,))], timeout_s=WAIT_S)
    seen: list[SwitchEvent] = []
    unsubscribe = plane.subscribe(seen.append)
    threads = threading.active_count()
    site.control(False)
    deadline = time.monotonic() + WAIT_S
    while plane.connected():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    site.control(True)
    plane.wait_for([DPID], WAIT_S)
    while len(seen) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    unsubscribe()
    while threading.active_count() > threads:
        assert time.monotonic() < deadline, f"left behind: {threading.enumerate()}"
        time.sleep(0.01)
    assert [event.kind for event in seen[:2]] == ["disconnected", "connected"]
    # fail_mode secure: a switch keeps its flows while no controller is there.
    assert [e.priority for e in plane.flows(DPID, timeout_s=WAIT_S)] == [7]


def test_a_second_switch_with_the_same_datapath_id_is_refused(
    site: Site, plane: OpenFlowPlane
) -> None:
    plane.send_flows(DPID, [FlowMod("add", 7, TO_A, (3,))], timeout_s=WAIT_S)
    seen: list[SwitchEvent] = []
    unsubscribe = plane.subscribe(seen.append)
    second = site.bridge.replace("tor0", "tor9")
    command = [
        "add-br",
        second,
        "--",
        "set",
        "bridge",
        second,
        "datapath_type=netdev",
        "fail_mode=secure",
    ]
    command += [site.label, f"other_config:datapath-id={DPID:016x}"]
    try:
        run("ovs-vsctl", "--timeout=15", *command)
        run(
            "ovs-vsctl",
            "--timeout=15",
            "set-controller",
            second,
            f"tcp:127.0.0.1:{plane.port}",
        )
        deadline = time.monotonic() + WAIT_S
        while not seen:
            assert time.monotonic() < deadline, (
                "two switches share a datapath id and nobody says so"
            )
            time.sleep(0.01)
        assert {(event.kind, event.dpid) for event in seen} == {("refused", DPID)}
        assert list(plane.refused()) == [DPID]
        # Flows still go to the first one, and it keeps its connection.
        plane.send_flows(DPID, [FlowMod("add", 9, TO_A, (1,))], timeout_s=WAIT_S)
        assert "priority=9" in site.dump()
        assert [event.kind for event in seen] == ["refused"]
    finally:
        unsubscribe()
        run("ovs-vsctl", "--timeout=15", "--if-exists", "del-br", second)


def test_stop_ends_every_thread_and_frees_the_port() -> None:
    before = set(threading.enumerate())
    plane = OpenFlowPlane("127.0.0.1", 0)
    plane.start()
    port = plane.port
    plane.stop()
    plane.stop()
    assert set(threading.enumerate()) == before
    again = OpenFlowPlane("127.0.0.1", port)
    again.start()
    again.stop()

"""Packet switches whose tables others write: whose one is, what others are told, which flows are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ringlight.controller.bus import EventBus
from ringlight.controller.packets import announcing
from ringlight.controller.packets.attachment import attachments
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.port_notifications import Followers, attached
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import circuit_cross_connects
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.kernel import addressing
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.others import Others
from ringlight.testbed.lab import Lab
from ringlight.testbed.supervision import Life
from tests.unit.test_controller_rules import FakeTables

SECTION: dict[str, Any] = yaml.safe_load("""
controller: tcp:127.0.0.1:6655
servers:
  s0:
    gpus: {g0: gpu, g1: gpu}
  s1:
    gpus: {g2: gpu, g3: gpu}
packet_switches:
  p0: {ports: 4}
  p1: {ports: 4}
optical_switches:
  ocs0: {size: 10, profile: mems}
links:
- ends: [g0, 'ocs0:1']
  rate: 10 Gbit/s
- ends: [g1, 'ocs0:2']
  rate: 10 Gbit/s
- ends: [g2, 'ocs0:3']
  rate: 10 Gbit/s
- ends: [g3, 'ocs0:4']
  rate: 10 Gbit/s
- ends: ['p0:1', 'ocs0:5']
  rate: 10 Gbit/s
- ends: ['p0:2', 'ocs0:6']
  rate: 10 Gbit/s
- ends: ['p0:3', 'ocs0:7']
  rate: 10 Gbit/s
- ends: ['p1:1', 'ocs0:8']
  rate: 10 Gbit/s
- ends: ['p1:2', 'ocs0:9']
  rate: 10 Gbit/s
- ends: ['p1:3', 'ocs0:10']
  rate: 10 Gbit/s
- ends: ['p0:4', 'p1:4']
  rate: 2 Gbit/s
circuits:
- [g0, 'p0:1']
- [g1, 'p0:2']
- [g2, 'p1:1']
- [g3, 'p1:2']
""")


def fabric_of(**switches: str) -> Any:
    """The example's fabric, with these controllers of its switches and ours elsewhere."""
    packet = {
        name: {"ports": 4, "controller": switches.get(name, "ringlight")}
        for name in ("p0", "p1")
    }
    return build_fabric(
        FabricSpec.model_validate({**SECTION, "packet_switches": packet})
    )


def test_a_switch_says_who_writes_its_tables_or_its_fabric_does() -> None:
    assert (
        fabric_of(p1="tcp:10.0.0.5:6653").packet_switches["p1"].controller
        == "tcp:10.0.0.5:6653"
    )
    assert fabric_of(p1="none").foreign_switches == ("p1",)
    assert build_fabric(FabricSpec.model_validate(SECTION)).foreign_switches == (
        "p0",
        "p1",
    )


@pytest.mark.parametrize(
    "text", ["ours", "tcp:6653", "tcp:host", "tls:10.0.0.5:1", "tcp:host:1", 7]
)
def test_a_controller_that_is_none_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        FabricSpec.model_validate({**SECTION, "controller": text})
    assert refused.value.errors()[0]["loc"] == ("controller",)


def light(*pairs: tuple[str, str]) -> Any:
    fabric = fabric_of()
    ends = [(Port.parse(f"{gpu}:0"), Port.parse(port)) for gpu, port in pairs]
    return {"ocs0": frozenset(), **circuit_cross_connects(fabric, ends)}


def test_tables_of_others_are_neither_read_nor_written() -> None:
    fabric = fabric_of(p1="tcp:127.0.0.1:9")
    tables = FakeTables()
    forwarding = Forwarding(fabric, tables)  # type: ignore[arg-type]
    lit = light(("g0", "p0:1"), ("g1", "p0:2"), ("g2", "p1:1"), ("g3", "p1:2"))
    assert forwarding.reconcile(lit) == {}
    assert {rule.switch for rule in forwarding.plan(lit).rules} == {"p0"}
    assert {dpid for dpid in (1, 2) if tables.flows(dpid, timeout_s=1.0)} == {1}


def test_who_writes_a_switch_is_told_what_the_light_changed_there_and_no_more() -> None:
    fabric = fabric_of(p1="tcp:127.0.0.1:9")
    told = (bus := EventBus()).subscribe()
    moves: list[list[str]] = []
    followers = Followers(fabric, bus, moves.append)
    before = attachments(fabric, light(("g0", "p0:1"), ("g2", "p1:1")))
    after = attachments(fabric, light(("g0", "p0:2"), ("g2", "p1:3")))
    followers.tell(lambda: before)
    assert told.take() == []
    followers.tell(lambda: after)
    followers.tell(lambda: after)
    (event,) = told.take()
    assert (event["event"], event["switch"], event["dpid"]) == (
        "packet_switch_light",
        "p1",
        2,
    )
    gpu = fabric.gpus["g2"]
    assert event["ports"] == [
        {"port": 1, "peer": None, "gpu": None, "ip": None, "mac": None},
        {"port": 3, "peer": "g2:0", "gpu": "g2", "ip": gpu.ip, "mac": gpu.mac},
    ]
    assert [entry["peer"] for entry in attached(fabric, after, "p1")] == [
        None,
        None,
        "g2:0",
        "p0:4",
    ]
    # A switch of others must hear, too, of who has moved to one of ours.
    assert moves == [["g0", "g2"]]
    followers.tell(
        lambda: attachments(
            fabric, light(("g0", "p0:2"), ("g2", "p1:3"), ("g1", "p1:1"))
        )
    )
    followers.tell(lambda: attachments(fabric, light(("g0", "p0:2"), ("g2", "p0:1"))))
    assert moves[1:] == [["g1"], ["g2"]]


def test_nobody_announces_itself_where_all_switches_are_ours() -> None:
    fabric = fabric_of()
    moves: list[list[str]] = []
    followers = Followers(fabric, EventBus(), moves.append)

    def never() -> Mapping[Port, Port | None]:
        raise AssertionError("nobody needs to know")

    followers.tell(never)
    assert moves == []


def test_a_switch_of_others_or_its_fabric_says_whether_flows_of_moved_gpus_go() -> None:
    def forgetting(fabric: dict[str, Any], **switches: Any) -> dict[str, bool]:
        packet = {name: {"ports": 4, **switches.get(name, {})} for name in ("p0", "p1")}
        made = build_fabric(
            FabricSpec.model_validate({**SECTION, **fabric, "packet_switches": packet})
        )
        return {
            name: switch.forgets_moved for name, switch in made.packet_switches.items()
        }

    delete = {"moved_flows": "delete"}
    assert forgetting({}) == {"p0": False, "p1": False}
    assert forgetting(delete) == {"p0": True, "p1": True}
    assert forgetting({}, p0=delete) == {"p0": True, "p1": False}
    assert forgetting(delete, p0={"moved_flows": "keep"}) == {"p0": False, "p1": True}
    # Our own switches need it not: what is said of the whole fabric does not mean them.
    assert forgetting(delete, p1={"controller": "ringlight"}) == {
        "p0": True,
        "p1": False,
    }
    with pytest.raises(
        ValueError, match=r"packet_switches\.p1\.moved_flows: .* ringlight"
    ):
        forgetting({}, p1={**delete, "controller": "ringlight"})
    with pytest.raises(ValidationError, match="moved_flows"):
        forgetting({"moved_flows": "forget"})


def test_flows_are_deleted_once_the_moved_gpus_have_said_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[str], bool]] = []

    def say(gpus: list[str], *, forget: bool) -> dict[str, Any]:
        asked.append((gpus, forget))
        return {"absent": []}

    monkeypatch.setattr(announcing, "PAUSES_S", (0.0, 0.0, 0.0))
    announcer = announcing.Announcer(SimpleNamespace(announce=say), EventBus())  # type: ignore[arg-type]
    announcer.announce(["g0"])
    announcer._pool.shutdown()
    # Before, whoever learns would write the same flows again.
    assert asked == [(["g0"], False), (["g0"], True), (["g0"], True)]


def test_only_flows_that_name_a_moved_gpu_are_deleted_and_only_at_stated_switches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str], *, input: str, **_more: Any) -> Any:
        ran.append((command, input))
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(openvswitch.subprocess, "run", run)
    packet = {"p0": {"ports": 4, "moved_flows": "delete"}, "p1": {"ports": 4}}
    fabric = build_fabric(
        FabricSpec.model_validate({**SECTION, "packet_switches": packet})
    )
    network = SimpleNamespace(fabric=fabric, lab=Lab("zz9z"), is_here=lambda _: True)
    LabNetwork.delete_flows_of(network, ["g2"])  # type: ignore[arg-type]
    ((command, flows),) = ran
    assert command[-3:] == ["del-flows", Lab("zz9z").bridge("p0"), "-"]
    mac, ip = fabric.gpus["g2"].mac, fabric.gpus["g2"].ip
    assert flows.splitlines() == [
        f"dl_dst={mac}",
        f"dl_src={mac}",
        f"ip,nw_dst={ip}",
        f"ip,nw_src={ip}",
    ]


@pytest.mark.parametrize(("operation", "to_ip"), [(1, "10.82.0.1"), (2, "10.82.0.7")])
def test_os_ken_reads_what_a_host_announces(operation: int, to_ip: str) -> None:
    from os_ken.lib.packet import arp, ethernet, packet

    own, other = (
        "02:00:00:00:00:01",
        "ff:ff:ff:ff:ff:ff" if operation == 1 else "02:00:00:00:00:07",
    )
    read = packet.Packet(
        addressing.arp_frame(operation, own, "10.82.0.1", other, to_ip)
    )
    frame, said = read.get_protocol(ethernet.ethernet), read.get_protocol(arp.arp)
    assert (frame.dst, frame.src, frame.ethertype) == (other, own, 0x0806)
    assert (said.opcode, said.src_mac, said.src_ip, said.dst_ip) == (
        operation,
        own,
        "10.82.0.1",
        to_ip,
    )
    assert said.dst_mac == ("00:00:00:00:00:00" if operation == 1 else other)


@pytest.mark.parametrize(("runs", "ended"), [(True, None), (False, "exit code 1")])
def test_a_program_that_has_ended_is_told_as_such(
    runs: bool, ended: str | None
) -> None:
    kept: Any = SimpleNamespace(lives=lambda: {"torus": Life(7, runs, 2, ended, 1.5)})
    assert Others({}, {"torus": kept}).document() == {
        "programs": {
            "torus": {
                "alive": runs,
                "pid": 7,
                "since": 1.5,
                "restarts": 2,
                "last_error": ended,
            }
        },
        "controllers": {},
    }

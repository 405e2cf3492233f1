"""Devices and programs that extensions add to labs: their options, and what a network tells them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pytest
import typer

from ringlight.experiments.cli import options
from ringlight.fabric.building import build_fabric
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed import devices
from ringlight.testbed.devices import (
    Device,
    DeviceKind,
    Direction,
    Forwarder,
    LinkEffector,
    NodeProcess,
    NodeProcesses,
    Site,
)
from ringlight.testbed.emulation.bridges import ControllerAddress, PacketSwitch
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.lab import Lab
from tests.delays import Delay

FABRIC = {
    "servers": {"s": {"gpus": {"g0": "t", "g1": "t"}}},
    "packet_switches": {"p0": {"ports": 3}, "p1": {"ports": 3, "controller": "none"}},
    "links": [
        {"ends": ["g0", "p0:1"], "rate": "1 Gbit/s"},
        {"ends": ["g1", "p1:1"], "rate": "1 Gbit/s"},
        {"ends": ["p0:2", "p1:2"], "rate": "1 Gbit/s"},
    ],
}


class Recorder(Device):
    """Forwards for the bridges that our controller drives, and keeps what it is told."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.left: list[str] = []
        self.directions: list[Direction] = []

    @property
    def forwarder(self) -> Forwarder:
        return self

    @property
    def effector(self) -> LinkEffector:
        return self

    @property
    def bridges(self) -> Collection[str]:
        return self.site.bridges

    def take_up(self, interfaces: Iterable[str]) -> None:
        pass

    def open_vswitch_is_back(self) -> None:
        pass

    def counters(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {}

    def leave(self, interfaces: Iterable[str]) -> None:
        self.left = sorted(interfaces)

    def affect(
        self, effects: Effects, rate_bps: float, directions: Sequence[Direction]
    ) -> None:
        assert effects == {"delay": Delay(0.1)}
        self.directions += directions

    def let_be(self, ports: Iterable[Port]) -> None:
        gone = set(ports)
        self.directions = [
            direction for direction in self.directions if direction.into not in gone
        ]

    def inventory(self) -> dict[str, Any]:
        return {"torus": sorted(self.site.bridges)}


def network(controller: str) -> tuple[LabNetwork, Recorder]:
    packet = {"p0": {"ports": 3}, "p1": {"ports": 3, "controller": controller}}
    fabric = build_fabric(
        FabricSpec.model_validate({**FABRIC, "packet_switches": packet})
    )
    made: list[Device] = []

    def plan(bridges: Any) -> list[Device]:
        made.append(Recorder(Site(Lab("dev1"), Path("/nowhere"), bridges)))
        return list(made)

    address = ControllerAddress("127.0.0.1", 6653)
    built = LabNetwork(Lab("dev1"), fabric, Emulation(), address, devices=plan)
    (recorder,) = made
    assert isinstance(recorder, Recorder)
    return built, recorder


@pytest.mark.parametrize(
    "contract",
    [Device, DeviceKind, Forwarder, LinkEffector, NodeProcess, NodeProcesses],
)
def test_a_contract_of_devices_has_eight_members_at_most(contract: type) -> None:
    names = {*vars(contract), *contract.__annotations__}
    members = {name for name in names if not name.startswith("_")}
    assert 0 < len(members) <= 8, sorted(members)


def test_a_device_is_planned_with_the_bridges_that_our_controller_drives() -> None:
    built, recorder = network("none")
    bridge = Lab("dev1").bridge("p0")
    assert recorder.site.bridges == {bridge: 1}
    assert built.of_devices() == {"torus": [bridge]}
    # A packet may meet the other switch, which is Open vSwitch alone.
    assert not built.affected.all_forwarded
    assert network("ringlight")[0].affected.all_forwarded


def test_what_goes_out_by_a_link_that_does_something_to_frames_is_left_by_devices() -> (
    None
):
    built, recorder = network("none")
    built.affected._leave_to_open_vswitch()
    assert recorder.left == []
    built.affected.by_link = {built.fabric.links[0]: {"delay": Delay(0.1)}}
    built.places.nodes = {"p0": PacketSwitch.__new__(PacketSwitch)}
    built.affected._leave_to_open_vswitch()
    assert recorder.left == [Lab("dev1").interface("p0", 1)]


def test_devices_are_told_where_frames_of_a_link_can_be_met_and_hosts_hand_over_single_ones() -> (
    None
):
    built, recorder = network("ringlight")
    bridges = {name: PacketSwitch.__new__(PacketSwitch) for name in ("p0", "p1")}
    built.places.nodes = dict(bridges)
    trunk, lab = built.fabric.links[2], Lab("dev1")
    assert built.affected.offloads("g0")
    built.affected.affect(trunk, {"delay": Delay(0.1)})
    assert recorder.directions == [
        Direction(trunk.b, trunk.a, None, lab.interface("p0", 2)),
        Direction(trunk.a, trunk.b, None, lab.interface("p1", 2)),
    ]
    assert not built.affected.offloads("g0")
    built.affected.affect(trunk, {})
    assert recorder.directions == []
    assert built.affected.offloads("g0")


@dataclass(frozen=True)
class TorusOptions:
    turns: Annotated[int, typer.Option("--turns", help="Turns of the torus.")] = 3

    name: ClassVar[str] = "torus"
    is_requested: ClassVar[bool] = True


def test_commands_that_build_labs_have_an_option_for_each_device_and_those_of_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {"slow_path": SimpleNamespace(help="Go slowly.", forwards=True)}
    monkeypatch.setattr(options, "optional_kinds", lambda: kinds)
    monkeypatch.setattr(options, "program_options", lambda: (TorusOptions,))
    given: list[options.OpenLab] = []

    @options.with_groups
    def build(lab: options.OpenLab) -> None:
        given.append(lab)

    parameters = inspect.signature(build).parameters
    assert {"slow_path", "turns"} < parameters.keys()
    assert {"devices", "programs"}.isdisjoint(parameters)
    told = {name: parameter.default for name, parameter in parameters.items()}
    build(**told)
    build(**{**told, "slow_path": True, "turns": 5})
    assert [lab.devices for lab in given] == [(), ("slow_path",)]
    assert [lab.programs for lab in given] == [(TorusOptions(3),), (TorusOptions(5),)]
    assert given[0].requested_programs == [TorusOptions(3)]


def test_costs_go_by_what_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "slow_path": SimpleNamespace(forwards=True),
        "lamp": SimpleNamespace(forwards=False),
    }
    monkeypatch.setattr(devices, "device_kinds", lambda: kinds)
    assert devices.any_forwards(["lamp", "slow_path"])
    assert not devices.any_forwards(["lamp"])
    assert not devices.any_forwards([])


def test_a_device_of_the_fabric_is_there_without_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = SimpleNamespace(help="Go slowly.", forwards=True, plan=lambda site: None)
    kinds = {"torus": SimpleNamespace(help="", plan=Recorder), "slow_path": asked}
    monkeypatch.setattr(devices, "device_kinds", lambda: kinds)
    assert devices.optional_kinds() == {"slow_path": asked}
    (found,) = devices.plan_devices(
        ["slow_path"], Site(Lab("dev1"), Path("/nowhere"), {})
    )
    assert isinstance(found, Recorder)

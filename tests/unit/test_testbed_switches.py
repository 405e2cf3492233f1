"""What a testbed tells an emulated optical switch and its driver, before anything of a lab is made."""

from __future__ import annotations

import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringlight import IMPORT_PATH
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.building import build_fabric
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.fault_targets import (
    FaultRequest,
    TargetError,
    find_target,
)
from ringlight.testbed.emulation.kept_processes import KeptProcesses
from ringlight.testbed.emulation.optical_processes import (
    USER,
    OpticalProcesses,
    protocol_of,
)
from ringlight.testbed.emulation.settings import Settings
from ringlight.testbed.lab import Lab
from ringlight.testbed.process_start import importing

EMULATED = [name for name, kind in driver_kinds().items() if kind.protocol is not None]


def fabric(**switch: object) -> Fabric:
    raw = {
        "servers": {"s0": {"gpus": {"g0": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": {"size": 8, **switch}},
        "links": [],
    }
    return build_fabric(FabricSpec.model_validate(raw))


def switches_of(made: Fabric, state: Path) -> OpticalProcesses:
    settings = Settings(lab=Lab("abc"), fabric=made, state=state)
    return OpticalProcesses(
        settings, KeptProcesses(settings, ExitStack(), lambda *_: None)
    )


@pytest.mark.parametrize("driver", EMULATED)
def test_only_the_owner_may_read_who_may_use_a_switch(
    driver: str, tmp_path: Path
) -> None:
    switches = switches_of(fabric(driver=driver), tmp_path)
    switches._make_user("ocs0")
    files = {path.name: path for path in tmp_path.iterdir()}
    if not driver_kinds()[driver].login:
        assert not files
        return
    assert files.keys() == {"ocs0.users", "ocs0.password"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files.values())
    password = files["ocs0.password"].read_text().strip()
    assert len(password) >= 32
    assert files["ocs0.users"].read_text() == f"{USER}:{password}\n"
    # Another lab has another one.
    switches._make_user("ocs0")
    assert files["ocs0.password"].read_text().strip() != password


@pytest.mark.parametrize("driver", EMULATED)
def test_the_inventory_is_what_the_driver_needs(driver: str, tmp_path: Path) -> None:
    switch = fabric(driver=driver).optical_switches["ocs0"]
    switches = switches_of(fabric(driver=driver), tmp_path)
    switches._make_user("ocs0")
    switches.addresses["ocs0"] = {
        protocol_of(switch): "127.0.0.1:7",
        "rest": "127.0.0.1:8",
    }
    entry = {
        "driver": driver,
        "profile": switch.device.declared(),
        **switches._login(switch),
    }
    made = make_driver("ocs0", entry, switch.size)
    assert made.capabilities().timing.settle_s == 0
    for path in tmp_path.glob("*.password"):
        assert path.read_text().strip() not in str(entry)


def test_a_switch_that_is_elsewhere_cannot_be_killed() -> None:
    request = FaultRequest(do="kill", target="switch ocs0")
    assert find_target(fabric(), request).names == ("ocs0",)
    with pytest.raises(
        TargetError, match="optical switch ocs0 has an address in the fabric"
    ):
        find_target(fabric(address="10.0.0.5:5025"), request)


def test_processes_of_a_lab_find_extensions_on_the_user_s_own_path() -> None:
    assert importing({"LANG": "C"}) == {"LANG": "C", "PYTHONPATH": str(IMPORT_PATH)}
    assert importing({"PYTHONPATH": "/a:/b"}) == {"PYTHONPATH": f"{IMPORT_PATH}:/a:/b"}

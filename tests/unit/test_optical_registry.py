"""Drivers by name, the core's and extensions', and credentials from outside the fabric file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.controller.optical.inventory import Entry
from ringlight.controller.optical.registry import check_driver, make_driver
from ringlight.experiments.backends.emulation.lab_of_setting import cannot_drive
from ringlight.fabric import extension
from ringlight.fabric.building import build_fabric
from ringlight.fabric.extension import Extension, ExtensionError, InstalledExtension
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import profiles
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.optical.session import protocol_named
from tests.door import door

_EXTENSION = """
from ringlight.fabric.extension import Extension

EXTENSION = Extension(
    "acme",
    drivers={"acme-tl9": "switches:TL9", "acme-none": "switches:NONE", "acme-gone": "switches:GONE",
        "acme-half": "switches:HALF", "acme-dumb": "switches:DUMB", "acme-torn": "switches:TORN"},
    profiles={"acme-fast": "switches:FAST"},
)
"""
_SWITCHES = """
from dataclasses import replace

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.model import Capabilities, Snapshot, dual_sided
from ringlight.fabric.optical_drivers import DriverKind
from ringlight.fabric.optical_profiles import MEMS

class Acme(OpticalSwitchDriver):
    def _read(self, deadline): return Snapshot(self.name, {}, {})
    def _add(self, batch, deadline): pass
    def _remove(self, batch, deadline): pass

class Half(OpticalSwitchDriver):
    def _read(self, deadline): return Snapshot(self.name, {}, {})

def build(name, entry, size, openflow=None):
    return Acme(name, Capabilities(*dual_sided(size), max_batch=entry["batch"]))

def nothing(name, entry, size, openflow=None):
    return None

FAST = replace(MEMS, name="acme-fast", dark_s=0.001)
TL9 = DriverKind("switches:build", ("acme-fast",), "acme-fast", options=frozenset({"batch"}))
NONE = DriverKind("switches:nothing")
GONE = DriverKind("switches:removed")
HALF = DriverKind("switches:Half", protocol="scpi")
DUMB = DriverKind("switches:build", protocol="acme-dumb")
TORN = DriverKind("switches:build", protocol="acme-torn", emulated_by="torn:PROTOCOL")
"""


def _forget() -> None:
    for cached in (extension.extensions, extension.entries, driver_kinds, profiles):
        cached.cache_clear()


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with an extension as pip leaves it, on the path of this process."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text(_EXTENSION)
    (tmp_path / "acme" / "switches.py").write_text(_SWITCHES)
    (tmp_path / "acme" / "torn.py").write_text("PROTOCOL = (\n")
    metadata = tmp_path / "acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[ringlight.extensions]\nacme = acme:EXTENSION\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("acme", "acme.switches"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    _forget()
    yield
    for name in ("acme", "acme.switches"):
        sys.modules.pop(name, None)
    _forget()


@pytest.mark.parametrize("kind", ["acme-tl9", "acme_tl9"])
@pytest.mark.usefixtures("acme")
def test_another_package_ships_a_driver(kind: str) -> None:
    driver = make_driver("ocs0", {"driver": kind, "batch": 3}, 4)
    assert type(driver).__module__ == "acme.switches"
    assert driver.capabilities().max_batch == 3
    with pytest.raises(
        ValueError, match="optical switch ocs0: the inventory entry lacks 'batch'"
    ):
        make_driver("ocs0", {"driver": kind}, 4)


@pytest.mark.usefixtures("acme")
def test_a_fabric_names_the_driver_and_the_product_of_another_package() -> None:
    there = {
        "size": 4,
        "driver": "acme_tl9",
        "address": "[fe80::1]:1",
        "options": {"batch": 3},
    }
    raw = {
        "servers": {"s0": {"gpus": {"g0": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": there},
        "links": [],
    }
    switch = build_fabric(FabricSpec.model_validate(raw)).optical_switches["ocs0"]
    assert (switch.driver, switch.device.dark_s) == ("acme-tl9", 0.001)
    assert switch.access == {"address": "[fe80::1]:1", "batch": 3}
    raw["optical_switches"] = {"ocs0": {"size": 4, "profile": "acme-fast"}}
    with pytest.raises(
        ValueError, match="profile: acme-fast; the driver scpi goes with"
    ):
        FabricSpec.model_validate(raw)


@pytest.mark.parametrize("name", driver_kinds())
def test_every_driver_and_its_protocol_can_be_loaded(name: str) -> None:
    kind = driver_kinds()[name]
    check_driver(name)
    if kind.protocol is not None:
        protocol_named(kind.protocol)
    assert kind.profile in profiles()
    assert profiles().keys() >= set(kind.products)
    assert kind.emulated_options | kind.emulated.keys() <= kind.options


@pytest.mark.parametrize(
    "name", [name for name, kind in driver_kinds().items() if not kind.is_bridge]
)
@pytest.mark.parametrize(
    "address", ["", ":1", "h:", "h:0", "h:65536", "h:x", "h h:1", "a:b:1", "[::1:1"]
)
def test_an_address_is_a_host_and_a_port(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    user = (
        {"username": "ann", "password_env": "SECRET"}
        if driver_kinds()[name].login
        else {}
    )
    with pytest.raises(
        ValueError, match=r"optical switch ocs0: address: .* is not host:port"
    ):
        make_driver("ocs0", {"driver": name, "address": address, **user}, 4)
    make_driver(
        "ocs0", {"driver": name, "address": "[fe80::1%eth0]:65535", **user}, 4
    ).close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("acme-none", "acme-none gave a NoneType, no driver"),
        ("acme-gone", "acme-gone: extension acme: switches:removed cannot be loaded"),
        ("acme-half", "acme-half: switches:Half lacks _add, _remove"),
        ("acme-tl8", "there is no driver 'acme-tl8'"),
        ("inventory", "there is no driver 'inventory'"),
    ],
)
@pytest.mark.usefixtures("acme")
def test_what_is_wrong_with_a_driver_is_said(kind: str, words: str) -> None:
    with pytest.raises(ValueError, match="optical switch ocs0: driver: ") as caught:
        make_driver("ocs0", {"driver": kind, "batch": 1}, 4)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def _fabric(driver: str, **switch: object) -> Fabric:
    raw = {
        "servers": {"s0": {"gpus": {"g0": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": {"size": 4, "driver": driver, **switch}},
        "links": [],
    }
    return build_fabric(FabricSpec.model_validate(raw))


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ("acme-half", "acme-half: switches:Half lacks _add, _remove"),
        (
            "acme-dumb",
            "'acme-dumb' is not a management protocol of the emulated switch; there are scpi, ",
        ),
        (
            "acme-torn",
            "extension acme: torn:PROTOCOL cannot be loaded: '(' was never closed (torn.py, line 1",
        ),
    ],
)
@pytest.mark.usefixtures("acme")
def test_a_switch_that_no_lab_can_have_is_told_where_the_fabric_is_checked(
    driver: str, why: str
) -> None:
    there = _fabric(driver, address="10.0.0.5:1")
    assert (cannot_drive(there) is None) is (driver != "acme-half")
    found = cannot_drive(_fabric(driver)) or ""
    assert found.startswith(f"fabric.optical_switches.ocs0.driver: {why}")


def test_a_profile_has_the_name_that_it_is_listed_by() -> None:
    listed = Extension("acme", profiles={"acme-fast": "optical_profiles:MEMS"})
    with (
        door(InstalledExtension(listed, "ringlight.fabric"), readers=(profiles,)),
        pytest.raises(ExtensionError) as caught,
    ):
        profiles()
    said = "extension acme: profiles: optical_profiles:MEMS is called 'mems', and listed as 'acme-fast'"
    assert str(caught.value) == said


def test_credentials_from_the_environment_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "s3cret")
    found = Entry(
        "ocs0", {"username": "admin", "password_env": "OCS_PASSWORD"}
    ).credentials()
    assert found is not None
    assert (found.username, found.password) == ("admin", "s3cret")
    assert "s3cret" not in repr(found)
    file = tmp_path / "password"
    file.write_text("pass word\r\nnot this\n")
    found = Entry(
        "ocs0", {"username": "admin", "password_file": str(file)}
    ).credentials()
    assert found is not None
    assert found.password == "pass word"
    assert Entry("ocs0", {}).credentials() is None
    found = Entry("ocs0", {"username": "admin"}).credentials()
    assert found is not None
    assert found.password == ""


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"username": "admin", "password": "s3cret"}, "password"),
        ({"password_env": "OCS_PASSWORD"}, "username"),
        ({"username": "", "password_env": "OCS_PASSWORD"}, "username"),
        ({"username": "admin", "password_env": "OCS_NO_SUCH"}, "password_env"),
        (
            {
                "username": "admin",
                "password_env": "OCS_PASSWORD",
                "password_file": "/dev/null",
            },
            "password_file",
        ),
        ({"username": "admin", "password_file": "/no/such"}, "password_file"),
        ({"username": "admin", "password_file": "/dev/null"}, "password_file"),
        ({"username": "admin", "password_file": "/dev/zero"}, "password_file"),
    ],
)
def test_what_is_wrong_with_credentials_is_said_without_them(
    entry: dict[str, str], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "s3cret")
    with pytest.raises(ValueError, match=f"optical switch ocs0: {key}: ") as caught:
        Entry("ocs0", entry).credentials()
    assert "s3cret" not in str(caught.value)

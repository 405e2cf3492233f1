"""Drivers by name, ours and other people's, and credentials from outside the fabric file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringlight.controller.optical.inventory import Entry
from ringlight.controller.optical.registry import check_driver, make_driver
from ringlight.controller.optical.scpi import ScpiDriver
from ringlight.fabric.optical_drivers import DRIVERS
from ringlight.testbed.emulation.optical.session import personality

_THIRD_PARTY = """
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.model import Capabilities, Snapshot, dual_sided

class Acme(OpticalSwitchDriver):
    def _read(self, deadline): return Snapshot(self.name, {}, {})
    def _add(self, batch, deadline): pass
    def _remove(self, batch, deadline): pass

def from_inventory(name, entry, size, openflow=None):
    return Acme(name, Capabilities(*dual_sided(size), max_batch=entry["batch"]))

def nothing(name, entry, size, openflow=None):
    return None
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with drivers as pip leaves it, on the path of this process."""
    (tmp_path / "ringlight_acme.py").write_text(_THIRD_PARTY)
    metadata = tmp_path / "ringlight_acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ringlight-acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[ringlight.optical_drivers]\n"
        "acme-tl9 = ringlight_acme:from_inventory\n"
        "scpi = ringlight_acme:from_inventory\n"
        "acme-none = ringlight_acme:nothing\n"
        "acme-gone = ringlight_acme:removed\n"
        "acme-module = ringlight_acme\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ringlight_acme", raising=False)
    return metadata


@pytest.mark.parametrize("kind", ["acme-tl9", "acme_tl9"])
def test_another_package_ships_a_driver(acme: Path, kind: str) -> None:
    driver = make_driver("ocs0", {"driver": kind, "batch": 3}, 4)
    assert type(driver).__module__ == "ringlight_acme"
    assert driver.capabilities().max_batch == 3
    with pytest.raises(ValueError, match="optical switch ocs0: the inventory entry lacks 'batch'"):
        make_driver("ocs0", {"driver": kind}, 4)


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_fabric_can_name_every_driver_and_no_other(kind: str) -> None:
    check_driver(kind)
    protocol = DRIVERS[kind].protocol
    if protocol is not None:
        personality(protocol)
    modules = Path("controller/optical").glob("*.py")
    ours = {path.stem for path in modules if "\nfrom_inventory = " in path.read_text()}
    assert {name.replace("-", "_") for name in DRIVERS} == ours | {"polatis_scpi"}


@pytest.mark.parametrize("kind", [kind for kind, about in DRIVERS.items() if about.port is not None])
@pytest.mark.parametrize("address", ["", ":1", "h:", "h:0", "h:65536", "h:x", "h h:1", "a:b:1", "[::1:1"])
def test_an_address_is_a_host_and_a_port(kind: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    user = {"username": "ann", "password_env": "SECRET"} if DRIVERS[kind].login else {}
    with pytest.raises(ValueError, match=r"optical switch ocs0: address: .* is not host:port"):
        make_driver("ocs0", {"driver": kind, "address": address, **user}, 4)
    make_driver("ocs0", {"driver": kind, "address": "[fe80::1%eth0]:65535", **user}, 4).close()


def test_a_name_of_ours_cannot_be_taken(acme: Path) -> None:
    driver = make_driver("ocs0", {"driver": "scpi", "address": "127.0.0.1:1", "batch": 3}, 4)
    assert type(driver) is ScpiDriver


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("acme-none", "acme-none gave a NoneType, no driver"),
        ("acme-gone", "acme-gone: its entry point ringlight_acme:removed cannot be loaded"),
        ("acme-module", "acme-module: its entry point ringlight_acme is not a function"),
        ("acme-tl8", "there is no driver 'acme-tl8'"),
        ("inventory", "there is no driver 'inventory'"),
    ],
)
def test_what_is_wrong_with_a_driver_is_said(acme: Path, kind: str, words: str) -> None:
    with pytest.raises(ValueError, match="optical switch ocs0: driver: ") as caught:
        make_driver("ocs0", {"driver": kind, "batch": 1}, 4)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_packages_with_one_name(acme: Path) -> None:
    other = acme.with_name("ringlight_other-1.0.dist-info")
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ringlight-other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[ringlight.optical_drivers]\nacme_tl9 = ringlight_other:build\n")
    with pytest.raises(ValueError, match="two packages register it: ringlight_acme:from_inventory, "):
        make_driver("ocs0", {"driver": "acme-tl9", "batch": 3}, 4)


def test_credentials_from_the_environment_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "s3cret")
    found = Entry("ocs0", {"username": "admin", "password_env": "OCS_PASSWORD"}).credentials()
    assert found is not None
    assert (found.username, found.password) == ("admin", "s3cret")
    assert "s3cret" not in repr(found)
    file = tmp_path / "password"
    file.write_text("pass word\r\nnot this\n")
    found = Entry("ocs0", {"username": "admin", "password_file": str(file)}).credentials()
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
            {"username": "admin", "password_env": "OCS_PASSWORD", "password_file": "/dev/null"},
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

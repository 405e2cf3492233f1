"""Rigs: those of the core, and those that extensions bring."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ringlight.fabric.extension import Extension, ExtensionError, InstalledExtension
from ringlight.fabric.optical_drivers import DriverKind, driver_kinds
from ringlight.testbed.rigs import emulated, rigs
from ringlight.testbed.rigs.emulated import ScpiRig, WssRig
from tests.door import door


def torus(value: str) -> InstalledExtension:
    module = ModuleType("torus_drivers")
    module.__dict__["TL1"] = DriverKind("driver:Torus", rig=value)
    sys.modules["ringlight.testbed.torus_drivers"] = module
    return InstalledExtension(
        Extension("torus", drivers={"torus-tl1": "torus_drivers:TL1"}),
        "ringlight.testbed",
    )


def test_an_extension_s_rig_is_its_driver_s() -> None:
    with door(torus("rigs.emulated:WssRig"), readers=(rigs, driver_kinds)):
        assert list(rigs().items()) == [
            ("scpi", ScpiRig),
            ("torus-tl1", WssRig),
            ("scpi-wss", WssRig),
        ]


def test_a_rig_that_is_not_there_is_named() -> None:
    with (
        door(torus("rigs.emulated:NoRig"), readers=(rigs, driver_kinds)),
        pytest.raises(ExtensionError, match=r"extension torus: rigs[.]emulated:NoRig"),
    ):
        rigs()


def test_without_extensions_there_are_those_of_the_core() -> None:
    with door(readers=(rigs, driver_kinds)):
        assert list(rigs()) == ["scpi", "scpi-wss"]


def test_a_rig_has_users_where_its_driver_has_a_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AcmeRig(ScpiRig):
        protocol = "acme"

    without = DriverKind("driver:Acme", protocol="acme", login=False)
    monkeypatch.setattr(emulated, "driver_kinds", lambda: {"acme": without})
    rig = AcmeRig.__new__(AcmeRig)
    assert rig.locked_out() is None
    assert rig._arguments() == ["--serve", "acme=127.0.0.1:0"]

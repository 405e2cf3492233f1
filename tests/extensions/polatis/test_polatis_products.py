"""What a Polatis switch speaks, and how it stands in a fabric file."""

from __future__ import annotations

import pytest

from ringlight.controller.optical.registry import make_driver
from ringlight.controller.optical.scpi import ScpiDriver
from ringlight.fabric.optical_drivers import protocols_of
from ringlight.fabric.schema import OpticalSwitchSpec


def test_it_speaks_scpi_tl1_and_restconf() -> None:
    for profile in ("polatis-7000", "polatis-6000"):
        assert set(protocols_of(profile)) == {"scpi", "polatis-tl1", "polatis-restconf"}


def test_its_scpi_is_the_cores_and_whoever_says_scpi_may_have_its_profile() -> None:
    made = make_driver("ocs0", {"driver": "polatis_scpi", "address": "127.0.0.1:1"}, 4)
    assert type(made) is ScpiDriver
    made.close()
    assert OpticalSwitchSpec(size=4, driver="polatis-scpi").profile == "polatis-7000"
    assert OpticalSwitchSpec(size=4, profile="polatis-6000").driver == "scpi"


def test_netconf_is_not_emulated() -> None:
    with pytest.raises(
        ValueError, match="driver: polatis-netconf is not emulated: give the address"
    ):
        OpticalSwitchSpec(size=4, driver="polatis-netconf")

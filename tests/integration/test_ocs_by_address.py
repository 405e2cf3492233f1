"""A line of a fabric file, from its text to light on a switch that runs alone, through every driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.schema import FabricSpec
from tests.drivers import PROTOCOLS
from tests.served import PASSWORD, USER, Served, any_port, serving

SIZE = 8
EMULATED = {
    name: kind for name, kind in driver_kinds().items() if kind.protocol in PROTOCOLS
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("all")
    (folder / "users").write_text(f"{USER}:{PASSWORD}\n")
    (folder / "password").write_text(f"{PASSWORD}\n")
    options = ["--profile", "ideal", "--ports", str(SIZE), "--users", f"{folder}/users"]
    with serving(folder, *options, *any_port(*sorted(PROTOCOLS))) as one:
        yield one, folder


@pytest.mark.parametrize("name", EMULATED)
def test_every_driver_finds_its_switch_by_one_line(
    name: str, served: tuple[Served, Path]
) -> None:
    switch, folder = served
    kind = EMULATED[name]
    assert kind.protocol is not None
    host, port = switch.addresses[kind.protocol]
    line: dict[str, object] = {
        "size": SIZE,
        "driver": name,
        "profile": "ideal",
        "address": f"{host}:{port}",
    }
    if kind.login:
        line |= {"username": USER, "password_file": f"{folder}/password"}
    line["options"] = dict(kind.emulated)
    raw = {
        "servers": {"s0": {"gpus": {"g0": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": line},
        "links": [],
    }
    found = build_fabric(FabricSpec.model_validate(raw)).optical_switches["ocs0"]
    entry = {"driver": found.driver, "profile": found.device.declared(), **found.access}
    driver = make_driver("ocs0", entry, found.size)
    try:
        driver.open()
        wanted = {CrossConnect(1, SIZE + 2), CrossConnect(2, SIZE + 1)}
        made = driver.apply(driver.plan(wanted, Mode.REPLACE))
        assert not made.deviations
        stands = driver.snapshot().cross_connects
        assert stands == dict.fromkeys(wanted, CrossConnectState.CONNECTED)
        assert not driver.apply(driver.plan((), Mode.REPLACE)).deviations
    finally:
        driver.close()

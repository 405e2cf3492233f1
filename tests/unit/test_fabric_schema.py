from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ringlight.fabric import optical_drivers, parts, schema
from ringlight.fabric.building import build_fabric
from ringlight.fabric.optical_drivers import CLASSES, DriverKind, driver_kinds
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from tests.unit.fabrics import NIC_BPS, OVERSUBSCRIPTION, six_gpus


def test_the_six_gpu_fabric_is_built() -> None:
    fabric = build_fabric(FabricSpec.model_validate(six_gpus()))
    assert list(fabric.gpus) == ["g0", "g1", "g2", "g3", "g4", "g5"]
    assert fabric.gpus["g0"].ip == "10.82.0.2"
    assert fabric.gpus["g5"].server == "s3"
    assert [switch.dpid for switch in fabric.packet_switches.values()] == [1, 2]
    assert fabric.link_at[Port("tor0", 5)].rate_bps == pytest.approx(
        NIC_BPS / OVERSUBSCRIPTION
    )
    assert fabric.circuits[3] == (Port("g3", 0), Port("tor1", 1))


def test_addresses_stay_unique_past_one_byte() -> None:
    raw = {
        "servers": {"s0": {"gpus": {f"g{i}": "m" for i in range(600)}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "links": [],
    }
    gpus = build_fabric(FabricSpec.model_validate(raw)).gpus.values()
    assert len({gpu.ip for gpu in gpus}) == len({gpu.mac for gpu in gpus}) == 600
    octets = [int(part) for gpu in gpus for part in gpu.ip.split(".")]
    assert max(octets) <= 254
    assert all(gpu.ip.split(".")[3] not in ("0", "255") for gpu in gpus)


def edit(*path: object, value: object) -> dict[str, Any]:
    raw: Any = six_gpus()
    node = raw
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return raw  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (edit("colour", value="red"), r"colour"),
        (
            edit("optical_switches", "ocs0", "sise", value=3),
            r"optical_switches\.ocs0\.sise",
        ),
        (edit("links", 0, "rate", value="0 Gbit/s"), r"links\.0\.rate"),
        (edit("links", 0, "rate", value=40), r"links\.0\.rate[\s\S]*no unit"),
        (
            edit("links", 0, "rate", value="1e999 Gbit/s"),
            r"links\.0\.rate[\s\S]*too large",
        ),
        (edit("links", 0, "queue", value="-1 ms"), r"links\.0\.queue"),
        (edit("links", 0, "ends", value=["g0"]), r"links\.0\.ends"),
        (
            edit("links", 0, "ends", value=["g9", "ocs0:1"]),
            r"links\[0\]\.ends: there is no node g9",
        ),
        (
            edit("links", 0, "ends", value=["g0", "ocs0:15"]),
            r"links\[0\]\.ends: ocs0 has ports 1 to 14, not 15",
        ),
        (
            edit("links", 0, "ends", value=["g0:1", "ocs0:1"]),
            r"links\[0\]\.ends: g0 has only port 0, not 1",
        ),
        (
            edit("links", 0, "ends", value=["g0", "ocs0:²"]),
            r"links\[0\]\.ends: 'ocs0:²' is not a port",
        ),
        (
            edit("links", 0, "ends", value=["g0", "ocs0:"]),
            r"links\[0\]\.ends: 'ocs0:' is not a port",
        ),
        (
            edit("links", 0, "ends", value=["g0", "ocs0:2"]),
            r"links\[1\]: port ocs0:2 is already plugged in links\[0\]",
        ),
        (
            edit("links", 0, "ends", value=["g0", "g0:0"]),
            r"links\[0\]: both ends are g0:0",
        ),
        (
            edit("circuits", 0, value=["g0", "tor0:2"]),
            r"port tor0:2 is used by circuits g0:0-tor0:2 and g1:0-tor0:2",
        ),
        (
            edit("circuits", 0, value=["g0", "ocs0:7"]),
            r"circuits\[0\]: ocs0:7 is optical",
        ),
        (
            edit("circuits", 0, value=["g0", "tor0:5"]),
            r"no optical switch joins g0:0 and tor0:5",
        ),
        (edit("circuits", 0, value=["g0", "g0"]), r"both ends are one port"),
        (
            edit("circuits", 0, value=["g0", "tor7:1"]),
            r"circuits\[0\]: there is no node tor7",
        ),
        (
            edit("servers", "s1", "gpus", value={"g0": "m"}),
            r"servers\.s1\.gpus\.g0: s0 has that GPU too",
        ),
        (edit("servers", "s1", "gpus", value={}), r"servers\.s1\.gpus"),
        (edit("servers", "S1", value={"gpus": {"g9": "m"}}), r"servers\.S1"),
        (
            edit("packet_switches", "ocs0", value={"ports": 4}),
            r"the name ocs0 is used by two nodes",
        ),
        (
            edit("packet_switches", "tor0", "ports", value=0),
            r"packet_switches\.tor0\.ports",
        ),
        (
            edit("optical_switches", "ocs0", "driver", value="none"),
            r"ocs0\s.*driver: none; there are",
        ),
    ],
)
def test_errors_name_what_is_wrong(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as caught:
        build_fabric(FabricSpec.model_validate(raw))
    assert re.search(named, str(caught.value)), str(caught.value)


def tree(**spec: object) -> dict[str, Any]:
    return {"fat_tree": {"k": 4, "gpu": "titan-v", "rate": "10 Gbit/s", **spec}}


def test_short_forms_are_written_out() -> None:
    fabric = build_fabric(
        FabricSpec.model_validate({**tree(oversubscription=2), "paths": "even"})
    )
    assert fabric.paths == "even"
    assert [fabric.gpus[f"g{i}"].server for i in (0, 15)] == ["s0", "s15"]
    assert [s.dpid for s in fabric.packet_switches.values()] == list(range(1, 21))
    assert fabric.link_at[Port("p0-e0", 3)].rate_bps == 5e9
    assert str(fabric.link_at[Port("p3-a1", 4)].other(Port("p3-a1", 4))) == "c3:4"
    leaves = {
        "leaves": 2,
        "spines": 2,
        "gpus_per_leaf": 3,
        "cables": 2,
        "gpu": "m",
        "rate": "10 Gbit/s",
    }
    fabric = build_fabric(
        FabricSpec.model_validate({"leaf_spine": {**leaves, "uplink_rate": "4 Gbit/s"}})
    )
    assert len(fabric.links) == 6 + 8
    assert fabric.link_at[Port("spine1", 4)].rate_bps == 4e9
    assert fabric.link_at[Port("g5", 0)].rate_bps == 10e9
    # Beside what is written out.
    more = {
        "servers": {"x0": {"gpus": {"x": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
    }
    more |= {"links": [{"ends": ["x", "tor0:1"], "rate": "1 Gbit/s"}]}
    both = build_fabric(FabricSpec.model_validate({**tree(), **more}))
    assert len(both.gpus) == 17
    assert both.packet_switches["tor0"].dpid == 1


def through(**more: object) -> dict[str, Any]:
    leaves = {
        "leaves": 2,
        "spines": 1,
        "gpus_per_leaf": 2,
        "gpu": "m",
        "rate": "10 Gbit/s",
        "through": "ocs0",
    }
    return {
        "leaf_spine": {**leaves, **more},
        "optical_switches": {"ocs0": {"size": 10}},
    }


def test_the_gpus_of_a_short_form_pass_an_optical_switch() -> None:
    fabric = build_fabric(FabricSpec.model_validate(through(spare_ports=1)))
    assert [str(fabric.link_at[Port("ocs0", n)].a) for n in range(1, 11)] == [
        *("g0:0", "g1:0", "g2:0", "g3:0"),
        *("leaf0:1", "leaf0:2", "leaf0:4", "leaf1:1", "leaf1:2", "leaf1:4"),
    ]
    assert str(fabric.link_at[Port("leaf1", 3)].other(Port("leaf1", 3))) == "spine0:2"
    lit = [(str(a), str(b)) for a, b in fabric.circuits]
    assert lit == [
        ("g0:0", "leaf0:1"),
        ("g1:0", "leaf0:2"),
        ("g2:0", "leaf1:1"),
        ("g3:0", "leaf1:2"),
    ]
    # What a file lights itself is what is lit.
    own = {**through(), "circuits": [["g0", "leaf1:1"]]}
    assert [
        str(b) for _, b in build_fabric(FabricSpec.model_validate(own)).circuits
    ] == ["leaf1:1"]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (
            through(spare_ports=2),
            "leaf_spine.through: ocs0 has 10 ports, and takes more",
        ),
        (
            through(through="ocs1"),
            "leaf_spine.through: ocs1 is no optical switch of the fabric",
        ),
        (tree(k=3), "fat_tree: k is 3; it must be an even number of ports"),
        (tree(oversubscription=0.5), r"fat_tree\.oversubscription"),
        (
            tree(oversubscription=2, uplink_rate="1 Gbit/s"),
            "either uplink_rate or oversubscription",
        ),
        (tree(spines=2), r"fat_tree\.spines"),
        ({**tree(), "paths": "best"}, "paths"),
        (
            {**tree(), "servers": {"z": {"gpus": {"g3": "m"}}}},
            "fat_tree: z has GPU g3 too",
        ),
        (
            {**tree(), "packet_switches": {"c0": {"ports": 2}}},
            "the name c0 is used by two nodes",
        ),
        (
            {**tree(), "links": [{"ends": ["g0", "c0:1"], "rate": "1 Gbit/s"}]},
            "g0:0 is already plugged in",
        ),
    ],
)
def test_a_wrong_short_form_is_named(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build_fabric(FabricSpec.model_validate(raw))


def switched(**switch: object) -> dict[str, Any]:
    """Two GPUs on one optical switch, which is as told."""
    return {
        "servers": {"s0": {"gpus": {"g0": "m", "g1": "m"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": {"size": 8, **switch}},
        "links": [
            {"ends": [f"g{i}", f"ocs0:{i + 1}"], "rate": "1 Gbit/s"} for i in (0, 1)
        ],
    }


@pytest.mark.parametrize("driver", driver_kinds())
def test_every_driver_can_be_said_and_has_a_profile_that_fits(driver: str) -> None:
    kind = driver_kinds()[driver]
    there = (
        {}
        if kind.protocol or kind.is_bridge
        else {"address": "10.0.0.5:830", "username": "ann"}
    )
    fabric = build_fabric(FabricSpec.model_validate(switched(driver=driver, **there)))
    switch = fabric.optical_switches["ocs0"]
    assert (switch.driver, switch.profile) == (driver, kind.profile)
    assert switch.has_datapath is (kind.protocol is not None)
    for profile in (*CLASSES, *kind.products):
        FabricSpec.model_validate(switched(driver=driver, profile=profile, **there))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers as extensions have them, beside the core's."""
    made = {
        "acme": DriverKind(
            "acme:Acme",
            ("acme-1",),
            "acme-1",
            "acme",
            options=frozenset({"bulk", "tls"}),
        ),
        "real": DriverKind(
            "acme:Real", ("acme-1",), "acme-1", options=frozenset({"x"})
        ),
        "panel": DriverKind("acme:Panel", login=False, is_bridge=True),
    }
    made["acme"] = replace(made["acme"], emulated_options=frozenset({"bulk"}))
    everything = {**driver_kinds(), **made}
    for module in (schema, optical_drivers, parts):
        monkeypatch.setattr(module, "driver_kinds", lambda: everything)


@pytest.mark.usefixtures("kinds")
def test_a_switch_is_elsewhere_by_one_line() -> None:
    line = {
        "driver": "acme",
        "address": "10.0.0.5:3083",
        "username": "ann",
        "password_env": "OCS0",
    }
    spec = FabricSpec.model_validate(switched(**line, options={"bulk": False}))
    switch = build_fabric(spec).optical_switches["ocs0"]
    assert switch.is_elsewhere
    assert not switch.has_datapath
    assert (switch.driver, switch.profile) == ("acme", "acme-1")
    assert switch.access == {
        "address": "10.0.0.5:3083",
        "username": "ann",
        "password_env": "OCS0",
        "bulk": False,
    }


@pytest.mark.usefixtures("kinds")
def test_a_bridge_is_no_process_with_light_paths() -> None:
    switch = build_fabric(
        FabricSpec.model_validate(switched(driver="panel"))
    ).optical_switches["ocs0"]
    assert switch.is_bridge
    assert not switch.has_datapath
    # It moves no light itself: it can be any product.
    FabricSpec.model_validate(switched(driver="panel", profile="acme-1"))


@pytest.mark.parametrize(
    ("switch", "named"),
    [
        ({"driver": "acme-2"}, "driver: acme-2; there are scpi,"),
        ({"driver": "acme-2", "address": "h:1"}, "driver: acme-2; there are scpi,"),
        ({"driver": "real"}, "driver: real is not emulated: give the address"),
        (
            {"driver": "acme", "profile": "lcos"},
            "profile: lcos; the driver acme goes with acme-1, mems",
        ),
        ({"profile": "acme-1"}, "profile: acme-1; the driver scpi goes with "),
        ({"profile": "none"}, "profile: none; the driver scpi goes with "),
        (
            {"driver": "panel", "address": "10.0.0.5:6653"},
            "address: panel has none; its switch connects",
        ),
        (
            {"driver": "panel", "dark": "1 ms"},
            "dark: a bridge of Open vSwitch .driver: panel. is never dark",
        ),
        (
            {"driver": "panel", "loss_db": 1},
            "loss_db: a bridge of Open vSwitch .driver: panel. has no light",
        ),
        ({"driver": "acme", "address": "10.0.0.5"}, "address\n.*this is not host:port"),
        (
            {"driver": "acme", "address": "10.0.0.5:65536"},
            "address\n.*this is not host:port",
        ),
        (
            {"driver": "acme", "username": "ann"},
            "username: goes with an address; an emulated switch",
        ),
        (
            {"address": "10.0.0.5:5025", "username": "ann"},
            "username: the driver scpi has no login",
        ),
        (
            {"driver": "acme", "address": "h:1", "password_env": "X"},
            "password_env: whose\\?",
        ),
        (
            {
                "driver": "acme",
                "address": "h:1",
                "username": "a",
                "password_env": "X",
                "password_file": "/x",
            },
            "password_file: there is a password_env too",
        ),
        (
            {"driver": "acme", "address": "h:1", "username": "a", "password_file": "x"},
            "password_file\n",
        ),
        ({"driver": "acme", "address": "h:1", "password": "x"}, "ocs0.password\n"),
        (
            {"driver": "acme", "address": "h:1", "options": {"password": "x"}},
            "options.password: belongs",
        ),
        (
            {"driver": "acme", "options": {"group": "x"}},
            "options.group: .* it has bulk, tls",
        ),
        (
            {"driver": "acme", "options": {"tls": True}},
            "options.tls: goes with an address",
        ),
    ],
)
@pytest.mark.usefixtures("kinds")
def test_a_switch_that_cannot_be_driven_is_named(
    switch: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        FabricSpec.model_validate(switched(**switch))

"""SONiC's optical switch over gNMI: pygnmi's own client by the design documents alone, and the driver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pygnmi", reason="the extra gnmi is not installed")
pytest.importorskip("h2", reason="the extra gnmi is not installed")

from pygnmi.client import gNMIclient, gNMIException
from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import ProtocolError
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.gnmi.gnmi_client import path_of
from ringlight.extensions.sonic.sonic_gnmi import parse_table
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import CrossConnectState, Mode
from tests.drivers import converge
from tests.optical_model import ModelSwitch

SIZE = 8
USER, PASSWORD = "admin", "secret"
YANG, DB = (
    "/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT",
    "sonic-db:/CONFIG_DB/localhost/OCS_CROSS_CONNECT",
)
STATE_DB = "sonic-db:/STATE_DB/localhost"


@pytest.fixture(scope="module")
def switch() -> Iterator[ModelSwitch]:
    with ModelSwitch("sonic-ocs-gnmi", SIZE, users={USER: PASSWORD}) as made:
        yield made


@pytest.fixture
def client(switch: ModelSwitch) -> Iterator[Any]:
    with gNMIclient(("127.0.0.1", switch.port), USER, PASSWORD, insecure=True) as made:
        made.set(delete=[DB])
        yield made


def told(answer: Any) -> list[Any]:
    """Values of an answer to a Get."""
    return [one["val"] for note in answer["notification"] for one in note["update"]]


def row(name: str) -> dict[str, str]:
    a_side, b_side = name.split("-")
    return {"cross_connect_id": name, "a_side": a_side, "b_side": b_side}


def fields(*names: str) -> dict[str, Any]:
    """A table of CONFIG_DB."""
    return {
        name: {"a_side": row(name)["a_side"], "b_side": row(name)["b_side"]}
        for name in names
    }


def test_the_models_by_translib(client: Any) -> None:
    """doc/gNMI_usage_examples.md: target OC-YANG, values with the name of their node."""
    listed = {"OCS_CROSS_CONNECT_LIST": [row("1A-1B"), row("2A-5B")]}
    done = client.set(
        update=[(YANG, {"sonic-ocs:OCS_CROSS_CONNECT": listed})], target="OC-YANG"
    )
    assert [one["op"] for one in done["response"]] == ["UPDATE"]
    (value,) = told(client.get(path=[YANG], target="OC-YANG", encoding="json_ietf"))
    assert value == {"sonic-ocs:OCS_CROSS_CONNECT": listed}
    entry = f"{YANG}/OCS_CROSS_CONNECT_LIST[cross_connect_id=2A-5B]"
    (value,) = told(client.get(path=[entry], encoding="json_ietf"))
    assert value == {"sonic-ocs:OCS_CROSS_CONNECT_LIST": [row("2A-5B")]}
    (value,) = told(client.get(path=[f"{entry}/b_side"], encoding="json_ietf"))
    assert value == {"sonic-ocs:b_side": "5B"}
    ports = (
        "/sonic-ocs-states:sonic-ocs-states/OCS_PORT/OCS_PORT_LIST[simplex_port_id=5B]"
    )
    (value,) = told(client.get(path=[ports], encoding="json_ietf"))
    assert value["sonic-ocs-states:OCS_PORT_LIST"][0] == {
        "simplex_port_id": "5B",
        "connector_type": "LC UPC",
        "connector_pin": "1",
        "target_simplex_port_id": "2A",
        "status": "tuned",
    }
    client.set(
        delete=[entry],
        replace=[(f"{YANG}/OCS_CROSS_CONNECT_LIST[cross_connect_id=3A-5B]", {})],
    )
    assert told(client.get(path=[DB])) == [fields("1A-1B", "3A-5B")]
    states = told(
        client.get(path=["/sonic-ocs:sonic-ocs/OCS_PORT"], encoding="json_ietf")
    )
    assert len(states[0]["sonic-ocs:OCS_PORT"]["OCS_PORT_LIST"]) == 2 * SIZE


def test_the_databases(client: Any, switch: ModelSwitch) -> None:
    """The design document's tables, by the paths of sonic-mgmt's tests of gNMI."""
    client.set(update=[(DB, fields("1A-1B", "2A-5B"))])
    assert switch.cross_connects() == {XC(1, 9), XC(2, 13)}
    assert told(client.get(path=[f"{DB}/2A-5B"])) == [{"a_side": "2A", "b_side": "5B"}]
    assert told(client.get(path=[f"{DB}/2A-5B/b_side"])) == ["5B"]
    (ports,) = told(client.get(path=[f"{STATE_DB}/OCS_PORT"]))
    assert ports["1A"] == {
        "connector_type": "LC UPC",
        "connector_pin": "2",
        "target_simplex_port_id": "1B",
        "status": "tuned",
    }
    assert told(
        client.get(path=[f"{STATE_DB}/OCS_CROSS_CONNECT/1A-1B/a_side_status"])
    ) == ["tuned"]
    loss = f"{STATE_DB}/OCS_FACTORY_INSERTION_LOSS"
    (value,) = told(client.get(path=[f"{loss}/1A-2B|228.850|28.00"]))
    assert value == {"loss_dB": "0.00", "accuracy_dB": "0.10"}
    assert len(told(client.get(path=[loss]))[0]) == SIZE * SIZE
    # In one Set: deletions, replacements, updates, and light moves once.
    moves = sum(switch.device.mirrors.moves.values())
    client.set(
        delete=[f"{DB}/1A-1B"],
        update=[(f"{DB}/1A-2B", {}), (f"{DB}/3A-1B", fields("3A-1B")["3A-1B"])],
    )
    assert switch.cross_connects() == {XC(1, 10), XC(2, 13), XC(3, 9)}
    assert sum(switch.device.mirrors.moves.values()) == moves + 2
    client.set(replace=[(DB, fields("8A-8B"))])
    assert switch.cross_connects() == {XC(8, 16)}
    port = "sonic-db:/CONFIG_DB/localhost/OCS_PORT/8A"
    client.set(update=[(f"{port}/state", '"force_blocked"')])
    assert told(client.get(path=[port])) == [{"state": "force_blocked"}]
    client.set(update=[(f"{port}/state", '"normal"')])


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        (f"{DB}/1A-2B", {}, "FAILED_PRECONDITION"),
        (f"{DB}/1A-2A", {}, "INVALID_ARGUMENT"),
        (f"{DB}/9A-2B", {}, "INVALID_ARGUMENT"),
        (f"{DB}/2A-2B", {"a_side": "3A"}, "INVALID_ARGUMENT"),
        (DB, {"2A-2B": "2B"}, "INVALID_ARGUMENT"),
        (f"{STATE_DB}/OCS_CROSS_CONNECT/2A-2B", {}, "INVALID_ARGUMENT"),
        ("other:/CONFIG_DB/localhost/OCS_CROSS_CONNECT/2A-2B", {}, "INVALID_ARGUMENT"),
        ("sonic-db:/CONFIG_DB/asic0/OCS_CROSS_CONNECT/2A-2B", {}, "INVALID_ARGUMENT"),
        (
            "sonic-db:/CONFIG_DB/localhost/OCS_PORT/1A",
            {"state": "powered_off"},
            "INVALID_ARGUMENT",
        ),
        (
            YANG,
            {"sonic-ocs:OCS_CROSS_CONNECT": {"OCS_CROSS_CONNECT_LIST": [{}]}},
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_what_cannot_be_is_refused_as_a_whole(
    client: Any, path: str, value: Any, status: str
) -> None:
    client.set(update=[(DB, fields("1A-1B"))])
    with pytest.raises(gNMIException) as caught:
        client.set(update=[(f"{DB}/5A-5B", {}), (path, value)])
    assert status in str(caught.value.orig_exc)
    assert told(client.get(path=[DB])) == [fields("1A-1B")]


def test_what_is_not_there(client: Any) -> None:
    for path in (f"{DB}/7A-7B", f"{STATE_DB}/PORT", "/sonic-port:sonic-port"):
        with pytest.raises(gNMIException) as caught:
            client.get(path=[path])
        assert "NOT_FOUND" in str(caught.value.orig_exc)
    assert told(client.get(path=[DB])) == [{}]
    models = {
        one["name"]: one["version"] for one in client.capabilities()["supported_models"]
    }
    assert models == dict.fromkeys(
        ["sonic-ocs", "sonic-ocs-states", "sonic-device_metadata"], "2024-11-21"
    )


@pytest.mark.parametrize("encoding", ["json", "json_ietf", "proto"])
def test_an_empty_list_is_there_in_every_encoding(client: Any, encoding: str) -> None:
    client.set(delete=[DB])
    for path in (
        DB,
        f"{DB}/*",
        YANG,
        f"{YANG}/OCS_CROSS_CONNECT_LIST",
        f"{YANG}/OCS_CROSS_CONNECT_LIST/a_side",
    ):
        found = client.get(path=[path], encoding=encoding)["notification"]
        assert len(found) == 1, path
        assert (path in (DB, YANG) and encoding != "proto") == bool(
            found[0].get("update")
        ), path
    for path in (
        f"{DB}/1A-1B",
        f"{YANG}/OCS_CROSS_CONNECT_LIST[cross_connect_id=1A-1B]",
        f"{YANG}/NOTHING",
    ):
        with pytest.raises(gNMIException) as caught:
            client.get(path=[path], encoding=encoding)
        assert "NOT_FOUND" in str(caught.value.orig_exc)


def test_metadata_and_a_port_by_its_name(client: Any, switch: ModelSwitch) -> None:
    place = "sonic-db:/CONFIG_DB/localhost/DEVICE_METADATA/localhost"
    assert told(client.get(path=[f"{place}/switch_type"])) == ["ocs"]
    assert told(client.get(path=[place]))[0]["type"] == "SonicOCS"
    with pytest.raises(gNMIException) as caught:
        client.set(update=[(f"{place}/switch_type", '"npu"')])
    assert "INVALID_ARGUMENT" in str(caught.value.orig_exc)
    switch.device.fail(13)
    with pytest.raises(gNMIException) as caught:
        client.set(update=[(f"{DB}/4A-5B", {})])
    assert "port 5B has failed" in str(caught.value.orig_exc)
    switch.device.repair(time.monotonic_ns(), 13)


def test_a_subscriber_is_told_of_the_models_and_of_the_databases(client: Any) -> None:
    client.set(update=[(f"{DB}/1A-1B", {})])
    port = (
        "/sonic-ocs-states:sonic-ocs-states/OCS_PORT/OCS_PORT_LIST[simplex_port_id=1B]"
    )
    places = [f"{STATE_DB}/OCS_PORT/1A/status", f"{port}/target_simplex_port_id"]
    wanted = {
        "subscription": [{"path": place} for place in places],
        "mode": "once",
        "encoding": "proto",
    }
    found = list(client.subscribe2(wanted))
    values = [
        one["val"] for note in found for one in note.get("update", {}).get("update", [])
    ]
    assert values == ["tuned", "1A"]
    # A list of leaves, which this client cannot read.
    path = f"{STATE_DB}/OCS_CROSS_CONNECT_PHYSICAL_PATH/1A-1B/physical_path"
    assert told(client.get(path=[path])) == [["1A", "1B"]]


# The driver


@pytest.fixture(params=["yang", "db"])
def driver(
    request: pytest.FixtureRequest, switch: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpticalSwitchDriver]:
    monkeypatch.setenv("SONIC", PASSWORD)
    login = {
        "username": USER,
        "password_env": "SONIC",
        "tls": False,
        "schema": request.param,
    }
    made = make_driver(
        "ocs0", {"driver": "sonic-ocs-gnmi", "address": switch.address} | login, SIZE
    )
    made.open()
    converge(made, (), Mode.REPLACE)
    yield made
    made.close()


def test_both_schemas_do_the_same(
    driver: OpticalSwitchDriver, switch: ModelSwitch
) -> None:
    assert converge(driver, [XC(1, 9), XC(2, 10), XC(3, 11)]).writes == 1
    assert converge(driver, [XC(1, 10), XC(2, 9), XC(3, 11)], Mode.REPLACE).writes == 1
    assert switch.cross_connects() == {XC(1, 10), XC(2, 9), XC(3, 11)}
    assert converge(driver, [XC(1, 12)], delete=[3]).writes == 2
    assert driver.set_port_enabled(1, False).enabled is False
    assert driver.snapshot().cross_connects == dict.fromkeys(
        [XC(1, 12), XC(2, 9)], CrossConnectState.CONNECTED
    )
    assert driver.set_port_enabled(1, True).enabled is True
    assert driver.capabilities().power == frozenset()
    assert driver.factory_loss_db([XC(1, 16), XC(8, 9)]) == {
        XC(1, 16): 0.0,
        XC(8, 9): 0.0,
    }


def test_a_schema_that_there_is_not() -> None:
    entry = {"driver": "sonic-ocs-gnmi", "address": "127.0.0.1:1", "schema": "redis"}
    with pytest.raises(ValueError, match="schema: 'redis' is none of yang, db"):
        make_driver("ocs0", entry, SIZE)


def answered(*updates: tuple[Any, Any]) -> Any:
    """A Get's answer, an update for each path and value."""
    return gnmi.GetResponse(
        notification=[
            gnmi.Notification(
                update=[
                    gnmi.Update(
                        path=path,
                        val=gnmi.TypedValue(json_ietf_val=json.dumps(value).encode()),
                    )
                    for path, value in updates
                ]
            )
        ]
    )


def test_a_table_may_come_row_by_row() -> None:
    """As in the design of SONiC's gNMI interface, section 1.2.1.3."""
    wanted = {
        "OCS_CROSS_CONNECT": {"OCS_CROSS_CONNECT_LIST": [row("1A-2B"), row("2A-1B")]}
    }
    table, key = "OCS_CROSS_CONNECT", "cross_connect_id"
    rows = [
        (path_of(["CONFIG_DB", table, name]), value)
        for name, value in fields("1A-2B", "2A-1B").items()
    ]
    assert parse_table(answered(*rows), table, key) == wanted
    listed = [
        (
            path_of(["sonic-ocs:sonic-ocs", table, (f"{table}_LIST", {key: name})]),
            row(name),
        )
        for name in ("1A-2B", "2A-1B")
    ]
    assert parse_table(answered(*listed), table, key) == wanted
    assert parse_table(
        answered((path_of(["sonic-ocs:sonic-ocs", table]), {})), table, key
    ) == {table: {f"{table}_LIST": []}}
    for path, value in (
        (path_of(["CONFIG_DB", "PORT"]), {}),
        (path_of(["CONFIG_DB", table]), {"1A-2B": "x"}),
        (path_of(["CONFIG_DB", table, "1A-2B", "a_side"]), "1A"),
        (path_of(["sonic-ocs:sonic-ocs", table, "x", "y"]), "1A"),
    ):
        with pytest.raises(ProtocolError):
            parse_table(answered((path, value)), table, key)

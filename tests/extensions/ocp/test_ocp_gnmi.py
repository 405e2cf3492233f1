"""gNMI of the Open Compute Project's switch: driver, emulated switch, and pygnmi's own client."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pygnmi", reason="the extra gnmi is not installed")
pytest.importorskip("h2", reason="the extra gnmi is not installed")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamReset
from pygnmi.client import gNMIclient, gNMIException
from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    AuthFailed,
    Indeterminate,
    PartialApply,
    ProtocolError,
    Refused,
    StaleRevision,
    Unreachable,
)
from ringlight.controller.optical.model import PortStatus
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.gnmi.grpc_calls import MAX_MESSAGE_BYTES, Call, Calls
from ringlight.extensions.ocp.emulation.ocp_gnmi import OcpSession
from ringlight.extensions.ocp.emulation.ocp_tree import (
    Names,
    OcpTreeChange,
    Step,
    TreeError,
)
from ringlight.extensions.ocp.ocp_gnmi import (
    OcpGroup,
    OcpPort,
    number_ports,
    parse_connections,
    parse_groups,
    parse_identity,
    parse_ports,
    read_tree,
)
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import CrossConnectState, Mode, PortState
from ringlight.fabric.optical_profiles import IDEAL, MEMS
from ringlight.testbed.emulation.optical.commands import Rewire, SetAdmin
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.drivers import converge
from tests.optical_model import ModelSwitch

SIZE = 16
USER, PASSWORD = "operator", "correct horse"
SECONDS_320 = 1.0
X = "/connections/port-connection[name=x]"


@pytest.fixture
def switch() -> Iterator[ModelSwitch]:
    with ModelSwitch("ocp-gnmi", SIZE, users={USER: PASSWORD}) as made:
        yield made


def make(
    address: str, monkeypatch: pytest.MonkeyPatch, size: int = SIZE, **more: object
) -> OpticalSwitchDriver:
    monkeypatch.setenv("GNMI_PASSWORD", PASSWORD)
    entry = {
        "driver": "ocp-gnmi",
        "address": address,
        "username": USER,
        "password_env": "GNMI_PASSWORD",
    }
    return make_driver("ocs0", entry | {"tls": False} | more, size)


@pytest.fixture
def driver(
    switch: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpticalSwitchDriver]:
    made = make(switch.address, monkeypatch)
    made.open()
    yield made
    made.close()


@pytest.fixture
def client(switch: ModelSwitch) -> Iterator[Any]:
    """pygnmi's own."""
    with gNMIclient(("127.0.0.1", switch.port), USER, PASSWORD, insecure=True) as made:
        yield made


def entry(name: str, a: int, b: int) -> tuple[str, dict[str, Any]]:
    ends = {
        "name": name,
        "input-port-name": f"port-{a}",
        "output-port-name": f"port-{b}",
    }
    return f"/connections/port-connection[name={name}]", {"name": name, "config": ends}


# Values


def told(
    name: str = "x",
    status: str = "CONNECTED",
    a: str = "p1",
    b: str = "p9",
    **more: object,
) -> dict[str, Any]:
    ends = {"input-port-name": a, "output-port-name": b}
    return {
        "name": name,
        "config": {"name": name, **ends},
        "state": {**ends, "status": status, **more},
    }


def test_connections_with_and_without_module_names() -> None:
    plain = {
        "port-connection": [
            told(),
            told("y", "INVALID", "p2", "p9", **{"status-reason": "busy"}),
        ]
    }
    ietf = {
        f"ocp-ocs-optical-switch-connections:{name}": value
        for name, value in plain.items()
    }
    assert parse_connections(plain) == parse_connections(ietf)
    first, second = parse_connections(plain)
    assert (first.state, second.state, second.reason) == (
        CrossConnectState.CONNECTED,
        CrossConnectState.INVALID,
        "busy",
    )
    assert parse_connections({}) == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "port-connection",
                    "component",
                    "name",
                    "config",
                    "state",
                    "status",
                    "ocp-ocs-port",
                    "index",
                    "enabled",
                    "group",
                    "type",
                    "port-groups",
                    "direction",
                    "connection-groups",
                    "peer-name",
                    "input-port-name",
                    "input-optical-power",
                    "x:name",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@pytest.mark.fuzz
@given(
    st.dictionaries(
        st.sampled_from(["port-connection", "component", "state", "config"]), _JSON
    )
)
def test_any_json_is_values_or_a_protocol_error(value: dict[str, Any]) -> None:
    for parse in (parse_ports, parse_groups, parse_connections, parse_identity):
        with contextlib.suppress(ProtocolError):
            parse(value)


@pytest.mark.fuzz
@given(st.binary(), st.booleans())
def test_any_answer_is_a_tree_or_a_protocol_error(value: bytes, path: bool) -> None:
    update = gnmi.Update(val=gnmi.TypedValue(json_ietf_val=value))
    if path:
        update.path.CopyFrom(gnmi.Path(elem=[gnmi.PathElem(name="connections")]))
    response = gnmi.GetResponse(notification=[gnmi.Notification(update=[update])])
    with contextlib.suppress(ProtocolError):
        assert set(read_tree(response, ["connections"])) == {"connections"}
    with pytest.raises(ProtocolError):
        read_tree(gnmi.GetResponse(), ["connections"])


def ports(*rows: tuple[str, str, int]) -> dict[str, OcpPort]:
    status = PortStatus(PortState.BLOCKED)
    return {name: OcpPort(name, group, index, status) for name, group, index in rows}


def test_ports_are_numbered_by_direction_and_index() -> None:
    sides = {
        "in": OcpGroup("in", True, False, frozenset({"out"})),
        "out": OcpGroup("out", False, True, frozenset({"in"})),
    }
    rows = ports(("b", "in", 7), ("a", "in", 12), ("c", "out", 1), ("d", "out", 3))
    numbering = number_ports(rows, sides, 2)
    assert (numbering.inputs, numbering.outputs, numbering.reach) == (
        ("b", "a"),
        ("c", "d"),
        {},
    )
    assert [numbering.name(port) for port in (1, 2, 3, 4)] == ["b", "a", "c", "d"]
    with pytest.raises(ProtocolError, match="the switch is 2x2, the fabric says 3x3"):
        number_ports(rows, sides, 3)

    both = {"g": OcpGroup("g", True, True, frozenset({"g"}))}
    any_rows = ports(*((f"p{i}", "g", i) for i in (1, 2, 3, 4)))
    assert number_ports(any_rows, both, 2).outputs == ("p3", "p4")
    listed = number_ports(any_rows, both, 2, ["p4", "p1"], ["p2", "p3"])
    assert (listed.inputs, listed.outputs) == (("p4", "p1"), ("p2", "p3"))
    with pytest.raises(ProtocolError, match="both ways"):
        number_ports(any_rows, both, 1)
    with pytest.raises(ProtocolError, match="no port 'q'"):
        number_ports(any_rows, both, 1, ["q"], ["p1"])


def test_groups_that_cannot_be_joined_limit_the_reach() -> None:
    sides = {
        "A1": OcpGroup("A1", True, False, frozenset({"B1"})),
        "A2": OcpGroup("A2", True, False, frozenset({"B2"})),
        "B1": OcpGroup("B1", False, True, frozenset({"A1"})),
        "B2": OcpGroup("B2", False, True, frozenset({"A2"})),
    }
    rows = ports(("a", "A1", 1), ("b", "A2", 2), ("c", "B1", 3), ("d", "B2", 4))
    assert number_ports(rows, sides, 2).reach == {1: frozenset({3}), 2: frozenset({4})}


# The driver with the emulated switch


def test_changes_and_what_stands(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    who = driver.open()
    assert (who.vendor, who.serial, who.version) == ("Ringlight", "ocs0", "0.8.0")
    converge(driver, [XC(1, 17, name="red"), XC(2, 18), XC(3, 19)])
    assert switch.cross_connects() == {XC(1, 17), XC(2, 18), XC(3, 19)}
    assert {xc.name for xc in driver.snapshot().cross_connects} == {"red", None}
    assert converge(driver, [XC(1, 18), XC(2, 17)]).writes == 2
    assert converge(driver, [XC(1, 17), XC(3, 19)], Mode.REPLACE).writes == 1
    assert (
        switch.cross_connects()
        == {XC(1, 17), XC(3, 19)}
        == set(driver.snapshot().cross_connects)
    )
    assert not converge(driver, [XC(1, 17)]).plan
    converge(driver, (), Mode.REPLACE)
    assert switch.cross_connects() == set()


def test_ports_power_and_alarms(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 17), XC(12, 18)])
    assert driver.set_port_enabled(17, False).enabled is False
    assert set(driver.snapshot().cross_connects) == {XC(1, 17), XC(12, 18)}
    assert [a.port for a in driver.alarms() if a.kind == "PORT_DISABLED"] == [17]
    # A connection over a port that is disabled stands; it is not made anew.
    assert not converge(driver, [XC(1, 17)]).plan
    assert driver.set_port_enabled(17, True).enabled is True
    power = driver.power_dbm([1, 17])
    assert all(value is not None for value in power.values())


def test_another_client_s_names_are_kept(
    client: Any, switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    client.set(update=[entry("rl-2-18", 1, 17), entry("blue", 3, 19)])
    # The name that this one would get is taken, by another one.
    converge(driver, [XC(2, 18)])
    assert switch.cross_connects() == {XC(1, 17), XC(2, 18), XC(3, 19)}
    assert {xc.name for xc in driver.snapshot().cross_connects} >= {"rl-2-18", "blue"}
    converge(driver, [XC(3, 20)])
    converge(driver, [XC(2, 18), XC(1, 17)], Mode.REPLACE)
    told = client.get(path=["/connections"], encoding="json")["notification"][0][
        "update"
    ][0]["val"]
    assert {one["name"] for one in told["port-connection"]} == {"rl-2-18", "rl-2-18'"}


def test_what_another_protocol_has_set(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    with switch._lock:
        switch.device.submit(0, Rewire(((4, 20),)))
    assert set(driver.snapshot().cross_connects) == {XC(4, 20)}
    converge(driver, (), delete=[4])
    assert switch.cross_connects() == set()


def test_a_set_that_is_refused_changes_nothing(
    client: Any, switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    seen = driver.snapshot()
    plan = driver.plan([XC(1, 17), XC(2, 18)], snapshot=seen)
    client.set(update=[entry("x", 9, 18)])
    with pytest.raises((StaleRevision, Refused, PartialApply)):
        driver.apply(plan, seen=seen)
    assert switch.cross_connects() == {XC(9, 18)}


def test_a_login_that_is_wrong_and_a_switch_that_is_not_there(
    switch: ModelSwitch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("WRONG", "not the password")
    stranger = make(switch.address, monkeypatch, password_env="WRONG")
    with pytest.raises(AuthFailed) as caught:
        stranger.open()
    assert "not the password" not in str(caught.value) + caplog.text
    stranger.close()
    with pytest.raises(Unreachable):
        stranger.snapshot()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = make(f"127.0.0.1:{port}", monkeypatch)
    with pytest.raises(Unreachable):
        nobody.open(timeout_s=2)
    nobody.close()


def test_a_dropped_connection_is_made_anew(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 17)])
    switch.drop()
    assert set(driver.snapshot().cross_connects) == {XC(1, 17)}
    converge(driver, [XC(1, 18)])
    assert switch.cross_connects() == {XC(1, 18)}


def test_an_answer_that_is_lost_is_an_unknown_outcome(
    switch: ModelSwitch, driver: OpticalSwitchDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = driver.plan([XC(1, 17)])
    finish = OcpSession._finish_settings

    def lost(session: OcpSession) -> None:
        if any(setting.ticket.done for setting in session._settings):
            session._calls.over = True
        else:
            finish(session)

    monkeypatch.setattr(OcpSession, "_finish_settings", lost)
    with pytest.raises(Indeterminate):
        driver.apply(plan)
    monkeypatch.setattr(OcpSession, "_finish_settings", finish)
    assert (
        set(driver.snapshot().cross_connects) == {XC(1, 17)} == switch.cross_connects()
    )
    with pytest.raises(StaleRevision):
        driver.apply(plan)


def test_light_that_is_still_being_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelSwitch("ocp-gnmi", 8, profile=MEMS) as slow:
        driver = make(slow.address, monkeypatch, size=8, profile=MEMS.declared())
        driver.open()
        result = driver.apply(driver.plan([XC(1, 9)]), settle=False)
        assert result.snapshot.state(XC(1, 9)) is CrossConnectState.PENDING_CONNECTION
        assert (
            converge(driver, [XC(2, 10)]).snapshot.state(XC(2, 10))
            is CrossConnectState.CONNECTED
        )
        driver.close()


def test_an_invalid_connection_is_read_and_can_be_removed(
    switch: ModelSwitch, driver: OpticalSwitchDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that cannot look at all of a Set beforehand keeps what it could not make, as INVALID."""
    converge(driver, [XC(1, 17)])
    get = driver._get  # type: ignore[attr-defined]

    def with_invalid(tops: Any, deadline: Any) -> Any:
        answer = get(tops, deadline)
        if "connections" in answer:
            entries = next(iter(answer["connections"].values()))
            entries.append(
                told("bad", "INVALID", "port-2", "port-17", **{"status-reason": "busy"})
            )
        return answer

    monkeypatch.setattr(driver, "_get", with_invalid)
    seen = driver.snapshot()
    assert seen.state(XC(2, 17)) is CrossConnectState.INVALID
    assert driver.plan([XC(1, 17)], Mode.REPLACE, snapshot=seen).remove == (XC(2, 17),)


def test_why_a_connection_failed_is_logged_once(
    switch: ModelSwitch,
    driver: OpticalSwitchDriver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    reasons = iter(("busy", "busy", "stuck", "stuck"))
    get = driver._get  # type: ignore[attr-defined]

    def with_failed(tops: Any, deadline: Any) -> Any:
        answer = get(tops, deadline)
        if "connections" in answer:
            entry = told(
                "bad", "FAILED", "port-2", "port-17", **{"status-reason": next(reasons)}
            )
            answer["connections"] = {"port-connection": [entry]}
        return answer

    monkeypatch.setattr(driver, "_get", with_failed)
    for _ in range(4):
        driver.snapshot()
    said = [
        record.getMessage()
        for record in caplog.records
        if "connection bad" in record.getMessage()
    ]
    assert [one.rpartition(": ")[2] for one in said] == ["busy", "stuck"]


@pytest.mark.parametrize("leaf", ["index", "input-optical-power"])
def test_a_number_that_is_too_large_is_a_wrong_reply(leaf: str) -> None:
    state = {"index": 1, leaf: 10**400}
    with pytest.raises(ProtocolError, match="is not a number"):
        parse_ports(
            {"component": [{"name": "port-1", "ocp-ocs-port": {"state": state}}]}
        )


def test_close_leaves_nothing(
    switch: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(switch.address, monkeypatch).open()
    before = threading.active_count()
    for _ in range(5):
        one = make(switch.address, monkeypatch)
        one.open()
        one.close()
        one.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_one_permutation_of_320_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is for an idle machine; three times that for this one."""
    size, dice = 320, random.Random(1)
    with ModelSwitch("ocp-gnmi", size) as large:
        driver = make(large.address, monkeypatch, size=size)
        driver.open()
        egresses = list(range(size + 1, 2 * size + 1))
        for mode in (Mode.UPDATE, Mode.UPDATE, Mode.REPLACE):
            dice.shuffle(egresses)
            wanted = {XC(i, egress) for i, egress in enumerate(egresses, start=1)}
            started = time.monotonic()
            result = converge(driver, wanted, mode)
            took_s = time.monotonic() - started
            assert large.cross_connects() == wanted
            logging.info(
                "%d cross-connects, %s: %.3f s, %d writes",
                size,
                mode,
                took_s,
                result.writes,
            )
        assert result.writes == 1
        assert took_s < 3 * SECONDS_320
        driver.close()


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for ``switch.example``, and its key."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *(
                "-keyout",
                place / "key",
                "-out",
                place / "cert",
                "-days",
                "2",
                "-subj",
                "/CN=switch.example",
            ),
            *("-addext", "subjectAltName=DNS:switch.example"),
        ],
        check=True,
        capture_output=True,
    )
    return place / "cert", place / "key"


@pytest.fixture
def behind_tls(switch: ModelSwitch, certificate: tuple[Path, Path]) -> Iterator[str]:
    """The address of the switch behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                outer = context.wrap_socket(plain, server_side=True)
                inner = socket.create_connection(("127.0.0.1", switch.port))
                for pair in ((outer, inner), (inner, outer)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_the_switch_s_certificate_is_verified(
    behind_tls: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    good: dict[str, object] = {
        "tls": True,
        "ca_file": str(certificate[0]),
        "server_name": "switch.example",
    }
    friend = make(behind_tls, monkeypatch, **good)
    friend.open()
    converge(friend, [XC(1, 17)])
    friend.close()
    # By default: TLS, the system's authorities, the name that was called.
    monkeypatch.setenv("GNMI_PASSWORD", PASSWORD)
    for entry in (
        {"tls": True},
        {"tls": True, "ca_file": str(certificate[0])},
        good | {"server_name": "another.example"},
        good | {"ca_file": "/no/such/file"},
    ):
        stranger = make(behind_tls, monkeypatch, **entry)
        with pytest.raises(Unreachable):
            stranger.open(timeout_s=3)
        stranger.close()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"address": "nowhere"}, "address"),
        ({"tls": "yes"}, "tls"),
        ({"cert_file": "/x"}, "key_file"),
        ({"inputs": ["a"]}, "inputs"),
        ({"inputs": "a", "outputs": "b"}, "inputs"),
        ({"inputs": ["a"] * SIZE, "outputs": ["a"] * SIZE}, "outputs"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(
    more: dict[str, object], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=f"optical switch ocs0: {key}: "):
        make(str(more.pop("address", "h:1")), monkeypatch, **more)


# The emulated switch with pygnmi's own client


def test_pygnmi_reads(client: Any) -> None:
    models = {
        one["name"]: one["version"] for one in client.capabilities()["supported_models"]
    }
    assert models["ocp-ocs-optical-switch-connections"] == "0.8.0"
    answer = client.get(path=["/optical-switch/state"], encoding="json_ietf")
    answer = answer["notification"][0]["update"][0]["val"]
    groups = answer["ocp-ocs-optical-switch:port-groups"]
    assert {group["name"]: group["direction"] for group in groups} == {
        "inputs": "INPUT-ONLY",
        "outputs": "OUTPUT-ONLY",
    }
    assert answer["ocp-ocs-optical-switch:bidirectional"] is False
    update = client.get(
        path=["/components/component[name=*]/ocp-ocs-port/state/index"],
        encoding="proto",
    )
    assert [one["val"] for one in update["notification"][0]["update"]] == list(
        range(1, 2 * SIZE + 1)
    )
    one = client.get(
        path=["/components/component[name=port-3]"],
        encoding="json_ietf",
        datatype="state",
    )
    value = one["notification"][0]["update"][0]["val"]
    port = value["ocp-ocs-optical-switch-port:ocp-ocs-port"]
    assert "config" not in port
    assert isinstance(port["state"]["input-optical-power"], str)
    assert port["state"]["counters"]["total-error-count"] == "0"
    for path in ("/components/component[name=port-999]", "/nothing"):
        with pytest.raises(gNMIException, match="is not there"):
            client.get(path=[path])


def test_pygnmi_swaps_in_one_set_and_what_stays_is_untouched(
    client: Any, switch: ModelSwitch
) -> None:
    client.set(update=[entry("a", 1, 17), entry("b", 2, 18), entry("c", 3, 19)])
    since = switch.device.mirrors._lit[3, None]
    client.set(
        delete=[entry("a", 0, 0)[0]],
        update=[entry("b", 2, 17), entry("d", 1, 18), entry("c", 3, 19)],
    )
    assert switch.cross_connects() == {XC(2, 17), XC(1, 18), XC(3, 19)}
    assert switch.device.mirrors._lit[3, None] is since
    # Another name for the same light: nothing moves.
    client.set(delete=[entry("c", 0, 0)[0]], update=[entry("e", 3, 19)])
    assert switch.device.mirrors._lit[3, None] is since
    client.set(replace=[("/connections", {"port-connection": [entry("e", 3, 19)[1]]})])
    assert switch.cross_connects() == {XC(3, 19)}
    assert switch.device.mirrors._lit[3, None] is since
    client.set(delete=["/connections/port-connection[name=nobody]"])
    client.set(delete=["/connections"])
    assert switch.cross_connects() == set()


def test_pygnmi_says_what_a_start_does(client: Any, switch: ModelSwitch) -> None:
    for recovery in ("REMOVE", "RESTORE", "MAINTAIN"):
        client.set(
            update=[("/optical-switch/config", {"cold-boot-recovery": recovery})]
        )
        assert switch.device.recovery.name == recovery
        answer = client.get(
            path=["/optical-switch/state/cold-boot-recovery"], encoding="json"
        )
        assert answer["notification"][0]["update"][0]["val"] == recovery


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"update": [entry("x", 1, 17), entry("y", 3, 17)]},
            "port-17 is wanted by both x and y",
        ),
        (
            {"update": [entry("x", 1, 17), entry("y", 5, 18)]},
            "port-18 is wanted by both kept and y",
        ),
        ({"update": [entry("x", 1, 2)]}, "port-2 is an input"),
        ({"update": [entry("x", 17, 18)]}, "port-17 is an output"),
        ({"update": [entry("x", 1, 999)]}, "there is no port 'port-999'"),
        ({"update": [(f"{X}/config", {"input-port-name": "port-1"})]}, "lacks one"),
        ({"update": [(f"{X}/config", {"name": "y"})]}, "its name is 'y' inside"),
        ({"update": [(f"{X}/state", {"status": "CONNECTED"})]}, "cannot be set"),
        (
            {"update": [("/optical-switch/config", {"bidirectional": True})]},
            "can do False only",
        ),
        (
            {"update": [("/optical-switch/config", {"cold-boot-recovery": "COLD"})]},
            "'COLD' is none of MAINTAIN",
        ),
        ({"delete": ["/connections/port-connection[name=kept]/config"]}, "as a whole"),
        ({"delete": ["/components/component[name=port-1]"]}, "cannot be deleted"),
        (
            {
                "update": [
                    entry("x", 1, 17),
                    (
                        "/components/component[name=port-9]/ocp-ocs-port/config",
                        {"enabled": False},
                    ),
                ]
            },
            "not both",
        ),
    ],
)
def test_a_set_with_one_bad_part_is_refused_as_a_whole(
    client: Any, switch: ModelSwitch, change: dict[str, Any], words: str
) -> None:
    client.set(update=[entry("kept", 2, 18)])
    good = entry("good", 8, 24)
    with pytest.raises(gNMIException, match=words):
        client.set(**{**change, "update": [good, *change.get("update", [])]})
    assert switch.cross_connects() == {XC(2, 18)}


def test_a_port_that_is_disabled_or_broken(client: Any, switch: ModelSwitch) -> None:
    client.set(update=[entry("x", 1, 17)])
    client.set(
        update=[
            ("/components/component[name=port-17]/ocp-ocs-port/config/enabled", False)
        ]
    )
    state = client.get(
        path=["/connections/port-connection[name=x]/state"], encoding="json"
    )
    value = state["notification"][0]["update"][0]["val"]
    assert (value["status"], value["status-reason"]) == (
        "FAILED",
        "port-17 is disabled",
    )
    with pytest.raises(gNMIException, match="port 17 is disabled"):
        client.set(delete=["/connections"], update=[entry("y", 2, 17)])
    assert switch.cross_connects() == {XC(1, 17)}
    client.set(
        update=[
            (
                "/components/component[name=port-17]/ocp-ocs-port/config",
                {"alias": "rack 4"},
            )
        ]
    )
    assert switch.device.label(17) == "rack 4"
    with switch._lock:
        switch.device.fail(5)
    with pytest.raises(gNMIException, match="port 5 has failed"):
        client.set(update=[entry("z", 5, 20)])


@pytest.mark.parametrize(
    "value",
    [
        {"\ud800": 1},
        {"component": [{"name": "\ud800", "config": {"name": "x"}}]},
        {
            "component": [
                {"name": "port-1", "ocp-ocs-port": {"config": {"alias": "\ud800"}}}
            ]
        },
    ],
)
def test_what_json_can_write_and_no_text_is_refused(
    client: Any, value: dict[str, Any]
) -> None:
    with pytest.raises(gNMIException, match="half of a character"):
        client.set(update=[("/components", value)])
    assert client.capabilities()["gnmi_version"] == "0.8.0"


def test_pygnmi_without_the_password(switch: ModelSwitch) -> None:
    with (
        pytest.raises(gNMIException, match="user name and password"),
        gNMIclient(("127.0.0.1", switch.port), USER, "guess", insecure=True) as client,
    ):
        client.get(path=["/connections"])


def test_pygnmi_is_told_of_changes(client: Any, switch: ModelSwitch) -> None:
    stream = client.subscribe_stream(
        {
            "subscription": [{"path": "/connections", "mode": "on_change"}],
            "mode": "stream",
            "encoding": "json",
        }
    )
    try:
        assert stream.get_update(timeout=5)["sync_response"]
        client.set(update=[entry("w", 7, 21)])
        news = stream.get_update(timeout=5)["update"]["update"]
        values = {one["path"]: one["val"] for one in news}
        assert values["connections/port-connection[name=w]/state/status"] == "CONNECTED"
        with switch._lock:
            switch.device.submit(0, SetAdmin((21,), False))
        news = stream.get_update(timeout=5)["update"]["update"]
        assert {one["val"] for one in news} == {"FAILED", "port-21 is disabled"}
        client.set(delete=["/connections/port-connection[name=w]"])
        gone = stream.get_update(timeout=5)["update"]["delete"]
        assert any("name=w" in one["path"] for one in gone)
    finally:
        stream.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # its own thread, closed
def test_pygnmi_subscribes_once_and_polls(client: Any) -> None:
    client.set(update=[entry("w", 7, 21)])
    path = "/connections/port-connection[name=w]/state/status"
    wanted = {"subscription": [{"path": path}], "encoding": "json"}
    found = list(client.subscribe2({**wanted, "mode": "once"}))
    assert any(
        one.get("update", {}).get("update", [{}])[0].get("val") == "CONNECTED"
        for one in found
    )
    poll = client.subscribe_poll({**wanted, "mode": "poll"})
    try:
        for _ in range(2):
            assert poll.get_update(timeout=5)
    finally:
        poll.close()


# Bytes


def exchange(pieces: list[bytes]) -> tuple[bytes, OcpSession]:
    session = OcpSession(Switch("ocs0", OpticalDevice(4, IDEAL, seed=1)))
    out = b""
    for piece in pieces:
        session.feed(piece)
        session._device.advance(1)
        out += session.advance(1)
    session._device.advance(1)
    return out + session.advance(1), session


@pytest.fixture(scope="module")
def conversation() -> bytes:
    """What a client sends that reads, writes and subscribes."""
    with ModelSwitch("ocp-gnmi", 4) as recorded:
        with gNMIclient(("127.0.0.1", recorded.port), insecure=True) as client:
            client.set(update=[entry("x", 1, 5)])
            client.get(path=["/connections"])
            list(
                client.subscribe2(
                    {"subscription": [{"path": "/connections"}], "mode": "once"}
                )
            )
        return bytes(recorded.heard)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=60,
)
@pytest.mark.fuzz
@given(data=st.data())
def test_how_bytes_are_split_makes_no_difference(
    conversation: bytes, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(conversation)), max_size=6)))
    pieces = [
        conversation[a:b]
        for a, b in zip([0, *cuts], [*cuts, len(conversation)], strict=True)
    ]
    _, session = exchange(pieces)
    assert [tuple(wire)[:2] for wire in session._device.cross_connects()] == [(1, 5)]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=200,
)
@pytest.mark.fuzz
@given(data=st.data())
def test_damaged_bytes_end_in_an_answer_or_the_connection(
    conversation: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(conversation)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.integers(0, 255)
        )
    cut = data.draw(st.integers(0, len(damaged)))
    _, session = exchange([bytes(damaged[:cut]), bytes(damaged[cut:])])
    assert isinstance(session.over, bool)


@pytest.mark.fuzz
@given(st.binary(max_size=400))
def test_garbage_ends_the_connection(data: bytes) -> None:
    calls = Calls()
    calls.feed(b"GET / HTTP/1.1\r\n\r\n" + data)
    assert calls.over
    assert not Calls().feed(b"")


@pytest.mark.fuzz
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["delete", "update"]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=8,
    )
)
def test_a_change_ends_in_a_matching_or_is_refused(
    steps: list[tuple[str, str, int, int]],
) -> None:
    device = OpticalDevice(4, IDEAL, seed=1)
    device.submit(0, Rewire(((1, 5), (2, 6))))
    device.advance(1)
    before = set(device.cross_connects())
    change = OcpTreeChange(device, Names(device))
    try:
        for verb, name, a, b in steps:
            path = (Step("connections"), Step("port-connection", (("name", name),)))
            if verb == "delete":
                change.delete(path)
            else:
                change.update(path, json.loads(json.dumps(entry(name, a, b)[1])))
        commands, _, _ = change.commands()
    except TreeError:
        assert set(device.cross_connects()) == before
        return
    tickets = [device.submit(1, command) for command in commands]
    device.advance(2)
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    wanted = {name: (a, b) for verb, name, a, b in steps if verb == "update"}
    for verb, name, _, _ in steps:
        if verb == "delete":
            wanted.pop(name, None)
    standing = {(wire.ingress, wire.egress) for wire in device.cross_connects()}
    assert {(1, 5), (2, 6)} <= standing
    assert standing - {(1, 5), (2, 6)} <= {(a, b) for _, _, a, b in steps}


def test_messages_that_come_at_the_same_time_are_bounded_together() -> None:
    """A client may begin many calls and end none."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    server = Calls()
    server.feed(client.data_to_send())
    client.receive_data(server.take())
    names = [
        (":method", "POST"),
        (":path", "/gnmi.gNMI/Set"),
        (":scheme", "http"),
        (":authority", "x"),
    ]
    half = MAX_MESSAGE_BYTES // 2 + 1
    touched: list[Call] = []
    for stream in (1, 3):
        client.send_headers(stream, [*names, ("content-type", "application/grpc")])
        todo = struct.pack("!BI", 0, MAX_MESSAGE_BYTES) + b"x" * half
        while todo:
            room = min(client.local_flow_control_window(stream), 1 << 14)
            client.send_data(stream, todo[:room])
            todo = todo[room:]
            touched += server.feed(client.data_to_send())
            events = client.receive_data(server.take())
            if any(isinstance(event, StreamReset) for event in events):
                assert stream == 3
                break
        else:
            assert stream == 1
    assert [call.number for call in touched if call.over][:1] == [3]

"""The NETCONF driver: its XML, and what it does with a server that is not ours."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from ncclient import manager

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    Indeterminate,
    OpticalError,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    StaleRevision,
    Unreachable,
)
from ringlight.controller.optical.readings import check_model, port_status
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.polatis.polatis_netconf import (
    BASE,
    MODEL,
    SYSTEM,
    Dialect,
    NetconfDriver,
    add_config,
    choose_dialect,
    parse_identity,
    parse_pairs,
    parse_ports,
    parse_powers,
    parse_system_alarms,
    remove_config,
    replace_config,
)
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import Mode, PortState
from tests.drivers import converge
from tests.extensions.polatis import netconf_server
from tests.extensions.polatis.netconf_server import PASSWORD, USER, NetconfServer

SIZE = 8
NEW, OLD = (
    Dialect(),
    choose_dialect([f"{MODEL}?module=optical-switch&revision=2016-04-22"]),
)


def reply(inside: str) -> str:
    return f'<rpc-reply xmlns="{BASE}" message-id="1"><data>{inside}</data></rpc-reply>'


def crossed(pairs: str, dialect: Dialect = NEW) -> str:
    return reply(f'<cross-connects xmlns="{MODEL}">{pairs}</cross-connects>')


# XML and values


def test_the_revision_chooses_the_names() -> None:
    assert (OLD.pair, OLD.ports, OLD.old) == ("pairs", "ports", True)
    for revision in (
        "?module=optical-switch&revision=2017-08-04",
        "?revision=2018-03-22",
        "?module=x",
        "",
    ):
        assert choose_dialect(["urn:x", MODEL + revision]) == NEW
    assert choose_dialect([MODEL, f"{SYSTEM}?revision=2018-01-19"]).alarms
    with pytest.raises(ProtocolError, match="does not announce the model"):
        choose_dialect(
            ["urn:ietf:params:netconf:base:1.1", MODEL + "-2?revision=2018-03-22"]
        )


_TREE = st.recursive(
    st.text("0123456789abc &<-", max_size=6),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["pair", "pairs", "ingress", "egress", "x"]), inner)
    ),
)


@pytest.mark.fuzz
@given(
    st.lists(
        st.tuples(st.integers(1, 999), st.integers(1000, 9999)),
        unique_by=(lambda p: p[0], lambda p: p[1]),
    )
)
@pytest.mark.parametrize("dialect", [NEW, OLD])
def test_what_is_written_is_read_back(
    dialect: Dialect, pairs: list[tuple[int, int]]
) -> None:
    wires = tuple(XC(*pair) for pair in pairs)
    for config, operation in (
        (add_config(wires, dialect), "create"),
        (replace_config(wires, dialect), None),
    ):
        root = etree.fromstring(config)
        found = root.findall(f".//{{{MODEL}}}{dialect.pair}")
        assert [one.get(f"{{{BASE}}}operation") for one in found] == [operation] * len(
            wires
        )
        assert parse_pairs(reply(etree.tostring(root[0]).decode()), dialect) == wires
    gone = etree.fromstring(remove_config(wires, dialect)).findall(
        f".//{{{MODEL}}}ingress"
    )
    assert [int(str(one.text)) for one in gone] == [wire.ingress for wire in wires]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<",
        "<data/>",
        f'<rpc-reply xmlns="{BASE}"/>',
        f'<rpc-reply xmlns="{BASE}"><ok/></rpc-reply>',
        "<rpc-reply><data/></rpc-reply>",
        crossed("<pair><ingress>1</ingress></pair>"),
        crossed("<pair><ingress>1</ingress><egress>-9</egress></pair>"),
        crossed("<pair><ingress>1</ingress><egress>1000000</egress></pair>"),
        crossed("<pair><ingress>1</ingress><egress>\u0661</egress></pair>"),
        crossed("<pairs><ingress>1</ingress><egress>9</egress></pairs>"),
        crossed(
            "<pair><ingress>1</ingress><egress>9</egress><egress>10</egress></pair>"
        ),
        crossed(2 * "<pair><ingress>1</ingress><egress>9</egress></pair>"),
        crossed(
            "".join(
                f"<pair><ingress>{i}</ingress><egress>9</egress></pair>" for i in (1, 2)
            )
        ),
        '<!DOCTYPE x [<!ENTITY a "b">]>'
        + crossed("<pair><ingress>&a;</ingress><egress>9</egress></pair>"),
    ],
)
def test_what_is_no_answer_is_never_taken_for_an_empty_switch(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_pairs(text, NEW)


@pytest.mark.fuzz
@given(
    st.one_of(st.text(), st.binary().map(lambda raw: crossed(raw.decode("latin-1"))))
)
def test_garbage_is_a_protocol_error(text: str) -> None:
    for parse in (
        lambda: parse_pairs(text, NEW),
        lambda: parse_ports(text, OLD),
        lambda: parse_powers(text),
        lambda: parse_identity(text),
        lambda: list(parse_system_alarms(text)),
    ):
        try:
            parse()
        except ProtocolError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.fuzz
@given(_TREE)
def test_wrong_trees_are_a_protocol_error(tree: Any) -> None:
    def built(element: Any, node: Any) -> Any:
        if isinstance(node, str):
            element.text = node
        else:
            for name, child in node:
                built(etree.SubElement(element, f"{{{MODEL}}}{name}"), child)
        return element

    top = built(etree.Element(f"{{{MODEL}}}cross-connects"), tree)
    try:
        wires = parse_pairs(reply(etree.tostring(top).decode()), NEW)
    except ProtocolError:
        return
    assert len({wire.egress for wire in wires}) == len(wires)


def test_ports_and_their_states() -> None:
    ports = "".join(
        f"<port><port-id>{port}</port-id>{status}</port>"
        for port, status in enumerate(
            [
                "<status>ENABLED</status>",
                "<status>DISABLED</status>",
                "<status>FAILED</status>",
                "",
                "<status>NEW</status>",
            ],
            start=1,
        )
    )
    states = parse_ports(
        reply(f'<port-config xmlns="{MODEL}">{ports}</port-config>'), NEW
    )
    told = {port: port_status(word, True) for port, word in states.items()}
    assert [one.state for one in told.values()] == [
        PortState.TUNED,
        PortState.BLOCKED,
        PortState.FAILED,
        PortState.TUNED,
        PortState.UNKNOWN,
    ]
    assert [one.enabled for one in told.values()] == [True, False, True, True, True]


def test_powers_and_alarms() -> None:
    power = "<port><port-id>3</port-id><power>-12.34</power></port><port><port-id>4</port-id></port>"
    assert parse_powers(reply(f'<opm-power xmlns="{MODEL}">{power}</opm-power>')) == {
        3: -12.34
    }
    with pytest.raises(ProtocolError):
        parse_powers(
            reply(
                f'<opm-power xmlns="{MODEL}">{power.replace("-12.34", "inf")}</opm-power>'
            )
        )
    words = "<alarm-time>x</alarm-time><alarm-type>FAN</alarm-type><alarm-message>slow</alarm-message>"
    alarm = f"<alarm>{words}</alarm>"
    (found,) = parse_system_alarms(
        reply(f'<system-alarms xmlns="{SYSTEM}">{alarm}</system-alarms>')
    )
    assert (found.kind, found.text) == ("SWITCH", "FAN slow")


def test_the_size_in_a_model_s_name() -> None:
    check_model("N-VST-8x8-LA1-DMHNV-701", 8)
    check_model("N-VST-16xCC-LA1", 8)
    check_model("something else", 8)
    for model in ("N-VST-512x512-LA1-DMHNV-701", "N-VST-8xCC-LA1", "N-OST-8x16-LA1"):
        with pytest.raises(ProtocolError, match="the fabric says 8x8"):
            check_model(model, 8)


# What is wrong with an entry, and with a peer


def entry(
    address: str, monkeypatch: pytest.MonkeyPatch, **more: object
) -> dict[str, object]:
    monkeypatch.setenv("NETCONF_PASSWORD", PASSWORD)
    told = {
        "driver": "polatis-netconf",
        "address": address,
        "username": USER,
        "password_env": "NETCONF_PASSWORD",
    }
    return told | more


def test_what_is_wrong_with_an_entry_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for more, key in (
        ({"address": "a b"}, "address"),
        ({"address": "a:0"}, "address"),
        ({"username": None, "password_env": None}, "username"),
        ({"verify": "no"}, "verify"),
    ):
        with pytest.raises(ValueError, match=f"optical switch ocs0: {key}: "):
            make_driver("ocs0", entry("h", monkeypatch) | more, SIZE)
    for address in ("h", "h:831", "[::1]:830", "[::1]"):
        assert isinstance(
            make_driver("ocs0", entry(address, monkeypatch), SIZE), NetconfDriver
        )


def test_a_peer_that_says_nothing_is_left_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        driver = make_driver("ocs0", entry(address, monkeypatch, verify=False), SIZE)
        started = time.monotonic()
        with pytest.raises(OpticalError):
            driver.open(timeout_s=0.5)
        assert time.monotonic() - started < 3
        driver.close()


def test_a_host_key_must_be_known_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        driver = make_driver(
            "ocs0",
            entry(address, monkeypatch, known_hosts=str(tmp_path / "none")),
            SIZE,
        )
        with pytest.raises(Unreachable, match="is not in"):
            driver.open()
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


# Against netconfd


@pytest.fixture(params=["candidate", "running", "running-old"])
def server(request: pytest.FixtureRequest) -> Iterator[NetconfServer]:
    if why := netconf_server.missing():
        pytest.skip(why)
    target, _, old = request.param.partition("-")
    made = NetconfServer(2 * SIZE, failed=[2 * SIZE], target=target, old=bool(old))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def driver(
    server: NetconfServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NetconfDriver]:
    made = make_driver(
        "ocs0", entry(server.address, monkeypatch, host_key=server.host_key), SIZE
    )
    assert isinstance(made, NetconfDriver)
    try:
        made.open()
        yield made
    finally:
        made.close()


def other(server: NetconfServer) -> Any:
    """Another client, with its own hands."""
    host, port = server.address.split(":")
    return manager.connect_ssh(
        host=host,
        port=int(port),
        username=USER,
        password=PASSWORD,
        hostkey_verify=False,
        allow_agent=False,
        look_for_keys=False,
    )


def write(server: NetconfServer, config: str) -> None:
    with other(server) as client:
        client.edit_config(config=config, target=server.target)
        if server.target == "candidate":
            client.commit()


def dialect(server: NetconfServer) -> Dialect:
    return OLD if server.old else NEW


def test_changes_and_what_stands(server: NetconfServer, driver: NetconfDriver) -> None:
    assert driver.open().model == "N-VST-8x8-LA1-DMHNV-701"
    converge(driver, [XC(1, 9), XC(2, 10), XC(3, 11)])
    result = converge(driver, [XC(1, 10), XC(2, 9)])
    assert {(r.ingress, r.egress) for r in result.results if r.action == "add"} == {
        (1, 10),
        (2, 9),
    }
    # What is kept is not named in any edit, so nothing can happen to it.
    assert not any("<ingress>3</ingress>" in edit for edit in server.seen[1:])
    converge(driver, [XC(1, 9), XC(3, 11)], Mode.REPLACE)
    assert set(driver.snapshot().cross_connects) == {XC(1, 9), XC(3, 11)}
    with other(server) as client:
        told = client.get_config(
            "running", filter=[f'<cross-connects xmlns="{MODEL}"/>']
        ).xml
    assert set(parse_pairs(told, dialect(server))) == {XC(1, 9), XC(3, 11)}
    assert driver.power_dbm([1, 2]) == {1: -3.25, 2: None}


def test_ports_are_disabled_and_enabled(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    converge(driver, [XC(1, 9)])
    assert driver.set_port_enabled(9, False).enabled is False
    assert [a.port for a in driver.alarms() if a.kind == "PORT_DISABLED"] == [9]
    assert set(driver.snapshot().cross_connects) == {XC(1, 9)}
    assert driver.set_port_enabled(9, True).enabled is True


def test_a_port_is_set_though_the_switch_was_away_when_it_was_opened(
    server: NetconfServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(
        "ocs0", entry(server.address, monkeypatch, host_key=server.host_key), SIZE
    )
    try:
        assert driver.set_port_enabled(9, False).enabled is False
    finally:
        driver.close()


def test_someone_else_was_faster(server: NetconfServer, driver: NetconfDriver) -> None:
    driver.open()
    write(server, add_config([XC(1, 9)], dialect(server)))
    client = driver._client
    for batch in ([XC(2, 10), XC(1, 11)],):
        with pytest.raises(StaleRevision):
            driver._add(batch, Deadline(5))
    with pytest.raises(StaleRevision):
        driver._remove([XC(1, 9), XC(4, 12)], Deadline(5))
    # Half of a batch is not done, and the session goes on.
    assert set(driver.snapshot().cross_connects) == {XC(1, 9)}
    assert client._manager.connected
    converge(driver, [XC(2, 10)])


def test_an_egress_used_twice_is_noticed(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    """The server takes it, as the vendor's model would."""
    write(server, add_config([XC(1, 9), XC(2, 9)], dialect(server)))
    with pytest.raises(ProtocolError, match="connected twice"):
        driver.snapshot()


def test_a_lock_that_another_session_holds(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    with other(server) as client, client.locked(server.target), pytest.raises(Refused):
        converge(driver, [XC(1, 9)])
    converge(driver, [XC(1, 9)])
    with other(server) as client, client.locked(server.target):
        pass  # The driver gave its own back.


def test_an_edit_that_another_client_left_in_the_candidate_is_not_committed(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    if server.target != "candidate":
        pytest.skip("the server has no candidate datastore")
    with other(server) as client:
        client.edit_config(config=add_config([XC(5, 13)], NEW), target="candidate")
        with pytest.raises(Refused):
            converge(driver, [XC(1, 9)])
        client.discard_changes()
    converge(driver, [XC(1, 9)])
    assert set(driver.snapshot().cross_connects) == {XC(1, 9)}


@pytest.mark.parametrize("effect", [True, False])
def test_an_unknown_outcome_is_told(
    server: NetconfServer, driver: NetconfDriver, effect: bool
) -> None:
    plan = driver.plan([XC(1, 9)])
    server.lose = effect
    with pytest.raises(Indeterminate):
        driver.apply(plan)
    assert set(driver.snapshot().cross_connects) == ({XC(1, 9)} if effect else set())
    assert len(server.seen) == 1
    converge(driver, [XC(1, 9)])
    assert len(server.seen) == (1 if effect else 2)


def test_what_the_server_says_between_command_and_answer(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    server.chatter = True
    converge(driver, [XC(1, 9), XC(2, 10)])
    assert set(driver.snapshot().cross_connects) == {XC(1, 9), XC(2, 10)}


def test_a_read_that_is_cut_off_raises(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    converge(driver, [XC(1, 9)])
    server.garble = True
    with pytest.raises(OpticalError):
        driver.snapshot(timeout_s=1)
    server.garble = False
    assert set(driver.snapshot().cross_connects) == {XC(1, 9)}


def test_a_dropped_session_is_made_anew(
    server: NetconfServer, driver: NetconfDriver
) -> None:
    converge(driver, [XC(1, 9)])
    server.drop()
    converge(driver, [XC(1, 10)])
    assert set(driver.snapshot().cross_connects) == {XC(1, 10)}


def test_a_session_s_end_leaves_nothing_open(
    server: NetconfServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even until the garbage collector comes by."""

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    told = entry(server.address, monkeypatch, host_key=server.host_key)

    def comes_and_goes() -> None:
        one = make_driver("ocs0", told, SIZE)
        one.open()
        one.close()

    comes_and_goes()
    gc.collect()
    before, deadline = held(), time.monotonic() + 10
    gc.disable()
    try:
        for _ in range(5):
            comes_and_goes()
        # The server is in this process too, and takes a moment to see that a client has gone.
        while any(now > was for now, was in zip(held(), before, strict=True)):
            assert time.monotonic() < deadline, (
                f"{before} threads and files before, {held()} after"
            )
            time.sleep(0.02)
    finally:
        gc.enable()


def test_a_port_that_has_not_followed_is_told(
    server: NetconfServer, driver: NetconfDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        netconf_server._Conversation, "_carried_out", lambda self, message: [message]
    )
    with pytest.raises((ReadBackMismatch, Refused)):
        driver.set_port_enabled(9, False)


def test_who_is_not_let_in_and_who_is_not_whom_they_seem(
    server: NetconfServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    threads = threading.active_count()
    told = entry(server.address, monkeypatch, host_key=server.host_key)
    monkeypatch.setenv("WRONG", "not the password")
    stranger = make_driver("ocs0", told | {"password_env": "WRONG"}, SIZE)
    with pytest.raises(AuthFailed) as caught:
        stranger.open()
    assert "not the password" not in str(caught.value) + caplog.text
    stranger.close()

    host, port = server.address.split(":")
    known = tmp_path / "known_hosts"
    known.write_text(f"[{host}]:{port} {server.host_key}\n")
    del told["host_key"]
    friend = make_driver("ocs0", told | {"known_hosts": str(known)}, SIZE)
    friend.open()
    friend.close()
    assert PASSWORD not in caplog.text

    again = NetconfServer(2 * SIZE)
    try:
        known.write_text(f"[{host}]:{again.address.split(':')[1]} {server.host_key}\n")
        imposter = make_driver(
            "ocs0", told | {"known_hosts": str(known), "address": again.address}, SIZE
        )
        with pytest.raises(Unreachable, match="another host key"):
            imposter.open()
        careless = make_driver(
            "ocs0", told | {"verify": False, "address": again.address}, SIZE
        )
        careless.open()
        careless.close()
    finally:
        again.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= threads

"""Connections that say nothing: bounded and timed at every door, and named where health is told."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from ringlight.controller import waiting_room
from ringlight.controller.openflow import connections as of_connections
from ringlight.controller.openflow import switch as of_switch
from ringlight.controller.openflow import tls as of_tls
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.waiting_room import SentAway, share_of_descriptors


@pytest.fixture
def plane() -> Iterator[OpenFlowPlane]:
    made = OpenFlowPlane("127.0.0.1", 0)
    made.start()
    yield made
    made.stop()


def call(plane: OpenFlowPlane) -> socket.socket:
    return socket.create_connection(("127.0.0.1", plane.port), timeout=10)


def become_switch(far: socket.socket, dpid: int) -> None:
    """Say what a switch says until its controller takes it for one."""

    def message(kind: int, body: bytes = b"", xid: int = 0) -> bytes:
        return struct.pack("!BBHI", ofp.OFP_VERSION, kind, 8 + len(body), xid) + body

    far.sendall(message(ofp.OFPT_HELLO))
    while True:
        _, kind, length, xid = struct.unpack("!BBHI", far.recv(8, socket.MSG_WAITALL))
        if length > 8:
            far.recv(length - 8, socket.MSG_WAITALL)
        if kind == ofp.OFPT_FEATURES_REQUEST:
            features = struct.pack("!QIBB2xII", dpid, 0, 254, 0, 0, 0)
            far.sendall(message(ofp.OFPT_FEATURES_REPLY, features, xid))
        if kind == ofp.OFPT_MULTIPART_REQUEST:
            far.sendall(
                message(
                    ofp.OFPT_MULTIPART_REPLY,
                    struct.pack("!HH4x", ofp.OFPMP_PORT_DESC, 0),
                    xid,
                )
            )
            return


def has_hung_up(far: socket.socket, wait_s: float) -> bool:
    far.settimeout(wait_s)
    try:
        while far.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_silent_connections_give_way_to_a_switch(
    plane: OpenFlowPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_connections, "_MOST_NEW", 8)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(call(plane)) for _ in range(40)]
        far = stack.enter_context(call(plane))
        become_switch(far, 7)
        plane.wait_for([7], 10.0)
        assert len(plane._connections) <= 9
        assert has_hung_up(silent[0], 1.0)
        assert plane.complaint is not None
        assert plane.complaint.startswith("OpenFlow: too many connections; ")


def test_a_connection_that_is_no_switch_ends(
    plane: OpenFlowPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_switch, "NEW_S", 0.3, raising=False)
    monkeypatch.setattr("os_ken.controller.controller.CONF.socket_timeout", 0.1)
    with call(plane) as silent, call(plane) as far:
        become_switch(far, 8)
        plane.wait_for([8], 10.0)
        assert has_hung_up(silent, 5.0)
        assert not has_hung_up(far, 0.5)
    # One is no trouble.
    assert plane.complaint is None


def test_a_switch_that_answers_nothing_is_gone(
    plane: OpenFlowPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_switch, "ASK_S", 0.2, raising=False)
    monkeypatch.setattr(of_switch, "GONE_S", 1.0, raising=False)
    monkeypatch.setattr("os_ken.controller.controller.CONF.socket_timeout", 0.1)
    with call(plane) as far:
        become_switch(far, 9)
        plane.wait_for([9], 10.0)
        far.settimeout(5.0)
        kinds = [far.recv(8, socket.MSG_WAITALL)[1] for _ in range(2)]
        assert ofp.OFPT_ECHO_REQUEST in kinds
        assert has_hung_up(far, 5.0)


def test_switches_leave_descriptors_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert share_of_descriptors(1024, 4) == 256
    monkeypatch.setattr(of_connections, "_MOST", 16)
    plane = OpenFlowPlane("127.0.0.1", 0)
    plane.start()
    try:
        with contextlib.ExitStack() as stack:
            for number in range(16):
                far = stack.enter_context(call(plane))
                become_switch(far, number + 1)
            plane.wait_for(range(1, 17), 10.0)
            assert has_hung_up(stack.enter_context(call(plane)), 5.0)
            assert plane.complaint is not None
    finally:
        plane.stop()


def test_who_does_not_greet_a_tls_port_of_switches_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_tls, "_MOST_NEW", 8, raising=False)
    monkeypatch.setattr(of_tls, "_HANDSHAKE_S", 2.0)
    plane = OpenFlowPlane("127.0.0.1", 0, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    plane.start()
    try:
        before = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(call(plane)) for _ in range(200)]
            assert has_hung_up(silent[0], 1.0)
            assert (
                int(Path("/proc/self/statm").read_text().split()[1]) * 4096 - before
                < 20 << 20
            )
            assert plane.complaint is not None
            assert has_hung_up(silent[-1], 10.0)
    finally:
        plane.stop()


def test_who_was_sent_away_is_told_of_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_room, "TOLD_S", 0.2)
    room = SentAway("REST")
    assert room.complaint is None
    room.count()
    assert (
        room.complaint
        == "REST: too many connections; 1 were closed for others in the last 0.2 s"
    )
    time.sleep(0.4)
    assert room.complaint is None

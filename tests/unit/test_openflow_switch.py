"""A switch's connection: messages in any pieces, who is told of flows, and what nobody reads."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from ringlight.controller.openflow.errors import NotConnectedError, SwitchTimeoutError
from ringlight.controller.openflow.handshake import MONITOR, Handlers
from ringlight.controller.openflow.switch import Switch


@dataclass
class Site:
    switch: Switch
    #: The switch's own end.
    far: socket.socket
    states: list[str]
    told: list[Any] = field(default_factory=list)

    def hear(
        self, xid: int, kind: int = ofp.OFPT_BARRIER_REPLY, body: bytes = b""
    ) -> bytes:
        return struct.pack("!BBHI", ofp.OFP_VERSION, kind, 8 + len(body), xid) + body

    def update(self, event: int) -> bytes:
        """What a flow monitor says of one change."""
        body = struct.pack(
            "!HH4xIIHHI", ofp.OFPMP_EXPERIMENTER, 0, *MONITOR, 8, event, 7
        )
        return self.hear(0, ofp.OFPT_MULTIPART_REPLY, body)


@pytest.fixture
def site() -> Iterator[Site]:
    states: list[str] = []
    told: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        connection, address = listener.accept()
    handlers = Handlers(lambda *_: None, told.append)
    switch = Switch(
        connection, address, handlers, lambda _, state: states.append(state)
    )
    switch.set_version(ofp.OFP_VERSION)
    switch.set_state(MAIN_DISPATCHER)
    thread = threading.Thread(target=switch.serve)
    thread.start()
    far.settimeout(10.0)
    assert far.recv(8, socket.MSG_WAITALL)[1] == ofp.OFPT_HELLO
    yield Site(switch, far, states, told)
    far.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert states[-1] == DEAD_DISPATCHER


def barrier(site: Site, answer: Callable[[int], None]) -> list[Any]:
    """The replies to a barrier, which ``answer`` gives when it has come."""
    message = parser.OFPBarrierRequest(site.switch)
    pending = site.switch.begin([message], 1.0)
    head = site.far.recv(8, socket.MSG_WAITALL)
    answer(struct.unpack_from("!I", head, 4)[0])
    return site.switch.finish(pending, 10.0)


def test_messages_come_in_any_pieces(site: Site) -> None:
    def bytewise(xid: int) -> None:
        site.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in site.hear(xid):
            site.far.sendall(bytes([byte]))

    assert len(barrier(site, bytewise)) == 1
    # A whole one, another, and the beginning of a third.
    third = site.hear(12345)
    assert (
        len(
            barrier(
                site,
                lambda xid: site.far.sendall(site.hear(9) + site.hear(xid) + third[:5]),
            )
        )
        == 1
    )
    assert (
        len(barrier(site, lambda xid: site.far.sendall(third[5:] + site.hear(xid))))
        == 1
    )


def test_a_monitor_is_heard_where_others_write_and_not_where_we_do(site: Site) -> None:
    barrier(
        site,
        lambda xid: site.far.sendall(
            3 * site.update(ofp.ONFFME_ABBREV) + site.hear(xid)
        ),
    )
    assert site.told == []
    barrier(
        site,
        lambda xid: site.far.sendall(site.update(ofp.ONFFME_ADDED) + site.hear(xid)),
    )
    assert site.told == [site.switch]


def test_a_message_too_short_for_a_monitor_is_none(site: Site) -> None:
    short = site.hear(
        0, ofp.OFPT_MULTIPART_REPLY, struct.pack("!HH4x", ofp.OFPMP_EXPERIMENTER, 0)
    )
    assert len(barrier(site, lambda xid: site.far.sendall(short + site.hear(xid)))) == 1
    assert site.told == []


def test_nothing_is_sent_where_no_time_is_left_for_an_answer(site: Site) -> None:
    with pytest.raises(SwitchTimeoutError, match="was not asked"):
        site.switch.transact([parser.OFPBarrierRequest(site.switch)], 0.0)
    site.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        site.far.recv(1)


def test_who_asks_a_switch_that_reads_nothing_is_told_and_it_is_left(
    site: Site,
) -> None:
    site.switch.socket.settimeout(0.2)
    assert not site.switch.send(bytes(64 << 20))
    assert site.states[-1] == DEAD_DISPATCHER
    with pytest.raises(NotConnectedError):
        site.switch.begin([parser.OFPBarrierRequest(site.switch)], 1.0)

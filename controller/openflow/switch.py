"""One connection of one switch: os-ken's datapath with replies matched to requests by their xid.

A connection has one thread, which receives; who has something to send does so itself. os-ken would hand it to
a second thread, which has to wake, and read each message in two pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from os_ken.controller import ofp_event
from os_ken.controller.controller import Datapath
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from os_ken.ofproto import ofproto_common, ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp

from ringlight.controller.openflow.errors import (
    NotConnectedError,
    Reason,
    SwitchRefusedError,
    SwitchTimeoutError,
)

log = logging.getLogger(__name__)

_HEAD_BYTES = ofproto_common.OFP_HEADER_SIZE
_READ_BYTES = 1 << 16
#: Time for a connection to become a switch, silence after which a switch is sent an echo request, and silence
#: after which the switch counts as gone, seconds.
NEW_S, ASK_S, GONE_S = 10.0, 30.0, 90.0


class Pending:
    """Replies that one request waits for; the last of its xids ends it."""

    def __init__(self, xids: Sequence[int]) -> None:
        self.xids = tuple(xids)
        self.replies: list[Any] = []
        self.errors: list[tuple[int, str, Reason]] = []
        self.lost = False
        self.done = threading.Event()


class Switch(Datapath):  # type: ignore[misc]
    """A connected switch. Its receive thread matches replies; callers wait on their own thread."""

    def __init__(
        self,
        connection: socket.socket,
        address: Any,
        brick: Any,
        on_state: Callable[[Switch, str], None],
    ) -> None:
        self._xids = itertools.count(random.getrandbits(31))
        self._pending: dict[int, Pending] = {}
        self._pending_lock = threading.Lock()
        self._sending = threading.Lock()
        self._on_state = on_state
        super().__init__(connection, address)
        self.ofp_brick = brick

    def set_xid(self, msg: Any) -> int:
        """Give a message the next transaction id and return the id. os-ken's own counter is not safe with
        several threads.
        """
        xid = next(self._xids) & 0xFFFFFFFF
        msg.set_xid(xid)
        return xid

    def set_state(self, state: str) -> None:
        before = self.state
        super().set_state(state)
        if state != before and state in (MAIN_DISPATCHER, DEAD_DISPATCHER):
            if state == DEAD_DISPATCHER:
                self._lose_pending()
            self._on_state(self, state)

    def serve(self) -> None:
        """Greet the switch and process its messages until the connection ends."""
        try:
            self.send_msg(self.ofproto_parser.OFPHello(self))
            self._recv_loop()
        finally:
            self.set_state(DEAD_DISPATCHER)
            self.is_active = False
            self.socket.close()

    def _recv_loop(self) -> None:
        received = bytearray()
        heard = echo_sent_s = began = time.monotonic()
        while self.state != DEAD_DISPATCHER:
            now = time.monotonic()
            if self.state != MAIN_DISPATCHER and now - began > NEW_S:
                log.warning(
                    "a connection from %s is no switch within %g s", self.address, NEW_S
                )
                return
            try:
                data = self.socket.recv(_READ_BYTES)
            except TimeoutError:
                if now - heard > GONE_S:
                    log.warning("switch %s has said nothing for %g s", self.id, GONE_S)
                    return
                if (
                    self.state == MAIN_DISPATCHER
                    and now - max(heard, echo_sent_s) > ASK_S
                ):
                    echo_sent_s = now
                    self.send_msg(self.ofproto_parser.OFPEchoRequest(self))
                continue
            except OSError:
                return
            if not data:
                return
            heard = time.monotonic()
            received += data
            position = 0
            while len(received) - position >= _HEAD_BYTES:
                version, kind, length, xid = ofproto_parser.header(
                    received[position : position + _HEAD_BYTES]
                )
                end = position + max(length, _HEAD_BYTES)
                if end > len(received):
                    break
                self._take(version, kind, xid, received[position:end])
                position = end
            del received[:position]

    def _take(self, version: int, kind: int, xid: int, text: bytearray) -> None:
        if (
            kind == ofp.OFPT_MULTIPART_REPLY
            and not xid
            and self.state == MAIN_DISPATCHER
        ):
            self.ofp_brick.on_flow_monitor(self, text)
            return
        message = ofproto_parser.msg(self, version, kind, len(text), xid, text)
        if message is None:
            return
        event = ofp_event.ofp_msg_to_ev(message)
        for handle in self.ofp_brick.get_handlers(event, self.state):
            handle(event)

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Send whole messages. Return whether they were sent. ``close_socket``: they are the last."""
        try:
            with self._sending:
                self.socket.sendall(buf)
                if close_socket:
                    self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            # The peer would not understand the bytes after half a message.
            log.debug("switch %s: nothing can be sent: %s", self.id, error)
            self.hang_up()
            return False
        return True

    def hang_up(self) -> None:
        """End the connection now; the thread that receives then ends by itself."""
        self.set_state(DEAD_DISPATCHER)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def transact(self, messages: Sequence[Any], timeout_s: float) -> list[Any]:
        """Send the messages as one burst. Return the replies to the last message, once they are complete.

        Raises SwitchRefusedError if the switch reports an error about any of the messages, NotConnectedError
        if the connection ends first, SwitchTimeoutError after ``timeout_s`` seconds.
        """
        return self.finish(self.begin(messages, timeout_s), timeout_s)

    def begin(self, messages: Sequence[Any], timeout_s: float) -> Pending:
        """Send the messages of a :meth:`transact`. Return the pending request for :meth:`finish`.

        Requests to several switches can thus be pending at once. Sends nothing if no time is left for an
        answer. Raises SwitchTimeoutError then, NotConnectedError if the switch is not connected.
        """
        if timeout_s <= 0:
            raise SwitchTimeoutError(
                f"switch {self.id} was not asked: no time was left for its answer"
            )
        burst = bytearray()
        for message in messages:
            self.set_xid(message)
            message.serialize()
            burst += message.buf
        pending = Pending([message.xid for message in messages])
        with self._pending_lock:
            if self.state == DEAD_DISPATCHER:
                raise NotConnectedError(f"switch {self.id} is not connected")
            self._pending.update(dict.fromkeys(pending.xids, pending))
        if not self.send(bytes(burst)):
            self._forget(pending)
            raise NotConnectedError(f"switch {self.id} is not connected")
        return pending

    def finish(self, pending: Pending, timeout_s: float) -> list[Any]:
        """Wait for a request that :meth:`begin` sent. Return the replies to its last message.

        Must be called after :meth:`begin`. Raises SwitchRefusedError, NotConnectedError, and
        SwitchTimeoutError after ``timeout_s`` seconds.
        """
        try:
            pending.done.wait(timeout_s)
        finally:
            self._forget(pending)
        if pending.errors:
            xid, text, reason = pending.errors[0]
            index = pending.xids.index(xid)
            # A barrier is no message of the caller's.
            which = f" message {index}" if len(pending.xids) > 2 else ""
            raise SwitchRefusedError(
                f"switch {self.id} refused{which}: {text}", index, reason
            )
        if pending.lost:
            raise NotConnectedError(f"switch {self.id} disconnected before it answered")
        if not pending.done.is_set():
            raise SwitchTimeoutError(
                f"switch {self.id} did not answer within {round(timeout_s, 1):g} s"
            )
        return pending.replies

    def answer(self, msg: Any, *, more: bool = False) -> None:
        """Hand a reply to the request that waits for it (on the receive thread)."""
        with self._pending_lock:
            pending = self._pending.get(msg.xid)
            if pending is None or msg.xid != pending.xids[-1]:
                return
            pending.replies.append(msg)
            if not more:
                pending.done.set()

    def answer_error(self, xid: int, text: str, reason: Reason) -> None:
        """Note an error of the switch against the message it is about."""
        with self._pending_lock:
            pending = self._pending.get(xid)
            if pending is None:
                return
            pending.errors.append((xid, text, reason))
            if xid == pending.xids[-1]:
                pending.done.set()

    def _forget(self, pending: Pending) -> None:
        with self._pending_lock:
            for xid in pending.xids:
                self._pending.pop(xid, None)

    def _lose_pending(self) -> None:
        with self._pending_lock:
            for pending in self._pending.values():
                pending.lost = True
                pending.done.set()

"""One connection of one switch: os-ken's datapath with replies matched to requests by their xid."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from os_ken.controller.controller import Datapath
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER

from ringlight.controller.openflow.errors import (
    NotConnectedError,
    Reason,
    SwitchRefusedError,
    SwitchTimeoutError,
)


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
        self, connection: socket.socket, address: Any, brick: Any, on_state: Callable[[Switch, str], None]
    ) -> None:
        self._xids = itertools.count(random.getrandbits(31))
        self._pending: dict[int, Pending] = {}
        self._pending_lock = threading.Lock()
        self._on_state = on_state
        super().__init__(connection, address)
        self.ofp_brick = brick

    def set_xid(self, msg: Any) -> int:
        """os-ken's own counter is not safe when several threads send."""
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

    def _recv_loop(self) -> None:
        try:
            super()._recv_loop()
        finally:
            self.set_state(DEAD_DISPATCHER)
            # Native threads cannot be killed, so the send loop is woken to see that it must end.
            queue = self.send_q
            if queue is not None:
                queue.put((b"", True))

    def hang_up(self) -> None:
        """End the connection now; the receive and send threads then end by themselves."""
        self.set_state(DEAD_DISPATCHER)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def transact(self, messages: Sequence[Any], timeout_s: float) -> list[Any]:
        """Send the messages as one burst; the replies to the last one, once they are complete.

        An error of the switch about any of the messages raises SwitchRefusedError. Raises
        NotConnectedError when the connection ends first and SwitchTimeoutError after ``timeout_s``.
        """
        return self.finish(self.begin(messages), timeout_s)

    def begin(self, messages: Sequence[Any]) -> Pending:
        """The first half of :meth:`transact`, so that several switches can be asked at once."""
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
        """The second half of :meth:`transact`; it must follow the first."""
        try:
            pending.done.wait(timeout_s)
        finally:
            self._forget(pending)
        if pending.errors:
            xid, text, reason = pending.errors[0]
            index = pending.xids.index(xid)
            # A barrier is no message of the caller's.
            which = f" message {index}" if len(pending.xids) > 2 else ""
            raise SwitchRefusedError(f"switch {self.id} refused{which}: {text}", index, reason)
        if pending.lost:
            raise NotConnectedError(f"switch {self.id} disconnected before it answered")
        if not pending.done.is_set():
            raise SwitchTimeoutError(f"switch {self.id} did not answer within {round(timeout_s, 1):g} s")
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

"""Asks for light, flow by flow: open to a peer, send while lit, close.

Who gives it is the O-NIC's agent, or on a ring the controller, which lights all nodes together, step by
step of the collective; we say agent for either. It listens on a Unix socket of packets (SOCK_SEQPACKET),
one JSON object in each::

    worker:  {"open": 7, "peer": "10.82.0.3", "step": 12}   {"close": 7}
    agent:   {"lit": 7}   {"closed": 7}   {"failed": 7, "reason": …}   {"lost": 7, "reason": …}

``step`` counts the collective's steps from the first of the job on, through all its iterations; without a
collective there is none. Only a ring heeds it.

A flow that fails or whose light is lost is asked for again, and so is every flow when the agent goes away
and comes back. Who waits decides how long that may go on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Pause before an agent that is away, or that refused a flow without a hint, is asked again, seconds.
RETRY_S = 0.02
_MESSAGE_BYTES = 4096

# A number is never used twice, so that a late answer cannot be taken for another flow's.
_numbers = itertools.count(1)


class LitFlow:
    """Light to ``peer`` (an address) in ``step``, wanted from :meth:`Flows.open` to :meth:`Flows.close`.

    ``lit``: payload may be sent now. ``waited_s``: seconds so far in which it was wanted and not there.
    ``reason``: why it is not there, as last reported.
    """

    __slots__ = (
        "dark_since",
        "lit",
        "number",
        "peer",
        "reason",
        "retry_at",
        "step",
        "waited_s",
    )

    def __init__(self, peer: str, step: int | None) -> None:
        self.peer, self.step = peer, step
        self.number = 0
        self.lit = False
        self.waited_s = 0.0
        self.dark_since = time.monotonic()
        self.retry_at = math.inf
        self.reason = "the agent has not answered"


class Flows:
    """A connection to the agent at ``path`` and the flows that are open over it.

    Everything happens in the calls: :meth:`update` reads the agent's messages and repeats requests that are
    due, without waiting. :meth:`fileno` is for a poll, :meth:`due` for its timeout. Not for several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._connect_at = 0.0
        self._flows: dict[int, LitFlow] = {}
        #: Why the agent cannot be reached, or None.
        self.trouble: str | None = None

    def open(self, peer: str, step: int | None = None) -> LitFlow:
        flow = LitFlow(peer, step)
        self._ask(flow)
        return flow

    def close(self, flow: LitFlow) -> None:
        """Close a flow whose light is no longer needed. All data sent must have been acknowledged."""
        flow.lit = False
        if self._flows.pop(flow.number, None) is not None:
            self._send({"close": flow.number})

    def shut(self) -> None:
        """Hang up, which closes every flow."""
        self._flows.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the agent sends something; -1 while there is no
        connection.
        """
        return -1 if self._socket is None else self._socket.fileno()

    def due(self) -> float:
        """Return the CLOCK_MONOTONIC time in seconds at which :meth:`update` must run even if the agent sends
        nothing; infinity if no flow is open.
        """
        if not self._flows:
            return math.inf
        if self._socket is None:
            return self._connect_at
        return min(flow.retry_at for flow in self._flows.values())

    def update(self) -> None:
        """Read the agent's messages. Connect and repeat requests if that is due. Never waits."""
        self._receive()
        if self.due() <= time.monotonic():
            if self._socket is None:
                self._connect()
            now = time.monotonic()
            for flow in [flow for flow in self._flows.values() if flow.retry_at <= now]:
                self._ask(flow)

    def wait(self, until: float) -> None:
        """Wait for the agent or for asks that are due, at most until ``until``; then :meth:`update`."""
        poller = select.poll()
        if self._socket is not None:
            poller.register(self._socket, select.POLLIN)
        left_s = min(until, self.due()) - time.monotonic()
        poller.poll(max(0.0, left_s) * 1000 + 1)
        self.update()

    @contextlib.contextmanager
    def light(self, peer: str, deadline: float) -> Iterator[LitFlow]:
        """Open a flow for the length of the ``with`` block and yield it once it is lit. Raises
        TimeoutError.
        """
        flow = self.open(peer)
        try:
            while not flow.lit:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"no light to {peer}: {self.trouble or flow.reason}"
                    )
                self.wait(deadline)
            yield flow
        finally:
            self.close(flow)

    def _ask(self, flow: LitFlow) -> None:
        self._flows.pop(flow.number, None)
        flow.number, flow.retry_at = next(_numbers), math.inf
        self._flows[flow.number] = flow
        if self._socket is None and self._connect_at <= time.monotonic():
            # Asks for every flow, also for this one.
            self._connect()
        else:
            step = {} if flow.step is None else {"step": flow.step}
            self._send({"open": flow.number, "peer": flow.peer, **step})

    def _connect(self) -> None:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent.setblocking(False)
        try:
            agent.connect(str(self._path))
        except OSError as error:
            agent.close()
            self._hung_up(error.strerror or str(error))
            return
        self._socket, self.trouble = agent, None
        for flow in list(self._flows.values()):
            self._ask(flow)

    def _hung_up(self, reason: str) -> None:
        """Close the connection to the agent, which is away. The light of every flow counts as lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._connect_at = time.monotonic() + RETRY_S
        self.trouble = f"the O-NIC's agent at {self._path} cannot be reached: {reason}"
        for flow in self._flows.values():
            self._darken(flow, "the agent went away")

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps(message).encode())
        except BlockingIOError:
            self._hung_up("it does not read")
        except OSError as error:
            self._hung_up(error.strerror or str(error))

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._hung_up(error.strerror or str(error))
                return
            if not data:
                self._hung_up("it hung up")
                return
            try:
                self._take(json.loads(data))
            except (ValueError, TypeError, AttributeError):
                self._hung_up(f"it says {data[:60]!r}")

    def _take(self, message: dict[str, Any]) -> None:
        kind = next(
            (kind for kind in ("lit", "failed", "lost") if kind in message), None
        )
        flow = None if kind is None else self._flows.get(message[kind])
        if flow is None:
            # A confirmation, or the answer to a flow that is no longer wanted.
            return
        now = time.monotonic()
        if kind == "lit":
            flow.lit = True
            flow.waited_s += now - flow.dark_since
        else:
            self._darken(flow, str(message.get("reason", kind)))
            pause_s = message.get("retry_after_s")
            flow.retry_at = (
                now + (RETRY_S if pause_s is None else pause_s)
                if kind == "failed"
                else now
            )

    @staticmethod
    def _darken(flow: LitFlow, reason: str) -> None:
        if flow.lit:
            flow.lit = False
            flow.dark_since = time.monotonic()
        flow.reason = reason

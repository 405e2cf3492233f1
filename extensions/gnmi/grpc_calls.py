"""gRPC on the server's side over the package h2, bytes in and bytes out: no sockets, no threads.

One :class:`Calls` per connection. ``feed`` gives the calls that have begun or gone on; ``send``,
``finish`` and ``take`` say what goes back. A message is five bytes (whether it is compressed, which is
refused; its length) and a body; what the client's window does not take yet waits here.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from urllib.parse import quote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

#: A longer message is refused, and what makes the unfinished ones of a connection more; 4,096 cross-connects
#: are 1 MB.
MAX_MESSAGE_BYTES = 1 << 22
MAX_CALLS = 64
#: While more than this waits for the client to read, no more of its bytes are wanted.
MAX_WAITING_BYTES = 1 << 22
# It would tell every header in the log, passwords among them.
logging.getLogger("hpack").setLevel(logging.INFO)
_PREFIX = struct.Struct("!BI")


class Status(IntEnum):
    """Status with which a call ends."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call ends with this status. The message is what the client is told."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class Call:
    """One call. ``messages``: what the client has sent and nobody has taken; ``ended``: it sends no more;
    ``over``: it is finished or the client has given it up."""

    number: int
    method: str
    metadata: Mapping[str, str]
    messages: deque[bytes] = field(default_factory=deque)
    ended: bool = False
    over: bool = False
    received: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)
    greeted: bool = False
    trailers: list[tuple[str, str]] | None = None


class Calls:
    """The calls of one connection."""

    def __init__(self) -> None:
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self._connection.initiate_connection()
        self._connection.update_settings(
            {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_CALLS}
        )
        self._calls: dict[int, Call] = {}
        self.over = False
        #: Whether what was taken last begins the connection.
        self.opening = False
        self._opened = False

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that could not be sent yet."""
        return sum(len(call.waiting) for call in self._calls.values())

    def feed(self, data: bytes) -> list[Call]:
        """Return the calls that these bytes begin or continue."""
        if self.over:
            return []
        touched: dict[int, Call] = {}
        try:
            for event in self._connection.receive_data(data):
                call = self._event(event)
                if call is not None:
                    touched[call.number] = call
        except (h2.exceptions.ProtocolError, UnicodeDecodeError):
            # What h2 has to say about it is in its buffer and goes out before the connection ends.
            self.over = True
        return list(touched.values())

    def _event(self, event: h2.events.Event) -> Call | None:
        if isinstance(event, h2.events.RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            call = Call(event.stream_id, headers.get(":path", ""), headers)
            self._calls[call.number] = call
            if not headers.get("content-type", "").startswith("application/grpc"):
                self._connection.send_headers(
                    call.number, [(":status", "415")], end_stream=True
                )
                self._forget(call)
                return None
            return call
        if isinstance(event, h2.events.ConnectionTerminated):
            self.over = True
            return None
        if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
            self._connection.acknowledge_received_data(
                event.flow_controlled_length, event.stream_id
            )
        known = self._calls.get(getattr(event, "stream_id", None) or 0)
        if known is None:
            return None
        if isinstance(event, h2.events.DataReceived):
            known.received += event.data
            try:
                self._split(known)
            except CallError as error:
                self.finish(known, error.status, str(error))
        elif isinstance(event, h2.events.StreamEnded):
            known.ended = True
        elif isinstance(event, h2.events.StreamReset):
            self._forget(known)
        return known

    def _split(self, call: Call) -> None:
        while len(call.received) >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(call.received)
            if compressed:
                raise CallError(
                    Status.UNIMPLEMENTED, "compressed messages are not taken"
                )
            if length > MAX_MESSAGE_BYTES:
                raise CallError(
                    Status.RESOURCE_EXHAUSTED,
                    f"a message is at most {MAX_MESSAGE_BYTES} bytes",
                )
            if len(call.received) < _PREFIX.size + length:
                if (
                    sum(len(other.received) for other in self._calls.values())
                    > MAX_MESSAGE_BYTES + _PREFIX.size
                ):
                    raise CallError(
                        Status.RESOURCE_EXHAUSTED,
                        f"messages that come at the same time are at most {MAX_MESSAGE_BYTES} bytes",
                    )
                return
            call.messages.append(
                bytes(call.received[_PREFIX.size : _PREFIX.size + length])
            )
            del call.received[: _PREFIX.size + length]

    def _forget(self, call: Call) -> None:
        call.over = True
        self._calls.pop(call.number, None)

    def send(self, call: Call, message: bytes) -> None:
        """One message of the answer."""
        if not call.over and call.trailers is None:
            call.waiting += _PREFIX.pack(0, len(message)) + message

    def finish(self, call: Call, status: Status = Status.OK, message: str = "") -> None:
        """The end of the answer."""
        if call.over or call.trailers is not None:
            return
        call.trailers = [("grpc-status", str(int(status)))]
        if message:
            # It may repeat a name that a client wrote in JSON, where half of a surrogate pair can stand.
            text = quote(message[:1000], safe=" !#$&'()*+,/:;=?@[]", errors="replace")
            call.trailers.append(("grpc-message", text))

    def ping(self) -> bytes:
        """Return a ping frame that checks whether the client is there, empty if the connection has ended."""
        if self.over:
            return b""
        self._connection.ping(b"ringlght")
        return bytes(self._connection.data_to_send())

    def take(self) -> bytes:
        """Return the bytes to send to the client now."""
        try:
            for call in list(self._calls.values()):
                self._flush(call)
        except h2.exceptions.ProtocolError:
            self.over = True
        out = bytes(self._connection.data_to_send())
        if out:
            self.opening, self._opened = not self._opened, True
        return out

    def _flush(self, call: Call) -> None:
        link = self._connection
        if (call.waiting or call.trailers is not None) and not call.greeted:
            link.send_headers(
                call.number, [(":status", "200"), ("content-type", "application/grpc")]
            )
            call.greeted = True
        while call.waiting:
            room = min(
                link.local_flow_control_window(call.number),
                link.max_outbound_frame_size,
            )
            if room <= 0:
                return
            link.send_data(call.number, bytes(call.waiting[:room]))
            del call.waiting[:room]
        if call.trailers is not None:
            link.send_headers(call.number, call.trailers, end_stream=True)
            if not call.ended:
                # The client is told to say no more; without this it could send on for ever.
                link.reset_stream(call.number, error_code=0)
            self._forget(call)

"""A server's side of OptINC: sends quantised gradients to the averager once, and receives the mean.

The blocks' scales are agreed on first, over the control network, in two rounds of messages from each rank to
each, which the caller hands in: in the first a rank gets all exponents of its part of the blocks, in the
second the largest of all other parts. That is 4(N - 1)/N bytes for a block; telling all to all would be 2(N -
1). A rank whose gradients cannot be averaged reports that in the first, so all ranks fail with its name. Then
frames of codes go to the averager, at most ``WINDOW`` ahead of its answers; a frame is quantised when its
turn to be sent comes and turned back when its answer is there, so both overlap with the sending.

The averager keeps nothing (``unit.wire``). When the connection is lost, the worker connects again,
sends which answer it needs next, and all ranks send from the lowest such frame on, once more. That can be a
frame of the collective before: an averager may have died between the last answers to two ranks. So a
collective's codes are kept until the first answer of the next, which no rank gets before all have the last of
this one. A collective without values opens the connection, and another one ends it.

The connection belongs to a thread of its own, which is there between collectives, too: a rank that has its
mean may be needed by one that has not, while it computes or waits for the others' scales.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ringlight.containers.worker.peer import ReduceFailed
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.stalls import Stalls
from ringlight.containers.worker.transport import Reduce, RunReport
from ringlight.extensions.optinc.averager_place import AveragerPlace
from ringlight.extensions.optinc.exchange import Exchange
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.wire import (
    HEADER_BYTES,
    NOBODY,
    Form,
    FrameKind,
    Header,
    Hello,
    Position,
    WireError,
)
from ringlight.fabric.whole_numbers.blocks import (
    BLOCK,
    code_type,
    dequantise,
    exponents,
    merge,
    quantise,
    raised,
)

#: Frames sent before their answers are there.
WINDOW = 8
_RETRY_S = 0.05
_DRAIN_S = 1.0
#: Codes of each bits, values of a block, values; then an exponent for each block. Or the cause of a failure.
_SCALES = struct.Struct("<BBII")
_GOOD, _FAILED = 0, 1
_BUFFER_BYTES = 512 * 1024

#: What each rank has for this one, for what this one has for each; both in the order of ranks.
Exchanging = Callable[[Sequence[bytes]], Sequence[bytes]]


class _Gone(ReduceFailed):
    """The averager cannot be reached any more."""


class _Lost(Exception):
    """The connection to the averager."""


@dataclass(frozen=True)
class UnitPlace:
    """Place of a rank among the others, and its coding.

    rank, ranks    of the job
    port, ports    of its averager; as rank and ranks, but for cascades
    bits           of a code
    block          values that share a scale
    frame          codes of a frame; a multiple of ``block``

    Raises ValueError for a frame that is none.
    """

    rank: int
    ranks: int
    port: int
    ports: int
    bits: int
    block: int = BLOCK
    frame: int = wire.FRAME

    def __post_init__(self) -> None:
        if self.frame % self.block or not 0 < self.frame <= wire.MOST_CODES:
            raise ValueError(
                f"frames of {self.frame} codes: at most {wire.MOST_CODES}, in whole blocks of {self.block}"
            )


@dataclass
class Moved:
    """Amounts that a rank has moved: bytes of the stream both ways, ``scale_bytes`` of its messages to the
    other ranks, frames sent a second time, and new connections.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    scale_bytes: int = 0
    frames_again: int = 0
    reconnected: int = 0


class _Collective:
    """The values of one rank, and how far their mean has come. ``answered``: frames with an answer."""

    def __init__(
        self,
        number: int,
        place: UnitPlace,
        values: NDArray[np.float32],
        shared: NDArray[np.int16],
    ) -> None:
        self.number, self._place, self._values, self._shared = (
            number,
            place,
            values,
            shared,
        )
        self.frames = max(1, -(-values.size // place.frame))
        self._codes = np.empty(values.size, code_type(place.bits))
        self._answers = np.empty_like(self._codes)
        self.mean = np.empty(values.size, np.float32)
        self._quantised = self.answered = 0

    def message(self, frame: int) -> bytes:
        """Return the frame as it is sent."""
        while self._quantised <= frame:
            part, blocks = self._part(self._quantised)
            place = self._place
            self._codes[part] = quantise(
                self._values[part],
                self._shared[blocks],
                place.bits,
                place.block,
                raised(place.rank, place.ranks),
            )
            self._quantised += 1
        codes = self._codes[self._part(frame)[0]]
        head = wire.header(FrameKind.CODES, Position(self.number, frame), codes.size)
        return b"".join((head, wire.pack(codes, Form(self._place.bits))))

    def take(self, head: Header, body: memoryview) -> None:
        """Store an answer. Raises WireError for an answer that is not to this frame, or differs from an
        earlier one.
        """
        frame = head.position.frame
        part, blocks = self._part(frame)
        codes = self._codes[part]
        if head.count != codes.size:
            raise WireError(
                f"{head.position} answered with {head.count} codes, not {codes.size}"
            )
        answers = wire.unpack(body, head.count, Form(self._place.bits))
        if frame < self.answered:
            if not np.array_equal(answers, self._answers[part]):
                raise WireError(f"{head.position} answered otherwise than before")
            return
        self._answers[part] = answers
        self.mean[part] = dequantise(
            self._answers[part],
            self._shared[blocks],
            self._place.bits,
            self._place.block,
        )
        self.answered += 1

    def _part(self, frame: int) -> tuple[slice, slice]:
        """Return the slices of the values of a frame, and of their blocks."""
        start = frame * self._place.frame
        end = min(start + self._place.frame, self._codes.size)
        return slice(start, end), slice(
            start // self._place.block, -(-end // self._place.block)
        )


class Averaging:
    """A rank's connection to its averager, for one collective after another.

    ``address``: of the averager. ``exchange``: see the module's text. ``connect_timeout_s``: for all ranks to
    be there at first; ``silence_s``: afterwards the averager may be silent that long, or gone. The
    averager's own limit is shorter, so that it can say who was silent.

    As a context it takes leave of the averager, or sends the cause of the exception with which it is left;
    the other ranks get that.
    """

    def __init__(
        self,
        address: tuple[str, int],
        place: UnitPlace,
        exchange: Exchanging,
        *,
        connect_timeout_s: float = 30.0,
        silence_s: float = 4.5,
    ) -> None:
        self.moved = Moved()
        #: Since the owner last took them.
        self.stalls = Stalls()
        self._address, self._place, self._exchange = address, place, exchange
        self._connect_timeout_s, self._silence_s = connect_timeout_s, silence_s
        self._buffer = memoryview(
            bytearray(_BUFFER_BYTES + 2 * wire.MOST_CODES + HEADER_BYTES)
        )
        self._filled = 0
        self._outgoing = memoryview(b"")
        self._welcomed = False
        #: The next frame to be sent, the next to be answered, and the first that was never sent.
        self._sending = self._expected = self._sent_to = Position(0, 0)
        #: What follows is for both threads, under the condition.
        self._changed = threading.Condition()
        self._kept: dict[int, _Collective] = {}
        self._failure: BaseException | None = None
        self._ending = False
        self._cause = ""
        self._wake, self._woken = socket.socketpair()
        self._next_number = 0
        self._thread = threading.Thread(target=self._serve, name="optinc", daemon=True)
        self._begin(_nothing(), np.empty(0, np.int16))
        self._thread.start()
        try:
            self._wait()
        except BaseException:
            self._end("")
            raise

    def mean(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean of all ranks' ``values`` (float32, one dimension) as a new array with the same bits
        on all ranks.

        Do not modify ``values`` until this method returns. Raises ReduceFailed.
        """
        shared = self._shared(values) if values.size else np.empty(0, np.int16)
        collective = self._begin(values, shared)
        self._wait()
        return collective.mean

    def close(self) -> None:
        """Wait until all ranks have all their answers. Raises ReduceFailed."""
        self._begin(_nothing(), np.empty(0, np.int16))
        # A rank that has all its answers misses nothing when the others are gone already.
        try:
            with contextlib.suppress(_Gone):
                self._wait()
        finally:
            self._end("")

    def abort(self, cause: str) -> None:
        """Tell the averager, and by it the other ranks, why this rank ends."""
        self._end(cause)

    def __enter__(self) -> Averaging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(str(error) or type(error).__name__)

    # -- the caller's thread -------------------------------------------------------------------------------

    def _begin(
        self, values: NDArray[np.float32], shared: NDArray[np.int16]
    ) -> _Collective:
        with self._changed:
            collective = _Collective(self._next_number, self._place, values, shared)
            self._kept[self._next_number] = collective
            self._next_number += 1
        self._wake.send(b"w")
        return collective

    def _wait(self) -> None:
        """Wait until everything that was begun is answered. Raises what the other thread raised."""
        with self._changed:
            latest = self._kept[self._next_number - 1]
            while latest.answered < latest.frames:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def _end(self, cause: str) -> None:
        """End the other thread. It reports ``cause`` to the averager if there is one."""
        with self._changed:
            self._ending, self._cause = True, cause
        if self._thread.is_alive():
            self._wake.send(b"w")
            self._thread.join()
        self._wake.close()
        self._woken.close()

    def _shared(self, values: NDArray[np.float32]) -> NDArray[np.int16]:
        place = self._place
        agreed = _SCALES.pack(_GOOD, place.bits, place.block, values.size)
        try:
            parts = np.array_split(exponents(values, place.block), place.ranks)
            messages = [agreed + part.astype("<i2").tobytes() for part in parts]
        except ValueError as error:
            messages = [bytes([_FAILED]) + str(error).encode()] * place.ranks
        replies = self._told_each(messages)
        for rank, reply in enumerate(replies):
            if reply[:1] == bytes([_FAILED]):
                raise ReduceFailed(
                    rank, f"rank {rank}: {reply[1:].decode(errors='replace')}"
                )
            if reply[: _SCALES.size] != agreed:
                raise ReduceFailed(
                    rank,
                    f"rank {rank}: {_told(reply)}, but rank {place.rank} {_told(agreed)}",
                )
        largest = merge(
            [np.frombuffer(reply, "<i2", offset=_SCALES.size) for reply in replies]
        )
        merged = self._told_each([largest.tobytes()] * place.ranks)
        return np.frombuffer(b"".join(merged), "<i2").astype(np.int16)

    def _told_each(self, messages: Sequence[bytes]) -> Sequence[bytes]:
        place = self._place
        self.moved.scale_bytes += sum(map(len, messages)) - len(messages[place.rank])
        replies = self._exchange(messages)
        if len(replies) != place.ranks:
            raise ReduceFailed(
                None, f"scales of {len(replies)} ranks came, there are {place.ranks}"
            )
        return replies

    # -- the connection's thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._keep_connected()
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            with self._changed:
                self._failure = error
                self._changed.notify()

    def _keep_connected(self) -> None:
        """Keep the connection until the end. Raises ReduceFailed."""
        lost, since = "", time.monotonic()
        while not self._ending:
            patience_s = self._patience_s()
            try:
                with self._connect() as connection:
                    self.moved.reconnected += bool(lost)
                    self._pump(connection)
            except _Lost as error:
                now = time.monotonic()
                if self._welcomed:
                    lost, since, self._welcomed = "", now, False
                lost = lost or str(error)
                if now - since > patience_s:
                    again = "" if lost == str(error) else f"; then {error}"
                    raise _Gone(
                        None,
                        f"{self._name()}: {lost}{again}; not back in {patience_s:g} s",
                    ) from None
                time.sleep(_RETRY_S)

    def _patience_s(self) -> float:
        return (
            self._silence_s
            if self._expected > Position(0, 0)
            else self._connect_timeout_s
        )

    def _name(self) -> str:
        return f"the averager at {self._address[0]}:{self._address[1]}"

    def _needs(self) -> Position:
        """Return the position of the first frame whose answer has not arrived."""
        with self._changed:
            latest = self._kept[max(self._kept)]
        if latest.answered < latest.frames:
            return Position(latest.number, latest.answered)
        return Position(latest.number + 1, 0)

    def _connect(self) -> socket.socket:
        """Connect, prepare a hello, and return the connection. Raises _Lost."""
        place = self._place
        try:
            connection = socket.create_connection(self._address, 1.0)
        except OSError as error:
            raise _Lost(error.strerror or str(error)) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._filled, self._welcomed = 0, False
        greeting = Hello(
            place.port,
            place.ports,
            Form(place.bits),
            place.block,
            place.frame,
            self._needs(),
        )
        self._outgoing = memoryview(wire.hello(greeting))
        return connection

    def _pump(self, connection: socket.socket) -> None:
        """Send and receive until the end. Raises _Lost, ReduceFailed."""
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        moved, least, events = time.monotonic(), 1, select.POLLIN
        while True:
            try:
                blocked = not self._send(connection)
            except WireError as error:
                self._say(connection, str(error))
                raise ReduceFailed(None, f"{self._name()}: {error}") from None
            if self._ending:
                if self._cause:
                    self._say(connection, self._cause)
                return
            needed = self._wanted()
            if needed != least:
                least = needed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            now_watched = select.POLLIN | (select.POLLOUT if blocked else 0)
            if now_watched != events:
                events = now_watched
                poller.modify(connection, events)
            waits = blocked or not self._welcomed or self._expected < self._sending
            left_s = moved + self._patience_s() - time.monotonic()
            ready = dict(poller.poll(max(0.0, left_s) * 1000 + 1 if waits else None))
            now = time.monotonic()
            if not ready and now - moved > self._patience_s():
                raise ReduceFailed(
                    None, f"{self._name()}: silent for {self._patience_s():g} s"
                )
            if ready.pop(self._woken.fileno(), 0):
                self._woken.recv(64)
                moved = now if not waits else moved
            if ready and waits:
                self.stalls.note(moved, now)
            for seen in ready.values():
                moved = now
                if seen & ~select.POLLOUT:
                    try:
                        self._receive(connection)
                    except WireError as error:
                        self._say(connection, str(error))
                        raise ReduceFailed(None, f"{self._name()}: {error}") from None

    def _say(self, connection: socket.socket, cause: str) -> None:
        """Send an ERROR to the averager, after which nothing is sent."""
        with contextlib.suppress(OSError):
            connection.settimeout(_DRAIN_S)
            # A frame that was begun has to end first.
            connection.sendall(bytes(self._outgoing) + wire.error(NOBODY, cause))
            connection.shutdown(socket.SHUT_WR)
            # What is left unread when a socket is closed makes the kernel throw away what was sent.
            deadline = time.monotonic() + _DRAIN_S
            while time.monotonic() < deadline and connection.recv_into(self._buffer):
                pass

    def _send(self, connection: socket.socket) -> bool:
        """Send as much as the window allows. Return False if the socket has no room for more. Raises
        _Lost.
        """
        try:
            while True:
                if not self._outgoing and not self._fill():
                    return True
                count = connection.send(self._outgoing)
                self.moved.bytes_sent += count
                self._outgoing = self._outgoing[count:]
        except BlockingIOError:
            return False
        except OSError as error:
            raise _Lost(error.strerror or str(error)) from None

    def _fill(self) -> bool:
        """Prepare the next frame for sending, if there is one and the window is open. Return whether there is
        one.
        """
        place = self._sending
        with self._changed:
            collective = self._kept.get(place.collective)
        if not self._welcomed or collective is None or self._ahead() >= WINDOW:
            return False
        self._outgoing = memoryview(collective.message(place.frame))
        if place < self._sent_to:
            self.moved.frames_again += 1
        self._sending = self._after(place)
        self._sent_to = max(self._sent_to, self._sending)
        return True

    def _after(self, place: Position) -> Position:
        if place.frame + 1 < self._kept[place.collective].frames:
            return Position(place.collective, place.frame + 1)
        return Position(place.collective + 1, 0)

    def _ahead(self) -> int:
        """Return how many frames were sent whose answers have not arrived. They are of two collectives at
        most.
        """
        sent, answered = self._sending, self._expected
        ahead = sent.frame - answered.frame
        if sent.collective > answered.collective:
            ahead += self._kept[answered.collective].frames
        return ahead

    def _wanted(self) -> int:
        """Return how many bytes are missing until the next message is whole, or until its header is; 1 at
        least.
        """
        size = HEADER_BYTES
        if self._filled >= size:
            size += wire.body_bytes(
                wire.read_header(self._buffer), Form(self._place.bits)
            )
        return max(1, size - self._filled)

    def _receive(self, connection: socket.socket) -> None:
        try:
            count = connection.recv_into(self._buffer[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            raise _Lost(error.strerror or str(error)) from None
        if not count:
            raise _Lost("it closed the connection")
        self.moved.bytes_received += count
        self._filled += count
        start = 0
        while self._filled - start >= HEADER_BYTES:
            head = wire.read_header(self._buffer[start:])
            end = start + HEADER_BYTES + wire.body_bytes(head, Form(self._place.bits))
            if end > self._filled:
                break
            self._message(head, self._buffer[start + HEADER_BYTES : end])
            start = end
        rest = bytes(self._buffer[start : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _message(self, head: Header, body: memoryview) -> None:
        if head.kind is FrameKind.ERROR:
            rank, cause = wire.read_error(bytes(body))
            raise ReduceFailed(None if rank == NOBODY else rank, cause)
        if head.kind is FrameKind.WELCOME and not self._welcomed:
            with self._changed:
                kept = self._kept.get(head.position.collective)
                following = Position(max(self._kept) + 1, 0)
            if head.position != following and (
                kept is None or head.position.frame >= kept.frames
            ):
                raise WireError(
                    f"{head.position} is needed, which this rank does not have"
                )
            self._welcomed = True
            self._sending = self._expected = head.position
        elif (
            head.kind is FrameKind.ANSWER
            and self._welcomed
            and self._expected < self._sending
        ):
            if head.position != self._expected:
                raise WireError(f"{head.position} answered, not {self._expected}")
            collective = self._kept[head.position.collective]
            collective.take(head, body)
            self._expected = self._after(self._expected)
            with self._changed:
                self._kept.pop(collective.number - 1, None)
                if collective.answered == collective.frames:
                    self._changed.notify()
        else:
            raise WireError(f"{head.kind.name} at a time when it cannot come")


@contextlib.contextmanager
def reducing_at(
    place: AveragerPlace, spec: WorkerSpec, connections: Mapping[int, socket.socket]
) -> Iterator[Reduce]:
    """Yield an all-reduce for ``spec``'s job by its averagers. ``connections`` to the other ranks carry the
    scales.

    Raises ReduceFailed and PeerLost, also from each all-reduce.
    """
    host, _, port = place.address.rpartition(":")
    exchange = Exchange(spec.rank, connections, spec.peer_timeout_s)
    with Averaging(
        (host, int(port)),
        UnitPlace(spec.rank, spec.world_size, place.port, place.ports, place.bits),
        exchange,
        connect_timeout_s=spec.connect_timeout_s,
        silence_s=place.silence_s,
    ) as averaging:

        def reduce(vector: NDArray[np.float32]) -> RunReport:
            sent, received = exchange.bytes_sent, exchange.bytes_received
            mean = averaging.mean(vector)
            # Sums, as all other collectives have them.
            np.multiply(mean, np.float32(spec.world_size), out=vector)
            # Codes once each way, and scales: what is sent again after a loss is no payload.
            codes = wire.Form(place.bits).bytes_of(vector.size)
            sent, received = (
                codes + exchange.bytes_sent - sent,
                codes + exchange.bytes_received - received,
            )
            waited = [averaging.stalls, exchange.stalls]
            averaging.stalls, exchange.stalls = Stalls(), Stalls()
            spans = sorted(span for answer in waited for span in answer.spans)
            return RunReport(
                sent,
                received,
                0,
                max(answer.longest_s for answer in waited),
                tuple(spans),
            )

        yield reduce


def _nothing() -> NDArray[np.float32]:
    return np.empty(0, np.float32)


def _told(message: bytes) -> str:
    """Return a description of the values that a rank has announced in its message."""
    if len(message) < _SCALES.size:
        return f"said {len(message)} bytes"
    _, bits, block, size = _SCALES.unpack_from(message)
    return f"has {size} values of {bits} bits in blocks of {block}"

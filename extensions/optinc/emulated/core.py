"""An averager without I/O: who is connected, what has come, what goes out, whose fault it is.

Bytes come into a ring of a few frames for each server. A full one takes no more, so TCP holds its server
back. When the first frame of every ring is whole, and nobody has too many answers still to read, the frames
are averaged and the answer goes to all, or to the averager above, whose answers then go to all.

A *session* lasts from the hello of the last server to the first lost connection. Then all other connections
are closed too: the servers come back and say what they need, and everything begins anew there. So an
averager that was killed, one above that was, and a server that is gone are the same case; who does not come
back is named. Nothing is kept of a session but counters.

What is wrong (another size, position or coding, a server that is silent while others wait or reads no
answers, an error that a server tells) ends the session with an ERROR to all, which names the rank.

The shell calls the methods of :class:`Core`, with the time in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ringlight.extensions.optinc.emulated.lookup import Disagreement, LookupSample
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.averaging import Coding
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

#: Frames in a server's ring, and answers that it may leave unread.
DEPTH = 4
#: Latest latencies that are kept.
LATENCIES = 4096
#: So much longer than for servers an averager above is waited for: it can tell whose fault it is. Seconds.
_LONGER_S = 1.0
_FIRST = Position(0, 0)


@dataclass(frozen=True)
class Unit:
    """Settings of one averager.

    coding      of its servers' codes and of its answers
    first_rank  the rank of the job at port 0; None if the ports lead to averagers
    above       its own port at the averager above, and the number of ports of that averager; None without one
    silence_s   longest time that a server may be silent while other servers wait, leave answers unread, or
                take to come back, seconds
    join_s      longest time from the first server to the last, and that a connection may be silent at first,
                seconds
    """

    coding: Coding
    first_rank: int | None = 0
    above: tuple[int, int] | None = None
    silence_s: float = 3.0
    join_s: float = 30.0

    @property
    def arriving(self) -> Form:
        return Form(self.coding.bits, self.coding.arriving)

    @property
    def answers(self) -> Form:
        """Form of the frames that go to the servers."""
        return Form(self.coding.bits)

    def rank(self, port: int) -> int:
        return NOBODY if self.first_rank is None else self.first_rank + port

    def name(self, port: int) -> str:
        return f"unit {port}" if self.first_rank is None else f"rank {self.rank(port)}"


@dataclass
class Counts:
    """Counters of an averager. Lists are by port. Bytes are those of the streams.

    ``latencies_s``: of the latest frames, seconds from the last byte of the frame that arrived to the first
    byte of the answer.
    """

    bytes_in: list[int]
    bytes_out: list[int]
    frames: int = 0
    codes: int = 0
    sessions: int = 0
    resets: int = 0
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES))


class Ring:
    """A bounded buffer of bytes. ``room`` and ``first`` give views into it."""

    def __init__(self, size: int) -> None:
        self._data = memoryview(bytearray(size))
        self._start = self.filled = 0

    def room(self) -> memoryview:
        """Return the buffer for the next bytes, empty if the ring is full."""
        size = len(self._data)
        end = (self._start + self.filled) % size
        return self._data[end : end + min(size - self.filled, size - end)]

    def added(self, count: int) -> None:
        self.filled += count

    def first(self, count: int) -> memoryview:
        """Return the first ``count`` bytes: a view, or a copy if they are not contiguous."""
        end = self._start + count
        if end <= len(self._data):
            return self._data[self._start : end]
        return memoryview(
            bytes(self._data[self._start :])
            + bytes(self._data[: end - len(self._data)])
        )

    def drop(self, count: int) -> None:
        self._start = (self._start + count) % len(self._data)
        self.filled -= count


@dataclass
class _Outgoing:
    """Bytes of a message, and for an answer when the last byte came that it needed."""

    data: memoryview
    arrived: float | None = None


class AveragerStream:
    """One connection. ``port`` is None until its hello, and that of the averager above has none."""

    def __init__(self, key: int, form: Form, now: float) -> None:
        self.key, self.form = key, form
        self.ring = Ring(1024)
        self.head: Header | None = None
        self.complete_at: float | None = None
        self.hello: Hello | None = None
        self.port: int | None = None
        self.outgoing: deque[_Outgoing] = deque()
        self.moved_in = self.moved_out = now
        self.before: Position | None = None
        self.closing_since: float | None = None

    def bytes_needed(self) -> int:
        """Return the number of bytes without which the next item cannot be processed, at least 1.

        While other servers are awaited, the number is all that fits into the ring. More bytes are only looked
        at after those servers have sent theirs.
        """
        if self.complete_at is not None:
            return max(1, len(self.ring.room()))
        whole = (
            HEADER_BYTES if self.head is None else wire.body_bytes(self.head, self.form)
        )
        return max(1, whole - self.ring.filled)

    def put(
        self, data: bytes | memoryview, now: float, arrived: float | None = None
    ) -> None:
        if not self.outgoing:
            self.moved_out = now
        self.outgoing.append(_Outgoing(memoryview(data), arrived))


class Core:
    """See the module's text. ``lookup`` gives the answers to the servers' numbers, of which ``sample``
    compares some.

    Streams are known by keys that the shell chooses. After any call ``streams`` says which there are,
    ``calls_above`` whether the shell must connect to the averager above (:meth:`connected_above`).
    """

    def __init__(
        self,
        unit: Unit,
        lookup: Callable[[Sequence[NDArray[Any]]], NDArray[Any]],
        sample: LookupSample,
    ) -> None:
        self.unit = unit
        self._lookup, self._sample = lookup, sample
        servers = unit.coding.servers
        self.counts = Counts([0] * servers, [0] * servers)
        self.streams: dict[int, AveragerStream] = {}
        self.calls_above = False
        self._ports: dict[int, AveragerStream] = {}
        self._above: AveragerStream | None = None
        self._active = False
        self._since = 0.0
        self._first = _FIRST
        #: Frames sent up whose answers have not come: position and number of codes.
        self._asked: deque[tuple[Position, int]] = deque()
        self._lost = ""

    def checked(self) -> int:
        """Return the number of answers that were compared with the network's own."""
        return self._sample.checked

    # -- what the shell tells ------------------------------------------------------------------------------

    def connected(self, key: int, now: float) -> None:
        """A server has connected."""
        self.streams[key] = AveragerStream(key, self.unit.arriving, now)

    def connected_above(self, key: int, now: float) -> None:
        """The connection to the averager above is there."""
        assert self.unit.above is not None
        first_hello = next(iter(self._ports.values())).hello
        assert first_hello is not None
        rank, servers = self.unit.above
        form = Form(self.unit.coding.bits, self.unit.coding.leaving)
        self.calls_above = False
        self._above = self.streams[key] = AveragerStream(key, self.unit.answers, now)
        self._above.ring = Ring(
            DEPTH * (HEADER_BYTES + self.unit.answers.bytes_of(first_hello.frame))
        )
        self._above.put(
            wire.hello(
                Hello(
                    rank,
                    servers,
                    form,
                    first_hello.block,
                    first_hello.frame,
                    self._first,
                )
            ),
            now,
        )

    def not_connected_above(self, reason: str) -> None:
        """The averager above cannot be reached; the shell is to try again until the deadline."""
        self._lost = reason

    def room(self, key: int) -> memoryview:
        """Return the buffer for incoming bytes, empty while no more bytes are accepted."""
        stream = self.streams[key]
        if stream.closing_since is not None:
            return memoryview(bytearray(65536))  # thrown away
        return stream.ring.room()

    def received(self, key: int, count: int, now: float) -> None:
        """Note that bytes were put into the room."""
        stream = self.streams[key]
        if stream.closing_since is not None:
            return
        stream.ring.added(count)
        stream.moved_in = now
        if stream.port is not None:
            self.counts.bytes_in[stream.port] += count
        self._parse(stream, now)
        self._work(now)

    def sent(self, key: int, count: int, now: float) -> None:
        """Note that bytes of the first of ``outgoing`` were taken."""
        stream = self.streams[key]
        first = stream.outgoing[0]
        stream.moved_out = now
        if stream.port is not None:
            self.counts.bytes_out[stream.port] += count
        if first.arrived is not None:
            self.counts.latencies_s.append(now - first.arrived)
            first.arrived = None
        first.data = first.data[count:]
        if not first.data:
            stream.outgoing.popleft()
            self._work(now)

    def lost(self, key: int, reason: str, now: float) -> None:
        """The connection has ended, for whatever reason; the shell has closed it."""
        stream = self.streams.pop(key)
        if stream.closing_since is not None:
            return
        if stream is self._above:
            self._above = None
            self._reset(f"the averager above: {reason}", now)
        elif stream.port is not None and self._ports.get(stream.port) is stream:
            del self._ports[stream.port]
            self.calls_above = False
            # One above may be waiting for this unit's frames already.
            if self._active or self._above is not None:
                self._reset(f"{self.unit.name(stream.port)}: {reason}", now)

    def tick(self, now: float) -> None:
        """Looks at the deadlines; to be called a few times a second."""
        self._check_forming(now)
        self._check_silence(now)
        for stream in list(self.streams.values()):
            if stream.closing_since is not None:
                if now - stream.closing_since > self.unit.silence_s:
                    del self.streams[stream.key]
            elif (
                stream.port is None
                and stream is not self._above
                and now - stream.moved_in > self.unit.join_s
            ):
                self._close(stream, now)

    # -- messages ------------------------------------------------------------------------------------------

    def _parse(self, stream: AveragerStream, now: float) -> None:
        try:
            while stream.closing_since is None and stream.complete_at is None:
                if stream.head is None:
                    if stream.ring.filled < HEADER_BYTES:
                        return
                    stream.head = wire.read_header(stream.ring.first(HEADER_BYTES))
                    stream.ring.drop(HEADER_BYTES)
                    self._expect(stream, stream.head)
                size = wire.body_bytes(stream.head, stream.form)
                if stream.ring.filled < size:
                    return
                if stream.head.kind in (FrameKind.CODES, FrameKind.ANSWER):
                    stream.complete_at = now
                    return
                head, body = stream.head, bytes(stream.ring.first(size))
                stream.ring.drop(size)
                stream.head = None
                self._message(stream, head, body, now)
        except WireError as error:
            self._refuse(stream, str(error), now)

    def _expect(self, stream: AveragerStream, head: Header) -> None:
        """Raises WireError for a message that cannot come now."""
        if head.kind is FrameKind.ERROR:
            return
        if stream is self._above:
            good = head.kind is (
                FrameKind.ANSWER if self._active else FrameKind.WELCOME
            )
            if good and head.kind is FrameKind.ANSWER:
                expected = self._asked[0] if self._asked else None
                if (head.position, head.count) != expected:
                    raise WireError(
                        f"answered {head.position} with {head.count} codes, not {expected}"
                    )
        elif stream.port is None:
            good = head.kind is FrameKind.HELLO
        else:
            good = head.kind is FrameKind.CODES and self._active
            if good:
                self._expect_frame(stream, head)
        if not good:
            raise WireError(f"{head.kind.name} at a time when it cannot come")

    def _expect_frame(self, stream: AveragerStream, head: Header) -> None:
        assert stream.hello is not None
        if head.count > stream.hello.frame:
            raise WireError(
                f"a frame of {head.count} codes, not of {stream.hello.frame}"
            )
        good = (
            head.position == self._first
            if stream.before is None
            else head.position.follows(stream.before)
        )
        if not good:
            raise WireError(
                f"{head.position} after {stream.before or 'the welcome to ' + str(self._first)}"
            )
        stream.before = head.position

    def _message(
        self, stream: AveragerStream, head: Header, body: bytes, now: float
    ) -> None:
        if head.kind is FrameKind.HELLO:
            self._join(stream, wire.read_hello(head, body), now)
        elif head.kind is FrameKind.WELCOME:
            self._first = head.position
            self._begin(now)
        elif stream.port is None and stream is not self._above:
            self._close(stream, now)
        else:
            rank, cause = wire.read_error(body)
            if stream.port is not None and self.unit.first_rank is not None:
                rank, cause = (
                    self.unit.rank(stream.port),
                    f"{self.unit.name(stream.port)}: {cause}",
                )
            self._fail(rank, cause, now, but=stream)

    def _refuse(self, stream: AveragerStream, cause: str, now: float) -> None:
        """A stream has said what cannot be."""
        if stream is self._above:
            self._fail(NOBODY, f"the averager above: {cause}", now)
        elif stream.port is not None:
            self._fail(
                self.unit.rank(stream.port),
                f"{self.unit.name(stream.port)}: {cause}",
                now,
            )
        else:
            self.counts.errors.append(cause)
            stream.put(wire.error(NOBODY, cause), now)
            self._close(stream, now)

    # -- sessions ------------------------------------------------------------------------------------------

    def _join(self, stream: AveragerStream, hello: Hello, now: float) -> None:
        servers, form = self.unit.coding.servers, self.unit.arriving
        if hello.servers != servers:
            raise WireError(
                f"rank {hello.rank} of {hello.servers} servers, but this averager has {servers}"
            )
        if hello.rank in self._ports:
            if self._active or self._above is not None:
                self._reset(f"{self.unit.name(hello.rank)} has connected anew", now)
            else:
                self.calls_above = False
                self._close(self._ports.pop(hello.rank), now)
        if not self._ports:
            self._since = now
        stream.hello, stream.port = hello, hello.rank
        stream.ring = Ring(DEPTH * (HEADER_BYTES + form.bytes_of(hello.frame)))
        self._ports[hello.rank] = stream
        self.counts.bytes_in[hello.rank] += len(wire.hello(hello))
        if len(self._ports) == servers:
            self._compare_hellos(now)

    def _compare_hellos(self, now: float) -> None:
        """Compare the HELLOs once all have come.

        Not sooner: a server that comes after an error would wait for those that were told.
        """
        hellos = {
            port: stream.hello
            for port, stream in sorted(self._ports.items())
            if stream.hello
        }
        form = self.unit.arriving
        for port, hello in hellos.items():
            if hello.form != form:
                return self._refuse(
                    self._ports[port],
                    f"codes of {hello.form.bits} bits with {hello.form.parts} parts of the last symbol, "
                    f"not {form.bits} with {form.parts}",
                    now,
                )
        odd = _odd_one(
            {
                port: f"blocks of {hello.block} values in frames of {hello.frame}"
                for port, hello in hellos.items()
            }
        )
        if odd is not None:
            return self._disagree(*odd, now)
        self._first = min(hello.needs for hello in hellos.values())
        self._since = now
        if self.unit.above is None:
            self._begin(now)
        else:
            self._lost = ""
            self.calls_above = True
        return None

    def _begin(self, now: float) -> None:
        self._active = True
        self._lost = ""
        self.counts.sessions += 1
        for stream in self._ports.values():
            stream.before = None
            stream.put(wire.welcome(self._first), now)

    def _close(self, stream: AveragerStream, now: float) -> None:
        stream.closing_since = now

    def _end(self, now: float) -> None:
        for stream in self._ports.values():
            self._close(stream, now)
        if self._above is not None:
            self._close(self._above, now)
        self._ports, self._above, self._active, self.calls_above = (
            {},
            None,
            False,
            False,
        )
        self._asked.clear()

    def _reset(self, reason: str, now: float) -> None:
        """The session ends, and may begin anew."""
        self._end(now)
        self._lost = reason
        self.counts.resets += 1

    def _fail(
        self, rank: int, cause: str, now: float, but: AveragerStream | None = None
    ) -> None:
        """The session ends with an error to all ``but`` who told it."""
        self.counts.errors.append(cause)
        message = wire.error(rank, cause)
        for stream in [
            *self._ports.values(),
            *([self._above] if self._above is not None else []),
        ]:
            if stream is not but:
                stream.put(message, now)
        self._end(now)
        self._lost = ""

    def _disagree(self, port: int, its: str, usual: str, now: float) -> None:
        name = self.unit.name(port)
        self._fail(self.unit.rank(port), f"{name} has {its}, others have {usual}", now)

    # -- deadlines -----------------------------------------------------------------------------------------

    def _check_forming(self, now: float) -> None:
        if self._active or not self._ports:
            return
        missing = [
            port for port in range(self.unit.coding.servers) if port not in self._ports
        ]
        anew = any(
            stream.hello and stream.hello.needs > _FIRST
            for stream in self._ports.values()
        )
        limit = self.unit.silence_s if anew else self.unit.join_s
        if not missing:
            limit += _LONGER_S
        if now - self._since <= limit:
            return
        after = f" ({self._lost})" if self._lost else ""
        if missing:
            names = ", ".join(self.unit.name(port) for port in missing)
            cause = f"{names}: not connected {limit:g} s after the first{after}"
            self._fail(self.unit.rank(missing[0]), cause, now)
        else:
            self._fail(
                NOBODY, f"the averager above does not answer in {limit:g} s{after}", now
            )

    def _check_silence(self, now: float) -> None:
        if not self._active:
            return
        fault = self._silent(now)
        if fault is not None:
            self._fail(*fault, now)

    def _silent(self, now: float) -> tuple[int, str] | None:
        """Server that has kept all others waiting for too long, and the line that says so."""
        unit, limit = self.unit, self.unit.silence_s
        ports = sorted(self._ports.items())
        for port, stream in ports:
            if stream.outgoing and now - stream.moved_out > limit:
                return unit.rank(
                    port
                ), f"{unit.name(port)}: has read no answer for {limit:g} s"
        waiting = [
            stream.complete_at for _, stream in ports if stream.complete_at is not None
        ]
        for port, stream in ports if waiting else ():
            since = max(min(waiting), stream.moved_in)
            if stream.complete_at is None and now - since > limit:
                return unit.rank(
                    port
                ), f"{unit.name(port)}: silent for {limit:g} s while others wait"
        above = self._above
        limit += _LONGER_S
        if (
            above is not None
            and self._asked
            and now - max(above.moved_in, above.moved_out) > limit
        ):
            return NOBODY, f"the averager above: silent for {limit:g} s"
        return None

    # -- averaging -----------------------------------------------------------------------------------------

    def _work(self, now: float) -> None:
        """Do all that can be done with what has come."""
        while self._active and (self._pass_down(now) or self._average(now)):
            pass

    def _readers_keep_up(self) -> bool:
        return all(len(stream.outgoing) < DEPTH for stream in self._ports.values())

    def _pass_down(self, now: float) -> bool:
        above = self._above
        if (
            above is None
            or above.complete_at is None
            or above.head is None
            or not self._readers_keep_up()
        ):
            return False
        size = wire.body_bytes(above.head, above.form)
        self._answer(
            above.head.position,
            above.head.count,
            bytes(above.ring.first(size)),
            now,
            None,
        )
        self._asked.popleft()
        self._taken(above, size, now)
        return True

    def _average(self, now: float) -> bool:
        ports = [stream for _, stream in sorted(self._ports.items())]
        arrived = [
            stream.complete_at for stream in ports if stream.complete_at is not None
        ]
        if len(arrived) < len(ports) or not self._readers_keep_up():
            return False
        if (
            self._above is not None
            and len(self._above.outgoing) + len(self._asked) >= 2 * DEPTH
        ):
            return False
        heads = [stream.head for stream in ports if stream.head is not None]
        odd = _odd_one(
            {
                port: f"{head.position} with {head.count} codes"
                for port, head in enumerate(heads)
            }
        )
        if odd is not None:
            self._disagree(*odd, now)
            return False
        position, count = heads[0].position, heads[0].count
        size = self.unit.arriving.bytes_of(count)
        numbers = []
        for stream in ports:
            try:
                numbers.append(
                    wire.unpack(stream.ring.first(size), count, self.unit.arriving)
                )
            except WireError as error:
                self._refuse(stream, f"{position}: {error}", now)
                return False
        answers = self._lookup(numbers)
        try:
            self._sample.check(numbers, answers)
        except Disagreement as error:
            self._fail(NOBODY, f"the averager, {position}: {error}", now)
            return False
        self.counts.frames += 1
        self.counts.codes += count
        if self._above is None:
            self._answer(
                position,
                count,
                wire.pack(answers, self.unit.answers),
                now,
                max(arrived),
            )
        else:
            body = wire.pack(
                answers, Form(self.unit.coding.bits, self.unit.coding.leaving)
            )
            self._above.put(
                b"".join((wire.header(FrameKind.CODES, position, count), body)),
                now,
                arrived=max(arrived),
            )
            self._asked.append((position, count))
        for stream in ports:
            self._taken(stream, size, now)
        return True

    def _answer(
        self,
        position: Position,
        count: int,
        body: bytes | memoryview,
        now: float,
        arrived: float | None,
    ) -> None:
        message = b"".join((wire.header(FrameKind.ANSWER, position, count), body))
        for stream in self._ports.values():
            stream.put(message, now, arrived)
            arrived = None

    def _taken(self, stream: AveragerStream, size: int, now: float) -> None:
        """A frame's body has been used: on to the next message of the stream."""
        stream.ring.drop(size)
        stream.head = stream.complete_at = None
        self._parse(stream, now)


def _odd_one(of_ports: dict[int, str]) -> tuple[int, str, str] | None:
    """The lowest port that says something else than most, with what it and what they say; None if all agree.

    Where as many say one thing as another, the lower port is right.
    """
    usual = Counter(of_ports.values()).most_common(1)[0][0]
    return next(
        ((port, its, usual) for port, its in sorted(of_ports.items()) if its != usual),
        None,
    )

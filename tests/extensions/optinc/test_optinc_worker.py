"""A server's side of OptINC against an averager that a test plays: what it sends and does not believe."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from ringlight.containers.worker.peer import ReduceFailed
from ringlight.extensions.optinc.reducing import Averaging, UnitPlace
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.averaging import Coding, goal
from ringlight.extensions.optinc.unit.wire import (
    HEADER_BYTES,
    NOBODY,
    Form,
    FrameKind,
    Header,
    Hello,
    Position,
)

SIZE, BLOCK = 40, 8
FORM = Form(8)


class Player:
    """An averager's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        self._socket, self._file = connection, connection.makefile("rb")
        head, body = self.read()
        self.hello: Hello = wire.read_hello(head, body)

    def read(self) -> tuple[Header, bytes]:
        head = wire.read_header(self._file.read(HEADER_BYTES))
        return head, self._file.read(wire.body_bytes(head, FORM))

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def codes(self, at: Position) -> np.ndarray:
        head, body = self.read()
        assert (head.kind, head.position) == (FrameKind.CODES, at)
        return wire.unpack(body, head.count, FORM)

    def answer(self, at: Position, answers: np.ndarray) -> None:
        self.write(
            wire.header(FrameKind.ANSWER, at, answers.size)
            + bytes(wire.pack(answers, FORM))
        )

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(10)
        yield found


def values(rank: int, number: int = 0) -> np.ndarray:
    return np.random.default_rng((rank, number)).random(SIZE, np.float32) - np.float32(
        0.5
    )


def averaging(
    listener: socket.socket, rank: int, exchanging: Callable, silence_s: float = 5.0
) -> Averaging:
    place = UnitPlace(rank, 2, rank, 2, 8, block=BLOCK, frame=4 * BLOCK)
    return Averaging(
        listener.getsockname(),
        place,
        exchanging,
        connect_timeout_s=5.0,
        silence_s=silence_s,
    )


def alone() -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    """What rank 0 of two hears when the other has the same values."""
    kept: list[bytes] = []

    def exchange(messages: Sequence[bytes]) -> Sequence[bytes]:
        if kept:
            return [messages[0], kept.pop()]
        kept.append(messages[1][10:])  # without what all have to agree on
        return [messages[0], messages[0]]

    return exchange


class Work(threading.Thread):
    """A rank that averages so many vectors."""

    def __init__(
        self, listener: socket.socket, rank: int, exchanging: Callable, count: int = 1
    ) -> None:
        super().__init__(daemon=True)
        self.means: list[np.ndarray] = []
        self.error: BaseException | None = None
        self._make = lambda: averaging(listener, rank, exchanging, 2.0)
        self._rank, self._count = rank, count
        self.start()

    def run(self) -> None:
        try:
            with self._make() as found:
                for number in range(self._count):
                    self.means.append(found.mean(values(self._rank, number)))
        except BaseException as error:  # noqa: BLE001  (looked at by the test)
            self.error = error

    def end(self) -> None:
        self.join(10)
        assert not self.is_alive()


def begin(
    listener: socket.socket, count: int, first: Position = Position(0, 0)
) -> list[Player]:
    """Players of so many ranks, welcomed, in the order of ranks."""
    players = sorted(
        (Player(listener.accept()[0]) for _ in range(count)),
        key=lambda one: one.hello.rank,
    )
    for player in players:
        player.write(wire.welcome(first))
    return players


def opened(listener: socket.socket, count: int) -> list[Player]:
    players = begin(listener, count)
    for player in players:
        assert player.codes(Position(0, 0)).size == 0
    for player in players:
        player.answer(Position(0, 0), np.empty(0, np.uint8))
    return players


def exchange(players: list[Player], at: Position) -> None:
    """A frame of all, answered to all."""
    own = np.stack([player.codes(at) for player in players])
    for player in players:
        player.answer(at, goal(own, Coding(8, 2)))


def test_a_rank_that_has_its_mean_is_there_for_one_that_has_not(
    listener: socket.socket,
) -> None:
    said: dict[int, Sequence[bytes]] = {}
    meet = threading.Barrier(2, timeout=10)

    def exchanging(rank: int) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
        def both(messages: Sequence[bytes]) -> Sequence[bytes]:
            said[rank] = messages
            meet.wait()
            found = [said[0][rank], said[1][rank]]
            meet.wait()
            return found

        return both

    ranks = [Work(listener, rank, exchanging(rank), count=2) for rank in range(2)]
    players = opened(listener, 2)
    exchange(players, Position(1, 0))
    # The answer to the last frame gets to rank 0, which goes on to the next scales, and not to rank 1.
    own = np.stack([player.codes(Position(1, 1)) for player in players])
    players[0].answer(Position(1, 1), goal(own, Coding(8, 2)))
    while not ranks[0].means:
        assert ranks[0].is_alive()
    for player in players:
        player.close()
    again = begin(listener, 2, Position(1, 1))
    assert [player.hello.needs for player in again] == [Position(2, 0), Position(1, 1)]
    for at in (Position(1, 1), Position(2, 0), Position(2, 1), Position(3, 0)):
        exchange(again, at)
    for rank in ranks:
        rank.end()
        assert rank.error is None
    for first, second in zip(ranks[0].means, ranks[1].means, strict=True):
        assert (first == second).all()


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        (
            lambda p: p.answer(Position(1, 1), np.zeros(8, np.uint8)),
            "frame 1 of collective 1 answered, not",
        ),
        (
            lambda p: p.answer(Position(1, 0), np.zeros(8, np.uint8)),
            "answered with 8 codes, not 32",
        ),
        (
            lambda p: p.answer(Position(2, 0), np.zeros(32, np.uint8)),
            "frame 0 of collective 2 answered",
        ),
        (lambda p: p.write(wire.welcome(Position(1, 0))), "WELCOME at a time"),
        (lambda p: p.write(b"HTTP/1.1 400 Bad"), "begins with"),
    ],
)
def test_what_is_no_answer_is_not_believed(
    listener: socket.socket, lie: Callable, cause: str
) -> None:
    work = Work(listener, 0, alone())
    (player,) = opened(listener, 1)
    player.codes(Position(1, 0))
    player.codes(Position(1, 1))
    lie(player)
    head, body = player.read()
    assert head.kind is FrameKind.ERROR
    assert cause in wire.read_error(body)[1]
    player.close()
    work.end()
    assert isinstance(work.error, ReduceFailed)
    assert cause in str(work.error)
    assert not work.means


def test_another_answer_than_before_is_not_believed(listener: socket.socket) -> None:
    work = Work(listener, 0, alone())
    (player,) = opened(listener, 1)
    player.answer(Position(1, 0), player.codes(Position(1, 0)))
    player.codes(Position(1, 1))
    player.close()
    (player,) = begin(listener, 1, Position(1, 0))
    own = player.codes(Position(1, 0))
    player.answer(Position(1, 0), own ^ 1)
    player.codes(Position(1, 1))
    assert (
        "frame 0 of collective 1 answered otherwise than before"
        in wire.read_error(player.read()[1])[1]
    )
    player.close()
    work.end()
    assert isinstance(work.error, ReduceFailed)


def test_an_error_from_the_averager_is_raised_with_its_rank(
    listener: socket.socket,
) -> None:
    work = Work(listener, 0, alone())
    (player,) = opened(listener, 1)
    player.write(wire.error(1, "rank 1: silent for 3 s while others wait"))
    work.end()
    assert isinstance(work.error, ReduceFailed)
    assert (work.error.rank, str(work.error)) == (
        1,
        "rank 1: silent for 3 s while others wait",
    )


def test_a_failure_of_the_rank_is_told_to_the_averager(listener: socket.socket) -> None:
    def broken(messages: Sequence[bytes]) -> Sequence[bytes]:
        raise ConnectionError("the control network is gone")

    work = Work(listener, 0, broken)
    (player,) = opened(listener, 1)
    head, body = player.read()
    assert head.kind is FrameKind.ERROR
    assert wire.read_error(body) == (NOBODY, "the control network is gone")
    player.close()
    work.end()
    assert isinstance(work.error, ConnectionError)


def test_what_another_rank_cannot_average_nobody_sends(listener: socket.socket) -> None:
    def other_has_nan(messages: Sequence[bytes]) -> Sequence[bytes]:
        return [messages[0], b"\1value 3 is nan"]

    work = Work(listener, 0, other_has_nan)
    (player,) = opened(listener, 1)
    assert player.read()[0].kind is FrameKind.ERROR
    player.close()
    work.end()
    assert isinstance(work.error, ReduceFailed)
    assert (work.error.rank, str(work.error)) == (1, "rank 1: value 3 is nan")


def test_nobody_at_the_address_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with pytest.raises(ReduceFailed, match=r"Connection refused; not back in 0\.3 s"):
        Averaging(address, UnitPlace(0, 2, 0, 2, 8), alone(), connect_timeout_s=0.3)


def test_a_frame_that_cuts_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="frames of 1000 codes"):
        UnitPlace(0, 2, 0, 2, 8, frame=1000)

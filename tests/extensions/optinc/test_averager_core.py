"""The averager without sockets: whole sessions in memory, in any order and any pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.emulated.core import DEPTH, Core, Ring, Unit
from ringlight.extensions.optinc.emulated.lookup import (
    Disagreement,
    Lookup,
    LookupSample,
    evaluate,
    load,
)
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.averaging import Coding, goal, mean_of_means
from ringlight.extensions.optinc.unit.network import Network, Table, wrong_of
from ringlight.extensions.optinc.unit.wire import (
    HEADER_BYTES,
    NOBODY,
    Form,
    FrameKind,
    Hello,
    Position,
)

FRAME = 64
CODING = Coding(8, 4)
TABLE = evaluate(None, CODING)


def core_of(unit: Unit | None = None, table: Table | None = None) -> Core:
    unit = unit or Unit(CODING)
    table = table or (TABLE if unit.coding == CODING else evaluate(None, unit.coding))
    return Core(unit, Lookup(table), LookupSample(None, unit.coding, 1, 8))


def hello(port: int, **other: object) -> Hello:
    return replace(Hello(port, 4, Form(8), 16, FRAME, Position(0, 0)), **other)  # type: ignore[arg-type]


def codes(
    port: int, position: Position, numbers: np.ndarray, form: Form = Form(8)
) -> bytes:
    return wire.header(FrameKind.CODES, position, numbers.size) + bytes(
        wire.pack(numbers, form)
    )


def give(
    core: Core, key: int, data: bytes, now: float = 0.0, piece: int = 10**9
) -> int:
    """Bytes that the core took before it took no more."""
    taken = 0
    while taken < len(data) and key in core.streams and len(room := core.room(key)):
        count = min(len(room), len(data) - taken, piece)
        room[:count] = data[taken : taken + count]
        core.received(key, count, now)
        taken += count
    return taken


def take(core: Core, key: int, now: float = 0.0) -> bytes:
    """All that goes out to a stream."""
    out = b""
    while key in core.streams and core.streams[key].outgoing:
        data = bytes(core.streams[key].outgoing[0].data)
        core.sent(key, len(data), now)
        out += data
    return out


def messages(data: bytes) -> list[tuple[wire.Header, bytes]]:
    found = []
    while data:
        head = wire.read_header(data)
        size = HEADER_BYTES + wire.body_bytes(head, Form(8))
        found.append((head, data[HEADER_BYTES:size]))
        data = data[size:]
    return found


def begun(core: Core, now: float = 0.0, first: Position = Position(0, 0)) -> None:
    """Four servers at keys 10 to 13, welcomed."""
    for port in range(4):
        core.connected(10 + port, now)
        give(core, 10 + port, wire.hello(hello(port, needs=first)), now)
    for port in range(4):
        assert [head.kind for head, _ in messages(take(core, 10 + port, now))] == [
            FrameKind.WELCOME
        ]


def errors(core: Core, ports: Sequence[int] = range(4)) -> set[tuple[int, str]]:
    """What the last message to each of the ports says; it must be an ERROR."""
    found = set()
    for port in ports:
        head, body = messages(take(core, 10 + port))[-1]
        assert head.kind is FrameKind.ERROR
        found.add(wire.read_error(body))
    return found


@settings(deadline=None)
@given(
    st.lists(st.integers(0, FRAME), min_size=1, max_size=6), st.integers(0, 2**32 - 1)
)
def test_any_order_and_any_pieces_give_the_exact_mean(
    sizes: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    numbers = [rng.integers(0, 256, (4, size)) for size in sizes]
    core = core_of()
    begun(core)
    left = [
        b"".join(
            codes(port, Position(c, 0), own[port]) for c, own in enumerate(numbers)
        )
        for port in range(4)
    ]
    got = [b""] * 4
    while any(left) or any(core.streams[10 + port].outgoing for port in range(4)):
        port = int(rng.integers(4))
        if rng.integers(2):
            got[port] += take(core, 10 + port)
        elif left[port]:
            part = left[port][: int(rng.integers(1, 200))]
            left[port] = left[port][give(core, 10 + port, part) :]
    expected = [goal(own, CODING).tolist() for own in numbers]
    for port in range(4):
        answers = messages(got[port])
        assert [head.position for head, _ in answers] == [
            Position(c, 0) for c in range(len(sizes))
        ]
        assert [list(body) for _, body in answers] == expected
    assert core.counts.frames == len(sizes)
    assert core.counts.codes == sum(sizes)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_a_ring_gives_back_what_went_in(steps: list[tuple[bool, int]]) -> None:
    ring, model, count = Ring(17), b"", 0
    for put, size in steps:
        if put:
            room = ring.room()
            size = min(size, len(room))
            new = bytes((count + i) % 256 for i in range(size))
            room[:size] = new
            ring.added(size)
            model, count = model + new, count + size
        else:
            size = min(size, ring.filled)
            assert bytes(ring.first(size)) == model[:size]
            ring.drop(size)
            model = model[size:]
        assert ring.filled == len(model)


def test_a_server_that_is_ahead_is_held_back() -> None:
    core = core_of()
    begun(core)
    frames = b"".join(codes(0, Position(0, f), np.full(FRAME, f)) for f in range(20))
    taken = give(core, 10, frames)
    # The first header has been read out of the ring.
    assert taken == DEPTH * (HEADER_BYTES + FRAME) + HEADER_BYTES
    for port in range(1, 4):
        give(core, 10 + port, frames[: HEADER_BYTES + FRAME])
    assert len(core.room(10)) > 0


def test_no_more_is_averaged_than_the_slowest_reader_takes() -> None:
    core = core_of()
    begun(core)
    frames = b"".join(codes(0, Position(0, f), np.full(FRAME, f)) for f in range(20))
    left = [frames] * 4
    for _ in range(40):
        for port in range(4):
            left[port] = left[port][give(core, 10 + port, left[port]) :]
        for port in range(3):
            take(core, 10 + port)
    assert core.counts.frames == DEPTH
    core.tick(2.9)
    assert not core.counts.errors
    core.tick(3.1)
    assert errors(core) == {(3, "rank 3: has read no answer for 3 s")}


def test_a_server_that_hangs_is_named() -> None:
    core = core_of(Unit(CODING, first_rank=8))
    begun(core)
    core.tick(100.0)  # nobody waits for anybody: nothing is wrong
    for port in (0, 1, 3):
        give(core, 10 + port, codes(port, Position(0, 0), np.zeros(FRAME, int)), 100.0)
    give(core, 12, codes(2, Position(0, 0), np.zeros(FRAME, int))[:40], 101.0)
    core.tick(103.9)
    assert not core.counts.errors
    core.tick(104.1)
    assert errors(core) == {(10, "rank 10: silent for 3 s while others wait")}


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (
            codes(2, Position(0, 0), np.zeros(9, int)),
            "frame 0 of collective 0 with 9 codes, others have",
        ),
        (
            codes(2, Position(1, 0), np.zeros(FRAME, int)),
            "frame 0 of collective 1 after the welcome",
        ),
        (
            codes(2, Position(0, 0), np.zeros(FRAME + 1, int)),
            "a frame of 65 codes, not of 64",
        ),
        (wire.header(FrameKind.WELCOME, Position(0, 0), 0), "WELCOME at a time"),
        (wire.error(NOBODY, "value 7 is nan"), "value 7 is nan"),
        (b"GET / HTTP/1.1\r\n", "begins with"),
    ],
)
def test_what_is_wrong_ends_in_an_error_to_all_that_names_the_rank(
    wrong: bytes, cause: str
) -> None:
    core = core_of()
    begun(core)
    for port in (0, 1, 3):
        give(core, 10 + port, codes(port, Position(0, 0), np.zeros(FRAME, int)))
    give(core, 12, wrong)
    ((rank, text),) = errors(core, (0, 1, 3))
    assert rank == 2
    assert text.startswith("rank 2")
    assert cause in text
    assert core.counts.frames == 0
    # And whoever comes now finds an averager that works.
    for port in range(4):
        core.lost(10 + port, "closed", 1.0)
    begun(core, 2.0)


def test_frames_of_a_server_must_follow_each_other() -> None:
    core = core_of()
    begun(core)
    give(core, 10, codes(0, Position(0, 0), np.zeros(FRAME, int)))
    give(core, 10, codes(0, Position(0, 2), np.zeros(FRAME, int)))
    for port in range(1, 4):
        give(core, 10 + port, codes(port, Position(0, 0), np.zeros(FRAME, int)))
    assert errors(core) == {
        (0, "rank 0: frame 2 of collective 0 after frame 0 of collective 0")
    }


@pytest.mark.parametrize(
    ("change", "rank", "cause"),
    [
        (
            {"block": 32},
            2,
            "rank 2 has blocks of 32 values in frames of 64, others have blocks of 16",
        ),
        ({"frame": 32}, 2, "rank 2 has blocks of 16 values in frames of 32"),
        ({"form": Form(7)}, 2, "rank 2: codes of 7 bits"),
        ({"form": Form(8, 4)}, 2, "rank 2: codes of 8 bits with 4 parts"),
    ],
)
def test_servers_that_code_otherwise_are_refused(
    change: dict, rank: int, cause: str
) -> None:
    core = core_of()
    for port in range(4):
        core.connected(10 + port, 0.0)
    for port in (2, 0, 1, 3):
        give(core, 10 + port, wire.hello(hello(port, **(change if port == 2 else {}))))
    ((found, text),) = errors(core)
    assert found == rank
    assert text.startswith(cause)


def test_a_lost_server_that_does_not_come_back_is_named() -> None:
    core = core_of()
    begun(core)
    core.lost(12, "Connection reset by peer", 5.0)
    assert all(core.streams[10 + port].closing_since is not None for port in (0, 1, 3))
    for port in (0, 1, 3):
        core.lost(10 + port, "closed", 5.1)
        core.connected(10 + port, 5.1)
        give(core, 10 + port, wire.hello(hello(port, needs=Position(3, 1))), 5.1)
    core.tick(8.0)
    assert not core.counts.errors
    core.tick(8.2)
    expected = (
        "rank 2: not connected 3 s after the first (rank 2: Connection reset by peer)"
    )
    assert errors(core, (0, 1, 3)) == {(2, expected)}


def test_servers_that_come_back_begin_at_the_lowest_frame_that_any_needs() -> None:
    core = core_of()
    needs = [Position(4, 0), Position(3, 7), Position(4, 1), Position(3, 7)]
    for port in range(4):
        core.connected(10 + port, 0.0)
        give(core, 10 + port, wire.hello(hello(port, needs=needs[port])))
    for port in range(4):
        assert messages(take(core, 10 + port))[0][0].position == Position(3, 7)
    for port in range(4):
        give(core, 10 + port, codes(port, Position(3, 7), np.full(5, port)))
    assert [messages(take(core, 10 + port))[0][1] for port in range(4)] == [
        bytes([1] * 5)
    ] * 4


def test_a_table_that_the_network_does_not_agree_with_answers_nothing() -> None:
    answers = TABLE.answers.copy()
    answers[0] += 1
    core = core_of(table=Table(CODING, answers, 0.0))
    begun(core)
    for port in range(4):
        give(core, 10 + port, codes(port, Position(0, 0), np.zeros(FRAME, int)))
    ((rank, cause),) = errors(core)
    assert rank == NOBODY
    assert "the table says 1, the network 0 for [0, 0, 0, 0]" in cause


def cascaded(first: Coding, second: Coding, numbers: np.ndarray) -> np.ndarray:
    """What five units answer to numbers (4 units, 4 servers, size)."""
    top = core_of(Unit(second, first_rank=None))
    units = [core_of(Unit(first, first_rank=4 * i, above=(i, 4))) for i in range(4)]
    for i, core in enumerate(units):
        for port in range(4):
            core.connected(10 + port, 0.0)
            give(core, 10 + port, wire.hello(hello(port)))
        assert core.calls_above
        core.connected_above(99, 0.0)
        top.connected(10 + i, 0.0)
    for _ in range(4):
        for i, core in enumerate(units):
            give(top, 10 + i, take(core, 99))
            give(core, 99, take(top, 10 + i))
            if core.streams[10].outgoing and core.counts.frames == 0:
                for port in range(4):
                    assert (
                        messages(take(core, 10 + port))[0][0].kind is FrameKind.WELCOME
                    )
                    give(core, 10 + port, codes(port, Position(0, 0), numbers[i, port]))
    answers = {
        messages(take(core, 10 + port))[0][1] for core in units for port in range(4)
    }
    (answer,) = answers
    return np.frombuffer(answer, np.uint8)


def test_five_units_answer_equation_8_with_decimals_and_equation_9_without() -> None:
    numbers = np.random.default_rng(3).integers(0, 256, (4, 4, FRAME))
    with_decimals = cascaded(Coding(8, 4, leaving=4), Coding(8, 4, arriving=4), numbers)
    assert (with_decimals == goal(numbers.reshape(16, FRAME), Coding(8, 16))).all()
    without = cascaded(Coding(8, 4), Coding(8, 4), numbers)
    assert (without == mean_of_means(numbers, 8)).all()
    assert (without != with_decimals).any()


def test_an_error_below_reaches_all_units_with_its_rank() -> None:
    core = core_of(Unit(Coding(8, 4, leaving=4), first_rank=4, above=(1, 4)))
    for port in range(4):
        core.connected(10 + port, 0.0)
        give(core, 10 + port, wire.hello(hello(port)))
    core.connected_above(99, 0.0)
    give(core, 99, wire.welcome(Position(0, 0)))
    take(core, 99)
    give(core, 13, wire.error(NOBODY, "value 7 is nan"))
    ((_, body),) = messages(take(core, 99))
    assert wire.read_error(body) == (7, "rank 7: value 7 is nan")
    top = core_of(Unit(Coding(8, 4, arriving=4), first_rank=None))
    for port in range(4):
        top.connected(10 + port, 0.0)
        give(top, 10 + port, wire.hello(hello(port, form=Form(8, 4))))
        take(top, 10 + port)
    give(top, 11, wire.error(7, "rank 7: value 7 is nan"))
    assert errors(top, (0, 2, 3)) == {(7, "rank 7: value 7 is nan")}


def test_an_averager_above_that_is_lost_begins_everything_anew() -> None:
    core = core_of(Unit(Coding(8, 4, leaving=4), above=(1, 4)))
    for port in range(4):
        core.connected(10 + port, 0.0)
        give(core, 10 + port, wire.hello(hello(port)))
    core.connected_above(99, 0.0)
    give(core, 99, wire.welcome(Position(0, 0)))
    core.lost(99, "closed", 1.0)
    assert all(core.streams[10 + port].closing_since == 1.0 for port in range(4))
    for port in range(4):
        core.connected(20 + port, 1.0)
        give(core, 20 + port, wire.hello(hello(port, needs=Position(2, 0))), 1.0)
    core.not_connected_above("Connection refused")
    assert core.calls_above
    core.tick(4.9)
    assert core.calls_above
    core.tick(5.1)
    _, body = messages(take(core, 20))[-1]
    assert wire.read_error(body) == (
        NOBODY,
        "the averager above does not answer in 4 s (Connection refused)",
    )


@pytest.mark.parametrize(
    "coding",
    [
        Coding(8, 4),
        Coding(8, 3),
        Coding(8, 6),
        Coding(7, 4),
        Coding(8, 4, leaving=4),
        Coding(8, 4, arriving=4),
    ],
)
def test_a_lookup_answers_as_the_exact_mean(coding: Coding) -> None:
    rng = np.random.default_rng(5)
    numbers = rng.integers(
        0, coding.arriving * 2**coding.bits, (coding.servers, 40000)
    ).astype(np.uint8 if coding.arriving == 1 else np.uint16)
    lookup = Lookup(evaluate(None, coding))
    assert (lookup(list(numbers)) == goal(numbers, coding)).all()


def test_weights_are_read_evaluated_and_their_wrong_answers_counted(
    tmp_path: Path,
) -> None:
    # Answers 0 to everything: wrong wherever the mean is at least 1.
    weights = {
        "w1": np.zeros((8, 4)),
        "b1": np.zeros(8),
        "w2": np.zeros((4, 8)),
        "b2": np.zeros(4),
    }
    np.savez(tmp_path / "zero.npz", **weights)
    network = load(str(tmp_path / "zero.npz"))
    assert isinstance(network, Network)
    table = evaluate(network, CODING)
    exact = evaluate(load("exact"), CODING)
    assert wrong_of(exact).wrong == 0
    assert wrong_of(table).wrong == int((exact.answers > 0).sum()) > 0
    # Live values agree with what the network says, right or not.
    numbers = np.random.default_rng(6).integers(0, 256, (4, 100)).astype(np.uint8)
    sample = LookupSample(network, CODING, 1, 10)
    sample.check(numbers, Lookup(table)(list(numbers)))
    assert sample.checked == 10
    with pytest.raises(Disagreement):
        sample.check(numbers, Lookup(exact)(list(numbers)))


@pytest.mark.parametrize("content", [b"", b"PK", b"not weights"])
def test_a_file_that_has_no_weights_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.npz"):
        load(str(path))

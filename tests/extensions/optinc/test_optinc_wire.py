"""The stream between server and averager: what is written is read, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.wire import (
    Form,
    FrameKind,
    Hello,
    Position,
    WireError,
)

numbers_32 = st.integers(0, 2**32 - 1)
positions = st.builds(Position, numbers_32, numbers_32)
forms = st.builds(
    Form, st.integers(2, 16), st.sampled_from([1, 2, 3, 4, 5, 16, 17, 64, 256])
)


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    servers = draw(st.integers(1, 65535))
    return Hello(
        rank=draw(st.integers(0, servers - 1)),
        servers=servers,
        form=draw(forms),
        block=draw(st.integers(1, 2**32 - 1)),
        frame=draw(st.integers(1, wire.MOST_CODES)),
        needs=draw(positions),
    )


@given(hellos())
def test_a_hello_is_read_as_it_was_said(said: Hello) -> None:
    data = wire.hello(said)
    head = wire.read_header(data)
    assert head.kind is FrameKind.HELLO
    assert wire.body_bytes(head, said.form) == len(data) - wire.HEADER_BYTES
    assert wire.read_hello(head, data[wire.HEADER_BYTES :]) == said


@given(forms, st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_codes_come_out_as_they_went_in(form: Form, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, form.parts * 2**form.bits, count)
    body = wire.pack(numbers, form)
    assert len(body) == form.bytes_of(count)
    assert (wire.unpack(bytes(body), count, form) == numbers).all()


def test_codes_are_little_endian_and_decimals_come_after_them() -> None:
    assert bytes(wire.pack(np.array([0x1234, 5]), Form(16))) == bytes.fromhex(
        "3412 0500"
    )
    # 4 parts: numbers are 4 code + decimal; decimals 1, 2, 3, 0, 3 are two bits each, the first lowest.
    numbers = np.array([4 * 7 + 1, 4 * 8 + 2, 4 * 9 + 3, 0, 4 * 255 + 3])
    assert bytes(wire.pack(numbers, Form(8, 4))) == bytes(
        [7, 8, 9, 0, 255, 0b00111001, 0b11]
    )


@pytest.mark.parametrize(
    ("form", "most"),
    [(Form(8), 1.001), (Form(16), 2.001), (Form(8, 4), 1.251), (Form(8, 16), 1.501)],
)
def test_overhead_of_a_frame(form: Form, most: float) -> None:
    assert wire.HEADER_BYTES + form.bytes_of(wire.FRAME) <= most * wire.FRAME


@pytest.mark.parametrize(
    ("form", "number"), [(Form(7), 128), (Form(12), 4096), (Form(8, 3), None)]
)
def test_a_code_out_of_range_is_refused_by_its_place(
    form: Form, number: int | None
) -> None:
    body = bytearray(wire.pack(np.zeros(9, np.uint16), form))
    if number is None:
        body[9] = 0b1100  # the decimal 3 of code 1, with 3 parts
        with pytest.raises(WireError, match="code 1 of a frame is 3: below 3"):
            wire.unpack(body, 9, form)
        return
    item = len(body) // 9
    body[3 * item : 4 * item] = number.to_bytes(item, "little")
    with pytest.raises(
        WireError, match=f"code 3 of a frame is {number}: below {number}"
    ):
        wire.unpack(body, 9, form)


@given(st.integers(-1, 2**31 - 1), st.text())
def test_an_error_carries_rank_and_cause(rank: int, cause: str) -> None:
    data = wire.error(rank, cause.encode(errors="replace").decode())
    head = wire.read_header(data)
    assert (head.kind, head.count) == (FrameKind.ERROR, len(data) - wire.HEADER_BYTES)
    found = wire.read_error(data[wire.HEADER_BYTES :])
    assert found[0] == rank
    assert (
        cause.encode(errors="replace")[: wire.MOST_CAUSE].decode(errors="replace")
        == found[1]
    )


@given(st.binary(min_size=16, max_size=16))
def test_what_is_no_header_is_refused(data: bytes) -> None:
    try:
        head = wire.read_header(data)
    except WireError:
        return
    assert data[:2] == b"OI"
    assert head.count <= wire.MOST_CODES


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda d: b"XX" + d[2:], "begins with"),
        (lambda d: d[:2] + b"\x09" + d[3:], "no message of kind 9"),
        (lambda d: d[:12] + b"\xff\xff\xff\x7f" + d[16:], "HELLO with a count"),
        (lambda d: d[:16] + b"\x07" + d[17:], "version 7"),
        (lambda d: d[:18] + b"\x04" + d[19:], "rank 4 of 4 servers"),
        (lambda d: d[:22] + b"\x01" + d[23:], "1 bits"),
        (lambda d: d[:-4] + bytes(4), "frames of 0 codes"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(change, cause: str) -> None:
    data = change(wire.hello(Hello(1, 4, Form(8), 1024, wire.FRAME, Position(3, 2))))
    with pytest.raises(WireError, match=cause):
        wire.read_hello(wire.read_header(data), data[wire.HEADER_BYTES :])


def test_what_follows_a_frame() -> None:
    assert Position(3, 5).follows(Position(3, 4))
    assert Position(4, 0).follows(Position(3, 4))
    for other in (
        Position(3, 4),
        Position(3, 6),
        Position(4, 1),
        Position(5, 0),
        Position(3, 0),
    ):
        assert not other.follows(Position(3, 4))

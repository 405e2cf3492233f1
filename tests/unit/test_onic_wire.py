"""The control messages as bytes: every message survives, no bytes whatever raise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.onic.control_messages import (
    DENY,
    FROM_SOURCE,
    GRANT,
    KINDS,
    QUEUED,
    REASONS,
    REQUEST,
    Message,
)
from ringlight.controller.onic.wire import (
    MAX_DURATION_S,
    MESSAGE_BYTES,
    VERSION,
    VERSION_MESSAGE,
    OtherVersion,
    decode,
    encode,
    parse_address,
)

numbers = st.integers(0, 2**64 - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(sorted(KINDS)))
    detail = 0
    if kind == QUEUED:
        detail = draw(st.integers(0, 0xFFFF))
    elif kind == DENY:
        detail = draw(st.sampled_from(sorted(REASONS)))
    return Message(
        kind,
        draw(st.integers(0, 1)),
        draw(numbers),
        draw(numbers),
        draw(st.integers(1, 2**64 - 1)),
        draw(st.floats(-1e17, 1e17)),
        draw(st.floats(0, MAX_DURATION_S)),
        detail,
    )


@given(messages())
def test_every_message_survives_the_way(message: Message) -> None:
    data = encode(message)
    assert len(data) == MESSAGE_BYTES == 48
    assert decode(data) == message


@given(st.binary(max_size=100))
def test_no_bytes_raise(data: bytes) -> None:
    decoded = decode(data)
    assert decoded is None or isinstance(decoded, Message | OtherVersion)


@given(messages(), st.integers(0, 47), st.integers(0, 255))
def test_one_changed_byte_is_malformed_or_another_message_that_can_be_sent(
    message: Message, place: int, value: int
) -> None:
    data = bytearray(encode(message))
    data[place] = value
    decoded = decode(bytes(data))
    if isinstance(decoded, Message):
        assert encode(decoded) == bytes(data)


@given(messages(), st.integers(0, 60))
def test_any_other_length_is_malformed(message: Message, length: int) -> None:
    data = (encode(message) + bytes(20))[:length]
    assert (decode(data) is None) == (length != MESSAGE_BYTES)


def field(message: Message, **change: object) -> bytes:
    return encode(message._replace(**change))  # type: ignore[arg-type]


REQUESTING = Message(REQUEST, 0, 7, 7, 1, 2.5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RL",
        field(REQUESTING, kind=99),
        field(REQUESTING, port=2),
        field(REQUESTING, seq=0),
        field(REQUESTING, detail=1),
        field(REQUESTING, kind=DENY),
        field(REQUESTING, kind=DENY, detail=77),
        field(REQUESTING, stamp_s=float("nan")),
        field(REQUESTING, stamp_s=float("inf")),
        field(REQUESTING, kind=GRANT, value_s=float("nan")),
        field(REQUESTING, kind=GRANT, value_s=-1.0),
        field(REQUESTING, kind=GRANT, value_s=MAX_DURATION_S * 2),
        b"XX" + encode(REQUESTING)[2:],
        encode(REQUESTING)[:5] + b"\x01" + encode(REQUESTING)[6:],
    ],
)
def test_malformed(data: bytes) -> None:
    assert decode(data) is None


def test_layout_is_the_documented_one() -> None:
    data = encode(
        Message(
            DENY,
            1,
            0x0102030405060708,
            0x1112131415161718,
            0x2122232425262728,
            1.5,
            0.25,
            3,
        )
    )
    assert data.hex(" ", 8) == (
        "524c010401000003 0102030405060708 1112131415161718 2122232425262728"
        " 3ff8000000000000 3fd0000000000000"
    )


def test_other_versions_are_told_apart_from_rubbish() -> None:
    other = encode(REQUESTING)[:2] + bytes([VERSION + 1]) + encode(REQUESTING)[3:]
    assert decode(other) == OtherVersion(VERSION + 1, answer=True)
    # Only the first four bytes of a later version are known.
    assert decode(other[:4]) == OtherVersion(VERSION + 1, answer=True)
    told = VERSION_MESSAGE[:2] + bytes([VERSION + 1]) + VERSION_MESSAGE[3:]
    assert decode(told) == OtherVersion(VERSION + 1, answer=False)
    assert decode(VERSION_MESSAGE) is None


def test_who_sends_what() -> None:
    assert sorted(KINDS[kind] for kind in FROM_SOURCE) == [
        "confirm",
        "release",
        "renew",
        "request",
    ]


@pytest.mark.parametrize(
    "text", ["", "10.83.0.3", ":7900", "10.83.0.3:", "10.83.0.3:0", "a:99999", None]
)
def test_bad_address(text: object) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)

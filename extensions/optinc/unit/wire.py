"""The stream between a server and an averager, as bytes in and out.

A message is a header of 16 bytes and a body, all little endian::

    bytes  0-1   "OI"
           2     kind
           3     0
           4-7   number of the collective
           8-11  number of the frame in it
          12-15  count: codes of a frame, else bytes of the body

A server begins with HELLO: who it is, how it codes, and, in the header, which frame it needs next. Once all
have come, WELCOME names the frame from which on all of them send: the lowest that any of them needs. Then a
frame CODES from each server is answered by one frame ANSWER to each. The frames of a collective are numbered
from 0; each but the last has as many codes as HELLO says. A server that ends sends an empty frame, whose
answer says that all have all their answers. ERROR, from either side, names a rank and a cause, and is the
last message.

An averager keeps nothing of a frame that it has answered, so one that is started again needs only HELLO.

A code is 1 byte up to 8 bits and 2 bytes above. Between two averagers (``averaging``, Eq. 10) the last
symbol is divided into ``parts``: then all the whole codes of a frame come first and their decimals after
them, each in the fewest of 1, 2, 4 or 8 bits that hold it, the first in the lowest bits. With 4 parts and 8
bits that is 1.25 bytes for a code, 25 % more than the same codes alone. In light it is nothing more: the
last symbol has more levels.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.fabric.whole_numbers.blocks import code_type

VERSION = 1
#: Codes of a frame, unless another number is chosen. With 8 bits it fills three TCP segments of packets
#: of 9,000 bytes (3 x 8,948); the header is 0.06 % of that.
FRAME = 26 * 1024
MOST_CODES = 2**20
#: Longest cause of an error, bytes of UTF-8.
MOST_CAUSE = 1000
_MAGIC = b"OI"
_HEADER = struct.Struct("<2sBxIII")
_HELLO = struct.Struct("<HHHBBII")
_RANK = struct.Struct("<i")
HEADER_BYTES = _HEADER.size
#: In place of a rank: nobody's, or not known.
NOBODY = -1


class WireError(ValueError):
    """Bytes that do not follow this protocol. The message is one line."""


class FrameKind(IntEnum):
    HELLO = 1
    WELCOME = 2
    CODES = 3
    ANSWER = 4
    ERROR = 5


@dataclass(frozen=True, order=True)
class Position:
    """A frame of a collective."""

    collective: int
    frame: int

    def follows(self, before: Position) -> bool:
        """Return whether this frame may come right after ``before``.

        It may if it is the next frame, or the first of the next collective.
        """
        return self in (
            Position(before.collective, before.frame + 1),
            Position(before.collective + 1, 0),
        )

    def __str__(self) -> str:
        return f"frame {self.frame} of collective {self.collective}"


@dataclass(frozen=True)
class Header:
    """See the module's text. ``count``: codes of CODES and ANSWER, else bytes of the body."""

    kind: FrameKind
    position: Position
    count: int


@dataclass(frozen=True)
class Form:
    """Coding of numbers on the wire: ``bits`` of a code, and into how many ``parts`` its last symbol is
    divided.
    """

    bits: int
    parts: int = 1

    def __post_init__(self) -> None:
        code_type(self.bits)
        if not 1 <= self.parts <= 256:
            raise ValueError(f"{self.parts} parts of a symbol: 1 to 256 are possible")

    @property
    def decimal_bits(self) -> int:
        """Bits of a decimal on the wire: 0, 1, 2, 4 or 8."""
        return next(width for width in (0, 1, 2, 4, 8) if 2**width >= self.parts)

    def bytes_of(self, count: int) -> int:
        """Return the bytes of ``count`` codes."""
        return count * code_type(self.bits).itemsize + -(
            -count * self.decimal_bits // 8
        )


@dataclass(frozen=True)
class Hello:
    """Introduction of a server.

    rank     its port of the averager, 0 .. servers - 1
    form     of the codes that it sends; plain ones come back
    block    values that share a scale
    frame    codes of each frame but a collective's last
    needs    the first frame whose answer it has not got
    """

    rank: int
    servers: int
    form: Form
    block: int
    frame: int
    needs: Position


def header(kind: FrameKind, position: Position, count: int) -> bytes:
    """Return the first HEADER_BYTES of a message."""
    return _HEADER.pack(_MAGIC, kind, position.collective, position.frame, count)


def read_header(data: bytes | bytearray | memoryview) -> Header:
    """Parse the first HEADER_BYTES of ``data`` and return the header.

    Raises WireError for another magic, an unknown kind, and a count that is too large for its kind.
    """
    magic, kind, collective, frame, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise WireError(f"a message begins with {magic!r}, not {_MAGIC!r}")
    try:
        head = Header(FrameKind(kind), Position(collective, frame), count)
    except ValueError:
        raise WireError(f"there is no message of kind {kind}") from None
    most = {
        FrameKind.HELLO: _HELLO.size,
        FrameKind.WELCOME: 0,
        FrameKind.CODES: MOST_CODES,
        FrameKind.ANSWER: MOST_CODES,
        FrameKind.ERROR: _RANK.size + MOST_CAUSE,
    }[head.kind]
    if count > most:
        raise WireError(f"{head.kind.name} with a count of {count}: at most {most}")
    return head


def body_bytes(head: Header, form: Form) -> int:
    """Return the number of bytes after the header; ``form`` is that of the codes in this direction."""
    return (
        form.bytes_of(head.count)
        if head.kind in (FrameKind.CODES, FrameKind.ANSWER)
        else head.count
    )


def hello(message: Hello) -> bytes:
    """Return the message HELLO."""
    form = message.form
    body = _HELLO.pack(
        VERSION,
        message.rank,
        message.servers,
        form.bits,
        form.parts % 256,
        message.block,
        message.frame,
    )
    return header(FrameKind.HELLO, message.needs, len(body)) + body


def read_hello(head: Header, body: bytes) -> Hello:
    """Return the content of a HELLO.

    Raises WireError for another version, and for values that no server can have.
    """
    if len(body) != _HELLO.size:
        raise WireError(f"a HELLO of {len(body)} bytes, not {_HELLO.size}")
    version, rank, servers, bits, parts, block, frame = _HELLO.unpack(body)
    if version != VERSION:
        raise WireError(f"version {version} of the protocol; this is version {VERSION}")
    if not rank < servers:
        raise WireError(f"rank {rank} of {servers} servers")
    if not 1 <= frame <= MOST_CODES or not block:
        raise WireError(
            f"frames of {frame} codes in blocks of {block}: 1 to {MOST_CODES}, and at least 1"
        )
    try:
        return Hello(
            rank, servers, Form(bits, parts or 256), block, frame, head.position
        )
    except ValueError as error:
        raise WireError(str(error)) from None


def welcome(first: Position) -> bytes:
    """Return the message WELCOME: all servers send from ``first`` on."""
    return header(FrameKind.WELCOME, first, 0)


def error(rank: int, cause: str) -> bytes:
    """Return the message ERROR; ``rank``: the rank that is at fault, or NOBODY."""
    text = cause.encode()[:MOST_CAUSE]
    return (
        header(FrameKind.ERROR, Position(0, 0), _RANK.size + len(text))
        + _RANK.pack(rank)
        + text
    )


def read_error(body: bytes) -> tuple[int, str]:
    """Return the rank and the cause of an ERROR. Raises WireError for a body that is too short."""
    if len(body) < _RANK.size:
        raise WireError(f"an ERROR of {len(body)} bytes")
    return _RANK.unpack_from(body)[0], body[_RANK.size :].decode(errors="replace")


def pack(numbers: NDArray[Any], form: Form) -> bytes | memoryview:
    """Return the body of a frame of ``numbers``, one dimension, which count parts: 0 .. parts 2^bits - 1.

    Plain codes of :func:`code_type` are not copied. Numbers out of range are not detected.
    """
    kind = code_type(form.bits).newbyteorder("<")
    if form.parts == 1:
        return np.ascontiguousarray(numbers, kind).view(np.uint8).data
    whole, decimals = np.divmod(numbers, form.parts)
    each = 8 // form.decimal_bits
    padded = np.zeros(-(-decimals.size // each) * each, np.uint8)
    padded[: decimals.size] = decimals
    shifts = (form.decimal_bits * np.arange(each)).astype(np.uint8)
    bundled: NDArray[np.uint8] = np.bitwise_or.reduce(
        padded.reshape(-1, each) << shifts, axis=1
    )
    return bytes(whole.astype(kind).tobytes() + bundled.tobytes())


def unpack(
    body: bytes | bytearray | memoryview, count: int, form: Form
) -> NDArray[Any]:
    """Return the ``count`` numbers of a frame's body; plain codes are a view of it.

    Raises WireError for another number of bytes, and for a number out of range, naming its place.
    """
    if len(body) != form.bytes_of(count):
        raise WireError(
            f"{count} codes are {form.bytes_of(count)} bytes, not {len(body)}"
        )
    kind = code_type(form.bits).newbyteorder("<")
    whole = np.frombuffer(body, kind, count).astype(kind.newbyteorder("="), copy=False)
    if form.bits not in (8, 16):
        _check(whole, 2**form.bits)
    if form.parts == 1:
        return whole
    bundled = np.frombuffer(body, np.uint8, offset=count * kind.itemsize)
    shifts = (form.decimal_bits * np.arange(8 // form.decimal_bits)).astype(np.uint8)
    decimals = (bundled[:, None] >> shifts & (2**form.decimal_bits - 1)).reshape(-1)[
        :count
    ]
    if form.parts != 2**form.decimal_bits:
        _check(decimals, form.parts)
    numbers: NDArray[np.uint32] = (
        whole.astype(np.uint32) * np.uint32(form.parts) + decimals
    )
    return numbers


def _check(values: NDArray[Any], end: int) -> None:
    if values.size and int(values.max()) >= end:
        place = int(np.argmax(values >= end))
        raise WireError(f"code {place} of a frame is {values[place]}: below {end}")

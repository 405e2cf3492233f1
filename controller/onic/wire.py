"""The control messages as bytes; every field is in ``docs/onic-protocol.md``.

The first four bytes (magic, version, kind) and the four-byte VERSION message are the same in every version of
the protocol, so that O-NICs of different versions can tell each other why they do not understand.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ringlight.controller.onic.control_messages import (
    DENY,
    KINDS,
    QUEUED,
    REASONS,
    Message,
)

MAGIC = b"RL"
VERSION = 1
#: "I speak this version": the only message that is understood across versions. Never answered.
VERSION_KIND = 0
_HEAD = struct.Struct("!2sBB")
_MESSAGE = struct.Struct("!2sBBBxHQQQdd")
MESSAGE_BYTES = _MESSAGE.size
VERSION_MESSAGE = _HEAD.pack(MAGIC, VERSION, VERSION_KIND)
#: Longer durations are malformed, seconds.
MAX_DURATION_S = 1e6
PORTS = 2


def parse_address(text: object) -> tuple[str, int]:
    """Return ``"10.83.0.3:7900"`` as a socket address. Raises ValueError."""
    host, _, port = str(text).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


class OtherVersion(NamedTuple):
    """A message of another version; ``answer``: whether to tell its sender which version is spoken here."""

    version: int
    answer: bool


def encode(message: Message) -> bytes:
    """Return a message as 48 bytes. Raises struct.error if a field does not fit."""
    kind, port, epoch, flow_epoch, seq, stamp_s, value_s, detail = message
    return _MESSAGE.pack(
        MAGIC, VERSION, kind, port, detail, epoch, flow_epoch, seq, stamp_s, value_s
    )


def decode(data: bytes) -> Message | OtherVersion | None:
    """Return the message in a datagram; None if the datagram is malformed. Never raises."""
    if len(data) != MESSAGE_BYTES or data[:3] != b"RL\x01":
        return _decode_other(data)
    _, _, kind, port, detail, epoch, flow_epoch, seq, stamp_s, value_s = (
        _MESSAGE.unpack(data)
    )
    # Written so that NaN fails, too.
    if kind not in KINDS or port >= PORTS or data[5] or not seq:
        return None
    if not -1e18 < stamp_s < 1e18 or not 0.0 <= value_s <= MAX_DURATION_S:
        return None
    sound = detail in REASONS if kind == DENY else kind == QUEUED or detail == 0
    if not sound:
        return None
    return Message(kind, port, epoch, flow_epoch, seq, stamp_s, value_s, detail)


def _decode_other(data: bytes) -> OtherVersion | None:
    if len(data) < _HEAD.size:
        return None
    magic, version, kind = _HEAD.unpack_from(data)
    if magic != MAGIC or version == VERSION:
        return None
    return OtherVersion(version, kind != VERSION_KIND)

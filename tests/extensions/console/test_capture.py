"""What a capture file holds, read back by colour."""

from __future__ import annotations

import struct

import pytest

from ringlight.extensions.console.capture import Seen, described, records, summary


def pcap(*packets: tuple[int | None, int], order: str = "<", kept: int = 64) -> bytes:
    """Packets as (802.1Q tag, length on the wire)."""
    data = struct.pack(f"{order}IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 256, 1)
    for tag, length in packets:
        head = (
            bytes(12)
            + (b"" if tag is None else struct.pack("!HH", 0x8100, tag))
            + b"\x08\x00"
        )
        body = head.ljust(kept, b"\0")
        data += struct.pack(f"{order}IIII", 1, 2, len(body), length) + body
    return data


@pytest.mark.parametrize("order", ["<", ">"])
def test_bytes_are_counted_by_colour_and_without_the_tag(order: str) -> None:
    # Tag c + 1 is channel c; the upper bits are its priority.
    data = pcap((1, 104), (2, 1004), (0xE000 | 2, 504), (None, 60), order=order)
    assert summary(data) == [Seen(None, 1, 60), Seen(0, 1, 100), Seen(1, 2, 1500)]
    assert list(described(summary(data))) == [
        "no colour: 1 packets, 60 bytes",
        "λ0: 1 packets, 100 bytes",
        "λ1: 2 packets, 1500 bytes",
    ]


def test_a_record_that_is_cut_off_is_left_out() -> None:
    whole = pcap((1, 104), (1, 204))
    assert [length for _, length in records(whole[:-1])] == [104]
    assert [length for _, length in records(whole[: -64 - 5])] == [104]
    assert summary(pcap()) == []


@pytest.mark.parametrize("data", [b"", b"text", bytes(100), pcap()[:20]])
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no capture file"):
        summary(data)

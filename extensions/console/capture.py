"""Packets of one port as tcpdump sees them, and what a capture file holds, by colour."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ringlight.fabric.parts import Port
from ringlight.testbed.emulation.attached import Attached, NodePlace
from ringlight.testbed.lab import NIC, LabError

Direction = Literal["in", "out", "inout"]

_VLAN = b"\x81\x00"
_TAG_BYTES = 4
#: Byte order and time resolution by the first four bytes of a capture file.
_MAGIC = {
    b"\xd4\xc3\xb2\xa1": "<",
    b"\x4d\x3c\xb2\xa1": "<",
    b"\xa1\xb2\xc3\xd4": ">",
    b"\xa1\xb2\x3c\x4d": ">",
}
_FILE_HEADER, _RECORD_HEADER = 24, 16
#: Enough of each packet for its headers; the length that is counted is the whole packet's.
SNAP_BYTES = 256
#: Size of tcpdump's buffer in the kernel, for packets that come while it has no processor.
BUFFER_KIB = 16384
#: tcpdump ends within this after it was told to, seconds.
END_S = 10.0
#: tcpdump is let run on for so long, which takes from the kernel what came before, seconds.
LAG_S = 0.3


@dataclass(frozen=True)
class Tap:
    """Interface at which a port's packets are captured. ``tagged``: each packet carries its colour as an
    802.1Q tag."""

    place: NodePlace
    interface: str
    tagged: bool


def tap_of(lab: Attached, text: str) -> Tap:
    """Return the tap of port ``NODE:PORT`` of the fabric, or of a GPU's NIC if ``text`` is a GPU's name.
    Raises LabError."""
    fabric = lab.fabric
    if text in fabric.gpus:
        return Tap(lab.place(text), NIC, tagged=False)
    node, _, number = text.rpartition(":")
    port = Port(node, int(number)) if node and number.isdigit() else None
    plugged = {
        end for link in (*fabric.links, *fabric.cables) for end in (link.a, link.b)
    }
    if port not in plugged:
        near = sorted(str(end) for end in plugged if end.node in (node, text))
        if near:
            raise LabError(
                f"nothing is plugged into {text}; of {node or text} there is {', '.join(near)}"
            )
        raise LabError(
            f"{text!r} is neither a GPU nor a port such as ocs0:1 with something plugged in"
        )
    assert port is not None
    link = next(
        link for link in (*fabric.links, *fabric.cables) if port in (link.a, link.b)
    )
    tagged = any(is_tagged(lab, end) for end in (link.a, link.b))
    return Tap(lab.place(lab.owner(port)), lab.interface(port), tagged)


def is_tagged(lab: Attached, port: Port) -> bool:
    """Return whether packets at a port carry their colour themselves, as at the switches of WDM rings."""
    switch = lab.fabric.optical_switches.get(port.node)
    if switch is None or switch.wavelengths is None:
        return False
    # Here, as most captures need neither Mininet nor netlink.
    from ringlight.testbed.emulation.onic.wiring import is_tagged as at_switch

    return at_switch(lab.fabric, port.node)


def command(
    tap: Tap, direction: Direction, write: str | None, count: int | None
) -> list[str]:
    """Return the words of the tcpdump command. Raises LabError if tcpdump is not installed."""
    if shutil.which("tcpdump") is None:
        raise LabError("tcpdump is not there; install it with: apt-get install tcpdump")
    words = [
        "tcpdump",
        "-i",
        tap.interface,
        "-n",
        "-e",
        "-s",
        str(SNAP_BYTES),
        "-B",
        str(BUFFER_KIB),
    ]
    # Else the kernel hands packets over once a second, and those of the last one are lost when it ends.
    words += ["--immediate-mode"]
    # Root of its own accord: it would become a user that may not write where the file is to be.
    words += ["-Z", "root", "-Q", direction]
    words += ["-w", write, "-U"] if write is not None else ["-l"]
    words += ["-c", str(count)] if count is not None else []
    return tap.place.command(words)


@dataclass
class Capturing:
    """A tcpdump that runs. ``dropped``: once it has ended, what it said of packets that it missed."""

    process: subprocess.Popen[str]
    dropped: str | None = None

    def ended(self, seconds: float | None) -> bool:
        """Return whether the capture ends by itself within so many seconds. None: wait until the capture
        ends."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


@contextmanager
def capturing(words: Sequence[str], lab: Attached, what: str) -> Iterator[Capturing]:
    """Yield a tcpdump (:func:`command`) that has begun to listen and ends with the block. Raises LabError
    that names ``what``."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=lab.environment(),
        # Ctrl-C comes to us alone; tcpdump is told to end, and writes what it still has.
        start_new_session=True,
    )
    running = Capturing(process)
    try:
        _await_begin(process, what)
        yield running
    finally:
        running.dropped = _end(process)


def _await_begin(process: subprocess.Popen[str], what: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            return
        if process.poll() is not None or (
            "tcpdump:" in line and "verbose output" not in line
        ):
            process.wait(END_S)
            raise LabError(
                f"capture at {what}: {line.removeprefix('tcpdump: ').strip()}"
            )
    raise LabError(
        f"capture at {what}: tcpdump ended with exit code {process.wait(END_S)}"
    )


def _end(process: subprocess.Popen[str]) -> str | None:
    """End a capture. Return tcpdump's line about packets that it missed, None if it missed none."""
    with suppress(subprocess.TimeoutExpired):
        # What has passed by now is still on its way to the file.
        process.wait(LAG_S)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        _, rest = process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, rest = process.communicate()
    lines = [line.strip() for line in rest.splitlines() if "dropped by kernel" in line]
    return next((line for line in lines if not line.startswith("0 ")), None)


def check_writable(path: Path) -> None:
    """Raises LabError naming the file; an old one is emptied, as tcpdump does."""
    try:
        path.open("wb").close()
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None


@dataclass(frozen=True)
class Seen:
    """Packets of one colour: how many, and their bytes without the tag. ``channel`` None: without a tag."""

    channel: int | None
    packets: int
    bytes: int


def summary(data: bytes) -> list[Seen]:
    """Return the packets and bytes of a capture file by colour. A record that is cut off at the end of the
    file does not count. Raises ValueError."""
    packets: Counter[int | None] = Counter()
    sizes: Counter[int | None] = Counter()
    for head, length in records(data):
        tag = (
            struct.unpack("!H", head[14:16])[0] & 0xFFF
            if head[12:14] == _VLAN
            else None
        )
        # The colour on channel c is tag c + 1.
        channel = None if tag is None else tag - 1
        packets[channel] += 1
        sizes[channel] += length - (0 if tag is None else _TAG_BYTES)
    order = sorted(packets, key=lambda c: -1 if c is None else c)
    return [Seen(channel, packets[channel], sizes[channel]) for channel in order]


def records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the first bytes of each packet of a pcap file, and the packet's length on the wire in bytes.
    Raises ValueError."""
    order = _MAGIC.get(data[:4])
    if order is None or len(data) < _FILE_HEADER:
        raise ValueError("it is no capture file")
    header = struct.Struct(f"{order}IIII")
    offset = _FILE_HEADER
    while offset + _RECORD_HEADER <= len(data):
        _, _, kept, length = header.unpack_from(data, offset)
        offset += _RECORD_HEADER
        if offset + kept > len(data):
            return
        yield data[offset : offset + kept], length
        offset += kept


def read(path: Path) -> list[Seen]:
    """Return the packets and bytes of a capture file by colour. Raises LabError naming the file."""
    try:
        return summary(path.read_bytes())
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise LabError(f"{path}: {error}") from None


def described(seen: Sequence[Seen]) -> Iterator[str]:
    """Yield a line for each colour, for a person."""
    for colour_count in seen:
        colour = (
            "no colour" if colour_count.channel is None else f"λ{colour_count.channel}"
        )
        yield f"{colour}: {colour_count.packets} packets, {colour_count.bytes} bytes"

"""One direction of an impaired link: its program, its delay line, its counts.

What was tried for delays on a kernel without the queueing disciplines netem, fq and etf: time stamps of eBPF
need one of those; a timer of eBPF cannot send a packet; a class of HTB or TBF delays only what waits for its
rate. A TAP interface read by a small process does it (docs/links.md has what was measured).
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyroute2.iproute import IPRoute

from ringlight.extensions.impairments.effect import Impairments
from ringlight.testbed.emulation.kernel import ebpf, namespaces, netlink, network_errors
from ringlight.testbed.emulation.kernel.build import build_object, build_program
from ringlight.testbed.emulation.kernel.netns import set_ipv6_off
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.kernel.survival import ALL, POWERS, survival
from ringlight.testbed.process_start import end_process

SOURCE = Path(__file__).with_name("impaired.c")
LINE_SOURCE = Path(__file__).with_name("delay_line.c")
#: Frames in flight have room for twice what the link's rate gives in its delay, and for these bytes.
ROOM_BYTES = 1 << 20
#: What the delay line's interface carries besides a frame: its head, or its tail.
STAMP_BYTES = 16
#: Frames that wait for the delay line's process.
WAITING = 4096
END_S = 2.0

_KEY = struct.pack("=I", 0)
_SETTINGS = struct.Struct(f"=5Q2I{POWERS}Q")
_COUNTS = struct.Struct("=5Q")
_SIZES = {"settings": (4, _SETTINGS.size), "counts": (4, _COUNTS.size)}
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM = 1

T = TypeVar("T")


@dataclass(frozen=True)
class FrameCounts:
    """Frames that came, their bytes, and how many of them were lost, damaged, or came while it was down."""

    frames: int = 0
    bytes: int = 0
    lost: int = 0
    damaged: int = 0
    down: int = 0

    def __add__(self, other: FrameCounts) -> FrameCounts:
        mine, theirs = (tuple(vars(counts).values()) for counts in (self, other))
        return FrameCounts(*(a + b for a, b in zip(mine, theirs, strict=True)))


class End:
    """The interface of this name in a network namespace (descriptor; None: the machine's own) that receives
    the frames, or where ``sends``, that sends them: from a device of eBPF (see impaired.c).

    ``line``: what its delay line is called; ``environment``: of the delay line's process. Methods raise
    EbpfError, BuildError, NetworkError, OSError.
    """

    def __init__(
        self,
        namespace: int | None,
        interface: str,
        sends: bool,
        line: str,
        seed: int,
        environment: Mapping[str, str],
    ) -> None:
        self._namespace = None if namespace is None else os.dup(namespace)
        self._interface, self._line, self._seed = interface, line, seed
        self._environment, self._sends = environment, sends
        self._process: subprocess.Popen[bytes] | None = None
        self._tap: int | None = None
        self._line_index = 0
        names = ("send", "hand_on") if sends else ("receive", "hand_back")
        programs, self._maps = ebpf.load(build_object(SOURCE), names, _SIZES, {})
        self._program, self._back = (programs[name] for name in names)
        try:
            self._index = self._inside(self._find)
        except BaseException:
            self.close()
            raise

    def set(self, impairments: Impairments, rate_bps: float) -> None:
        """Have it do this from now on, emulated seconds; a delay line that changes loses what is in it."""
        self._end_line()
        if impairments.delay_s:
            self._begin_line(impairments, rate_bps)
        times = [
            time.monotonic_ns(),
            round(impairments.down_s * 1e9),
            round(impairments.up_s * 1e9),
        ]
        arrive = round(ALL * (1 - impairments.loss))
        bits = survival(impairments.bit_errors)
        ends = [self._line_index, self._index]
        self._maps["settings"].update(
            _KEY, _SETTINGS.pack(self._seed, arrive, *times, *ends, *bits)
        )
        if self._sends:
            self._inside(lambda: ebpf.attach_egress(self._index, self._program))
        else:
            self._inside(lambda: ebpf.attach_xdp(self._index, self._program))

    def keep_single(self) -> None:
        """Have the interface merge nothing that it receives."""
        self._inside(lambda: netlink.set_merging(self._interface, False))

    def counts(self) -> FrameCounts:
        return FrameCounts(
            *_COUNTS.unpack(self._maps["counts"].lookup(_KEY) or bytes(_COUNTS.size))
        )

    def close(self) -> None:
        """The link does nothing to frames from now on; where the interface is gone, too."""
        with suppress(OSError, NetworkError):
            if self._sends:
                self._inside(lambda: ebpf.detach_egress(self._index))
            else:
                self._inside(lambda: ebpf.attach_xdp(self._index, None))
        self._end_line()
        for item in self._maps.values():
            item.close()
        for descriptor in (self._program, self._back, self._namespace):
            if descriptor is not None:
                os.close(descriptor)

    def _inside(self, function: Callable[[], T]) -> T:
        return (
            function()
            if self._namespace is None
            else namespaces.in_namespace(self._namespace, function)
        )

    def _find(self) -> int:
        return netlink.index_of(self._interface)

    def _begin_line(self, impairments: Impairments, rate_bps: float) -> None:
        program = build_program(LINE_SOURCE)
        tap = self._tap = self._inside(self._make_tap)
        room = ROOM_BYTES + round(
            2 * rate_bps / 8 * (impairments.delay_s + impairments.jitter_s)
        )
        numbers = [
            round(impairments.delay_s * 1e9),
            round(impairments.jitter_s * 1e9),
            self._seed,
            room,
        ]
        self._process = subprocess.Popen(
            [
                str(program),
                str(tap),
                "tail" if self._sends else "head",
                *map(str, numbers),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[tap],
            env=dict(self._environment),
            start_new_session=True,
        )

    def _make_tap(self) -> int:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._set_up(tap)
        except BaseException:
            os.close(tap)
            raise
        return tap

    def _set_up(self, tap: int) -> None:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", self._line.encode(), flags))
        # Checksums that are still to be made stay so.
        fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM)
        set_ipv6_off(self._line)
        with IPRoute() as here:
            index = netlink.index_of(self._line)
            with network_errors.failing(self._line):
                # A frame of the link, with its tag, and the stamp.
                mtu = netlink.FRAME_BYTES + STAMP_BYTES + 4
                here.link("set", index=index, mtu=mtu, txqlen=WAITING, state="up")
        ebpf.attach_ingress(index, self._back)
        self._line_index = index

    def _end_line(self) -> None:
        """Its interface goes with the last descriptor of it."""
        self._line_index = 0
        if self._process is not None:
            end_process(self._process, END_S)
            self._process = None
        if self._tap is not None:
            os.close(self._tap)
            self._tap = None

"""Streams of numbered frames through a switch, and what arrived of them.

Senders and receivers are processes of their own, so that nothing that the measurement does meanwhile holds
them up: ``python -m ringlight.extensions.acceptance.numbered_frames send|receive …``, ended by SIGTERM. A
sender notes the clock before and after each frame is given to the kernel, a receiver the kernel's time of
its arrival: the frame passed the switch in between. All times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import numpy.typing as npt

from ringlight.testbed.rigs.network import FRAME, HEADER_BYTES, TIMESPEC, Host

#: Ethernet's preamble, check sequence and gap, which take their part of a rate.
_BETWEEN_FRAMES = 24
_PR_SET_TIMERSLACK = 29
#: A wait shorter than this is spent looking at the clock: a sleep would take longer.
_SPIN_NS = 30_000
#: Longest wait for a process to be at work, and to end, seconds.
START_S, END_S = 20.0, 20.0
#: A receiver that was told to end has everything once nothing came for so long.
QUIET_S = 0.3
#: A longest stream, seconds: what is noted of it stays below 1 GB.
LONGEST_S = 600.0

Times = npt.NDArray[np.int64]


def interval_of(size: int, rate_bps: float) -> float:
    """Return the seconds between frames of ``size`` bytes, header included, at a rate on the wire in bits per
    second.
    """
    return (size + _BETWEEN_FRAMES) * 8 / rate_bps


@dataclass(frozen=True)
class Sent:
    """Frame i was given to the kernel at ``before[i]`` and was out at ``after[i]``. ``bytes``: of a frame."""

    before: Times
    after: Times
    bytes: int

    @property
    def rate_bps(self) -> float:
        """Rate on the wire over the whole stream, bits per second."""
        if len(self.before) < 2:
            return 0.0
        took_s = float(self.after[-1] - self.before[0]) / 1e9
        return len(self.before) * (self.bytes + _BETWEEN_FRAMES) * 8 / took_s


@dataclass(frozen=True)
class Gap:
    """Consecutive frames ``first`` to ``last`` of a stream did not arrive. Light went between ``gone`` and
    came back between ``back`` (earliest, latest). ``held_up``: how long the last frame before was on its
    way, nanoseconds; those that were lost after it may have been, too."""

    first: int
    last: int
    gone: tuple[int, int]
    back: tuple[int, int]
    held_up: int

    @property
    def least_s(self) -> float:
        return max(0, self.back[0] - self.gone[1]) / 1e9

    @property
    def most_s(self) -> float:
        return (self.back[1] - self.gone[0]) / 1e9


@dataclass(frozen=True)
class Arrived:
    """Frames of one stream as they arrived: their ``numbers``, and the ``times`` of these."""

    numbers: Times
    times: Times

    @property
    def distinct(self) -> int:
        return len(np.unique(self.numbers))


def merged(parts: Iterable[Arrived]) -> Arrived:
    """Join the frames of one stream that arrived at several hosts, and return them."""
    listed = list(parts)
    return Arrived(
        np.concatenate([p.numbers for p in listed]),
        np.concatenate([p.times for p in listed]),
    )


def gaps(sent: Sent, arrived: Arrived) -> list[Gap]:
    """Return the interruptions of a stream, each between two frames that arrived."""
    count = len(sent.before)
    known = arrived.numbers < count
    stamps = np.zeros(count, dtype=np.int64)
    stamps[arrived.numbers[known]] = arrived.times[known]
    positions = np.flatnonzero(stamps)
    interruptions = []
    for index in np.flatnonzero(np.diff(positions) > 1):
        last_before, first_after = int(positions[index]), int(positions[index + 1])
        first, last = last_before + 1, first_after - 1
        gone = int(sent.before[last_before]), int(sent.after[first])
        back = int(sent.before[last]), int(stamps[first_after])
        held_up = int(stamps[last_before] - sent.before[last_before])
        interruptions.append(Gap(first, last, gone, back, held_up))
    return interruptions


class Traffic:
    """Streams from hosts, and receivers at hosts, from ``__enter__`` to :meth:`end`."""

    def __init__(
        self,
        hosts: Mapping[int, Host],
        senders: Sequence[int],
        receivers: Sequence[int],
        *,
        interval_s: float,
        size: int = 60,
        catch_up: bool = False,
    ) -> None:
        """``senders``, ``receivers``: faceplates. A frame of ``size`` bytes leaves every ``interval_s``;
        with ``catch_up`` one that is late does not delay those after it."""
        self._hosts = {number: hosts[number] for number in {*senders, *receivers}}
        self._senders, self._receivers = tuple(senders), tuple(receivers)
        self._interval_s, self._size, self._catch_up = interval_s, size, catch_up
        self.marks = {number: secrets.randbits(32) for number in senders}
        self._directory = tempfile.TemporaryDirectory(prefix="ringlight-")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Traffic:
        try:
            for number in self._receivers:
                self._start("receive", number, [])
            for number in self._senders:
                words = ["--mark", str(self.marks[number]), "--size", str(self._size)]
                words += ["--interval-us", str(self._interval_s * 1e6)]
                self._start(
                    "send",
                    number,
                    [*words, *(["--catch-up"] if self._catch_up else [])],
                )
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _start(self, what: str, number: int, words: Sequence[str]) -> None:
        host = self._hosts[number]
        inside = ["--netns", host.namespace] if host.namespace else []
        command = [
            sys.executable,
            "-m",
            "ringlight.extensions.acceptance.numbered_frames",
            what,
            "--interface",
            host.interface,
        ]
        process = subprocess.Popen(
            [*command, *inside, "--out", str(self._file(what, number)), *words],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes[f"{what} {number}"] = process
        assert process.stdout is not None
        # It says one line when it is at work, or ends.
        heard, _, _ = select.select([process.stdout], [], [], START_S)
        if not heard:
            raise RuntimeError(
                f"no stream at {host.interface}: its process is not at work after {START_S:g} s"
            )
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(
                f"no stream at {host.interface}: its process ended with {_ended(process)}"
            )

    def _file(self, what: str, number: int) -> Path:
        return Path(self._directory.name, f"{what}-{number}")

    def end(self) -> tuple[dict[int, Sent], dict[int, dict[int, Arrived]]]:
        """End the streams, then the receivers. Return the frames sent by each sender, and the frames that
        arrived at each receiver, by sender.

        Raises RuntimeError if one of their processes failed.
        """
        for what in ("send", "receive"):
            mine = [
                process
                for name, process in self._processes.items()
                if name.startswith(what)
            ]
            for process in mine:
                process.terminate()
            for process in mine:
                if code := _ended(process):
                    raise RuntimeError(f"a stream's process, {what}, ended with {code}")
        sent = {}
        for number in self._senders:
            pairs = np.fromfile(self._file("send", number), dtype=np.int64).reshape(
                -1, 2
            )
            sent[number] = Sent(pairs[:, 0].copy(), pairs[:, 1].copy(), self._size)
        arrived = {}
        for number in self._receivers:
            heard = np.fromfile(self._file("receive", number), dtype=np.int64).reshape(
                -1, 3
            )
            arrived[number] = {
                sender: Arrived(
                    *(heard[heard[:, 0] == mark][:, column].copy() for column in (1, 2))
                )
                for sender, mark in self.marks.items()
            }
        return sent, arrived

    def _kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(END_S)
            if process.stdout is not None:
                process.stdout.close()
        self._directory.cleanup()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that is ending. Raises RuntimeError if it does not end."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"a stream's process did not end within {END_S:g} s"
        ) from None


# The processes


class _Stop:
    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _favoured() -> None:
    """Set timers to the microsecond, and run before all other programs if that is allowed."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def send(
    host: Host, out: Path, mark: int, size: int, interval_s: float, catch_up: bool
) -> None:
    """Send frames until SIGTERM. Then write the clock before and after each, as pairs of int64 (ns), to
    ``out``.
    """
    stop, noted = _Stop(), array("q")
    frame = bytearray(max(size, HEADER_BYTES + FRAME.size))
    frame[:HEADER_BYTES] = host.header
    host.socket.setblocking(True)
    clock, push, note = time.monotonic_ns, host.socket.send, noted.append
    interval = round(interval_s * 1e9)
    _favoured()
    _ready()
    number, due = 0, clock()
    until = due + round(LONGEST_S * 1e9)
    while not stop.asked and due < until:
        FRAME.pack_into(frame, HEADER_BYTES, mark, number)
        before = clock()
        push(frame)
        after = clock()
        note(before)
        note(after)
        number += 1
        due += interval
        if due < after and not catch_up:
            due = after
        if (wait := due - clock()) > _SPIN_NS:
            time.sleep((wait - _SPIN_NS // 2) * 1e-9)
        while clock() < due and not stop.asked:
            pass
    with out.open("wb") as file:
        noted.tofile(file)


def receive(host: Host, out: Path) -> None:
    """Receive until SIGTERM and `QUIET_S` of silence; ``out``: mark, number and time of frames, int64."""
    stop, noted = _Stop(), array("q")
    buffer = bytearray(64)
    host.socket.setblocking(True)
    host.socket.settimeout(QUIET_S)
    pull, note, unpack = host.socket.recvmsg_into, noted.append, FRAME.unpack_from
    room, buffers = socket.CMSG_SPACE(TIMESPEC.size), [buffer]
    # The kernel stamps by the clock of the day.
    behind = time.time_ns() - time.monotonic_ns()
    # In a session of its own, whose niceness counts before the process's (sched(7), autogroup).
    with contextlib.suppress(OSError):
        os.nice(-10)
        Path("/proc/self/autogroup").write_text("-10")
    _ready()
    ended = 0.0
    while True:
        try:
            _, extra, _, _ = pull(buffers, room)
        except TimeoutError:
            if stop.asked:
                break
            continue
        mark, number = unpack(buffer, HEADER_BYTES)
        note(mark)
        note(number)
        seconds, nanoseconds = TIMESPEC.unpack(extra[0][2][: TIMESPEC.size])
        note(seconds * 1_000_000_000 + nanoseconds - behind)
        if stop.asked:
            ended = ended or time.monotonic()
            if time.monotonic() - ended > END_S / 2:
                break
    with out.open("wb") as file:
        noted.tofile(file)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ringlight.extensions.acceptance.numbered_frames",
        description=__doc__,
    )
    parser.add_argument("what", choices=["send", "receive"])
    parser.add_argument("--interface", required=True)
    parser.add_argument("--netns")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mark", type=int, default=0)
    parser.add_argument("--size", type=int, default=60, help="bytes of a frame")
    parser.add_argument("--interval-us", type=float, default=100.0)
    parser.add_argument("--catch-up", action="store_true")
    chosen = parser.parse_args(arguments)
    try:
        host = Host(chosen.netns, chosen.interface)
        if chosen.what == "send":
            interval_s = chosen.interval_us * 1e-6
            send(
                host, chosen.out, chosen.mark, chosen.size, interval_s, chosen.catch_up
            )
        else:
            receive(host, chosen.out)
    except OSError as error:
        sys.stderr.write(f"{chosen.what} at {chosen.interface}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

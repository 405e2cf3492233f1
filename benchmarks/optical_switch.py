"""What the emulated optical switch itself costs. Needs root.

From the moment the client sends the command (so before the device has it) to the first packet over the new
path, by the kernel's clock, `ideal` profile; each swap is one ``conn:only`` that exchanges two circuits while
both carry packets.
"""

from __future__ import annotations

import errno
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import need_root, spread, until
from benchmarks.rest_latency import Scpi
from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.network import Host

#: Duplex faceplate ports; the last one of a rig has no egress.
SIZE = 5


def swap(swaps: int = 400) -> dict[str, Any]:
    """Seconds from command to first light of swaps, one by one."""
    need_root()
    with (
        closing(ScpiRig(SIZE, "ideal", hosts=4)) as rig,
        closing(Scpi(rig.address)) as scpi,
    ):
        stop, stopped = multiprocessing.Pipe()
        names = [rig.hosts[number].namespace for number in (1, 2)]
        sender = multiprocessing.Process(
            target=flood, args=(names, stopped), daemon=True
        )
        connect(scpi, 3, 4)
        sender.start()
        until(
            lambda: all(rig.maps.counters(port).last_ns for port in (1, 2)),
            "light",
            5.0,
        )
        light, dark = [], []
        packets, began = rig.maps.counters(1).rx_packets, time.monotonic()
        for turn in range(swaps):
            before = [rig.maps.counters(port).lit_ns for port in (1, 2)]
            sent_ns = connect(scpi, *((4, 3) if turn % 2 == 0 else (3, 4)))

            def both_lit(before: Sequence[int] = before) -> bool:
                now = [rig.maps.counters(port).lit_ns for port in (1, 2)]
                return all(lit != old for lit, old in zip(now, before, strict=True))

            until(both_lit, "light", 5.0, pace_s=0.0)
            after = [rig.maps.counters(port) for port in (1, 2)]
            # Both circuits must be lit for a swap to be done.
            light.append((max(c.lit_ns for c in after) - sent_ns) / 1e9)
            dark.append(max(c.dark_s or 0.0 for c in after))
            time.sleep(0.002)
        rate = (rig.maps.counters(1).rx_packets - packets) / (time.monotonic() - began)
        stop.send(None)
        sender.join(10)
    return {
        "command_to_light_s": spread(light),
        "dark_on_the_wire_s": spread(dark),
        "packets_per_s_each": round(rate),
        "limit": {"median_s": 0.0001},
    }


PARTS = (swap,)


def connect(scpi: Scpi, first: int, second: int) -> int:
    """Lights faceplates 1 and 2 to these; CLOCK_MONOTONIC nanoseconds just before the command is sent."""
    command = f":oxc:swit:conn:only (@1,2),(@{SIZE + first},{SIZE + second})"
    sent_ns = time.monotonic_ns()
    reply = scpi.ask(f"{command};*opc?;:syst:err:all?")
    if reply != '1;0,"No error"':
        raise RuntimeError(f"the switch answered {reply!r} to {command!r}")
    return sent_ns


def flood(namespaces: Sequence[str], ending: Connection) -> None:
    """Keeps sending small packets from each namespace in turn, until told to stop."""
    hosts = [Host(name) for name in namespaces]
    while not ending.poll():
        for _ in range(64):
            for host in hosts:
                try:
                    host.send(b"light")
                except OSError as error:
                    # The kernel has no room for more at the moment.
                    if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                        raise

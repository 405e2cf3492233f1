"""What the emulated optical switch itself costs. Needs root.

``swap``: from the moment the client sends the command (so before the device has it) to the first packet over
the new path, by the kernel's clock, `ideal` profile; each swap is one ``conn:only`` that exchanges two
circuits while both carry packets. ``tcp``: one TCP stream between two namespaces through the emulated switch,
beside a plain veth pair (the limit) and Open vSwitch's userspace datapath (the peer, `tx off` as it needs),
taken in turns.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import shutil
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import empty_lab, in_turns, need_root, spread, until
from benchmarks.rest_latency import Scpi
from ringlight.testbed.acceptance.network import Host, Network, run
from ringlight.testbed.acceptance.rigs.emulated import ScpiRig
from ringlight.testbed.emulation.optical.netns import entered

#: Duplex faceplate ports; the last one of a rig has no egress.
SIZE = 5
PIECE = 1 << 20
SOCKET_BYTES = 4 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def swap(swaps: int = 400) -> dict[str, Any]:
    """Seconds from command to first light of swaps, one by one."""
    need_root()
    with closing(ScpiRig(SIZE, "ideal", hosts=4)) as rig, closing(Scpi(rig.address)) as scpi:
        stop, stopped = multiprocessing.Pipe()
        names = [rig.hosts[number].namespace for number in (1, 2)]
        sender = multiprocessing.Process(target=flood, args=(names, stopped), daemon=True)
        connect(scpi, 3, 4)
        sender.start()
        until(lambda: all(rig.maps.counters(port).last_ns for port in (1, 2)), "light", 5.0)
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


def tcp(seconds: float = 2.0, rounds: int = 3) -> dict[str, Any]:
    """Bit/s of one stream of so many ``seconds`` over each kind of path, measured in turns."""
    need_root()
    kinds = {"plain_veth": through_veth, "optical_switch": through_optical_switch}
    if shutil.which("ovs-vsctl"):
        kinds["openvswitch_netdev"] = through_openvswitch
    with contextlib.ExitStack() as stack:
        paths = {name: stack.enter_context(kind()) for name, kind in kinds.items()}
        streams = {name: partial(stream, ends, seconds) for name, ends in paths.items()}
        rates = in_turns(streams, rounds)
    return {
        "mtu_bytes": 1500,
        "seconds_each": seconds,
        "bit_per_s": {name: spread(values) for name, values in rates.items()},
        "optical_over_plain_veth": round(
            statistics.median(rates["optical_switch"]) / statistics.median(rates["plain_veth"]), 3
        ),
        "limit": {"optical_switch_bit_per_s": 10_000_000_000},
    }


PARTS = (swap, tcp)


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


def receive(netns: str, seconds: float, result: Connection) -> None:
    """Takes one connection and tells the rate (bit/s) of all but its first fifth."""
    with entered(netns):
        listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, SOCKET_BYTES)
    listener.bind(("", 5001))
    listener.listen(1)
    listener.settimeout(10)
    result.send("listening")
    connection, _ = listener.accept()
    connection.settimeout(10)
    buffer = bytearray(PIECE)
    warm = time.monotonic() + seconds / 5
    while time.monotonic() < warm and connection.recv_into(buffer):
        pass
    began, received = time.monotonic(), 0
    while size := connection.recv_into(buffer):
        received += size
    result.send(received * 8 / (time.monotonic() - began))


def stream(ends: tuple[str, ...], seconds: float) -> float:
    """Bit/s of one TCP stream between two namespaces, in processes of their own."""
    source, sink = ends
    parent, child = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=receive, args=(sink, seconds, child))
    receiver.start()
    try:
        if not parent.poll(10):
            raise RuntimeError("the receiver did not start")
        parent.recv()
        with entered(source):
            out = socket.socket()
        out.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SOCKET_BYTES)
        out.settimeout(10)
        with out:
            out.connect(("10.84.0.2", 5001))
            data, end = bytes(PIECE), time.monotonic() + seconds
            while time.monotonic() < end:
                out.sendall(data)
        if not parent.poll(10):
            raise RuntimeError(f"no result from {sink}")
        return float(parent.recv())
    finally:
        receiver.join(10)
        if receiver.is_alive():
            receiver.kill()


def addressed(*namespaces: str | None) -> tuple[str, ...]:
    """Give each namespace's eth0 an address and an MTU of 1,500 bytes."""
    for number, name in enumerate(namespaces, 1):
        lines = f"addr add 10.84.0.{number}/24 dev eth0\nlink set eth0 up mtu 1500"
        run("ip", "-n", str(name), "-batch", "-", given=lines)
    return tuple(map(str, namespaces))


@contextlib.contextmanager
def through_veth() -> Iterator[tuple[str, ...]]:
    with empty_lab() as lab:
        far = lab.namespace("far")
        with closing(Network(lab, [f"eth0 netns {far}"], [far])) as network:
            yield addressed(far, network.hosts[1].namespace)


@contextlib.contextmanager
def through_optical_switch() -> Iterator[tuple[str, ...]]:
    with closing(ScpiRig(SIZE, "ideal", hosts=2)) as rig, closing(Scpi(rig.address)) as scpi:
        connect(scpi, 2, 1)
        yield addressed(rig.hosts[1].namespace, rig.hosts[2].namespace)


@contextlib.contextmanager
def through_openvswitch() -> Iterator[tuple[str, ...]]:
    with empty_lab() as lab:
        bridge, ports = lab.bridge("peer"), [lab.interface("peer", number) for number in (1, 2)]
        with closing(Network(lab, ports)) as network:
            words = f"-- add-br {bridge} -- set bridge {bridge} datapath_type=netdev fail_mode=standalone"
            run("ovs-vsctl", *words.split(), f"external_ids:ringlight={lab.id}")
            for port, host in zip(ports, network.hosts.values(), strict=True):
                run("ip", "link", "set", port, "up", "mtu", "1500")
                run("ovs-vsctl", "add-port", bridge, port)
                run(*f"ip netns exec {host.namespace} ethtool -K eth0 tx off".split())
            yield addressed(*(host.namespace for host in network.hosts.values()))

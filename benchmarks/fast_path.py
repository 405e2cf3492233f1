"""The fast path beside Open vSwitch: what packet switches carry with it and without. Needs root.

``stream``: one TCP stream, and round trips of a byte, between two hosts with two packet switches between
them: over a plain veth pair (the limit), the fast path, and Open vSwitch alone (the peer), taken in turns;
with the hosts' offloads, which Open vSwitch alone cannot have, and without. ``redirected`` is the least that
three cables one after the other can cost: what comes in by one port of a switch leaves by the other, by a
program at traffic control that does nothing else, and no Open vSwitch. Senders may hand over as much as the
kernel takes in one piece, as in a lab with links so fast; ``64 KiB`` are the same ways as the kernel has them
where nobody says more. Each is judged beside the veth pair with pieces of its own size.

``aggregate``: eight GPUs on one packet switch at rising rates, by a run each with the fast path and without:
what payload all links gave together in the link test, when all are full both ways, and whether the run, whose
ring of eight then fills them again and again, believes itself. D is 16: eight workers that wake at once are 1
to 4 ms late, which is too much of a computation of 80 ms, as with a D of 4, but not of one of 320 ms.

``acting``: from the moment a rule's change is confirmed to the first packet that goes the new way.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from pyroute2.iproute import IPRoute

from benchmarks.harness import (
    RINGLIGHT,
    empty_lab,
    in_turns,
    milliseconds,
    need_root,
    show,
    spread,
)
from ringlight.extensions.fast_path import openflow
from ringlight.extensions.fast_path.carrier import Carrier
from ringlight.testbed.emulation import calibration, openvswitch
from ringlight.testbed.emulation.kernel import addressing, ebpf, namespaces, netlink
from ringlight.testbed.emulation.kernel.build import build_object
from ringlight.testbed.lab import OVS_LABEL, Lab
from tests.integration.controller_rig import free_port

PIECE = 1 << 20
#: Frames that a sender hands over in one piece; none: no offloads.
PIECES = {
    "offloads": netlink.LARGEST_BURST_BYTES // netlink.FRAME_BYTES,
    "64 KiB": netlink.USUAL_BURST_BYTES // netlink.FRAME_BYTES,
    "tx off": 0,
}
#: Of the two switches: the number of the port of a host, and of the port to the other switch.
HOST, TRUNK = 1, 2
SCENARIO = """
name: aggregate
description: Eight GPUs on one packet switch.
scale: {{time: {dilation}, payload: {payload}}}
fabric:
  servers: {{s0: {{gpus: {{{gpus}}}}}}}
  packet_switches: {{tor0: {{ports: 8}}}}
  links: [{links}]
training: {{model: resnet50, compute: 20 ms, batch: 64, iterations: 8, collective: ring}}
tcp: {{rto_min: 10 ms}}
link_test: {{duration: 500 ms}}
"""
#: Real bit/s of a GPU's link, of which an emulated one has 1 / (DILATION payload).
REAL_BPS = 40e9
DILATION = 16
#: Payload that two processors should carry in a run of good fidelity, bit/s.
GOOD_BPS = 8e9


def stream(seconds: float = 2.0, rounds: int = 5) -> dict[str, Any]:
    """Bit/s of a stream and round trips over each kind of way."""
    need_root()
    ways: dict[str, Callable[[], tuple[float, float]]] = {}
    with ExitStack() as stack:
        for called, frames in PIECES.items():
            kinds: list[tuple[str, Callable[..., Any]]] = [
                ("plain veth", plain), ("redirected", redirected), ("fast path", switched),
            ]  # fmt: skip
            if not frames:
                kinds.append(("Open vSwitch", uncarried))
            for kind, build in kinds:
                lab = stack.enter_context(empty_lab())
                ends = stack.enter_context(build(lab, frames))
                ways[f"{kind}, {called}"] = lambda ends=ends: measured(ends, seconds)  # type: ignore[misc]
        found = in_turns(ways, rounds)
    rates = {
        way: statistics.median(rate for rate, _ in figures)
        for way, figures in found.items()
    }
    show(
        ("way", "Mbit/s", "round trip ms"),
        [
            (
                way,
                round(rates[way] / 1e6),
                f"{statistics.median(t for _, t in figures) * 1e3:.3f}",
            )
            for way, figures in found.items()
        ],
    )
    over, over_least = (
        {
            called: round(
                rates[f"fast path, {called}"] / rates[f"{limit}, {called}"], 3
            )
            for called in PIECES
        }
        for limit in ("plain veth", "redirected")
    )
    return {
        "bps": {
            way: spread(rate for rate, _ in figures) for way, figures in found.items()
        },
        "round_trip": {
            way: milliseconds(trip for _, trip in figures)
            for way, figures in found.items()
        },
        "fast_path_over_plain_veth": over,
        "fast_path_over_redirected": over_least,
        "missed": [f"{over['offloads']} of a plain veth pair, not 0.8"]
        if over["offloads"] < 0.8
        else [],
    }


def set_up_hosts(ends: tuple[int, int], frames: int) -> None:
    for number, end in enumerate(ends, 1):

        def inside(number: int = number) -> None:
            namespaces.configure_namespace("reno")
            with IPRoute() as own:
                index = netlink.set_up(own, "eth0")
                netlink.set_burst(own, index, max(1, frames))
                if not frames:
                    netlink.set_checksum_offload("eth0", False)
                addressing.address(own, index, f"10.77.0.{number}", 24, rto_min_s=0.02)

        namespaces.in_namespace(end, inside)


@contextmanager
def plain(lab: Lab, frames: int) -> Iterator[tuple[int, int]]:
    """Two hosts on one veth pair."""
    with calibration._hosts(lab) as ends:
        with IPRoute() as here:
            netlink.create_veth(
                here, "eth0", "eth0", namespace=ends[0], peer_namespace=ends[1]
            )
        set_up_hosts(ends, frames)
        yield ends


@contextmanager
def redirected(lab: Lab, frames: int) -> Iterator[tuple[int, int]]:
    """As :func:`uncarried`, but what comes in by one port of a switch leaves by the other, whatever it is."""
    names = [[lab.interface(node, port) for port in (HOST, TRUNK)] for node in "ab"]
    source = build_object(Path(__file__).with_name("redirect.c"))
    programs, maps = ebpf.load(source, ["redirect"], {"ways": (4, 4)}, {})
    with calibration._hosts(lab) as ends, closing(maps["ways"]) as ways:
        with IPRoute() as here:
            for (name, _), end in zip(names, ends, strict=True):
                netlink.create_veth(
                    here, name, "eth0", group=lab.link_group, peer_namespace=end
                )
            netlink.create_veth(
                here, *(name for _, name in names), group=lab.link_group
            )
            for name in chain(*names):
                ebpf.attach_ingress(netlink.set_up(here, name), programs["redirect"])
        for one, other in names:
            indexes = [socket.if_nametoindex(name) for name in (one, other)]
            for way in (indexes, indexes[::-1]):
                ways.update(*(struct.pack("=I", index) for index in way))
        os.close(programs["redirect"])
        set_up_hosts(ends, frames)
        yield ends


@contextmanager
def uncarried(
    lab: Lab, frames: int, carrier: type[Carrier] | None = None
) -> Iterator[tuple[int, int]]:
    """Two hosts, a switch each, and a cable between these."""
    names = [lab.bridge("a"), lab.bridge("b")]
    interfaces = {
        name: [lab.interface(node, p) for p in (HOST, TRUNK)]
        for node, name in zip("ab", names, strict=True)
    }
    fast = None
    with calibration._hosts(lab) as ends, tempfile.TemporaryDirectory() as directory:
        try:
            words: list[str] = []
            with IPRoute() as here:
                for name, end in zip(names, ends, strict=True):
                    netlink.create_veth(
                        here,
                        interfaces[name][0],
                        "eth0",
                        group=lab.link_group,
                        peer_namespace=end,
                    )
                netlink.create_veth(
                    here, *(interfaces[name][1] for name in names), group=lab.link_group
                )
                for name in names:
                    words += [
                        "--",
                        "add-br",
                        name,
                        "--",
                        "set",
                        "Bridge",
                        name,
                        "datapath_type=netdev",
                    ]
                    words += ["fail_mode=secure", "protocols=OpenFlow13,OpenFlow15"]
                    words += [f"external_ids:{OVS_LABEL}={lab.id}"]
                    for number, interface in zip(
                        (HOST, TRUNK), interfaces[name], strict=True
                    ):
                        netlink.set_up(here, interface)
                        words += [
                            "--",
                            "add-port",
                            name,
                            interface,
                            "--",
                            "set",
                            "Interface",
                            interface,
                        ]
                        words += [
                            f"ofport_request={number}",
                            f"mtu_request={netlink.MTU_BYTES}",
                        ]
            openvswitch.vsctl(*words[1:])
            openvswitch.keep_memory()
            openvswitch.widen_buffers(lab.prefix)
            if carrier is not None:
                smoother = lab.interface("smoother", 1), lab.interface("smoother", 2)
                bridges = dict(zip(names, (1, 2), strict=True))
                fast = carrier(
                    bridges, Path(directory, "fast.sock"), smoother, lab.link_group
                )
                fast.start()
                fast.take_up(port for name in names for port in interfaces[name])
            for number, name in enumerate(names, 1):
                for field in ("ip,nw_dst", "arp,arp_tpa"):
                    for other in (1, 2):
                        out = HOST if other == number else TRUNK
                        ofctl(
                            "add-flow",
                            name,
                            f"priority=9,{field}=10.77.0.{other},actions=output:{out}",
                        )
            set_up_hosts(ends, frames)
            yield ends
        finally:
            if fast is not None:
                fast.stop()
            openvswitch.remove_labelled(OVS_LABEL, lab.id)


@contextmanager
def switched(lab: Lab, frames: int) -> Iterator[tuple[int, int]]:
    """As :func:`uncarried`, with the fast path."""
    with uncarried(lab, frames, Carrier) as ends:
        yield ends


def ofctl(*words: str) -> None:
    subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", *words], check=True, timeout=20)


def measured(ends: Sequence[int], seconds: float) -> tuple[float, float]:
    """Bit/s of one stream, and seconds of a round trip of one byte (median)."""

    def listening() -> socket.socket:
        found = socket.socket()
        found.bind(("10.77.0.2", 0))
        found.listen(1)
        found.settimeout(10)
        return found

    with namespaces.in_namespace(ends[1], listening) as listener:
        port = listener.getsockname()[1]
        sender = namespaces.in_namespace(
            ends[0], lambda: socket.create_connection(("10.77.0.2", port), 10)
        )
        receiver, _ = listener.accept()
    with sender, receiver:
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(200):
            began = time.perf_counter()
            sender.sendall(b"?")
            receiver.recv(1)
            receiver.sendall(b"!")
            sender.recv(1)
            trips.append(time.perf_counter() - began)
        return poured(sender, receiver, seconds), statistics.median(trips)


def poured(sender: socket.socket, receiver: socket.socket, seconds: float) -> float:
    ended = threading.Event()

    def pour() -> None:
        piece = bytes(PIECE)
        with suppress(OSError):
            while not ended.is_set():
                sender.sendall(piece)
            sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=pour)
    thread.start()
    buffer, got, began = bytearray(PIECE), 0, time.monotonic()
    while time.monotonic() - began < seconds:
        got += receiver.recv_into(buffer)
    took = time.monotonic() - began
    ended.set()
    while receiver.recv_into(buffer):
        pass
    thread.join()
    return got * 8 / took


def aggregate(
    gbps: Annotated[
        list[float] | None, typer.Option(help="Gbit/s of all links together")
    ] = None,
) -> dict[str, Any]:
    """What runs of rising rates gave together, and whether they believe themselves."""
    need_root()
    found: dict[str, dict[str, Any]] = {"fast path": {}, "Open vSwitch": {}}
    for total in gbps or [1.0, 2.0, 4.0, 8.2]:
        for kind, option in (("fast path", ["--fast-path"]), ("Open vSwitch", [])):
            found[kind][f"{total:g} Gbit/s"] = one_run(total * 1e9, option)
    show(
        (
            "rates together",
            "way",
            "links gave, Gbit/s",
            "all-reduce over ideal",
            "fidelity",
        ),
        [
            (
                rates,
                kind,
                f"{run['links_gave_bps'] / 1e9:.2f}",
                f"{run['allreduce_over_ideal']:.3f}",
                run["fidelity"],
            )
            for kind, runs in found.items()
            for rates, run in runs.items()
        ],
    )
    best = max(
        [
            r["links_gave_bps"]
            for r in found["fast path"].values()
            if r["fidelity"] == "good"
        ],
        default=0.0,
    )
    missed = (
        []
        if best >= GOOD_BPS
        else [f"{best / 1e9:.2f} Gbit/s with good fidelity, not {GOOD_BPS / 1e9:g}"]
    )
    return {**found, "most_with_good_fidelity_bps": best, "missed": missed}


def one_run(total_bps: float, option: Sequence[str]) -> dict[str, Any]:
    names = [f"g{n}" for n in range(8)]
    text = SCENARIO.format(
        dilation=DILATION,
        payload=REAL_BPS / DILATION / (total_bps / len(names)),
        gpus=", ".join(f"{name}: gpu" for name in names),
        links=", ".join(
            f'{{ends: [{name}, "tor0:{n}"], rate: 40 Gbit/s}}'
            for n, name in enumerate(names, 1)
        ),
    )
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "aggregate.yaml")
        file.write_text(text)
        words = [
            "run",
            str(file),
            "--runtime",
            "namespace",
            "--runs",
            directory,
            *option,
        ]
        words += [
            "--rest",
            f"127.0.0.1:{free_port()}",
            "--openflow",
            f"127.0.0.1:{free_port()}",
        ]
        subprocess.run(
            [*RINGLIGHT, *words], check=False, stdout=subprocess.DEVNULL, timeout=170
        )
        (folder,) = Path(directory).glob("*-aggregate")
        result = json.loads((folder / "result.json").read_text())
        events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
        # Links that were measured once more count as then.
        gave = {
            e["direction"]: e["measured_bps"]
            for e in events
            if e["event"] == "link_rate"
        }
    figures = {
        row["metric"]: row["value"]
        for row in result["rows"]
        if row["metric"].startswith("allreduce")
    }
    return {
        "links_gave_bps": sum(gave.values()),
        "allreduce_over_ideal": figures["allreduce_over_ideal"],
        "fidelity": result["fidelity"]["verdict"],
        "reasons": [reason["text"] for reason in result["fidelity"]["reasons"]],
    }


def acting(changes: int = 200) -> dict[str, Any]:
    """Milliseconds from a change's confirmation by Open vSwitch until packets go the new way; limit 10.

    A frame is sent every 50 µs or so. ``old_way``: of these, how many went the old way after it.
    """
    need_root()
    with empty_lab() as lab, tempfile.TemporaryDirectory() as directory:
        name, ends = lab.bridge("a"), [lab.interface("a", port) for port in (1, 2, 3)]
        words = [
            "add-br",
            name,
            "--",
            "set",
            "Bridge",
            name,
            "datapath_type=netdev",
            "fail_mode=secure",
        ]
        words += [
            "protocols=OpenFlow13,OpenFlow15",
            f"external_ids:{OVS_LABEL}={lab.id}",
        ]
        with IPRoute() as here:
            for number, end in enumerate(ends, 1):
                netlink.create_veth(here, end, f"{end}f", group=lab.link_group)
                netlink.set_up(here, end)
                netlink.set_up(here, f"{end}f")
                words += ["--", "add-port", name, end, "--", "set", "Interface", end]
                words += [f"ofport_request={number}"]
        openvswitch.vsctl(*words)
        smoother = lab.interface("smoother", 1), lab.interface("smoother", 2)
        carrier = Carrier(
            {name: 1}, Path(directory, "fast.sock"), smoother, lab.link_group
        )
        carrier.start()
        try:
            carrier.take_up(ends)
            sockets = [far_end(f"{end}f") for end in ends]
            ofctl("add-flow", name, "priority=9,dl_type=0x88b5,actions=output:2")
            time.sleep(0.2)
            late, old = flips(name, sockets, changes)
        finally:
            carrier.stop()
            openvswitch.remove_labelled(OVS_LABEL, lab.id)
    found = milliseconds(late)
    return {
        "late": found, "old_way": spread(old), "limit_ms": 10,
        "missed": [f"{found['p99_ms']} ms, not 10"] if found["p99_ms"] > 10 else [],
    }  # fmt: skip


def far_end(interface: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
    found.bind((interface, 0x88B5))
    found.setblocking(False)
    return found


def flips(
    bridge: str, ends: Sequence[socket.socket], changes: int
) -> tuple[list[float], list[float]]:
    """Change a rule's port to and fro; seconds until the first frame by the new, and frames by the old."""
    frame = bytes.fromhex("020000000002020000000001") + b"\x88\xb5" + bytes(50)
    late, old = [], []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(openvswitch.management_socket(bridge)))
        connection.settimeout(10)
        connection.sendall(openflow.greeting())
        for turn in range(changes):
            new = 3 if turn % 2 == 0 else 2
            connection.sendall(change(new, turn + 10))
            confirmed = False
            reader = openflow.Reader()
            while not confirmed:
                confirmed = any(
                    t.kind == "barrier" for t in reader.feed(connection.recv(1 << 16))
                )
            began, by_old, done = time.monotonic(), 0, False
            while not done:
                ends[0].send(frame)
                for number in (2, 3):
                    with suppress(BlockingIOError):
                        while ends[number - 1].recv(100):
                            done = done or number == new
                            by_old += number != new
                if time.monotonic() - began > 5:
                    raise SystemExit("the change does not act")
            late.append(time.monotonic() - began)
            old.append(float(by_old))
            time.sleep(0.005)
    return late, old


def change(port: int, xid: int) -> bytes:
    """Have the one rule output to a port, and ask for confirmation."""
    match = struct.pack("!HHHBBH6x", 1, 10, 0x8000, 5 << 1, 2, 0x88B5)
    action = struct.pack("!HH4xHHIH6x", 4, 24, 0, 16, port, 0)
    head = struct.pack(
        "!QQBBHHHIIIHH", 0, 0, 0, 0, 0, 0, 9, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0
    )
    body = head + match + action
    mod = struct.pack("!BBHI", openflow.VERSION, 14, 8 + len(body), xid) + body
    return mod + struct.pack(
        "!BBHI", openflow.VERSION, openflow.BARRIER_REQUEST, 8, xid
    )


PARTS = (stream, aggregate, acting)

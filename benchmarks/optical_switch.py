"""What the emulated optical switch itself costs: prints one JSON object.

``swap``: from the moment the client sends the command (so before the device has it) to the first packet over
the new path, by the kernel's clock, `ideal` profile; each swap is one ``conn:only`` that exchanges two
circuits while both carry packets. ``tcp``: one TCP stream between two namespaces through the emulated switch,
beside a plain veth pair (the limit) and Open vSwitch's userspace datapath (the peer, `tx off` as it needs),
taken in turns, medians.

    python benchmarks/optical_switch.py [--swaps N] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from sys import path as import_path

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

from ringlight.testbed.emulation.optical.datapath import Datapath, remove_pins
from ringlight.testbed.emulation.optical.netns import entered

ROOT = Path(__file__).resolve().parents[1]
SIZE = 4
PIECE = 1 << 20
SOCKET_BYTES = 4 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def run(*command: str, check: bool = True) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if check and result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def address(netns: str, number: int) -> None:
    """Gives a namespace's eth0 an address and brings it up."""
    run("ip", "-n", netns, "addr", "add", f"10.84.0.{number}/24", "broadcast", "10.84.0.255", "dev", "eth0")
    run("ip", "-n", netns, "link", "set", "eth0", "up")


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    try:
        for name in names:
            run("ip", "netns", "add", name)
        yield
    finally:
        for name in reversed(names):
            run("ip", "netns", "del", name, check=False)


class Scpi:
    def __init__(self, where: str) -> None:
        host, port = where.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do(self, text: str) -> int:
        """Sends a command, waits until it is carried out; CLOCK_MONOTONIC nanoseconds just before sending."""
        sent_ns = time.monotonic_ns()
        self._socket.sendall(f"{text};*opc?;:syst:err:all?\n".encode())
        reply = self._socket.recv(4096).decode().strip()
        if reply != '1;0,"No error"':
            raise RuntimeError(f"the switch answered {reply!r} to {text!r}")
        return sent_ns


@contextlib.contextmanager
def optical_switch(lab: str, netns: str) -> Iterator[tuple[Scpi, Path]]:
    pins = Path("/sys/fs/bpf/ringlight") / lab / "ocs0"
    process: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "ready"
        try:
            process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        "ocs0",
                        "--lab",
                        lab,
                    ),
                    *("--size", str(SIZE), "--profile", "ideal", "--listen", "127.0.0.1:0"),
                    *("--netns", netns, "--pins", str(pins), "--ready", str(ready)),
                ],
                cwd=ROOT,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "RINGLIGHT_LAB": lab},
            )
            end = time.monotonic() + 20
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("the emulated switch did not start")
                time.sleep(0.01)
            yield Scpi(json.loads(ready.read_text())["address"]), pins
        finally:
            if process is not None:
                process.terminate()
                process.wait(10)
            remove_pins(pins)
            with contextlib.suppress(FileNotFoundError):
                pins.parent.rmdir()


def flood(senders: list[str], ending: Connection) -> None:
    """Keeps sending small packets from each namespace in turn, until told to stop."""
    sockets = []
    for netns in senders:
        with entered(netns):
            out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        out.connect(("10.84.0.255", 9))
        sockets.append(out)
    while not ending.poll():
        for _ in range(64):
            for out in sockets:
                out.send(b"light")


def measure_swaps(lab: str, count: int) -> dict[str, object]:
    """Seconds from command to first light of ``count`` swaps, one by one."""
    ocs, hosts = f"rl{lab}-ocs0", [f"rl{lab}-h{k}" for k in range(1, SIZE + 1)]
    with namespaces(ocs, *hosts):
        for k, host in enumerate(hosts, 1):
            run("ip", "link", "add", f"p{k}", "netns", ocs, "type", "veth", "peer", "eth0", "netns", host)
            address(host, k)
        with optical_switch(lab, ocs) as (scpi, pins):
            datapath = Datapath.resume(pins)
            stop, stopped = multiprocessing.Pipe()
            sender = multiprocessing.Process(target=flood, args=(hosts[:2], stopped))
            try:
                scpi.do(f":oxc:swit:conn:only (@1,2),(@{SIZE + 3},{SIZE + 4})")
                sender.start()
                eventually(lambda: all(datapath.counters(port).last_ns for port in (1, 2)))
                light, dark = [], []
                packets = datapath.counters(1).rx_packets
                began = time.monotonic()
                for turn in range(count):
                    a, b = (4, 3) if turn % 2 == 0 else (3, 4)
                    before = [datapath.counters(port).lit_ns for port in (1, 2)]
                    sent_ns = scpi.do(f":oxc:swit:conn:only (@1,2),(@{SIZE + a},{SIZE + b})")
                    eventually(
                        lambda before=before: all(
                            datapath.counters(port).lit_ns != old
                            for port, old in zip((1, 2), before, strict=True)
                        )
                    )
                    after = [datapath.counters(port) for port in (1, 2)]
                    # Both circuits must be lit for a swap to be done.
                    light.append((max(c.lit_ns for c in after) - sent_ns) / 1e9)
                    dark.append(max(c.dark_s or 0.0 for c in after))
                    time.sleep(0.002)
                rate = (datapath.counters(1).rx_packets - packets) / (time.monotonic() - began)
            finally:
                stop.send(None)
                if sender.pid is not None:
                    sender.join(10)
                datapath.close()
    light.sort()
    return {
        "swaps": count,
        "command_to_light_s": {
            "median": statistics.median(light),
            "p95": light[int(0.95 * (count - 1))],
            "max": light[-1],
        },
        "dark_on_the_wire_s": {"median": statistics.median(dark), "max": max(dark)},
        "packets_per_s_each": round(rate),
        "limit": {"median_s": 0.001},
    }


def eventually(check: object, deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while not check():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"no light within {deadline_s:g} s")


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


def stream(source: str, sink: str, where: str, seconds: float) -> float:
    """Bit/s of one TCP stream between two namespaces, in processes of their own."""
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
            out.connect((where, 5001))
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


@contextlib.contextmanager
def through_veth(lab: str) -> Iterator[tuple[str, str]]:
    a, b = f"rl{lab}-va", f"rl{lab}-vb"
    with namespaces(a, b):
        run(*f"ip link add eth0 mtu 1500 netns {a} type veth peer name eth0 mtu 1500 netns {b}".split())
        address(a, 1)
        address(b, 2)
        yield a, b


@contextlib.contextmanager
def through_optical_switch(lab: str) -> Iterator[tuple[str, str]]:
    ocs, a, b = f"rl{lab}-ocs1", f"rl{lab}-oa", f"rl{lab}-ob"
    with namespaces(ocs, a, b):
        for k, host in ((1, a), (2, b)):
            run(*f"ip link add p{k} mtu 1500 netns {ocs} type veth".split(), "peer", "eth0", "netns", host)
            address(host, k)
        with optical_switch(lab, ocs) as (scpi, _):
            scpi.do(f":oxc:swit:conn:only (@1,2),(@{SIZE + 2},{SIZE + 1})")
            yield a, b


@contextlib.contextmanager
def through_openvswitch(lab: str) -> Iterator[tuple[str, str]]:
    bridge, a, b = f"rl{lab}-br", f"rl{lab}-sa", f"rl{lab}-sb"
    with namespaces(a, b):
        try:
            run(*f"ovs-vsctl -- add-br {bridge} -- set bridge {bridge} datapath_type=netdev".split())
            run(*f"ovs-vsctl set bridge {bridge} external_ids:ringlight={lab} fail_mode=standalone".split())
            for k, host in ((1, a), (2, b)):
                port = f"rl{lab}-s{k}"
                run(*f"ip link add {port} mtu 1500 type veth peer name eth0 netns {host}".split())
                run("ip", "link", "set", port, "up")
                run("ovs-vsctl", "add-port", bridge, port)
                address(host, k)
                run(*f"ip netns exec {host} ethtool -K eth0 tx off".split())
            yield a, b
        finally:
            run("ovs-vsctl", "--if-exists", "del-br", bridge, check=False)


def measure_tcp(lab: str, seconds: float, rounds: int) -> dict[str, object]:
    """Median bit/s of one stream over each kind of path, measured in turns."""
    kinds = {"plain_veth": through_veth, "optical_switch": through_optical_switch}
    if shutil.which("ovs-vsctl"):
        kinds["openvswitch_netdev"] = through_openvswitch
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.ExitStack() as stack:
        paths = {name: stack.enter_context(kind(lab)) for name, kind in kinds.items()}
        for _ in range(rounds):
            for name, (a, b) in paths.items():
                rates[name].append(stream(a, b, "10.84.0.2", seconds))
    median = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "streams": 1,
        "mtu_bytes": 1500,
        "seconds_each": seconds,
        "bit_per_s": {name: round(value) for name, value in median.items()},
        "all_rounds_bit_per_s": {name: [round(v) for v in values] for name, values in rates.items()},
        "optical_over_plain_veth": round(median["optical_switch"] / median["plain_veth"], 3),
        "limit": {"optical_switch_bit_per_s": 10_000_000_000},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--swaps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each TCP stream")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        sys.stderr.write("optical_switch: needs root\n")
        return 1
    # A terminated benchmark cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lab = "b" + secrets.token_hex(2)[:3]
    result = {
        "benchmark": "optical_switch",
        "kind": "measured",
        "machine": {"kernel": platform.release(), "cpus": os.cpu_count()},
        "load_at_start": round(os.getloadavg()[0], 2),
        "swap": measure_swaps(lab, chosen.swaps),
        "tcp": measure_tcp(lab, chosen.seconds, chosen.rounds),
    }
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

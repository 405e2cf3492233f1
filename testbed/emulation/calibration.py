"""Measures what this machine's network costs its processors: a few seconds, with nothing of a lab.

One TCP stream of single frames goes from one namespace to another: over a veth pair, through a bridge of Open
vSwitch with few ports and with many, past it where a device carries frames, and through the program of the
optical switch. A frame costs what this process, Open vSwitch and the kernel's network threads worked
meanwhile. At a set rate each frame wakes who waits for it. Open vSwitch then does all that it does whenever
it wakes, for one frame; what a frame costs where it is busy is measured with as many as it takes.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyroute2.iproute import IPRoute

from ringlight.containers.image import ImageError, image_present, image_tag
from ringlight.testbed.devices import DeviceKind, Site, device_kinds
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.bridges import has_kernel_datapath
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.emulation.kernel import addressing, namespaces, netlink, shaping
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.lab import OVS_LABEL, Lab, new_lab
from ringlight.testbed.load import ProcessorLoad

#: The stream's rate, bits per second: a frame each 0.36 ms; and one that nothing keeps.
RATE_BPS, FULL_BPS = 200e6, 20e9
#: How often each way is measured and for how long, and for how long it has run before, seconds. The least
#: counts: whatever else runs on the machine only adds to what a frame costs.
ROUNDS, MEASURED_S, WARM_S = 3, 0.3, 0.15
#: Bytes of headers of IP and TCP in a frame; frames that one acknowledgement covers.
HEADERS_BYTES = 52
ACKED = 2
#: Ports that a bridge has besides in use, when the cost of ports is measured.
MORE_PORTS = 64
#: Round trips between two processes of Python, and what each does when it wakes.
TRIPS, WORK = 1500, 200
PIECE = 1 << 16
#: Deadlines of a container's start and of all else, seconds.
CONTAINER_S, PATIENCE_S = 60.0, 20.0


@dataclass(frozen=True)
class Measured:
    """Seconds of one processor: of a ``frame`` at its two ends, a frame in a packet switch of Open vSwitch
    (``switched``), what each of its ``port``s adds to that, a frame that is carried past it (``carried``;
    None where no device does) and through an optical switch (``lit``). ``wake``: from one process of Python
    to another. ``container``: wall-clock seconds until one has started and ended, None without Docker.
    ``taken``: the largest share of the processors that others had meanwhile."""

    frame: float
    switched: float
    port: float
    carried: float | None
    lit: float
    wake: float
    container: float | None
    taken: float


@dataclass(frozen=True)
class _Way:
    """Seconds of each frame, in all and of Open vSwitch, and the share that others took meanwhile."""

    frame_s: float
    switch_s: float
    taken: float


def calibrate(say: Callable[[str], None]) -> Measured:
    """Measure the costs of :class:`Measured` and return them. Needs root and a running Open vSwitch.

    Raises NetworkError, LabError, and the errors of missing programs.
    """
    lab = new_lab()
    with lab.hold():
        try:
            return _calibrated(lab, say)
        finally:
            clean(lab.id)


def _calibrated(lab: Lab, say: Callable[[str], None]) -> Measured:
    ways: dict[str, _Way] = {}
    kinds: dict[str, Callable[[Lab], AbstractContextManager[tuple[int, int]]]] = {
        "veth pair": _plain,
        "optical switch": _lit,
        "Open vSwitch": lambda lab: _switched(lab, "few"),
        "Open vSwitch, busy": lambda lab: _switched(lab, "full", rate_bps=FULL_BPS),
        f"Open vSwitch with {MORE_PORTS} more ports": lambda lab: _switched(
            lab, "many", MORE_PORTS
        ),
    }
    carriers = {
        name.replace("_", " "): kind
        for name, kind in device_kinds().items()
        if kind.forwards
    }
    if has_kernel_datapath():
        carriers = {}
    kinds |= {
        name: partial(_switched, node="fast", carrier=kind)
        for name, kind in carriers.items()
    }
    for name, built in kinds.items():
        with built(lab) as ends:
            ways[name] = _cost(lab, ends)
        say(f"{name}: {1e6 * ways[name].frame_s:.1f} µs for each frame")
    frame, optical, few, busy, many = list(ways.values())[:5]
    at_switch = 1 + 1 / ACKED
    fast = min((ways[name].frame_s for name in carriers), default=None)
    return Measured(
        frame=frame.frame_s,
        switched=busy.switch_s / at_switch,
        port=max(0.0, many.switch_s - few.switch_s) / MORE_PORTS / at_switch,
        carried=None if fast is None else max(0.0, fast - frame.frame_s) / at_switch,
        lit=max(0.0, optical.frame_s - frame.frame_s) / at_switch,
        wake=_wake(),
        container=_container(),
        taken=max(way.taken for way in ways.values()),
    )


@contextmanager
def _hosts(lab: Lab) -> Iterator[tuple[int, int]]:
    """Two namespaces."""
    with ExitStack() as undo:
        ends = []
        for name in ("a", "b"):
            ends.append(namespaces.create_namespace(lab.namespace(name)))
            undo.callback(namespaces.delete_namespace, lab.namespace(name))
        yield ends[0], ends[1]


def _set_up(ends: tuple[int, int], rate_bps: float = RATE_BPS) -> None:
    for number, end in enumerate(ends, 1):

        def inside(number: int = number) -> None:
            namespaces.configure_namespace("reno")
            with IPRoute() as own:
                index = netlink.set_up(own, "eth0")
                netlink.set_checksum_offload("eth0", False)
                netlink.set_burst(own, index)
                shaping.shape(own, index, rate_bps, 0.02)
                addressing.address(own, index, f"10.78.0.{number}", 24, rto_min_s=0.02)

        namespaces.in_namespace(end, inside)


@contextmanager
def _plain(lab: Lab) -> Iterator[tuple[int, int]]:
    with _hosts(lab) as ends:
        with IPRoute() as here:
            netlink.create_veth(
                here, "eth0", "eth0", namespace=ends[0], peer_namespace=ends[1]
            )
        _set_up(ends)
        yield ends


@contextmanager
def _lit(lab: Lab) -> Iterator[tuple[int, int]]:
    """Two hosts at one optical switch, whose light stands."""
    names = [lab.interface("lit", number) for number in (1, 2)]
    with _hosts(lab) as ends:
        datapath = Datapath.open(lab.bpf_dir / "lit", "lit", 4)
        try:
            with IPRoute() as here:
                for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
                    netlink.create_veth(
                        here, name, "eth0", group=lab.link_group, peer_namespace=end
                    )
                    datapath.plug(netlink.set_up(here, name), number, 2 + number)
            for ingress, egress in ((1, 4), (2, 3)):
                datapath.connect(ingress, egress, time.monotonic_ns())
            _set_up(ends)
            yield ends
        finally:
            datapath.close()


@contextmanager
def _switched(
    lab: Lab,
    node: str,
    more_ports: int = 0,
    *,
    carrier: DeviceKind | None = None,
    rate_bps: float = RATE_BPS,
) -> Iterator[tuple[int, int]]:
    """Two hosts at one bridge of Open vSwitch, to which nothing else speaks."""
    bridge = lab.bridge(node)
    names = [lab.interface(node, number) for number in range(1, 3 + more_ports)]
    with (
        _hosts(lab) as ends,
        tempfile.TemporaryDirectory() as directory,
        ExitStack() as undo,
    ):
        undo.callback(openvswitch.remove_labelled, OVS_LABEL, lab.id)
        words = [
            "add-br",
            bridge,
            "--",
            "set",
            "Bridge",
            bridge,
            "datapath_type=netdev",
            "fail_mode=secure",
        ]
        words += [
            "protocols=OpenFlow13,OpenFlow15",
            f"external_ids:{OVS_LABEL}={lab.id}",
        ]
        with IPRoute() as here:
            for number, name in enumerate(names, 1):
                if number <= 2:
                    netlink.create_veth(
                        here,
                        name,
                        "eth0",
                        group=lab.link_group,
                        peer_namespace=ends[number - 1],
                    )
                else:
                    netlink.create_veth(here, name, f"{name}p", group=lab.link_group)
                netlink.set_up(here, name)
                words += [
                    "--",
                    "add-port",
                    bridge,
                    name,
                    "--",
                    "set",
                    "Interface",
                    name,
                ]
                words += [
                    f"ofport_request={number}",
                    f"mtu_request={netlink.MTU_BYTES}",
                ]
        openvswitch.vsctl(*words)
        openvswitch.keep_memory()
        openvswitch.widen_buffers(lab.prefix)
        device = (
            None
            if carrier is None
            else carrier.plan(Site(lab, Path(directory), {bridge: 1}))
        )
        if device is not None and device.forwarder is not None:
            undo.callback(device.stop)
            device.start()
            device.forwarder.take_up(names[:2])
        for here_port, there in ((1, 2), (2, 1)):
            for kind in ("ip", "arp"):
                flow = f"priority=9,{kind},in_port={here_port},actions=output:{there}"
                _run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge, flow)
        _set_up(ends, rate_bps)
        yield ends


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)


def _cost(lab: Lab, ends: tuple[int, int]) -> _Way:
    """Processor seconds of each full frame of a stream, and the share that others took meanwhile."""

    def listening() -> socket.socket:
        server = socket.create_server(("10.78.0.2", 0))
        server.settimeout(PATIENCE_S)
        return server

    with namespaces.in_namespace(ends[1], listening) as listener:
        to = listener.getsockname()
        sender = namespaces.in_namespace(
            ends[0], lambda: socket.create_connection(to, PATIENCE_S)
        )
        receiver, _ = listener.accept()
    ended = threading.Event()

    def pour() -> None:
        piece = bytes(PIECE)
        with suppress(OSError):
            while not ended.is_set():
                sender.sendall(piece)

    with sender, receiver:
        receiver.settimeout(PATIENCE_S)
        thread = threading.Thread(target=pour, name="calibration")
        thread.start()
        try:
            _received(receiver, WARM_S)
            rounds = [_round(lab, receiver) for _ in range(ROUNDS)]
        finally:
            ended.set()
            for end in (receiver, sender):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            thread.join()
    return min(rounds, key=lambda way: way.frame_s)


def _round(lab: Lab, receiver: socket.socket) -> _Way:
    load, before = ProcessorLoad(lab.id), _worked_s()
    got = _received(receiver, MEASURED_S)
    after, shares = _worked_s(), load.shares()
    frames = max(1.0, got / (netlink.MTU_BYTES - HEADERS_BYTES))
    ours_s, switch_s = (
        max(0.0, now - then) for now, then in zip(after, before, strict=True)
    )
    return _Way((ours_s + switch_s) / frames, switch_s / frames, shares.taken)


def _worked_s() -> tuple[float, float]:
    """Seconds of processor used so far by this process with the kernel's network threads, and Open vSwitch.

    Not those of the whole machine: whoever else is on it would count, too.
    """
    used_ns = {"ovs-vswitchd": 0, "ksoftirqd": 0}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (process / "comm").read_text().partition("/")[0].strip()
            if name in used_ns:
                spent = (
                    task.read_text().split()[0]
                    for task in process.glob("task/*/schedstat")
                )
                used_ns[name] += sum(map(int, spent))
    ours_ns = time.process_time_ns() + used_ns["ksoftirqd"]
    return ours_ns / 1e9, used_ns["ovs-vswitchd"] / 1e9


def _received(receiver: socket.socket, seconds: float) -> int:
    buffer, got, until = bytearray(PIECE), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        got += receiver.recv_into(buffer)
    return got


def _wake() -> float:
    """Seconds from one process of Python to another and its first work, of the fastest tenth."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            # Nothing of the parent's may run at its end.
            with suppress(OSError):
                ours.close()
                while theirs.recv(1):
                    sum(range(WORK))
                    theirs.send(b"!")
            os._exit(0)
        try:
            ours.settimeout(PATIENCE_S)
            times = []
            for _ in range(TRIPS):
                began = time.perf_counter()
                ours.send(b"?")
                ours.recv(1)
                sum(range(WORK))
                times.append((time.perf_counter() - began) / 2)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            os.waitpid(child, 0)
    return statistics.quantiles(times, n=10)[0]


def _container() -> float | None:
    try:
        if not image_present():
            return None
    except ImageError:
        return None
    began = time.monotonic()
    words = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "/bin/true",
        image_tag(),
    ]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=CONTAINER_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return time.monotonic() - began

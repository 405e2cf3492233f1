"""Shared by tests of an emulated testbed: a lab in this process, TCP between its workers, what it left."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from ringlight.fabric.topology import Fabric
from ringlight.testbed import services
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.kernel import namespaces
from ringlight.testbed.emulation.settings import Settings
from ringlight.testbed.emulation.testbed import Testbed
from ringlight.testbed.lab import CONTAINER_LABEL, ENVIRONMENT, OVS_LABEL, Lab, new_lab

#: Nobody listens there: a controller that runs on this machine must not see these bridges.
NOBODY = ControllerAddress("127.0.0.1", 9)

Key = TypeVar("Key")
#: The two ends of a TCP connection.
Ends = tuple[socket.socket, socket.socket]


@contextmanager
def running_testbed(fabric: Fabric, **settings: Any) -> Iterator[Testbed]:
    """A lab of its own; nothing of it may be left."""
    lab = new_lab()
    testbed = Testbed(
        Settings(
            lab=lab, fabric=fabric, state=lab.state_dir, controller=NOBODY, **settings
        )
    )
    testbed.start()
    try:
        yield testbed
    finally:
        testbed.stop()
        assert traces(lab) == []


def agent_client(testbed: Testbed) -> httpx.Client:
    """A client of the testbed's agent."""
    transport = httpx.HTTPTransport(uds=str(testbed.settings.state / "agent.sock"))
    return httpx.Client(transport=transport, base_url="http://agent", timeout=30)


class Idle:
    """A connection over which one call was made. Other tests run while it idles."""

    def __init__(self, connection: socket.socket, path: str) -> None:
        self._http = HTTPConnection("localhost", timeout=10)
        self._http.sock = connection
        self._path = path
        assert self._status() == 200
        self._since = time.monotonic()

    def _status(self) -> int:
        self._http.request("GET", self._path)
        answer = self._http.getresponse()
        answer.read()
        return answer.status

    def status_after(self, idle_s: float) -> int:
        """Status of another call on this connection after it has idled for ``idle_s``."""
        time.sleep(max(0.0, self._since + idle_s - time.monotonic()))
        return self._status()


def traces(lab: Lab) -> list[str]:
    """Everything that can be found of a lab, by other means than those of the program."""
    found = []
    for path in (lab.state_dir, lab.bpf_dir):
        if path.exists():
            # os.walk passes over what is removed meanwhile
            names = [
                name
                for _, folders, files in os.walk(path)
                for name in (*folders, *files)
            ]
            found.append(f"{path}: {names}")
    for command in (
        [
            "docker",
            "ps",
            "-a",
            "--filter",
            f"label={CONTAINER_LABEL}={lab.id}",
            "--format",
            "{{.Names}}",
        ],
        ["ip", "-o", "link"],
        ["ip", "netns"],
        ["ovs-vsctl", "list-br"],
        [
            "ovs-vsctl",
            "--bare",
            "--columns=_uuid",
            "find",
            "QoS",
            f"external_ids:{OVS_LABEL}={lab.id}",
        ],
    ):
        if command[0] == "docker" and not services.docker_running():
            continue
        out = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
        ours = command[0] == "docker" or "find" in command
        found += [
            line for line in out.splitlines() if line and (ours or lab.prefix in line)
        ]
    label = f"{ENVIRONMENT}={lab.id}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if label in path.read_bytes().split(b"\0"):
                found.append(
                    f"process {path.parent.name}: {(path.parent / 'cmdline').read_text()}"
                )
    return found


def until(
    condition: Callable[[], Any], timeout_s: float, told: Callable[[], str] = str
) -> float:
    """Wait for a condition; how long it took, seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            pytest.fail(f"not within {timeout_s} s: {told()}")
        time.sleep(0.02)
    return time.monotonic() - began


# -- TCP between workers


def socket_inside(
    lab: Lab, name: str, make: Callable[[], socket.socket]
) -> socket.socket:
    """What ``make`` returns in one of the lab's namespaces."""
    descriptor = os.open(Path("/run/netns", lab.namespace(name)), os.O_RDONLY)
    try:
        return namespaces.in_namespace(descriptor, make)
    finally:
        os.close(descriptor)


@contextmanager
def tcp_connection(lab: Lab, a: str, b: str, ip: str) -> Iterator[Ends]:
    """A TCP connection from worker ``a`` to ``b``, whose address is ``ip``. It needs no light to open."""

    def tcp() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.settimeout(10)
        return made

    with socket_inside(lab, b, tcp) as listener, socket_inside(lab, a, tcp) as near:
        listener.bind((ip, 0))
        listener.listen()
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        with far:
            far.settimeout(10)
            yield near, far


def unsent(connection: socket.socket) -> int:
    """Bytes that the peer has not yet acknowledged."""
    left = bytearray(4)
    fcntl.ioctl(connection, termios.TIOCOUTQ, left)
    return int(struct.unpack("=i", left)[0])


def drain(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(1 << 16)
        assert piece
        data += piece
    return bytes(data)


def pour(ends: Mapping[Key, Ends], seconds: float) -> tuple[dict[Key, int], float]:
    """Send over all connections at once what they take; the bytes that arrived, in how many seconds."""
    for connection in (one for pair in ends.values() for one in pair):
        connection.setblocking(False)
    taken, block = dict.fromkeys(ends, 0), bytes(1 << 16)
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for key, (near, far) in ends.items():
            with suppress(BlockingIOError):
                near.send(block)
            with suppress(BlockingIOError):
                taken[key] += len(far.recv(1 << 18))
        time.sleep(0.0005)
    return taken, now - began

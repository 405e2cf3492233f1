"""Hosts with fibres, and numbered packets between them."""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from ringlight.testbed.emulation.kernel.netns import entered
from ringlight.testbed.lab import Lab

#: The EtherType of the packets: IEEE 802's first for local experiments.
ETHERTYPE = 0x88B5
COMMAND_S = 20.0
HEADER_BYTES = 14
#: What a frame holds behind its header: the mark of its stream, and its number.
FRAME = struct.Struct("!IQ")
_SHORTEST = 60
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SIOCGIFMTU = 33, 35, 0x8921
#: When a frame arrived, as the kernel tells it: seconds and nanoseconds.
TIMESPEC = struct.Struct("@ll")
_RECEIVE_BYTES = 1 << 25


def run(*command: str, given: str | None = None) -> str:
    """Run a command and return its standard output. Raises RuntimeError with the command's error output."""
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{' '.join(command)}: not done after {COMMAND_S:g} s"
        ) from None
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def nobodys_address() -> str:
    """Return a ``host:port`` at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


class Host:
    """A NIC at a faceplate: what it sends is light for the switch, and it hears every packet of a stream.

    ``namespace``: None for an interface of this process's own namespace. Needs the right to raw sockets.
    """

    def __init__(self, namespace: str | None, interface: str = "eth0") -> None:
        self.namespace, self.interface = namespace, interface
        with entered(namespace):
            self.socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)
            )
        self.socket.bind((interface, ETHERTYPE))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.setblocking(False)
        self.header = (
            b"\xff" * 6 + self.socket.getsockname()[4] + struct.pack("!H", ETHERTYPE)
        )

    def close(self) -> None:
        self.socket.close()

    def send(self, payload: bytes) -> None:
        self.socket.send((self.header + payload).ljust(_SHORTEST, b"\0"))

    def plug(self, plugged: bool) -> None:
        """Put its fibre in or take it out: the light of its port goes on or off."""
        inside = ("-n", self.namespace) if self.namespace else ()
        run("ip", *inside, "link", "set", self.interface, "up" if plugged else "down")
        # That it was down would be reported to the next send or receive.
        self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    @property
    def mtu_bytes(self) -> int:
        request = struct.pack("16sI12x", self.interface.encode(), 0)
        with (
            entered(self.namespace),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control,
        ):
            answer = fcntl.ioctl(control, _SIOCGIFMTU, request)
        return int(struct.unpack_from("16sI", answer)[1])

    def nic_received(self) -> int:
        """Return how many packets arrived by the fibre, whatever became of them."""
        with entered(self.namespace):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        mine = f"{self.interface}:"
        return next(
            int(line.split()[2]) for line in lines if line.strip().startswith(mine)
        )

    def received(self, stream: Stream, until: int | None = None) -> list[int]:
        """Return the numbers of the packets of :meth:`arrived`."""
        return list(self.arrived(stream, until))

    def arrived(self, stream: Stream, until: int | None = None) -> dict[int, float]:
        """Return when (monotonic seconds) each of the stream's packets arrived here since the last call, by
        number.

        ``until``: number to wait for, at most 5 s, because a busy machine delivers late.
        """
        arrivals: dict[int, float] = {}
        deadline = time.monotonic() + 5
        while True:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(2048, 64)
            except BlockingIOError:
                if until is None or until in arrivals or time.monotonic() > deadline:
                    return arrivals
                time.sleep(0.002)
                continue
            mark, number = FRAME.unpack_from(data, HEADER_BYTES)
            if mark == stream.mark:
                (seconds, nanoseconds), *_ = (
                    TIMESPEC.unpack(data) for *_, data in ancillary
                )
                arrivals[number] = (
                    seconds + nanoseconds / 1e9 - time.time() + time.monotonic()
                )


class Stream:
    """Numbered packets from one host to the hosts that its light reaches.

    Packet i left between ``sent[i]`` and ``left[i]`` (monotonic seconds); the sender may be held up there.
    """

    def __init__(self, host: Host, interval_s: float = 0.001) -> None:
        self.mark = secrets.randbits(32)
        self.sent: list[float] = []
        self.left: list[float] = []
        self._host, self._interval_s = host, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def wait(self, packets: int) -> None:
        """Wait until ``packets`` more have left. Raises TimeoutError after 5 s."""
        until, deadline = len(self.sent) + packets, time.monotonic() + 5
        while len(self.sent) < until:
            if time.monotonic() > deadline:
                raise TimeoutError("the stream stands still")
            time.sleep(0.002)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self.sent.append(time.monotonic())
            self._host.send(FRAME.pack(self.mark, number))
            self.left.append(time.monotonic())
            number += 1
            time.sleep(self._interval_s)


class NamespaceNetwork:
    """Hosts 1..n; ``switch_ends``: options of `ip link add` for the switch's end of each one's fibre."""

    def __init__(
        self, lab: Lab, switch_ends: Iterable[str], namespaces: Iterable[str] = ()
    ) -> None:
        ends = list(switch_ends)
        names = [lab.namespace(f"h{i}") for i in range(1, len(ends) + 1)]
        self._namespaces = [*namespaces, *names]
        self.hosts: dict[int, Host] = {}
        lines = [f"netns add {name}" for name in self._namespaces]
        for end, name in zip(ends, names, strict=True):
            lines.append(
                f"link add {end} mtu 9000 type veth peer name eth0 mtu 9000 netns {name}"
            )
        try:
            run("ip", "-batch", "-", given="\n".join(lines))
            for i, name in enumerate(names, start=1):
                with entered(name):
                    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
                run("ip", "-n", name, "link", "set", "eth0", "up")
                self.hosts[i] = Host(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        for name in self._namespaces:
            if Path("/run/netns", name).exists():
                with contextlib.suppress(RuntimeError):
                    run("ip", "netns", "del", name)

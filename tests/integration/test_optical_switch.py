"""The emulated optical switch as a process: real interfaces, real packets, real kills."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.kernel.build import BuildError, build_object
from ringlight.testbed.emulation.kernel.netns import entered
from ringlight.testbed.emulation.optical.datapath import (
    SOURCE,
    Counters,
    Datapath,
    remove_pins,
)
from ringlight.testbed.process_start import Process, start_process

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
SIZE = 6
UDP_PORT = 9000
PACKET = struct.Struct("!QQ")  # sender, sequence number


def ip(*lines: str) -> None:
    """Runs ``ip`` commands in one process."""
    result = subprocess.run(
        ["ip", "-batch", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def eventually(check: Callable[[], object], what: str, deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < end, f"after {deadline_s:g} s still not: {what}"
        time.sleep(0.01)


class Scpi:
    """A client's socket; every wait has a deadline."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._lines = self._socket.makefile("rb")

    def send(self, text: str) -> None:
        self._socket.sendall(text.encode() + b"\n")

    def ask(self, text: str) -> str:
        self.send(text)
        return self.read()

    def read(self) -> str:
        line = self._lines.readline()
        assert line.endswith(b"\n"), "the switch has closed the connection"
        return line.decode().strip()

    def do(self, text: str) -> None:
        """A command that must succeed; returns when its light is tuned."""
        assert self.ask(f"{text};*opc?;:syst:err:all?") == '1;0,"No error"'

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Bench:
    """A namespace for the switch and one for each host; host k is plugged into faceplate port k."""

    def __init__(self, directory: Path) -> None:
        self.lab = "o" + secrets.token_hex(2)[:3]
        self.netns = f"rl{self.lab}-ocs0"
        self.pins = Path("/sys/fs/bpf/ringlight") / self.lab / "ocs0"
        self.directory = directory
        self.process: Process | None = None
        self.address = ""
        names = [self.netns, *(self.host(k) for k in range(1, SIZE + 1))]
        ip(*(f"netns add {name}" for name in names))
        for name in names:
            with entered(name):
                for key in ("default", "all"):
                    switch = Path(f"/proc/sys/net/ipv6/conf/{key}/disable_ipv6")
                    if switch.exists():
                        switch.write_text("1")
        for k in range(1, SIZE + 1):
            self.plug(k)

    def host(self, k: int) -> str:
        return f"rl{self.lab}-h{k}"

    def plug(self, k: int) -> None:
        ip(
            f"link add p{k} mtu 9000 netns {self.netns} type veth "
            f"peer name eth0 mtu 9000 netns {self.host(k)}"
        )
        with entered(self.host(k)):
            ip(
                f"addr add 10.83.0.{k}/24 broadcast 10.83.0.255 dev eth0",
                "link set eth0 up",
            )

    def unplug(self, k: int) -> None:
        with entered(self.host(k)):
            ip("link del eth0")

    def start(self, *arguments: str, profile: str = "ideal") -> Scpi:
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        with (self.directory / "switch.log").open("ab") as log:
            process = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        "ocs0",
                        "--lab",
                        self.lab,
                    ),
                    *(
                        "--size",
                        str(SIZE),
                        "--listen",
                        "127.0.0.1:0",
                        "--netns",
                        self.netns,
                    ),
                    *(
                        "--pins",
                        str(self.pins),
                        "--ready",
                        str(ready),
                        "--profile",
                        profile,
                        *arguments,
                    ),
                ],
                {**os.environ, "RINGLIGHT_LAB": self.lab},
                log,
            )
        self.process = process
        eventually(lambda: ready.exists() or process.poll() is not None, "ready", 20)
        assert process.poll() is None, self.log()
        self.address = json.loads(ready.read_text())["address"]
        return Scpi(self.address)

    def log(self) -> str:
        return (self.directory / "switch.log").read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(10)
        self.process = None
        return code

    def counters(self, port: int) -> Counters:
        datapath = Datapath.resume(self.pins)
        try:
            return datapath.counters(port)
        finally:
            datapath.close()

    def plugged(self) -> list[int]:
        """Ingress ports of the interfaces that the kernel program knows."""
        datapath = Datapath.resume(self.pins)
        try:
            return list(datapath.plugged().values())
        finally:
            datapath.close()

    def filters(self) -> list[str]:
        """The ingress filter of each faceplate interface, with the id of its program."""
        result = subprocess.run(
            ["tc", "-n", self.netns, "-batch", "-"],
            input="".join(
                f"filter show dev p{k} ingress\n" for k in range(1, SIZE + 1)
            ),
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return [line for line in result.stdout.splitlines() if "direct-action" in line]

    def close(self) -> None:
        if self.process is not None:
            self.end()
        for name in [*(self.host(k) for k in range(1, SIZE + 1)), self.netns]:
            subprocess.run(
                ["ip", "netns", "del", name],
                timeout=10,
                check=False,
                capture_output=True,
            )
        remove_pins(self.pins)
        with contextlib.suppress(FileNotFoundError):
            self.pins.parent.rmdir()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = interfaces()
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        bench.close()
    left = {name for name in interfaces() - before if bench.lab in name}
    assert not left
    assert not bench.pins.parent.exists()
    assert not [
        name for name in os.listdir("/run/netns") if name.startswith(f"rl{bench.lab}-")
    ]


class Traffic:
    """Numbered packets from host to host, broadcast so that any host takes them; every loss shows."""

    def __init__(
        self, bench: Bench, senders: list[int], interval_s: float = 0.0005
    ) -> None:
        self._interval_s = interval_s
        self._out = {k: self._socket(bench, k) for k in senders}
        self._in = {k: self._socket(bench, k, UDP_PORT) for k in range(1, SIZE + 1)}
        self.sent = dict.fromkeys(senders, 0)
        self.longest_pause_s = 0.0
        self.received: dict[int, list[tuple[int, int]]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")

    @staticmethod
    def _socket(bench: Bench, host: int, port: int = 0) -> socket.socket:
        with entered(bench.host(host)):
            end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        end.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        end.bind(("", port))
        end.setblocking(False)
        return end

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ending.wait(self._interval_s):
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - last)
            last = now
            for host, end in self._out.items():
                end.sendto(
                    PACKET.pack(host, self.sent[host]), ("10.83.0.255", UDP_PORT)
                )
                self.sent[host] += 1

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(5)
        assert not self._thread.is_alive()
        self.received = {host: [] for host in self._in}
        while select.select(self._in.values(), (), (), 0.3)[
            0
        ]:  # a busy machine delivers late
            for host, end in self._in.items():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        packet = PACKET.unpack(end.recv(64))
                        # A broadcast comes back to its own host as well.
                        if packet[0] != host:
                            self.received[host].append(packet)
        for end in itertools.chain(self._in.values(), self._out.values()):
            end.close()

    def is_whole(self, sender: int, receiver: int) -> bool:
        """Whether the receiver got every packet of the sender, once and in order."""
        expected = [(sender, number) for number in range(self.sent[sender])]
        return bool(expected) and self.received[receiver] == expected


def drops(counters: Counters) -> dict[str, int]:
    return {
        name: count
        for name, count in asdict(counters).items()
        if name.endswith("drops")
    }


def egress(host: int) -> int:
    return SIZE + host


def test_light_goes_where_it_is_sent_and_nowhere_else(bench: Bench) -> None:
    scpi = bench.start()
    assert scpi.ask("*idn?").startswith("Polatis,")
    assert scpi.ask(":oxc:swit:size?") == f"{SIZE},{SIZE}"
    assert scpi.ask(":oxc:swit:conn:stat?") == "(@),(@)"
    with Traffic(bench, [1, 2, 3]) as traffic:
        time.sleep(0.1)
    assert not any(traffic.received.values())
    assert (
        bench.counters(1).unset_drops == bench.counters(1).rx_packets == traffic.sent[1]
    )

    scpi.do(f":oxc:swit:conn:add (@1,2),(@{egress(2)},{egress(4)})")
    with Traffic(bench, [1, 2, 3]) as traffic:
        time.sleep(0.1)
    assert traffic.is_whole(1, 2)
    assert traffic.is_whole(2, 4)
    assert {host for host, numbers in traffic.received.items() if numbers} == {2, 4}
    assert bench.counters(egress(2)).tx_packets == traffic.sent[1]
    assert bench.counters(egress(2)).tx_bytes == bench.counters(
        1
    ).rx_bytes * traffic.sent[1] // (bench.counters(1).rx_packets)

    scpi.do(":oxc:swit:disc:all")
    with Traffic(bench, [1]) as traffic:
        time.sleep(0.1)
    assert not any(traffic.received.values())


def test_an_egress_without_interface_drops_and_counts(bench: Bench) -> None:
    scpi = bench.start()
    bench.unplug(6)
    scpi.do(f":oxc:swit:conn:add (@1),(@{egress(6)})")
    with Traffic(bench, [1]) as traffic:
        time.sleep(0.05)
    assert bench.counters(1).unplugged_drops == traffic.sent[1] > 0


@pytest.mark.parametrize("profile", ["mems", "piezo"])
def test_dark_time_on_the_wire_is_what_the_profile_declares(
    bench: Bench, profile: str
) -> None:
    scpi = bench.start(profile=profile)
    scpi.do(f":oxc:swit:conn:add (@1,2,3),(@{egress(4)},{egress(5)},{egress(6)})")
    least, _, most = profiles()[profile].dark_bounds_s()
    time.sleep(
        profiles()[profile].retrain_s * 2
    )  # the switch is tuned, the receivers are not yet
    with Traffic(bench, [1, 2, 3]) as traffic:
        time.sleep(0.1)
        scpi.do(f":oxc:swit:conn:only (@1,2,3),(@{egress(5)},{egress(4)},{egress(6)})")
        time.sleep(0.1)
    for port in (1, 2, egress(4), egress(5)):
        counters = bench.counters(port)
        assert counters.dark_s is not None
        # The kernel's own clock on both sides; on top may come the sender's own pause, and that of the
        # switch between the two changes of its light.
        assert (
            least * 0.8 <= counters.dark_s <= 3 * most + traffic.longest_pause_s + 0.03
        )
        if port <= SIZE:
            assert counters.dark_drops > 0
    assert traffic.is_whole(3, 6)


def test_swaps_lose_nothing_on_kept_circuits(bench: Bench) -> None:
    scpi = bench.start()
    scpi.do(
        f":oxc:swit:conn:add (@1,2,3,4),(@{egress(4)},{egress(5)},{egress(6)},{egress(1)})"
    )
    before = [bench.counters(port) for port in (3, egress(6), 4, egress(1))]
    with Traffic(bench, [1, 2, 3, 4]) as traffic:
        for turn in range(60):
            a, b = (5, 4) if turn % 2 == 0 else (4, 5)
            if turn % 3:
                scpi.do(
                    f":oxc:swit:conn:only (@1,2,3,4),(@{egress(a)},{egress(b)},{egress(6)},{egress(1)})"
                )
            else:
                scpi.do(
                    f":oxc:swit:conn:sub (@1,2),(@);add (@1,2),(@{egress(a)},{egress(b)})"
                )
            time.sleep(0.005)
    assert traffic.is_whole(3, 6)
    assert traffic.is_whole(4, 1)
    # The streams that moved went on, over one circuit or the other.
    assert len(traffic.received[4]) + len(traffic.received[5]) > traffic.sent[1]
    for port, old in zip((3, egress(6), 4, egress(1)), before, strict=True):
        new = bench.counters(port)
        assert drops(new) == drops(old)
        assert new.rx_packets + new.tx_packets > old.rx_packets + old.tx_packets


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_light_outlives_the_process_and_a_restart_changes_nothing(
    bench: Bench, number: int
) -> None:
    scpi = bench.start()
    scpi.do(f":oxc:swit:conn:add (@1,2),(@{egress(2)},{egress(3)})")
    scpi.do(":oxc:swit:port:dis (@5)")
    questions = (
        ":oxc:swit:conn:stat?",
        ":oxc:swit:port:stat?",
        f":pmon:pow? (@1:{2 * SIZE})",
    )
    with Traffic(bench, [1, 2]) as traffic:
        filters = bench.filters()
        assert len(filters) == SIZE
        answers = [scpi.ask(question) for question in questions]
        assert bench.end(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        time.sleep(0.1)
        again = bench.start()
        assert [again.ask(question) for question in questions] == answers
        assert bench.filters() == filters
        time.sleep(0.05)
    assert traffic.is_whole(1, 2)
    assert traffic.is_whole(2, 3)
    # It is in command again, not only alive.
    again.do(f":oxc:swit:conn:sub (@1),(@{egress(2)})")
    with Traffic(bench, [1]) as traffic:
        time.sleep(0.05)
    assert not any(traffic.received.values())


def test_a_process_killed_while_tuning_leaves_light_that_comes_on_time(
    bench: Bench,
) -> None:
    # Dark for 1.2 s, in which a busy machine gets to where it is looked for.
    scpi = bench.start("--time-dilation", "40", profile="mems")
    with Traffic(bench, [1]) as traffic:
        scpi.send(f":oxc:swit:conn:add (@1),(@{egress(2)})")
        assert scpi.ask(":oxc:swit:conn:stat?") == f"(@1),(@{egress(2)})"
        bench.end()
        assert bench.counters(egress(2)).tx_packets == 0
        eventually(lambda: bench.counters(egress(2)).tx_packets, "light")
    assert traffic.received[2]
    assert bench.counters(1).dark_drops > 0


def test_nics_come_and_go_and_cross_connects_stay(bench: Bench) -> None:
    scpi = bench.start()
    scpi.do(f":oxc:swit:conn:add (@1,2),(@{egress(2)},{egress(1)})")

    def power() -> list[float]:
        return [
            float(x)
            for x in scpi.ask(f":pmon:pow? (@1,{egress(2)})").strip("()").split(",")
        ]

    eventually(lambda: power() == [0.0, 0.0], "light at ingress and egress")
    for turn in range(3):
        bench.unplug(1)
        eventually(lambda: power() == [-60.0, -60.0], "loss of signal")
        assert scpi.ask(":oxc:swit:conn:stat?") == f"(@1,2),(@{egress(2)},{egress(1)})"
        if turn == 2:
            # Pulled and plugged again while nobody watches.
            bench.end()
            bench.unplug(3)
            bench.plug(3)
            bench.unplug(5)
            scpi = bench.start()
            assert sorted(bench.plugged()) == [2, 3, 4, 6]
            assert scpi.ask(f":pmon:pow? (@1,3,{egress(2)})") == "(-60.0,0.0,-60.0)"
        bench.plug(1)
        eventually(lambda: power() == [0.0, 0.0], "light again")
        with Traffic(bench, [1, 2]) as traffic:
            time.sleep(0.05)
        assert traffic.is_whole(1, 2)
        assert traffic.is_whole(2, 1)
    assert scpi.ask(":oxc:swit:conn:stat?") == f"(@1,2),(@{egress(2)},{egress(1)})"


def test_a_far_end_that_is_down_is_loss_of_signal(bench: Bench) -> None:
    scpi = bench.start()
    assert scpi.ask(":pmon:pow? (@4)") == "(0.0)"
    with entered(bench.host(4)):
        ip("link set eth0 down")
    eventually(lambda: scpi.ask(":pmon:pow? (@4)") == "(-60.0)", "loss of signal")


@pytest.mark.parametrize("port", [1, SIZE + 2])
def test_a_disabled_port_blocks_light_and_keeps_what_was_meant(
    bench: Bench, port: int
) -> None:
    scpi = bench.start("--failed-port", "4")
    scpi.do(f":oxc:swit:conn:add (@1,3),(@{egress(2)},{egress(5)})")
    with Traffic(bench, [1, 3]) as traffic:
        scpi.do(f":oxc:swit:port:dis (@{port})")
        passed = bench.counters(egress(2)).tx_packets
        time.sleep(0.05)
        assert bench.counters(egress(2)).tx_packets == passed
        assert scpi.ask(":oxc:swit:conn:stat?") == f"(@1,3),(@{egress(2)},{egress(5)})"
        scpi.do(f":oxc:swit:port:enab (@{port})")
        eventually(lambda: bench.counters(egress(2)).tx_packets > passed, "light again")
    assert bench.counters(1).blocked_drops > 0
    assert traffic.is_whole(3, 5)
    assert scpi.ask(":oxc:swit:port:stat? (@4)") == "(F)"
    assert scpi.ask(f":oxc:swit:conn:add (@4),(@{egress(1)});:syst:err?").startswith(
        "-240"
    )


def test_a_port_that_had_failed_when_the_process_was_killed_can_be_repaired(
    bench: Bench,
) -> None:
    options = ("--failed-port", "4", "--rest", "127.0.0.1:0")

    def rest() -> str:
        return f"http://{json.loads((bench.directory / 'ready.json').read_text())['rest']}/v1/faults"

    bench.start(*options)
    assert (
        httpx.post(rest(), json={"kind": "port-failed", "port": 3}).status_code == 201
    )
    bench.end()
    scpi = bench.start(*options)
    assert scpi.ask(":oxc:swit:port:stat? (@3,4)") == "(F,F)"
    (fault,) = httpx.get(rest()).json()
    assert (fault["kind"], fault["port"]) == ("port-failed", 3)
    assert httpx.delete(rest()).status_code == 200
    # The one that was asked for at the start stays as it is.
    assert scpi.ask(":oxc:swit:port:stat? (@3,4)") == "(E,F)"


def test_tcp_with_offloads_arrives_unharmed(bench: Bench) -> None:
    scpi = bench.start()
    scpi.do(f":oxc:swit:conn:add (@1,2),(@{egress(2)},{egress(1)})")
    data = secrets.token_bytes(1 << 20) * 32
    with entered(bench.host(2)):
        listener = socket.create_server(("10.83.0.2", 5000))
    with entered(bench.host(1)):
        client = socket.socket()
    received: list[str] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(20)
            digest = hashlib.sha256()
            while piece := connection.recv(1 << 18):
                digest.update(piece)
            received.append(digest.hexdigest())

    listener.settimeout(20)
    thread = threading.Thread(target=serve)
    thread.start()
    with client:
        client.settimeout(20)
        client.connect(("10.83.0.2", 5000))
        client.sendall(data)
    thread.join(30)
    listener.close()
    assert received == [hashlib.sha256(data).hexdigest()]


def test_many_clients_and_rude_ones(bench: Bench) -> None:
    scpi = bench.start("--idle-timeout", "2", profile="mems")
    clients = [Scpi(bench.address) for _ in range(20)]
    for client in clients:
        client.send(":oxc:swit:conn:stat?")
    assert {client.read() for client in clients} == {"(@),(@)"}
    for client in clients[1:]:
        client.close()
    rude = Scpi(bench.address)
    rude.send("\x00\x01garbage" * 100)
    rude.close()
    # Says all it has to say and listens on: its commands are done and answered.
    quiet = Scpi(bench.address)
    quiet.send(f":oxc:swit:conn:add (@1),(@{egress(2)});*opc?;stat?")
    quiet.half_close()
    assert quiet.read() == f"1;(@1),(@{egress(2)})"
    assert quiet._lines.readline() == b""
    # Goes away without waiting: what it asked for is done all the same.
    hasty = Scpi(bench.address)
    hasty.send(f":oxc:swit:conn:add (@2),(@{egress(1)})")
    hasty.close()
    eventually(
        lambda: (
            scpi.ask(":oxc:swit:conn:stat?") == f"(@1,2),(@{egress(2)},{egress(1)})"
        ),
        "second pair",
    )
    # The first of the clients has been silent all the while.
    assert clients[0]._lines.readline() == b""
    with pytest.raises(AssertionError, match="closed"):
        clients[0].ask("*idn?")


def test_a_start_that_cannot_work_says_so_in_one_line_and_leaves_nothing(
    bench: Bench,
) -> None:
    def failing(*arguments: str) -> str:
        result = subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "ringlight.testbed.emulation.optical",
                    "--name",
                    "ocs0",
                    "--size",
                    str(SIZE),
                ),
                *("--netns", bench.netns, "--pins", str(bench.pins), *arguments),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert result.returncode == 1
        return result.stderr.splitlines()[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in failing("--listen", f"127.0.0.1:{port}")
    assert not bench.pins.exists()
    assert "rlnone" in failing("--listen", "127.0.0.1:0", "--netns", "rlnone")
    assert not bench.pins.exists()
    bench.start()
    bench.end()
    assert "'ocs0'" in failing("--listen", "127.0.0.1:0", "--name", "ocs1")
    assert bench.pins.exists()


def test_the_program_is_compiled_once(tmp_path: Path) -> None:
    first = build_object(SOURCE, tmp_path)
    assert build_object(SOURCE, tmp_path, clang="no-such-clang") == first
    broken = tmp_path / "broken.c"
    broken.write_text("int broken(void) { return nonsense; }\n")
    with pytest.raises(BuildError, match=r"broken\.c.*nonsense"):
        build_object(broken, tmp_path)
    with pytest.raises(BuildError, match="no-such-clang is not installed"):
        build_object(broken, tmp_path, clang="no-such-clang")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["broken.c", first.name]
    )

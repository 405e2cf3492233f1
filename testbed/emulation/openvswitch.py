"""Open vSwitch from outside: its database, and the buffers of its userspace datapath.

The userspace datapath sends every frame of every port through one AF_PACKET socket and receives each
port's through another. A frame that waits in a shaped port's queue is charged to the one sending socket,
whose default of 208 KiB holds 16 frames of 9000 bytes: the queues of all links together. Likewise a port
loses frames when the switch looks away for longer than 16 frames take. :func:`widen_buffers` gives these
sockets room, so that a frame is lost only where a queue of the fabric is full. Measured at 1 Gbit/s through
one bridge: 967 Mbit/s with 85 retransmissions before, 991 Mbit/s (the rate less headers) without any after.

Its process is started with locked memory (``--mlockall``), and for each batch of frames it takes about
136 KiB from the end of its heap and frees them again. glibc gives the end of the heap back to the kernel as
soon as 128 KiB of it are free: so for each batch the kernel takes 34 pages, and clears and locks as many new
ones. :func:`keep_memory` stops that. Measured with six GPUs on a switch just started: 0.46 to 0.50 of two
processors busy before, 0.22 to 0.24 after.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.testbed import services
from ringlight.testbed.descriptors import too_few

log = logging.getLogger(__name__)

TIMEOUT_S = 10
#: Longest wait for the names of all bridges and ports, seconds.
MEMBERS_S = 2.0
SEND_BUFFER_BYTES = 16 << 20
RECEIVE_BUFFER_BYTES = 4 << 20
#: The process frees a block at least as long, after which it keeps twice as much at the end of its heap.
LONG_REQUEST_BYTES = 2_000_000

_PID_FILE = Path("/var/run/openvswitch/ovs-vswitchd.pid")
_SYS_PIDFD_GETFD = 438
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_ATTACH_BPF = 50
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_libc = ctypes.CDLL(None, use_errno=True)


class OpenVSwitchError(RuntimeError):
    """Open vSwitch refused or does not answer; one line."""


def vsctl(*words: str) -> str:
    """One ovs-vsctl transaction; returns once the switch has taken it up. Raises OpenVSwitchError."""
    try:
        done = subprocess.run(
            ["ovs-vsctl", f"--timeout={TIMEOUT_S}", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S + 5,
            start_new_session=True,
            check=False,
        )
    except FileNotFoundError:
        raise OpenVSwitchError(
            "Open vSwitch is not installed; run: apt-get install openvswitch-switch"
        ) from None
    except subprocess.TimeoutExpired:
        raise OpenVSwitchError(
            f"Open vSwitch does not answer within {TIMEOUT_S} s"
        ) from None
    except OSError as error:
        raise OpenVSwitchError(too_few(error) or f"ovs-vsctl: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [
            f"ovs-vsctl gave {done.returncode}"
        ]
        if (
            "db.sock" in done.stderr
            or "Alarm clock" in done.stderr
            or done.returncode < 0
        ):
            raise OpenVSwitchError(
                "Open vSwitch is not running or does not answer; run: ringlight doctor"
            )
        raise OpenVSwitchError(f"Open vSwitch: {lines[-1].removeprefix('ovs-vsctl: ')}")
    return done.stdout


def members() -> dict[str, set[str]]:
    """Return the names of the ports of each bridge of this machine, as the database has them.

    The query needs no process of its own, because it is made twice a second. Raises OSError, ValueError.
    """
    chosen = [
        {"op": "select", "table": table, "where": [], "columns": columns}
        for table, columns in (
            ("Bridge", ["name", "ports"]),
            ("Port", ["_uuid", "name"]),
        )
    ]
    request = {"method": "transact", "params": ["Open_vSwitch", *chosen], "id": 0}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(MEMBERS_S)
        connection.connect(str(services.OVS_SOCKET))
        connection.sendall(json.dumps(request).encode())
        bridges, ports = _answer(connection)["result"]
    names = {row["_uuid"][1]: row["name"] for row in ports["rows"]}
    return {
        row["name"]: {names[port] for port in _uuids(row["ports"])}
        for row in bridges["rows"]
    }


def _answer(connection: socket.socket) -> dict[str, Any]:
    """One document of JSON, which ends where it is whole."""
    received, deadline = b"", time.monotonic() + MEMBERS_S
    while time.monotonic() < deadline:
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        received += piece
        if piece.rstrip().endswith(b"}"):
            with suppress(ValueError):
                reply: dict[str, Any] = json.loads(received)
                return reply
    raise TimeoutError("Open vSwitch's database answers too slowly")


def _uuids(value: Any) -> list[str]:
    """Those of a column of references: one alone, or a set of them (RFC 7047, 5.1)."""
    kind, of = value
    return [uuid for _, uuid in of] if kind == "set" else [of]


def find(table: str, label: str, value: str, column: str) -> list[str]:
    """Return a column of the records of ``table`` whose ``external_ids:label`` is ``value``."""
    out = vsctl(
        "--bare", f"--columns={column}", "find", table, f"external_ids:{label}={value}"
    )
    return [line for line in out.splitlines() if line]


def waiting() -> list[str]:
    """Return the words for :func:`vsctl` not to wait for the switch's process, [] if that process runs. A
    dead process takes up no changes."""
    return [] if services.open_vswitch_running() else ["--no-wait"]


def remove_labelled(label: str, value: str) -> list[str]:
    """Remove the bridges and queue records with a label. Return the names of the bridges. Raises
    OpenVSwitchError."""
    bridges = find("Bridge", label, value, "name")
    wait = waiting()
    # Two transactions: the ports that refer to a record are only gone after the first.
    for words in (
        [word for name in bridges for word in ("--", "--if-exists", "del-br", name)],
        [
            w
            for u in find("QoS", label, value, "_uuid")
            for w in ("--", "--if-exists", "destroy", "QoS", u)
        ],
    ):
        if words:
            vsctl(*wait, *words)
    return bridges


def set_target(bridge: str, target: str) -> None:
    """Have a bridge connect to this controller. Raises OpenVSwitchError."""
    vsctl("set", "controller", bridge, f'target="{target}"')
    actual = vsctl("get", "controller", bridge, "target").strip().strip('"')
    if actual != target:
        raise OpenVSwitchError(
            f"Open vSwitch: the controller of {bridge} is {actual}, not {target}"
        )


@dataclass(frozen=True)
class Connection:
    """A bridge and its controller. ``for_s``: whole seconds that it has been connected, or has not been since
    it was last; None where it never was. ``last_error``: of the last attempt that failed."""

    connected: bool
    for_s: int | None
    last_error: str | None


def connections(bridges: Sequence[str]) -> list[Connection]:
    """Return the state of each bridge's connection to its one controller. Raises OpenVSwitchError."""
    if not bridges:
        return []
    reply = json.loads(
        vsctl(
            "--format=json",
            "--columns=is_connected,status",
            "list",
            "Controller",
            *bridges,
        )
    )
    return [
        _connection(connected, dict(status[1])) for connected, status in reply["data"]
    ]


def _connection(connected: bool, status: Mapping[str, str]) -> Connection:
    since = status.get("sec_since_connect" if connected else "sec_since_disconnect")
    return Connection(
        connected, None if since is None else int(since), status.get("last_error")
    )


def cut_off(bridge: str) -> None:
    """Have a bridge look for its controller where nobody listens. Its flows stay. Raises OpenVSwitchError.

    A bridge without any controller would lose its flows.
    """
    set_target(bridge, f"unix:{_PID_FILE.parent}/{bridge}.nobody")


def set_no_target(bridge: str) -> None:
    """Cut a switch off like :func:`cut_off`, and wait until it says so. Raises OpenVSwitchError."""
    cut_off(bridge)
    deadline = time.monotonic() + TIMEOUT_S
    while vsctl("get", "controller", bridge, "is_connected").strip() != "false":
        if time.monotonic() > deadline:
            raise OpenVSwitchError(
                f"Open vSwitch: {bridge} is still connected to its controller"
            )
        time.sleep(0.02)


def empty_tables(bridge: str) -> None:
    """Remove every flow, group and meter of a bridge. Raises OpenVSwitchError where flows are left."""
    for command in ("del-flows", "del-groups", "del-meters"):
        _ofctl(command, bridge)
    reply = _ofctl("dump-aggregate", bridge)
    if "flow_count=0" not in reply:
        raise OpenVSwitchError(f"Open vSwitch: {bridge} keeps flows: {reply.strip()}")


def delete_flows(bridge: str, matches: Sequence[str]) -> None:
    """Remove every flow of a bridge that is as narrow as one of these matches. Raises OpenVSwitchError."""
    _ofctl(
        "del-flows",
        bridge,
        "-",
        standard_input="".join(f"{match}\n" for match in matches),
    )


def _ofctl(command: str, bridge: str, *words: str, standard_input: str = "") -> str:
    try:
        done = subprocess.run(
            [
                "ovs-ofctl",
                f"--timeout={TIMEOUT_S}",
                "--protocols=OpenFlow13",
                command,
                bridge,
                *words,
            ],
            input=standard_input,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S + 5,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OpenVSwitchError(
            f"Open vSwitch does not answer within {TIMEOUT_S} s"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-1:] or [
            f"ovs-ofctl gave {done.returncode}"
        ]
        raise OpenVSwitchError(
            f"Open vSwitch: {command} {bridge}: {lines[0].removeprefix('ovs-ofctl: ')}"
        )
    return done.stdout


def check_ports(numbers: Mapping[str, int]) -> None:
    """Read back that each interface is attached with its OpenFlow port number. Raises OpenVSwitchError."""
    if not numbers:
        return
    words: list[str] = []
    for name in numbers:
        words += ["--", "get", "Interface", name, "ofport", "error"]
    lines = vsctl(*words[1:]).splitlines()
    for (name, port), number, error in zip(
        numbers.items(), lines[::2], lines[1::2], strict=True
    ):
        if number != str(port):
            reason = (
                error.strip('"')
                if error != "[]"
                else f"it got port number {number}, not {port}"
            )
            raise OpenVSwitchError(f"Open vSwitch could not attach {name}: {reason}")


def widen_buffers(prefix: str) -> int:
    """Widen the sending socket and the receiving sockets of interfaces called ``prefix…``. Return the number
    of sockets widened.

    The sockets are borrowed from the switch's process (pidfd_getfd, Linux 5.6). If that is not allowed, a
    warning is logged and the sockets stay as they are.
    """
    try:
        return sum(_widen(packet, prefix) for packet in _borrowed_sockets())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        log.warning("buffers of Open vSwitch stay as they are: %s", why)
        return 0


def filter_received(interfaces: Collection[str], program: int) -> None:
    """Have a BPF program, by its descriptor, filter what Open vSwitch receives at these interfaces.

    It takes the place of Open vSwitch's own filter, which hides what leaves by them. The kernel no longer
    shows that to these sockets: it would copy every frame for it. Raises OpenVSwitchError where a socket
    cannot be borrowed, or an interface has none.
    """
    left = set(interfaces)
    try:
        for packet in _borrowed_sockets():
            name, protocol = packet.getsockname()[:2]
            if protocol and name in left:
                packet.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
                packet.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
                left.discard(name)
    except (OSError, ValueError) as error:
        raise OpenVSwitchError(
            f"Open vSwitch's sockets cannot be borrowed: {error}"
        ) from None
    if left:
        raise OpenVSwitchError(f"Open vSwitch does not receive from {min(left)}")


def management_socket(bridge: str) -> Path:
    """Return the path of the socket at which a bridge accepts OpenFlow from programs on this machine."""
    return _PID_FILE.parent / f"{bridge}.mgmt"


def keep_memory(control: Path | None = None) -> bool:
    """Have the switch's process keep memory that it frees. Return whether the process replied. Once is enough
    for a process.

    glibc raises what it keeps at the end of the heap to twice the largest block that was mapped on its own
    and has been freed (mallopt(3), M_MMAP_THRESHOLD). A long request to the ``control`` socket is such a
    block. It works for any process of the switch and without a restart. Later, every short batch of frames
    fits.
    """
    try:
        if control is None:
            control = (
                _PID_FILE.parent / f"ovs-vswitchd.{int(_PID_FILE.read_text())}.ctl"
            )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(control))
            request = {
                "id": 0,
                "method": "version",
                "params": ["x" * LONG_REQUEST_BYTES],
            }
            connection.sendall(json.dumps(request).encode())
            # That it takes no such argument is its answer.
            if not connection.recv(4096):
                raise ConnectionResetError(errno.ECONNRESET, "it hung up")
    except (OSError, ValueError) as error:
        log.warning(
            "Open vSwitch gives back its memory after every batch of frames: %s", error
        )
        return False
    return True


def _borrowed_sockets() -> Iterator[socket.socket]:
    """The packet sockets of the switch's process, each for as long as it is looked at. Raises OSError,
    ValueError."""
    pid = int(_PID_FILE.read_text())
    process = os.pidfd_open(pid)
    try:
        for descriptor in _packet_sockets(pid):
            borrowed = _libc.syscall(_SYS_PIDFD_GETFD, process, descriptor, 0)
            if borrowed < 0:
                code = ctypes.get_errno()
                raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")
            with socket.socket(fileno=borrowed) as packet:
                yield packet
    finally:
        os.close(process)


def _packet_sockets(pid: int) -> Sequence[int]:
    """Descriptors of the process that are packet sockets, told by their inodes."""
    inodes = {
        line.split()[-1]
        for line in Path("/proc/net/packet").read_text().splitlines()[1:]
    }
    descriptors = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            descriptors.append(int(entry.name))
    return descriptors


def _widen(packet: socket.socket, prefix: str) -> bool:
    name, protocol = packet.getsockname()[:2]
    if protocol == 0 and not name:
        option, read, size = _SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER_BYTES
    elif name.startswith(prefix):
        option, read, size = _SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES
    else:
        return False
    # The kernel doubles what is asked for.
    if packet.getsockopt(socket.SOL_SOCKET, read) < size:
        packet.setsockopt(socket.SOL_SOCKET, option, size // 2)
    return True

"""The kernel's networking without processes: veth pairs, addresses, shaping, namespaces.

Nearly everything goes through netlink sockets (pyroute2) and a few system calls, because a process per
setting is what makes a bring-up slow. Work inside another network namespace is done in a short-lived thread
that enters it: the namespace of the calling thread is never changed.

Shaping
-------
A fibre's egress has a token bucket (TBF) of the link's rate. Its bucket must hold one frame, or the frame
would never pass, and what goes out during the kernel's timer lateness, or tokens are lost and the rate with
them; every byte more lets a burst through faster than the link. So: one frame + 200 µs at the rate.
What leaves a packet switch or a GPU's NIC is shared by flows that do not hold each other back. See
:func:`shape_shared` for what takes turns where.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import math
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pyroute2.iproute import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import ifinfbase
from pyroute2.netlink.rtnl.tcmsg import plugins as _queueing_disciplines

from ringlight.testbed.emulation.kernel.netns import set_ipv6_off

# pyroute2 knows pfifo but not bfifo, whose option is the same number, counted in bytes instead of packets.
_queueing_disciplines.setdefault("bfifo", _queueing_disciplines["pfifo"])
# It does not know the two attributes of linux/if_link.h either that come after those it knows.
if ifinfbase.nla_map[-1][0] == "IFLA_ALLMULTI":
    ifinfbase.nla_map += (("IFLA_DEVLINK_PORT", "hex"), ("IFLA_GSO_IPV4_MAX_SIZE", "uint32"))

T = TypeVar("T")

MTU_BYTES = 9000
FRAME_BYTES = MTU_BYTES + 14
#: How late the kernel may look at a token bucket without losing rate, seconds.
TIMER_SLACK_S = 200e-6
#: What a sender may hand over in one piece, seconds of its link: shorter than the timers that matter, and
#: than any queue.
BURST_S = 500e-6
#: Most that the kernel can let TCP hand over in one piece, bytes, and what it lets it by default.
LARGEST_BURST_BYTES, USUAL_BURST_BYTES = 8 * 0xFFFF, 1 << 16
#: Deadline of one process of tc, and what each request adds to it, seconds.
TC_S, REQUEST_S = 30.0, 1e-3
#: Longest wait for what is done in a thread, seconds: longer than for a process of tc in it. With 256 workers
#: starting beside other work, one waited for more than 10 s.
THREAD_S = 2 * TC_S
#: Hosts up to which each has a turn of its own on a link; of more than these, turns in all.
MOST_TURNS, TURNS = 64, 32
#: Most turns of pairs of hosts; a prime, so that pairs that share one are not of one sender or one receiver.
PAIRS = 257
#: Where packets' network header begins, for classic BPF (SKF_NET_OFF of linux/filter.h, of 32 bits).
_SKF_NET_OFF = 0xFFF00000
#: Longest wait for the number of a fibre whose last end is just being removed, seconds.
LEAVING_S = 3.0
NETNS_DIR, _SYSCTLS = Path("/run/netns"), Path("/proc/sys/net")
#: Least, first and greatest buffer of a TCP connection, bytes; of every namespace of a lab. What a receiver
#: has first is the first window that it tells: from 87,380 bytes, the kernel's own, it told two to four
#: frames of 9,000 bytes, and the next ones of a new connection waited behind what went the other way. The
#: first all-reduce of a ring in both directions took 372 ms so, 359 ms with this; 325 ms are simulated.
_TCP_BUFFERS = {"ipv4/tcp_rmem": "10240 786432 16777216", "ipv4/tcp_wmem": "10240 87380 16777216"}

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 0x100000
_MNT_DETACH = 2
_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM, _ETHTOOL_SGRO = 0x17, 0x2C
_IFA_F_NOPREFIXROUTE = 0x200
_RTAX_RTO_MIN = 13
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000
_NUD_PERMANENT = 0x80
#: nlmsghdr, what follows it in an acknowledgement, and ndmsg with its two attributes.
_HEADER, _ERROR, _NEIGHBOUR = struct.Struct("=IHHII"), struct.Struct("=i"), struct.Struct("=BxxxiHBB")
_DESTINATION, _LINK_ADDRESS = struct.Struct("=HH4s"), struct.Struct("=HH6sxx")
_RTM_NEWNEIGH, _NDA_DST, _NDA_LLADDR = 28, 1, 2
#: NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_CREATE.
_REPLACE = 0x1 | 0x4 | 0x100 | 0x400
#: So many acknowledgements fit into a socket's buffer. How long the kernel may take, seconds.
_NEIGHBOURS_AT_ONCE, _ANSWER_S = 64, 10.0
_ARP_REQUEST, _ARP_REPLY, _EVERYBODY = 1, 2, "ff:ff:ff:ff:ff:ff"
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(RuntimeError):
    """The kernel refused; one line naming the interface or namespace and the reason."""


def _check(result: int, what: str) -> None:
    if result:
        raise NetworkError(f"{what}: {os.strerror(ctypes.get_errno())}")


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Return a context that turns errors of the kernel into NetworkError, with ``what`` before the
    message."""
    try:
        yield
    except NetlinkError as error:
        raise NetworkError(f"{what}: {os.strerror(error.code)}") from None
    except OSError as error:
        raise NetworkError(f"{what}: {error.strerror or error}") from None


def in_thread(function: Callable[[], T], timeout_s: float = THREAD_S) -> T:
    """Run ``function`` in a thread of its own and hand back what it returns or raises.

    The thread may change namespaces without harm to others. Raises TimeoutError after ``timeout_s``.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"the kernel did not answer within {timeout_s:g} s")
    return outcome[0]


def in_namespace(descriptor: int, function: Callable[[], T], timeout_s: float = THREAD_S) -> T:
    """Run ``function`` in a thread inside the network namespace behind an open file descriptor. Return its
    result.

    Raises TimeoutError after ``timeout_s`` seconds.
    """

    def run() -> T:
        _check(_libc.setns(descriptor, _CLONE_NEWNET), "entering a network namespace")
        return function()

    return in_thread(run, timeout_s)


def open_namespace(pid: int) -> int:
    """Return a descriptor of a process's network namespace. Raises NetworkError if the process has ended."""
    with failing(f"network namespace of process {pid}"):
        return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def is_own_namespace(descriptor: int | None) -> bool:
    """Return whether the descriptor is of this process's own network namespace, or None."""
    return descriptor is None or os.path.samestat(os.fstat(descriptor), os.stat("/proc/self/ns/net"))


def _provide_directory() -> None:
    """Make the directory of named namespaces a shared mount, under the lock that ``ip netns add`` takes.

    Else the machine's first ``ip netns add`` would mount it over itself: nobody could remove what was there.
    """
    NETNS_DIR.mkdir(parents=True, exist_ok=True)
    directory, path = os.open(NETNS_DIR, os.O_RDONLY | os.O_CLOEXEC), bytes(NETNS_DIR)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        # It is not to be shared where it is no mount.
        if _libc.mount(b"", path, b"none", _MS_SHARED | _MS_REC, None) < 0:
            _check(_libc.mount(path, path, b"none", _MS_BIND | _MS_REC, None), f"mounting {NETNS_DIR}")
            _check(_libc.mount(b"", path, b"none", _MS_SHARED | _MS_REC, None), f"sharing {NETNS_DIR}")
    finally:
        os.close(directory)


def create_namespace(name: str) -> int:
    """Create a named network namespace like ``ip netns add``. Return a descriptor of it. Raises
    NetworkError."""
    path = NETNS_DIR / name
    with failing(f"network namespace {name}"):
        _provide_directory()
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))

    def unshare_and_bind() -> int:
        _check(_libc.unshare(_CLONE_NEWNET), f"network namespace {name}")
        here = b"/proc/thread-self/ns/net"
        _check(_libc.mount(here, str(path).encode(), b"none", _MS_BIND, None), f"network namespace {name}")
        _set_here(_TCP_BUFFERS)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    try:
        return in_thread(unshare_and_bind)
    except NetworkError:
        path.unlink(missing_ok=True)
        raise


def delete_namespace(name: str) -> None:
    """Forget a named namespace. It ends with the last process and descriptor in it."""
    path = NETNS_DIR / name
    _libc.umount2(str(path).encode(), _MNT_DETACH)
    with failing(f"network namespace {name}"):
        path.unlink(missing_ok=True)


def configure_namespace(congestion_control: str = "reno", reordering: int | None = None) -> None:
    """Settings of the namespace that the calling thread is in.

    ``reordering``: segments by which one may come late before TCP calls it lost; None for the kernel's own.
    A chosen TCP congestion control (the machine's default may be one that shares a link unevenly), no
    restart from slow start after an idle phase (every compute phase is one), no memory of past
    connections, buffers of a stated size, no IPv6. A worker may take back what it let a peer have under way
    (Linux 6.5 and later; without, a connection's first flight is as long as buffers let it be). Raises
    NetworkError naming the setting.
    """
    settings = {
        "ipv4/tcp_congestion_control": congestion_control,
        "ipv4/tcp_slow_start_after_idle": "0",
        "ipv4/tcp_no_metrics_save": "1",
        **_TCP_BUFFERS,
    }
    if reordering is not None:
        settings["ipv4/tcp_reordering"] = str(reordering)
    for key in ("ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6", "ipv4/tcp_shrink_window"):
        if (_SYSCTLS / key).exists():
            settings[key] = "1"
    _set_here(settings)


def _set_here(settings: Mapping[str, str]) -> None:
    """Below /proc/sys/net, of the namespace that the calling thread is in. Raises NetworkError naming one."""
    for key, value in settings.items():
        with failing(f"net.{key.replace('/', '.')}={value}"):
            (_SYSCTLS / key).write_text(value)


def set_checksum_offload(name: str, enabled: bool) -> None:
    """``ethtool -K NAME tx on|off``: without, frames leave whole and checksummed, and no larger than the MTU.

    A userspace switch reads frames as they are; a partial checksum would be passed on as if it were right.
    """
    _set_feature(name, _ETHTOOL_STXCSUM, enabled, "transmit checksum offload")


def set_merging(name: str, enabled: bool) -> None:
    """``ethtool -K NAME gro on|off``: without, what has come is not merged into bursts."""
    _set_feature(name, _ETHTOOL_SGRO, enabled, "merging of what is received")


def _set_feature(name: str, command: int, enabled: bool, what: str) -> None:
    value = ctypes.create_string_buffer(struct.pack("=II", command, enabled))
    request = struct.pack("16sP", name.encode(), ctypes.addressof(value))
    with failing(f"{name}: {what}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, _SIOCETHTOOL, request)


@cache
def _passes_large_bursts() -> bool:
    """Return whether IPv4 may pass more than `USUAL_BURST_BYTES` in one piece on this machine, as since Linux
    6.3."""
    with IPRoute() as here:
        return here.link("get", index=1)[0].get("gso_ipv4_max_size") is not None


def _burst(size_bytes: int) -> dict[str, int]:
    """Attributes of an interface that takes pieces of up to ``size_bytes``, unless those are usual."""
    if size_bytes <= USUAL_BURST_BYTES or not _passes_large_bursts():
        return {}
    return {"gso_max_size": size_bytes, "gso_ipv4_max_size": size_bytes}


def set_burst(netlink: IPRoute, index: int, frames: int = 1) -> None:
    """Let TCP hand an interface ``frames`` frames at a time, to be cut up later, or one by one."""
    size_bytes = min(frames * FRAME_BYTES, LARGEST_BURST_BYTES)
    with failing(f"interface {index}: {frames} frames at a time"):
        netlink.link("set", index=index, gso_max_segs=frames, **_burst(size_bytes))


def segments_at(rate_bps: float) -> int:
    """Return how many frames TCP may pass in one burst to a link of ``rate_bps`` bit/s: as many as the link
    passes in `BURST_S`."""
    return max(1, int(rate_bps * BURST_S / 8 / FRAME_BYTES))


def index_of(name: str) -> int:
    """Return the index of an interface in this namespace. Raises NetworkError if there is none of that
    name."""
    index = _found(name)
    if index is None:
        raise NetworkError(f"there is no interface {name}")
    return index


def _found(name: str) -> int | None:
    """Index of an interface of the calling thread's namespace; None when there is none of that name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return None


def create_veth(
    netlink: IPRoute,
    name: str,
    peer: str,
    *,
    group: int = 0,
    namespace: int | None = None,
    peer_namespace: int | None = None,
    peer_mac: str | None = None,
) -> None:
    """A veth pair, both ends with the lab's MTU; each end is born in its namespace (a descriptor).

    An end without a namespace is a switch's port: it passes what a host hands over in one piece, however
    large, where the kernel would cut up what is larger than `USUAL_BURST_BYTES`.
    """
    far: dict[str, Any] = {"ifname": peer, "mtu": MTU_BYTES}
    near: dict[str, Any] = {"ifname": name, "mtu": MTU_BYTES, "kind": "veth", "peer": far}
    if group:
        near["group"] = group
    for end, where in ((near, namespace), (far, peer_namespace)):
        if where is not None:
            end["net_ns_fd"] = where
        else:
            end |= _burst(LARGEST_BURST_BYTES)
    if group and peer_namespace is None:
        far["group"] = group
    if peer_mac is not None:
        far["address"] = peer_mac
    with failing(f"veth pair {name} - {peer}"):
        netlink.link("add", **near)


def set_up(netlink: IPRoute, name: str) -> int:
    """Bring an interface up without IPv6. Return its index. Raises NetworkError."""
    index = index_of(name)
    set_ipv6_off(name)
    with failing(f"{name}: up"):
        netlink.link("set", index=index, state="up")
    return index


@dataclass(frozen=True)
class LinkState:
    """An interface as the kernel has it. ``carrier``: it is up and its far end is too."""

    up: bool
    carrier: bool


def link_state(netlink: IPRoute, name: str) -> LinkState | None:
    """Return the state of an interface, None if there is none of that name. Raises NetworkError."""
    with failing(name):
        index = _found(name)
        try:
            flags = None if index is None else int(netlink.link("get", index=index)[0]["flags"])
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise
            return None
    return None if flags is None else state_of(flags)


def state_of(flags: int) -> LinkState:
    """Return the state that an interface's flags describe."""
    return LinkState(bool(flags & _IFF_UP), bool(flags & _IFF_LOWER_UP))


def set_state(netlink: IPRoute, name: str, *, up: bool, group: int | None = None) -> bool:
    """Bring an interface up or down, and into a group. Return whether the interface exists. Raises
    NetworkError."""
    index = _found(name)
    if index is None:
        return False
    if up:
        set_ipv6_off(name)
    attributes: dict[str, Any] = {"state": "up" if up else "down"}
    if group is not None:
        attributes["group"] = group
    with failing(f"{name}: {attributes['state']}"):
        try:
            netlink.link("set", index=index, **attributes)
        except NetlinkError as error:
            # Its worker has just ended.
            if error.code != errno.ENODEV:
                raise
            return False
    return True


def delete_link(netlink: IPRoute, name: str) -> bool:
    """Delete an interface. Return whether there was such an interface. Raises NetworkError."""
    index = _found(name)
    if index is None:
        return False
    try:
        netlink.link("del", index=index)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise NetworkError(f"{name}: delete: {os.strerror(error.code)}") from None
    return True


def delete_group(netlink: IPRoute, group: int) -> None:
    """Delete every interface of a group in one go: the kernel waits once, not once for each."""
    try:
        netlink.link("del", group=group)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise NetworkError(f"interface group {group}: {os.strerror(error.code)}") from None


def interfaces_called(prefix: str) -> list[str]:
    """Return the interfaces of the calling thread's namespace whose names begin with ``prefix``, sorted."""
    with IPRoute() as here:
        names = [link.get("ifname") for link in here.get_links()]
    return sorted(name for name in names if isinstance(name, str) and name.startswith(prefix))


def remove_interfaces(prefix: str, group: int, timeout_s: float = 5.0) -> list[str]:
    """Remove a group and the interfaces called ``prefix…``, and wait until they are gone. Return the names
    found before. Raises NetworkError."""
    names = interfaces_called(prefix)
    deadline = time.monotonic() + timeout_s
    with IPRoute() as here:
        delete_group(here, group)
        while left := interfaces_called(prefix):
            if time.monotonic() > deadline:
                raise NetworkError(f"interface {left[0]} could not be removed")
            for name in left:
                delete_link(here, name)
    return names


def address(
    netlink: IPRoute,
    index: int,
    ip: str,
    prefix: int,
    *,
    rto_min_s: float | None,
    mtu_bytes: int | None = None,
    window_bytes: int | None = None,
    first_segments: int | None = None,
    neighbours: Sequence[tuple[str, str]] = (),
) -> None:
    """An IPv4 address with a route to its network, and permanent neighbours as ``(ip, mac)``.

    ``rto_min_s``: least TCP retransmission time-out on that route, seconds (whole milliseconds).
    ``mtu_bytes``: of packets on that route, None for the interface's. ``window_bytes``: most that a sender on
    it may have under way to here, None for as much as buffers hold. ``first_segments``: how many a new
    connection may have under way before any is acknowledged, None for the kernel's own.
    """
    network = ipaddress.ip_interface(f"{ip}/{prefix}").network
    with failing(f"address {ip}/{prefix}"):
        netlink.addr("add", index=index, address=ip, prefixlen=prefix, IFA_FLAGS=_IFA_F_NOPREFIXROUTE)
        route: dict[str, Any] = {"dst": str(network), "oif": index, "scope": 253, "prefsrc": ip}
        # Every segment is acknowledged at once: a delayed acknowledgement (40 ms) would look like wire time
        # to a sender that waits for delivery.
        route["metrics"] = {"quickack": 1}
        if mtu_bytes is not None:
            route["metrics"]["mtu"] = mtu_bytes
        if window_bytes is not None:
            route["metrics"]["window"] = window_bytes
        if first_segments is not None:
            route["metrics"]["initcwnd"] = first_segments
        if rto_min_s is not None:
            # The kernel heeds this one only where it is locked.
            route["metrics"] |= {"lock": 1 << _RTAX_RTO_MIN, "rto_min": max(1, round(rto_min_s * 1000))}
        netlink.route("replace", **route)
    know(index, neighbours)


def know(index: int, neighbours: Sequence[tuple[str, str]]) -> None:
    """Permanent neighbours as ``(ip, mac)``, so that no ARP is needed. Raises NetworkError.

    In the calling thread's namespace, and many at once: each worker has one for each other GPU, and asked
    for one by one they were most of its start.
    """
    messages = [_neighbour(index, ip, mac) for ip, mac in neighbours]
    with (
        failing(f"interface {index}: neighbours"),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel,
    ):
        kernel.settimeout(_ANSWER_S)
        for start in range(0, len(messages), _NEIGHBOURS_AT_ONCE):
            some = messages[start : start + _NEIGHBOURS_AT_ONCE]
            kernel.send(b"".join(some))
            for _ in some:
                (error,) = _ERROR.unpack_from(kernel.recv(1 << 12), _HEADER.size)
                if error:
                    raise OSError(-error, os.strerror(-error))


def _neighbour(index: int, ip: str, mac: str) -> bytes:
    """RTM_NEWNEIGH of rtnetlink(7), to be acknowledged."""
    message = _NEIGHBOUR.pack(socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    message += _DESTINATION.pack(_DESTINATION.size, _NDA_DST, socket.inet_aton(ip))
    message += _LINK_ADDRESS.pack(10, _NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
    return _HEADER.pack(_HEADER.size + len(message), _RTM_NEWNEIGH, _REPLACE, 0, 0) + message


def announce(name: str, ip: str, mac: str, neighbours: Sequence[tuple[str, str]] = ()) -> None:
    """Say on an interface of the calling thread's namespace who is there. Raises NetworkError.

    An ARP announcement to all (RFC 5227), and an unsolicited ARP answer to each of ``neighbours``,
    ``(ip, mac)``.
    """
    with failing(f"{name}: ARP announcement"), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((name, 0))
        out.send(arp_frame(_ARP_REQUEST, mac, ip, _EVERYBODY, ip))
        for other, its_mac in neighbours:
            out.send(arp_frame(_ARP_REPLY, mac, ip, its_mac, other))


def arp_frame(operation: int, mac: str, ip: str, to_mac: str, to_ip: str) -> bytes:
    """Return an Ethernet frame with an ARP packet in the format of RFC 826."""
    own, other = (bytes.fromhex(text.replace(":", "")) for text in (mac, to_mac))
    target_mac = bytes(6) if operation == _ARP_REQUEST else other
    addresses = own + socket.inet_aton(ip) + target_mac + socket.inet_aton(to_ip)
    return other + own + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, operation) + addresses


def bucket_bytes(rate_bps: float) -> int:
    """Return the depth of a token bucket in bytes for a rate in bits per second; see the module's text."""
    return math.ceil(FRAME_BYTES + rate_bps / 8 * TIMER_SLACK_S)


def htb_bucket_bytes(rate_bps: float) -> int:
    """Return the depth of an HTB class's bucket in bytes for a rate in bits per second: what passes while a
    timer is late.

    The bucket need not hold a frame, which HTB sends on credit. The least that tc would set is 1,600 bytes.
    """
    return max(1600, math.ceil(rate_bps / 8 * TIMER_SLACK_S))


def queue_bytes(rate_bps: float, queue_s: float) -> int:
    """Return the bytes that may wait at ``rate_bps`` bits per second for ``queue_s`` seconds, at least two
    frames."""
    return max(2 * FRAME_BYTES, math.ceil(rate_bps / 8 * queue_s))


def shape(
    netlink: IPRoute, index: int, rate_bps: float, queue_s: float, *, least_queue_bytes: int = 0
) -> None:
    """Shape an interface's egress to ``rate_bps`` bits per second with one queue of ``queue_s`` seconds."""
    burst = bucket_bytes(rate_bps)
    with failing(f"interface {index}: rate {rate_bps:g} bit/s"):
        netlink.tc(
            "replace",
            "tbf",
            index,
            0x10000,
            rate=f"{round(rate_bps)}bit",
            burst=burst,
            limit=burst + max(queue_bytes(rate_bps, queue_s), least_queue_bytes),
        )


def shape_wavelengths(
    netlink: IPRoute, index: int, rate_bps: float, queue_s: float, count: int, *, least_queue_bytes: int = 0
) -> None:
    """An interface as a fibre: ``count`` wavelengths of ``rate_bps`` bit/s, each with its own queue.

    HTB with one class for each, which may not borrow; a packet's priority names its class (1:1, 1:2, …), and
    one without is not held back. HTB lets a packet go as soon as the one before it is paid for: what is sent
    here should be single frames (:func:`set_burst`), or a burst of 64 KiB comes too early by its own
    length (measured: 0.5 s of a transfer at 25 Mbit/s took 0.97 of its time).
    """
    rate = f"{round(rate_bps)}bit"
    slack = htb_bucket_bytes(rate_bps)
    limit = max(queue_bytes(rate_bps, queue_s), least_queue_bytes)
    root = 0x10000
    with failing(f"interface {index}: {count} wavelengths of {rate}"):
        netlink.tc("replace", "htb", index, root, default=0)
        for number in range(1, count + 1):
            leaf = root + number
            netlink.tc(
                *("add-class", "htb", index, leaf),
                parent=root,
                rate=rate,
                burst=slack,
                cburst=slack,
                quantum=FRAME_BYTES,
            )
            netlink.tc("add", "bfifo", index, (0x10 + number) << 16, parent=leaf, limit=limit)


#: By what flows take turns: whom a frame is from, whom it goes to, or both.
By = Literal["src", "dst", "pair"]


def shape_shared(ports: Iterable[tuple[str, float, float, By]], hosts: Sequence[str]) -> None:
    """As :func:`shape`, with each link's rate shared evenly among the IPv4 ``hosts`` that waiting frames come
    from or go to, or among the pairs of hosts that they go between.

    ``ports``: interfaces of this namespace with their rates in bits per second, their queues in seconds, and
    by what flows take turns there.

    Userspace Open vSwitch has one first-come queue, in which long TCP flows divide a slow link by chance: HTB
    with a class for each, each with its own queue, borrowing in turns of one frame, gives each flow the same
    (tc has no other fair queue that every kernel brings). Measured with Reno, MTU 9000, 32.26 Mbit/s, a queue
    of 20 ms, 5 s, fastest flow over slowest: two flows 1.00 to 1.16 in one queue and 1.01 so; three flows
    1.34 to 1.37 and 1.007 to 1.010; the sum was the same (32.0 to 32.4 Mbit/s). Where a port leads to several
    GPUs, turns are of pairs: by source, a sender with two connections shared half of a link with a sender
    that had one, and rings in both directions over such links took up to 1.5 times as long as simulated.

    A real NIC takes from its queue pairs in turn, too. With one queue, sixteen GPUs that send to each other
    have flows that are behind at the end, when nobody makes up for them: an all-to-all of 32 MB a pair took
    1.13 of the time that its bytes need, by destination 1.07 (payload scale 25). Its turns are a frame long
    only if TCP hands it single frames (:func:`set_burst`): with bursts of up to 64 KiB, 42 ms at 12.5
    Mbit/s, the small messages of sixteen ranks waited for the large ones, and a training step took 135 s
    instead of 123 s (scenarios/examples/parallel_16.yaml; 119 s simulated).

    Acknowledgements go first, as they take no room. Behind the payload that goes the same way they come late
    for a connection that has little under way: with a queue of four frames on the uplink an iteration took
    19 % longer than simulated, and 2 % so (scenarios/disaggregation.yaml, arm ``contiguous``, job ``blue``).
    Payload that they overtake comes with an acknowledgement that is older by what was received meanwhile.
    Linux drops it (RFC 5961, 5.2) if that is more than the largest window that its sender was ever given, so
    workers give large ones first (containers/worker/windows.py). With small windows from the start 23 of 171
    drawn jobs were 10 to 62 % off, most of them for this, without a drop in any queue.

    On a large fabric some share a turn (:func:`_turns`): else classes grow with the square of the hosts
    (200,000 requests of tc for 256 GPUs, more than 30 s).

    All of it in one process of tc: two requests for each turn of every port are thousands on a fabric of
    sixteen GPUs, and each takes 1.4 ms of Python. Raises NetworkError.
    """
    chosen = list(ports)
    turns = {by: _turns(hosts, by) for _, _, _, by in chosen}
    lines = [
        line
        for name, rate_bps, queue_s, by in chosen
        for line in _shared(name, rate_bps, queue_s, *turns[by], late=by == "dst")
    ]
    _batch(lines, "rate of 1 port" if len(chosen) == 1 else f"rates of {len(chosen)} ports")


def _batch(lines: Iterable[str], what: str) -> None:
    """Run all lines in one process of tc, in the calling thread's namespace. Raises NetworkError."""
    text = "".join(f"{line}\n" for line in lines)
    patience_s = TC_S + REQUEST_S * text.count("\n")
    try:
        with failing("tc"):
            done = subprocess.run(
                ["tc", "-batch", "-"],
                input=text,
                capture_output=True,
                text=True,
                timeout=patience_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise NetworkError(f"tc has not set the {what} in {patience_s:.0f} s") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NetworkError(f"the {what} cannot be set: {reason}")


def shape_peers(name: str, rate_bps: float, peers: int, most: int) -> None:
    """An interface of the thread's namespace with ``most`` queues for each of ``peers``, by HTB.

    Class ``1 + peer * most + k - 1`` passes k times ``rate_bps`` bits per second, which nobody may borrow. A
    packet's priority names its class, as in :func:`shape_wavelengths`, and what is sent here should be single
    frames. So a peer's rate changes without a word to the kernel's scheduler. Raises NetworkError.
    """
    lines = [f"qdisc replace dev {name} root handle 1: htb default 0"]
    for number in range(peers * most):
        rate = round(rate_bps * (number % most + 1))
        slack = htb_bucket_bytes(rate)
        lines.append(
            f"class add dev {name} parent 1: classid 1:{1 + number:x} "
            f"htb rate {rate}bit burst {slack} cburst {slack} quantum {FRAME_BYTES}"
        )
    _batch(lines, f"queues of {peers} peers at {name}")


#: Classic BPF that sends TCP segments without payload to class 1:2, which goes first: code, jumps, number. It
#: takes an IP header without options for granted. SYN, FIN and RST stay behind the payload before them.
_ACKNOWLEDGEMENTS = (
    f"48 0 0 {_SKF_NET_OFF + 9}",  # the protocol
    "21 0 10 6",
    f"48 0 0 {_SKF_NET_OFF + 33}",  # flags
    "69 8 0 7",
    f"40 0 0 {_SKF_NET_OFF + 2}",  # length of the packet, less IP's header
    "20 0 0 20",
    "7 0 0 0",
    f"48 0 0 {_SKF_NET_OFF + 32}",  # length of TCP's header
    "84 0 0 240",
    "116 0 0 2",
    "29 0 1 0",
    f"6 0 0 {0x10002}",
)


def _turns(hosts: Sequence[str], by: By) -> tuple[int, str]:
    """Return the number of turns, and the classic BPF by which ``tc`` finds the turn of a packet, from class
    1:3 on.

    The addresses are numbered from the lowest. A packet without a turn of its own shares those of others.
    """
    least, most = (extreme(int(ipaddress.IPv4Address(host)) for host in hosts) for extreme in (min, max))
    count = most - least + 1
    if by == "pair":
        turns = count**2 if count**2 < PAIRS else PAIRS
    else:
        turns = count if count <= MOST_TURNS else TURNS

    def number(offset: int) -> list[tuple[int, int]]:
        # BPF_LD | BPF_W | BPF_ABS from the network header on, BPF_ALU | BPF_SUB.
        return [(0x20, _SKF_NET_OFF + offset), (0x14, least)]

    program = number(12) if by == "src" else number(16)
    if by == "pair":
        # Times ``count``, kept in the index register, plus the other number.
        program = [*number(12), (0x24, count), (0x07, 0), *number(16), (0x0C, 0)]
    # BPF_ALU | BPF_MOD, BPF_ALU | BPF_ADD, BPF_RET | BPF_A.
    program += [(0x94, turns), (0x04, 0x10003), (0x16, 0)]
    lines = [*_ACKNOWLEDGEMENTS, *(f"{code} 0 0 {k}" for code, k in program)]
    return turns, ",".join([str(len(lines)), *lines])


def _shared(
    name: str, rate_bps: float, queue_s: float, turns: int, classifier: str, *, late: bool
) -> Iterator[str]:
    """Commands of tc for one interface. ``late``: its timers run beside a worker."""
    share_bps = max(8000, round(rate_bps / (turns + 1)))
    # A NIC's timers run beside its worker, on processors that all workers share: with a frame more it keeps
    # its rate there (two busy processors: 98.4 instead of 97.7 %). To tc a bare number is bytes.
    slack = bucket_bytes(rate_bps) if late else htb_bucket_bytes(rate_bps)
    ceiling = f"{round(rate_bps)}bit burst {slack} cburst {slack}"
    # Counted in bytes: half of a host's packets are acknowledgements, which take no room.
    limit = queue_bytes(rate_bps, queue_s)
    yield f"qdisc replace dev {name} root handle 1: htb default 2"
    yield f"class add dev {name} parent 1: classid 1:1 htb rate {ceiling}"
    for number in range(turns + 1):
        leaf, queue = f"1:{2 + number:x}", f"{0x10 + number:x}:"
        rate = f"rate {share_bps}bit ceil {ceiling} quantum {FRAME_BYTES} prio {min(number, 1)}"
        yield f"class add dev {name} parent 1:1 classid {leaf} htb {rate}"
        yield f"qdisc add dev {name} parent {leaf} handle {queue} bfifo limit {limit}"
    yield f"filter add dev {name} parent 1: protocol ip prio 1 bpf bytecode '{classifier}' flowid 1:2"

"""Addresses of interfaces, their routes, and the neighbours that they know or announce themselves to."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from pyroute2.iproute import IPRoute

from ringlight.testbed.emulation.kernel.network_errors import failing

_IFA_F_NOPREFIXROUTE = 0x200
_RTAX_RTO_MIN = 13
_NUD_PERMANENT = 0x80
#: nlmsghdr, what follows it in an acknowledgement, and ndmsg with its two attributes.
_HEADER, _ERROR, _NEIGHBOUR = (
    struct.Struct("=IHHII"),
    struct.Struct("=i"),
    struct.Struct("=BxxxiHBB"),
)
_DESTINATION, _LINK_ADDRESS = struct.Struct("=HH4s"), struct.Struct("=HH6sxx")
_RTM_NEWNEIGH, _NDA_DST, _NDA_LLADDR = 28, 1, 2
#: NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_CREATE.
_REPLACE = 0x1 | 0x4 | 0x100 | 0x400
#: So many acknowledgements fit into a socket's buffer. How long the kernel may take, seconds.
_NEIGHBOURS_AT_ONCE, _ANSWER_S = 64, 10.0
_ARP_REQUEST, _ARP_REPLY, _EVERYBODY = 1, 2, "ff:ff:ff:ff:ff:ff"


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
        netlink.addr(
            "add",
            index=index,
            address=ip,
            prefixlen=prefix,
            IFA_FLAGS=_IFA_F_NOPREFIXROUTE,
        )
        route: dict[str, Any] = {
            "dst": str(network),
            "oif": index,
            "scope": 253,
            "prefsrc": ip,
        }
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
            route["metrics"] |= {
                "lock": 1 << _RTAX_RTO_MIN,
                "rto_min": max(1, round(rto_min_s * 1000)),
            }
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
        socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE
        ) as kernel,
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
    return (
        _HEADER.pack(_HEADER.size + len(message), _RTM_NEWNEIGH, _REPLACE, 0, 0)
        + message
    )


def announce(
    name: str, ip: str, mac: str, neighbours: Sequence[tuple[str, str]] = ()
) -> None:
    """Say on an interface of the calling thread's namespace who is there. Raises NetworkError.

    An ARP announcement to all (RFC 5227), and an unsolicited ARP answer to each of ``neighbours``,
    ``(ip, mac)``.
    """
    with (
        failing(f"{name}: ARP announcement"),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out,
    ):
        out.bind((name, 0))
        out.send(arp_frame(_ARP_REQUEST, mac, ip, _EVERYBODY, ip))
        for other, its_mac in neighbours:
            out.send(arp_frame(_ARP_REPLY, mac, ip, its_mac, other))


def arp_frame(operation: int, mac: str, ip: str, to_mac: str, to_ip: str) -> bytes:
    """Return an Ethernet frame with an ARP packet in the format of RFC 826."""
    own, other = (bytes.fromhex(text.replace(":", "")) for text in (mac, to_mac))
    target_mac = bytes(6) if operation == _ARP_REQUEST else other
    addresses = own + socket.inet_aton(ip) + target_mac + socket.inet_aton(to_ip)
    return (
        other
        + own
        + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, operation)
        + addresses
    )

"""Interfaces of the kernel, without processes: veth pairs, their states and features.

Nearly everything goes through netlink sockets (pyroute2) and a few system calls, because a process per
setting is what makes a bring-up slow.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyroute2.iproute import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import ifinfbase

from ringlight.testbed.emulation.kernel.netns import set_ipv6_off
from ringlight.testbed.emulation.kernel.network_errors import NetworkError, failing

# pyroute2 does not know the two attributes of linux/if_link.h that come after those it knows.
if ifinfbase.nla_map[-1][0] == "IFLA_ALLMULTI":
    ifinfbase.nla_map += (
        ("IFLA_DEVLINK_PORT", "hex"),
        ("IFLA_GSO_IPV4_MAX_SIZE", "uint32"),
    )

MTU_BYTES = 9000
FRAME_BYTES = MTU_BYTES + 14
#: What a sender may hand over in one piece, seconds of its link: shorter than the timers that matter, and
#: than any queue.
BURST_S = 500e-6
#: Most that the kernel can let TCP hand over in one piece, bytes, and what it lets it by default.
LARGEST_BURST_BYTES, USUAL_BURST_BYTES = 8 * 0xFFFF, 1 << 16
#: Longest wait for the number of a fibre whose last end is just being removed, seconds.
LEAVING_S = 3.0

_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM, _ETHTOOL_SGRO = 0x17, 0x2C
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000


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
    with (
        failing(f"{name}: {what}"),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
    ):
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
    index = _index_of(name)
    if index is None:
        raise NetworkError(f"there is no interface {name}")
    return index


def _index_of(name: str) -> int | None:
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
    near: dict[str, Any] = {
        "ifname": name,
        "mtu": MTU_BYTES,
        "kind": "veth",
        "peer": far,
    }
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
        index = _index_of(name)
        try:
            flags = (
                None
                if index is None
                else int(netlink.link("get", index=index)[0]["flags"])
            )
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise
            return None
    return None if flags is None else state_of(flags)


def state_of(flags: int) -> LinkState:
    """Return the state that an interface's flags describe."""
    return LinkState(bool(flags & _IFF_UP), bool(flags & _IFF_LOWER_UP))


def set_state(
    netlink: IPRoute, name: str, *, up: bool, group: int | None = None
) -> bool:
    """Bring an interface up or down, and into a group. Return whether the interface exists. Raises
    NetworkError."""
    index = _index_of(name)
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
    index = _index_of(name)
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
            raise NetworkError(
                f"interface group {group}: {os.strerror(error.code)}"
            ) from None


def interfaces_called(prefix: str) -> list[str]:
    """Return the interfaces of the calling thread's namespace whose names begin with ``prefix``, sorted."""
    with IPRoute() as here:
        names = [link.get("ifname") for link in here.get_links()]
    return sorted(
        name for name in names if isinstance(name, str) and name.startswith(prefix)
    )


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

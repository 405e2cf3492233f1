"""Network namespaces: entering one for a moment, and hearing of the interfaces in it."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def namespace_path(netns: str) -> Path:
    """Return the file of a namespace that is given by name (as ``ip netns`` keeps names) or by path."""
    return Path(netns) if "/" in netns else Path("/run/netns") / netns


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


@contextmanager
def entered(netns: str | None) -> Iterator[None]:
    """Return a context in which the calling thread works in ``netns``. None means the thread's present
    namespace.

    Sockets opened inside stay in the namespace. Raises OSError if the namespace does not exist or may not be
    entered.
    """
    if netns is None:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(namespace_path(netns), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _set_namespace(home)
    finally:
        os.close(home)


_RTMGRP_LINK = 1
_NLMSG_ERROR = 2
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_IFLA_IFNAME = 3
_IFLA_GROUP = 27
#: An interface of this group is held down from outside: its fibre is cut.
HELD_GROUP = 0x63757400
IFF_UP = 0x1
IFF_LOWER_UP = 0x10000
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True)
class Link:
    """An interface as the kernel last told. ``carrier``: it is up and its far end is too.

    ``held``: it is to stay down.
    """

    name: str
    ifindex: int
    carrier: bool
    up: bool
    held: bool = False


def parse_links(data: bytes) -> Iterator[tuple[bool, Link]]:
    """Yield ``(present, link)`` for each link message of one netlink datagram. Other messages are skipped."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        if kind in (_RTM_NEWLINK, _RTM_DELLINK):
            body = offset + _HEADER.size
            family, _, index, flags, _ = _IFINFO.unpack_from(data, body)
            attribute_offset, name, group = body + _IFINFO.size, None, 0
            while attribute_offset + _ATTRIBUTE.size <= offset + length:
                size, attribute = _ATTRIBUTE.unpack_from(data, attribute_offset)
                if size < _ATTRIBUTE.size:
                    break
                if attribute == _IFLA_IFNAME:
                    name = (
                        data[
                            attribute_offset + _ATTRIBUTE.size : attribute_offset + size
                        ]
                        .rstrip(b"\0")
                        .decode()
                    )
                elif attribute == _IFLA_GROUP:
                    (group,) = struct.unpack_from(
                        "=I", data, attribute_offset + _ATTRIBUTE.size
                    )
                attribute_offset += (size + 3) & ~3
            # Other families (bridge) report the same interface a second time.
            if name is not None and family == socket.AF_UNSPEC:
                up, carrier = (
                    bool(flags & IFF_UP),
                    bool(flags & IFF_UP and flags & IFF_LOWER_UP),
                )
                yield (
                    kind == _RTM_NEWLINK,
                    Link(name, index, carrier, up, group == HELD_GROUP),
                )
        offset += (length + 3) & ~3


class LinkWatcher:
    """The interfaces of one namespace, kept up to date from the kernel's link events.

    Call :meth:`changed` when the descriptor is readable. An open watcher keeps its namespace alive.
    """

    def __init__(self, netns: str | None) -> None:
        with entered(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE
            )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind((0, _RTMGRP_LINK))
        self._socket.setblocking(False)
        self.links: dict[int, Link] = {}
        self._dump()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _dump(self) -> None:
        request = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        header = _HEADER.pack(
            _HEADER.size + len(request),
            _RTM_GETLINK,
            _NLM_F_REQUEST | _NLM_F_DUMP,
            1,
            0,
        )
        self._socket.send(header + request)

    def changed(self) -> dict[int, Link]:
        """Read all waiting link events without blocking. Return the interfaces that now exist, by index.
        Raises OSError."""
        while True:
            try:
                data = self._socket.recv(1 << 17)
            except BlockingIOError:
                return self.links
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                # Events were lost: forget what is known and ask for everything again.
                self.links.clear()
                self._dump()
                continue
            for present, link in parse_links(data):
                if present:
                    self.links[link.ifindex] = link
                else:
                    self.links.pop(link.ifindex, None)


def set_ipv6_off(name: str) -> None:
    """No IPv6 on one interface of the calling thread's namespace, where the kernel has IPv6 at all."""
    switch = Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def set_up(link: Link) -> None:
    """Brings an interface of the namespace that the thread is in up, without an IPv6 stack on it.

    An optical port has no stack of its own, and must not send neighbour discovery down the fibre.
    """
    set_ipv6_off(link.name)
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, link.ifindex, IFF_UP, IFF_UP)
    header = _HEADER.pack(
        _HEADER.size + len(body), _RTM_NEWLINK, _NLM_F_REQUEST | _NLM_F_ACK, 1, 0
    )
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE
    ) as netlink:
        netlink.settimeout(5)
        netlink.send(header + body)
        reply = netlink.recv(1 << 16)
    _, kind, _, _, _ = _HEADER.unpack_from(reply)
    code = (
        struct.unpack_from("=i", reply, _HEADER.size)[0] if kind == _NLMSG_ERROR else 0
    )
    if code:
        raise OSError(-code, f"interface {link.name}: {os.strerror(-code)}")

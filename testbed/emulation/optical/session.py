"""Interface between the emulated switch's server and a management protocol.

All protocols of one switch work on the same device, in the server's one thread.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ringlight.fabric.optical_drivers import parts_of_drivers
from ringlight.testbed.emulation.optical.device import OpticalDevice

T = TypeVar("T")

#: A conversation in which this many requests wait wants no more bytes until some are answered.
MAX_BACKLOG = 256
#: The software version that an emulated switch tells.
VERSION = "6.0.0.0"


class Session(Protocol):
    """One client's conversation: no sockets and no clock.

    The server feeds it what the client sends and calls ``advance`` whenever bytes have come, the device has
    done something, a fibre got or lost light, or ``next_ns`` is due. A client that sends nothing for the
    server's idle timeout is cut off by the server.

    It may have two properties more: ``established``, False until its client has logged in, and
    ``keeps_time``, True once the client has chosen itself how long it may be silent.
    """

    @property
    def wants_bytes(self) -> bool:
        """False while so much waits that reading on would only fill memory."""

    @property
    def idle(self) -> bool:
        """Return whether everything fed so far is done and answered."""

    @property
    def over(self) -> bool:
        """Return whether the connection must be closed once all that ``advance`` has returned is sent."""

    @property
    def next_ns(self) -> int | None:
        """Time at which ``advance`` will have more to say without new bytes or a finished command."""

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come; how they are split makes no difference."""

    def advance(self, now_ns: int) -> bytes:
        """Does what can be done now (CLOCK_MONOTONIC nanoseconds) and returns what to send.

        May leave commands with the device, which is then advanced before the next call.
        """


#: What answers one request: it yields the time (nanoseconds) at which it wants to go on, None for once the
#: device has done something, is sent the time, and returns its reply.
Work = Generator[int | None, int, T]


class Conversation(ABC, Generic[T]):
    """The part of a :class:`Session` that protocols share which answer one request at a time, in order.

    ``T`` is a reply. A subclass has ``feed``, which appends the requests that it finds in the bytes to
    ``requests``, and ``advance``, which sends what ``_replies(now_ns)`` yields, such as ``b"".join(…)``. It
    sets ``over`` where the connection is to end, after what was sent. ``_work`` answers a request; a command
    for the device takes its time there::

        ticket = switch.device.submit(now_ns, Rewire(add=((1, 9),)))
        while not ticket.done:
            now_ns = yield None
        return b"OK" if ticket.error is None else b"ERR"

    An exception in it ends the switch.
    """

    def __init__(self) -> None:
        self.requests: deque[Any] = deque()
        self.over = False
        self._running: Work[T] | None = None
        self._begun = False
        self._wake_ns: int | None = None

    @property
    def wants_bytes(self) -> bool:
        return len(self.requests) < MAX_BACKLOG

    @property
    def idle(self) -> bool:
        return self._running is None and not self.requests

    @property
    def next_ns(self) -> int | None:
        return self._wake_ns

    @abstractmethod
    def _work(self, request: Any, now_ns: int) -> Work[T]:
        """Answers a request; see :data:`Work`."""

    def _wake(self, at_ns: int | None) -> None:
        """Have ``advance`` called at that time, if not before."""
        if at_ns is not None:
            self._wake_ns = (
                at_ns if self._wake_ns is None else min(at_ns, self._wake_ns)
            )

    def _replies(self, now_ns: int) -> Iterator[T]:
        """Replies to the requests, as far as they can be answered now."""
        while not self.over:
            if self._running is None:
                if not self.requests:
                    return
                self._running, self._begun = (
                    self._work(self.requests.popleft(), now_ns),
                    False,
                )
            try:
                due_ns = (
                    self._running.send(now_ns) if self._begun else next(self._running)
                )
            except StopIteration as end:
                self._running = None
                yield end.value
            else:
                self._begun = True
                self._wake(due_ns)
                return


@dataclass(frozen=True)
class Switch:
    """The switch as its sessions see it.

    ``device``: its ports and light, to ask (``device.size``) and to give commands (``device.submit``).
    ``users``: passwords by user, for protocols with a login.
    """

    name: str
    device: OpticalDevice
    users: Mapping[str, str] = field(default_factory=dict)
    _shared: dict[type, Any] = field(default_factory=dict, repr=False)

    def shared(self, kind: type[T], *given: object) -> T:
        """Return the object of this class that all sessions of the switch share, whatever protocol they use.
        The first call makes it from the arguments ``given``."""
        if kind not in self._shared:
            self._shared[kind] = kind(*given)
        instance: T = self._shared[kind]
        return instance

    def admits(self, user: str, password: str) -> bool:
        """Return whether this is a user's password. A switch without users admits any name and password."""
        known = self.users.get(user)
        right = (
            hmac.compare_digest(password.encode(), (known or "").encode())
            and known is not None
        )
        return right or not self.users

    @property
    def model(self) -> str:
        """Return the name of its model, by kind, size and profile."""
        size = self.device.size
        kind = "WSS" if self.device.wavelengths else "EMU"
        return f"N-{kind}-{size}x{size}-{self.device.profile.name.upper()}"


@dataclass(frozen=True)
class ManagementProtocol:
    """A management protocol that the emulated switch serves.

    ``session`` begins the conversation of one client. ``port``: where a switch that runs alone serves it on
    loopback unless another port is said: the product's, or one that anybody may use. ``example``: a command
    line that talks to it, with ``{address}`` (``{host}:{port}``), ``{user}``, ``{password}`` and ``{option}``
    (``-u USER`` and a blank, or nothing) in it. ``recall`` takes up what the switch's device remembers of the
    protocol (``notes``), where it has something to.
    """

    session: Callable[[Switch], Session]
    port: int
    example: str
    recall: Callable[[Switch], object] | None = None


def protocol_named(name: str) -> ManagementProtocol:
    """Return the protocol of that name, the core's or an extension's. Raises ValueError."""
    known = parts_of_drivers("emulated_by")
    if name not in known:
        raise ValueError(
            f"{name!r} is not a management protocol of the emulated switch; there are {', '.join(known)}"
        )
    protocol: ManagementProtocol = known[name]()
    return protocol


def recall(name: str, switch: Switch) -> None:
    """Have the protocol of that name take up what the switch's device remembers of it. Raises ValueError."""
    take_up = protocol_named(name).recall
    if take_up is None:
        return
    try:
        take_up(switch)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what it remembers of {name} is spoilt: {error}") from None

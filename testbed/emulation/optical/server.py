"""The process around the device: sockets, link events, signals and the kernel's maps, in one thread.

The listeners open last: a client that connects finds the device ready. Nothing here ever takes the maps or
filters away, so ending the process in any way leaves the light as it is, and a new process finds it so.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import re
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ringlight.controller.web.listening import listen
from ringlight.fabric.optical_profiles import Profile
from ringlight.testbed.emulation.kernel.netns import Link, LinkWatcher, entered, set_up
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Dark,
    Effect,
    Gate,
    Light,
    Recovery,
    SetLabel,
    SetRecovery,
    Stored,
)
from ringlight.testbed.emulation.optical.datapath import Datapath, Selective, remove_pins
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.far_light import FarLight, LightPlan
from ringlight.testbed.emulation.optical.faulty_session import FaultySession
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.optical.recovery import ModelledPaths, booted
from ringlight.testbed.emulation.optical.rest_thread import RestThread
from ringlight.testbed.emulation.optical.session import ManagementProtocol, Switch, protocol_named, recall
from ringlight.testbed.emulation.optical.switch_faults import Faults, FaultSpec, Kind

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

MAX_CLIENTS = 64
#: Silence after which a client is dropped, seconds, unless another is set; and of one that was never answered
#: or has not logged in.
IDLE_TIMEOUT_S = 300.0
HALF_OPEN_S = 60.0
#: A client that was answered gives way to a newcomer after so much silence, seconds.
YIELD_S = 10.0
#: A client that does not read its replies is dropped when this much waits for it.
MAX_UNREAD_BYTES = 1 << 22
#: A client that says no more gets replies for so long yet, seconds, and the dark time of a new cross-connect:
#: it may have gone, which cannot be told from here.
ENDED_S = 10.0
#: Longest that nothing is looked at, seconds.
LONGEST_S = 3600.0
#: Longest that another thread waits for the switch to come to it, seconds.
ASK_S = 5.0
Answer = TypeVar("Answer")
#: Light paths, and what a device remembers of them over a restart.
LightPaths = Datapath | ModelledPaths
_FACEPLATE = re.compile(r"p([1-9]\d{0,4})")


@dataclass(frozen=True)
class Settings:
    """``listen``: host and port of the SCPI server, None for none; ``netns``: namespace of the faceplate
    interfaces; ``pins``: directory in bpffs of the switch alone, None for one that moves no packets: light
    comes in at all of its ports, and it remembers in ``folder`` what it was told.

    ``serve``: other management protocols, each with its host and port; ``users``: passwords by user, for
    those with a login. ``rest``: host and port of the switch's own REST (:mod:`.rest`), ``rest_tokens``: the
    name of each token that it takes, None where none is needed. ``recovery``: what a start does to light
    that stood, None for what it was last told.

    Of a WSS: ``wavelengths``, where the ``lasers`` of the lab are pinned, and which is plugged into each
    faceplate port; without ``lasers`` the light itself tells its colour (802.1Q tag channel + 1). ``light``:
    of the lab around it; without it every fibre brings full light and every receiver gets enough.
    """

    name: str
    size: int
    profile: Profile
    listen: tuple[str, int] | None = None
    netns: str | None = None
    pins: Path | None = None
    seed: int = 0
    failed_ports: tuple[int, ...] = ()
    idle_timeout_s: float = IDLE_TIMEOUT_S
    wavelengths: int = 0
    lasers: Path | None = None
    laser_of_port: Mapping[int, int] = field(default_factory=dict)
    light: LightPlan | None = None
    serve: tuple[tuple[str, tuple[str, int]], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, int] | None = None
    rest_tokens: Mapping[str, str] | None = None
    folder: Path | None = None
    recovery: Recovery | None = None


def apply_effects(datapath: LightPaths, effects: Iterable[Effect], decided_ns: int | None = None) -> int:
    """Make the kernel do what the device decided, at ``decided_ns`` if that is known. Return the delay in
    nanoseconds.

    A process that is held up between decision and effect takes light away late. The light that replaces it is
    then delayed by the same time, because the device decides how long ports are dark, not the machine.
    """
    late_ns = 0
    for effect in effects:
        match effect:
            case Light(ingress, egress, ready_ns, wavelength, loss_db):
                datapath.connect(ingress, egress, ready_ns + late_ns, wavelength, loss_db)
            case Dark(ingress, wavelength):
                datapath.disconnect(ingress, wavelength)
                if decided_ns is not None:
                    late_ns = max(late_ns, time.monotonic_ns() - decided_ns)
            case Gate(port, admin):
                datapath.set_admin(port, admin)
            case SetLabel(port, label):
                datapath.set_label(port, label)
            case SetRecovery(recovery):
                datapath.set_recovery(recovery)
    return late_ns


def _open_datapath(settings: Settings, pins: Path) -> Datapath:
    ports = 2 * settings.size
    if settings.lasers is None:
        tagged = Selective(settings.wavelengths) if settings.wavelengths else None
        return Datapath.open(pins, settings.name, ports, tagged)
    lasers = Lasers.open(settings.lasers)
    try:
        selective = Selective(settings.wavelengths, lasers.descriptor, settings.laser_of_port)
        return Datapath.open(pins, settings.name, ports, selective)
    finally:
        lasers.close()


def _listener(name: str, where: tuple[str, int]) -> socket.socket:
    """Raises OSError that names the protocol and the address."""
    try:
        listener = listen(*where, MAX_CLIENTS)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(error.errno, f"{name} at {where[0]}:{where[1]}: {why}") from None
    listener.setblocking(False)
    return listener


def _shown(listener: socket.socket) -> str:
    """``host:port`` of a listener."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Faceplate:
    """The interfaces ``p1``, ``p2``, … of the device's namespace, armed as they come and go."""

    def __init__(self, settings: Settings, datapath: Datapath, device: OpticalDevice) -> None:
        self._size, self._netns = settings.size, settings.netns
        self._datapath, self._device = datapath, device
        self._armed: dict[int, Link] = {}
        # What a device before this one has armed, so that what vanished meanwhile is noticed.
        self._stale = datapath.plugged()
        self._watcher = LinkWatcher(settings.netns)

    def fileno(self) -> int:
        return self._watcher.fileno()

    def close(self) -> None:
        self._watcher.close()

    def refresh(self) -> None:
        """Takes in the link events that have arrived."""
        present: dict[int, Link] = {}
        for link in self._watcher.changed().values():
            match = _FACEPLATE.fullmatch(link.name)
            if match and int(match[1]) <= self._size:
                present[int(match[1])] = link
        for port, link in list(self._armed.items()):
            if port not in present or present[port].ifindex != link.ifindex:
                self._unplug(port, link.ifindex)
        for port, link in present.items():
            before = self._armed.get(port)
            if before == link or (before is None and not self._plug(port, link)):
                continue
            self._armed[port] = link
            self._device.receive(port, link.carrier)
        for ifindex, port in self._stale.items():
            if all(link.ifindex != ifindex for link in self._armed.values()):
                self._datapath.unplug(ifindex, port, self._size + port)
        self._stale = {}

    def _plug(self, port: int, link: Link) -> bool:
        try:
            with entered(self._netns):
                changed = self._datapath.plug(link.ifindex, port, self._size + port)
                if not link.up and not link.held:
                    set_up(link)
        except OSError as error:
            # It can vanish between the event and now; another event will tell.
            log.warning("port %d: cannot arm %s: %s", port, link.name, error)
            return False
        log.info("port %d: %s is plugged in%s", port, link.name, "" if changed else " as before")
        return True

    def _unplug(self, port: int, ifindex: int) -> None:
        self._datapath.unplug(ifindex, port, self._size + port)
        self._device.unplugged(port)
        del self._armed[port]
        log.info("port %d: unplugged", port)


@dataclass
class _Client:
    """``answered``: whether it has asked something and got an answer."""

    connection: socket.socket
    session: FaultySession
    unread: bytearray
    heard_s: float
    events: int = 0
    ended: bool = False
    spoke: bool = False
    answered: bool = False

    @property
    def half_open(self) -> bool:
        return not (self.answered and self.session.established)


class OpticalSwitchServer:
    """One emulated optical switch. :meth:`run` serves until :meth:`stop` or a stop signal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients: dict[socket.socket, _Client] = {}
        served = settings.serve
        if settings.listen is not None:
            served = (("scpi", settings.listen), *served)
        protocols = [protocol_named(name) for name, _ in served]
        self._stopping = False
        with contextlib.ExitStack() as undo:
            # What a start that fails, and the end of the process, let go of.
            held = undo.enter_context(contextlib.ExitStack())
            datapath = None
            if settings.pins is not None:
                datapath = _open_datapath(settings, settings.pins)
                if not datapath.resumed:
                    # A first start that fails leaves nothing; a restart that fails leaves the light alone.
                    undo.callback(remove_pins, settings.pins)
            self._datapath: LightPaths = datapath or ModelledPaths(
                settings.folder, settings.name, settings.size
            )
            held.callback(self._datapath.close)
            before, now_ns = self._datapath.stored(), time.monotonic_ns()
            if settings.recovery is not None:
                before = replace(before, recovery=settings.recovery)
            self.device = OpticalDevice(
                settings.size,
                settings.profile,
                settings.seed,
                booted(before, settings.profile, settings.seed, now_ns),
                settings.wavelengths,
            )
            self._far = None
            if settings.light is not None and datapath is not None:
                self._far = FarLight(settings.light, settings.name, self.device, datapath)
                held.callback(self._far.close)
            self.apply(self._changed_by_start(before))
            for port in settings.failed_ports:
                self.apply(self.device.fail(port))
            self._faceplate = None
            if datapath is None:
                for port in range(1, settings.size + 1):
                    self.device.receive(port, True)
            else:
                self._faceplate = Faceplate(settings, datapath, self.device)
                held.callback(self._faceplate.close)
                # The kernel has answered already: the interfaces that are there get armed before anyone asks.
                self._faceplate.refresh()
            self._switch = Switch(settings.name, self.device, settings.users)
            for name, _ in served:
                recall(name, self._switch)
            self._noted = self.device.remembered()
            #: By listener: its protocol, with the name.
            self._listeners: dict[socket.socket, tuple[str, ManagementProtocol]] = {}
            for (name, where), protocol in zip(served, protocols, strict=True):
                listener = _listener(name, where)
                held.callback(listener.close)
                self._listeners[listener] = name, protocol
            self._rest: RestThread | None = None
            if settings.rest is not None:
                self._rest = RestThread(_listener("rest", settings.rest), self._rest_app)
                held.callback(self._rest.stop)
            self.faults = Faults(self.device, [name for name, _ in served])
            for port, admin in sorted(before.admin.items()):
                if admin is Admin.FAILED and port not in settings.failed_ports:
                    # Its fault ended with the process before, and must be there to be cleared.
                    self.apply(self.faults.add(now_ns, FaultSpec(Kind.PORT_FAILED, port=port))[1])
            self._held = held.pop_all()
            undo.pop_all()
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        #: Its data is what is called when there is something to read.
        self._selector = selectors.DefaultSelector()
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._answer)
        if self._faceplate is not None:
            self._selector.register(self._faceplate, selectors.EVENT_READ, self._faceplate.refresh)
        if self._rest is not None:
            self._selector.register(self._rest.listener, selectors.EVENT_READ, self._begin_rest)
        for item in (self._wake_out, self._wake_in, self._selector):
            self._held.callback(item.close)

    def _changed_by_start(self, before: Stored) -> list[Effect]:
        """Effects that bring the light paths to what the device has after its start."""
        effects: list[Effect] = (
            [] if self._settings.recovery is None else [SetRecovery(self._settings.recovery)]
        )
        if before.recovery is Recovery.MAINTAIN:
            return effects
        wires = self.device.cross_connects()
        gone = before.cross_connects.keys() - {wire.spot for wire in wires}
        return [
            *effects,
            *(Dark(*spot) for spot in gone),
            *(self.device.mirrors.light_of(wire) for wire in wires),
        ]

    @property
    def addresses(self) -> dict[str, str]:
        """``host:port`` of each protocol, by name."""
        return {name: _shown(listener) for listener, (name, _) in self._listeners.items()}

    @property
    def rest_address(self) -> str | None:
        """``host:port`` of its own REST."""
        return None if self._rest is None else _shown(self._rest.listener)

    # For what runs in the switch's own thread (:meth:`ask`).

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def light_paths(self) -> LightPaths:
        """Light as the datapath really switches it."""
        return self._datapath

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()

    @property
    def resumed(self) -> bool:
        """Return whether the light was already on when the server started."""
        return self._datapath.resumed

    def stop(self) -> None:
        """Ends :meth:`run` soon; may be called from any thread or a signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        # It is awake already, or has ended.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def ask(self, function: Callable[[], Answer], timeout_s: float = ASK_S) -> Answer:
        """Run a function in the switch's own thread and return its result. For calls from other threads.

        Exceptions of ``function`` are raised here. Raises TimeoutError if the switch does not begin in time,
        and then the function never runs. Raises CancelledError if the switch ends before.
        """
        if self._stopping:
            raise CancelledError
        future: Future[Answer] = Future()
        self._asked.put((function, future))
        self._wake()
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)
        while not self._asked.empty():
            function, future = self._asked.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  (it is the other thread's)
                future.set_exception(error)

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT end :meth:`run`. Only for the main thread of a process of its own."""
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def run(self) -> None:
        """Serves clients until stopped, then lets go of everything except the light."""
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._stopping = True
            self._close()

    def _close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        while not self._asked.empty():
            self._asked.get()[1].cancel()
        self._held.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._wait_s()):
            if events & selectors.EVENT_READ:
                key.data()
        self._expire()
        self._work()

    def _begin_rest(self) -> None:
        """From now on REST's own thread takes its callers."""
        assert self._rest is not None
        self._selector.unregister(self._rest.listener)
        self._rest.start()

    def _rest_app(self, host: str) -> FastAPI:
        from ringlight.testbed.emulation.optical.rest import create_app

        return create_app(self, self._settings.rest_tokens, [host])

    def _wait_s(self) -> float | None:
        times = [
            self.device.next_ns,
            self.faults.next_ns,
            *(client.session.next_ns for client in self._clients.values()),
        ]
        due = [due_ns for due_ns in times if due_ns is not None]
        limits = [(min(due) - time.monotonic_ns()) / NS] if due else []
        limits += [
            client.heard_s + self._patience_s(client) - time.monotonic() for client in self._clients.values()
        ]
        # The kernel takes no more than some weeks.
        return max(0.0, min(*limits, LONGEST_S)) if limits else None

    def _work(self) -> None:
        """Commands, effects and replies, until nothing more can be done now."""
        while True:
            now_ns = time.monotonic_ns()
            # Effects reach the kernel before any reply that speaks of them reaches a client.
            self.apply(self.faults.advance(now_ns), now_ns)
            self.device.put_off(self.apply(self.device.advance(now_ns), now_ns))
            for client in self._clients.values():
                reply = client.session.advance(now_ns)
                client.answered |= client.spoke and bool(reply)
                client.unread += reply
            due = [due_ns for due_ns in (self.device.next_ns, self.faults.next_ns) if due_ns is not None]
            if not due or min(due) > now_ns:
                break
        self._note()
        for client in list(self._clients.values()):
            self._write(client)

    def _note(self) -> None:
        """Store what clients have set besides light, before they are told that it is set."""
        if self._settings.folder is None or (notes := self.device.remembered()) == self._noted:
            return
        self._noted = notes
        self._datapath.set_notes(notes)
        self._datapath.keep()

    def apply(self, effects: Sequence[Effect], decided_ns: int | None = None) -> int:
        """Make the kernel do what the device decided. Return the delay in nanoseconds. Only for the switch's
        own thread."""
        if not effects:
            return 0
        if self._far is not None:
            # Before, so that no packet slips through on light that is too weak; and again after, because
            # another switch that changes at the same time has not seen this one's change until then.
            self._far.follow()
        late_ns = apply_effects(self._datapath, effects, decided_ns)
        self._datapath.keep()
        if self._far is not None:
            self._far.follow()
        return late_ns

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            log.warning("accept: %s", error)
            return
        if len(self._clients) >= MAX_CLIENTS and not self._make_room():
            log.warning("%d clients, and none that is silent: a newcomer is turned away", len(self._clients))
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name, protocol = self._listeners[listener]
        session = FaultySession(protocol.session(self._switch), name, self.faults)
        client = _Client(connection, session, bytearray(), time.monotonic())
        self._clients[connection] = client
        self._listen_for(client, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        """Drops whoever was silent longest, of those that are half open if there are any; whether somebody
        was."""
        clients = list(self._clients.values())
        silent = [client for client in clients if client.half_open]
        if not silent:
            since_s = time.monotonic() - YIELD_S
            silent = [client for client in clients if client.session.idle and client.heard_s <= since_s]
        if not silent:
            return False
        log.warning("%d clients: the one that was silent longest gives way to a newcomer", len(clients))
        self._drop(min(silent, key=lambda client: client.heard_s))
        return True

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.heard_s = time.monotonic()
        if data:
            client.spoke = True
            client.session.feed(data)
        else:
            client.ended = True

    def _write(self, client: _Client) -> None:
        if client.connection not in self._clients:
            return
        if client.unread:
            try:
                sent = client.connection.send(client.unread)
                del client.unread[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)
                return
        # A client that has said all it wants to say still gets its replies.
        if (client.session.over or (client.ended and client.session.idle)) and not client.unread:
            self._drop(client)
            return
        if len(client.unread) > MAX_UNREAD_BYTES:
            log.warning("a client does not read its replies and is dropped")
            self._drop(client)
            return
        events = 0
        if client.session.wants_bytes and not client.ended and not client.session.over:
            events |= selectors.EVENT_READ
        if client.unread:
            events |= selectors.EVENT_WRITE
        self._listen_for(client, events)

    def _listen_for(self, client: _Client, events: int) -> None:
        if events == client.events:
            return
        if not events:
            self._selector.unregister(client.connection)
        elif client.events:
            self._selector.modify(client.connection, events, partial(self._read, client))
        else:
            self._selector.register(client.connection, events, partial(self._read, client))
        client.events = events

    def _expire(self) -> None:
        """Drop whoever has been silent too long. What came while this process stood still is heard first."""
        for client in [client for client in self._clients.values() if self._has_expired(client)]:
            if client.events & selectors.EVENT_READ:
                self._read(client)
            if client.connection in self._clients and self._has_expired(client):
                log.info("a client was idle for %g s and is dropped", self._patience_s(client))
                self._drop(client)

    def _has_expired(self, client: _Client) -> bool:
        return client.heard_s + self._patience_s(client) < time.monotonic()

    def _patience_s(self, client: _Client) -> float:
        """Longest silence of a client."""
        limit_s = self._settings.idle_timeout_s
        if client.ended:
            profile = self._settings.profile
            return min(limit_s, ENDED_S + profile.dark_s + profile.dark_jitter_s)
        if client.half_open:
            return min(limit_s, HALF_OPEN_S)
        return math.inf if client.session.keeps_time else limit_s

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.connection, None)
        self._listen_for(client, 0)
        client.connection.close()

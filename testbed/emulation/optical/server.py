"""The process around the device: sockets, link events, signals and the kernel's maps, in one thread.

The listeners open last: a client that connects finds the device ready. Nothing here ever takes the maps or
filters away, so ending the process in any way leaves the light as it is, and a new process finds it so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ringlight.controller.web.listening import listen
from ringlight.testbed.emulation.optical.clients import MAX_CLIENTS, Clients
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Dark,
    Effect,
    Recovery,
    SetRecovery,
    Stored,
)
from ringlight.testbed.emulation.optical.datapath import remove_pins
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.faceplate import Faceplate
from ringlight.testbed.emulation.optical.far_light import FarLight
from ringlight.testbed.emulation.optical.faulty_session import FaultySession
from ringlight.testbed.emulation.optical.light_paths import (
    LightPaths,
    apply_effects,
    open_datapath,
)
from ringlight.testbed.emulation.optical.recovery import ModelledPaths, booted
from ringlight.testbed.emulation.optical.rest_thread import RestThread
from ringlight.testbed.emulation.optical.session import (
    ManagementProtocol,
    Switch,
    protocol_named,
    recall,
)
from ringlight.testbed.emulation.optical.switch_faults import Faults, FaultSpec, Kind
from ringlight.testbed.emulation.optical.switch_settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

#: Longest that nothing is looked at, seconds.
LONGEST_S = 3600.0
#: Longest that another thread waits for the switch to come to it, seconds.
ASK_S = 5.0
Answer = TypeVar("Answer")


def _listener(name: str, where: tuple[str, int]) -> socket.socket:
    """Raises OSError that names the protocol and the address."""
    try:
        listener = listen(*where, MAX_CLIENTS)
    except OSError as error:
        why = (
            os.strerror(error.errno)
            if error.errno and error.errno > 0
            else error.strerror
        )
        raise OSError(error.errno, f"{name} at {where[0]}:{where[1]}: {why}") from None
    listener.setblocking(False)
    return listener


def _shown(listener: socket.socket) -> str:
    """``host:port`` of a listener."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class OpticalSwitchServer:
    """One emulated optical switch. :meth:`run` serves until :meth:`stop` or a stop signal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
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
                datapath = open_datapath(settings, settings.pins)
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
                self._far = FarLight(
                    settings.light, settings.name, self.device, datapath
                )
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
                self._rest = RestThread(
                    _listener("rest", settings.rest), self._rest_app
                )
                held.callback(self._rest.stop)
            self.faults = Faults(self.device, [name for name, _ in served])
            for port, admin in sorted(before.admin.items()):
                if admin is Admin.FAILED and port not in settings.failed_ports:
                    # Its fault ended with the process before, and must be there to be cleared.
                    self.apply(
                        self.faults.add(now_ns, FaultSpec(Kind.PORT_FAILED, port=port))[
                            1
                        ]
                    )
            self._held = held.pop_all()
            undo.pop_all()
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        #: Its data is what is called when there is something to read.
        self._selector = selectors.DefaultSelector()
        profile = settings.profile
        self._clients = Clients(
            self._selector,
            settings.idle_timeout_s,
            profile.dark_s + profile.dark_jitter_s,
        )
        for listener in self._listeners:
            self._selector.register(
                listener, selectors.EVENT_READ, partial(self._accept, listener)
            )
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._answer)
        if self._faceplate is not None:
            self._selector.register(
                self._faceplate, selectors.EVENT_READ, self._faceplate.refresh
            )
        if self._rest is not None:
            self._selector.register(
                self._rest.listener, selectors.EVENT_READ, self._begin_rest
            )
        for item in (self._wake_out, self._wake_in, self._selector):
            self._held.callback(item.close)

    def _changed_by_start(self, before: Stored) -> list[Effect]:
        """Effects that bring the light paths to what the device has after its start."""
        effects: list[Effect] = (
            []
            if self._settings.recovery is None
            else [SetRecovery(self._settings.recovery)]
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
        return {
            name: _shown(listener) for listener, (name, _) in self._listeners.items()
        }

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
        self._clients.close()
        while not self._asked.empty():
            self._asked.get()[1].cancel()
        self._held.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._wait_s()):
            if events & selectors.EVENT_READ:
                key.data()
        self._clients.expire()
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
            *self._clients.next_times_ns(),
        ]
        due = [due_ns for due_ns in times if due_ns is not None]
        limits = [(min(due) - time.monotonic_ns()) / NS] if due else []
        limits += [
            expiry_s - time.monotonic() for expiry_s in self._clients.expiries_s()
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
            self._clients.advance(now_ns)
            due = [
                due_ns
                for due_ns in (self.device.next_ns, self.faults.next_ns)
                if due_ns is not None
            ]
            if not due or min(due) > now_ns:
                break
        self._note()
        self._clients.write()

    def _note(self) -> None:
        """Store what clients have set besides light, before they are told that it is set."""
        if (
            self._settings.folder is None
            or (notes := self.device.remembered()) == self._noted
        ):
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
        name, protocol = self._listeners[listener]
        self._clients.accept(
            listener,
            lambda: FaultySession(protocol.session(self._switch), name, self.faults),
        )

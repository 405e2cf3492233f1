"""Accept connections of switches, as many as there is room for, each with a thread that receives."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from ringlight.controller.openflow.handshake import Handlers
from ringlight.controller.openflow.switch import Switch
from ringlight.controller.waiting_room import SentAway, share_of_descriptors

log = logging.getLogger(__name__)

#: Connections, those that are no switch yet, and how long one of these is not closed for another, seconds.
_MOST, _MOST_NEW, _LEAST_S = 1024, 128, 0.25


class Connections:
    """Connections to one port, those included that are no switch yet.

    ``on_state``: called when one becomes a switch, and when a switch is gone.
    """

    def __init__(
        self,
        handlers: Handlers,
        on_state: Callable[[Switch, str], None],
        sent_away: SentAway,
    ) -> None:
        self._handlers, self._on_state, self._sent_away = handlers, on_state, sent_away
        self._connections: dict[Switch, threading.Thread] = {}
        #: When each that is no switch yet came, the earliest first.
        self._new: dict[Switch, float] = {}
        self._changed = threading.Condition()
        self._stopping = False

    def __len__(self) -> int:
        with self._changed:
            return len(self._connections)

    def stop(self) -> None:
        """Accept no more; those that are there go on."""
        self._stopping = True

    def hang_up(self) -> list[threading.Thread]:
        """End every connection. Return their threads, which then end."""
        with self._changed:
            connections = dict(self._connections)
        for switch in connections:
            switch.hang_up()
        return list(connections.values())

    def settled(self, switch: Switch) -> None:
        """Note that a connection is a switch, or that it ended: it needs no room among the new ones."""
        with self._changed:
            self._new.pop(switch, None)
            self._changed.notify_all()

    def accept(self, listener: socket.socket, port: int, descriptors: int) -> None:
        """Accept connections until :meth:`stop`. ``descriptors``: how many each may need.

        ``port``: the one that switches know.
        """
        most = share_of_descriptors(_MOST, descriptors)
        while not self._stopping:
            self._make_room(min(_MOST_NEW, most // 2))
            try:
                connection, address = listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                log.error("OpenFlow port %s: accept failed: %s", port, error)
                time.sleep(0.1)
                continue
            with self._changed:
                full = len(self._connections) >= most
            if full:
                self._sent_away.count()
                log.warning(
                    "%d OpenFlow connections: the one from %s is turned away",
                    most,
                    address,
                )
                connection.close()
                continue
            try:
                switch = Switch(connection, address, self._handlers, self._on_state)
            except OSError as error:
                log.warning("connection from %s ended at once: %s", address, error)
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve,
                args=(switch,),
                name=f"openflow-{address[1]}",
                daemon=True,
            )
            with self._changed:
                self._connections[switch] = thread
                self._new[switch] = time.monotonic()
            thread.start()

    def _make_room(self, most: int) -> None:
        """Close the earliest of ``most`` connections that are no switch, once it has had its time."""
        while not self._stopping:
            with self._changed:
                if len(self._new) < most:
                    return
                first, came = next(iter(self._new.items()))
                left_s = came + _LEAST_S - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                del self._new[first]
            self._sent_away.count()
            log.warning(
                "%d connections that are no switch: the first one is closed", most
            )
            first.hang_up()

    def _serve(self, switch: Switch) -> None:
        try:
            switch.serve()
        except Exception:
            # A malformed message must end that connection and nothing else.
            log.exception("connection of switch %s failed", switch.id)
        finally:
            switch.hang_up()
            with self._changed:
                self._connections.pop(switch, None)
                self._new.pop(switch, None)
                self._changed.notify_all()

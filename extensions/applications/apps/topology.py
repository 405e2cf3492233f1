"""os-ken's application that discovers switches, links and hosts, mended for native threads.

Its threads shared their tables without a lock, which eventlet's threads never needed. It never sent its
events of hosts that moved, because it does not declare them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from os_ken.controller.handler import set_ev_cls
from os_ken.topology import event, switches

#: Functions that read or write the tables. os-ken calls each on the application's thread or one of its loops.
_SHARED = (
    *("state_change_handler", "port_status_handler", "lldp_packet_in_handler"),
    *(
        "host_discovery_packet_in_handler",
        "switch_request_handler",
        "host_request_handler",
    ),
    "send_lldp_packet",
)
_lock = threading.RLock()


def install() -> None:
    """Mend the application in this process."""
    kind = switches.Switches
    if event.EventHostMove in kind._EVENTS:
        return
    kind._EVENTS.append(event.EventHostMove)
    for name in _SHARED:
        setattr(kind, name, _locked(getattr(kind, name)))
    kind.link_request_handler = _link_request_handler
    kind.lldp_loop, kind.link_loop = _lldp_loop, _link_loop


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def alone(*args: Any) -> Any:
        with _lock:
            return method(*args)

    return alone


@set_ev_cls(event.EventLinkRequest)  # type: ignore[untyped-decorator]
def _link_request_handler(application: Any, request: Any) -> None:
    """Reply with a copy, because the caller goes over it on a thread of its own."""
    with _lock:
        links = {
            link: seen_at
            for link, seen_at in application.links.items()
            if request.dpid in (None, link.src.dpid)
        }
    application.reply_to_request(
        request, event.EventLinkReply(request.src, request.dpid, links)
    )


def _lldp_loop(application: Any) -> None:
    """Send an LLDP frame from each port, every ``LLDP_SEND_PERIOD_PER_PORT``, until the application ends."""
    while application.is_active:
        application.lldp_event.clear()
        due = time.time() - application.LLDP_SEND_PERIOD_PER_PORT
        with _lock:
            sent_at = {port: data.timestamp for port, data in application.ports.items()}
        new = [port for port, sent_s in sent_at.items() if sent_s is None]
        again = [
            port
            for port, sent_s in sent_at.items()
            if sent_s is not None and sent_s <= due
        ]
        for port in new:
            application.send_lldp_packet(port)
        for port in again:
            application.send_lldp_packet(port)
            time.sleep(application.LLDP_SEND_GUARD)
        later = [
            sent_s - due
            for sent_s in sent_at.values()
            if sent_s is not None and sent_s > due
        ]
        application.lldp_event.wait(
            0 if again else min(later, default=application.LLDP_SEND_PERIOD_PER_PORT)
        )


def _link_loop(application: Any) -> None:
    """Report a link as gone once no LLDP frame has come over it for ``LINK_TIMEOUT``."""
    while application.is_active:
        application.link_event.clear()
        with _lock:
            gone = _take_silent(application, time.time() - application.LINK_TIMEOUT)
        for link in gone:
            application.send_event_to_observers(event.EventLinkDelete(link))
        application.link_event.wait(application.TIMEOUT_CHECK_PERIOD)


def _take_silent(application: Any, since: float) -> list[Any]:
    """Remove the links without a frame since a time, and return them. Checks their reverse links soon."""
    gone = [link for link, heard in application.links.items() if heard < since]
    for link in gone:
        application.links.link_down(link)
    for link in gone:
        reverse = switches.Link(link.dst, link.src)
        application.links.rev_link_set_timestamp(reverse, since)
        application.ports.move_front(link.dst)
    if gone:
        application.lldp_event.set()
    return gone

"""Events of the controller, delivered to every subscriber; the newest ones are kept for late subscribers."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

#: An event: ``{"id": n, "t": CLOCK_MONOTONIC seconds, "event": kind, …}``.
Event = dict[str, Any]


class Subscription:
    """Events from now on, in order. A listener that falls 1,000 events behind loses the oldest.

    ``wake`` is called, on the publisher's thread, when there is something to take or the bus is closed.
    """

    def __init__(self, bus: EventBus, wake: Callable[[], None]) -> None:
        self._bus = bus
        self._wake = wake
        self._events: collections.deque[Event] = collections.deque(maxlen=1000)

    def put(self, event: Event | None) -> None:
        if event is not None:
            self._events.append(event)
        self._wake()

    def take(self) -> list[Event]:
        """Return the events that arrived since the last call, oldest first, without waiting."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._events.popleft())
        return taken

    def close(self) -> None:
        self._bus.forget(self)


class EventBus:
    """Publisher of events. Any thread may call any method."""

    def __init__(self, keep: int = 2000) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._recent: collections.deque[Event] = collections.deque(maxlen=keep)
        self._subscriptions: set[Subscription] = set()
        self.closed = False

    def publish(self, kind: str, /, **fields: Any) -> Event:
        """Publish and log an event of this kind with these fields. Return the event."""
        with self._lock:
            self._number += 1
            event: Event = {
                "id": self._number,
                "t": time.monotonic(),
                "event": kind,
                **fields,
            }
            self._recent.append(event)
            # Handed over before another is numbered, so that every listener gets them in order.
            for subscription in self._subscriptions:
                subscription.put(event)
        log.info("%s", kind, extra={"fields": _loggable(fields)})
        return event

    def subscribe(
        self, after: int | None = None, wake: Callable[[], None] = lambda: None
    ) -> Subscription:
        """Return a new subscription. With ``after``, it begins with the kept events of higher id."""
        subscription = Subscription(self, wake)
        with self._lock:
            if after is not None:
                for event in self._recent:
                    if event["id"] > after:
                        subscription.put(event)
            self._subscriptions.add(subscription)
        return subscription

    @property
    def listeners(self) -> int:
        """Number of subscriptions."""
        return len(self._subscriptions)

    def forget(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """Wake every listener for good."""
        self.closed = True
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        for subscription in subscriptions:
            subscription.put(None)


def _loggable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are short enough for one log line."""
    return {
        key: value
        for key, value in fields.items()
        if isinstance(value, (str, int, float, bool))
    }

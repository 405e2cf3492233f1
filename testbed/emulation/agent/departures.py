"""Workers that are removed a little later, so that their job goes on without waiting for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from ringlight.testbed.emulation.agent.worker import Worker

#: How long workers that their job goes on without stay, so that it does not wait for their removal, seconds.
LEAVE_S = 2.0


class Departures:
    """Workers about to leave. ``remove``: removes a lot of them."""

    def __init__(self, remove: Callable[[list[Worker]], object]) -> None:
        self._remove = remove
        self._lock = threading.Lock()
        #: Each lot with its thread and what hurries it.
        self._leaving: list[tuple[list[Worker], threading.Event, threading.Thread]] = []

    def later(self, left: list[Worker]) -> None:
        """Remove these in a while."""
        hurry = threading.Event()

        def leave() -> None:
            hurry.wait(LEAVE_S)
            self._remove(left)

        thread = threading.Thread(target=leave, name="leaving", daemon=True)
        with self._lock:
            self._leaving.append((left, hurry, thread))
            thread.start()

    def settle(self, gpus: Collection[str] | None = None) -> None:
        """Have those that are about to leave these GPUs (None: any) do so now."""
        with self._lock:
            self._leaving = [
                removal for removal in self._leaving if removal[2].is_alive()
            ]
            mine = [
                removal
                for removal in self._leaving
                if gpus is None or any(w.place.gpu in gpus for w in removal[0])
            ]
        for _, hurry, thread in mine:
            hurry.set()
            thread.join(30.0)

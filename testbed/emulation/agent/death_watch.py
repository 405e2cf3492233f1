"""The thread that hears of the ends of processes; the kernel tells of each at once."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress


class DeathWatch:
    """Calls whoever wants to know of the end of a process.

    ``watched``: gives what is to be called, by the process's descriptor; asked again whenever something has
    happened, or at :meth:`wake`.
    """

    def __init__(self, watched: Callable[[], Mapping[int, Callable[[], None]]]) -> None:
        self._watched = watched
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="deaths", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look anew at what is to be watched."""
        with suppress(OSError):
            os.write(self._wake_write, b"!")

    def stop(self) -> None:
        """Call nobody any more, soon."""
        self._stopped = True

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self.wake()
        self._thread.join(10)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _watch(self) -> None:
        while not self._stopped:
            watched = self._watched()
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            for descriptor in watched:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(1000):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                else:
                    watched[descriptor]()

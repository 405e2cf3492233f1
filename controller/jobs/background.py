"""Work on jobs that goes on in threads of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ringlight.controller.errors import ControllerError

log = logging.getLogger(__name__)


class Background:
    """Threads, each with one piece of work."""

    def __init__(self) -> None:
        self._tasks: set[threading.Thread] = set()

    def spawn(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run in a thread of its own; what it raises is logged."""

        def run() -> None:
            try:
                work(*arguments)
            except ControllerError as error:
                log.error("%s", error)
            except Exception:
                log.exception("%s failed", work.__name__)
            finally:
                self._tasks.discard(threading.current_thread())

        task = threading.Thread(target=run, name=f"jobs-{work.__name__}", daemon=True)
        self._tasks.add(task)
        task.start()

    def join(self, timeout_s: float) -> None:
        """Wait for all that is going on, altogether ``timeout_s`` seconds at most."""
        deadline = time.monotonic() + timeout_s
        for task in list(self._tasks):
            task.join(max(0.0, deadline - time.monotonic()))

"""Make moved GPUs announce their place.

A learning controller so need not wait until a GPU that only listens sends something.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ControllerError
from ringlight.controller.server_agent import AgentClient

log = logging.getLogger(__name__)

#: Pauses before each time, seconds: a busy controller may miss one, and saying it again is cheap.
PAUSES_S = (0.0, 0.1, 0.3, 0.6)
#: So many moves are announced at once; later ones wait for their turn.
_AT_ONCE = 4


class Announcer:
    """Threads that make the server agent announce GPUs, and publish ``gpus_announced``."""

    def __init__(self, agent: AgentClient | None, bus: EventBus) -> None:
        self._agent = agent
        self._bus = bus
        self._stopping = threading.Event()
        #: Nothing is handed to the pool once it is shut down.
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="announce")

    def announce(self, gpus: Sequence[str]) -> None:
        """Returns at once."""
        with self._lock:
            if self._agent is not None and not self._stopping.is_set():
                self._pool.submit(self._say, self._agent, list(gpus))

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
        self._pool.shutdown(cancel_futures=True)

    def _say(self, agent: AgentClient, gpus: list[str]) -> None:
        for number, pause_s in enumerate(PAUSES_S):
            if self._stopping.wait(pause_s):
                return
            try:
                # Not the first time: who has not heard yet would write the same flows again.
                absent = agent.announce(gpus, forget=number > 0)["absent"]
            except ControllerError as error:
                log.warning("%s are not announced: %s", ", ".join(gpus), error)
                self._bus.publish(
                    "gpus_announced", gpus=[], absent=gpus, error=str(error)
                )
                return
            if number == 0:
                announced = [gpu for gpu in gpus if gpu not in absent]
                self._bus.publish(
                    "gpus_announced", gpus=announced, absent=absent, error=None
                )

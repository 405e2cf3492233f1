"""What an O-NIC's agent drives, without any hardware, for tests and benchmarks.

``python -m tests.null_onic GPU DIRECTORY HOST PORT`` is such an agent, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import AgentSettings


class NullLaser:
    """Lasers of an O-NIC that are a dictionary: by port the wavelength, since when and until when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lit: dict[int, tuple[int, float, float]] = {}
        self._clock = clock

    def tune(
        self, port: int, wavelength: int, ready_in_s: float, until_s: float
    ) -> float:
        ready_s = self._clock() + ready_in_s
        self.lit[port] = (wavelength, ready_s, until_s)
        return ready_s

    def dark(self, port: int) -> None:
        self.lit.pop(port, None)

    def read(self, port: int) -> int | None:
        lit = self.lit.get(port)
        return lit[0] if lit is not None and self._clock() < lit[2] else None


class NullRoutes:
    """Routes of an O-NIC that are a dictionary: the port by destination."""

    def __init__(self) -> None:
        self.routes: dict[str, int] = {}

    def replace(self, routes: Mapping[str, int]) -> None:
        self.routes = dict(routes)


def main(gpu: str, directory: str, host: str, port: str) -> None:
    agent = Agent(
        AgentSettings(gpu, Path(directory), (host, int(port))),
        NullLaser(),
        NullRoutes(),
    )
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    agent.run()


if __name__ == "__main__":
    main(*sys.argv[1:])

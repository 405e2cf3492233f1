"""An O-NIC agent as a process whose lasers are a file, so that they stay lit when it is killed.

``python -m tests.integration.onic_process GPU DIRECTORY HOST PORT TIMES_JSON``
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import AgentSettings
from ringlight.controller.onic.lease_times import Times
from tests.null_onic import NullRoutes


class FileLaser:
    def __init__(self, path: Path) -> None:
        self.path = path

    def _lit(self) -> dict[str, list[float]]:
        lit: dict[str, list[float]] = (
            json.loads(self.path.read_text()) if self.path.exists() else {}
        )
        return lit

    def _store(self, lit: dict[str, list[float]]) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(lit))
        fresh.replace(self.path)

    def tune(
        self, port: int, wavelength: int, ready_in_s: float, until_s: float
    ) -> float:
        ready_s = time.monotonic() + ready_in_s
        self._store({**self._lit(), str(port): [wavelength, ready_s, until_s]})
        return ready_s

    def dark(self, port: int) -> None:
        self._store(
            {one: light for one, light in self._lit().items() if one != str(port)}
        )

    def read(self, port: int) -> int | None:
        light = self._lit().get(str(port))
        return (
            int(light[0]) if light is not None and time.monotonic() < light[2] else None
        )


def main() -> None:
    gpu, directory, host, port, times = sys.argv[1:]
    home = Path(directory)
    settings = AgentSettings(
        gpu,
        home,
        (host, int(port)),
        times=Times(**json.loads(times)),
        allow_faults=True,
    )
    home.mkdir(exist_ok=True)
    agent = Agent(settings, FileLaser(home / "laser.json"), NullRoutes())
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    agent.run()


if __name__ == "__main__":
    main()

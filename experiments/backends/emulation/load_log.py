"""Records of the processors' load while a run is under way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import ProcessorLoad
from ringlight.testbed import load
from ringlight.testbed.processes import LabProcesses

#: Seconds between two looks.
LOAD_S = 0.5


class LoadLog:
    """Looks at the processors from now on, for the run named ``run``."""

    def __init__(self, processes: LabProcesses, run: str) -> None:
        self._processes, self._run = processes, run
        self._load = load.ProcessorLoad(processes.lab.id)
        self._next_s = 0.0

    def look(self) -> list[Record]:
        """Return a record of the load, at most once every LOAD_S seconds; else []."""
        if time.monotonic() < self._next_s:
            return []
        self._next_s = time.monotonic() + LOAD_S
        shares = self._busiest(asdict(self._load.shares()))
        return [ProcessorLoad(t=time.monotonic(), run=self._run, **shares)]

    def _busiest(self, own: Mapping[str, float]) -> dict[str, float]:
        """Return shares of the processors' time, of the machine that the lab itself keeps busiest."""
        parts = self._processes.parts
        loads = [own] if parts is None else [own, *parts.loads()]
        most = max(loads, key=lambda load: load["busy"] - load["others"])
        return {name: round(share, 4) for name, share in most.items()}

"""Samples in the stream of events, on request: rates, iterations, power, and the light of planes.

All streams that request samples get the same samples; without such a stream, nothing is computed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ringlight.controller.jobs.job import JobState
from ringlight.controller.jobs.laps import Lap, Laps
from ringlight.controller.light.documents import LitPair
from ringlight.controller.service import Controller
from ringlight.fabric.planes.choice import lit_planes

#: Seconds between samples.
EVERY_S = 0.5
#: Nobody asked for so long: what happened meanwhile is no sample.
_STALE_S = 5.0


class Samples:
    """Source of samples of a controller, made at most every :data:`EVERY_S` seconds for all requests."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._made_at = 0.0
        self._latest = ""
        self._cursors: dict[str, tuple[int, Laps]] = {}
        self._planes = lit_planes(controller.fabric)

    def latest(self) -> str:
        """Return the newest sample as JSON: an event ``rates`` without an id."""
        with self._lock:
            now = time.monotonic()
            if now - self._made_at >= 0.9 * EVERY_S:
                since = max(self._made_at, now - _STALE_S)
                self._latest = json.dumps(
                    self._sample(since, now), separators=(",", ":")
                )
                self._made_at = now
            return self._latest

    def _sample(self, since: float, now: float) -> dict[str, Any]:
        sums: dict[str, tuple[float, float, int]] = {}
        for sample in self._controller.statistics.since(since):
            rx, tx, count = sums.get(str(sample.port), (0.0, 0.0, 0))
            sums[str(sample.port)] = (rx + sample.rx_bps, tx + sample.tx_bps, count + 1)
        views = self._controller.site.views()
        return {
            "t": now,
            "event": "rates",
            "ports": {
                port: [round(rx / count), round(tx / count)]
                for port, (rx, tx, count) in sums.items()
                if rx or tx
            },
            "iterations": [asdict(lap) for lap in self._laps()],
            "power_dbm": {
                name: {str(port): round(dbm, 2) for port, dbm in view.power_dbm.items()}
                for name, view in views.items()
                if view.reachable and view.power_dbm
            },
            "lightpaths": sorted(self._lightpaths(since), key=str),
        }

    def _lightpaths(self, since: float) -> Iterator[LitPair]:
        for plane in self._planes:
            yield from self._controller.lights[plane.kind].lightpaths(plane, since)

    def _laps(self) -> Iterator[Lap]:
        jobs = self._controller.jobs
        running = [job for job in jobs.running() if job.state is JobState.RUNNING]
        kept: dict[str, tuple[int, Laps]] = {}
        for job in running:
            cursor, laps = self._cursors.get(job.id, (0, Laps(job.id, len(job.gpus))))
            reply = jobs.events(job.id, cursor)
            kept[job.id] = reply["cursor"], laps
            yield from laps.of(
                event for event in reply["events"] if event["event"] == "iteration"
            )
        self._cursors = kept

"""Output of guests, and the bytes of links while they ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from ringlight.experiments.backends.emulation.link_counters import PortBytes, carried
from ringlight.experiments.backends.emulation.run_state import LabJob
from ringlight.experiments.client import Api, ApiError
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import LinkBytes
from ringlight.experiments.record.writing import writing
from ringlight.fabric.topology import Fabric
from ringlight.testbed.processes import LabProcesses


class GuestLog:
    """Keeps what is known of jobs of guests. Methods raise Unreachable."""

    def __init__(self, api: Api, processes: LabProcesses, fabric: Fabric) -> None:
        self._api, self._processes, self._fabric = api, processes, fabric

    def count_before(self, jobs: Sequence[LabJob], of_run: Iterable[LabJob]) -> None:
        """Read the byte counters of links before jobs of guests start. ``of_run``: all jobs of the run."""
        for job in jobs:
            if job.plan.guest is not None:
                job.before = self._port_bytes()
        running = [
            job for job in of_run if (job.released or job in jobs) and not job.ended
        ]
        for job in running:
            job.beside |= {other.plan.name for other in running if other is not job}

    def keep(self, job: LabJob, run: str) -> list[Record]:
        """Write the output of every rank's command to the logs. Return a record of the bytes that links
        carried."""
        after = self._port_bytes() if job.before else {}
        folder = self._processes.logs / "output" / run
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for rank in range(job.plan.gpus):
                try:
                    output = self._api.get(f"/v1/jobs/{job.id}/output/{rank}")
                except ApiError as error:
                    if error.status == HTTPStatus.NOT_FOUND:
                        # One that was never begun has said nothing.
                        continue
                    output = {
                        "stdout": "",
                        "stderr": f"ringlight: the output could not be read: {error}\n",
                    }
                for stream in ("stdout", "stderr"):
                    path = folder / f"{job.plan.name}-{rank}.{stream}.txt"
                    path.write_text(output[stream], encoding="utf-8")
        if not job.before:
            return []
        links = [
            entry
            for link in self._fabric.links
            for entry in carried(link, job.before, after)
        ]
        t, beside = time.monotonic(), sorted(job.beside)
        return [LinkBytes(t=t, run=run, job=job.plan.name, links=links, beside=beside)]

    def _port_bytes(self) -> PortBytes:
        counters: Iterable[dict[str, Any]] = self._api.get("/v1/port-bytes")
        return {
            (entry["switch"], entry["port"]): (entry["rx_bytes"], entry["tx_bytes"])
            for entry in counters
        }

"""Copies what the O-NICs' agents remember of their flows. Nothing where there are no agents."""

from __future__ import annotations

import time
from typing import Any

from ringlight.experiments.client import Api, ApiError
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.light_records import Flow, FlowsLost
from ringlight.experiments.record.lines import record_of
from ringlight.fabric.topology import Fabric

#: Seconds between two readings.
FLOWS_S = 2.0
#: More than any trace has flows, and the most that REST takes: asks for the cursor alone.
END_OF_TRACE = 1 << 53


class FlowLog:
    """Light flows of the run named ``run``, without those before it. Methods raise Unreachable."""

    def __init__(self, api: Api, run: str, fabric: Fabric) -> None:
        self._api, self._run = api, run
        self._gpu_of = {gpu.ip: gpu.name for gpu in fabric.gpus.values()}
        self._cursors = {
            gpu: int(self._ask(gpu, END_OF_TRACE)["cursor"]) for gpu in fabric.agents
        }
        self._next = 0.0

    def look(self) -> list[Record]:
        """Return the records of new flows, read at most once every FLOWS_S seconds; else []."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + FLOWS_S
        return self.read()

    def read(self) -> list[Record]:
        """Return the records of the new flows of all agents."""
        return [record for gpu in self._cursors for record in self._of(gpu)]

    def _of(self, gpu: str) -> list[Record]:
        try:
            answer = self._ask(gpu, self._cursors[gpu])
            if answer["cursor"] < self._cursors[gpu]:
                # A new agent in place of one that died: what that one did last is lost with it.
                answer = self._ask(gpu, 0)
        except ApiError:
            # Away for now; it is asked again.
            return []
        self._cursors[gpu] = answer["cursor"]
        records = [self._flow(gpu, flow) for flow in answer["flows"]]
        if answer.get("dropped"):
            records.append(
                FlowsLost(
                    t=time.monotonic(), run=self._run, gpu=gpu, count=answer["dropped"]
                )
            )
        return records

    def _flow(self, gpu: str, flow: dict[str, Any]) -> Record:
        peer = self._gpu_of.get(flow["peer"], flow["peer"])
        entry = {
            "t": flow["t_close"],
            "event": Flow.event,
            "run": self._run,
            "gpu": gpu,
        }
        record = record_of({**entry, **flow, "peer": peer})
        assert record is not None
        return record

    def _ask(self, gpu: str, cursor: int) -> dict[str, Any]:
        reply: dict[str, Any] = self._api.get(f"/v1/onics/{gpu}/flows", cursor=cursor)
        return reply
